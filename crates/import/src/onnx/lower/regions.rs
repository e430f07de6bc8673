//! Elements of images at computed places: `RoiAlign` and `DeformConv`.

use base::{Bytes, DType};
use graph::ops::{
    BinaryFunction as B, CompareFunction as C, Index, Reduce, ReduceFunction, Scalar,
    UnaryFunction as U,
};
use graph::{Dim, TensorId};

use super::call::Call;
use super::context::{OnnxLowering, Results};
use super::windowed;
use crate::lowering::{MAX_CONSTANT_ELEMENTS, elements};

/// Where points of an axis of `size` elements lie between two elements: both, the share of the second one, and whether
/// the point is inside.
struct Between {
    low: TensorId,
    high: TensorId,
    share: TensorId,
    inside: TensorId,
}

impl OnnxLowering<'_> {
    fn between(&mut self, points: TensorId, size: usize) -> Result<Between, String> {
        let (first, last) = (
            self.scalar(Scalar::F32(-1.0), DType::F32)?,
            self.scalar(Scalar::F32(size as f32), DType::F32)?,
        );
        let above = self.compare(C::Ge, points, first)?;
        let below = self.compare(C::Le, points, last)?;
        let inside = self.binary(B::And, above, below)?;
        let points = self.with_number(B::Max, points, 0.0)?;
        let points = self.with_number(B::Min, points, size.saturating_sub(1) as f32)?;
        let low = self.unary(U::Floor, points)?;
        let share = self.binary(B::Sub, points, low)?;
        let low = self.cast(low, DType::I64)?;
        let (one, end) = (
            self.scalar(Scalar::I64(1), DType::I64)?,
            self.scalar(Scalar::I64(size as i64 - 1), DType::I64)?,
        );
        let high = self.binary(B::Add, low, one)?;
        let high = self.binary(B::Min, high, end)?;
        Ok(Between {
            low,
            high,
            share,
            inside,
        })
    }

    /// The two elements next to points of an axis, with their weights; elements outside have none.
    fn neighbours(
        &mut self,
        points: TensorId,
        size: usize,
    ) -> Result<[(TensorId, TensorId); 2], String> {
        let last = size.saturating_sub(1) as f32;
        let low = self.unary(U::Floor, points)?;
        let share = self.binary(B::Sub, points, low)?;
        let one = self.scalar(Scalar::F32(1.0), DType::F32)?;
        let rest = self.binary(B::Sub, one, share)?;
        let high = self.binary(B::Add, low, one)?;
        let mut side = |place: TensorId, weight: TensorId| -> Result<_, String> {
            let held = self.with_number(B::Max, place, 0.0)?;
            let held = self.with_number(B::Min, held, last)?;
            let inside = self.compare(C::Eq, held, place)?;
            let inside = self.cast(inside, DType::F32)?;
            let weight = self.binary(B::Mul, weight, inside)?;
            Ok((self.cast(held, DType::I64)?, weight))
        };
        Ok([side(low, rest)?, side(high, share)?])
    }
}

/// Samples boxes of an image at a fixed number of points.
pub(super) fn roi_align(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let (x, boxes) = (lower.real(call, 0)?, lower.real(call, 1)?);
    let batch = lower.operand(call, 2)?;
    let samples = call
        .count("sampling_ratio")?
        .filter(|n| (1..=256).contains(n));
    let samples =
        samples.ok_or("a number of samples that depends on its boxes is not supported")?;
    let size = |name: &str| -> Result<usize, String> {
        let size = call.count(name)?.unwrap_or(1);
        Some(size)
            .filter(|n| (1..=4096).contains(n))
            .ok_or_else(|| format!("{name} is out of range"))
    };
    let sizes = [size("output_height")?, size("output_width")?];
    let default = if call.version() < 16 {
        "output_half_pixel"
    } else {
        "half_pixel"
    };
    let half = match call
        .text("coordinate_transformation_mode")?
        .unwrap_or(default)
    {
        "half_pixel" => true,
        "output_half_pixel" => false,
        other => return Err(format!("coordinates {other:?} are not supported")),
    };
    let largest = match call.text("mode")?.unwrap_or("avg") {
        "avg" => false,
        "max" => true,
        other => return Err(format!("mode {other:?} is not supported")),
    };
    let scale = call.float_or("spatial_scale", 1.0)?;
    let (image, list) = (lower.shape(x), lower.shape(boxes));
    let (&[_, channels, height, width], &[count, _]) = (&image[..], &list[..]) else {
        return Err("its image must have four axes and its boxes two".into());
    };
    let (Some(height), Some(width)) = (height.as_const(), width.as_const()) else {
        return Err("its image must have constant sizes".into());
    };
    let mut places = vec![];
    for (axis, (extent, parts)) in [height, width].into_iter().zip(sizes).enumerate() {
        // Boxes are x1, y1, x2, y2.
        let mut edge = |column: usize| -> Result<TensorId, String> {
            let edge = lower.slice(boxes, 1, Dim::from(column), Dim::from(1))?;
            let edge = lower.with_number(B::Mul, edge, scale)?;
            lower.with_number(B::Sub, edge, if half { 0.5 } else { 0.0 })
        };
        let (start, end) = (edge(1 - axis)?, edge(3 - axis)?);
        let mut span = lower.binary(B::Sub, end, start)?;
        if !half {
            span = lower.with_number(B::Max, span, 1.0)?;
        }
        let points = parts * samples;
        let part = |i: usize| (i as f64 + 0.5) as f32 / points as f32;
        let parts: Vec<f32> = (0..points).map(part).collect();
        let parts = lower.constant(DType::F32, &[1, points], Bytes::from_slice(&parts))?;
        let moved = lower.binary(B::Mul, span, parts)?;
        let moved = lower.binary(B::Add, moved, start)?;
        let mut shape = vec![count, Dim::from(1), Dim::from(1)];
        shape[1 + axis] = Dim::from(points);
        let moved = lower.reshape(moved, shape)?;
        places.push(lower.between(moved, extent)?);
    }
    let image = lower.permute(x, vec![0, 2, 3, 1])?;
    let batch = lower.reshape(batch, vec![count, Dim::from(1), Dim::from(1)])?;
    let (rows, columns) = (&places[0], &places[1]);
    let inside = lower.binary(B::And, rows.inside, columns.inside)?;
    let inside = lower.cast(inside, DType::F32)?;
    let mut result: Option<TensorId> = None;
    for (row, below) in [(rows.low, false), (rows.high, true)] {
        for (column, right) in [(columns.low, false), (columns.high, true)] {
            let value = lower.emit(Index, &[image, batch, row, column])?;
            let mut weight = inside;
            for (share, second) in [(rows.share, below), (columns.share, right)] {
                let share = match second {
                    true => share,
                    false => {
                        let one = lower.scalar(Scalar::F32(1.0), DType::F32)?;
                        lower.binary(B::Sub, one, share)?
                    }
                };
                weight = lower.binary(B::Mul, weight, share)?;
            }
            let mut column = lower.shape(weight);
            column.push(Dim::from(1));
            let weight = lower.reshape(weight, column)?;
            let part = lower.binary(B::Mul, value, weight)?;
            // The largest of the weighted corners, not of their sums, as the op's reference has it.
            let function = if largest { B::Max } else { B::Add };
            result = Some(match result {
                None => part,
                Some(sum) => lower.binary(function, sum, part)?,
            });
        }
    }
    let result = result.ok_or("has no samples")?;
    let [height, width, each] = [sizes[0], sizes[1], samples].map(Dim::from);
    let result = lower.reshape(result, vec![count, height, each, width, each, channels])?;
    let reduce = Reduce {
        function: match largest {
            true => ReduceFunction::Max,
            false => ReduceFunction::Mean,
        },
        axes: vec![2, 4],
        keep: false,
    };
    let result = lower.emit(reduce, &[result])?;
    Ok(vec![lower.permute(result, vec![0, 3, 1, 2])?])
}

/// A convolution of elements at places that are moved by offsets.
pub(super) fn deform_conv(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let (x, weight) = (lower.real(call, 0)?, lower.real(call, 1)?);
    let offset = lower.real(call, 2)?;
    let sizes = windowed::conv_sizes(lower, call, x, weight)?;
    let kernel = lower.kernel_sizes(weight)?;
    let &[kh, kw] = &kernel[..] else {
        return Err("only convolutions over two axes are supported".into());
    };
    let groups = call.count("offset_group")?.unwrap_or(1);
    let shape = lower.shape(x);
    let known = |at: usize| {
        shape[at]
            .as_const()
            .ok_or("its channels and sizes must be constants")
    };
    let (channels, height, width) = (known(1)?, known(2)?, known(3)?);
    let [batch, offsets, rows, columns] = lower.shape(offset)[..] else {
        return Err("its offsets must have four axes".into());
    };
    let (Some(rows), Some(columns)) = (rows.as_const(), columns.as_const()) else {
        return Err("its offsets must have constant sizes".into());
    };
    let taps = kh
        .checked_mul(kw)
        .filter(|taps| *taps <= MAX_CONSTANT_ELEMENTS);
    let taps = taps.ok_or("its kernel is too large")?;
    let wanted = groups.checked_mul(2 * taps);
    let fits = wanted.is_some() && offsets.as_const() == wanted;
    if groups == 0 || !channels.is_multiple_of(groups) || !fits || height == 0 || width == 0 {
        return Err("its offsets do not match its kernel".into());
    }
    if taps.saturating_mul(rows).saturating_mul(columns) > MAX_CONSTANT_ELEMENTS / 2 {
        return Err("has too many places".into());
    }
    // Where each tap of each place lies without an offset: row, then column.
    let mut base = Vec::with_capacity(2 * taps * rows * columns);
    for tap in 0..taps {
        for axis in 0..2 {
            let step = if axis == 0 { tap / kw } else { tap % kw };
            for place in 0..rows * columns {
                let at = if axis == 0 {
                    place / columns
                } else {
                    place % columns
                };
                let at = at * sizes.stride[axis] + step * sizes.dilation[axis];
                base.push(at as f32 - sizes.padding[axis][0] as f32);
            }
        }
    }
    let base = lower.constant(
        DType::F32,
        &[taps, 2, rows, columns],
        Bytes::from_slice(&base),
    )?;
    let [rows, columns, tap_dim, two, group_dim] = [rows, columns, taps, 2, groups].map(Dim::from);
    let offset = lower.reshape(offset, vec![batch, group_dim, tap_dim, two, rows, columns])?;
    let places = lower.binary(B::Add, offset, base)?;
    let all = batch * groups;
    let each = Dim::from(channels / groups);
    let image = vec![all, each, Dim::from(height), Dim::from(width)];
    let image = lower.reshape(x, image)?;
    let image = lower.permute(image, vec![0, 2, 3, 1])?;
    let own = lower.count_from(Dim::from(0), all)?;
    let one = Dim::from(1);
    let own = lower.reshape(own, vec![all, one, one, one])?;
    let mut sides = vec![];
    for (axis, size) in [(0, height), (1, width)] {
        let points = lower.slice(places, 3, Dim::from(axis), one)?;
        let points = lower.reshape(points, vec![all, tap_dim, rows, columns])?;
        sides.push(lower.neighbours(points, size)?);
    }
    let mut taken: Option<TensorId> = None;
    for (row, row_weight) in sides[0] {
        for (column, column_weight) in sides[1] {
            let value = lower.emit(Index, &[image, own, row, column])?;
            let weight = lower.binary(B::Mul, row_weight, column_weight)?;
            let weight = lower.reshape(weight, vec![all, tap_dim, rows, columns, one])?;
            let part = lower.binary(B::Mul, value, weight)?;
            taken = Some(match taken {
                None => part,
                Some(sum) => lower.binary(B::Add, sum, part)?,
            });
        }
    }
    let taken = taken.ok_or("has no places")?;
    let taken = lower.permute(taken, vec![0, 4, 1, 2, 3])?;
    let shape = vec![batch, group_dim, each, tap_dim, rows, columns];
    let mut taken = lower.reshape(taken, shape)?;
    if call.name(4).is_some() {
        let mask = lower.real(call, 4)?;
        let mask = lower.reshape(
            mask,
            vec![batch, group_dim, Dim::from(1), tap_dim, rows, columns],
        )?;
        taken = lower.binary(B::Mul, taken, mask)?;
    }
    let taken = lower.reshape(
        taken,
        vec![batch, Dim::from(channels) * taps, rows, columns],
    )?;
    let shape = lower.shape(weight);
    let inner = elements(&shape[1..])?;
    let one = Dim::from(1);
    let weight = lower.reshape(weight, vec![shape[0], Dim::from(inner), one, one])?;
    let bias = lower.maybe(call, 3)?;
    let dense = crate::lowering::ConvSizes {
        stride: vec![1; 2],
        dilation: vec![1; 2],
        padding: vec![[0; 2]; 2],
        groups: sizes.groups,
    };
    Ok(vec![lower.convolution(taken, weight, bias, &dense)?])
}
