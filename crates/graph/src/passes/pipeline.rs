//! The passes and their order.

use super::{
    absorb, causal_mask, dead_code, fold, fuse_chain, fuse_dag, permutes, schedule, select_rows,
    share,
};
use crate::GraphError;
use crate::graph::Graph;

/// A rewrite; returns whether it changed anything.
pub type Pass = fn(&mut Graph) -> Result<bool, GraphError>;

/// The passes in the order they run.
///
/// `absorb` precedes `fold`: folding first would materialise transposed weights.
pub const PIPELINE: [(&str, Pass); 10] = [
    ("absorb", absorb::run),
    ("permutes", permutes::run),
    ("fold", fold::run),
    ("causal_mask", causal_mask::run),
    ("fuse_chain", fuse_chain::run),
    ("fuse_dag", fuse_dag::run),
    ("select_rows", select_rows::run),
    ("share", share::run),
    ("dead_code", dead_code::run),
    ("schedule", schedule::run),
];
