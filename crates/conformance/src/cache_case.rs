//! Cached attention, over several steps with a rewind between them.

use crate::{RowsCopy, TestRng, check_close};
use backend::reference::Reference;
use backend::{Backend, CompileOptions, Runnable};
use base::{Bytes, DType};
use graph::ops::UpdateAndAttend;
use graph::{Data, Graph, GraphBuilder, TensorId, Value};
use kv::{
    CacheConfig, CacheSession, Contiguous, KvStorage, LayerConfig, QuantGroup, make_decode_session,
};
use std::sync::Arc;

/// One case of cached attention: several steps with rewinds between them.
#[derive(Clone, Debug)]
pub(super) struct CacheCase {
    heads: usize,
    kv_heads: usize,
    key_dim: usize,
    value_dim: usize,
    windows: Vec<Option<u32>>,
    storage: (KvStorage, KvStorage),
    softcap: Option<f32>,
    /// Whether every head has a sink.
    sinks: bool,
    /// The first positions that queries see besides a window.
    first_positions: u32,
    /// Type and columns of the positions.
    position: (DType, usize),
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

pub(super) fn cases(backend: &dyn Backend) -> Vec<CacheCase> {
    let mut cases = Vec::new();
    for (heads, kv_heads, key_dim, value_dim) in [
        (1, 1, 8, 8),
        (9, 3, 64, 64),
        (4, 1, 20, 36),
        (40, 1, 16, 16),
        (8, 2, 80, 144),
    ] {
        // Each storage type once for keys and once for values.
        for storage in KvStorage::ALL
            .into_iter()
            .zip(KvStorage::ALL.into_iter().cycle().skip(1))
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
                    sinks: false,
                    first_positions: 0,
                    position: (DType::I32, 1),
                });
            }
        }
    }
    // Latent rows: one wide row for all heads, whose value is narrower than its key.
    for storage in [
        KvStorage::F32,
        KvStorage::F16,
        KvStorage::Q8(QuantGroup::G32),
    ] {
        cases.push(CacheCase {
            heads: 5,
            kv_heads: 1,
            key_dim: 576,
            value_dim: 512,
            windows: vec![None],
            storage: (storage, storage),
            softcap: None,
            sinks: false,
            first_positions: 0,
            position: (DType::I32, 1),
        });
    }
    for position in [(DType::I64, 1), (DType::I64, 3), (DType::I32, 2)] {
        cases.push(CacheCase {
            heads: 4,
            kv_heads: 2,
            key_dim: 8,
            value_dim: 8,
            windows: vec![None],
            storage: (KvStorage::F32, KvStorage::F32),
            softcap: None,
            sinks: false,
            first_positions: 0,
            position,
        });
    }
    let few = cases.iter().step_by(7);
    let with_first = few.map(|case| CacheCase {
        windows: vec![None, Some(17), Some(1), Some(90)],
        first_positions: 5,
        ..case.clone()
    });
    let with_first: Vec<CacheCase> = with_first
        .filter(|_| backend.sees_first_positions())
        .collect();
    cases.extend(with_first);
    cases.retain(|case| backend.stores(case.storage.0) && backend.stores(case.storage.1));
    cases
}

/// Cases whose heads have sinks.
pub(super) fn cases_with_sinks(backend: &dyn Backend) -> Vec<CacheCase> {
    let few = cases(backend).into_iter().step_by(5);
    let sinks = |case| CacheCase {
        sinks: true,
        ..case
    };
    few.map(sinks).collect()
}

impl CacheCase {
    pub(super) fn check(
        &self,
        backend: &dyn Backend,
        options: &CompileOptions,
        tolerance: f32,
    ) -> Result<(), String> {
        let (reference, mut expected) = self.bind(&Reference::new(), &CompileOptions::default())?;
        let (session, mut found) = self.bind(backend, options)?;
        let mut noise = TestRng::new(7);
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
                check_close(f, e, tolerance)
                    .map_err(|e| format!("step {step}, layer {layer}: {e}"))?;
            }
        }
        if self.first_positions > 0 {
            return match RowsCopy::take(&session, 0) {
                Ok(_) => Err("rows of layers with sinks were saved".into()),
                Err(_) => Ok(()),
            };
        }
        // Saved rows are the same bytes on every backend, and a fresh cache continues from them with the same bits.
        let take = |session| RowsCopy::take(session, 0).map_err(|e| e.to_string());
        let rows = take(&session)?;
        if rows != take(&reference)? {
            return Err("the encoded rows differ from the reference's".into());
        }
        let (restored, mut again) = self.bind(backend, options)?;
        let most = rows.len();
        for len in [most, most - 3] {
            session.rewind(len).map_err(|e| e.to_string())?;
            let put = rows.saved().restore(&restored, 0, len);
            put.map_err(|e| e.to_string())?;
            let inputs = self.inputs(&mut noise, 4, len);
            let expect = found.run(&inputs).map_err(|e| e.to_string())?;
            let result = again.run(&inputs).map_err(|e| e.to_string())?;
            if result != expect {
                return Err(format!("restored with {len} tokens, it goes on otherwise"));
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
            sinks: window.map_or(0, |_| self.first_positions),
        };
        let mut config = CacheConfig::new(400, self.windows.iter().map(layer).collect());
        (config.key_storage, config.value_storage) = self.storage;
        config.initial_cells = 8;
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
        let (dtype, columns) = self.position;
        let shape = match columns {
            1 => vec![t],
            n => vec![t, n.into()],
        };
        let position = b.input("position", dtype, shape);
        let sinks = self.sinks.then(|| {
            // Some below all scores, some among them, and one above.
            let numbers: Vec<f32> = (0..self.heads).map(|i| i as f32 * 1.5 - 3.0).collect();
            let data = Bytes::from_slice(&numbers);
            let sinks = b.constant("sinks", DType::F32, &[self.heads], data);
            sinks.expect("a whole constant")
        });
        let attend = |b: &mut GraphBuilder, cache_id: usize| {
            let op = UpdateAndAttend {
                cache_id: cache_id as u32,
                scale: 0.3,
                softcap: self.softcap,
            };
            let operands = [q, k, v, position].into_iter().chain(sinks);
            let operands: Vec<TensorId> = operands.collect();
            b.node(&format!("layer{cache_id}"), op, &operands)
                .expect("fitting operands")
        };
        let outputs: Vec<TensorId> = (0..self.windows.len())
            .map(|id| attend(&mut b, id))
            .collect();
        b.finish(&outputs).expect("a valid graph")
    }

    fn inputs(&self, noise: &mut TestRng, tokens: usize, start: u32) -> Vec<Value> {
        let mut rows = |heads: usize, dim: usize| {
            Value::f32([tokens, heads, dim], noise.units(tokens * heads * dim))
        };
        let (q, k) = (
            rows(self.heads, self.key_dim),
            rows(self.kv_heads, self.key_dim),
        );
        let v = rows(self.kv_heads, self.value_dim);
        let (dtype, columns) = self.position;
        // Only the first column is the position.
        let position = (0..tokens * columns).map(|i| match i % columns {
            0 => start as i64 + (i / columns) as i64,
            _ => -7,
        });
        let shape = match columns {
            1 => vec![tokens],
            n => vec![tokens, n],
        };
        let data = match dtype {
            DType::I64 => Data::I64(position.collect()),
            _ => Data::I32(position.map(|p| p as i32).collect()),
        };
        vec![q, k, v, Value { shape, data }]
    }
}
