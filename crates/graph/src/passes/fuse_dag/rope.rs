//! The decomposed rotary embedding: `t · cos + cat(−t[half:], t[:half]) · sin`.

use crate::graph::Node;
use crate::ops::{
    BinaryFunction, Cast, Op, Permute, Reshape, Rope, RopeLayout, RopeTable, UnaryFunction,
};
use crate::passes::rewrite::{GraphView, Patch, PatchBuilder};
use crate::{Dim, TensorId};
use base::DType;

/// Replaces the rotation of `t [1, .., H, T, D]`, whose `cos` and `sin` are computed from positions and frequencies, by
/// [`Rope`] on `[T, H, D]` between two permutes. These usually cancel with the permutes of the model.
pub(super) fn rope(view: &GraphView<'_>, node: &Node) -> Option<Patch> {
    let mut ways = view.either(node.output, BinaryFunction::Add);
    let (t, angles, magnitude) = ways.find_map(|(kept, turned)| {
        let (t, rotated, cos, sin) = rotation(view, kept, turned)?;
        debug_assert_ne!(t, rotated);
        let cosines = TrigFactor::of(view, cos, UnaryFunction::Cos)?;
        let sines = TrigFactor::of(view, sin, UnaryFunction::Sin)?;
        let fit = cosines.magnitude == sines.magnitude && view.same(cosines.angles, sines.angles);
        fit.then_some((t, cosines.angles, cosines.magnitude))
    })?;
    let Angles {
        position,
        frequency,
    } = Angles::of(view, angles)?;
    let &[ref ones @ .., heads, tokens, dim] = view.shape(t) else {
        return None;
    };
    let frequencies = view
        .shape(frequency)
        .iter()
        .try_fold(1, |n, d| Some(n * d.as_const()?))?;
    if ones.iter().any(|d| *d != Dim::from(1)) || dim.as_const() != Some(2 * frequencies) {
        return None;
    }
    let mut patch = PatchBuilder::new(view, node);
    let position = patch.node(
        Reshape {
            shape: vec![tokens],
        },
        &[position],
    )?;
    let shape = vec![Dim::from(frequencies)];
    let frequency = patch.node(Reshape { shape }, &[frequency])?;
    let table = patch.node(RopeTable { magnitude }, &[position, frequency])?;
    let shape = vec![heads, tokens, dim];
    let swap = Permute {
        axes: vec![1, 0, 2],
    };
    let x = patch.node(Reshape { shape }, &[t])?;
    let x = patch.node(swap.clone(), &[x])?;
    let layout = RopeLayout::Halves;
    let x = patch.node(Rope { layout }, &[x, table])?;
    let x = patch.node(swap, &[x])?;
    let shape = view.shape(t).to_vec();
    // Angles are shared by many rotations, so other readers are allowed.
    patch.replace(Reshape { shape }, &[x])
}

/// Matches `t · cos + swapped · sin`: `t`, `t` with swapped halves, and the factors of both.
fn rotation(
    view: &GraphView<'_>,
    kept: TensorId,
    turned: TensorId,
) -> Option<(TensorId, TensorId, TensorId, TensorId)> {
    view.either(turned, BinaryFunction::Mul)
        .find_map(|(swapped, sin)| {
            let t = swapped_halves(view, swapped)?;
            let mut ways = view.either(kept, BinaryFunction::Mul);
            let (_, cos) = ways.find(|(x, _)| *x == t)?;
            Some((t, swapped, cos, sin))
        })
}

/// Matches `cat(−t[half:], t[:half])` along the last axis and returns `t`.
fn swapped_halves(view: &GraphView<'_>, id: TensorId) -> Option<TensorId> {
    let (Op::Concat(op), &[negated, first]) = view.defining_op(id)? else {
        return None;
    };
    let second = view.unary(negated, UnaryFunction::Neg)?;
    let half = |id: TensorId| match view.defining_op(id)? {
        (Op::Slice(op), &[t]) if op.step == 1 => {
            Some((t, op.axis, op.start.as_const()?, op.len.as_const()?))
        }
        _ => None,
    };
    let ((t, axis, start, len), other) = (half(second)?, half(first)?);
    let last = view.rank(t) - 1;
    let dim = view.shape(t)[last].as_const()?;
    let halves = start * 2 == dim && len * 2 == dim && other == (t, axis, 0, len);
    (halves && axis == last && op.axis == last).then_some(t)
}

/// Matches `magnitude · cos(angles)` or `magnitude · sin(angles)`, with the angles repeated for both halves of a head.
struct TrigFactor {
    angles: TensorId,
    magnitude: f32,
}

impl TrigFactor {
    fn of(view: &GraphView<'_>, id: TensorId, function: UnaryFunction) -> Option<TrigFactor> {
        let id = plain(view, id);
        let (magnitude, wave) = view.scaled(id).unwrap_or((1.0, id));
        let wave = plain(view, wave);
        let doubled = |id: TensorId| match view.defining_op(id) {
            Some((Op::Concat(op), &[a, b])) if op.axis + 1 == view.rank(id) && view.same(a, b) => {
                Some(plain(view, a))
            }
            _ => None,
        };
        // The halves are concatenated before or after the function.
        let angles = match view.unary(wave, function) {
            Some(angles) => doubled(plain(view, angles))?,
            None => view
                .unary(doubled(wave)?, function)
                .map(|a| plain(view, a))?,
        };
        Some(TrigFactor { angles, magnitude })
    }
}

/// Matches the outer product `position · frequency`, with frequencies along the last axis.
struct Angles {
    position: TensorId,
    frequency: TensorId,
}

impl Angles {
    fn of(view: &GraphView<'_>, id: TensorId) -> Option<Angles> {
        // As a matrix product of depth 1, possibly transposed, or elementwise.
        if let (Op::Permute(op), &[turned]) = view.defining_op(id)? {
            let rank = op.axes.len();
            let is_transpose = rank >= 2 && *op == Permute::transpose(rank);
            let (Op::MatMul(_), &[frequency, position]) =
                view.defining_op(turned).filter(|_| is_transpose)?
            else {
                return None;
            };
            return Angles::pair(view, position, frequency);
        }
        match view.defining_op(id)? {
            (Op::MatMul(op), &[position, frequency]) if op.alpha == 1.0 => {
                Angles::pair(view, position, frequency)
            }
            (Op::Linear(_), &[position, weight]) => Angles::pair(view, position, weight),
            _ => view
                .either(id, BinaryFunction::Mul)
                .find_map(|(position, frequency)| Angles::pair(view, position, frequency)),
        }
    }

    fn pair(view: &GraphView<'_>, position: TensorId, frequency: TensorId) -> Option<Angles> {
        let long = |id: TensorId| {
            let axes = view.shape(id).iter();
            axes.filter(|d| **d != Dim::from(1)).count()
        };
        let (position, frequency) = (integers(view, position)?, plain(view, frequency));
        let fits = view.is_constant(frequency) && long(frequency) == 1 && long(position) <= 1;
        fits.then_some(Angles {
            position,
            frequency,
        })
    }
}

/// The integer tensor before its cast to f32.
fn integers(view: &GraphView<'_>, id: TensorId) -> Option<TensorId> {
    let id = plain(view, id);
    let (Op::Cast(Cast { to: DType::F32 }), &[x]) = view.defining_op(id)? else {
        return None;
    };
    let is_integer = matches!(view.ty(x).dtype, DType::I32 | DType::I64);
    is_integer.then(|| plain(view, x))
}

/// The tensor before reshapes and expands that only add or drop axes of size one.
fn plain(view: &GraphView<'_>, id: TensorId) -> TensorId {
    let long = |id: TensorId| -> Vec<Dim> {
        let axes = view.shape(id).iter();
        axes.filter(|d| **d != Dim::from(1)).copied().collect()
    };
    match view.defining_op(id) {
        Some((Op::Reshape(_) | Op::Expand(_), &[x])) if long(x) == long(id) => plain(view, x),
        _ => id,
    }
}
