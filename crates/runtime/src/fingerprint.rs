//! The fingerprint of a model.

use base::xxh64;
use graph::TensorId;
use import::Artifact;

/// Constants of up to this many bytes are hashed fully.
const MAX_FULLY_HASHED_BYTES: usize = 64 << 10;
/// Larger constants are hashed by this many evenly spaced samples of [`SAMPLE_BYTES`], from the first byte to the last.
const SAMPLE_COUNT: usize = 16;
const SAMPLE_BYTES: usize = 4 << 10;

/// A hash of the optimised graphs, node by node, and of the names, types, shapes and bytes of the constants. Only
/// samples of large constants are hashed, so that the cost does not depend on the model's size. Two models that differ
/// only in bytes of large constants outside the samples have the same fingerprint.
pub(crate) fn fingerprint(artifact: &Artifact) -> u64 {
    let mut hash = xxh64(artifact.architecture.as_bytes(), 0);
    for method in &artifact.methods {
        let graph = &method.graph;
        hash = xxh64(method.name.as_bytes(), hash);
        hash = xxh64(graph.to_string().as_bytes(), hash);
        for (id, tensor) in (0..).map(TensorId).zip(graph.tensors()) {
            let Some(bytes) = tensor.constant() else {
                continue;
            };
            hash = xxh64(graph.typed(id).as_bytes(), hash);
            hash = match bytes.len() <= MAX_FULLY_HASHED_BYTES {
                true => xxh64(bytes, hash),
                false => (0..SAMPLE_COUNT).fold(hash, |hash, i| {
                    let at = (bytes.len() - SAMPLE_BYTES) * i / (SAMPLE_COUNT - 1);
                    xxh64(&bytes[at..at + SAMPLE_BYTES], hash)
                }),
            };
        }
    }
    hash
}
