//! Gathers and embeddings.

use base::DType;
use graph::ops::{CompareFunction, Gather, GatherElements, GatherRows, Index, Range};
use graph::{Dim, TensorId};

use super::call::Call;
use super::context::Pt2Lowering;
use crate::lowering::{LoweringBuilder, elements};

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
