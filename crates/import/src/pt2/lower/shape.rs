//! Ops that rearrange elements.

use graph::ops::{BinaryFunction, Scalar, Slice};
use graph::{Dim, TensorId};

use super::call::{Call, SizeArg};
use super::context::Pt2Lowering;
use super::pads;
use crate::lowering::{LoweringBuilder, elements};

type Results = Result<Vec<TensorId>, String>;

/// All ops that only change the shape, which the file states for the result.
pub(super) fn reshape(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.tensor(call, "self")?;
    let shape = lower.result_shape(call, 0)?;
    if lower.result_dtype(call, 0)? != lower.dtype(x) {
        return Err("reinterprets elements as another type, which is not supported".into());
    }
    Ok(vec![lower.reshape(x, shape)?])
}

/// All ops that only change the order of the axes.
pub(super) fn permute(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.tensor(call, "self")?;
    let name = call.op.split('.').nth(1).unwrap_or_default();
    let order = order(call, name, lower.rank(x))?.ok_or("has no order of axes")?;
    let swaps = order == [1, 0];
    let moved = lower.permute(x, order)?;
    note_transposed(lower, call, moved, swaps)?;
    Ok(vec![moved])
}

/// The axes of the operand in the order in which the result of the op has them; `None` for ops that do more than that.
pub(super) fn order(
    call: &Call<'_>,
    name: &str,
    rank: usize,
) -> Result<Option<Vec<usize>>, String> {
    let axis = |axis: i64| LoweringBuilder::axis(axis, rank);
    let list = |name: &str| -> Result<Vec<usize>, String> {
        let list = call.ints(name)?.ok_or_else(|| format!("has no {name}"))?;
        list.iter().map(|n| axis(*n)).collect()
    };
    let mut order: Vec<usize> = (0..rank).collect();
    match name {
        "permute" => {
            order = list("dims")?;
            let mut sorted = order.clone();
            sorted.sort_unstable();
            if sorted.iter().copied().ne(0..rank) {
                return Err("its dims are not all axes, each once".into());
            }
        }
        "transpose" | "swapaxes" | "swapdims" => {
            let a = axis(call.int("dim0", call.int("axis0", 0)?)?)?;
            let b = axis(call.int("dim1", call.int("axis1", 0)?)?)?;
            if a.max(b) < rank {
                order.swap(a, b);
            }
        }
        "numpy_T" => order.reverse(),
        "t" | "mT" | "mH" | "adjoint" | "matrix_H" => {
            if rank >= 2 {
                order.swap(rank - 2, rank - 1);
            }
        }
        "movedim" | "moveaxis" => {
            let (from, to) = (list("source")?, list("destination")?);
            let mut places: Vec<Option<usize>> = vec![None; rank];
            for (from, to) in from.iter().zip(&to) {
                *places.get_mut(*to).ok_or("an axis is out of range")? = Some(*from);
            }
            let mut rest = (0..rank).filter(|axis| !from.contains(axis));
            let places = places.into_iter().map(|axis| axis.or_else(|| rest.next()));
            order = places
                .collect::<Option<Vec<_>>>()
                .ok_or("an axis is listed twice")?;
        }
        _ => return Ok(None),
    }
    Ok(Some(order))
}

/// Remembers the transpose of a stored 16-bit matrix, so that a product with it reads the matrix as stored.
fn note_transposed(
    lower: &mut Pt2Lowering<'_>,
    call: &Call<'_>,
    moved: TensorId,
    swaps: bool,
) -> Result<(), String> {
    let name = call.tensor("self")?;
    let stored = lower.stored(name);
    if swaps && stored.is_some_and(|stored| stored.half().is_some()) {
        lower.transposed_halves.insert(moved, name.to_owned());
    }
    Ok(())
}

pub(super) fn expand(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.tensor(call, "self")?;
    let shape = lower.result_shape(call, 0)?;
    Ok(vec![lower.expand(x, shape)?])
}

pub(super) fn repeat(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.tensor(call, "self")?;
    let times = match call.ints("repeats")? {
        Some(times) => times,
        None => call.ints("dims")?.ok_or("has no repeats")?,
    };
    let result = lower.result_shape(call, 0)?;
    let mut shape = lower.shape(x);
    while shape.len() < result.len() {
        shape.insert(0, Dim::from(1));
    }
    let mut factors = vec![1; shape.len().saturating_sub(times.len())];
    for n in times {
        factors.push(usize::try_from(n).map_err(|_| format!("repeats {n} times"))?);
    }
    // Every axis becomes two, of which the first is repeated.
    let pairs = |lead: &dyn Fn(usize) -> Dim| {
        let axes = shape.iter().enumerate();
        axes.flat_map(|(i, d)| [lead(i), *d]).collect::<Vec<_>>()
    };
    let (apart, repeated) = (pairs(&|_| Dim::from(1)), pairs(&|i| Dim::from(factors[i])));
    let x = lower.reshape(x, apart)?;
    let x = lower.expand(x, repeated)?;
    Ok(vec![lower.reshape(x, result)?])
}

pub(super) fn repeat_interleave(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let mut x = lower.tensor(call, "self")?;
    let times = usize::try_from(call.int("repeats", 1)?).map_err(|_| "repeats less than once")?;
    let axis = match call.get("dim") {
        Some(_) => LoweringBuilder::axis(call.int("dim", 0)?, lower.rank(x))?,
        None => {
            let all = elements(&lower.shape(x))?;
            x = lower.reshape(x, vec![Dim::from(all)])?;
            0
        }
    };
    let mut apart = lower.shape(x);
    apart.insert(axis + 1, Dim::from(1));
    let mut repeated = apart.clone();
    repeated[axis + 1] = Dim::from(times);
    let result = lower.result_shape(call, 0)?;
    let x = lower.reshape(x, apart)?;
    let x = lower.expand(x, repeated)?;
    Ok(vec![lower.reshape(x, result)?])
}

/// The tensors of a list, promoted to one type.
fn list(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Result<Vec<TensorId>, String> {
    let names = call.tensors("tensors")?;
    let dtype = lower.result_dtype(call, 0)?;
    let mut ids = vec![];
    for name in names.into_iter().flatten() {
        let x = lower.value(name)?;
        ids.push(lower.cast(x, dtype)?);
    }
    Ok(ids)
}

pub(super) fn cat(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let mut list = list(lower, call)?;
    let rank = list.iter().map(|x| lower.rank(*x)).max().unwrap_or(0);
    let axis = LoweringBuilder::axis(call.int("dim", 0)?, rank)?;
    // PyTorch ignores empty vectors here, whatever the rank of the others.
    if rank > 1 {
        list.retain(|x| lower.rank(*x) != 1 || lower.shape(*x)[0] != Dim::from(0));
    }
    Ok(vec![lower.concat(&list, axis)?])
}

pub(super) fn stack(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let list = list(lower, call)?;
    let rank = list.first().map_or(0, |x| lower.rank(*x)) + 1;
    let axis = LoweringBuilder::axis(call.int("dim", 0)?, rank)?;
    let mut apart = vec![];
    for x in list {
        let mut shape = lower.shape(x);
        if axis > shape.len() {
            return Err("its tensors differ in rank".into());
        }
        shape.insert(axis, Dim::from(1));
        apart.push(lower.reshape(x, shape)?);
    }
    Ok(vec![lower.concat(&apart, axis)?])
}

/// All ops that split along one axis; the file states the sizes of the parts.
pub(super) fn split(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.tensor(call, "self")?;
    let axis = LoweringBuilder::axis(call.int("dim", 0)?, lower.rank(x))?;
    let mut start = Dim::from(0);
    let mut parts = vec![];
    for index in 0..call.results().len() {
        let shape = lower.result_shape(call, index)?;
        let len = *shape
            .get(axis)
            .ok_or("the file states too few axes for a part")?;
        parts.push(lower.slice(x, axis, start, len)?);
        start = start + len;
    }
    Ok(parts)
}

pub(super) fn unbind(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.tensor(call, "self")?;
    let axis = LoweringBuilder::axis(call.int("dim", 0)?, lower.rank(x))?;
    let mut parts = vec![];
    for index in 0..call.results().len() {
        parts.push(pick(lower, x, axis, Dim::from(index))?);
    }
    Ok(parts)
}

/// Selects one index of an axis and removes the axis.
fn pick(
    lower: &mut Pt2Lowering<'_>,
    x: TensorId,
    axis: usize,
    at: Dim,
) -> Result<TensorId, String> {
    let one = lower.slice(x, axis, at, Dim::from(1))?;
    let mut shape = lower.shape(one);
    shape.remove(axis);
    lower.reshape(one, shape)
}

/// Converts a bound to an index from the start; `None` means the end of the axis.
pub(super) fn from_start(
    lower: &Pt2Lowering<'_>,
    size: Dim,
    bound: SizeArg<'_>,
) -> Result<Dim, String> {
    let at = match bound {
        SizeArg::Number(n) if n < 0 => size + Dim::constant(n),
        bound => lower.dim(bound)?,
    };
    // If the size is constant, bounds are clamped as in Python.
    Ok(match size.as_const() {
        Some(size) if at.as_const().is_none_or(|at| at > size) => match bound {
            SizeArg::Number(n) if n < 0 => Dim::from(0),
            SizeArg::Number(_) => Dim::from(size),
            SizeArg::Name(_) => at,
        },
        _ => at,
    })
}

pub(super) fn slice(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.tensor(call, "self")?;
    let axis = LoweringBuilder::axis(call.int("dim", 0)?, lower.rank(x))?;
    let size = *lower
        .shape(x)
        .get(axis)
        .ok_or("its operand is a scalar; it needs at least one axis")?;
    let start = match call.size("start")? {
        Some(bound) => from_start(lower, size, bound)?,
        None => Dim::from(0),
    };
    let step = usize::try_from(call.int("step", 1)?).map_err(|_| "goes backwards")?;
    // The file states the length of the result.
    let len = lower.result_shape(call, 0)?.get(axis).copied();
    let len = len.ok_or("the file states too few axes for its result")?;
    if len == size && start == Dim::from(0) && step == 1 {
        return Ok(vec![x]);
    }
    let slice = Slice {
        axis,
        start,
        len,
        step,
    };
    Ok(vec![lower.emit(slice, &[x])?])
}

pub(super) fn narrow(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.tensor(call, "self")?;
    let axis = LoweringBuilder::axis(call.int("dim", 0)?, lower.rank(x))?;
    let size = *lower
        .shape(x)
        .get(axis)
        .ok_or("its operand is a scalar; it needs at least one axis")?;
    let start = from_start(lower, size, call.size("start")?.ok_or("has no start")?)?;
    let len = lower.dim(call.size("length")?.ok_or("has no length")?)?;
    Ok(vec![lower.slice(x, axis, start, len)?])
}

pub(super) fn select(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.tensor(call, "self")?;
    let axis = LoweringBuilder::axis(call.int("dim", 0)?, lower.rank(x))?;
    let size = *lower
        .shape(x)
        .get(axis)
        .ok_or("its operand is a scalar; it needs at least one axis")?;
    let at = match call.size("index")?.ok_or("has no index")? {
        SizeArg::Number(n) if n < 0 => size + Dim::constant(n),
        at => lower.dim(at)?,
    };
    Ok(vec![pick(lower, x, axis, at)?])
}

pub(super) fn flip(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let mut x = lower.tensor(call, "self")?;
    let rank = lower.rank(x);
    for axis in call.ints("dims")?.unwrap_or_default() {
        let axis = LoweringBuilder::axis(axis, rank)?;
        x = lower.reversed(x, axis)?;
    }
    Ok(vec![x])
}

pub(super) fn roll(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let mut x = lower.tensor(call, "self")?;
    let rank = lower.rank(x);
    let shifts = call.ints("shifts")?.unwrap_or_default();
    let dims = call.ints("dims")?.unwrap_or_default();
    if dims.len() != shifts.len() {
        return Err("rolls the flattened tensor, which is not supported; state dims".into());
    }
    for (shift, axis) in shifts.iter().zip(dims) {
        let axis = LoweringBuilder::axis(axis, rank)?;
        let size = lower.shape(x).get(axis).and_then(Dim::as_const);
        let size = size.filter(|size| *size > 0);
        let size = size.ok_or("an axis that is rolled must have a constant size")?;
        let shift = shift.rem_euclid(size as i64) as usize;
        if shift > 0 {
            let tail = lower.slice(x, axis, Dim::from(size - shift), Dim::from(shift))?;
            let head = lower.slice(x, axis, Dim::from(0), Dim::from(size - shift))?;
            x = lower.concat(&[tail, head], axis)?;
        }
    }
    Ok(vec![x])
}

pub(super) fn pad(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    match call.text("mode")? {
        None | Some("constant") => {}
        Some("reflect") => return pads::pad(lower, call, pads::Border::Reflect),
        Some("replicate") => return pads::pad(lower, call, pads::Border::Replicate),
        Some("circular") => return pads::pad(lower, call, pads::Border::Circular),
        Some(other) => return Err(format!("padding {other:?} is not supported")),
    }
    let mut x = lower.tensor(call, "self")?;
    let value = call.number("value", Scalar::I64(0))?;
    let pads = call.ints("pad")?.ok_or("has no pad")?;
    for (pair, axis) in pads.chunks_exact(2).zip((0..lower.rank(x)).rev()) {
        x = lower.pad_axis(x, axis, [pair[0], pair[1]], value)?;
    }
    Ok(vec![x])
}

pub(super) fn diff(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    if call.int("n", 1)? != 1 {
        return Err("only differences of order 1 are supported".into());
    }
    let x = lower.tensor(call, "self")?;
    let axis = LoweringBuilder::axis(call.int("dim", -1)?, lower.rank(x))?;
    let mut list = vec![x];
    if let Some(before) = lower.maybe_tensor(call, "prepend")? {
        list.insert(0, before);
    }
    list.extend(lower.maybe_tensor(call, "append")?);
    let x = lower.concat(&list, axis)?;
    let len = *lower
        .shape(x)
        .get(axis)
        .ok_or("its operand is a scalar; it needs at least one axis")?
        - Dim::from(1);
    let later = lower.slice(x, axis, Dim::from(1), len)?;
    let earlier = lower.slice(x, axis, Dim::from(0), len)?;
    Ok(vec![lower.binary(BinaryFunction::Sub, later, earlier)?])
}
