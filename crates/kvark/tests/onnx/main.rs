//! ONNX decoders on the CPU backend, against ONNX Runtime.
//!
//! - An outside fixture, if present, and its stand-in in `stand_in`, which the generator there makes: all outputs, element
//!   by element.
//! - The small decoders in this folder, which `generate.py` builds with mobius: ONNX Runtime's logits, fed in every way.
//! - Folders of ONNX Runtime GenAI in `builder`, which its own builder made, and those of the folder that `KVARK_TEST_GENAI` names.
//! - The larger decoders of the folder that `KVARK_TEST_ONNX` names. `cargo xtask check-onnx` makes them.

#[path = "../common/mod.rs"]
mod common;
mod fixture;
mod genai;
mod mobius;
mod static_buffers;
mod support;
