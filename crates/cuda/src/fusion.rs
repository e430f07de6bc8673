//! Nodes that run as one kernel: products with the same operand, their norm before and their gate or sum after.

use crate::weights::Constants;
use graph::ops::{Binary, BinaryFunction, Op};
use graph::{Graph, Node, TensorId};
use std::ops::Range;

/// The most products of a kernel.
const MAX_PRODUCTS: usize = 3;

/// Consecutive nodes that run as one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Group {
    /// The nodes.
    pub(crate) nodes: Range<usize>,
    /// The norm of the products' operand.
    pub(crate) norm: Option<usize>,
    /// The products; empty if the group is a single node of another kind.
    pub(crate) products: Vec<usize>,
    /// The node that gates the first product's result with the second's.
    pub(crate) gate: Option<usize>,
    /// The node that adds the result to another tensor, and that tensor.
    pub(crate) sum: Option<(usize, TensorId)>,
    /// The rotations of an attention's queries and keys, which it does itself.
    pub(crate) rotations: Vec<usize>,
}

/// The groups of a graph in order. Without fusion every node is a group.
pub(crate) fn groups(graph: &Graph, constants: &Constants, fuse: bool) -> Vec<Group> {
    let nodes = graph.nodes();
    let mut uses = vec![0usize; graph.tensors().len()];
    for id in nodes
        .iter()
        .flat_map(|node| &node.inputs)
        .chain(graph.outputs())
    {
        uses[id.0 as usize] += 1;
    }
    let mut groups = Vec::new();
    let mut at = 0;
    while at < nodes.len() {
        let group = match fuse {
            true => group_at(graph, constants, &uses, at),
            false => single(nodes, at),
        };
        at = group.nodes.end;
        groups.push(group);
    }
    groups
}

fn single(nodes: &[Node], at: usize) -> Group {
    let products = match nodes[at].op {
        Op::Linear(_) => vec![at],
        _ => vec![],
    };
    Group {
        nodes: at..at + 1,
        products,
        ..Group::default()
    }
}

/// The most nodes from the first rotation to the attention.
const MAX_ATTENTION: usize = 8;

/// A rotation and the attention after it, with what lies between them: norms, reshapes and the other rotation.
fn rotated_attention(nodes: &[Node], at: usize, used: impl Fn(TensorId) -> usize) -> Option<Group> {
    let Op::Rope(_) = nodes[at].op else {
        return None;
    };
    let window = &nodes[at..nodes.len().min(at + MAX_ATTENTION)];
    let attends = |node: &Node| matches!(node.op, Op::UpdateAndAttend(_));
    let end = at + window.iter().position(attends)?;
    let plain = |node: &Node| matches!(node.op, Op::Reshape(_) | Op::Rope(_) | Op::RmsNorm(_));
    if !nodes[at..end].iter().all(plain) {
        return None;
    }
    let inner = |i: &usize| {
        let operand = nodes[end]
            .inputs
            .iter()
            .position(|id| *id == nodes[*i].output);
        matches!(nodes[*i].op, Op::Rope(_))
            && matches!(operand, Some(0 | 1))
            && used(nodes[*i].output) == 1
    };
    let rotations: Vec<usize> = (at..end).filter(inner).collect();
    // A value of the window that is rotated in place must not be needed by a later node of it: each has one use.
    let single = |i: &usize| used(nodes[*i].inputs[0]) == 1;
    (rotations.contains(&at) && rotations.iter().all(single)).then(|| Group {
        nodes: at..end + 1,
        rotations,
        ..Group::default()
    })
}

fn group_at(graph: &Graph, constants: &Constants, uses: &[usize], at: usize) -> Group {
    let nodes = graph.nodes();
    let used = |id: TensorId| uses[id.0 as usize];
    if let Some(group) = rotated_attention(nodes, at, used) {
        return group;
    }
    let mut group = single(nodes, at);
    let mut next = at;
    let mut operand = nodes[at].inputs.first().copied();
    if let Op::RmsNorm(_) = nodes[at].op {
        group.norm = Some(at);
        next += 1;
        operand = Some(nodes[at].output);
    }
    // Products of one operand with weights of one format.
    let format = |node: &Node| {
        constants
            .packed(node.inputs[1])
            .map(|weight| weight.shape.format)
    };
    let alike = |node: &Node, first: &Node| match (&node.op, &first.op) {
        (Op::Linear(a), Op::Linear(b)) => {
            a == b
                && Some(node.inputs[0]) == operand
                && format(node).is_some()
                && format(node) == format(first)
        }
        _ => false,
    };
    let start = next;
    while next < nodes.len() && next - start < MAX_PRODUCTS && alike(&nodes[next], &nodes[start]) {
        next += 1;
    }
    let products: Vec<usize> = (start..next).collect();
    let all_uses = operand.map_or(0, used);
    if products.is_empty() || (group.norm.is_some() && all_uses != products.len()) {
        return single(nodes, at);
    }
    let result = |product: usize| nodes[product].output;
    // A gate between two products.
    if let (&[first, second], Some(Op::Gated(_))) = (&products[..], nodes.get(next).map(|n| &n.op))
    {
        let plain = matches!(&nodes[first].op, Op::Linear(linear) if linear.activation.is_none());
        let fits = nodes[next].inputs == [result(first), result(second)];
        if plain && fits && used(result(first)) == 1 && used(result(second)) == 1 {
            group.gate = Some(next);
            next += 1;
        }
    }
    // A sum with the only result.
    let last = group.gate.unwrap_or(start);
    if (products.len() == 1 || group.gate.is_some())
        && let Some(node) = nodes.get(next)
        && let Op::Binary(Binary {
            function: BinaryFunction::Add,
        }) = node.op
        && used(nodes[last].output) == 1
        && graph.tensor(node.inputs[0]).ty == graph.tensor(node.inputs[1]).ty
    {
        let other = match node.inputs[..] {
            [a, b] if b == nodes[last].output && a != b => Some(a),
            [a, b] if a == nodes[last].output && a != b => Some(b),
            _ => None,
        };
        if let Some(other) = other {
            group.sum = Some((next, other));
            next += 1;
        }
    }
    group.products = products;
    group.nodes = at..next;
    group
}
