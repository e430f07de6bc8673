//! ONNX decoders on the CPU backend, against ONNX Runtime.
//!
//! - The seed's fixture of `../shared/fixtures`, when it is there, and its stand-in in `stand_in`, made by the generator
//!   there: their goldens, element by element.
//! - The small decoders beside this file, made by `generate.py` with mobius: ONNX Runtime's logits, in every way of feeding.
//! - The larger ones of `KVARK_TEST_ONNX`, when it names their folder. `cargo xtask check-onnx` makes them.

mod fixture;
mod genai;
mod mobius;
mod static_buffers;
mod support;
