//! Times steps of decoders with random weights on a GPU: a token at depth 64, a batch of 32, and a prompt of 2,048 tokens.
//!
//! Arguments are shapes and formats, such as `8b:q4_0 smollm2:q4_1`; `none` times launches instead of replays, `profile`
//! adds the time of every kernel.

use backend::{Backend, CompileOptions, LogitsMode, RunMode, Runnable, StepOptions, StepOutputs};
use base::{Bytes, DType};
use conformance::TestRng;
use cuda::Cuda;
use graph::ops::{
    Activation, Binary, BinaryFunction, Gated, GatherRows, Linear, Reshape, RmsNorm, Rope,
    RopeLayout, RopeTable, UpdateAndAttend,
};
use graph::{Dim, Graph, GraphBuilder, TensorId};
use kv::{CacheConfig, CacheRegistry, LayerConfig, Step, make_seq_session};
use std::collections::HashMap;
use std::error::Error;
use std::io::Write;
use std::sync::Arc;
use std::time::Instant;

const DEPTH: u32 = 64;
const PROMPT: u32 = 2048;
const BATCH: u32 = 32;

struct Shape {
    layers: usize,
    width: usize,
    inner: usize,
    heads: usize,
    kv_heads: usize,
    vocabulary: usize,
}

fn shape_of(name: &str) -> Option<Shape> {
    let (layers, width, inner, heads, kv_heads, vocabulary) = match name {
        "8b" => (32, 4096, 14336, 32, 8, 128_256),
        "1b" => (16, 2048, 8192, 32, 8, 128_256),
        "smollm2" => (30, 576, 1536, 9, 3, 49_152),
        "tiny" => (2, 256, 512, 4, 2, 512),
        _ => return None,
    };
    Some(Shape {
        layers,
        width,
        inner,
        heads,
        kv_heads,
        vocabulary,
    })
}

/// Weights by type and size: layers share them, as speed does not depend on their values.
struct Weights(TestRng, HashMap<(DType, usize), Bytes>);

impl Weights {
    fn get(&mut self, dtype: DType, elements: usize) -> Bytes {
        let noise = &mut self.0;
        let made = self.1.entry((dtype, elements)).or_insert_with(|| {
            // A few blocks over and over, with the scale of trained weights.
            let block = dtype.block_bytes();
            let some = noise.weights(dtype, dtype.block_len() * 4096);
            let mut some = some.to_vec();
            for block in some.chunks_mut(block) {
                match dtype {
                    DType::F32 => block.copy_from_slice(&1f32.to_le_bytes()),
                    DType::BF16 => block[1] = block[1] & 0x80 | 0x3c,
                    DType::F16 => block[1] = block[1] & 0x80 | 0x20,
                    // The scale is the first f16 number.
                    _ => block[1] = 0x18,
                }
                if dtype == DType::Q4_1 {
                    block[3] = 0xa0;
                }
            }
            let bytes = elements / dtype.block_len() * block;
            let all: Vec<u8> = some.iter().copied().cycle().take(bytes).collect();
            Bytes::from(&all[..])
        });
        made.clone()
    }
}

fn decoder(s: &Shape, dtype: DType) -> Result<Arc<Graph>, Box<dyn Error>> {
    let mut weights = Weights(TestRng::new(3), HashMap::new());
    let mut b = GraphBuilder::new("decoder");
    let (t, r) = (b.symbol("T"), b.symbol("R"));
    let tokens = b.input("tokens", DType::I32, [t]);
    let position = b.input("position", DType::I32, [t]);
    let rows = b.input("rows", DType::I32, [r]);
    let dim = s.width / s.heads;
    let mut weight = |b: &mut GraphBuilder, name: &str, dtype: DType, shape: &[usize]| {
        b.constant(
            name,
            dtype,
            shape,
            weights.get(dtype, shape.iter().product()),
        )
    };
    let frequencies: Vec<f32> = (0..dim / 2).map(|i| 0.9f32.powi(i as i32)).collect();
    let frequencies: Vec<u8> = frequencies.iter().flat_map(|f| f.to_le_bytes()).collect();
    let shape = [dim / 2];
    let frequencies = b.constant(
        "frequencies",
        DType::F32,
        &shape,
        Bytes::from(&frequencies[..]),
    )?;
    let table = b.node(
        "table",
        RopeTable { magnitude: 1.0 },
        &[position, frequencies],
    )?;
    let table_dtype = if s.width < 1000 { DType::Q8_0 } else { dtype };
    let embeddings = weight(&mut b, "embeddings", table_dtype, &[s.vocabulary, s.width])?;
    let mut x = b.node("embedded", GatherRows, &[embeddings, tokens])?;
    let add = Binary {
        function: BinaryFunction::Add,
    };
    for l in 0..s.layers {
        let mut product = |b: &mut GraphBuilder, name: &str, x: TensorId, n: usize, k: usize| {
            let w = weight(b, &format!("{name}{l}.weight"), dtype, &[n, k])?;
            b.node(&format!("{name}{l}"), Linear::default(), &[x, w])
        };
        let scale = b.constant(
            &format!("norm{l}.weight"),
            DType::F32,
            &[s.width],
            Bytes::from(&[0u8, 0, 128, 63].repeat(s.width)[..]),
        )?;
        let norm = RmsNorm { eps: 1e-5 };
        let normed = b.node(&format!("norm{l}"), norm.clone(), &[x, scale])?;
        let kv = s.kv_heads * dim;
        let mut heads = [(s.width, s.heads), (kv, s.kv_heads), (kv, s.kv_heads)]
            .into_iter()
            .zip(["q", "k", "v"]);
        let mut projected = vec![];
        for ((n, _), name) in heads.clone() {
            projected.push(product(&mut b, name, normed, n, s.width)?);
        }
        let mut split = vec![];
        for y in &projected {
            let ((_, heads), name) = heads.next().ok_or("three projections")?;
            let shape: Vec<Dim> = vec![t, heads.into(), dim.into()];
            split.push(b.node(&format!("{name}{l}.heads"), Reshape { shape }, &[*y])?);
        }
        let layout = RopeLayout::Halves;
        let q = b.node(
            &format!("q{l}.rotated"),
            Rope { layout },
            &[split[0], table],
        )?;
        let k = b.node(
            &format!("k{l}.rotated"),
            Rope { layout },
            &[split[1], table],
        )?;
        let op = UpdateAndAttend {
            cache_id: l as u32,
            scale: (dim as f32).powf(-0.5),
            softcap: None,
        };
        let attended = b.node(&format!("attend{l}"), op, &[q, k, split[2], position])?;
        let shape: Vec<Dim> = vec![t, s.width.into()];
        let attended = b.node(&format!("attended{l}"), Reshape { shape }, &[attended])?;
        let out = product(&mut b, "out", attended, s.width, s.width)?;
        x = b.node(&format!("mixed{l}"), add.clone(), &[x, out])?;
        let normed = b.node(&format!("norm.ffn{l}"), norm, &[x, scale])?;
        let gate = product(&mut b, "gate", normed, s.inner, s.width)?;
        let up = product(&mut b, "up", normed, s.inner, s.width)?;
        let function = Activation::Silu;
        let gated = b.node(&format!("gated{l}"), Gated { function }, &[gate, up])?;
        let down = product(&mut b, "down", gated, s.width, s.inner)?;
        x = b.node(&format!("out.ffn{l}"), add.clone(), &[x, down])?;
    }
    let last = b.node("last", GatherRows, &[x, rows])?;
    let head = if s.width < 1000 {
        embeddings
    } else {
        weight(&mut b, "head", dtype, &[s.vocabulary, s.width])?
    };
    let logits = b.node("logits", Linear::default(), &[last, head])?;
    Ok(Arc::new(b.finish(&[logits])?))
}

/// The median time of `count` runs in microseconds.
fn median(
    count: u32,
    mut run: impl FnMut(u32) -> Result<(), Box<dyn Error>>,
) -> Result<f64, Box<dyn Error>> {
    let mut times = Vec::new();
    for i in 0..count {
        let start = Instant::now();
        run(i)?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

fn measure(cuda: &Cuda, name: &str, mode: RunMode, profile: bool) -> Result<(), Box<dyn Error>> {
    let (shape, format) = name.split_once(':').ok_or("a shape and a format")?;
    let shape = shape_of(shape).ok_or("an unknown shape")?;
    let dtype = match format {
        "q4_0" => DType::Q4_0,
        "q4_1" => DType::Q4_1,
        "q4_k" => DType::Q4_K,
        "q6_k" => DType::Q6_K,
        "q8_0" => DType::Q8_0,
        "f16" => DType::F16,
        "bf16" => DType::BF16,
        _ => return Err("an unknown format".into()),
    };
    let graph = decoder(&shape, dtype)?;
    let dim = shape.width / shape.heads;
    let layer = LayerConfig {
        kv_heads: shape.kv_heads,
        key_dim: dim,
        value_dim: dim,
        window: None,
        sinks: 0,
    };
    let prompts = 4;
    let capacity = (prompts + 1) * (PROMPT + DEPTH) + 2 * BATCH * (DEPTH + 64);
    let mut config = CacheConfig::uniform(capacity, shape.layers, layer);
    config.initial_cells = CacheConfig::ALL_CELLS;
    let (_session, bound) = make_seq_session(cuda.id(), &config)?;
    let key = bound.cache_key.ok_or("no cache key")?;
    let entry = CacheRegistry::global().get(&key)?;
    let executable = cuda.compile(graph.clone(), &CompileOptions::default())?;
    let mut runnable = Runnable::bind(graph, executable, Some(entry))?;
    runnable.prepare(&StepOptions {
        mode,
        max_sequences: BATCH as usize,
        max_query_len: 1,
        max_tokens: PROMPT as usize,
        max_rows: BATCH as usize,
        record_all: false,
    })?;
    let mut outputs = StepOutputs::new(LogitsMode::Argmax);
    let ids = |n: u32| -> Vec<u32> { (0..n).map(|i| i * 7 % shape.vocabulary as u32).collect() };
    let step_of = |parts: &[(u32, u32, u32)]| {
        let mut step = Step::default();
        for &(seq, at, tokens) in parts {
            step.extend(seq, at, &ids(tokens));
            step.want_last();
        }
        step
    };
    let mut run = |parts: &[(u32, u32, u32)]| -> Result<(), Box<dyn Error>> {
        Ok(runnable.run_step(&step_of(parts), &mut outputs)?)
    };
    for seq in 0..BATCH {
        run(&[(seq, 0, DEPTH)])?;
    }
    let batch = median(20, |i| {
        let parts: Vec<_> = (0..BATCH).map(|seq| (seq, DEPTH + i, 1)).collect();
        run(&parts)
    })?;
    run(&[(BATCH, 0, DEPTH)])?;
    let decode = median(60, |i| run(&[(BATCH, DEPTH + i, 1)]))?;
    let prefill = median(prompts - 1, |i| run(&[(BATCH + 1 + i, 0, PROMPT)]))?;
    let captures = runnable.executable().captures();
    if profile {
        for (seq, tokens) in [(BATCH, 1), (0, 1), (BATCH + prompts, PROMPT)] {
            let at = if tokens == 1 { DEPTH + 60 } else { 0 };
            let (parts, name): (Vec<_>, _) = match (seq, tokens) {
                (0, 1) => ((0..BATCH).map(|seq| (seq, at - 40, 1)).collect(), "batch"),
                (_, 1) => (vec![(seq, at, 1)], "decode"),
                _ => (vec![(seq, 0, tokens)], "prompt"),
            };
            runnable.executable_mut().set_profiling(true);
            runnable.run_step(&step_of(&parts), &mut outputs)?;
            for node in runnable.executable().profile() {
                let (time, runs) = (node.time.as_secs_f64() * 1e6, node.runs);
                let bandwidth = node.bytes as f64 / time / 1e6;
                let rate = 2.0 * node.macs as f64 / time / 1e6;
                writeln!(
                    std::io::stdout(),
                    "  {name} {:14} {:12} {runs:3} x {:8.1} us = {time:8.0} us, {bandwidth:.2} TB/s, {rate:.0} TFLOP/s",
                    node.op,
                    node.label,
                    time / runs as f64,
                )?;
            }
            runnable.executable_mut().set_profiling(false);
        }
    }
    writeln!(
        std::io::stdout(),
        "{name} {mode}: decode {decode:.0} us, batch of {BATCH} {batch:.0} us, prompt of {PROMPT} {prefill:.0} us, \
         {captures} captures"
    )?;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let cuda = Cuda::new(std::env::var_os("KVARK_CUBIN").map(Into::into))?;
    let (mut mode, mut profile) = (RunMode::Full, false);
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "none" => mode = RunMode::None,
            "piecewise" => mode = RunMode::Piecewise,
            "full" => mode = RunMode::Full,
            "profile" => profile = true,
            name => measure(&cuda, name, mode, profile)?,
        }
    }
    Ok(())
}
