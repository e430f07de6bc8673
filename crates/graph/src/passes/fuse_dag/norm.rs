//! Norms over the last axis: matched without weights first; further rules then fold weight and bias.

use super::product::square_of;
use crate::graph::Node;
use crate::ops::{
    Binary, BinaryFunction, LayerNorm, Op, Reduce, ReduceFunction, Reshape, RmsNorm, UnaryFunction,
};
use crate::passes::rewrite::{GraphView, Patch, PatchBuilder};
use crate::{Dim, TensorId, Value};

/// `x / √(mean(x²) + eps)`.
pub(super) fn rms_norm(view: &GraphView<'_>, node: &Node) -> Option<Patch> {
    let (x, squared, eps) = normalised(view, node)?;
    if !view.same(squared, x) {
        return None;
    }
    let mut patch = PatchBuilder::new(view, node);
    let ones = repeated(view, &mut patch, x, "weight", 1.0)?;
    patch.fuse(RmsNorm { eps }, &[x, ones])
}

/// `d / √(mean(d²) + eps)` with `d = x − mean(x)`.
pub(super) fn layer_norm(view: &GraphView<'_>, node: &Node) -> Option<Patch> {
    let (centred, squared, eps) = normalised(view, node)?;
    let source = |id: TensorId| {
        let (x, mean) = view.binary(id, BinaryFunction::Sub)?;
        view.same(row_mean(view, mean)?, x).then_some(x)
    };
    let (x, other) = (source(centred)?, source(squared)?);
    if !view.same(x, other) {
        return None;
    }
    let mut patch = PatchBuilder::new(view, node);
    let ones = repeated(view, &mut patch, x, "weight", 1.0)?;
    let zeros = repeated(view, &mut patch, x, "bias", 0.0)?;
    patch.fuse(LayerNorm { eps }, &[x, ones, zeros])
}

/// `norm · weight` with one weight per column.
pub(super) fn with_weight(view: &GraphView<'_>, node: &Node) -> Option<Patch> {
    let mut ways = view.either(node.output, BinaryFunction::Mul);
    ways.find_map(|(normed, weight)| {
        let (op, operands) = view.defining_op(normed)?;
        let (Op::RmsNorm(_) | Op::LayerNorm(_)) = op else {
            return None;
        };
        let mut patch = PatchBuilder::new(view, node);
        let weight = column(view, &mut patch, node, weight)?;
        let function = BinaryFunction::Mul;
        let mut inputs = operands.to_vec();
        for (i, id) in inputs.iter_mut().enumerate().skip(1) {
            *id = match view.constant(*id) {
                Some(ones) if i == 1 && all(&ones, 1.0) => weight,
                Some(zeros) if i == 2 && all(&zeros, 0.0) => *id,
                _ => patch.node(Binary { function }, &[*id, weight])?,
            };
        }
        patch.fuse(op.clone(), &inputs)
    })
}

/// `layer_norm + bias` with one bias per column.
pub(super) fn with_bias(view: &GraphView<'_>, node: &Node) -> Option<Patch> {
    let mut ways = view.either(node.output, BinaryFunction::Add);
    ways.find_map(|(normed, bias)| {
        let (Op::LayerNorm(op), &[x, weight, zeros]) = view.defining_op(normed)? else {
            return None;
        };
        if !all(&view.constant(zeros)?, 0.0) {
            return None;
        }
        let mut patch = PatchBuilder::new(view, node);
        let bias = column(view, &mut patch, node, bias)?;
        patch.fuse(op.clone(), &[x, weight, bias])
    })
}

/// Matches `x / √(mean(y²) + eps)`: returns `x`, `y` and `eps`.
fn normalised(view: &GraphView<'_>, node: &Node) -> Option<(TensorId, TensorId, f32)> {
    let root = |id: TensorId| {
        let (eps, mean) = view.shifted(id)?;
        Some((square_of(view, row_mean(view, mean)?)?, eps))
    };
    let product = view
        .either(node.output, BinaryFunction::Mul)
        .find_map(|(x, inverse)| {
            let under = view.unary(inverse, UnaryFunction::Rsqrt).or_else(|| {
                let divisor = view.unary(inverse, UnaryFunction::Reciprocal)?;
                view.unary(divisor, UnaryFunction::Sqrt)
            })?;
            let (squared, eps) = root(under)?;
            Some((x, squared, eps))
        });
    product.or_else(|| {
        let (x, divisor) = view.binary(node.output, BinaryFunction::Div)?;
        let (squared, eps) = root(view.unary(divisor, UnaryFunction::Sqrt)?)?;
        Some((x, squared, eps))
    })
}

/// Operand of a mean over the last axis that keeps the axis.
fn row_mean(view: &GraphView<'_>, id: TensorId) -> Option<TensorId> {
    let (Op::Reduce(op), &[x]) = view.defining_op(id)? else {
        return None;
    };
    let last = vec![view.rank(x).checked_sub(1)?];
    let mean = Reduce {
        function: ReduceFunction::Mean,
        axes: last,
        keep: true,
    };
    (*op == mean).then_some(x)
}

/// A constant with one element per column of `x`.
fn repeated(
    view: &GraphView<'_>,
    patch: &mut PatchBuilder<'_, '_>,
    x: TensorId,
    what: &str,
    value: f32,
) -> Option<TensorId> {
    let width = view.shape(x).last()?.as_const()?;
    Some(patch.constant(what, &Value::f32([width], vec![value; width])))
}

/// A tensor with one element per column of the node's result, reshaped to `[D]`.
fn column(
    view: &GraphView<'_>,
    patch: &mut PatchBuilder<'_, '_>,
    node: &Node,
    id: TensorId,
) -> Option<TensorId> {
    let width = *view.shape(node.output).last()?;
    match view.shape(id) {
        [only] if *only == width => Some(id),
        [ones @ .., last] if *last == width && ones.iter().all(|d| *d == Dim::from(1)) => {
            patch.node(Reshape { shape: vec![width] }, &[id])
        }
        _ => None,
    }
}

fn all(value: &Value, wanted: f32) -> bool {
    value
        .as_f32()
        .is_some_and(|x| x.iter().all(|x| *x == wanted))
}
