//! The decomposed softmax and soft cap.

use super::product::close;
use crate::TensorId;
use crate::graph::Node;
use crate::ops::{
    Activation, BinaryFunction, Op, Reduce, ReduceFunction, Scale, SoftCap, Softmax, UnaryFunction,
};
use crate::passes::rewrite::{GraphView, Patch, PatchBuilder};

/// `exp(x − max(x)) / Σ exp(x − max(x))`, also without the maximum.
pub(super) fn softmax(view: &GraphView<'_>, node: &Node) -> Option<Patch> {
    let (weight, sum) = view.binary(node.output, BinaryFunction::Div)?;
    let (summed, axis) = reduced(view, sum, ReduceFunction::Sum)?;
    if !view.same(summed, weight) {
        return None;
    }
    let exponent = view.unary(weight, UnaryFunction::Exp)?;
    let around_max = view
        .binary(exponent, BinaryFunction::Sub)
        .and_then(|(x, max)| {
            let largest = reduced(view, max, ReduceFunction::Max)?;
            (view.same(largest.0, x) && largest.1 == axis).then_some(x)
        });
    let x = around_max.unwrap_or(exponent);
    PatchBuilder::new(view, node).fuse(Softmax { axis, log: false }, &[x])
}

/// Operand and axis of a reduction along one axis that keeps the axis.
fn reduced(
    view: &GraphView<'_>,
    id: TensorId,
    wanted: ReduceFunction,
) -> Option<(TensorId, usize)> {
    match view.defining_op(id)? {
        (
            Op::Reduce(Reduce {
                function,
                axes,
                keep: true,
            }),
            &[x],
        ) if *function == wanted => {
            let &[axis] = &axes[..] else {
                return None;
            };
            Some((x, axis))
        }
        _ => None,
    }
}

/// `cap · tanh(x / cap)`; the division may already be folded into a product.
pub(super) fn soft_cap(view: &GraphView<'_>, node: &Node) -> Option<Patch> {
    let (cap, bounded) = view.scaled(node.output)?;
    let argument = view.unary(bounded, Activation::Tanh)?;
    let mut patch = PatchBuilder::new(view, node);
    let x = match (view.scaled(argument), view.defining_op(argument)) {
        (Some((inverse, x)), _) if close(inverse * cap, 1.0) => x,
        (_, Some((Op::MatMul(_), _))) => patch.node(Scale { factor: cap }, &[argument])?,
        _ => return None,
    };
    patch.fuse(SoftCap { cap }, &[x])
}
