//! Convolutions, pooling and other ops on windows.

use base::DType;
use graph::ops::{WindowAxis, Windows};
use graph::{Dim, TensorId};

use super::call::Call;
use super::context::Pt2Lowering;
use crate::lowering::{ConvSizes, Divisor, LoweringBuilder, Pooling, elements, window_number};

type Results = Result<Vec<TensorId>, String>;

/// A number for each of `count` axes; one number stands for all of them.
fn numbers(
    call: &Call<'_>,
    name: &str,
    count: usize,
    default: usize,
) -> Result<Vec<usize>, String> {
    let list = call.ints(name)?.unwrap_or_default();
    let list = list.iter().map(|n| window_number(name, *n));
    let list = list.collect::<Result<Vec<usize>, _>>()?;
    match list[..] {
        [] => Ok(vec![default; count]),
        [one] => Ok(vec![one; count]),
        _ if list.len() == count => Ok(list),
        _ => Err(format!(
            "{name} has {} numbers for {count} axes",
            list.len()
        )),
    }
}

fn number(call: &Call<'_>, name: &str, default: usize) -> Result<usize, String> {
    Ok(numbers(call, name, 1, default)?[0])
}

/// Gives a tensor without a batch axis one, if it has `axes` axes less one.
fn batched(lower: &mut Pt2Lowering<'_>, x: TensorId, axes: usize) -> Result<TensorId, String> {
    let mut shape = lower.shape(x);
    if shape.len() + 1 == axes {
        shape.insert(0, Dim::from(1));
    }
    lower.reshape(x, shape)
}

pub(super) fn convolution(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.tensor(call, "input")?;
    let weight = lower.tensor(call, "weight")?;
    let bias = lower.maybe_tensor(call, "bias")?;
    let kernel = lower.kernel_sizes(weight)?;
    let count = kernel.len();
    let dilation = numbers(call, "dilation", count, 1)?;
    let padding: Vec<[usize; 2]> = match call.text("padding") {
        Ok(Some("same")) => {
            let span = |(k, d): (&usize, &usize)| k.saturating_sub(1).saturating_mul(*d);
            let spans = kernel.iter().zip(&dilation).map(span);
            spans.map(|span| [span / 2, span - span / 2]).collect()
        }
        Ok(Some("valid")) => vec![[0; 2]; count],
        Ok(Some(other)) => return Err(format!("padding {other:?} is not supported")),
        _ => {
            let list = numbers(call, "padding", count, 0)?;
            list.into_iter().map(|n| [n; 2]).collect()
        }
    };
    let sizes = ConvSizes {
        stride: numbers(call, "stride", count, 1)?,
        dilation,
        padding,
        groups: number(call, "groups", 1)?,
    };
    let x = batched(lower, x, count + 2)?;
    let transposed = call.flag("transposed", call.op.contains("conv_transpose"))?;
    let result = if transposed {
        let longer = numbers(call, "output_padding", count, 0)?;
        lower.transposed_convolution(x, weight, bias, &sizes, &longer)?
    } else {
        lower.convolution(x, weight, bias, &sizes)?
    };
    let shape = lower.result_shape(call, 0)?;
    Ok(vec![lower.reshape(result, shape)?])
}

/// The spatial axes of a pooling op, by its name.
fn spatial_axes(call: &Call<'_>) -> Result<usize, String> {
    let digit = call.op.split('.').nth(1).and_then(|name| {
        let (_, rest) = name.split_once("pool")?;
        rest.chars().next()?.to_digit(10)
    });
    digit
        .map(|n| n as usize)
        .ok_or_else(|| "is not supported".into())
}

fn pooling(call: &Call<'_>) -> Result<Pooling, String> {
    let count = spatial_axes(call)?;
    let kernel = numbers(call, "kernel_size", count, 1)?;
    let stride = match call.ints("stride")? {
        Some(list) if !list.is_empty() => numbers(call, "stride", count, 1)?,
        _ => kernel.clone(),
    };
    let dilation = numbers(call, "dilation", count, 1)?;
    let padding = numbers(call, "padding", count, 0)?;
    let axis = |i: usize| WindowAxis {
        size: kernel[i],
        stride: stride[i],
        dilation: dilation[i],
        before: padding[i],
        after: padding[i],
    };
    Ok(Pooling {
        axes: (0..count).map(axis).collect(),
        ceil: call.flag("ceil_mode", false)?,
    })
}

pub(super) fn max_pool(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.tensor(call, "self")?;
    Ok(vec![lower.max_pool(x, &pooling(call)?)?])
}

pub(super) fn avg_pool(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.tensor(call, "self")?;
    let divisor = match call.get("divisor_override") {
        Some(_) => Divisor::Number(number(call, "divisor_override", 1)?),
        None if call.flag("count_include_pad", true)? => Divisor::ElementsAndPadding,
        None => Divisor::Elements,
    };
    Ok(vec![lower.average_pool(x, &pooling(call)?, divisor)?])
}

pub(super) fn adaptive_pool(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.tensor(call, "self")?;
    let count = spatial_axes(call)?;
    let sizes = numbers(call, "output_size", count, 1)?;
    let sizes: Vec<Option<usize>> = sizes.into_iter().map(Some).collect();
    Ok(vec![match call.op.contains("avg_pool") {
        true => lower.adaptive_average_pool(x, &sizes)?,
        false => lower.adaptive_max_pool(x, &sizes)?,
    }])
}

/// `torch.nn.functional.unfold`: windows of two axes as columns.
pub(super) fn im2col(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.tensor(call, "self")?;
    let x = batched(lower, x, 4)?;
    let list = |name: &str, default| numbers(call, name, 2, default);
    let (size, stride) = (list("kernel_size", 1)?, list("stride", 1)?);
    let (dilation, padding) = (list("dilation", 1)?, list("padding", 0)?);
    let axis = |i: usize| WindowAxis {
        size: size[i],
        stride: stride[i],
        dilation: dilation[i],
        before: padding[i],
        after: padding[i],
    };
    let windows = Windows {
        axes: vec![axis(0), axis(1)],
        batch_axes: 2,
        padding: 0.0,
    };
    let windows = lower.emit(windows, &[x])?;
    let columns = lower.permute(windows, vec![0, 1, 4, 5, 2, 3])?;
    let shape = lower.result_shape(call, 0)?;
    Ok(vec![lower.reshape(columns, shape)?])
}

/// `Tensor.unfold`: windows of one axis, their elements last.
pub(super) fn unfold(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.tensor(call, "self")?;
    let dtype = lower.dtype(x);
    let x = lower.cast(x, DType::F32)?;
    let rank = lower.rank(x);
    let axis = LoweringBuilder::axis(call.int("dimension", 0)?, rank)?;
    let mut order: Vec<usize> = (0..rank).filter(|i| *i != axis).collect();
    order.push(axis);
    let x = lower.permute(x, order)?;
    let windows = Windows {
        axes: vec![WindowAxis {
            size: number(call, "size", 1)?,
            stride: number(call, "step", 1)?,
            dilation: 1,
            before: 0,
            after: 0,
        }],
        batch_axes: rank.checked_sub(1).ok_or("its operand is a scalar")?,
        padding: 0.0,
    };
    let windows = lower.emit(windows, &[x])?;
    // The positions take the place of the axis.
    let mut order: Vec<usize> = (0..rank - 1).collect();
    order.insert(axis, rank - 1);
    order.push(rank);
    let windows = lower.permute(windows, order)?;
    Ok(vec![lower.cast(windows, dtype)?])
}

/// Moves elements between channels and places: `pixel_shuffle` and its inverse, and `channel_shuffle`.
pub(super) fn shuffle(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.tensor(call, "self")?;
    let shape = lower.shape(x);
    let wrong = || format!("an operand of shape {shape:?} is not supported");
    let result = lower.result_shape(call, 0)?;
    if call.op.starts_with("aten.channel_shuffle") {
        let [batch, channels, rest @ ..] = &shape[..] else {
            return Err(wrong());
        };
        let groups = number(call, "groups", 1)?;
        let each = channels.checked_div(groups).ok_or_else(wrong)?;
        let mut apart = vec![*batch, Dim::from(groups), each];
        apart.extend_from_slice(rest);
        let order = [0, 2, 1].into_iter().chain(3..apart.len()).collect();
        let x = lower.reshape(x, apart)?;
        let x = lower.permute(x, order)?;
        return Ok(vec![lower.reshape(x, result)?]);
    }
    let [outer @ .., channels, height, width] = &shape[..] else {
        return Err(wrong());
    };
    let n = outer.len();
    let order = |last: [usize; 5]| (0..n).chain(last.map(|i| n + i)).collect::<Vec<usize>>();
    let mut apart = outer.to_vec();
    let order = if call.op.starts_with("aten.pixel_shuffle") {
        let r = number(call, "upscale_factor", 1)?;
        let out = channels.checked_div(r * r).ok_or_else(wrong)?;
        apart.extend([out, Dim::from(r), Dim::from(r), *height, *width]);
        order([0, 3, 1, 4, 2])
    } else {
        let r = number(call, "downscale_factor", 1)?;
        let down = |n: &Dim| n.checked_div(r).ok_or_else(wrong);
        let (height, width) = (down(height)?, down(width)?);
        apart.extend([*channels, height, Dim::from(r), width, Dim::from(r)]);
        order([0, 2, 4, 1, 3])
    };
    let x = lower.reshape(x, apart)?;
    let x = lower.permute(x, order)?;
    Ok(vec![lower.reshape(x, result)?])
}

/// The norm of weights that are stored as direction and length.
pub(super) fn weight_norm(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    use graph::ops::{BinaryFunction as B, Reduce, ReduceFunction, UnaryFunction};
    let (v, g) = (lower.tensor(call, "v")?, lower.tensor(call, "g")?);
    let rank = lower.rank(v);
    let axis = LoweringBuilder::axis(call.int("dim", 0)?, rank)?;
    let squares = lower.binary(B::Mul, v, v)?;
    let sum = Reduce {
        function: ReduceFunction::Sum,
        axes: (0..rank).filter(|i| *i != axis).collect(),
        keep: true,
    };
    let sum = lower.emit(sum, &[squares])?;
    let length = lower.unary(UnaryFunction::Sqrt, sum)?;
    let factor = lower.binary(B::Div, g, length)?;
    Ok(vec![lower.binary(B::Mul, v, factor)?])
}

/// The number of channels of an operand `[N, C, ..]`, with a shape that broadcasts a value of each channel.
pub(super) fn channel_column(lower: &Pt2Lowering<'_>, x: TensorId) -> Result<Vec<Dim>, String> {
    let shape = lower.shape(x);
    let channels = *shape.get(1).ok_or("its operand has no channels")?;
    let mut column = vec![Dim::from(1); shape.len() - 1];
    column[0] = channels;
    elements(&column)?;
    Ok(column)
}
