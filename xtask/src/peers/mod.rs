//! Comparisons with other programs on the same machine and the same model file.

pub(crate) mod bench;
pub(crate) mod check_onnx;
pub(crate) mod embed;
pub(crate) mod export;
pub(crate) mod onnx;
pub(crate) mod score;
mod script;
pub(crate) mod torch;
mod turns;
mod venv;
