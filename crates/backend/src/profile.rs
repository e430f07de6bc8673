//! `NodeProfile`: measured time and work of nodes.

use std::time::Duration;

/// Time, bytes read and multiply-accumulates of all nodes with one op and label, summed over the measured steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeProfile {
    /// Name of the op.
    pub op: &'static str,
    /// Name of the nodes, with `*` in place of the layer number.
    pub label: String,
    /// Number of node runs.
    pub runs: u64,
    /// Total time.
    pub time: Duration,
    /// Bytes of weights and cached rows read, each counted once per step.
    pub bytes: u64,
    /// Multiply-accumulate operations.
    pub macs: u64,
    /// Whether the multiply-accumulates are f32; otherwise they are integer products of packed weights.
    pub is_f32: bool,
}
