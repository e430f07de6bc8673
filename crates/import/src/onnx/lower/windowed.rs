//! Convolutions, pooling and resizing.

use base::DType;
use graph::ops::{GridSample, Reduce, ReduceFunction, SampleMode, SamplePadding, WindowAxis};
use graph::{Dim, TensorId};

use super::call::Call;
use super::context::{OnnxLowering, Results};
use crate::lowering::{
    ConvSizes, Coordinates, Divisor, Interpolation, MAX_WINDOW_NUMBER, Nearest, Pooling,
    window_number,
};

/// A list of `count` numbers.
fn numbers(
    call: &Call<'_>,
    name: &str,
    count: usize,
    default: usize,
) -> Result<Vec<usize>, String> {
    let Some(list) = call.ints(name)? else {
        return Ok(vec![default; count]);
    };
    if list.len() != count {
        return Err(format!(
            "{name} has {} numbers, must have {count}",
            list.len()
        ));
    }
    list.iter().map(|n| window_number(name, *n)).collect()
}

/// Padding before and after each axis, of windows of these spans that move by these strides.
fn padding(
    call: &Call<'_>,
    sizes: &[Dim],
    spans: &[usize],
    stride: &[usize],
) -> Result<Vec<[usize; 2]>, String> {
    let count = spans.len();
    let automatic = call.text("auto_pad")?.unwrap_or("NOTSET");
    match automatic {
        "NOTSET" | "" => {
            let list = numbers(call, "pads", 2 * count, 0)?;
            Ok((0..count).map(|i| [list[i], list[count + i]]).collect())
        }
        "VALID" => Ok(vec![[0; 2]; count]),
        "SAME_UPPER" | "SAME_LOWER" => {
            let pad = |i: usize| {
                let size = sizes[i].as_const().ok_or("auto_pad needs constant sizes")?;
                let steps = size.div_ceil(stride[i].max(1)).saturating_sub(1);
                let end = steps.saturating_mul(stride[i]).saturating_add(spans[i]);
                let total = end.saturating_sub(size);
                let small = total / 2;
                Ok(match automatic {
                    "SAME_UPPER" => [small, total - small],
                    _ => [total - small, small],
                })
            };
            (0..count).map(pad).collect()
        }
        other => Err(format!("auto_pad {other:?} is not supported")),
    }
}

/// The elements of an axis that a window covers.
fn spans(kernel: &[usize], dilation: &[usize]) -> Vec<usize> {
    let span = |(k, d): (&usize, &usize)| k.saturating_sub(1).saturating_mul(*d).saturating_add(1);
    kernel.iter().zip(dilation).map(span).collect()
}

/// The spatial axes of an operand `[N, C, ..]`.
fn spatial(lower: &OnnxLowering<'_>, x: TensorId) -> Result<Vec<Dim>, String> {
    let shape = lower.shape(x);
    let sizes = shape.get(2..).filter(|sizes| !sizes.is_empty());
    let sizes = sizes.ok_or_else(|| format!("an operand of shape {shape:?} is not supported"))?;
    Ok(sizes.to_vec())
}

pub(super) fn conv(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let (x, weight) = (lower.real(call, 0)?, lower.real(call, 1)?);
    let bias = lower.maybe(call, 2)?;
    let (sizes, kernel) = (spatial(lower, x)?, lower.kernel_sizes(weight)?);
    let count = kernel.len();
    if sizes.len() != count {
        return Err(format!(
            "{} axes and a kernel of {count} do not match",
            sizes.len()
        ));
    }
    let (stride, dilation) = (
        numbers(call, "strides", count, 1)?,
        numbers(call, "dilations", count, 1)?,
    );
    let groups = call.count("group")?.unwrap_or(1);
    if groups as i64 > MAX_WINDOW_NUMBER {
        return Err(format!("{groups} groups are not supported"));
    }
    let spans = spans(&kernel, &dilation);
    if call.op() == "ConvTranspose" {
        let longer = numbers(call, "output_padding", count, 0)?;
        if call.ints("output_shape")?.is_some() {
            return Err("output_shape is not supported".into());
        }
        let padding = match call.text("auto_pad")?.unwrap_or("NOTSET") {
            "NOTSET" | "VALID" | "" => padding(call, &sizes, &spans, &stride)?,
            other => return Err(format!("auto_pad {other:?} is not supported")),
        };
        let sizes = ConvSizes {
            stride,
            dilation,
            padding,
            groups,
        };
        return Ok(vec![
            lower.transposed_convolution(x, weight, bias, &sizes, &longer)?,
        ]);
    }
    let padding = padding(call, &sizes, &spans, &stride)?;
    let sizes = ConvSizes {
        stride,
        dilation,
        padding,
        groups,
    };
    Ok(vec![lower.convolution(x, weight, bias, &sizes)?])
}

pub(super) fn pool(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.real(call, 0)?;
    let sizes = spatial(lower, x)?;
    let count = sizes.len();
    if call.ints("kernel_shape")?.is_none() {
        return Err("has no kernel_shape".into());
    }
    if call.int_or("storage_order", 0)? != 0 || call.wants(1) {
        return Err("indices of the largest elements are not supported".into());
    }
    let kernel = numbers(call, "kernel_shape", count, 1)?;
    let stride = numbers(call, "strides", count, 1)?;
    let dilation = numbers(call, "dilations", count, 1)?;
    let padding = padding(call, &sizes, &spans(&kernel, &dilation), &stride)?;
    let axis = |i: usize| WindowAxis {
        size: kernel[i],
        stride: stride[i],
        dilation: dilation[i],
        before: padding[i][0],
        after: padding[i][1],
    };
    let pooling = Pooling {
        axes: (0..count).map(axis).collect(),
        ceil: call.flag("ceil_mode", false)?,
    };
    Ok(vec![match call.op() {
        "MaxPool" => lower.max_pool(x, &pooling)?,
        _ => {
            let divisor = match call.flag("count_include_pad", false)? {
                true => Divisor::ElementsAndPadding,
                false => Divisor::Elements,
            };
            lower.average_pool(x, &pooling, divisor)?
        }
    }])
}

pub(super) fn global_pool(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.real(call, 0)?;
    let count = spatial(lower, x)?.len();
    let reduce = Reduce {
        function: match call.op() {
            "GlobalMaxPool" => ReduceFunction::Max,
            _ => ReduceFunction::Mean,
        },
        axes: (2..2 + count).collect(),
        keep: true,
    };
    Ok(vec![lower.emit(reduce, &[x])?])
}

/// Moves blocks of channels to places, or back.
pub(super) fn depth_to_space(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.operand(call, 0)?;
    let shape = lower.shape(x);
    let block = call
        .count("blocksize")?
        .filter(|n| (1..=1 << 12).contains(n));
    let block = block.ok_or("its blocksize is missing or out of range")?;
    let wrong = || format!("blocks of {block} do not divide {shape:?}");
    let &[batch, channels, height, width] = &shape[..] else {
        return Err(wrong());
    };
    let b = Dim::from(block);
    let (apart, order, result) = if call.op() == "DepthToSpace" {
        let each = channels.checked_div(block * block).ok_or_else(wrong)?;
        let result = vec![batch, each, height * block, width * block];
        match call.text("mode")?.unwrap_or("DCR") {
            "CRD" => (
                vec![batch, each, b, b, height, width],
                vec![0, 1, 4, 2, 5, 3],
                result,
            ),
            _ => (
                vec![batch, b, b, each, height, width],
                vec![0, 3, 4, 1, 5, 2],
                result,
            ),
        }
    } else {
        let down = |n: Dim| n.checked_div(block).ok_or_else(wrong);
        let (height, width) = (down(height)?, down(width)?);
        let result = vec![batch, channels * (block * block), height, width];
        (
            vec![batch, channels, height, b, width, b],
            vec![0, 3, 5, 1, 2, 4],
            result,
        )
    };
    let x = lower.reshape(x, apart)?;
    let x = lower.permute(x, order)?;
    Ok(vec![lower.reshape(x, result)?])
}

pub(super) fn grid_sample(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let (x, grid) = (lower.operand(call, 0)?, lower.operand(call, 1)?);
    // The names of version 16, and those of later ones.
    let mode = match call.text("mode")? {
        None | Some("bilinear" | "linear") => SampleMode::Linear,
        Some("nearest") => SampleMode::Nearest,
        Some("bicubic" | "cubic") => SampleMode::Cubic,
        Some(other) => return Err(format!("mode {other:?} is not supported")),
    };
    let padding = match call.text("padding_mode")? {
        None | Some("zeros") => SamplePadding::Zeros,
        Some("border") => SamplePadding::Border,
        Some("reflection") => SamplePadding::Reflection,
        Some(other) => return Err(format!("padding_mode {other:?} is not supported")),
    };
    let op = GridSample {
        mode,
        padding,
        align_corners: call.flag("align_corners", false)?,
    };
    Ok(vec![lower.emit(op, &[x, grid])?])
}

pub(super) fn resize(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let mut x = lower.operand(call, 0)?;
    let old = call.op() == "Upsample" || call.version() < 11;
    let (scales, sizes) = match old {
        true => (lower.maybe(call, 1)?, None),
        false => (lower.maybe(call, 2)?, lower.maybe(call, 3)?),
    };
    if call.flag("exclude_outside", false)? || call.flag("antialias", false)? {
        return Err("exclude_outside and antialias are not supported".into());
    }
    let rank = lower.rank(x);
    if rank == 0 {
        return Err("its operand is a scalar; it needs at least one axis".into());
    }
    let axes: Vec<usize> = match call.ints("axes")? {
        Some(list) => list
            .iter()
            .map(|axis| crate::lowering::LoweringBuilder::axis(*axis, rank))
            .collect::<Result<_, _>>()?,
        None => (0..rank).collect(),
    };
    let given = |id: TensorId, lower: &OnnxLowering<'_>| {
        let empty = lower.shape(id).contains(&Dim::from(0));
        (!empty).then_some(id)
    };
    let scales = scales.and_then(|id| given(id, lower));
    let sizes = sizes.and_then(|id| given(id, lower));
    let coordinates = match call.text("coordinate_transformation_mode")? {
        _ if old => Coordinates::Asymmetric,
        None | Some("half_pixel") => Coordinates::HalfPixel,
        Some("pytorch_half_pixel") => Coordinates::PytorchHalfPixel,
        Some("align_corners") => Coordinates::AlignCorners,
        Some("asymmetric") => Coordinates::Asymmetric,
        Some(other) => return Err(format!("coordinates {other:?} are not supported")),
    };
    let shape = lower.shape(x);
    // The result's size along each axis, and elements of the input per element of the result.
    let mut targets: Vec<(usize, Option<f64>)> = vec![];
    if let Some(sizes) = sizes {
        if call.text("keep_aspect_ratio_policy")?.unwrap_or("stretch") != "stretch" {
            return Err("only the aspect ratio policy \"stretch\" is supported".into());
        }
        for size in lower.numbers(sizes)? {
            let size = usize::try_from(size).map_err(|_| "its sizes are out of range")?;
            targets.push((size, None));
        }
    } else {
        let scales = scales.ok_or("has neither sizes nor scales")?;
        let known = lower.const_value(scales);
        let known = known.and_then(|known| known.constant(DType::F32));
        let Some(graph::Data::F32(scales)) = known else {
            return Err("its scales must be constants".into());
        };
        for (axis, scale) in axes.iter().zip(scales) {
            let from = shape[*axis];
            let to = match from.as_const() {
                Some(from) => (from as f64 * f64::from(scale)).floor(),
                None if scale == 1.0 => f64::NAN,
                None => return Err("a resized axis must have a constant size".into()),
            };
            targets.push((to as usize, Some(1.0 / f64::from(scale))));
        }
    }
    if targets.len() != axes.len() {
        return Err(format!(
            "resizes {} axes with {} sizes",
            axes.len(),
            targets.len()
        ));
    }
    // The elements of a result are listed in a constant.
    const MAX_SIZE: usize = 1 << 24;
    if let Some((size, _)) = targets.iter().find(|(size, _)| *size > MAX_SIZE) {
        return Err(format!(
            "resizes an axis to {size} elements; at most {MAX_SIZE} are supported"
        ));
    }
    let mode = call.text("mode")?.unwrap_or("nearest");
    for (axis, (to, scale)) in axes.into_iter().zip(targets) {
        if shape[axis] == Dim::from(to) || scale == Some(1.0) {
            continue;
        }
        if to == 0 {
            return Err("a resized axis must have elements".into());
        }
        x = match mode {
            "nearest" => {
                let nearest = match call.text("nearest_mode")? {
                    _ if old => Nearest::Floor,
                    None | Some("round_prefer_floor") => Nearest::RoundPreferFloor,
                    Some("round_prefer_ceil") => Nearest::RoundPreferCeil,
                    Some("floor") => Nearest::Floor,
                    Some("ceil") => Nearest::Ceil,
                    Some(other) => return Err(format!("nearest_mode {other:?} is not supported")),
                };
                lower.nearest(x, axis, to, scale, coordinates, nearest)?
            }
            "linear" | "bilinear" => {
                lower.interpolated(x, axis, to, scale, coordinates, Interpolation::Linear)?
            }
            "cubic" => {
                let a = f64::from(call.float_or("cubic_coeff_a", -0.75)?);
                lower.interpolated(x, axis, to, scale, coordinates, Interpolation::Cubic(a))?
            }
            other => return Err(format!("mode {other:?} is not supported")),
        };
    }
    Ok(vec![x])
}
