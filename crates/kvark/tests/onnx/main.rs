//! ONNX decoders on the CPU backend, against ONNX Runtime.
//!
//! - The seed's fixture of `../shared/fixtures`, when it is there: its golden, element by element.
//! - The small decoders beside this file, made by `generate.py` with mobius: ONNX Runtime's logits, in every way of feeding.
//! - The larger ones of `KVARK_TEST_ONNX`, when it names their folder. `cargo xtask check-onnx` makes them.

#[path = "../common/mod.rs"]
mod common;
mod fixture;
mod genai;
mod mobius;
mod static_buffers;
mod support;
