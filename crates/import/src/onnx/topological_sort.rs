//! Topological sort of nodes, with checks for undefined names and cycles.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::file::{Node, Port};
use crate::error::ImportError;

/// Sorts the nodes topologically; the file's order is kept if it is already valid.
pub(super) fn sorted<'a>(
    nodes: Vec<Node>,
    given: impl Iterator<Item = &'a str>,
    outputs: &[Port],
) -> Result<Vec<Node>, ImportError> {
    let given: HashSet<&str> = given.collect();
    let mut makers: HashMap<&str, usize> = HashMap::new();
    for (index, node) in nodes.iter().enumerate() {
        for name in node.outputs.iter().filter(|name| !name.is_empty()) {
            if given.contains(&name[..]) || makers.insert(name, index).is_some() {
                let reason = format!("is defined again by node {}", node.label);
                return Err(ImportError::malformed(format!("{name:?}"), reason));
            }
        }
    }
    // Per node: the number of operands not yet defined, and the nodes that read its results.
    let mut missing = vec![0usize; nodes.len()];
    let mut readers: Vec<Vec<usize>> = vec![vec![]; nodes.len()];
    for (index, node) in nodes.iter().enumerate() {
        for name in node.inputs.iter().filter(|name| !name.is_empty()) {
            match makers.get(&name[..]) {
                Some(maker) => {
                    readers[*maker].push(index);
                    missing[index] += 1;
                }
                None if given.contains(&name[..]) => {}
                None => {
                    let what = format!("operand {name:?} of node {} ({})", node.label, node.op);
                    let reason = "is not defined by an input, an initialiser or a node";
                    return Err(ImportError::malformed(what, reason));
                }
            }
        }
    }
    for output in outputs {
        if !given.contains(&output.name[..]) && !makers.contains_key(&output.name[..]) {
            let what = format!("output {:?}", output.name);
            return Err(ImportError::malformed(what, "is never computed"));
        }
    }
    let mut ready: BTreeSet<usize> = (0..nodes.len()).filter(|i| missing[*i] == 0).collect();
    let mut order = Vec::with_capacity(nodes.len());
    while let Some(index) = ready.pop_first() {
        order.push(index);
        for reader in &readers[index] {
            missing[*reader] -= 1;
            if missing[*reader] == 0 {
                ready.insert(*reader);
            }
        }
    }
    if let Some(stuck) = missing.iter().position(|count| *count > 0) {
        let what = format!("node {} ({})", nodes[stuck].label, nodes[stuck].op);
        return Err(ImportError::malformed(
            what,
            "is part of a cycle, or depends on one",
        ));
    }
    let mut nodes: Vec<Option<Node>> = nodes.into_iter().map(Some).collect();
    Ok(order
        .into_iter()
        .filter_map(|index| nodes[index].take())
        .collect())
}
