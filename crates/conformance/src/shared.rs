//! Layers that share keys and values: two attention nodes with one cache id in a step.

use crate::TestRng;
use backend::{Backend, CompileOptions, Runnable};
use base::DType;
use graph::ops::UpdateAndAttend;
use graph::{Graph, GraphBuilder, Value};
use kv::{CacheConfig, CacheRegistry, LayerConfig, make_decode_session};
use std::sync::Arc;

const DIM: usize = 8;

/// Two attention nodes on one cache id give the same bits as on two caches with the same rows.
pub(super) fn check(backend: &dyn Backend, options: &CompileOptions) -> Result<(), String> {
    let [shared, apart] = [[0, 0], [0, 1]].map(|ids| run(backend, options, ids));
    match shared? == apart? {
        true => Ok(()),
        false => Err("a cache id that is served twice in a step gives other bits".into()),
    }
}

/// The outputs of several steps of two attention nodes with these cache ids.
fn run(
    backend: &dyn Backend,
    options: &CompileOptions,
    ids: [u32; 2],
) -> Result<Vec<Vec<Value>>, String> {
    let layer = LayerConfig {
        kv_heads: 1,
        key_dim: DIM,
        value_dim: DIM,
        window: None,
        sinks: 0,
    };
    let config = CacheConfig::uniform(64, 2, layer);
    let made = make_decode_session(backend.id(), &config);
    let (_session, bound) = made.map_err(|e| e.to_string())?;
    let key = bound.cache_key.ok_or("no cache key")?;
    let entry = CacheRegistry::global().get(&key);
    let entry = entry.map_err(|e| e.to_string())?;
    let graph = Arc::new(graph(ids));
    let executable = backend.compile(graph.clone(), options);
    let executable = executable.map_err(|e| e.to_string())?;
    let mut runnable = Runnable::bind(graph, executable, Some(entry)).map_err(|e| e.to_string())?;
    let mut noise = TestRng::new(11);
    let mut held = 0;
    let mut outputs = vec![];
    for tokens in [3usize, 1, 5, 1] {
        let mut rows = |heads| Value::f32([tokens, heads, DIM], noise.units(tokens * heads * DIM));
        let position = Value::i32([tokens], (held..).take(tokens).collect());
        let inputs = [rows(2), rows(2), rows(1), rows(1), position];
        outputs.push(runnable.run(&inputs).map_err(|e| e.to_string())?);
        held += tokens as i32;
    }
    Ok(outputs)
}

/// Two sets of queries over the same keys and values.
fn graph(ids: [u32; 2]) -> Graph {
    let mut b = GraphBuilder::new("shared");
    let t = b.symbol("T");
    let rows = |b: &mut GraphBuilder, name: &str, heads: usize| {
        b.input(name, DType::F32, [t, heads.into(), DIM.into()])
    };
    let queries = [rows(&mut b, "q0", 2), rows(&mut b, "q1", 2)];
    let (k, v) = (rows(&mut b, "k", 1), rows(&mut b, "v", 1));
    let position = b.input("position", DType::I32, [t]);
    let mut outputs = vec![];
    for (i, (q, cache_id)) in queries.into_iter().zip(ids).enumerate() {
        let op = UpdateAndAttend {
            cache_id,
            scale: 0.3,
            softcap: None,
        };
        let out = b.node(&format!("layer{i}"), op, &[q, k, v, position]);
        outputs.push(out.expect("fitting operands"));
    }
    b.finish(&outputs).expect("a valid graph")
}
