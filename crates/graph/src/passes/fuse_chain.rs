//! Fuses chains: products with their bias and activation, and scores, softmax and values into attention.

use super::rewrite::{Patch, PatchBuilder, View, rewrite};
use crate::graph::{Graph, Node, TensorId};
use crate::ops::{
    Attention, BinaryFunction, Linear, MatMul, Op, Permute, Reshape, Softmax, Unary, UnaryFunction,
};
use crate::{Dim, GraphError};

/// A score at most this is never seen: its weight is zero in f32 beside any that is.
pub(super) const HIDDEN: f32 = -1e4;

pub(super) fn run(graph: &mut Graph) -> Result<bool, GraphError> {
    rewrite(graph, |view, node| match &node.op {
        Op::Binary(op) if op.function == BinaryFunction::Add => with_bias(view, node),
        Op::Unary(op) => with_activation(view, node, op.function),
        Op::MatMul(op) => attention(view, node, op),
        Op::Attention(op) => shared_heads(view, node, op),
        _ => None,
    })
}

/// `product + bias` as one product.
fn with_bias(view: &View<'_>, node: &Node) -> Option<Patch> {
    view.either(node.output, BinaryFunction::Add)
        .find_map(|(product, bias)| {
            let (op, &[x, weight]) = view.made(product)? else {
                return None;
            };
            match op {
                Op::Linear(Linear { activation: None }) | Op::MatMul(_) => {}
                _ => return None,
            }
            let width = *view.shape(node.output).last()?;
            let mut patch = PatchBuilder::new(view, node);
            let bias = match view.shape(bias) {
                [only] if *only == width => bias,
                [ones @ .., last] if *last == width && ones.iter().all(is_one) => {
                    patch.node(Reshape { shape: vec![width] }, &[bias])?
                }
                _ => return None,
            };
            patch.fuse(op.clone(), &[x, weight, bias])
        })
}

/// `activation(linear)` as one op, unless the activation is the gate of a product, which is another fusion.
fn with_activation(view: &View<'_>, node: &Node, function: UnaryFunction) -> Option<Patch> {
    let UnaryFunction::Activation(activation) = function else {
        return None;
    };
    let (Op::Linear(Linear { activation: None }), operands) = view.made(node.inputs[0])? else {
        return None;
    };
    let gates = |reader: &Node| view.binary(reader.output, BinaryFunction::Mul).is_some();
    if view.readers(node.output).any(gates) {
        return None;
    }
    let activation = Some(activation);
    PatchBuilder::new(view, node).fuse(Linear { activation }, operands)
}

/// `softmax(mask(q · kᵀ)) · v` as attention.
fn attention(view: &View<'_>, node: &Node, values: &MatMul) -> Option<Patch> {
    let &[weights, v] = &node.inputs[..] else {
        return None;
    };
    let rank = view.rank(weights);
    let (Op::Softmax(Softmax { axis, log: false }), &[scores]) = view.made(weights)? else {
        return None;
    };
    if *axis != rank - 1 || values.alpha != 1.0 {
        return None;
    }
    let mut patch = PatchBuilder::new(view, node);
    let masked = Masked::find(view, scores, &mut patch)?;
    let (Op::MatMul(product), &[q, k]) = view.made(masked.scores)? else {
        return None;
    };
    let turned = |patch: &mut PatchBuilder<'_, '_>, turn: bool, id: TensorId| match turn {
        true => patch.node(Permute::transpose(view.rank(id)), &[id]),
        false => Some(id),
    };
    let k = turned(&mut patch, !product.transpose_b, k)?;
    let v = turned(&mut patch, values.transpose_b, v)?;
    let op = Attention {
        scale: product.alpha * masked.scale,
        causal: false,
        softcap: masked.softcap,
    };
    if rank >= 3 {
        let mut inputs = vec![q, k, v];
        inputs.extend(masked.mask);
        return patch.fuse(op, &inputs);
    }
    // One head without an axis for it.
    let headed = |patch: &mut PatchBuilder<'_, '_>, id: TensorId| {
        let mut shape = patch.ty(id).shape.clone();
        shape.insert(0, Dim::from(1));
        patch.node(Reshape { shape }, &[id])
    };
    let mut inputs = vec![
        headed(&mut patch, q)?,
        headed(&mut patch, k)?,
        headed(&mut patch, v)?,
    ];
    inputs.extend(masked.mask);
    let result = patch.node(op, &inputs)?;
    let shape = view.shape(node.output).to_vec();
    patch.fuse(Reshape { shape }, &[result])
}

/// Scores as they come out of a product, and what is done to them before the softmax.
struct Masked {
    scores: TensorId,
    scale: f32,
    softcap: Option<f32>,
    mask: Option<TensorId>,
}

impl Masked {
    fn find(view: &View<'_>, scores: TensorId, patch: &mut PatchBuilder<'_, '_>) -> Option<Masked> {
        let (scores, mask) = Masked::mask(view, scores, patch);
        let (softcap, scores) = match view.made(scores)? {
            (Op::SoftCap(op), &[inner]) => (Some(op.cap), inner),
            _ => (None, scores),
        };
        let (scale, scores) = view.scaled(scores).unwrap_or((1.0, scores));
        Some(Masked {
            scores,
            scale,
            softcap,
            mask,
        })
    }

    /// The scores before a mask, and the mask: a tensor that is added, or a choice between scores and a hidden one.
    fn mask(
        view: &View<'_>,
        masked: TensorId,
        patch: &mut PatchBuilder<'_, '_>,
    ) -> (TensorId, Option<TensorId>) {
        let is_score = |id: TensorId| {
            let bare = view.scaled(id).map_or(id, |(_, x)| x);
            matches!(view.made(bare), Some((Op::MatMul(_) | Op::SoftCap(_), _)))
        };
        let added = view
            .either(masked, BinaryFunction::Add)
            .find(|(scores, mask)| {
                is_score(*scores) && view.ty(*scores) == view.ty(masked) && mask != scores
            });
        if let Some((scores, mask)) = added {
            return (scores, Some(mask));
        }
        let hidden = |id: TensorId| view.scalar(id).is_some_and(|x| x <= HIDDEN);
        let same = |id: TensorId| view.ty(id) == view.ty(masked);
        match view.made(masked) {
            Some((Op::Where(_), &[seen, scores, low])) if hidden(low) && same(scores) => {
                (scores, Some(seen))
            }
            Some((Op::Where(_), &[unseen, low, scores])) if hidden(low) && same(scores) => {
                let function = UnaryFunction::Not;
                (scores, patch.node(Unary { function }, &[unseen]))
            }
            _ => (masked, None),
        }
    }
}

/// Keys and values that were repeated for groups of query heads are read by the group.
fn shared_heads(view: &View<'_>, node: &Node, op: &Attention) -> Option<Patch> {
    let mut inputs = node.inputs.clone();
    inputs[1] = unrepeated(view, inputs[1])?;
    inputs[2] = unrepeated(view, inputs[2])?;
    PatchBuilder::new(view, node).replace(op.clone(), &inputs)
}

/// `x [.., Hkv, S, D]` of which every head was repeated in place to make `[.., H, S, D]`.
fn unrepeated(view: &View<'_>, repeated: TensorId) -> Option<TensorId> {
    let heads = view.rank(repeated).checked_sub(3)?;
    match view.made(repeated)? {
        (Op::Reshape(_), &[expanded]) => {
            let (Op::Expand(_), &[single]) = view.made(expanded)? else {
                return None;
            };
            let (Op::Reshape(_), &[x]) = view.made(single)? else {
                return None;
            };
            // [.., Hkv, S, D] -> [.., Hkv, 1, S, D] -> [.., Hkv, G, S, D] -> [.., H, S, D]
            let mut with_group = view.shape(x).to_vec();
            (with_group.len() == heads + 3).then(|| with_group.insert(heads + 1, Dim::from(1)))?;
            let mut grown = with_group.clone();
            grown[heads + 1] = *view.shape(expanded).get(heads + 1)?;
            let fits = view.shape(single) == with_group && view.shape(expanded) == grown;
            fits.then_some(x)
        }
        (Op::Gather(op), &[x, indices]) if op.axis == heads => {
            let value = view.constant(indices)?;
            let indices: Vec<i64> = match (value.as_i64(), value.as_i32()) {
                (Some(v), _) => v.to_vec(),
                (_, Some(v)) => v.iter().map(|i| i64::from(*i)).collect(),
                _ => return None,
            };
            let count = view.shape(x)[heads].as_const()?;
            let group = indices.len().checked_div(count)?.max(1);
            let in_place = |(i, index): (usize, &i64)| *index == (i / group) as i64;
            let whole = indices.len() == group * count && value.shape.len() == 1;
            (whole && indices.iter().enumerate().all(in_place)).then_some(x)
        }
        _ => None,
    }
}

fn is_one(dim: &Dim) -> bool {
    dim.as_const() == Some(1)
}
