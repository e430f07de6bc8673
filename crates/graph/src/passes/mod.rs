//! Rewrites of a graph that keep its results. Each pass is a file.

mod dead_code;
mod fold;

use crate::graph::{Graph, TensorId, TensorKind};
use crate::{GraphError, NodeId};

/// A rewrite; returns whether it changed anything.
pub type Pass = fn(&mut Graph) -> Result<bool, GraphError>;

/// The passes in the order they run.
pub const PIPELINE: [(&str, Pass); 2] = [("fold", fold::run), ("dead-code", dead_code::run)];

/// Runs the whole pipeline once and verifies the result.
pub fn optimise(graph: &mut Graph) -> Result<(), GraphError> {
    for (_, pass) in PIPELINE {
        if pass(graph)? {
            graph.verify()?;
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
    let renumber = |id: &mut TensorId| {
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
    for (i, node) in graph.nodes.iter_mut().enumerate() {
        node.inputs.iter_mut().for_each(renumber);
        renumber(&mut node.output);
        graph.tensors[node.output.0 as usize].kind = TensorKind::Value(NodeId(i as u32));
    }
    graph.inputs.iter_mut().for_each(renumber);
    graph.outputs.iter_mut().for_each(renumber);
}
