//! GGUF, versions 2 and 3, little-endian: model metadata and tensors in one file.
//!
//! Reading checks every number before it is used, so a file that opens can be trusted to be consistent: names are
//! unique, rows are whole blocks, and each tensor's bytes lie inside the file and overlap no other's.
//!
//! ```no_run
//! use import::gguf::Gguf;
//! let file = Gguf::open("model.gguf".as_ref())?;
//! let layers = file.metadata.usize("llama.block_count")?;
//! let embedding = file.tensor("token_embd.weight").map(|t| (t.dtype, &t.shape));
//! # Ok::<(), import::gguf::GgufError>(())
//! ```

pub(crate) mod architecture;
mod architecture_keys;
mod array;
mod cursor;
mod error;
mod ggml_type;
mod lower;
mod metadata;
mod read;
mod spec;
#[cfg(test)]
pub(crate) mod test_writer;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::path::Path;

use base::{Bytes, DType};

pub use array::Array;
pub use error::{ErrorKind, GgufError};
pub use lower::lower;
pub use metadata::{Metadata, Value};

/// A GGUF file: its metadata, and its tensors in file order.
#[derive(Clone, Debug)]
pub struct Gguf {
    /// The format version, 2 or 3.
    pub version: u32,
    /// The key-value section.
    pub metadata: Metadata,
    /// The tensors in the order of the file's directory.
    pub tensors: Vec<Tensor>,
    index: HashMap<String, usize>,
}

/// One tensor of a file.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// The name, unique in the file.
    pub name: String,
    /// How elements are stored.
    pub dtype: DType,
    /// Row-major dimensions, outermost first (the file stores them innermost first). All are at least 1.
    pub shape: Vec<usize>,
    /// The stored bytes, a view into the file. As aligned as the file's `general.alignment` makes them, which a
    /// hostile file may set to 1: `Bytes::cast` can fail.
    pub data: Bytes,
}

impl Gguf {
    /// Maps the file at `path` and reads it. Tensor data is not touched.
    pub fn open(path: &Path) -> Result<Gguf, GgufError> {
        let bytes = Bytes::map(path)?;
        Gguf::parse(bytes).map_err(|e| e.in_file(path))
    }

    /// Reads a whole file held in `bytes`; the tensors are views into it.
    pub fn parse(bytes: Bytes) -> Result<Gguf, GgufError> {
        Ok(read::read(&bytes)?)
    }

    /// The tensor with this name.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.index.get(name).and_then(|&i| self.tensors.get(i))
    }
}

impl Tensor {
    /// The number of elements; the reader has checked that it does not overflow.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether there are no elements, which never holds for a tensor that was read.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
