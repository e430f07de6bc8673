//! Removal and renumbering of nodes and tensors after a pass.

use crate::graph::{Graph, NodeId, TensorId, TensorKind};

/// Removes all tensors and nodes whose flag in `keep_node` or `keep_tensor` is false and renumbers the rest.
pub(super) fn retain(graph: &mut Graph, keep_node: &[bool], keep_tensor: &[bool]) {
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
pub(super) fn renumber(graph: &mut Graph) {
    for (i, node) in graph.nodes.iter().enumerate() {
        graph.tensors[node.output.0 as usize].kind = TensorKind::Value(NodeId(i as u32));
    }
}
