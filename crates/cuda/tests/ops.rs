//! The most likely tokens of rows, and the ops of hidden states and draft heads. Needs a GPU, as `device.rs` does.

#[path = "gpu/binding.rs"]
mod binding;
mod gpu;

use backend::reference::Reference;
use backend::{
    Backend, CompileOptions, LogitsMode, RunMode, ScoredToken, StepOptions, StepOutputs,
};
use base::{Bytes, DType};
use conformance::TestRng;
use graph::ops::{
    Attention, Binary, BinaryFunction, Compare, CompareFunction, Concat, GatherRows, Linear,
    Permute, Reshape, Slice, UpdateAndAttend,
};
use graph::{Dim, Graph, GraphBuilder, TensorId, Value};
use kv::{CacheConfig, LayerConfig, Step, make_seq_session};
use std::sync::Arc;

const WIDTH: usize = 64;

/// Embeddings, attention and a head whose rows repeat, so that many logits are equal.
fn decoder(vocabulary: usize) -> Arc<Graph> {
    let mut noise = TestRng::new(4);
    let mut b = GraphBuilder::new("decoder");
    let (t, r) = (b.symbol("T"), b.symbol("R"));
    let tokens = b.input("tokens", DType::I32, [t]);
    let position = b.input("position", DType::I32, [t]);
    let rows = b.input("rows", DType::I32, [r]);
    let embeddings = noise.weights(DType::F32, 100 * WIDTH);
    let embeddings = b.constant("embeddings", DType::F32, &[100, WIDTH], embeddings);
    let x = b.node("x", GatherRows, &[embeddings.unwrap(), tokens]);
    let shape: Vec<Dim> = vec![t, 2.into(), (WIDTH / 2).into()];
    let heads = b.node("heads", Reshape { shape }, &[x.unwrap()]).unwrap();
    let op = UpdateAndAttend {
        cache_id: 0,
        scale: 0.2,
        softcap: None,
    };
    let attended = b.node("attend", op, &[heads, heads, heads, position]);
    let shape: Vec<Dim> = vec![t, WIDTH.into()];
    let flat = b.node("flat", Reshape { shape }, &[attended.unwrap()]);
    let last = b.node("last", GatherRows, &[flat.unwrap(), rows]).unwrap();
    let few = noise.weights(DType::F32, 997 * WIDTH);
    let head: Vec<u8> = few
        .iter()
        .copied()
        .cycle()
        .take(vocabulary * WIDTH * 4)
        .collect();
    let head = b.constant(
        "head",
        DType::F32,
        &[vocabulary, WIDTH],
        Bytes::from(&head[..]),
    );
    let logits = b.node("logits", Linear::default(), &[last, head.unwrap()]);
    Arc::new(b.finish(&[logits.unwrap()]).unwrap())
}

/// The outputs of a prompt of several sequences and of a decode of each.
fn outputs(
    cuda: &cuda::Cuda,
    graph: &Arc<Graph>,
    sequences: u32,
    wanted: LogitsMode,
) -> Vec<StepOutputs> {
    let layer = LayerConfig {
        kv_heads: 2,
        key_dim: WIDTH / 2,
        value_dim: WIDTH / 2,
        window: None,
        sinks: 0,
    };
    let config = CacheConfig::uniform(512, 1, layer);
    let (_session, bound) = make_seq_session(cuda.id(), &config).unwrap();
    let mut runnable = binding::runnable(cuda, graph, bound.cache_key);
    let prepared = StepOptions {
        mode: RunMode::Full,
        max_sequences: sequences as usize,
        max_query_len: 1,
        max_tokens: 64,
        max_rows: sequences as usize,
        record_all: true,
    };
    runnable.prepare(&prepared).unwrap();
    let mut outputs = StepOutputs::new(wanted);
    let mut all = vec![];
    for at in 0..3 {
        let mut step = Step::default();
        for seq in 0..sequences {
            let tokens = if at == 0 { 3 } else { 1 };
            let held = if at == 0 { 0 } else { 2 + at };
            let ids: Vec<u32> = (0..tokens)
                .map(|t| (7 * seq + 3 * (held + t)) % 100)
                .collect();
            step.extend(seq, held, &ids);
            step.want_last();
        }
        runnable.run_step(&step, &mut outputs).unwrap();
        all.push(outputs.clone());
    }
    all
}

#[test]
fn the_most_likely_tokens_are_those_of_all_logits() {
    let Some(cuda) = gpu::device() else { return };
    for (vocabulary, sequences) in [(30, 1), (2048, 5), (2049, 3), (49_152, 1), (128_256, 9)] {
        let graph = decoder(vocabulary);
        let logits = outputs(&cuda, &graph, sequences, LogitsMode::Logits);
        for wanted in [
            LogitsMode::Argmax,
            LogitsMode::TopK(2),
            LogitsMode::TopK(40),
            LogitsMode::TopK(128),
            LogitsMode::TopK(129),
        ] {
            let found = outputs(&cuda, &graph, sequences, wanted);
            for (found, logits) in found.iter().zip(&logits) {
                assert_eq!(found.rows(), sequences as usize);
                for row in 0..found.rows() {
                    let mut expect: Vec<ScoredToken> = vec![];
                    let k = wanted.count().unwrap();
                    backend::topk(&mut expect, logits.logits(row), k);
                    let text = format!("{wanted:?} of {vocabulary}, row {row}");
                    assert_eq!(found.topk(row), expect, "{text}");
                }
            }
        }
    }
}

/// Runs a graph on the GPU and on the reference.
fn compare(
    cuda: &cuda::Cuda,
    what: &str,
    build: impl Fn(&mut GraphBuilder) -> TensorId,
    inputs: &[Value],
) {
    let mut b = GraphBuilder::new("op");
    let output = build(&mut b);
    let graph = Arc::new(b.finish(&[output]).unwrap());
    let run = |backend: &dyn Backend| {
        let mut compiled = backend
            .compile(graph.clone(), &CompileOptions::default())
            .unwrap();
        compiled.run(inputs, None, None).unwrap().remove(0)
    };
    let (found, expect) = (run(cuda), run(&Reference::new()));
    assert_eq!(found.shape, expect.shape, "{what}");
    match (found.as_f32(), expect.as_f32()) {
        (Some(found), Some(expect)) => {
            for (i, (a, b)) in found.iter().zip(expect).enumerate() {
                assert!(
                    (a - b).abs() <= 2e-6 * (1.0 + b.abs()),
                    "{what} {i}: {a}, not {b}"
                );
            }
        }
        _ => assert_eq!(found, expect, "{what}"),
    }
}

#[test]
fn attention_without_a_cache_agrees_with_the_reference() {
    let Some(cuda) = gpu::device() else { return };
    let mut random = TestRng::new(3);
    for (tokens, heads, kv_heads, dim) in
        [(1, 1, 1, 8), (5, 6, 2, 16), (70, 4, 4, 33), (300, 3, 1, 64)]
    {
        // Texts of a step, and padding.
        let text: Vec<i32> = (0..tokens as i32)
            .map(|i| if i * 8 > 7 * tokens as i32 { -1 } else { i / 9 })
            .collect();
        for (token_major, causal, softcap) in [
            (false, true, None),
            (true, false, None),
            (true, true, Some(3.0)),
        ] {
            let shape = |heads: usize| match token_major {
                true => [tokens, heads, dim],
                false => [heads, tokens, dim],
            };
            let mut inputs: Vec<Value> = [heads, kv_heads, kv_heads]
                .iter()
                .map(|h| Value::f32(shape(*h), random.units(tokens * h * dim)))
                .collect();
            inputs.push(Value::i32([tokens], text.clone()));
            let build = |b: &mut GraphBuilder| {
                let operand = |b: &mut GraphBuilder, name: &str, h: usize| {
                    b.input(name, DType::F32, shape(h).map(Dim::from))
                };
                let q = operand(b, "q", heads);
                let (k, v) = (operand(b, "k", kv_heads), operand(b, "v", kv_heads));
                let text = b.input("text", DType::I32, [tokens.into()]);
                let axis = |b: &mut GraphBuilder, name: &str, shape: [usize; 2]| {
                    let shape: Vec<Dim> = shape.map(Dim::from).to_vec();
                    b.node(name, Reshape { shape }, &[text]).unwrap()
                };
                let (row, column) = (axis(b, "row", [tokens, 1]), axis(b, "column", [1, tokens]));
                let function = CompareFunction::Eq;
                let same = b
                    .node("same", Compare { function }, &[row, column])
                    .unwrap();
                // The mask also has a window, as in sliding-window models.
                let function = BinaryFunction::Sub;
                let distance = b
                    .node("distance", Binary { function }, &[row, column])
                    .unwrap();
                let size = Bytes::from_slice(&[4i32]);
                let size = b.constant("window", DType::I32, &[1], size).unwrap();
                let function = CompareFunction::Lt;
                let near = b
                    .node("near", Compare { function }, &[distance, size])
                    .unwrap();
                let function = BinaryFunction::And;
                let mask = b.node("mask", Binary { function }, &[same, near]).unwrap();
                let op = Attention {
                    scale: 0.3,
                    causal,
                    softcap,
                    token_major,
                };
                b.node("attention", op, &[q, k, v, mask]).unwrap()
            };
            let what = format!("{tokens} tokens, {heads} heads, token-major {token_major}");
            compare(&cuda, &what, build, &inputs);
        }
    }
}

#[test]
fn elements_move_as_in_the_reference() {
    let Some(cuda) = gpu::device() else { return };
    let mut random = TestRng::new(6);
    for axes in [[1, 0, 2], [2, 0, 1], [0, 2, 1], [2, 1, 0]] {
        let x = Value::f32([3, 50, 7], random.units(3 * 50 * 7));
        let build = |b: &mut GraphBuilder| {
            let x = b.input("x", DType::F32, [3, 50, 7].map(Dim::from));
            let axes = axes.to_vec();
            b.node("moved", Permute { axes }, &[x]).unwrap()
        };
        compare(&cuda, &format!("permuted {axes:?}"), build, &[x]);
    }
    for axis in [0, 1] {
        let shapes = match axis {
            0 => [[3, 20], [5, 20], [1, 20]],
            _ => [[9, 3], [9, 40], [9, 1]],
        };
        let inputs = shapes.map(|shape| Value::f32(shape, random.units(shape[0] * shape[1])));
        let build = |b: &mut GraphBuilder| {
            let mut parts = vec![];
            for (i, shape) in shapes.iter().enumerate() {
                let name = format!("x{i}");
                parts.push(b.input(&name, DType::F32, shape.map(Dim::from)));
            }
            b.node("all", Concat { axis }, &parts).unwrap()
        };
        compare(&cuda, &format!("concatenated along {axis}"), build, &inputs);
    }
    for (axis, start, len, step) in [(0, 2, 1, 1), (1, 7, 20, 2), (2, 3, 4, 1), (1, 0, 50, 1)] {
        let x = Value::f32([3, 50, 7], random.units(3 * 50 * 7));
        let build = |b: &mut GraphBuilder| {
            let x = b.input("x", DType::F32, [3, 50, 7].map(Dim::from));
            let (start, len) = (Dim::from(start), Dim::from(len));
            let op = Slice {
                axis,
                start,
                len,
                step,
            };
            b.node("part", op, &[x]).unwrap()
        };
        compare(&cuda, &format!("sliced along {axis}"), build, &[x]);
    }
}
