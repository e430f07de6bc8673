//! Random histories of every operation on every kind of cache, against an oracle that is a list of facts: this sequence
//! holds this position with this stamp. Bytes are simulated as a stamp per layer and cell.
//!
//! `KVARK_HISTORIES=100000 cargo test --release -p kvark-kv --test oracle` is the long run: so many histories per kind.

mod cells;
mod contiguous;
mod facts;
mod prefixed;
mod ring_rewind;
mod scatter;
mod states;
mod tree;
