//! Regions and coordinates of images: `RoiAlign`, `AffineGrid`, `DeformConv`, `Col2Im`, `MaxUnpool`, `CenterCropPad`.

use base::{Bytes, DType};
use graph::ops::{
    BinaryFunction as B, CompareFunction as C, GridSample, Index, MatMul, Reduce, ReduceFunction,
    SampleMode, SamplePadding, Scalar, Scatter, ScatterFunction, UnaryFunction as U,
};
use graph::{Dim, TensorId};

use super::call::Call;
use super::context::{OnnxLowering, Results};
use super::shape::axes;
use super::windowed;
use crate::lowering::{MAX_CONSTANT_ELEMENTS, elements, window_number};

/// Cuts or pads axes on both sides, so that the middle stays.
pub(super) fn center_crop_pad(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let mut x = lower.operand(call, 0)?;
    let wanted = lower.operand(call, 1)?;
    let wanted = lower.numbers(wanted)?;
    let rank = lower.rank(x);
    let along: Vec<usize> = match call.ints("axes")? {
        Some(list) => {
            axes(list, rank)?;
            let axis = |axis: &i64| crate::lowering::LoweringBuilder::axis(*axis, rank);
            list.iter().map(axis).collect::<Result<_, _>>()?
        }
        None => (0..rank).collect(),
    };
    if wanted.len() != along.len() {
        return Err(format!(
            "has {} sizes for {} axes",
            wanted.len(),
            along.len()
        ));
    }
    for (axis, wanted) in along.into_iter().zip(wanted) {
        let wanted = window_number("size", wanted)? as i64;
        let size = lower.shape(x)[axis]
            .as_const()
            .and_then(|n| i64::try_from(n).ok());
        let size = size.ok_or("its sizes must be constants")?;
        // Half of it before, rounded towards zero.
        let missing = wanted - size;
        let before = missing / 2;
        x = lower.pad_axis(x, axis, [before, missing - before], Scalar::F32(0.0))?;
    }
    Ok(vec![x])
}

/// The points of a regular grid after an affine map.
pub(super) fn affine_grid(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let theta = lower.real(call, 0)?;
    let size = lower.operand(call, 1)?;
    let size = lower.numbers(size)?;
    let corners = call.flag("align_corners", false)?;
    let sizes = size.get(2..).unwrap_or_default().iter();
    let sizes: Vec<usize> = sizes
        .map(|n| window_number("size", *n))
        .collect::<Result<_, _>>()?;
    let count = sizes.len();
    let points = sizes
        .iter()
        .try_fold(1usize, |n, size| n.checked_mul(*size));
    let points = points.filter(|n| n.saturating_mul(count + 1) <= MAX_CONSTANT_ELEMENTS);
    let points = points.filter(|_| [2, 3].contains(&count));
    let points = points.ok_or("a grid of this size is not supported")?;
    let batch = *lower.shape(theta).first().ok_or("its theta is a scalar")?;
    if size.first().map(|n| Dim::constant(*n)) != Some(batch) {
        return Err("its theta and size have different batches".into());
    }
    let place = |at: usize, size: usize| match (corners, size) {
        (true, 1) => -1.0,
        (true, _) => 2.0 * at as f64 / (size - 1) as f64 - 1.0,
        (false, _) => (2 * at + 1) as f64 / size as f64 - 1.0,
    };
    let mut grid = Vec::with_capacity(points * (count + 1));
    for point in 0..points {
        // The last axis of the image is the first coordinate.
        let mut rest = point;
        for size in sizes.iter().rev() {
            grid.push(place(rest % size, *size) as f32);
            rest /= size;
        }
        grid.push(1.0);
    }
    let grid = lower.constant(DType::F32, &[points, count + 1], Bytes::from_slice(&grid))?;
    let product = MatMul {
        transpose_b: true,
        alpha: 1.0,
    };
    let moved = lower.emit(product, &[grid, theta])?;
    let mut shape = vec![batch];
    shape.extend(sizes.iter().map(|n| Dim::from(*n)));
    shape.push(Dim::from(count));
    Ok(vec![lower.reshape(moved, shape)?])
}

/// Adds up blocks at the places that they were taken from.
pub(super) fn col2im(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.real(call, 0)?;
    let mut list = |index: usize| -> Result<Vec<usize>, String> {
        let id = lower.operand(call, index)?;
        let numbers = lower.numbers(id)?.into_iter();
        numbers.map(|n| window_number("size", n)).collect()
    };
    let (image, block) = (list(1)?, list(2)?);
    let count = image.len();
    if count == 0 || block.len() != count {
        return Err("its image and block must have the same number of axes".into());
    }
    let stride = windowed::numbers(call, "strides", count, 1)?;
    let dilation = windowed::numbers(call, "dilations", count, 1)?;
    let pads = windowed::numbers(call, "pads", 2 * count, 0)?;
    let mut windows = vec![];
    for axis in 0..count {
        let span = block[axis].saturating_sub(1).saturating_mul(dilation[axis]) + 1;
        let padded = image[axis] + pads[axis] + pads[count + axis];
        let free = padded.checked_sub(span).filter(|_| stride[axis] > 0);
        windows.push(free.ok_or("its blocks do not fit the image")? / stride[axis] + 1);
    }
    let product = |list: &[usize]| list.iter().try_fold(1usize, |n, size| n.checked_mul(*size));
    let all = product(&block).zip(product(&windows)).zip(product(&image));
    let all = all.filter(|((taps, places), pixels)| {
        taps.saturating_mul(*places).max(*pixels) <= MAX_CONSTANT_ELEMENTS
    });
    let ((taps, places), pixels) = all.ok_or("an image of this size is not supported")?;
    // The pixel of each element of each block; what lies in the padding goes to a pixel behind the last one.
    let mut index = Vec::with_capacity(taps * places);
    for tap in 0..taps {
        for place in 0..places {
            let (mut tap, mut place, mut pixel, mut width) = (tap, place, Some(0), 1);
            for axis in (0..count).rev() {
                let at =
                    (place % windows[axis]) * stride[axis] + (tap % block[axis]) * dilation[axis];
                (place, tap) = (place / windows[axis], tap / block[axis]);
                let at = at.checked_sub(pads[axis]).filter(|at| *at < image[axis]);
                pixel = pixel.zip(at).map(|(pixel, at)| pixel + at * width);
                width *= image[axis];
            }
            index.push(pixel.unwrap_or(pixels) as i64);
        }
    }
    let [batch, rows, columns] = lower.shape(x)[..] else {
        return Err("its operand must have three axes".into());
    };
    let channels = rows
        .checked_div(taps)
        .filter(|_| columns == Dim::from(places));
    let channels = channels.ok_or("its operand does not match its blocks")?;
    let each = batch
        .checked_mul(&channels)
        .ok_or("multiplies three dynamic sizes")?;
    let x = lower.reshape(x, vec![each, Dim::from(taps * places)])?;
    let values = lower.transposed(x)?;
    let index = lower.constant(DType::I64, &[taps * places], Bytes::from_slice(&index))?;
    let empty = vec![Dim::from(pixels + 1), each];
    let empty = lower.fill(Scalar::F32(0.0), DType::F32, empty)?;
    let scatter = Scatter {
        function: ScatterFunction::Add,
    };
    let sum = lower.emit(scatter, &[empty, index, values])?;
    let sum = lower.slice(sum, 0, Dim::from(0), Dim::from(pixels))?;
    let sum = lower.transposed(sum)?;
    let mut shape = vec![batch, channels];
    shape.extend(image.iter().map(|n| Dim::from(*n)));
    Ok(vec![lower.reshape(sum, shape)?])
}

/// Puts elements at the places where a pooling found them.
pub(super) fn max_unpool(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.real(call, 0)?;
    let index = lower.operand(call, 1)?;
    let shape = lower.shape(x);
    let count = shape.len().checked_sub(2).filter(|count| *count > 0);
    let count = count.ok_or("its operand has no spatial axes")?;
    let kernel = windowed::numbers(call, "kernel_shape", count, 1)?;
    let stride = windowed::numbers(call, "strides", count, 1)?;
    let pads = windowed::numbers(call, "pads", 2 * count, 0)?;
    let mut inner = shape[..2].to_vec();
    for axis in 0..count {
        let size = shape[2 + axis].as_const().filter(|size| *size > 0);
        let size = size.ok_or("its sizes must be constants")?;
        let full = (size - 1)
            .saturating_mul(stride[axis])
            .saturating_add(kernel[axis]);
        let size = full.checked_sub(pads[axis] + pads[count + axis]);
        inner.push(Dim::from(
            size.ok_or("its padding is larger than the image")?,
        ));
    }
    let (from, to) = (elements(&shape)?, elements(&inner)?);
    let flat = |lower: &mut OnnxLowering<'_>, id| lower.reshape(id, vec![Dim::from(from)]);
    let (values, index) = (flat(lower, x)?, flat(lower, index)?);
    let empty = lower.fill(Scalar::F32(0.0), DType::F32, vec![Dim::from(to)])?;
    let scatter = Scatter {
        function: ScatterFunction::Replace,
    };
    let result = lower.emit(scatter, &[empty, index, values])?;
    let mut result = lower.reshape(result, inner.clone())?;
    if let Some(wanted) = lower.maybe(call, 2)? {
        let wanted = lower.numbers(wanted)?;
        if wanted.len() != inner.len() {
            return Err("its output shape has another number of axes".into());
        }
        for (axis, wanted) in wanted.into_iter().enumerate() {
            let size = inner[axis].as_number().unwrap_or(wanted);
            if wanted < size {
                return Err("its output shape is smaller than what it unpools".into());
            }
            result = lower.pad_axis(result, axis, [0, wanted - size], Scalar::F32(0.0))?;
        }
    }
    Ok(vec![result])
}

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
    let fits = offsets == Dim::from(groups.saturating_mul(2 * taps));
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
    let stacked = Dim::from(taps * rows);
    let [rows, columns, tap_dim, two, group_dim] = [rows, columns, taps, 2, groups].map(Dim::from);
    let offset = lower.reshape(offset, vec![batch, group_dim, tap_dim, two, rows, columns])?;
    let places = lower.binary(B::Add, offset, base)?;
    let mut points = vec![];
    for (axis, size) in [(1, width), (0, height)] {
        // Coordinates of the outer edges are −1 and 1.
        let part = lower.slice(places, 3, Dim::from(axis), Dim::from(1))?;
        let part = lower.with_number(B::Add, part, 0.5)?;
        let part = lower.with_number(B::Mul, part, 2.0 / size as f32)?;
        let part = lower.with_number(B::Sub, part, 1.0)?;
        let all = batch * groups;
        points.push(lower.reshape(part, vec![all, stacked, columns, Dim::from(1)])?);
    }
    let grid = lower.concat(&points, 3)?;
    let image = vec![
        batch * groups,
        Dim::from(channels / groups),
        Dim::from(height),
        Dim::from(width),
    ];
    let image = lower.reshape(x, image)?;
    let sample = GridSample {
        mode: SampleMode::Linear,
        padding: SamplePadding::Zeros,
        align_corners: false,
    };
    let mut taken = lower.emit(sample, &[image, grid])?;
    let each = Dim::from(channels / groups);
    taken = lower.reshape(taken, vec![batch, group_dim, each, tap_dim, rows, columns])?;
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
