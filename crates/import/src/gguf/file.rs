//! A parsed GGUF file.

use std::collections::HashMap;

use base::{Bytes, DType};
use graph::ops::RopeLayout;

use super::metadata::Metadata;

/// A GGUF file: its metadata, and its tensors in file order.
#[derive(Clone, Debug)]
pub struct Gguf {
    /// The format version, 2 or 3.
    pub version: u32,
    /// The key-value section.
    pub metadata: Metadata,
    /// The tensors in the order of the file's directory.
    pub tensors: Vec<GgufTensor>,
    pub(super) index: HashMap<String, usize>,
    /// Number of files that were read; a model may be split over several.
    pub(super) parts: usize,
    /// Which elements of a head rotate together, if the rows of queries and keys are in another order than in GGUF files of the
    /// architecture.
    pub(crate) rope: Option<RopeLayout>,
    /// Whether the file was made in memory, of a folder.
    pub(super) made: bool,
}

/// One tensor of a file.
#[derive(Clone, Debug)]
pub struct GgufTensor {
    /// The name, unique in the file.
    pub name: String,
    /// Stored element type.
    pub dtype: DType,
    /// Row-major dimensions, outermost first (the file stores them innermost first). All are at least 1.
    pub shape: Vec<usize>,
    /// The stored bytes, a view into the file. Their alignment is the file's `general.alignment`, which may be 1, so
    /// `Bytes::cast` can fail.
    pub data: Bytes,
}

impl Gguf {
    /// A file made in memory, of tensors with different names.
    pub(crate) fn from_parts(
        metadata: Metadata,
        tensors: Vec<GgufTensor>,
        rope: Option<RopeLayout>,
    ) -> Gguf {
        let names = tensors.iter().map(|tensor| tensor.name.clone());
        Gguf {
            version: 3,
            index: names.zip(0..).collect(),
            metadata,
            tensors,
            parts: 1,
            rope,
            made: true,
        }
    }

    /// The tensor with this name.
    pub fn tensor(&self, name: &str) -> Option<&GgufTensor> {
        self.index.get(name).and_then(|&i| self.tensors.get(i))
    }
}

impl GgufTensor {
    /// The number of elements; the reader has checked that it does not overflow.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether there are no elements; always false for a tensor that was read.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
