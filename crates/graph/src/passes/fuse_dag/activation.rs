//! GELU in both forms, SiLU, the hard swish, and gates.

use super::product::{FactoredProduct, close};
use crate::TensorId;
use crate::graph::Node;
use crate::ops::{Activation, BinaryFunction, Gated, Op, Unary, UnaryFunction};
use crate::passes::rewrite::{GraphView, Patch, PatchBuilder};
use std::f32::consts::{FRAC_1_SQRT_2, FRAC_2_PI};

/// Coefficient of the cubic term in GELU's tanh approximation.
const CUBE: f32 = 0.044715;

/// `½ · x · (1 + tanh(√(2/π) · (x + 0.044715 · x³)))` and `½ · x · (1 + erf(x / √2))`.
pub(super) fn gelu(view: &GraphView<'_>, node: &Node) -> Option<Patch> {
    let leaves = FactoredProduct::of(view, node.output, &[]).factors;
    let (x, function) = leaves.into_iter().find_map(|sum| {
        let (one, inner) = view.shifted(sum)?;
        let (x, function) = inner_gelu(view, inner).filter(|_| one == 1.0)?;
        let whole = FactoredProduct::of(view, node.output, &[x]);
        whole.is(0.5, &[x, sum]).then_some((x, function))
    })?;
    let function = function.into();
    PatchBuilder::new(view, node).fuse(Unary { function }, &[x])
}

/// Matches the `tanh` or `erf` term of a GELU: its argument and the variant.
fn inner_gelu(view: &GraphView<'_>, id: TensorId) -> Option<(TensorId, Activation)> {
    if let Some(scaled) = view.unary(id, UnaryFunction::Erf) {
        let (factor, x) = view.scaled(scaled)?;
        return close(factor, FRAC_1_SQRT_2).then_some((x, Activation::GeluErf));
    }
    let argument = view.unary(id, Activation::Tanh)?;
    let FactoredProduct { factor, factors } = FactoredProduct::of(view, argument, &[]);
    if !close(factor, FRAC_2_PI.sqrt()) {
        return None;
    }
    let x = factors.into_iter().find_map(|sum| {
        // √(2/π) · (x + c · x³)
        let cubic = view.either(sum, BinaryFunction::Add).find_map(|(x, cube)| {
            let is_cube = FactoredProduct::of(view, cube, &[x]).is(CUBE, &[x; 3]);
            let alone = FactoredProduct::of(view, argument, &[sum]).factors == [sum];
            (is_cube && alone).then_some(x)
        });
        // √(2/π) · x · (1 + c · x²)
        cubic.or_else(|| {
            let (one, square) = view.shifted(sum)?;
            let squared = FactoredProduct::of(view, square, &[]);
            let &[x, _] = &squared.factors[..] else {
                return None;
            };
            let is_square = squared.is(CUBE, &[x; 2]) && one == 1.0;
            let with_x = FactoredProduct::of(view, argument, &[x]).is(factor, &[x, sum]);
            (is_square && with_x).then_some(x)
        })
    })?;
    Some((x, Activation::GeluTanh))
}

/// `x · sigmoid(x)`.
pub(super) fn silu(view: &GraphView<'_>, node: &Node) -> Option<Patch> {
    let is_silu =
        |(x, gate): &(TensorId, TensorId)| view.unary(*gate, Activation::Sigmoid) == Some(*x);
    let (x, _) = view
        .either(node.output, BinaryFunction::Mul)
        .find(is_silu)?;
    let function = Activation::Silu.into();
    PatchBuilder::new(view, node).fuse(Unary { function }, &[x])
}

/// `x · min(max(x + 3, 0), 6) / 6`, also with the division before the limits.
pub(super) fn hard_swish(view: &GraphView<'_>, node: &Node) -> Option<Patch> {
    let product = FactoredProduct::of(view, node.output, &[]);
    let &[a, b] = &product.factors[..] else {
        return None;
    };
    let x = [(a, b), (b, a)].into_iter().find_map(|(x, gate)| {
        let mut limited = view.either(gate, BinaryFunction::Min);
        let (top, low) = limited.find_map(|(low, top)| Some((view.scalar(top)?, low)))?;
        let mut limited = view.either(low, BinaryFunction::Max);
        let moved =
            limited.find_map(|(moved, zero)| (view.scalar(zero)? == 0.0).then_some(moved))?;
        let (shift, inner) = view.shifted(moved)?;
        let (slope, inner) = match inner == x {
            true => (1.0, x),
            false => view.scaled(inner)?,
        };
        let is_swish =
            close(product.factor * top, 1.0) && close(2.0 * shift, top) && close(6.0 * slope, top);
        (inner == x && is_swish).then_some(x)
    })?;
    let function = Activation::HardSwish.into();
    PatchBuilder::new(view, node).fuse(Unary { function }, &[x])
}

/// `activation(gate) · up`.
pub(super) fn gated(view: &GraphView<'_>, node: &Node) -> Option<Patch> {
    let mut ways = view.either(node.output, BinaryFunction::Mul);
    ways.find_map(|(gate, up)| {
        let (Op::Unary(Unary { function }), &[x]) = view.defining_op(gate)? else {
            return None;
        };
        let UnaryFunction::Activation(function) = *function else {
            return None;
        };
        if view.ty(x) != view.ty(up) || x == up {
            return None;
        }
        PatchBuilder::new(view, node).fuse(Gated { function }, &[x, up])
    })
}
