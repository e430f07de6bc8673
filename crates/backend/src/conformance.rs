//! The suite that every backend runs: each op and whole cached steps, against the reference backend.
//!
//! A backend's test calls [`run`] for each of its variants (instruction-set tiers, executors).

use crate::reference::Reference;
use crate::{Backend, CompileOptions, Executable, Runnable};
use base::{Bytes, DType};
use graph::ops::{
    Activation, Binary, BinaryFunction, Gated, GatherRows, LayerNorm, Linear, Op, Reshape, RmsNorm,
    Rope, RopeLayout, RopeTable, Scale, SoftCap, Unary, UpdateAndAttend,
};
use graph::{Dim, Graph, GraphBuilder, TensorId, Value};
use kv::{CacheConfig, CacheSession, Contiguous, LayerConfig, Storage, make_decode_session};
use std::sync::Arc;

/// Runs every case and returns how many there were; the error names the first case that fails and how.
///
/// Results must agree with the reference within `tolerance`, relative to the largest magnitude of the expected tensor.
pub fn run(
    backend: &dyn Backend,
    options: &CompileOptions,
    tolerance: f32,
) -> Result<usize, String> {
    let mut cases = 0;
    for case in op_cases() {
        let compare = |case: &OpCase| -> Result<(), String> {
            let expect = case.evaluate(&Reference::new(), &CompileOptions::default())?;
            close(&case.evaluate(backend, options)?, &expect, tolerance)
        };
        compare(&case).map_err(|e| format!("{}: {e}", case.name))?;
        cases += 1;
    }
    for case in cache_cases() {
        case.check(backend, options, tolerance)
            .map_err(|e| format!("{case:?}: {e}"))?;
        cases += 1;
    }
    Ok(cases)
}

/// A small deterministic generator of numbers.
pub struct Noise(u64);

impl Noise {
    /// The generator with this seed.
    pub fn new(seed: u64) -> Noise {
        Noise(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next 64 bits (xorshift).
    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number from -1 to 1.
    pub fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    /// `n` numbers from -1 to 1.
    pub fn units(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.unit()).collect()
    }

    /// Random blocks of a real type for `elements` elements, all of moderate size.
    pub fn weights(&mut self, dtype: DType, elements: usize) -> Bytes {
        let mut bytes = Vec::new();
        let mut values = vec![0.0; dtype.block_len()];
        while bytes.len() < elements / dtype.block_len() * dtype.block_bytes() {
            let block: Vec<u8> = (0..dtype.block_bytes())
                .map(|_| (self.bits() >> 32) as u8)
                .collect();
            base::quant::dequantise(dtype, &block, &mut values).expect("one block");
            if values.iter().all(|v| v.abs() < 4.0) {
                bytes.extend(block);
            }
        }
        Bytes::from(&bytes[..])
    }
}

/// Whether two results agree, or where they differ most.
fn close(found: &Value, expect: &Value, tolerance: f32) -> Result<(), String> {
    if found.shape != expect.shape {
        return Err(format!(
            "shape {:?}, expected {:?}",
            found.shape, expect.shape
        ));
    }
    let (found, expect) = (
        found.as_f32().ok_or("not f32")?,
        expect.as_f32().ok_or("not f32")?,
    );
    let size = expect.iter().fold(1e-6f32, |a, b| a.max(b.abs()));
    for (i, (f, e)) in found.iter().zip(expect).enumerate() {
        let error = (f - e).abs() / size;
        if error > tolerance || error.is_nan() {
            return Err(format!(
                "element {i} is {f}, expected {e}: {error:e} of {size}"
            ));
        }
    }
    Ok(())
}

/// One op on random operands.
struct OpCase {
    name: String,
    graph: Arc<Graph>,
    inputs: Vec<Value>,
}

impl OpCase {
    /// A case whose first `inputs` operands are graph inputs and whose others are constants.
    fn new(op: impl Into<Op>, tokens: usize, operands: &[Operand], seed: u64) -> OpCase {
        let op = op.into();
        let mut noise = Noise::new(seed);
        let mut b = GraphBuilder::new("case");
        let t = b.symbol("T");
        let mut inputs = Vec::new();
        let mut ids = Vec::new();
        for (i, operand) in operands.iter().enumerate() {
            let name = format!("x{i}");
            ids.push(match operand {
                Operand::Rows(shape) => {
                    let dims: Vec<Dim> = std::iter::once(t)
                        .chain(shape.iter().map(|d| (*d).into()))
                        .collect();
                    let full: Vec<usize> = std::iter::once(tokens)
                        .chain(shape.iter().copied())
                        .collect();
                    let data = noise
                        .units(full.iter().product())
                        .into_iter()
                        .map(|x| x * 3.0)
                        .collect();
                    inputs.push(Value::f32(full, data));
                    b.input(&name, DType::F32, dims)
                }
                Operand::Index(limit) => {
                    let data = (0..tokens).map(|_| (noise.bits() % limit) as i32).collect();
                    inputs.push(Value::i32([tokens], data));
                    b.input(&name, DType::I32, [t])
                }
                Operand::Weight(dtype, shape) => {
                    let data = noise.weights(*dtype, shape.iter().product());
                    b.constant(&name, *dtype, shape, data)
                        .expect("a whole constant")
                }
            });
        }
        let name = format!(
            "{} {:?} T={tokens} {operands:?}",
            op.name(),
            op.attributes(&|dim| format!("{dim:?}"))
        );
        let out = b
            .node("y", op, &ids)
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        OpCase {
            name,
            graph: Arc::new(b.finish(&[out]).expect("a valid graph")),
            inputs,
        }
    }

    fn evaluate(&self, backend: &dyn Backend, options: &CompileOptions) -> Result<Value, String> {
        let mut executable: Box<dyn Executable> = backend
            .compile(self.graph.clone(), options)
            .map_err(|e| e.to_string())?;
        let mut outputs = executable
            .run(&self.inputs, None)
            .map_err(|e| e.to_string())?;
        Ok(outputs.remove(0))
    }
}

#[derive(Debug)]
enum Operand {
    /// An input `[T, ..]`.
    Rows(Vec<usize>),
    /// An input `[T]` of numbers below a limit.
    Index(u64),
    /// A constant.
    Weight(DType, Vec<usize>),
}

fn op_cases() -> Vec<OpCase> {
    use Operand::{Index, Rows, Weight};
    let vector = |n: usize| Weight(DType::F32, vec![n]);
    let mut cases = Vec::new();
    let mut add = |op: Op, tokens: usize, operands: &[Operand]| {
        cases.push(OpCase::new(op, tokens, operands, cases.len() as u64 + 1));
    };
    for tokens in [1, 2, 3, 7, 50] {
        // Widths around a vector's sixteen lanes, one that is divided over threads, and odd ones.
        for width in [1, 5, 16, 33, 576] {
            let row = || Rows(vec![width]);
            for function in [BinaryFunction::Add, BinaryFunction::Mul] {
                add(Binary { function }.into(), tokens, &[row(), row()]);
                add(Binary { function }.into(), tokens, &[row(), vector(width)]);
            }
            for function in [Activation::Silu, Activation::GeluTanh, Activation::GeluErf] {
                let unary = Unary {
                    function: function.into(),
                };
                add(unary.into(), tokens, &[row()]);
                add(Gated { function }.into(), tokens, &[row(), row()]);
            }
            add(Scale { factor: -1.75 }.into(), tokens, &[row()]);
            add(SoftCap { cap: 1.5 }.into(), tokens, &[row()]);
            add(
                RmsNorm { eps: 1e-5 }.into(),
                tokens,
                &[row(), vector(width)],
            );
            add(
                LayerNorm { eps: 1e-5 }.into(),
                tokens,
                &[row(), vector(width), vector(width)],
            );
        }
        for dtype in DType::ALL.into_iter().filter(|t| t.is_real()) {
            let widths: &[usize] = match dtype.block_len() {
                1 => &[3, 16, 40],
                32 => &[32, 96],
                _ => &[256, 512],
            };
            for &k in widths {
                let (x, weight) = (|| Rows(vec![k]), |n: usize| Weight(dtype, vec![n, k]));
                add(Linear::default().into(), tokens, &[x(), weight(37)]);
                add(
                    Linear::default().into(),
                    tokens,
                    &[x(), weight(5), vector(5)],
                );
                add(GatherRows.into(), tokens, &[weight(9), Index(9)]);
            }
        }
        for (heads, dim, rotated) in [(1, 4, 4), (3, 64, 64), (2, 80, 32)] {
            for layout in [RopeLayout::Interleaved, RopeLayout::Halves] {
                add(
                    Rope { layout }.into(),
                    tokens,
                    &[Rows(vec![heads, dim]), Rows(vec![rotated])],
                );
            }
            add(
                RopeTable { magnitude: 1.25 }.into(),
                tokens,
                &[Index(4000), vector(rotated / 2)],
            );
        }
        let shape = vec![Dim::from(graph::Symbol(0)), 4.into(), 6.into()];
        add(Reshape { shape }.into(), tokens, &[Rows(vec![24])]);
    }
    cases
}

/// Cached attention, over several steps with a rewind between them.
#[derive(Debug)]
struct CacheCase {
    heads: usize,
    kv_heads: usize,
    key_dim: usize,
    value_dim: usize,
    windows: Vec<Option<u32>>,
    storage: (Storage, Storage),
    softcap: Option<f32>,
}

/// `(rewind to, tokens)` of each step.
const STEPS: [(Option<u32>, usize); 8] = [
    (None, 5),
    (None, 1),
    (None, 70),
    (None, 1),
    (Some(30), 1),
    (None, 40),
    (Some(0), 3),
    (None, 130),
];

fn cache_cases() -> Vec<CacheCase> {
    let mut cases = Vec::new();
    for (heads, kv_heads, key_dim, value_dim) in [
        (1, 1, 8, 8),
        (9, 3, 64, 64),
        (4, 1, 20, 36),
        (40, 1, 16, 16),
    ] {
        // Each type once as keys and once as values.
        for storage in Storage::ALL
            .into_iter()
            .zip(Storage::ALL.into_iter().cycle().skip(1))
        {
            for softcap in [None, Some(2.0)] {
                let windows = vec![None, Some(17), Some(1)];
                cases.push(CacheCase {
                    heads,
                    kv_heads,
                    key_dim,
                    value_dim,
                    windows,
                    storage,
                    softcap,
                });
            }
        }
    }
    cases
}

impl CacheCase {
    fn check(
        &self,
        backend: &dyn Backend,
        options: &CompileOptions,
        tolerance: f32,
    ) -> Result<(), String> {
        let (reference, mut expected) = self.bind(&Reference::new(), &CompileOptions::default())?;
        let (session, mut found) = self.bind(backend, options)?;
        let mut noise = Noise::new(7);
        for (step, (rewind, tokens)) in STEPS.into_iter().enumerate() {
            if let Some(len) = rewind {
                reference
                    .rewind(len)
                    .and_then(|()| session.rewind(len))
                    .map_err(|e| e.to_string())?;
            }
            let start = session.len().map_err(|e| e.to_string())?;
            let inputs = self.inputs(&mut noise, tokens, start);
            let expect = expected.run(&inputs).map_err(|e| e.to_string())?;
            let result = found.run(&inputs).map_err(|e| e.to_string())?;
            for (layer, (f, e)) in result.iter().zip(&expect).enumerate() {
                close(f, e, tolerance).map_err(|e| format!("step {step}, layer {layer}: {e}"))?;
            }
        }
        Ok(())
    }

    fn bind(
        &self,
        backend: &dyn Backend,
        options: &CompileOptions,
    ) -> Result<(CacheSession<Contiguous>, Runnable), String> {
        let layer = |&window| LayerConfig {
            kv_heads: self.kv_heads,
            key_dim: self.key_dim,
            value_dim: self.value_dim,
            window,
        };
        let mut config = CacheConfig::new(400, self.windows.iter().map(layer).collect());
        (config.key_storage, config.value_storage) = self.storage;
        config.min_cells = 8;
        let (session, bound) =
            make_decode_session(backend.id(), &config).map_err(|e| e.to_string())?;
        let key = bound.cache_key.ok_or("no cache key")?;
        let entry = kv::CacheRegistry::global()
            .get(&key)
            .map_err(|e| e.to_string())?;
        let graph = Arc::new(self.graph());
        let executable = backend
            .compile(graph.clone(), options)
            .map_err(|e| e.to_string())?;
        let runnable = Runnable::bind(graph, executable, Some(entry)).map_err(|e| e.to_string())?;
        Ok((session, runnable))
    }

    fn graph(&self) -> Graph {
        let mut b = GraphBuilder::new("attention");
        let t = b.symbol("T");
        let q = b.input("q", DType::F32, [t, self.heads.into(), self.key_dim.into()]);
        let k = b.input(
            "k",
            DType::F32,
            [t, self.kv_heads.into(), self.key_dim.into()],
        );
        let v = b.input(
            "v",
            DType::F32,
            [t, self.kv_heads.into(), self.value_dim.into()],
        );
        let position = b.input("position", DType::I32, [t]);
        let attend = |b: &mut GraphBuilder, cache_id: usize| {
            let op = UpdateAndAttend {
                cache_id: cache_id as u32,
                scale: 0.3,
                softcap: self.softcap,
            };
            b.node(&format!("layer{cache_id}"), op, &[q, k, v, position])
                .expect("fitting operands")
        };
        let outputs: Vec<TensorId> = (0..self.windows.len())
            .map(|id| attend(&mut b, id))
            .collect();
        b.finish(&outputs).expect("a valid graph")
    }

    fn inputs(&self, noise: &mut Noise, tokens: usize, start: u32) -> Vec<Value> {
        let mut rows = |heads: usize, dim: usize| {
            Value::f32([tokens, heads, dim], noise.units(tokens * heads * dim))
        };
        let (q, k) = (
            rows(self.heads, self.key_dim),
            rows(self.kv_heads, self.key_dim),
        );
        let v = rows(self.kv_heads, self.value_dim);
        let position = (start as i32..).take(tokens).collect();
        vec![q, k, v, Value::i32([tokens], position)]
    }
}
