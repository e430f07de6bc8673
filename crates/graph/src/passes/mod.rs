//! Rewrites of a graph that keep its results. Each pass is a file; most are rules that propose patches.

mod absorb;
mod causal_mask;
mod dead_code;
mod fold;
mod fuse_chain;
mod fuse_dag;
mod permutes;
mod rewrite;
mod schedule;
mod select_rows;
mod selection;
mod share;
#[cfg(test)]
#[allow(dead_code, reason = "shared by the tests of all passes")]
mod testing;

pub use selection::{PassSelection, UnknownPass};

use crate::graph::{Graph, TensorId, TensorKind};
use crate::{GraphError, NodeId};

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

/// Removes all tensors and nodes for which `keep` is false and renumbers the rest.
fn retain(graph: &mut Graph, keep_node: &[bool], keep_tensor: &[bool]) {
    let mut tensor_ids = vec![None; graph.tensors.len()];
    let mut next = 0;
    for (id, keep) in tensor_ids.iter_mut().zip(keep_tensor) {
        if *keep {
            *id = Some(TensorId(next));
            next += 1;
        }
    }
    let new_id = |id: &mut TensorId| {
        *id = tensor_ids[id.0 as usize].expect("a kept node's tensors are kept")
    };
    let mut kept = keep_node.iter();
    graph
        .nodes
        .retain(|_| *kept.next().expect("one flag a node"));
    let mut kept = keep_tensor.iter();
    graph
        .tensors
        .retain(|_| *kept.next().expect("one flag a tensor"));
    for node in &mut graph.nodes {
        node.inputs.iter_mut().for_each(new_id);
        new_id(&mut node.output);
    }
    graph.inputs.iter_mut().for_each(new_id);
    graph.outputs.iter_mut().for_each(new_id);
    renumber(graph);
}

/// Updates the producer of every computed tensor.
fn renumber(graph: &mut Graph) {
    for (i, node) in graph.nodes.iter().enumerate() {
        graph.tensors[node.output.0 as usize].kind = TensorKind::Value(NodeId(i as u32));
    }
}

#[cfg(test)]
mod tests;
