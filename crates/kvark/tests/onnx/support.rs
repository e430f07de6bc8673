//! Helpers of the ONNX tests.

use kvark::backend::CompileOptions;
use kvark::cache::KvStorage;
use kvark::inference::{InferenceOptions, ScatterDecoder};
use kvark::{Cpu, InferenceSession, Model, RunnerOptions};
use serde_json::Value as Json;
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

/// A decoder with static buffers, as it was exported.
pub(crate) fn static_decoder(path: &Path, sequences: usize) -> ScatterDecoder {
    ScatterDecoder::new(literal(path), sequences).unwrap()
}

/// Feeds tokens of each sequence; the logits of all.
pub(crate) fn feed(decoder: &mut ScatterDecoder, ids: &[&[u32]]) -> Result<Vec<f32>, String> {
    let outputs = decoder.feed(ids).map_err(|error| error.to_string())?;
    let [(_, logits)] = &outputs[..] else {
        panic!("logits are the only output beside the buffers")
    };
    Ok(logits.as_f32().unwrap().to_vec())
}
