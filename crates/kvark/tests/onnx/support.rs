//! Helpers of the ONNX tests.

use kvark::backend::CompileOptions;
use kvark::cache::{CacheConfig, KvStorage, LayerConfig, ScatterIndex, ScatterStep};
use kvark::inference::{InferenceOptions, Value};
use kvark::{Cpu, InferenceSession, Model, RunnerOptions};
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The folder of the decoders that are checked in.
pub(crate) fn beside() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/onnx")
}

pub(crate) fn json(path: &Path) -> Json {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap()
}

/// Options that store keys and values in f32.
pub(crate) fn exact() -> RunnerOptions {
    RunnerOptions {
        key_storage: KvStorage::F32,
        value_storage: KvStorage::F32,
        compile: CompileOptions {
            threads: Some(2),
            ..CompileOptions::default()
        },
        ..RunnerOptions::default()
    }
}

pub(crate) fn model(path: &Path) -> Model {
    Model::open(path, None).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The model with the inputs and outputs it was exported with.
pub(crate) fn literal(path: &Path) -> InferenceSession {
    let options = InferenceOptions::default();
    InferenceSession::load(path, &Cpu::new().unwrap(), &options).unwrap()
}

pub(crate) fn largest_difference(found: &[f32], truth: &[f32]) -> f32 {
    assert_eq!(found.len(), truth.len());
    let away = found.iter().zip(truth).map(|(a, b)| (a - b).abs());
    // A NaN counts as an infinite difference.
    away.fold(
        0.0,
        |a: f32, b| if b.is_nan() { f32::INFINITY } else { a.max(b) },
    )
}

/// A decoder with static buffers, driven as ONNX Runtime GenAI drives it: past and present are one buffer, which begins
/// with zeros, and the index stream says where a step is written.
pub(crate) struct StaticDecoder {
    session: InferenceSession,
    pub(crate) buffers: BTreeMap<String, Value>,
    pub(crate) index: ScatterIndex,
}

impl StaticDecoder {
    pub(crate) fn open(path: &Path, sequences: usize) -> StaticDecoder {
        let session = literal(path);
        let mut buffers = BTreeMap::new();
        let mut rows = 0;
        for info in session.inputs() {
            if info.name.contains("_cache.") {
                let size = |axis: usize| match info.shape[axis] {
                    kvark::inference::TensorDim::Fixed(n) => n,
                    kvark::inference::TensorDim::Dynamic(_) => sequences,
                };
                let shape = [sequences, size(1), size(2)];
                rows = size(1);
                let zeros = vec![0.0; shape.iter().product()];
                buffers.insert(info.name.clone(), Value::f32(shape, zeros));
            }
        }
        let layer = LayerConfig {
            kv_heads: 1,
            key_dim: 1,
            value_dim: 1,
            window: None,
        };
        let config = CacheConfig::uniform(rows as u32, 1, layer);
        StaticDecoder {
            session,
            buffers,
            index: ScatterIndex::new(&config, sequences as u32),
        }
    }

    /// Feeds `ids [sequences, tokens]`, the first `real[s]` of each sequence real; the logits of all.
    pub(crate) fn feed(&mut self, ids: &[Vec<u32>], real: &[u32]) -> Result<Vec<f32>, String> {
        let (sequences, tokens) = (ids.len(), ids[0].len());
        let step = self
            .index
            .indices(tokens as u32, real)
            .map_err(|e| e.to_string())?;
        let ScatterStep {
            write_indices,
            nonpad_kv_seqlen,
        } = step.clone();
        let starts = write_indices.iter();
        let positions = starts.flat_map(|start| (*start..).take(tokens)).collect();
        let all = ids.iter().flatten().map(|id| i64::from(*id)).collect();
        let mut inputs = vec![
            ("input_ids".to_owned(), Value::i64([sequences, tokens], all)),
            (
                "position_ids".to_owned(),
                Value::i64([sequences, tokens], positions),
            ),
            (
                "write_indices".to_owned(),
                Value::i64([sequences], write_indices),
            ),
            (
                "nonpad_kv_seqlen".to_owned(),
                Value::i64([sequences], nonpad_kv_seqlen),
            ),
        ];
        inputs.extend(self.buffers.clone());
        let outputs = self.session.run(inputs).map_err(|e| e.to_string())?;
        self.index.advance(&step);
        let mut logits = vec![];
        for (name, value) in outputs {
            match name.strip_prefix("updated_") {
                Some(cache) => {
                    self.buffers.insert(cache.to_owned(), value);
                }
                None => logits = value.as_f32().unwrap().to_vec(),
            }
        }
        Ok(logits)
    }
}
