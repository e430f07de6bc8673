//! Gathers, embeddings and views by strides.

use base::{Bytes, DType};
use graph::ops::{
    BinaryFunction, CompareFunction, Gather, GatherElements, GatherRows, Index, Range, Reduce,
    ReduceFunction, Scalar, Scatter, ScatterFunction, Size,
};
use graph::{Dim, TensorId};

use super::call::Call;
use super::context::Pt2Lowering;
use crate::lowering::{LoweringBuilder, MAX_CONSTANT_ELEMENTS, elements};

type Results = Result<Vec<TensorId>, String>;

pub(super) fn embedding(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let table = super::matrix::weight(lower, call)?;
    let index = lower.tensor(call, "indices")?;
    if lower.dtype(table) == DType::F32 {
        return Ok(vec![lower.emit(Gather { axis: 0 }, &[table, index])?]);
    }
    // 16-bit and quantised tables stay as stored: this op can read them.
    let result = lower.result_shape(call, 0)?;
    let count = match &lower.shape(index)[..] {
        [one, count] if *one == Dim::from(1) => *count,
        [count] => *count,
        shape => Dim::from(elements(shape)?),
    };
    let index = lower.reshape(index, vec![count])?;
    let rows = lower.emit(GatherRows, &[table, index])?;
    Ok(vec![lower.reshape(rows, result)?])
}

pub(super) fn index_select(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.tensor(call, "self")?;
    let index = lower.tensor(call, "index")?;
    let axis = LoweringBuilder::axis(call.int("dim", 0)?, lower.rank(x))?;
    Ok(vec![lower.emit(Gather { axis }, &[x, index])?])
}

pub(super) fn gather(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let mut x = lower.tensor(call, "self")?;
    let spelled = call.get("index").is_some();
    let mut index = lower.tensor(call, if spelled { "index" } else { "indices" })?;
    if call.get("dim").is_none() {
        let all = elements(&lower.shape(x))?;
        x = lower.reshape(x, vec![Dim::from(all)])?;
    }
    let axis = LoweringBuilder::axis(call.int("dim", 0)?, lower.rank(x))?;
    if !spelled {
        // The other axes broadcast here.
        let mut shape = lower.result_shape(call, 0)?;
        index = lower.expand(index, shape.clone())?;
        shape[axis] = lower.shape(x)[axis];
        x = lower.expand(x, shape)?;
    }
    Ok(vec![lower.emit(GatherElements { axis }, &[x, index])?])
}

/// `x[i, :, j]`: the indices broadcast. Their axes stay in place if adjacent, otherwise they come first.
pub(super) fn index(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.tensor(call, "self")?;
    let rank = lower.rank(x);
    let mut axes = vec![];
    let mut indices = vec![];
    for (axis, name) in call.tensors("indices")?.into_iter().enumerate() {
        let Some(name) = name else { continue };
        let id = lower.value(name)?;
        if lower.dtype(id) == DType::Bool {
            return Err("indexes by a mask, so its shape depends on data: use torch.where".into());
        }
        axes.push(axis);
        indices.push(id);
    }
    if axes.iter().any(|axis| *axis >= rank) {
        return Err("has more indices than axes".into());
    }
    let (&[first, ..], [one, ..]) = (&axes[..], &indices[..]) else {
        return Ok(vec![x]);
    };
    if indices.len() == 1 {
        return Ok(vec![lower.emit(Gather { axis: first }, &[x, *one])?]);
    }
    let rest: Vec<usize> = (0..rank).filter(|axis| !axes.contains(axis)).collect();
    let order: Vec<usize> = axes.iter().chain(&rest).copied().collect();
    let neighbours = axes.windows(2).all(|pair| pair[1] == pair[0] + 1);
    let moved = lower.permute(x, order)?;
    let operands: Vec<TensorId> = [moved].into_iter().chain(indices.iter().copied()).collect();
    let picked = lower.emit(Index, &operands)?;
    if !neighbours || first == 0 {
        return Ok(vec![picked]);
    }
    let width = lower.rank(picked) - rest.len();
    let before = (0..first).map(|i| width + i);
    let back = before
        .chain(0..width)
        .chain(width + first..width + rest.len());
    let back = back.collect();
    Ok(vec![lower.permute(picked, back)?])
}

pub(super) fn one_hot(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.tensor(call, "self")?;
    let classes = usize::try_from(call.int("num_classes", -1)?);
    let classes = classes.map_err(|_| "the number of classes depends on data: name it")?;
    let mut column = lower.shape(x);
    column.push(Dim::from(1));
    let x = lower.reshape(x, column)?;
    let range = Range {
        start: Dim::from(0),
        step: 1,
        len: Dim::from(classes),
        dtype: DType::I64,
    };
    let range = lower.emit(range, &[])?;
    Ok(vec![lower.compare(CompareFunction::Eq, x, range)?])
}

/// Sums, means or maxima of rows of a table, one for each bag of indices. The first result only.
pub(super) fn embedding_bag(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let table = lower.tensor(call, "weight")?;
    let (index, offsets) = (
        lower.tensor(call, "indices")?,
        lower.tensor(call, "offsets")?,
    );
    let (&[_, width], &[count], &[listed]) = (
        &lower.shape(table)[..],
        &lower.shape(index)[..],
        &lower.shape(offsets)[..],
    ) else {
        return Err("takes a table and two lists".into());
    };
    let (index, offsets) = (
        lower.cast(index, DType::I64)?,
        lower.cast(offsets, DType::I64)?,
    );
    let one = Dim::from(1);
    let bags = match call.flag("include_last_offset", false)? {
        true => listed - one,
        false => listed,
    };
    let integer = |lower: &mut Pt2Lowering<'_>, n: i64| lower.scalar(Scalar::I64(n), DType::I64);
    // The bag of a place is the number of offsets up to it, less one.
    let place = Range {
        start: Dim::from(0),
        step: 1,
        len: count,
        dtype: DType::I64,
    };
    let place = lower.emit(place, &[])?;
    let place = lower.reshape(place, vec![count, one])?;
    let begun = lower.compare(CompareFunction::Le, offsets, place)?;
    let begun = lower.cast(begun, DType::I64)?;
    let sum = |axes, keep| Reduce {
        function: ReduceFunction::Sum,
        axes,
        keep,
    };
    let begun = lower.emit(sum(vec![1], false), &[begun])?;
    let first = integer(lower, 1)?;
    let bag = lower.binary(BinaryFunction::Sub, begun, first)?;
    // Padding goes to a bag behind the others.
    let last = lower.emit(Size { value: bags }, &[])?;
    let padding = call.int("padding_idx", -1)?;
    let bag = match padding {
        ..0 => lower.binary(BinaryFunction::Min, bag, last)?,
        padding => {
            let padding = integer(lower, padding)?;
            let is_padding = lower.compare(CompareFunction::Eq, index, padding)?;
            lower.choose(is_padding, last, bag)?
        }
    };
    let mut rows = lower.emit(Gather { axis: 0 }, &[table, index])?;
    if let Some(weights) = lower.maybe_tensor(call, "per_sample_weights")? {
        let column = lower.reshape(weights, vec![count, one])?;
        rows = lower.binary(BinaryFunction::Mul, rows, column)?;
    }
    let into = |lower: &mut Pt2Lowering<'_>, start: f32, function, rows: TensorId, width: Dim| {
        let empty = lower.fill(Scalar::F32(start), DType::F32, vec![bags + one, width])?;
        let all = lower.emit(Scatter { function }, &[empty, bag, rows])?;
        lower.slice(all, 0, Dim::from(0), bags)
    };
    let held = |lower: &mut Pt2Lowering<'_>| {
        let ones = lower.fill(Scalar::F32(1.0), DType::F32, vec![count, one])?;
        into(lower, 0.0, ScatterFunction::Add, ones, one)
    };
    Ok(vec![match call.int("mode", 0)? {
        0 => into(lower, 0.0, ScatterFunction::Add, rows, width)?,
        1 => {
            let sums = into(lower, 0.0, ScatterFunction::Add, rows, width)?;
            let held = held(lower)?;
            let held = lower.with_number(BinaryFunction::Max, held, 1.0)?;
            lower.binary(BinaryFunction::Div, sums, held)?
        }
        2 => {
            let most = into(lower, f32::NEG_INFINITY, ScatterFunction::Max, rows, width)?;
            let held = held(lower)?;
            let zero = lower.scalar(Scalar::F32(0.0), DType::F32)?;
            let any = lower.compare(CompareFunction::Gt, held, zero)?;
            lower.choose(any, most, zero)?
        }
        mode => return Err(format!("the mode {mode} is not supported")),
    }])
}

/// A view by strides: elements of a contiguous tensor at constant places.
pub(super) fn as_strided(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let name = call.tensor("self")?;
    if !lower.is_whole_storage(name) {
        return Err(
            "views memory that is not laid out as its operand, which is not supported".into(),
        );
    }
    let x = lower.value(name)?;
    let held = elements(&lower.shape(x))?;
    let sizes = call.ints("size")?.ok_or("has no size")?;
    let strides = call.ints("stride")?.ok_or("has no stride")?;
    let offset = call.int("storage_offset", 0)?;
    let shape = sizes.iter().map(|n| usize::try_from(*n).ok());
    let shape: Vec<usize> = shape.collect::<Option<_>>().ok_or("has a negative size")?;
    if shape.len() != strides.len() {
        return Err("has other sizes than strides".into());
    }
    let count = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
    let count = count.filter(|count| *count <= MAX_CONSTANT_ELEMENTS);
    let count = count.ok_or("views too many elements")?;
    let mut places = Vec::with_capacity(count);
    for at in 0..count {
        let (mut rest, mut place) = (at, offset);
        for (size, stride) in shape.iter().zip(&strides).rev() {
            let step = i64::try_from(rest % size)
                .ok()
                .and_then(|n| n.checked_mul(*stride));
            place = step
                .and_then(|step| place.checked_add(step))
                .ok_or("has too large strides")?;
            rest /= size;
        }
        if place < 0 || place as usize >= held {
            return Err("views elements outside its operand".into());
        }
        places.push(place);
    }
    let flat = lower.reshape(x, vec![Dim::from(held)])?;
    let places = lower.constant(DType::I64, &shape, Bytes::from_slice(&places))?;
    Ok(vec![lower.emit(Gather { axis: 0 }, &[flat, places])?])
}
