//! Safetensors files: named tensors after a JSON header. A file is a model of Hugging Face in one of the types that
//! `checkpoint` has rows of, or an Eagle3 head, as its `config.json` and its tensors say.

mod eagle3;
mod file;
pub(crate) mod index;
mod modules;

pub use file::{Safetensors, SafetensorsTensor};
pub use modules::Modules;

use crate::checkpoint;
use crate::error::ImportError;
use crate::lowered::{ImportOptions, LoweredModel};

/// Lowers a file to the model that its `config.json` describes.
pub fn lower(file: &Safetensors, options: &ImportOptions) -> Result<LoweredModel, ImportError> {
    match eagle3::is_head(file) {
        true => eagle3::lower(file),
        false => checkpoint::lower(file, options),
    }
}
