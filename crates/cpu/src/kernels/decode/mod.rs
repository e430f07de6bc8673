//! Decoders to f32 lanes: plain weight types and KV storage types.

pub(crate) mod half;
pub(crate) mod kv_rows;
