//! Images cut, padded and put together: `CenterCropPad`, `AffineGrid`, `Col2Im`, `MaxUnpool`.

use base::{Bytes, DType};
use graph::Dim;
use graph::ops::{MatMul, Scalar, Scatter, ScatterFunction};

use super::call::Call;
use super::context::{OnnxLowering, Results};
use super::shape::axes;
use super::windowed;
use crate::lowering::{LoweringBuilder, MAX_CONSTANT_ELEMENTS, elements, window_number};

/// Cuts or pads axes on both sides, so that the middle stays.
pub(super) fn center_crop_pad(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let mut x = lower.operand(call, 0)?;
    let wanted = lower.operand(call, 1)?;
    let wanted = lower.numbers(wanted)?;
    let rank = lower.rank(x);
    let along: Vec<usize> = match call.ints("axes")? {
        Some(list) => {
            axes(list, rank)?;
            let axis = |axis: &i64| LoweringBuilder::axis(*axis, rank);
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
