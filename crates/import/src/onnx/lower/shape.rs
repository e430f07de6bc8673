//! Ops that rearrange elements.

use base::{Bytes, DType};
use graph::ops::{BinaryFunction, CompareFunction, Gather, GatherElements, Scalar, Slice};
use graph::{Dim, TensorId};

use super::call::Call;
use super::context::{OnnxLowering, Results};
use crate::lowering::{LoweringBuilder, MAX_CONSTANT_ELEMENTS};

/// The size by which `rest` must be multiplied to have as many elements as `all`.
fn remaining(all: &[Dim], rest: &[Dim]) -> Option<Dim> {
    let mut left = all.to_vec();
    let mut divisor = 1usize;
    for dim in rest {
        let (factor, symbolic) = dim.content();
        divisor = divisor.checked_mul(factor)?;
        if symbolic == Dim::from(1) {
            continue;
        }
        let at = left.iter().position(|d| d.content().1 == symbolic)?;
        left[at] = Dim::from(left[at].content().0);
    }
    Dim::product(&left)?.checked_div(divisor)
}

pub(super) fn reshape(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.operand(call, 0)?;
    let wanted = match call.ints("shape")? {
        Some(list) => list.iter().map(|n| Dim::constant(*n)).collect(),
        None => {
            let shape = lower.operand(call, 1)?;
            lower.sizes(shape)?
        }
    };
    let from = lower.shape(x);
    let keeps_zero = call.flag("allowzero", false)?;
    let mut shape = vec![];
    let mut open = None;
    for (axis, dim) in wanted.iter().enumerate() {
        shape.push(match dim.as_number() {
            Some(0) if !keeps_zero => *from
                .get(axis)
                .ok_or("copies a dimension that its operand does not have")?,
            Some(-1) if open.is_none() => {
                open = Some(axis);
                Dim::from(1)
            }
            Some(n) if n < 0 => return Err(format!("has the invalid size {n}")),
            _ => *dim,
        });
    }
    if let Some(axis) = open {
        let left = remaining(&from, &shape);
        shape[axis] = left.ok_or_else(|| format!("cannot reshape {from:?} to {wanted:?}"))?;
    }
    Ok(vec![lower.reshape(x, shape)?])
}

pub(super) fn flatten(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.operand(call, 0)?;
    let shape = lower.shape(x);
    let axis = call.int_or("axis", 1)?;
    let at = if axis < 0 {
        axis + shape.len() as i64
    } else {
        axis
    };
    let at = usize::try_from(at).ok().filter(|at| *at <= shape.len());
    let at = at.ok_or_else(|| format!("axis {axis} is out of range for {} axes", shape.len()))?;
    let joined = Dim::product(&shape[..at]).zip(Dim::product(&shape[at..]));
    let (outer, inner) = joined.ok_or("multiplies three dynamic sizes, which is not supported")?;
    Ok(vec![lower.reshape(x, vec![outer, inner])?])
}

/// Axes listed by an attribute or an operand, in ascending order.
pub(super) fn axes(list: &[i64], rank: usize) -> Result<Vec<usize>, String> {
    let axes = list.iter().map(|axis| LoweringBuilder::axis(*axis, rank));
    let mut axes = axes.collect::<Result<Vec<_>, _>>()?;
    axes.sort_unstable();
    axes.dedup();
    if axes.len() != list.len() || axes.iter().any(|axis| *axis >= rank) {
        return Err(format!(
            "axes {list:?} are not distinct axes of a tensor of rank {rank}"
        ));
    }
    Ok(axes)
}

pub(super) fn squeeze(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.operand(call, 0)?;
    let shape = lower.shape(x);
    let one = Dim::from(1);
    let gone = match lower.ints_of(call, "axes", 1)? {
        Some(list) => axes(&list, shape.len())?,
        // A dynamic size may be 1 in some runs.
        None if shape.iter().any(|size| size.as_const().is_none()) => {
            return Err(format!(
                "removes all axes of size 1, and {shape:?} has dynamic sizes"
            ));
        }
        None => (0..shape.len())
            .filter(|axis| shape[*axis] == one)
            .collect(),
    };
    if let Some(axis) = gone.iter().find(|axis| shape[**axis] != one) {
        return Err(format!("axis {axis} of {shape:?} is not of size 1"));
    }
    let kept = shape.iter().enumerate();
    let kept = kept
        .filter(|(axis, _)| !gone.contains(axis))
        .map(|(_, d)| *d);
    let kept = kept.collect();
    Ok(vec![lower.reshape(x, kept)?])
}

pub(super) fn unsqueeze(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.operand(call, 0)?;
    let list = lower.ints_of(call, "axes", 1)?.ok_or("has no axes")?;
    let mut shape = lower.shape(x);
    let rank = shape
        .len()
        .checked_add(list.len())
        .ok_or("has too many axes")?;
    for axis in axes(&list, rank)? {
        shape.insert(axis, Dim::from(1));
    }
    Ok(vec![lower.reshape(x, shape)?])
}

pub(super) fn transpose(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.operand(call, 0)?;
    let rank = lower.rank(x);
    let order = match call.ints("perm")? {
        Some(list) => {
            let order = list.iter().map(|axis| LoweringBuilder::axis(*axis, rank));
            order.collect::<Result<Vec<_>, _>>()?
        }
        None => (0..rank).rev().collect(),
    };
    Ok(vec![lower.permute(x, order)?])
}

pub(super) fn expand(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.operand(call, 0)?;
    let wanted = lower.operand(call, 1)?;
    let wanted = lower.sizes(wanted)?;
    // Broadcasting is mutual: the target shape may have 1 where the tensor has a larger size.
    let mut shape = lower.shape(x);
    while shape.len() < wanted.len() {
        shape.insert(0, Dim::from(1));
    }
    let tail = shape.len() - wanted.len();
    for (to, dim) in shape[tail..].iter_mut().zip(wanted) {
        if *to == Dim::from(1) {
            *to = dim;
        } else if dim != Dim::from(1) && dim != *to {
            return Err(format!("{dim:?} does not broadcast to {to:?}"));
        }
    }
    Ok(vec![lower.expand(x, shape)?])
}

pub(super) fn tile(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.operand(call, 0)?;
    let times = lower.operand(call, 1)?;
    let times = lower.sizes(times)?;
    let shape = lower.shape(x);
    if times.len() != shape.len() {
        return Err(format!(
            "has {} repeats for {} axes",
            times.len(),
            shape.len()
        ));
    }
    // Every axis becomes two, of which the first is repeated.
    let (mut apart, mut repeated, mut result) = (vec![], vec![], vec![]);
    for (dim, times) in shape.iter().zip(&times) {
        apart.extend([Dim::from(1), *dim]);
        repeated.extend([*times, *dim]);
        result.push(
            dim.checked_mul(times)
                .ok_or("multiplies three dynamic sizes, which is not supported")?,
        );
    }
    let x = lower.reshape(x, apart)?;
    let x = lower.expand(x, repeated)?;
    Ok(vec![lower.reshape(x, result)?])
}

pub(super) fn concat(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let mut list = vec![];
    for index in 0..call.operands() {
        list.push(lower.operand(call, index)?);
    }
    let first = list.first().ok_or("has no operands")?;
    let axis = call.int("axis")?.ok_or("has no axis")?;
    let axis = LoweringBuilder::axis(axis, lower.rank(*first))?;
    Ok(vec![lower.concat(&list, axis)?])
}

pub(super) fn split(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.operand(call, 0)?;
    let axis = LoweringBuilder::axis(call.int_or("axis", 0)?, lower.rank(x))?;
    let size = *lower
        .shape(x)
        .get(axis)
        .ok_or("its operand is a scalar; it needs at least one axis")?;
    let parts = match (call.ints("split")?, lower.maybe(call, 1)?) {
        (Some(list), _) => list.iter().map(|n| Dim::constant(*n)).collect(),
        (None, Some(list)) => lower.sizes(list)?,
        (None, None) => {
            let count = call.results().max(1);
            match (size.checked_div(count), size.as_const()) {
                (Some(part), _) => vec![part; count],
                // The last part may be smaller.
                (None, Some(size)) => {
                    let part = size.div_ceil(count);
                    let last = size.checked_sub(part * (count - 1));
                    let last = last.ok_or("has more parts than elements")?;
                    let mut parts = vec![Dim::from(part); count - 1];
                    parts.push(Dim::from(last));
                    parts
                }
                _ => return Err("a size that is split into equal parts must be a constant".into()),
            }
        }
    };
    let mut start = Dim::from(0);
    let mut results = vec![];
    for len in parts {
        results.push(lower.slice(x, axis, start, len)?);
        start = start + len;
    }
    if start != size {
        return Err(format!(
            "its parts add up to {start:?}, but the axis has {size:?}"
        ));
    }
    Ok(results)
}

/// Converts a slice bound to an index from the start, clamped if the size is constant.
fn bound(at: Dim, size: Dim) -> Dim {
    let at = match at.as_number() {
        Some(n) if n < 0 => size + Dim::constant(n),
        _ => at,
    };
    match (at.as_number(), size.as_number()) {
        (Some(at), Some(size)) => Dim::constant(at.clamp(0, size)),
        (Some(at), None) if at < 0 => Dim::from(0),
        // Exporters write the largest integer of 32 or 64 bits for the end.
        (Some(at), None) if at >= i64::from(i32::MAX) => size,
        // A difference of sizes that may be negative.
        _ => at,
    }
}

pub(super) fn slice(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let mut x = lower.operand(call, 0)?;
    let rank = lower.rank(x);
    let list = |lower: &mut OnnxLowering<'_>,
                name: &str,
                index: usize|
     -> Result<Option<Vec<Dim>>, String> {
        if let Some(list) = call.ints(name)? {
            return Ok(Some(list.iter().map(|n| Dim::constant(*n)).collect()));
        }
        let id = lower.maybe(call, index)?;
        id.map(|id| lower.sizes(id)).transpose()
    };
    let starts = list(lower, "starts", 1)?.ok_or("has no starts")?;
    let ends = list(lower, "ends", 2)?.ok_or("has no ends")?;
    let along = lower.ints_of(call, "axes", 3)?;
    let along = along.unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = lower.ints_of(call, "steps", 4)?;
    let steps = steps.unwrap_or_else(|| vec![1; starts.len()]);
    if [ends.len(), along.len(), steps.len()] != [starts.len(); 3] {
        return Err("its starts, ends, axes and steps differ in length".into());
    }
    for (((start, end), axis), step) in starts.into_iter().zip(ends).zip(along).zip(steps) {
        let axis = LoweringBuilder::axis(axis, rank)?;
        let size = *lower
            .shape(x)
            .get(axis)
            .ok_or("its operand is a scalar; it needs at least one axis")?;
        x = match step {
            0 => return Err("its step is zero".into()),
            1.. => forward(
                lower,
                x,
                axis,
                [bound(start, size), bound(end, size)],
                step as usize,
            )?,
            _ => backward(lower, x, axis, [start, end], step)?,
        };
    }
    Ok(vec![x])
}

fn forward(
    lower: &mut OnnxLowering<'_>,
    x: TensorId,
    axis: usize,
    [start, end]: [Dim; 2],
    step: usize,
) -> Result<TensorId, String> {
    let size = lower.shape(x)[axis];
    let span = match (end - start).as_number() {
        Some(n) if n < 0 => Dim::from(0),
        _ => end - start,
    };
    if span == size && step == 1 {
        return Ok(x);
    }
    let len = match (step, span.as_const()) {
        (1, _) => span,
        (_, Some(n)) => Dim::from(n.div_ceil(step)),
        _ => span
            .checked_div(step)
            .ok_or("has a step other than 1 over a dynamic size, which is not supported")?,
    };
    let slice = Slice {
        axis,
        start,
        len,
        step,
    };
    lower.emit(slice, &[x])
}

/// A slice with a negative step, lowered to a gather with constant indices: the graph has no negative steps.
fn backward(
    lower: &mut OnnxLowering<'_>,
    x: TensorId,
    axis: usize,
    [start, end]: [Dim; 2],
    step: i64,
) -> Result<TensorId, String> {
    let size = lower.shape(x)[axis].as_const();
    let numbers = size.zip(start.as_number().zip(end.as_number()));
    let Some((size, (start, end))) = numbers.filter(|(size, _)| *size <= MAX_CONSTANT_ELEMENTS)
    else {
        return Err("reverses an axis of dynamic size, which is not supported".into());
    };
    let size = size as i64;
    let from_start = |at: i64| if at < 0 { at.saturating_add(size) } else { at };
    let start = from_start(start).clamp(-1, size - 1);
    let end = from_start(end).clamp(-1, size - 1);
    let distance = step.unsigned_abs();
    let distance = usize::try_from(distance).unwrap_or(usize::MAX);
    let places: Vec<i64> = (end + 1..=start).rev().step_by(distance).collect();
    let index = lower.constant(DType::I64, &[places.len()], Bytes::from_slice(&places))?;
    lower.emit(Gather { axis }, &[x, index])
}

pub(super) fn pad(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let mode = call.text("mode")?.unwrap_or("constant");
    let mut x = lower.operand(call, 0)?;
    let rank = lower.rank(x);
    let pads = lower.ints_of(call, "pads", 1)?.ok_or("has no pads")?;
    let value = match lower.maybe(call, 2)? {
        None => Scalar::F32(call.float_or("value", 0.0)?),
        Some(id) => {
            let dtype = lower.dtype(id);
            match lower.known(id).and_then(|known| known.constant(dtype)) {
                Some(graph::Data::F32(list)) if list.len() == 1 => Scalar::F32(list[0]),
                Some(graph::Data::I64(list)) if list.len() == 1 => Scalar::I64(list[0]),
                Some(graph::Data::I32(list)) if list.len() == 1 => Scalar::I64(list[0].into()),
                Some(graph::Data::Bool(list)) if list.len() == 1 => Scalar::Bool(list[0]),
                _ => return Err("its padding value must be a constant".into()),
            }
        }
    };
    let along = match lower.maybe(call, 3)? {
        Some(id) => lower.numbers(id)?,
        None => (0..rank as i64).collect(),
    };
    if pads.len() != 2 * along.len() {
        return Err(format!("has {} pads for {} axes", pads.len(), along.len()));
    }
    for (index, axis) in along.iter().enumerate() {
        let axis = LoweringBuilder::axis(*axis, rank)?;
        let pair = [pads[index], pads[along.len() + index]];
        x = match mode {
            "constant" => lower.pad_axis(x, axis, pair, value)?,
            mode => pad_with_own(lower, x, axis, pair, mode)?,
        };
    }
    Ok(vec![x])
}

/// Pads an axis with its own elements, lowered to a gather with constant indices.
fn pad_with_own(
    lower: &mut OnnxLowering<'_>,
    x: TensorId,
    axis: usize,
    [before, after]: [i64; 2],
    mode: &str,
) -> Result<TensorId, String> {
    if before <= 0 && after <= 0 {
        return lower.pad_axis(x, axis, [before, after], Scalar::F32(0.0));
    }
    // Implementations disagree on whether what is cut off is copied.
    if before < 0 || after < 0 {
        return Err(format!(
            "pads and crops an axis in the mode {mode:?}, which is not supported"
        ));
    }
    let size = lower.shape(x).get(axis).and_then(Dim::as_const);
    let size = size.and_then(|size| i64::try_from(size).ok());
    let size = size.ok_or("an axis padded with its own elements must have a constant size")?;
    let most = MAX_CONSTANT_ELEMENTS as i64;
    if size == 0 || [size, before, after].iter().any(|n| n.abs() > most) {
        return Err(format!(
            "cannot pad {size} elements by {before} and {after} in this mode"
        ));
    }
    let place = |at: i64| match mode {
        "edge" => Ok(at.clamp(0, size - 1)),
        "wrap" => Ok(at.rem_euclid(size)),
        // Reflection does not repeat the first and last element.
        "reflect" => {
            let period = (2 * (size - 1)).max(1);
            let at = at.rem_euclid(period);
            Ok(at.min(period - at).min(size - 1))
        }
        mode => Err(format!("the mode {mode:?} is not supported")),
    };
    let places = (-before..size + after).map(place);
    let places = places.collect::<Result<Vec<i64>, String>>()?;
    let index = lower.constant(DType::I64, &[places.len()], Bytes::from_slice(&places))?;
    lower.emit(Gather { axis }, &[x, index])
}

/// Reverses the first elements of an axis, a number of its own for each element of the batch.
pub(super) fn reverse_sequence(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.operand(call, 0)?;
    let lengths = lower.operand(call, 1)?;
    let shape = lower.shape(x);
    let rank = shape.len();
    let batch = LoweringBuilder::axis(call.int_or("batch_axis", 1)?, rank)?;
    let time = LoweringBuilder::axis(call.int_or("time_axis", 0)?, rank)?;
    if batch == time || rank < 2 {
        return Err("its batch and time axes must differ".into());
    }
    let along = |axis: usize| {
        let mut column = vec![Dim::from(1); rank];
        column[axis] = shape[axis];
        column
    };
    let lengths = lower.cast(lengths, DType::I64)?;
    let lengths = lower.reshape(lengths, along(batch))?;
    let places = lower.count_from(Dim::from(0), shape[time])?;
    let places = lower.reshape(places, along(time))?;
    let one = lower.scalar(Scalar::I64(1), DType::I64)?;
    let last = lower.binary(BinaryFunction::Sub, lengths, one)?;
    let mirrored = lower.binary(BinaryFunction::Sub, last, places)?;
    let within = lower.compare(CompareFunction::Lt, places, lengths)?;
    let index = lower.choose(within, mirrored, places)?;
    let index = lower.expand(index, shape)?;
    Ok(vec![
        lower.emit(GatherElements { axis: time }, &[x, index])?,
    ])
}
