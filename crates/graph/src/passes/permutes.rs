//! Composes and cancels ops that only move or rename elements, and brings permutes together so that they cancel.

use super::rewrite::{Patch, PatchBuilder, View, rewrite};
use crate::graph::{Graph, Node, TensorId};
use crate::ops::{Op, Permute, Reshape};
use crate::{Dim, GraphError};

pub(super) fn run(graph: &mut Graph) -> Result<bool, GraphError> {
    rewrite(graph, |view, node| {
        identity(view, node).or_else(|| match &node.op {
            Op::Reshape(op) => reshaped(view, node, op),
            Op::Permute(op) => permuted(view, node, op),
            _ => None,
        })
    })
}

/// Ops that change nothing.
fn identity(view: &View<'_>, node: &Node) -> Option<Patch> {
    let [x, ..] = node.inputs[..] else {
        return None;
    };
    let same = view.ty(x) == view.ty(node.output);
    let nothing = match &node.op {
        Op::Reshape(_) | Op::Expand(_) | Op::Cast(_) | Op::Concat(_) => same,
        Op::Slice(op) => same && op.step == 1 && op.start.as_const() == Some(0),
        Op::Permute(op) => op.is_identity(),
        Op::Scale(op) => op.factor == 1.0,
        _ => false,
    };
    nothing
        .then(|| PatchBuilder::new(view, node).redirect(x))
        .flatten()
}

/// A reshape of a reshape is one; one that only drops or adds axes of size one moves before a permute.
fn reshaped(view: &View<'_>, node: &Node, op: &Reshape) -> Option<Patch> {
    let (before, &[x]) = view.made(node.inputs[0])? else {
        return None;
    };
    let mut patch = PatchBuilder::new(view, node);
    match before {
        Op::Reshape(_) => patch.replace(op.clone(), &[x]),
        Op::Permute(permute) if view.uses(node.inputs[0]) == 1 => {
            let (shape, permute) = unit_axes_first(view.shape(x), permute, &op.shape)?;
            let x = patch.node(Reshape { shape }, &[x])?;
            patch.replace(permute, &[x])
        }
        _ => None,
    }
}

/// The reshape and the permute, in this order, that do what `permute` and a reshape to `target` do, when the latter
/// only drops or adds axes of size one.
fn unit_axes_first(
    source: &[Dim],
    permute: &Permute,
    target: &[Dim],
) -> Option<(Vec<Dim>, Permute)> {
    let is_long = |dim: &Dim| dim.as_const() != Some(1);
    // The long axes of the source, in the order of the target.
    let mut long = permute.axes.iter().filter(|axis| is_long(&source[**axis]));
    let mut origin = Vec::with_capacity(target.len());
    for dim in target {
        origin.push(match is_long(dim) {
            true => Some(*long.next().filter(|axis| source[**axis] == *dim)?),
            false => None,
        });
    }
    if long.next().is_some() {
        return None;
    }
    // Added axes of size one go in front, the others stay in the order of the source.
    let mut order: Vec<usize> = (0..target.len()).collect();
    order.sort_by_key(|i| origin[*i].map(|axis| axis + 1));
    let shape = order.iter().map(|i| target[*i]).collect();
    let axes = Permute { axes: order }.inverse();
    Some((shape, axes))
}

/// A permute of a permute is one; one that moves only axes of size one is a reshape; one behind an elementwise op whose
/// operands were all permuted the other way cancels them.
fn permuted(view: &View<'_>, node: &Node, op: &Permute) -> Option<Patch> {
    let x = node.inputs[0];
    let long = |axis: &&usize| view.shape(x)[**axis].as_const() != Some(1);
    let mut patch = PatchBuilder::new(view, node);
    if op.axes.iter().filter(long).is_sorted() {
        let shape = view.shape(node.output).to_vec();
        return patch.replace(Reshape { shape }, &[x]);
    }
    let (before, operands) = view.made(x)?;
    if let (Op::Permute(first), &[source]) = (before, operands) {
        return patch.replace(first.then(op), &[source]);
    }
    if !is_elementwise(before) || view.uses(x) != 1 {
        return None;
    }
    let undone = |id: &TensorId| match view.made(*id) {
        Some((Op::Permute(first), &[source])) if first.then(op).is_identity() => Some(source),
        _ => None,
    };
    // Numbers are the same in any order of axes.
    let plain = |id: &TensorId| (view.rank(*id) == 0).then_some(*id);
    if !operands.iter().any(|id| undone(id).is_some()) {
        return move_before(view, node, op, &mut patch).and_then(|id| patch.redirect(id));
    }
    let sources: Option<Vec<TensorId>> =
        operands.iter().map(|id| undone(id).or(plain(id))).collect();
    patch.replace(before.clone(), &sources?)
}

/// Through one elementwise op of one operand, when that lets the permute meet another.
fn move_before(
    view: &View<'_>,
    node: &Node,
    op: &Permute,
    patch: &mut PatchBuilder<'_, '_>,
) -> Option<TensorId> {
    let (before, &[x]) = view.made(node.inputs[0])? else {
        return None;
    };
    let meets = matches!(view.made(x)?, (Op::Permute(_), _)) && view.uses(x) == 1;
    let moved = meets.then(|| patch.node(op.clone(), &[x])).flatten()?;
    patch.node(before.clone(), &[moved])
}

/// Whether an op computes each element from the elements at its place.
pub(super) fn is_elementwise(op: &Op) -> bool {
    matches!(
        op,
        Op::Binary(_)
            | Op::Cast(_)
            | Op::Compare(_)
            | Op::Gated(_)
            | Op::Scale(_)
            | Op::SoftCap(_)
            | Op::Unary(_)
            | Op::Where(_)
    )
}
