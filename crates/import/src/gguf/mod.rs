//! GGUF, versions 2 and 3, little-endian: model metadata and tensors, in one file or split over several.
//!
//! Reading checks every number before it is used, so a file that opens is consistent: names are
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
mod assistant;
mod cursor;
mod eagle3;
mod error;
mod experts;
mod file;
mod ggml_type;
mod lower;
mod metadata;
mod mix;
mod mixers;
mod mtp;
mod quantise;
mod read;
mod spec;
mod split;
#[cfg(test)]
pub(crate) mod test_writer;
#[cfg(test)]
mod tests;
mod write;

pub use array::Array;
pub use error::{GgufError, GgufErrorKind};
pub use file::{Gguf, GgufTensor};
pub use lower::lower;
pub use metadata::{Metadata, Value};
pub use mix::{QUANTISATIONS, Quantisation};
pub use quantise::{PlannedTensor, QuantisePlan};
pub use split::SplitName;
