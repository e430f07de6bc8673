//! Folders of Hugging Face: `config.json` and safetensors as the typed file that GGUF's lowering takes.
//!
//! A `model_type` is a row of the table in `model_type.rs`: the GGUF architecture that it is, the names of its tensors and the values that
//! its `config.json` may leave out. [`translate`] gives metadata and tensors their names in GGUF files; from there on both formats have
//! one builder. Matrices stay views into the mapped files. Those that a folder stores in another arrangement are copied.
//!
//! A key of `config.json` that is neither translated nor known to change no result is refused by name.

mod arrangement;
mod config;
mod keys;
mod model_type;
mod names;
mod rope;
mod tensors;

pub use tensors::{Checkpoint, translate};

use crate::error::ImportError;
use crate::gguf;
use crate::lowered::{ImportOptions, LoweredModel};
use crate::safetensors::Safetensors;

/// Lowers a folder to the model that its `config.json` describes. Messages have the folder's names of tensors.
pub(crate) fn lower(
    file: &Safetensors,
    options: &ImportOptions,
) -> Result<LoweredModel, ImportError> {
    let checkpoint = translate(file)?;
    let lowered = gguf::lower(&checkpoint.file, options);
    lowered.map_err(|error| error.rename_tensor(|name| checkpoint.stored_name(name)))
}
