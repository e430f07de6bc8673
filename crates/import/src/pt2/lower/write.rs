//! Sorting, and ops that write into a copy of their operand.

use base::DType;
use graph::ops::{BinaryFunction as B, Range, Scalar, Scatter, ScatterFunction as S};
use graph::{Dim, TensorId};

use super::call::{Call, SizeArg};
use super::context::Pt2Lowering;
use crate::lowering::LoweringBuilder;

type Results = Result<Vec<TensorId>, String>;

pub(super) fn topk(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.tensor(call, "self")?;
    let axis = LoweringBuilder::axis(call.int("dim", -1)?, lower.rank(x))?;
    let count = lower.dim(call.size("k")?.unwrap_or(SizeArg::Number(1)))?;
    let largest = call.flag("largest", true)?;
    Ok(lower.sorted(x, axis, count, largest)?.to_vec())
}

pub(super) fn sort(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.tensor(call, "self")?;
    let axis = LoweringBuilder::axis(call.int("dim", -1)?, lower.rank(x))?;
    let count = *lower.shape(x).get(axis).ok_or("its operand is a scalar")?;
    let descending = call.flag("descending", false)?;
    let [values, index] = lower.sorted(x, axis, count, descending)?;
    Ok(match call.op.starts_with("aten.argsort") {
        true => vec![index],
        false => vec![values, index],
    })
}

/// `x[i, :, j] = values`.
pub(super) fn index_put(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.tensor(call, "self")?;
    let dtype = lower.dtype(x);
    let values = lower.tensor(call, "values")?;
    let values = lower.cast(values, dtype)?;
    let function = match call.flag("accumulate", false)? {
        true => S::Add,
        false => S::Replace,
    };
    let rank = lower.rank(x);
    let (mut axes, mut indices) = (vec![], vec![]);
    for (axis, name) in call.tensors("indices")?.into_iter().enumerate() {
        let Some(name) = name else { continue };
        let id = lower.value(name)?;
        if lower.dtype(id) == DType::Bool {
            return masked(lower, x, axis, id, values, function);
        }
        axes.push(axis);
        indices.push(id);
    }
    let Some(&first) = axes.first() else {
        return Err("has no index".into());
    };
    if axes.iter().any(|axis| *axis >= rank) {
        return Err("has more indices than axes".into());
    }
    let rest: Vec<usize> = (0..rank).filter(|axis| !axes.contains(axis)).collect();
    let order: Vec<usize> = axes.iter().chain(&rest).copied().collect();
    let shape = lower.shape(x);
    // Indices in the middle stay there, and the values have their axes there too.
    let neighbours = axes.windows(2).all(|pair| pair[1] == pair[0] + 1);
    let mut values = values;
    if neighbours && first > 0 {
        let common = common_shape(lower, &indices)?;
        let dims = |axes: &[usize]| axes.iter().map(|axis| shape[*axis]).collect::<Vec<Dim>>();
        let full = [dims(&rest[..first]), common.clone(), dims(&rest[first..])].concat();
        values = lower.expand(values, full.clone())?;
        let order = (first..first + common.len())
            .chain(0..first)
            .chain(first + common.len()..full.len());
        values = lower.permute(values, order.collect())?;
    }
    let moved = lower.permute(x, order.clone())?;
    let mut operands = vec![moved];
    operands.extend(indices);
    operands.push(values);
    let written = lower.emit(Scatter { function }, &operands)?;
    Ok(vec![lower.permute(written, inverse(&order))?])
}

/// The shape that all indices broadcast to.
fn common_shape(lower: &Pt2Lowering<'_>, indices: &[TensorId]) -> Result<Vec<Dim>, String> {
    let rank = indices.iter().map(|id| lower.rank(*id)).max().unwrap_or(0);
    let mut common = vec![Dim::from(1); rank];
    for id in indices {
        let shape = lower.shape(*id);
        let tail = rank - shape.len();
        for (to, size) in common[tail..].iter_mut().zip(shape) {
            match *to == Dim::from(1) {
                true => *to = size,
                false if size == *to || size == Dim::from(1) => {}
                false => return Err("its indices do not broadcast".into()),
            }
        }
    }
    Ok(common)
}

/// `x[mask] = value`, for one value.
fn masked(
    lower: &mut Pt2Lowering<'_>,
    x: TensorId,
    axis: usize,
    mask: TensorId,
    value: TensorId,
    function: S,
) -> Results {
    let one = lower.shape(value).iter().all(|d| *d == Dim::from(1));
    if !one || axis != 0 || function != S::Replace {
        return Err("writes many values by a mask: use torch.where".into());
    }
    let value = lower.reshape(value, vec![])?;
    let mut shape = lower.shape(mask);
    shape.resize(lower.rank(x), Dim::from(1));
    let mask = lower.reshape(mask, shape)?;
    Ok(vec![lower.choose(mask, value, x)?])
}

/// How `scatter` and its relatives combine elements.
fn function(call: &Call<'_>) -> Result<S, String> {
    if call.op.starts_with("aten.scatter_add") {
        return Ok(S::Add);
    }
    if !call.flag("include_self", true)? {
        return Err("include_self=False is not supported".into());
    }
    Ok(match call.text("reduce")? {
        None => S::Replace,
        Some("add" | "sum") => S::Add,
        Some("multiply" | "prod") => S::Mul,
        Some("amax") => S::Max,
        Some("amin") => S::Min,
        Some(other) => return Err(format!("the reduction {other:?} is not supported")),
    })
}

pub(super) fn scatter(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.tensor(call, "self")?;
    let index = lower.tensor(call, "index")?;
    let axis = LoweringBuilder::axis(call.int("dim", 0)?, lower.rank(x))?;
    let dtype = lower.dtype(x);
    let mut values = match call.get("src") {
        Some(_) => lower.tensor(call, "src")?,
        None => lower.operand(call, "value", dtype)?,
    };
    values = lower.cast(values, dtype)?;
    // The values may be larger than the indices.
    for (at, size) in lower.shape(index).into_iter().enumerate() {
        let own = lower.shape(values).get(at).copied();
        if own.is_some_and(|own| own != size) {
            values = lower.slice(values, at, Dim::from(0), size)?;
        }
    }
    let function = function(call)?;
    Ok(vec![
        lower.scatter_elements(x, axis, index, values, function)?,
    ])
}

/// `index_copy`, `index_add` and `index_fill`: whole slices along an axis.
pub(super) fn index_write(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.tensor(call, "self")?;
    let index = lower.tensor(call, "index")?;
    let (rank, dtype) = (lower.rank(x), lower.dtype(x));
    let axis = LoweringBuilder::axis(call.int("dim", 0)?, rank)?;
    let order: Vec<usize> = [axis]
        .into_iter()
        .chain((0..rank).filter(|i| *i != axis))
        .collect();
    let mut values = match call.get("source") {
        Some(_) => {
            let source = lower.tensor(call, "source")?;
            lower.permute(source, order.clone())?
        }
        None => lower.operand(call, "value", dtype)?,
    };
    let function = match call.op.starts_with("aten.index_add") {
        true => S::Add,
        false => S::Replace,
    };
    let alpha = call.number("alpha", Scalar::I64(1))?;
    if alpha.to_f32() != 1.0 {
        values = lower.with_number(B::Mul, values, alpha.to_f32())?;
    }
    let values = lower.cast(values, dtype)?;
    let moved = lower.permute(x, order.clone())?;
    let written = lower.emit(Scatter { function }, &[moved, index, values])?;
    Ok(vec![lower.permute(written, inverse(&order))?])
}

/// `slice_scatter` and `select_scatter`: the parts of the operand before and after, and the new part between them.
pub(super) fn slice_scatter(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.tensor(call, "self")?;
    let source = lower.tensor(call, "src")?;
    let dtype = lower.dtype(x);
    let mut source = lower.cast(source, dtype)?;
    let axis = LoweringBuilder::axis(call.int("dim", 0)?, lower.rank(x))?;
    let size = *lower.shape(x).get(axis).ok_or("its operand is a scalar")?;
    let one = call.op.starts_with("aten.select_scatter");
    let step = usize::try_from(call.int("step", 1)?).map_err(|_| "goes backwards")?;
    let start = match call.size(if one { "index" } else { "start" })? {
        None => Dim::from(0),
        Some(SizeArg::Number(n)) if one && n < 0 => size + Dim::constant(n),
        Some(at) if one => lower.dim(at)?,
        Some(at) => super::shape::from_start(lower, size, at)?,
    };
    if one {
        let mut shape = lower.shape(source);
        shape.insert(axis.min(shape.len()), Dim::from(1));
        source = lower.reshape(source, shape)?;
    }
    Ok(vec![with_steps(lower, x, axis, start, step, source)?])
}

/// `x` with `part` at every `step`-th place from `start` on along an axis.
pub(super) fn with_steps(
    lower: &mut Pt2Lowering<'_>,
    x: TensorId,
    axis: usize,
    start: Dim,
    step: usize,
    part: TensorId,
) -> Result<TensorId, String> {
    if step == 1 {
        return with_part(lower, x, axis, start, part);
    }
    let rank = lower.rank(x);
    let len = lower.shape(part).get(axis).copied();
    let range = Range {
        start,
        step: i64::try_from(step).map_err(|_| "its step is too large")?,
        len: len.ok_or("its source has too few axes")?,
        dtype: DType::I64,
    };
    let index = lower.emit(range, &[])?;
    let mut order: Vec<usize> = (0..rank).collect();
    order.remove(axis);
    order.insert(0, axis);
    let part = lower.permute(part, order.clone())?;
    let moved = lower.permute(x, order.clone())?;
    let function = S::Replace;
    let written = lower.emit(Scatter { function }, &[moved, index, part])?;
    lower.permute(written, inverse(&order))
}

/// The permutation that undoes another.
pub(super) fn inverse(order: &[usize]) -> Vec<usize> {
    let mut back = vec![0; order.len()];
    for (to, from) in order.iter().enumerate() {
        back[*from] = to;
    }
    back
}

/// `x` with `part` from `start` on along an axis.
pub(super) fn with_part(
    lower: &mut Pt2Lowering<'_>,
    x: TensorId,
    axis: usize,
    start: Dim,
    part: TensorId,
) -> Result<TensorId, String> {
    let size = *lower.shape(x).get(axis).ok_or("its operand is a scalar")?;
    let len = lower.shape(part).get(axis).copied();
    let end = start + len.ok_or("its source has too few axes")?;
    let mut parts = vec![];
    if start != Dim::from(0) {
        parts.push(lower.slice(x, axis, Dim::from(0), start)?);
    }
    parts.push(part);
    if end != size {
        parts.push(lower.slice(x, axis, end, size - end)?);
    }
    lower.concat(&parts, axis)
}

pub(super) fn copy(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let (x, source) = (lower.tensor(call, "self")?, lower.tensor(call, "src")?);
    let (dtype, shape) = (lower.dtype(x), lower.shape(x));
    let source = lower.cast(source, dtype)?;
    Ok(vec![lower.expand(source, shape)?])
}
