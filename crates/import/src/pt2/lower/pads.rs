//! Padding with the tensor's own elements, diagonals, distances and masked writes.

use base::{Bytes, DType};
use graph::ops::{
    BinaryFunction as B, CompareFunction as C, CumSum, Gather, Index, Range, Reduce,
    ReduceFunction as R, Scalar, UnaryFunction as U,
};
use graph::{Dim, TensorId};

use super::call::Call;
use super::context::Pt2Lowering;
use crate::lowering::{LoweringBuilder, MAX_CONSTANT_ELEMENTS};

type Results = Result<Vec<TensorId>, String>;

/// How an axis goes on beyond its ends.
#[derive(Clone, Copy)]
pub(super) enum Border {
    /// Mirrored at the outer elements, which are not repeated.
    Reflect,
    /// The outer element again and again.
    Replicate,
    /// From the other end.
    Circular,
}

/// The element of an axis of `size` that stands at a place, which may be outside.
fn source(border: Border, place: i64, size: i64) -> Option<i64> {
    let inside = match border {
        Border::Reflect if place < 0 => -place,
        Border::Reflect if place >= size => 2 * (size - 1) - place,
        Border::Reflect => place,
        Border::Replicate => place.clamp(0, size - 1),
        Border::Circular => place.rem_euclid(size),
    };
    (0..size).contains(&inside).then_some(inside)
}

/// Pads the last axes of `self`; the first pair is that of the last axis.
pub(super) fn pad(lower: &mut Pt2Lowering<'_>, call: &Call<'_>, border: Border) -> Results {
    let mut x = lower.tensor(call, "self")?;
    let name = if call.get("pad").is_some() {
        "pad"
    } else {
        "padding"
    };
    let pads = call.ints(name)?.ok_or("has no padding")?;
    for (pair, axis) in pads.chunks_exact(2).zip((0..lower.rank(x)).rev()) {
        let size = lower.shape(x)[axis].as_const();
        let size = size.filter(|size| (1..=MAX_CONSTANT_ELEMENTS).contains(size));
        let size = size.ok_or("an axis that is padded must have a constant size")? as i64;
        let limit = MAX_CONSTANT_ELEMENTS as i64;
        if pair.iter().any(|n| n.abs() > limit) {
            return Err("its padding is out of range".into());
        }
        let places = -pair[0]..size + pair[1];
        let indices: Option<Vec<i64>> = places.map(|at| source(border, at, size)).collect();
        let indices = indices.ok_or("pads by more than the axis has")?;
        let index = lower.constant(DType::I64, &[indices.len()], Bytes::from_slice(&indices))?;
        x = lower.emit(Gather { axis }, &[x, index])?;
    }
    Ok(vec![x])
}

pub(super) fn reflect(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    pad(lower, call, Border::Reflect)
}

pub(super) fn replicate(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    pad(lower, call, Border::Replicate)
}

/// The elements of two axes at equal places, or with a distance, as the last axis.
pub(super) fn diagonal(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.tensor(call, "self")?;
    let rank = lower.rank(x);
    let axis = |name, default| LoweringBuilder::axis(call.int(name, default)?, rank);
    let (first, second) = (axis("dim1", 0)?, axis("dim2", 1)?);
    if first == second || rank < 2 {
        return Err("needs two axes".into());
    }
    let offset = call.int("offset", 0)?;
    let len = lower.result_shape(call, 0)?.last().copied();
    let len = len.ok_or("the file states a scalar as its result")?;
    let rest = (0..rank).filter(|axis| *axis != first && *axis != second);
    let order: Vec<usize> = [first, second].into_iter().chain(rest).collect();
    let moved = lower.permute(x, order)?;
    let mut operands = vec![moved];
    for start in [(-offset).max(0), offset.max(0)] {
        let range = Range {
            start: Dim::constant(start),
            step: 1,
            len,
            dtype: DType::I64,
        };
        operands.push(lower.emit(range, &[])?);
    }
    let picked = lower.emit(Index, &operands)?;
    let order = (1..rank - 1).chain([0]).collect();
    Ok(vec![lower.permute(picked, order)?])
}

/// Distances between the rows of two lists of vectors.
pub(super) fn cdist(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let (a, b) = (lower.tensor(call, "x1")?, lower.tensor(call, "x2")?);
    let apart = |lower: &mut Pt2Lowering<'_>, x: TensorId, from_end: usize| {
        let mut shape = lower.shape(x);
        let at = shape.len().checked_sub(from_end);
        shape.insert(at.ok_or("has operands that are no matrices")?, Dim::from(1));
        lower.reshape(x, shape)
    };
    let (a, b) = (apart(lower, a, 1)?, apart(lower, b, 2)?);
    let away = lower.binary(B::Sub, a, b)?;
    let size = lower.unary(U::Abs, away)?;
    let axes = vec![lower.rank(size) - 1];
    let reduce = |lower: &mut Pt2Lowering<'_>, function: R, x: TensorId| {
        let reduce = Reduce {
            function,
            axes: axes.clone(),
            keep: false,
        };
        lower.emit(reduce, &[x])
    };
    Ok(vec![match call.float("p", 2.0)? {
        1.0 => reduce(lower, R::Sum, size)?,
        2.0 => {
            let squares = lower.binary(B::Mul, size, size)?;
            let sum = reduce(lower, R::Sum, squares)?;
            lower.unary(U::Sqrt, sum)?
        }
        f32::INFINITY => reduce(lower, R::Max, size)?,
        p if p > 0.0 => {
            let powers = lower.with_number(B::Pow, size, p)?;
            let sum = reduce(lower, R::Sum, powers)?;
            lower.with_number(B::Pow, sum, 1.0 / p)?
        }
        p => return Err(format!("distances of norm {p} are not supported")),
    }])
}

/// The elements of `source`, one after the other, where the mask is true.
pub(super) fn masked_scatter(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.tensor(call, "self")?;
    let (mask, source) = (lower.tensor(call, "mask")?, lower.tensor(call, "source")?);
    let shape = lower.shape(x);
    let all = |shape: &[Dim]| Dim::product(shape).ok_or("its sizes have too large a product");
    let mask = lower.expand(mask, shape.clone())?;
    let flat = lower.reshape(mask, vec![all(&shape)?])?;
    let ones = lower.cast(flat, DType::I64)?;
    let count = lower.emit(CumSum { axis: 0 }, &[ones])?;
    // The place among the elements that are written; zero before the first of them.
    let (one, zero) = (Scalar::I64(1), Scalar::I64(0));
    let (one, zero) = (
        lower.scalar(one, DType::I64)?,
        lower.scalar(zero, DType::I64)?,
    );
    let place = lower.binary(B::Sub, count, one)?;
    let written = lower.compare(C::Gt, ones, zero)?;
    let place = lower.choose(written, place, zero)?;
    let sources = all(&lower.shape(source))?;
    let source = lower.reshape(source, vec![sources])?;
    let values = lower.emit(Gather { axis: 0 }, &[source, place])?;
    let values = lower.reshape(values, shape)?;
    Ok(vec![lower.choose(mask, values, x)?])
}

/// The place at which a number would be inserted into sorted boundaries: that of the first one that is not below it or, with
/// `right`, above it.
pub(super) fn bucketize(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let (x, boundaries) = match call.get("boundaries") {
        Some(_) => (
            lower.tensor(call, "self")?,
            lower.tensor(call, "boundaries")?,
        ),
        None => (
            lower.tensor(call, "self")?,
            lower.tensor(call, "sorted_sequence")?,
        ),
    };
    if lower.rank(boundaries) != 1 || call.get("sorter").is_some() {
        return Err("only one list of sorted boundaries is supported".into());
    }
    let right = call.flag("right", false)? || call.text("side")? == Some("right");
    let mut column = lower.shape(x);
    column.push(Dim::from(1));
    let x = lower.reshape(x, column)?;
    let function = if right { C::Le } else { C::Lt };
    let below = lower.compare(function, boundaries, x)?;
    let below = lower.cast(below, DType::I64)?;
    let reduce = Reduce {
        function: R::Sum,
        axes: vec![lower.rank(below) - 1],
        keep: false,
    };
    Ok(vec![lower.emit(reduce, &[below])?])
}
