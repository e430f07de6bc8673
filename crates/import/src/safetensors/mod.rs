//! Safetensors files: named tensors after a JSON header. The supported models are Eagle3 heads, with their `config.json`.

mod eagle3;
mod file;

pub use file::{Safetensors, SafetensorsTensor};

use crate::error::ImportError;
use crate::lowered::{ImportOptions, LoweredModel};

/// Lowers a file to the model that its `config.json` describes.
pub fn lower(file: &Safetensors, _options: &ImportOptions) -> Result<LoweredModel, ImportError> {
    eagle3::lower(file)
}
