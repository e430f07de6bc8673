//! Attention over more positions than a KV split has: the result is bit-identical for every division of a sequence into
//! steps and every number of threads, and close to the reference's.

use backend::reference::Reference;
use backend::{Backend, CompileOptions, Runnable};
use base::DType;
use conformance::TestRng;
use cpu::Cpu;
use graph::ops::UpdateAndAttend;
use graph::{Graph, GraphBuilder, Value};
use kv::{CacheConfig, CacheRegistry, KvStorage, LayerConfig, make_decode_session};
use std::sync::Arc;

const HEADS: usize = 6;
const KV_HEADS: usize = 2;
const DIM: usize = 20;
const LEN: usize = 1300;
const WINDOWS: [Option<u32>; 2] = [None, Some(700)];

fn graph() -> Arc<Graph> {
    let mut b = GraphBuilder::new("attention");
    let t = b.symbol("T");
    let q = b.input("q", DType::F32, [t, HEADS.into(), DIM.into()]);
    let k = b.input("k", DType::F32, [t, KV_HEADS.into(), DIM.into()]);
    let v = b.input("v", DType::F32, [t, KV_HEADS.into(), DIM.into()]);
    let position = b.input("position", DType::I32, [t]);
    let mut attend = |cache_id: usize| {
        let op = UpdateAndAttend {
            cache_id: cache_id as u32,
            scale: 0.3,
            softcap: None,
        };
        b.node(&format!("out{cache_id}"), op, &[q, k, v, position])
            .unwrap()
    };
    let outputs = [attend(0), attend(1)];
    Arc::new(b.finish(&outputs).unwrap())
}

/// The outputs of both layers for the last rows of a sequence that is processed in steps of these sizes.
fn last_rows(
    backend: &dyn Backend,
    threads: usize,
    storage: KvStorage,
    steps: &[usize],
) -> Vec<f32> {
    let layer = |window| LayerConfig {
        kv_heads: KV_HEADS,
        key_dim: DIM,
        value_dim: DIM,
        window,
        sinks: 0,
    };
    let mut config = CacheConfig::new(LEN as u32, WINDOWS.map(layer).to_vec());
    (config.key_storage, config.value_storage) = (storage, storage);
    let (_session, options) = make_decode_session(backend.id(), &config).unwrap();
    let entry = CacheRegistry::global()
        .get(&options.cache_key.unwrap())
        .unwrap();
    let compile = CompileOptions {
        threads: Some(threads),
        ..Default::default()
    };
    let graph = graph();
    let executable = backend.compile(graph.clone(), &compile).unwrap();
    let mut runnable = Runnable::bind(graph, executable, Some(entry)).unwrap();
    let mut noise = TestRng::new(11);
    let [q, k, v] = [HEADS, KV_HEADS, KV_HEADS].map(|heads| noise.units(LEN * heads * DIM));
    let mut start = 0;
    let mut last = Vec::new();
    for n in steps {
        let rows = |all: &[f32], heads: usize| {
            let width = heads * DIM;
            Value::f32([*n, heads, DIM], all[start * width..][..n * width].to_vec())
        };
        let position = (start..start + n).map(|p| p as i32).collect();
        let inputs = [
            rows(&q, HEADS),
            rows(&k, KV_HEADS),
            rows(&v, KV_HEADS),
            Value::i32([*n], position),
        ];
        let outputs = runnable.run(&inputs).unwrap();
        last = outputs
            .iter()
            .flat_map(|out| {
                let out = out.as_f32().unwrap();
                out[out.len() - HEADS * DIM..].to_vec()
            })
            .collect();
        start += n;
    }
    assert_eq!(start, LEN);
    last
}

#[test]
fn kv_splits_are_bit_identical_to_one_thread() {
    let cpu = Cpu::new().unwrap();
    for storage in [KvStorage::F32, KvStorage::F16] {
        let expect = last_rows(&Reference::new(), 1, storage, &[LEN]);
        let whole = last_rows(&cpu, 1, storage, &[LEN]);
        for (found, expect) in whole.iter().zip(&expect) {
            assert!((found - expect).abs() < 1e-5, "{found}, expected {expect}");
        }
        for (threads, steps) in [
            (3, &[LEN][..]),
            (1, &[500, 500, 299, 1]),
            (3, &[1024, 275, 1]),
            (2, &[1200, 95, 4, 1]),
            (3, &[1290, 10]),
        ] {
            let found = last_rows(&cpu, threads, storage, steps);
            assert_eq!(found, whole, "{threads} threads, steps of {steps:?}");
        }
    }
}
