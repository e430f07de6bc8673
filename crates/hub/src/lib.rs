//! Models by name: the catalogue, the folder that stores models, and how they are fetched.
//!
//! This is the only crate with network code.
#![forbid(unsafe_code)]

pub mod catalogue;
