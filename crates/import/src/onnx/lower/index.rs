//! Gathers, writes by index, one-hot encoding and top-k.

use base::{Bytes, DType};
use graph::ops::{
    BinaryFunction, CompareFunction, Gather, GatherElements, Index, Scalar, Scatter,
    ScatterFunction, Slice,
};
use graph::{Data, DataSized, Dim, NonMaxSuppression, TensorId, Unique};

use super::call::Call;
use super::context::{OnnxLowering, Results};
use crate::lowering::LoweringBuilder;
use crate::stored_type::StoredType;

pub(super) fn gather(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let (x, index) = (lower.operand(call, 0)?, lower.operand(call, 1)?);
    let axis = LoweringBuilder::axis(call.int_or("axis", 0)?, lower.rank(x))?;
    Ok(vec![lower.emit(Gather { axis }, &[x, index])?])
}

pub(super) fn gather_elements(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let (x, index) = (lower.operand(call, 0)?, lower.operand(call, 1)?);
    let axis = LoweringBuilder::axis(call.int_or("axis", 0)?, lower.rank(x))?;
    Ok(vec![lower.emit(GatherElements { axis }, &[x, index])?])
}

pub(super) fn gather_nd(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let (x, index) = (lower.operand(call, 0)?, lower.operand(call, 1)?);
    let shape = lower.shape(index);
    let batches = call.count("batch_dims")?.unwrap_or(0);
    let width = shape.last().and_then(Dim::as_const).filter(|n| *n > 0);
    let all = width.and_then(|n| n.checked_add(batches));
    let fits = all.is_some_and(|n| n <= lower.rank(x)) && batches < shape.len();
    let width = width
        .filter(|_| fits)
        .ok_or("the shape of its indices does not match its data")?;
    let last = shape.len() - 1;
    let mut operands = vec![x];
    for axis in 0..batches {
        let batch = lower.count_from(Dim::from(0), shape[axis])?;
        let mut column = vec![Dim::from(1); last];
        column[axis] = shape[axis];
        operands.push(lower.reshape(batch, column)?);
    }
    for part in 0..width {
        let one = Slice {
            axis: last,
            start: Dim::from(part),
            len: Dim::from(1),
            step: 1,
        };
        let one = lower.emit(one, &[index])?;
        operands.push(lower.reshape(one, shape[..last].to_vec())?);
    }
    Ok(vec![lower.emit(Index, &operands)?])
}

pub(super) fn one_hot(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let (index, depth) = (lower.operand(call, 0)?, lower.operand(call, 1)?);
    let values = lower.operand(call, 2)?;
    let kind = lower.operand_kind(call, 2);
    lower.set_kind(call, kind);
    let depth = lower.cast(depth, DType::I64)?;
    let depth = match lower.sizes(depth)?[..] {
        [depth] => depth,
        _ => return Err("its depth must be a single integer".into()),
    };
    let rank = lower.rank(index) + 1;
    let axis = LoweringBuilder::axis(call.int_or("axis", -1)?, rank)?;
    let index = lower.cast(index, DType::I64)?;
    let mut shape = lower.shape(index);
    shape.insert(axis, Dim::from(1));
    let index = lower.reshape(index, shape)?;
    // Negative indices count from the end.
    let size = lower.emit(graph::ops::Size { value: depth }, &[])?;
    let zero = lower.scalar(Scalar::I64(0), DType::I64)?;
    let negative = lower.compare(CompareFunction::Lt, index, zero)?;
    let wrapped = lower.binary(BinaryFunction::Add, index, size)?;
    let index = lower.choose(negative, wrapped, index)?;
    let classes = lower.count_from(Dim::from(0), depth)?;
    let mut column = vec![Dim::from(1); rank];
    column[axis] = depth;
    let classes = lower.reshape(classes, column)?;
    let hit = lower.compare(CompareFunction::Eq, index, classes)?;
    let value = |lower: &mut OnnxLowering<'_>, at: usize| -> Result<TensorId, String> {
        let one = lower.slice(values, 0, Dim::from(at), Dim::from(1))?;
        lower.reshape(one, vec![])
    };
    let (off, on) = (value(lower, 0)?, value(lower, 1)?);
    Ok(vec![lower.choose(hit, on, off)?])
}

/// The largest or smallest elements along an axis, sorted; equal elements keep their order.
pub(super) fn top_k(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.operand(call, 0)?;
    let count = match call.int("k")? {
        Some(k) => Dim::constant(k),
        None => {
            let k = lower.operand(call, 1)?;
            match lower.sizes(k)?[..] {
                [k] => k,
                _ => return Err("its k must be a single integer".into()),
            }
        }
    };
    let axis = LoweringBuilder::axis(call.int_or("axis", -1)?, lower.rank(x))?;
    let largest = call.flag("largest", true)?;
    if let Some(name) = call.result(1) {
        lower
            .kinds
            .insert(name.to_owned(), crate::stored_type::StoredType::I64);
    }
    Ok(lower.sorted(x, axis, count, largest)?.to_vec())
}

/// How a scatter combines elements.
fn function(call: &Call<'_>) -> Result<ScatterFunction, String> {
    Ok(match call.text("reduction")?.unwrap_or("none") {
        "none" => ScatterFunction::Replace,
        "add" => ScatterFunction::Add,
        "mul" => ScatterFunction::Mul,
        "min" => ScatterFunction::Min,
        "max" => ScatterFunction::Max,
        other => return Err(format!("the reduction {other:?} is not supported")),
    })
}

pub(super) fn scatter_nd(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let (x, index) = (lower.operand(call, 0)?, lower.operand(call, 1)?);
    let values = lower.operand(call, 2)?;
    let shape = lower.shape(index);
    let width = shape.last().and_then(Dim::as_const);
    let width = width.filter(|n| *n > 0 && *n <= lower.rank(x));
    let width = width.ok_or("the shape of its indices does not match its data")?;
    let last = shape.len() - 1;
    let mut operands = vec![x];
    for part in 0..width {
        let one = lower.slice(index, last, Dim::from(part), Dim::from(1))?;
        operands.push(lower.reshape(one, shape[..last].to_vec())?);
    }
    operands.push(values);
    let function = function(call)?;
    Ok(vec![lower.emit(Scatter { function }, &operands)?])
}

pub(super) fn scatter_elements(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let (x, index) = (lower.operand(call, 0)?, lower.operand(call, 1)?);
    let values = lower.operand(call, 2)?;
    let axis = LoweringBuilder::axis(call.int_or("axis", 0)?, lower.rank(x))?;
    let function = function(call)?;
    Ok(vec![
        lower.scatter_elements(x, axis, index, values, function)?,
    ])
}

/// The elements of an axis, or of all axes, whose condition is true.
pub(super) fn compress(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let (mut x, condition) = (lower.operand(call, 0)?, lower.operand(call, 1)?);
    let axis = match call.int("axis")? {
        Some(axis) => LoweringBuilder::axis(axis, lower.rank(x))?,
        None => {
            let all = Dim::product(&lower.shape(x));
            let all = all.ok_or("multiplies three dynamic sizes, which is not supported")?;
            x = lower.reshape(x, vec![all])?;
            0
        }
    };
    let size = lower.shape(x).get(axis).copied();
    let longer = |len: &Dim| match (len.as_const(), size.and_then(|size| size.as_const())) {
        (Some(len), Some(size)) => len > size,
        _ => size != Some(*len),
    };
    match &lower.shape(condition)[..] {
        [len] if !longer(len) => {}
        _ => return Err("its condition is no list, or longer than the axis".into()),
    }
    let index = match constant_places(lower, condition) {
        Some((_, places)) => {
            let places: Vec<i64> = places.iter().map(|at| *at as i64).collect();
            lower.constant(DType::I64, &[places.len()], Bytes::from_slice(&places))?
        }
        None => {
            let places = lower.between_stages(call, DataSized::NonZero, vec![condition])?[0];
            let count = lower.shape(places)[1];
            lower.reshape(places, vec![count])?
        }
    };
    Ok(vec![lower.emit(Gather { axis }, &[x, index])?])
}

/// The shape of a constant and the places of its elements that are not zero.
fn constant_places(lower: &OnnxLowering<'_>, x: TensorId) -> Option<(Vec<usize>, Vec<usize>)> {
    let known = lower.const_value(x)?.constant(lower.dtype(x))?;
    let shape = lower.shape(x);
    let shape = shape.iter().map(Dim::as_const).collect::<Option<_>>()?;
    let set: Vec<bool> = match known {
        Data::F32(list) => list.iter().map(|x| *x != 0.0).collect(),
        Data::I64(list) => list.iter().map(|n| *n != 0).collect(),
        Data::I32(list) => list.iter().map(|n| *n != 0).collect(),
        Data::Bool(list) => list,
    };
    Some((shape, (0..set.len()).filter(|at| set[*at]).collect()))
}

/// The indices of elements that are not zero.
pub(super) fn non_zero(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.operand(call, 0)?;
    lower.set_kind(call, Some(StoredType::I64));
    let Some((shape, places)) = constant_places(lower, x) else {
        return lower.between_stages(call, DataSized::NonZero, vec![x]);
    };
    let mut rows = vec![];
    for axis in 0..shape.len() {
        let step: usize = shape[axis + 1..].iter().product();
        rows.extend(
            places
                .iter()
                .map(|at| (at / step.max(1) % shape[axis].max(1)) as i64),
        );
    }
    let shape = [shape.len(), places.len()];
    Ok(vec![lower.constant(
        DType::I64,
        &shape,
        Bytes::from_slice(&rows),
    )?])
}

/// The different elements or slices of a tensor, where they occur first, the place of each among them, and how often they occur.
pub(super) fn unique(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.operand(call, 0)?;
    let axis = call.int("axis")?;
    let axis = axis.map(|axis| LoweringBuilder::axis(axis, lower.rank(x)));
    let op = Unique {
        axis: axis.transpose()?,
        sorted: call.flag("sorted", true)?,
    };
    for result in 1..call.results() {
        lower.set_kind_of(call, result, StoredType::I64);
    }
    lower.between_stages(call, DataSized::Unique(op), vec![x])
}

/// The boxes that remain when those that overlap better ones are left out.
pub(super) fn non_max_suppression(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let (boxes, scores) = (lower.operand(call, 0)?, lower.operand(call, 1)?);
    let number = |lower: &mut OnnxLowering<'_>, index: usize| {
        let Some(id) = lower.maybe(call, index)? else {
            return Ok(None);
        };
        match lower
            .known(id)
            .and_then(|known| known.constant(lower.dtype(id)))
        {
            Some(Data::F32(list)) if list.len() == 1 => Ok(Some(f64::from(list[0]))),
            Some(Data::I64(list)) if list.len() == 1 => Ok(Some(list[0] as f64)),
            _ => Err(format!(
                "operand {index} must be a single number that is known"
            )),
        }
    };
    let op = NonMaxSuppression {
        most: number(lower, 2)?.unwrap_or(0.0) as usize,
        overlap: number(lower, 3)?.unwrap_or(0.0) as f32,
        score: number(lower, 4)?.map(|score| score as f32),
        centred: call.flag("center_point_box", false)?,
    };
    lower.set_kind(call, Some(StoredType::I64));
    lower.between_stages(call, DataSized::NonMaxSuppression(op), vec![boxes, scores])
}
