//! Rewrites of a graph that keep its results. Each pass is a file; most are rules that propose patches.

mod absorb;
mod causal_mask;
mod dead_code;
mod fold;
mod fuse_chain;
mod fuse_conv;
mod fuse_dag;
mod fused_ops;
mod permutes;
mod pipeline;
mod renumber;
mod rewrite;
mod schedule;
mod select_rows;
mod selection;
mod share;
#[cfg(test)]
#[allow(dead_code, reason = "shared by the tests of all passes")]
mod testing;

pub use fused_ops::{FusedKind, FusedOp, FusedProduct, FusionSupport, NoFusion, fuse};
pub use pipeline::{PIPELINE, Pass};
pub use selection::{PassSelection, UnknownPass};

use crate::GraphError;
use crate::graph::Graph;

/// Limit on rounds of the pipeline. A pass may create patterns that an earlier pass matches in the next round.
const MAX_ROUNDS: usize = 16;

/// Runs all passes until nothing changes and verifies the result.
pub fn optimise(graph: &mut Graph) -> Result<(), GraphError> {
    optimise_with(graph, &PassSelection::ALL)
}

/// Runs the selected passes until nothing changes and verifies the result.
pub fn optimise_with(graph: &mut Graph, selection: &PassSelection) -> Result<(), GraphError> {
    for _ in 0..MAX_ROUNDS {
        let mut changed = false;
        for (index, (_, pass)) in PIPELINE.iter().enumerate() {
            if selection.runs(index) && pass(graph)? {
                graph.verify()?;
                changed = true;
            }
        }
        if !changed {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
