//! Lowers `TensorScatter`, which writes into a cache.

use base::DType;
use graph::ops::{BinaryFunction as B, CompareFunction as C, GatherRows, Index, Range, Scalar};
use graph::{Dim, TensorId};

use super::call::Call;
use super::context::{OnnxLowering, Results};
use crate::lowering::LoweringBuilder;

impl OnnxLowering<'_> {
    /// Returns the indices unchanged; a run fails if one is outside `0..size`.
    fn checked(&mut self, indices: TensorId, size: Dim) -> Result<TensorId, String> {
        let range = Range {
            start: Dim::from(0),
            step: 1,
            len: size,
            dtype: DType::F32,
        };
        let table = self.emit(range, &[])?;
        let table = self.reshape(table, vec![size, Dim::from(1)])?;
        let found = self.emit(GatherRows, &[table, indices])?;
        let shape = self.shape(indices);
        let found = self.reshape(found, shape)?;
        self.cast(found, DType::I64)
    }
}

/// Writes `update` into the cache along one axis, with one start row per sequence of the batch.
pub(super) fn tensor_scatter(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let (cache, update) = (lower.operand(call, 0)?, lower.operand(call, 1)?);
    let shape = lower.shape(cache);
    let rank = shape.len();
    let axis = LoweringBuilder::axis(call.int_or("axis", -2)?, rank)?;
    if axis == 0 || axis >= rank {
        return Err(format!("writes along axis {axis}, which is the batch axis"));
    }
    let mut expected = shape.clone();
    let written = *lower
        .shape(update)
        .get(axis)
        .ok_or("the update has too few axes")?;
    expected[axis] = written;
    if lower.shape(update) != expected {
        return Err(format!(
            "update {:?} does not fit cache {shape:?}",
            lower.shape(update)
        ));
    }
    let (batch, rows) = (shape[0], shape[axis]);
    let start = match lower.maybe(call, 2)? {
        Some(start) => lower.cast(start, DType::I64)?,
        None => lower.fill(Scalar::I64(0), DType::I64, vec![batch])?,
    };
    let circular = match call.text("mode")? {
        None | Some("linear") => false,
        Some("circular") => true,
        Some(other) => return Err(format!("the mode {other:?} is not supported")),
    };
    let start = lower.checked(start, rows)?;
    let start = match circular {
        true => start,
        false => {
            let more = lower.emit(
                graph::ops::Size {
                    value: written - Dim::from(1),
                },
                &[],
            )?;
            let last = lower.binary(B::Add, start, more)?;
            let last = lower.checked(last, rows)?;
            lower.binary(B::Sub, last, more)?
        }
    };
    let start = lower.reshape(start, vec![batch, Dim::from(1)])?;

    // For each row of the cache: the row of the update that is written to it.
    let places = lower.count_from(Dim::from(0), rows)?;
    let mut source = lower.binary(B::Sub, places, start)?;
    if circular {
        let size = lower.emit(graph::ops::Size { value: rows }, &[])?;
        source = lower.binary(B::Mod, source, size)?;
    }
    let zero = lower.scalar(Scalar::I64(0), DType::I64)?;
    let count = lower.emit(graph::ops::Size { value: written }, &[])?;
    let from_start = lower.compare(C::Ge, source, zero)?;
    let to_end = lower.compare(C::Lt, source, count)?;
    let hit = lower.binary(B::And, from_start, to_end)?;
    let source = lower.choose(hit, source, zero)?;

    // Move the axis next to the batch, so that both are indexed.
    let mut order: Vec<usize> = (0..rank).collect();
    let moved = order.remove(axis);
    order.insert(1, moved);
    let mut back = vec![0; rank];
    for (to, from) in order.iter().enumerate() {
        back[*from] = to;
    }
    let update = lower.permute(update, order)?;
    let sequence = lower.count_from(Dim::from(0), batch)?;
    let sequence = lower.reshape(sequence, vec![batch, Dim::from(1)])?;
    let spread = lower.emit(Index, &[update, sequence, source])?;
    let spread = lower.permute(spread, back)?;
    let mut column = vec![Dim::from(1); rank];
    column[0] = batch;
    column[axis] = rows;
    let hit = lower.reshape(hit, column)?;
    Ok(vec![lower.choose(hit, spread, cache)?])
}
