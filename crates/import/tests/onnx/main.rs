//! ONNX files as they should be, and as they should not.

mod bad;
mod control;
mod good;
mod key_bias;
mod writer;
