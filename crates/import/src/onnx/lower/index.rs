//! Ops that look elements up.

use base::DType;
use graph::ops::{CompareFunction, Gather, GatherElements, Index, Scalar, Slice};
use graph::{Dim, TensorId};

use super::call::Call;
use super::{Lower, Results};
use crate::emit::Emitter;

pub(super) fn gather(lower: &mut Lower<'_>, call: &Call<'_>) -> Results {
    let (x, index) = (lower.operand(call, 0)?, lower.operand(call, 1)?);
    let axis = Emitter::axis(call.int_or("axis", 0)?, lower.rank(x))?;
    Ok(vec![lower.emit(Gather { axis }, &[x, index])?])
}

pub(super) fn gather_elements(lower: &mut Lower<'_>, call: &Call<'_>) -> Results {
    let (x, index) = (lower.operand(call, 0)?, lower.operand(call, 1)?);
    let axis = Emitter::axis(call.int_or("axis", 0)?, lower.rank(x))?;
    Ok(vec![lower.emit(GatherElements { axis }, &[x, index])?])
}

pub(super) fn gather_nd(lower: &mut Lower<'_>, call: &Call<'_>) -> Results {
    if call.int_or("batch_dims", 0)? != 0 {
        return Err("batches are not known".into());
    }
    let (x, index) = (lower.operand(call, 0)?, lower.operand(call, 1)?);
    let shape = lower.shape(index);
    let width = shape.last().and_then(Dim::as_const);
    let width = width.filter(|n| *n > 0 && *n <= lower.rank(x));
    let width = width.ok_or("its indices do not fit")?;
    let last = shape.len() - 1;
    let mut operands = vec![x];
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

pub(super) fn one_hot(lower: &mut Lower<'_>, call: &Call<'_>) -> Results {
    let (index, depth) = (lower.operand(call, 0)?, lower.operand(call, 1)?);
    let values = lower.operand(call, 2)?;
    let depth = match lower.sizes(depth)?[..] {
        [depth] => depth,
        _ => return Err("its depth is not one number".into()),
    };
    let rank = lower.rank(index) + 1;
    let axis = Emitter::axis(call.int_or("axis", -1)?, rank)?;
    let index = lower.cast(index, DType::I64)?;
    let mut shape = lower.shape(index);
    shape.insert(axis, Dim::from(1));
    let index = lower.reshape(index, shape)?;
    // Negative ones count from the end.
    let size = lower.emit(graph::ops::Size { value: depth }, &[])?;
    let zero = lower.scalar(Scalar::I64(0), DType::I64)?;
    let negative = lower.compare(CompareFunction::Lt, index, zero)?;
    let wrapped = lower.binary(graph::ops::BinaryFunction::Add, index, size)?;
    let index = lower.choose(negative, wrapped, index)?;
    let classes = lower.count_from(Dim::from(0), depth)?;
    let mut column = vec![Dim::from(1); rank];
    column[axis] = depth;
    let classes = lower.reshape(classes, column)?;
    let hit = lower.compare(CompareFunction::Eq, index, classes)?;
    let value = |lower: &mut Lower<'_>, at: usize| -> Result<TensorId, String> {
        let one = lower.slice(values, 0, Dim::from(at), Dim::from(1))?;
        lower.reshape(one, vec![])
    };
    let (off, on) = (value(lower, 0)?, value(lower, 1)?);
    Ok(vec![lower.choose(hit, on, off)?])
}
