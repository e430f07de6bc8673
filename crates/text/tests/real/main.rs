//! Tests on vocabularies and templates of real models; each says so when its files are not there.
#![allow(clippy::print_stderr, reason = "a skipped test says so")]

mod gguf;
mod sets;
mod smollm2;
