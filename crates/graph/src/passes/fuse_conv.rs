//! Fuses what follows a convolution into it: scales and shifts of its channels (batch norms), a residual, an activation.

use super::rewrite::{GraphView, Patch, PatchBuilder};
use crate::graph::Node;
use crate::ops::{Binary, BinaryFunction, Conv, Op, UnaryFunction};
use crate::{TensorId, Value};

/// A convolution without activation and residual, and the operands of its node: `x`, the weight and perhaps a bias.
fn bare<'g>(view: &GraphView<'g>, id: TensorId) -> Option<(&'g Conv, &'g [TensorId])> {
    match view.defining_op(id)? {
        (Op::Conv(op), operands) if op.activation.is_none() && operands.len() < 4 => {
            Some((op, operands))
        }
        _ => None,
    }
}

/// Folds arithmetic of a convolution with one constant per output channel into its weight and bias.
pub(super) fn by_channel(view: &GraphView<'_>, node: &Node, op: &Binary) -> Option<Patch> {
    use BinaryFunction::{Add, Div, Mul, Sub};
    let &[first, second] = &node.inputs[..] else {
        return None;
    };
    let (result, other) = match op.function {
        Add | Mul if bare(view, first).is_none() => (second, first),
        Add | Mul | Sub | Div => (first, second),
        _ => return None,
    };
    let (conv, operands) = bare(view, result)?;
    let numbers = channel_numbers(view, node, other)?;
    let [x, mut weight] = [operands[0], operands[1]];
    let mut biases = match operands.get(2) {
        Some(bias) => view.constant(*bias)?.as_f32()?.to_vec(),
        None => vec![0.0; numbers.len()],
    };
    for (bias, number) in biases.iter_mut().zip(&numbers) {
        *bias = op.function.apply(*bias, *number);
    }
    let mut patch = PatchBuilder::new(view, node);
    if let Mul | Div = op.function {
        let value = view.constant(weight)?;
        let mut weights = value.as_f32()?.to_vec();
        let per_channel = weights.len().checked_div(numbers.len())?.max(1);
        for (weights, number) in weights.chunks_mut(per_channel).zip(&numbers) {
            for weight in weights {
                *weight = op.function.apply(*weight, *number);
            }
        }
        weight = patch.constant("weight", &Value::f32(&value.shape[..], weights));
    }
    let bias = patch.constant("bias", &Value::f32([biases.len()], biases));
    patch.fuse(conv.clone(), &[x, weight, bias])
}

/// One number per output channel from a constant that has one for each, or one for all.
fn channel_numbers(view: &GraphView<'_>, node: &Node, id: TensorId) -> Option<Vec<f32>> {
    let rank = view.rank(node.output);
    let channels = view.shape(node.output).get(1)?.as_const()?;
    let value = view.constant(id)?;
    let numbers = value.as_f32()?;
    // Aligned with the last axes, only the channels' axis may be longer than one.
    let behind = rank.checked_sub(2)?;
    let from_end = value.shape.iter().rev().enumerate();
    let mut others = from_end.filter(|(i, _)| *i != behind);
    if value.shape.len() > rank || others.any(|(_, size)| *size != 1) {
        return None;
    }
    match numbers.len() {
        1 => Some(vec![numbers[0]; channels]),
        n if n == channels => Some(numbers.to_vec()),
        _ => None,
    }
}

/// Fuses `conv + residual`.
pub(super) fn with_residual(view: &GraphView<'_>, node: &Node) -> Option<Patch> {
    let mut ways = view.either(node.output, BinaryFunction::Add);
    ways.find_map(|(result, residual)| {
        let (conv, operands) = bare(view, result)?;
        if view.ty(residual) != view.ty(result) || residual == result {
            return None;
        }
        let mut patch = PatchBuilder::new(view, node);
        let mut operands = operands.to_vec();
        if operands.len() == 2 {
            let channels = view.shape(result).get(1)?.as_const()?;
            operands.push(patch.constant("bias", &Value::f32([channels], vec![0.0; channels])));
        }
        operands.push(residual);
        patch.fuse(conv.clone(), &operands)
    })
}

/// Fuses `activation(conv)`, unless the activation is part of a gate, which is another fusion.
pub(super) fn with_activation(
    view: &GraphView<'_>,
    node: &Node,
    function: UnaryFunction,
) -> Option<Patch> {
    let UnaryFunction::Activation(activation) = function else {
        return None;
    };
    let (Op::Conv(conv), operands) = view.defining_op(node.inputs[0])? else {
        return None;
    };
    let gates = |reader: &Node| view.binary(reader.output, BinaryFunction::Mul).is_some();
    if conv.activation.is_some() || view.readers(node.output).any(gates) {
        return None;
    }
    let conv = Conv {
        activation: Some(activation),
        ..conv.clone()
    };
    PatchBuilder::new(view, node).fuse(conv, operands)
}

#[cfg(test)]
mod tests {
    use crate::ops::{Activation, Conv, WindowAxis};
    use crate::passes::fuse_chain::run;
    use crate::passes::testing::{TestGraphBuilder, after};
    use crate::{Dim, TensorId, Value};

    fn conv(s: &mut TestGraphBuilder, x: TensorId) -> TensorId {
        let axis = WindowAxis {
            size: 1,
            stride: 1,
            dilation: 1,
            before: 0,
            after: 0,
        };
        let op = Conv {
            axes: vec![axis],
            groups: 1,
            activation: None,
        };
        let weight = s.value(&Value::f32([2, 2, 1], vec![1.0, 2.0, 3.0, 4.0]));
        s.op(op, &[x, weight])
    }

    #[test]
    fn a_batch_norm_a_residual_and_an_activation_are_fused() {
        let mut s = TestGraphBuilder::new();
        let x = s.input("x", [Dim::from(1), 2.into(), 5.into()]);
        let y = conv(&mut s, x);
        let scale = s.value(&Value::f32([2, 1], vec![10.0, 100.0]));
        let y = s.mul(y, scale);
        let shift = s.value(&Value::f32([1, 2, 1], vec![0.5, -0.5]));
        let y = s.add(shift, y);
        let y = s.add(x, y);
        let y = s.unary(Activation::Relu, y);
        let graph = s.finish(&[y]);
        let text = after(graph, run);
        let fused = text.lines().find(|line| line.contains("conv(")).unwrap();
        assert!(
            fused.contains(", x)") && fused.contains("activation: relu"),
            "{text}"
        );
        assert!(!text.contains("mul(") && !text.contains("add("), "{text}");
    }

    #[test]
    fn what_others_read_stays() {
        let mut s = TestGraphBuilder::new();
        let x = s.input("x", [Dim::from(1), 2.into(), 5.into()]);
        let y = conv(&mut s, x);
        let z = s.unary(Activation::Relu, y);
        let text = after(s.finish(&[y, z]), run);
        assert!(text.contains("unary("), "{text}");
    }
}
