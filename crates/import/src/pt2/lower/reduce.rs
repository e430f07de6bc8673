//! Reductions, softmax and norms.

use base::DType;
use graph::ops::{
    BinaryFunction as B, CumSum, LayerNorm, Reduce, ReduceFunction as R, RmsNorm, Scalar, Softmax,
    UnaryFunction as U,
};
use graph::{Dim, TensorId};

use super::call::Call;
use super::context::Pt2Lowering;
use crate::lowering::{LoweringBuilder, elements};

type Results = Result<Vec<TensorId>, String>;

fn reduce(
    lower: &mut Pt2Lowering<'_>,
    function: R,
    x: TensorId,
    axes: Vec<usize>,
    keep: bool,
) -> Result<TensorId, String> {
    if axes.is_empty() {
        return Ok(x);
    }
    let reduce = Reduce {
        function,
        axes,
        keep,
    };
    lower.emit(reduce, &[x])
}

/// `self` reduced over its `dim` argument.
fn over_dims(lower: &mut Pt2Lowering<'_>, call: &Call<'_>, function: R, x: TensorId) -> Results {
    let axes = Pt2Lowering::axes(call, "dim", lower.rank(x))?;
    let keep = call.flag("keepdim", false)?;
    Ok(vec![reduce(lower, function, x, axes, keep)?])
}

/// `self` cast to the type of the result.
fn in_result_type(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Result<TensorId, String> {
    let x = lower.tensor(call, "self")?;
    let dtype = lower.result_dtype(call, 0)?;
    lower.cast(x, dtype)
}

pub(super) fn sum(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = in_result_type(lower, call)?;
    over_dims(lower, call, R::Sum, x)
}

pub(super) fn mean(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = in_result_type(lower, call)?;
    over_dims(lower, call, R::Mean, x)
}

pub(super) fn prod(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = in_result_type(lower, call)?;
    over_dims(lower, call, R::Prod, x)
}

fn is_max(call: &Call<'_>) -> bool {
    let name = call.op.split('.').nth(1).unwrap_or_default();
    name.ends_with("max") || name == "any"
}

pub(super) fn extreme(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.tensor(call, "self")?;
    over_dims(lower, call, if is_max(call) { R::Max } else { R::Min }, x)
}

pub(super) fn extreme_with_index(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.tensor(call, "self")?;
    let (value, place) = match is_max(call) {
        true => (R::Max, R::ArgMax),
        false => (R::Min, R::ArgMin),
    };
    let mut results = over_dims(lower, call, value, x)?;
    if call.results().len() > 1 {
        results.extend(over_dims(lower, call, place, x)?);
    }
    Ok(results)
}

pub(super) fn arg(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let mut x = lower.tensor(call, "self")?;
    if call.get("dim").is_none() {
        let all = elements(&lower.shape(x))?;
        x = lower.reshape(x, vec![Dim::from(all)])?;
    }
    over_dims(
        lower,
        call,
        if is_max(call) { R::ArgMax } else { R::ArgMin },
        x,
    )
}

pub(super) fn truth(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.tensor(call, "self")?;
    let x = lower.cast(x, DType::Bool)?;
    over_dims(lower, call, if is_max(call) { R::Max } else { R::Min }, x)
}

pub(super) fn variance(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.tensor(call, "self")?;
    let axes = Pt2Lowering::axes(call, "dim", lower.rank(x))?;
    let correction = match call.get("correction") {
        Some(_) => call.float("correction", 1.0)?,
        None => f32::from(u8::from(call.flag("unbiased", true)?)),
    };
    let shape = lower.shape(x);
    let reduced: Vec<Dim> = axes.iter().map(|axis| shape[*axis]).collect();
    let count = elements(&reduced)?;
    let mean = reduce(lower, R::Mean, x, axes.clone(), true)?;
    let away = lower.binary(B::Sub, x, mean)?;
    let squares = lower.binary(B::Mul, away, away)?;
    let keep = call.flag("keepdim", false)?;
    let sum = reduce(lower, R::Sum, squares, axes, keep)?;
    let variance = lower.with_number(B::Div, sum, (count as f32 - correction).max(0.0))?;
    Ok(vec![match call.op.starts_with("aten.std") {
        true => lower.unary(U::Sqrt, variance)?,
        false => variance,
    }])
}

pub(super) fn variance_and_mean(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.tensor(call, "self")?;
    let mut results = variance(lower, call)?;
    results.extend(over_dims(lower, call, R::Mean, x)?);
    Ok(results)
}

/// The smallest and the largest element.
pub(super) fn extremes(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.tensor(call, "self")?;
    let axes = match call.get("dim") {
        Some(_) => vec![LoweringBuilder::axis(call.int("dim", 0)?, lower.rank(x))?],
        None => (0..lower.rank(x)).collect(),
    };
    let keep = call.flag("keepdim", false)?;
    let least = reduce(lower, R::Min, x, axes.clone(), keep)?;
    Ok(vec![least, reduce(lower, R::Max, x, axes, keep)?])
}

pub(super) fn count_nonzero(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.tensor(call, "self")?;
    let truth = lower.cast(x, DType::Bool)?;
    let ones = lower.cast(truth, DType::I64)?;
    over_dims(lower, call, R::Sum, ones)
}

pub(super) fn norm(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = in_result_type(lower, call)?;
    let name = if call.get("ord").is_some() {
        "ord"
    } else {
        "p"
    };
    match call.float(name, 2.0)? {
        2.0 => {
            let squares = lower.binary(B::Mul, x, x)?;
            let sum = over_dims(lower, call, R::Sum, squares)?;
            Ok(vec![lower.unary(U::Sqrt, sum[0])?])
        }
        1.0 => {
            let size = lower.unary(U::Abs, x)?;
            over_dims(lower, call, R::Sum, size)
        }
        f32::INFINITY => {
            let size = lower.unary(U::Abs, x)?;
            over_dims(lower, call, R::Max, size)
        }
        order => Err(format!("a norm of order {order} is not supported")),
    }
}

pub(super) fn logsumexp(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = in_result_type(lower, call)?;
    let axes = Pt2Lowering::axes(call, "dim", lower.rank(x))?;
    let max = reduce(lower, R::Max, x, axes.clone(), true)?;
    let below = lower.binary(B::Sub, x, max)?;
    let powers = lower.unary(U::Exp, below)?;
    let sum = reduce(lower, R::Sum, powers, axes, true)?;
    let log = lower.unary(U::Log, sum)?;
    let result = lower.binary(B::Add, log, max)?;
    let shape = lower.result_shape(call, 0)?;
    Ok(vec![lower.reshape(result, shape)?])
}

pub(super) fn cumsum(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = in_result_type(lower, call)?;
    let axis = LoweringBuilder::axis(call.int("dim", 0)?, lower.rank(x))?;
    Ok(vec![lower.emit(CumSum { axis }, &[x])?])
}

pub(super) fn softmax(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = in_result_type(lower, call)?;
    let axis = LoweringBuilder::axis(call.int("dim", -1)?, lower.rank(x))?;
    let log = call.op.contains("log_softmax");
    Ok(vec![lower.emit(Softmax { axis, log }, &[x])?])
}

/// The operand with the normalised trailing axes flattened to one, and the size of that axis.
fn rows(
    lower: &mut Pt2Lowering<'_>,
    call: &Call<'_>,
    x: TensorId,
) -> Result<(TensorId, usize), String> {
    let normalized = call
        .ints("normalized_shape")?
        .ok_or("has no normalized_shape")?;
    let shape = lower.shape(x);
    let outer = shape
        .len()
        .checked_sub(normalized.len())
        .filter(|_| !normalized.is_empty());
    let outer = outer.ok_or("normalises more axes than its operand has")?;
    let width = elements(&shape[outer..])?;
    let mut rows = shape[..outer].to_vec();
    rows.push(Dim::from(width));
    Ok((lower.reshape(x, rows)?, width))
}

/// The weight or bias of a norm as a vector, filled with `default` if there is none.
fn vector(
    lower: &mut Pt2Lowering<'_>,
    call: &Call<'_>,
    name: &str,
    width: usize,
    default: f32,
) -> Result<TensorId, String> {
    match lower.maybe_tensor(call, name)? {
        Some(x) => {
            let x = lower.cast(x, DType::F32)?;
            lower.reshape(x, vec![Dim::from(width)])
        }
        None => lower.filled(Scalar::F32(default), DType::F32, &[width]),
    }
}

pub(super) fn layer_norm(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.tensor(call, "input")?;
    let shape = lower.shape(x);
    let x = lower.cast(x, DType::F32)?;
    let (rows, width) = rows(lower, call, x)?;
    let weight = vector(lower, call, "weight", width, 1.0)?;
    let bias = vector(lower, call, "bias", width, 0.0)?;
    let eps = call.float("eps", 1e-5)?;
    let result = lower.emit(LayerNorm { eps }, &[rows, weight, bias])?;
    Ok(vec![lower.reshape(result, shape)?])
}

pub(super) fn rms_norm(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.tensor(call, "input")?;
    let shape = lower.shape(x);
    let x = lower.cast(x, DType::F32)?;
    let (rows, width) = rows(lower, call, x)?;
    let weight = vector(lower, call, "weight", width, 1.0)?;
    let eps = call.float("eps", f32::EPSILON)?;
    let result = lower.emit(RmsNorm { eps }, &[rows, weight])?;
    Ok(vec![lower.reshape(result, shape)?])
}

pub(super) fn group_norm(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.tensor(call, "input")?;
    let name = if call.get("group").is_some() {
        "group"
    } else {
        "num_groups"
    };
    let groups = usize::try_from(call.int(name, 1)?).unwrap_or(0);
    normalise_groups(lower, call, x, groups)
}

pub(super) fn instance_norm(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    if !call.flag("use_input_stats", true)? {
        return batch_norm(lower, call);
    }
    let x = lower.tensor(call, "input")?;
    let channels = lower.shape(x).get(1).and_then(Dim::as_const).unwrap_or(0);
    normalise_groups(lower, call, x, channels)
}

/// Normalises the channels of each group, and applies the weight and bias of each channel.
fn normalise_groups(
    lower: &mut Pt2Lowering<'_>,
    call: &Call<'_>,
    x: TensorId,
    groups: usize,
) -> Results {
    let x = lower.cast(x, DType::F32)?;
    let shape = lower.shape(x);
    let known = elements(shape.get(1..).unwrap_or_default())?;
    let channels = shape.get(1).and_then(Dim::as_const).unwrap_or(0);
    if groups == 0 || channels == 0 || !channels.is_multiple_of(groups) {
        return Err(format!("{groups} groups do not divide {channels} channels"));
    }
    let width = known / groups;
    let apart = lower.reshape(x, vec![shape[0], Dim::from(groups), Dim::from(width)])?;
    let ones = lower.filled(Scalar::F32(1.0), DType::F32, &[width])?;
    let zeros = lower.filled(Scalar::F32(0.0), DType::F32, &[width])?;
    let eps = call.float("eps", 1e-5)?;
    let normed = lower.emit(LayerNorm { eps }, &[apart, ones, zeros])?;
    let mut result = lower.reshape(normed, shape.clone())?;
    let mut column = vec![Dim::from(1); shape.len() - 1];
    column[0] = Dim::from(channels);
    for (name, function) in [("weight", B::Mul), ("bias", B::Add)] {
        if let Some(per_channel) = lower.maybe_tensor(call, name)? {
            let per_channel = lower.reshape(per_channel, column.clone())?;
            result = lower.binary(function, result, per_channel)?;
        }
    }
    Ok(vec![result])
}

/// A batch norm by the statistics of its operand, to which ExecuTorch lowers instance norms.
pub(super) fn batch_norm_by_batch(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    if !call.flag("training", true)? {
        return batch_norm(lower, call);
    }
    let x = lower.tensor(call, "input")?;
    let x = lower.cast(x, DType::F32)?;
    let axes: Vec<usize> = (0..lower.rank(x)).filter(|axis| *axis != 1).collect();
    let mean = reduce(lower, R::Mean, x, axes.clone(), true)?;
    let away = lower.binary(B::Sub, x, mean)?;
    let squares = lower.binary(B::Mul, away, away)?;
    let variance = reduce(lower, R::Mean, squares, axes, true)?;
    let channels = *lower.shape(x).get(1).ok_or("its operand has no channels")?;
    let statistics = [
        lower.reshape(mean, vec![channels])?,
        lower.reshape(variance, vec![channels])?,
    ];
    let affine = [
        lower.maybe_tensor(call, "weight")?,
        lower.maybe_tensor(call, "bias")?,
    ];
    let eps = call.float("eps", 1e-5)?;
    Ok(vec![lower.batch_norm(x, statistics, affine, eps)?])
}

pub(super) fn batch_norm(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    if call.flag("training", false)? {
        return Err("normalises by the batch: export the model in eval mode".into());
    }
    let x = lower.tensor(call, "input")?;
    let statistics = [
        lower.tensor(call, "running_mean")?,
        lower.tensor(call, "running_var")?,
    ];
    let affine = [
        lower.maybe_tensor(call, "weight")?,
        lower.maybe_tensor(call, "bias")?,
    ];
    let eps = call.float("eps", 1e-5)?;
    Ok(vec![lower.batch_norm(x, statistics, affine, eps)?])
}
