//! A row has the same bits alone, in a batch and in any chunk of a prefill. Needs a GPU, as `device.rs` does.

#[path = "gpu/binding.rs"]
mod binding;
mod gpu;

use backend::{Backend, CompileOptions, Runnable};
use base::DType;
use conformance::TestRng;
use cuda::Cuda;
use graph::ops::{
    Activation, Binary, BinaryFunction, Gated, Linear, Reshape, RmsNorm, Rope, RopeLayout,
    RopeTable, UpdateAndAttend,
};
use graph::{Dim, Graph, GraphBuilder, TensorId, Value};
use kv::{CacheConfig, KvStorage, LayerConfig, make_decode_session};
use std::sync::Arc;

const WIDTH: usize = 512;
const INNER: usize = 768;
const HEADS: usize = 6;
const DIM: usize = 64;

/// A feed-forward block with its norm and its residual, as products of few and of many rows fuse it.
fn block(dtype: DType) -> Arc<Graph> {
    let mut noise = TestRng::new(5);
    let mut b = GraphBuilder::new("block");
    let t = b.symbol("T");
    let x = b.input("x", DType::F32, [t, WIDTH.into()]);
    let mut weight = |b: &mut GraphBuilder, name: &str, dtype, shape: &[usize]| {
        let data = noise.weights(dtype, shape.iter().product());
        b.constant(name, dtype, shape, data).unwrap()
    };
    let scale = weight(&mut b, "scale", DType::F32, &[WIDTH]);
    let [gate, up] = ["gate", "up"].map(|name| weight(&mut b, name, dtype, &[INNER, WIDTH]));
    let down = weight(&mut b, "down", dtype, &[WIDTH, INNER]);
    let normed = b
        .node("normed", RmsNorm { eps: 1e-5 }, &[x, scale])
        .unwrap();
    let product =
        |b: &mut GraphBuilder, name: &str, x, w| b.node(name, Linear::default(), &[x, w]).unwrap();
    let gate = product(&mut b, "gate.product", normed, gate);
    let up = product(&mut b, "up.product", normed, up);
    let gated = Gated {
        function: Activation::Silu,
    };
    let gated = b.node("gated", gated, &[gate, up]).unwrap();
    let down = product(&mut b, "down.product", gated, down);
    let add = Binary {
        function: BinaryFunction::Add,
    };
    let sum = b.node("sum", add, &[x, down]).unwrap();
    Arc::new(b.finish(&[sum]).unwrap())
}

#[test]
fn products_give_a_row_the_same_bits_in_every_batch() {
    let Some(cuda) = gpu::device() else { return };
    for dtype in DType::ALL.into_iter().filter(|dtype| dtype.is_real()) {
        let graph = block(dtype);
        let mut executable = cuda.compile(graph, &CompileOptions::default()).unwrap();
        let mut rows_of = |x: &[f32]| -> Vec<f32> {
            let x = Value::f32([x.len() / WIDTH, WIDTH], x.to_vec());
            let y = executable.run(&[x], None, None).unwrap().remove(0);
            y.as_f32().unwrap().to_vec()
        };
        let x = TestRng::new(9).units(70 * WIDTH);
        let all = rows_of(&x);
        for rows in [1, 2, 8, 9, 33] {
            for (i, chunk) in x.chunks(rows * WIDTH).enumerate() {
                let expect = &all[i * rows * WIDTH..][..chunk.len()];
                assert!(
                    rows_of(chunk) == expect,
                    "{dtype}: {rows} rows from {}",
                    i * rows
                );
                if rows == 1 && i == 20 {
                    break;
                }
            }
        }
    }
}

/// A graph with one layer of attention with two KV heads, bound to a cache of its own.
fn one_layer(cuda: &Cuda, graph: &Arc<Graph>, storage: KvStorage) -> Runnable {
    let layer = LayerConfig {
        kv_heads: 2,
        key_dim: DIM,
        value_dim: DIM,
        window: None,
        sinks: 0,
    };
    let mut config = CacheConfig::uniform(2000, 1, layer);
    (config.key_storage, config.value_storage) = (storage, storage);
    let (_session, bound) = make_decode_session(cuda.id(), &config).unwrap();
    binding::runnable(cuda, graph, bound.cache_key)
}

/// The attention of `steps` steps of these lengths over the same random tokens.
fn attended(cuda: &Cuda, storage: KvStorage, steps: &[usize]) -> Vec<f32> {
    let mut b = GraphBuilder::new("attention");
    let t = b.symbol("T");
    let q = b.input("q", DType::F32, [t, HEADS.into(), DIM.into()]);
    let [k, v] = ["k", "v"].map(|name| b.input(name, DType::F32, [t, 2.into(), DIM.into()]));
    let position = b.input("position", DType::I32, [t]);
    let op = UpdateAndAttend {
        cache_id: 0,
        scale: 0.125,
        softcap: None,
    };
    let out = b.node("out", op, &[q, k, v, position]).unwrap();
    let graph = Arc::new(b.finish(&[out]).unwrap());
    let mut runnable = one_layer(cuda, &graph, storage);
    let mut noise = TestRng::new(2);
    let tokens: usize = steps.iter().sum();
    let [q, k, v] = [HEADS, 2, 2].map(|heads| noise.units(tokens * heads * DIM));
    let (mut at, mut out) = (0, vec![]);
    for &len in steps {
        let part = |all: &[f32], heads: usize| {
            let each = heads * DIM;
            Value::f32(
                [len, heads, DIM],
                all[at * each..(at + len) * each].to_vec(),
            )
        };
        let positions = (at as i32..(at + len) as i32).collect();
        let inputs = [
            part(&q, HEADS),
            part(&k, 2),
            part(&v, 2),
            Value::i32([len], positions),
        ];
        out.extend_from_slice(runnable.run(&inputs).unwrap()[0].as_f32().unwrap());
        at += len;
    }
    out
}

#[test]
fn attention_gives_a_row_the_same_bits_in_every_chunk() {
    let Some(cuda) = gpu::device() else { return };
    for storage in KvStorage::ALL
        .into_iter()
        .filter(|storage| cuda.stores(*storage))
    {
        let whole = attended(&cuda, storage, &[1203]);
        assert!(whole.iter().all(|x| x.is_finite()));
        for steps in [&[700, 500, 1, 1, 1][..], &[1, 255, 1, 1, 44, 900, 1]] {
            assert!(
                attended(&cuda, storage, steps) == whole,
                "{storage} in steps of {steps:?}"
            );
        }
    }
}

/// The results of a layer of a decoder over the same random rows, in steps of these lengths. Steps of one token are one kernel.
fn layer(cuda: &Cuda, dtype: DType, storage: KvStorage, steps: &[usize]) -> Vec<f32> {
    const KV: usize = 2 * DIM;
    let width = HEADS * DIM;
    let mut noise = TestRng::new(7);
    let mut b = GraphBuilder::new("layer");
    let t = b.symbol("T");
    let x = b.input("x", DType::F32, [t, width.into()]);
    let position = b.input("position", DType::I32, [t]);
    let mut weight = |b: &mut GraphBuilder, name: &str, dtype, shape: &[usize]| {
        let data = noise.weights(dtype, shape.iter().product());
        b.constant(name, dtype, shape, data).unwrap()
    };
    let frequencies = weight(&mut b, "frequencies", DType::F32, &[DIM / 2]);
    let scale = weight(&mut b, "scale", DType::F32, &[width]);
    let table = RopeTable { magnitude: 1.0 };
    let table = b.node("table", table, &[position, frequencies]).unwrap();
    let norm = RmsNorm { eps: 1e-5 };
    let normed = b.node("norm", norm.clone(), &[x, scale]).unwrap();
    let mut product = |b: &mut GraphBuilder, name: &str, x: TensorId, n: usize, k: usize| {
        let w = weight(b, &format!("{name}.weight"), dtype, &[n, k]);
        b.node(name, Linear::default(), &[x, w]).unwrap()
    };
    let projected = [("q", width), ("k", KV), ("v", KV)].map(|(name, n)| {
        let y = product(&mut b, name, normed, n, width);
        (name, y, n / DIM)
    });
    let [q, k, v] = projected.map(|(name, y, heads)| {
        let shape: Vec<Dim> = vec![t, heads.into(), DIM.into()];
        b.node(&format!("{name}.heads"), Reshape { shape }, &[y])
            .unwrap()
    });
    let layout = RopeLayout::Halves;
    let q = b.node("q.rotated", Rope { layout }, &[q, table]).unwrap();
    let k = b.node("k.rotated", Rope { layout }, &[k, table]).unwrap();
    let op = UpdateAndAttend {
        cache_id: 0,
        scale: 0.125,
        softcap: None,
    };
    let attended = b.node("attend", op, &[q, k, v, position]).unwrap();
    let shape: Vec<Dim> = vec![t, width.into()];
    let attended = b.node("attended", Reshape { shape }, &[attended]).unwrap();
    let out = product(&mut b, "out", attended, width, width);
    let add = Binary {
        function: BinaryFunction::Add,
    };
    let mixed = b.node("mixed", add.clone(), &[x, out]).unwrap();
    let normed = b.node("norm.ffn", norm, &[mixed, scale]).unwrap();
    let gate = product(&mut b, "gate", normed, INNER, width);
    let up = product(&mut b, "up", normed, INNER, width);
    let gated = Gated {
        function: Activation::Silu,
    };
    let gated = b.node("gated", gated, &[gate, up]).unwrap();
    let down = product(&mut b, "down", gated, width, INNER);
    let sum = b.node("sum", add, &[mixed, down]).unwrap();
    let graph = Arc::new(b.finish(&[sum]).unwrap());
    let mut runnable = one_layer(cuda, &graph, storage);
    let rows = TestRng::new(3).units(steps.iter().sum::<usize>() * width);
    let (mut at, mut out) = (0, vec![]);
    for &len in steps {
        let x = rows[at * width..(at + len) * width].to_vec();
        let positions = (at as i32..(at + len) as i32).collect();
        let inputs = [Value::f32([len, width], x), Value::i32([len], positions)];
        out.extend_from_slice(runnable.run(&inputs).unwrap()[0].as_f32().unwrap());
        at += len;
    }
    out
}

#[test]
fn layers_give_a_row_the_same_bits_alone_and_in_every_chunk() {
    let Some(cuda) = gpu::device() else { return };
    let types = [
        DType::Q4_1,
        DType::Q8_0,
        DType::Q5_0,
        DType::BF16,
        DType::F32,
    ];
    for dtype in types {
        for storage in [KvStorage::F16, KvStorage::F32] {
            let whole = layer(&cuda, dtype, storage, &[600]);
            assert!(whole.iter().all(|x| x.is_finite()));
            // Lone tokens at the beginning, across the end of a part of attention, and after several parts.
            let mut steps = vec![1; 40];
            steps.extend([200, 1, 1]);
            steps.extend([1; 30]);
            steps.extend([300, 1]);
            steps.extend([1; 27]);
            assert_eq!(steps.iter().sum::<usize>(), 600);
            let parts = layer(&cuda, dtype, storage, &steps);
            assert!(parts == whole, "{dtype} over {storage}");
        }
    }
}
