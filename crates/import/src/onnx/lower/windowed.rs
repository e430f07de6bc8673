//! Convolutions, pooling and sampling.

use base::{Bytes, DType};
use graph::ops::{
    BinaryFunction as B, Gather, GridSample, Reduce, ReduceFunction, SampleMode, SamplePadding,
    Scalar, UnaryFunction, WindowAxis, Windows,
};
use graph::{Dim, TensorId};

use super::call::Call;
use super::context::{OnnxLowering, Results};
use crate::lowering::{
    ConvSizes, Divisor, MAX_CONSTANT_ELEMENTS, MAX_WINDOW_NUMBER, Pooling, elements, window_number,
};
use crate::stored_type::StoredType;

/// A list of `count` numbers.
pub(super) fn numbers(
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

/// How the kernel `weight` of a convolution slides over `x`.
pub(super) fn conv_sizes(
    lower: &mut OnnxLowering<'_>,
    call: &Call<'_>,
    x: TensorId,
    weight: TensorId,
) -> Result<ConvSizes, String> {
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
    let padding = match call.op() {
        // Found from the result's shape.
        "ConvTranspose" => vec![[0; 2]; count],
        _ => padding(call, &sizes, &spans, &stride)?,
    };
    Ok(ConvSizes {
        stride,
        dilation,
        padding,
        groups,
    })
}

/// The padding of each axis of a transposed convolution, which crops the result, and the elements that are added at its end.
#[allow(
    clippy::type_complexity,
    reason = "two lists with an entry for each axis"
)]
fn transposed_padding(
    call: &Call<'_>,
    sizes: &[Dim],
    spans: &[usize],
    stride: &[usize],
) -> Result<(Vec<[usize; 2]>, Vec<usize>), String> {
    let count = spans.len();
    let mut longer = numbers(call, "output_padding", count, 0)?;
    let automatic = call.text("auto_pad")?.unwrap_or("NOTSET");
    let shape = call.ints("output_shape")?;
    if shape.is_none() && !automatic.starts_with("SAME") {
        return Ok((padding(call, sizes, spans, stride)?, longer));
    }
    // The last sizes of the result; the file may also state its batch and channels.
    let wanted = match shape {
        Some(list) => match list.len().checked_sub(count) {
            Some(first) => Some(&list[first..]),
            None => return Err("output_shape is too short".into()),
        },
        None => None,
    };
    let mut pads = vec![];
    for axis in 0..count {
        let size = sizes[axis].as_const();
        let size = size.ok_or("output_shape and auto_pad need constant sizes")?;
        let full = size.saturating_sub(1).saturating_mul(stride[axis]);
        let full = full
            .saturating_add(longer[axis])
            .saturating_add(spans[axis]);
        let wanted = match wanted {
            Some(list) => window_number("output_shape", list[axis])?,
            None => size.saturating_mul(stride[axis]),
        };
        let total = match full.checked_sub(wanted) {
            Some(total) => total,
            None if wanted - full == 1 && automatic != "SAME_UPPER" => {
                longer[axis] += 1;
                0
            }
            None => return Err("an output_shape beyond the whole result is not supported".into()),
        };
        let small = total / 2;
        pads.push(match automatic {
            "SAME_UPPER" => [small, total - small],
            _ => [total - small, small],
        });
    }
    Ok((pads, longer))
}

pub(super) fn conv(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let (x, weight) = (lower.real(call, 0)?, lower.real(call, 1)?);
    let bias = lower.maybe(call, 2)?;
    let mut sizes = conv_sizes(lower, call, x, weight)?;
    if call.op() == "ConvTranspose" {
        let spans = spans(&lower.kernel_sizes(weight)?, &sizes.dilation);
        let (padding, longer) =
            transposed_padding(call, &spatial(lower, x)?, &spans, &sizes.stride)?;
        sizes.padding = padding;
        return Ok(vec![
            lower.transposed_convolution(x, weight, bias, &sizes, &longer)?,
        ]);
    }
    Ok(vec![lower.convolution(x, weight, bias, &sizes)?])
}

pub(super) fn pool(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.operand(call, 0)?;
    // Integers of eight bits are exact in f32.
    let dtype = lower.dtype(x);
    let x = lower.cast(x, DType::F32)?;
    let sizes = spatial(lower, x)?;
    let count = sizes.len();
    if call.ints("kernel_shape")?.is_none() {
        return Err("has no kernel_shape".into());
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
        "MaxPool" if call.wants(1) => {
            let places = lower.pooled_places(x, &pooling, call.flag("storage_order", false)?)?;
            lower.set_kind_of(call, 1, StoredType::I64);
            let largest = lower.max_pool(x, &pooling)?;
            return Ok(vec![lower.cast(largest, dtype)?, places]);
        }
        "MaxPool" => {
            let largest = lower.max_pool(x, &pooling)?;
            lower.cast(largest, dtype)?
        }
        // The root of the sum of powers.
        "LpPool" => {
            let order = call.int_or("p", 2)? as f32;
            let powers = lower.powers(x, order)?;
            let sum = lower.average_pool(powers, &pooling, Divisor::Number(1))?;
            lower.with_number(B::Pow, sum, 1.0 / order)?
        }
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
    let mut x = lower.real(call, 0)?;
    let count = spatial(lower, x)?.len();
    let order = call.int_or("p", 2)? as f32;
    let roots = call.op() == "GlobalLpPool";
    if roots {
        x = lower.powers(x, order)?;
    }
    let reduce = Reduce {
        function: match call.op() {
            "GlobalMaxPool" => ReduceFunction::Max,
            "GlobalLpPool" => ReduceFunction::Sum,
            _ => ReduceFunction::Mean,
        },
        axes: (2..2 + count).collect(),
        keep: true,
    };
    let result = lower.emit(reduce, &[x])?;
    Ok(vec![match roots {
        true => lower.with_number(B::Pow, result, 1.0 / order)?,
        false => result,
    }])
}

impl OnnxLowering<'_> {
    /// Indices of the largest elements of windows in the whole tensor; `columns` counts columns before rows.
    fn pooled_places(
        &mut self,
        x: TensorId,
        pooling: &Pooling,
        columns: bool,
    ) -> Result<TensorId, String> {
        if pooling.ceil {
            return Err("indices of the largest elements with ceil_mode are not supported".into());
        }
        let shape = self.shape(x);
        let sizes = shape[2..].iter().map(Dim::as_const);
        let sizes = sizes.collect::<Option<Vec<usize>>>();
        let sizes = sizes.ok_or("indices of the largest elements need constant sizes")?;
        let all = elements(&shape[2..])?;
        // The distance of neighbours along each axis.
        let step = |axis: usize| -> usize {
            match columns {
                true => sizes[..axis].iter().product(),
                false => sizes[axis + 1..].iter().product(),
            }
        };
        let windows = Windows {
            axes: pooling.axes.clone(),
            batch_axes: 2,
            padding: f32::NEG_INFINITY,
        };
        let windows = self.emit(windows, &[x])?;
        let shown = self.shape(windows);
        let count = pooling.axes.len();
        let (outer, taps) = shown.split_at(2 + count);
        let (outer, taps) = (outer.to_vec(), elements(taps)?);
        let places = elements(&outer[2..])?;
        if taps.max(places) > MAX_CONSTANT_ELEMENTS {
            return Err("has too many windows".into());
        }
        let mut rows = outer.clone();
        rows.push(Dim::from(taps));
        let rows = self.reshape(windows, rows)?;
        let largest = Reduce {
            function: ReduceFunction::ArgMax,
            axes: vec![2 + count],
            keep: false,
        };
        let tap = self.emit(largest, &[rows])?;
        // The place of a window's first element, and of its elements from there.
        let listed =
            |total: usize, extent: &dyn Fn(usize) -> usize, at: &dyn Fn(usize, usize) -> i64| {
                let place = |index: usize| {
                    let (mut rest, mut place) = (index, 0);
                    for axis in (0..count).rev() {
                        place += at(axis, rest % extent(axis)) * step(axis) as i64;
                        rest /= extent(axis);
                    }
                    place
                };
                (0..total).map(place).collect::<Vec<i64>>()
            };
        let axes = &pooling.axes;
        let starts = listed(
            places,
            &|axis| outer[2 + axis].as_const().unwrap_or(1).max(1),
            &|axis, at| (at * axes[axis].stride) as i64 - axes[axis].before as i64,
        );
        let offsets = listed(taps, &|axis| axes[axis].size.max(1), &|axis, at| {
            (at * axes[axis].dilation) as i64
        });
        let start_shape: Vec<usize> = outer[2..].iter().filter_map(Dim::as_const).collect();
        let starts = self.constant(DType::I64, &start_shape, Bytes::from_slice(&starts))?;
        let offsets = self.constant(DType::I64, &[taps], Bytes::from_slice(&offsets))?;
        let offset = self.emit(Gather { axis: 0 }, &[offsets, tap])?;
        let inner = self.binary(B::Add, offset, starts)?;
        let images = shape[0]
            .checked_mul(&shape[1])
            .ok_or("multiplies three dynamic sizes")?;
        let image = self.count_from(Dim::from(0), images)?;
        let mut column = vec![Dim::from(1); 2 + count];
        column[..2].copy_from_slice(&shape[..2]);
        let image = self.reshape(image, column)?;
        let size = self.scalar(Scalar::I64(all as i64), DType::I64)?;
        let first = self.binary(B::Mul, image, size)?;
        self.binary(B::Add, inner, first)
    }

    /// Powers of absolute values.
    fn powers(&mut self, x: TensorId, order: f32) -> Result<TensorId, String> {
        if order < 1.0 {
            return Err(format!("a norm of order {order} is not supported"));
        }
        let size = self.unary(UnaryFunction::Abs, x)?;
        self.with_number(B::Pow, size, order)
    }
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
            match call.text("mode")?.unwrap_or("DCR") {
                "CRD" => vec![0, 1, 3, 5, 2, 4],
                _ => vec![0, 3, 5, 1, 2, 4],
            },
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
