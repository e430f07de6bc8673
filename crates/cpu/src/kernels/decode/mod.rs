//! Decoders to f32: weight formats and KV storage types.

pub(crate) mod kv_rows;
pub(crate) mod weights;
