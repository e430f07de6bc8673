//! A row has the same bits alone, in a batch and in any chunk of a prefill. Needs a GPU, as `device.rs` does.

mod gpu;

use backend::conformance::TestRng;
use backend::{Backend, CompileOptions, Runnable};
use base::DType;
use cuda::Cuda;
use graph::ops::{Activation, Binary, BinaryFunction, Gated, Linear, RmsNorm, UpdateAndAttend};
use graph::{Graph, GraphBuilder, Value};
use kv::{CacheConfig, CacheRegistry, KvStorage, LayerConfig, make_decode_session};
use std::sync::Arc;

const WIDTH: usize = 512;
const INNER: usize = 768;

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

/// The attention of `steps` steps of these lengths over the same random tokens.
fn attended(cuda: &Cuda, storage: KvStorage, steps: &[usize]) -> Vec<f32> {
    const HEADS: usize = 6;
    const DIM: usize = 64;
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
    let layer = LayerConfig {
        kv_heads: 2,
        key_dim: DIM,
        value_dim: DIM,
        window: None,
    };
    let mut config = CacheConfig::uniform(2000, 1, layer);
    (config.key_storage, config.value_storage) = (storage, storage);
    let (_session, bound) = make_decode_session(cuda.id(), &config).unwrap();
    let entry = CacheRegistry::global()
        .get(&bound.cache_key.unwrap())
        .unwrap();
    let executable = cuda
        .compile(graph.clone(), &CompileOptions::default())
        .unwrap();
    let mut runnable = Runnable::bind(graph, executable, Some(entry)).unwrap();
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
    for storage in KvStorage::ALL {
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
