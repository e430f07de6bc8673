//! Model files to graphs: each format is a hardened reader (bytes to typed structs) and a lowering (to a graph).

#![forbid(unsafe_code)]

pub mod gguf;
