//! Where the time of steps went.

use std::time::Duration;

/// The time that nodes of one kind took over some steps, and what they had to read and to multiply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeProfile {
    /// The op's name.
    pub op: &'static str,
    /// The nodes' name, with `*` in the place of a layer's number.
    pub label: String,
    /// Nodes that ran.
    pub runs: u64,
    /// The time they took.
    pub time: Duration,
    /// Bytes of weights and of cached rows that they read, each once a step.
    pub bytes: u64,
    /// Multiplications that they did.
    pub macs: u64,
    /// Whether these are of f32, and not of bytes.
    pub is_f32: bool,
}
