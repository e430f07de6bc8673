//! Comparisons with other programs on the same machine and the same model file.

pub(crate) mod bench;
pub(crate) mod check_onnx;
pub(crate) mod embed;
pub(crate) mod export;
pub(crate) mod onnx;
pub(crate) mod score;
pub(crate) mod script;
pub(crate) mod source_build;
pub(crate) mod spec;
pub(crate) mod torch;
pub(crate) mod turns;
pub(crate) mod venv;
