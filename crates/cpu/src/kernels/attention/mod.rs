//! Attention over KV cache rows and over plain tensors, and the rotary embedding of queries and keys.

pub(crate) mod cached;
pub(crate) mod plain;
pub(crate) mod rope;
