//! A number that tells models apart.

use base::xxh64;
use graph::TensorId;
use import::Artifact;

/// Constants up to so many bytes are read whole.
const MAX_FULLY_HASHED_BYTES: usize = 64 << 10;
/// Of larger ones, so many pieces of this size are read, from the first bytes to the last.
const SAMPLE_COUNT: usize = 16;
const SAMPLE_BYTES: usize = 4 << 10;

/// The fingerprint of a model as it is run: of its graphs, node by node, and of the names, types, shapes and bytes of its
/// constants. Of large constants only samples are read, so that it costs the same for a model of any size: two models of
/// one shape differ in it unless they differ in nothing but some bytes of large tensors that no sample meets.
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
