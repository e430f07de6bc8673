//! Layer, RMS, batch and group normalisation.

use base::DType;
use graph::ops::{
    BinaryFunction as B, LayerNorm, Reduce, ReduceFunction as R, RmsNorm, Scalar,
    UnaryFunction as U,
};
use graph::{Dim, TensorId};

use super::call::Call;
use super::context::{OnnxLowering, Results};
use crate::lowering::{LoweringBuilder, elements};

/// The operand of a norm as rows over the axes from `axis` on.
struct Rows {
    rows: TensorId,
    shape: Vec<Dim>,
    axis: usize,
    width: usize,
}

impl Rows {
    fn new(lower: &mut OnnxLowering<'_>, call: &Call<'_>, x: TensorId) -> Result<Rows, String> {
        let shape = lower.shape(x);
        let axis = LoweringBuilder::axis(call.int_or("axis", -1)?, shape.len())?;
        let width = elements(shape.get(axis..).unwrap_or_default())?;
        let mut rows = shape.get(..axis).unwrap_or_default().to_vec();
        rows.push(Dim::from(width));
        let rows = lower.reshape(x, rows)?;
        Ok(Rows {
            rows,
            shape,
            axis,
            width,
        })
    }

    /// A weight or bias as a vector over a row; `None` if it differs between rows.
    fn vector(
        &self,
        lower: &mut OnnxLowering<'_>,
        weight: Option<TensorId>,
        default: f32,
    ) -> Result<Option<TensorId>, String> {
        let Some(weight) = weight else {
            let ones = lower.filled(Scalar::F32(default), DType::F32, &[self.width])?;
            return Ok(Some(ones));
        };
        let weight = lower.cast(weight, DType::F32)?;
        let inner = &self.shape[self.axis..];
        let shape = lower.shape(weight);
        let outer = shape.len().saturating_sub(inner.len());
        if shape[..outer].iter().any(|d| *d != Dim::from(1)) || shape.len() > self.shape.len() {
            return Ok(None);
        }
        let row = lower.reshape(weight, shape[outer..].to_vec())?;
        let row = lower.expand(row, inner.to_vec())?;
        Ok(Some(lower.reshape(row, vec![Dim::from(self.width)])?))
    }
}

pub(super) fn rms_norm(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.real(call, 0)?;
    let rows = Rows::new(lower, call, x)?;
    let weight = lower.maybe(call, 1)?;
    let eps = call.float_or("epsilon", 1e-5)?;
    let vector = rows.vector(lower, weight, 1.0)?;
    let (scale, apart) = match vector {
        Some(vector) => (vector, None),
        None => (
            rows.vector(lower, None, 1.0)?.ok_or("has no weight")?,
            weight,
        ),
    };
    let result = lower.emit(RmsNorm { eps }, &[rows.rows, scale])?;
    let mut result = lower.reshape(result, rows.shape.clone())?;
    if let Some(weight) = apart {
        result = lower.binary(B::Mul, result, weight)?;
    }
    if !call.wants(1) {
        return Ok(vec![result]);
    }
    let squares = lower.binary(B::Mul, rows.rows, rows.rows)?;
    Ok(vec![result, inverse_deviation(lower, squares, eps, &rows)?])
}

/// `1 / √(mean(x) + eps)` per row, which models output for training.
fn inverse_deviation(
    lower: &mut OnnxLowering<'_>,
    squares: TensorId,
    eps: f32,
    rows: &Rows,
) -> Result<TensorId, String> {
    let mean = mean(lower, squares)?;
    let moved = lower.with_number(B::Add, mean, eps)?;
    let inverse = lower.unary(U::Rsqrt, moved)?;
    kept(lower, inverse, rows)
}

fn mean(lower: &mut OnnxLowering<'_>, x: TensorId) -> Result<TensorId, String> {
    let mean = Reduce {
        function: R::Mean,
        axes: vec![lower.rank(x) - 1],
        keep: true,
    };
    lower.emit(mean, &[x])
}

/// One value per row, with axes of size 1 in place of the row.
fn kept(lower: &mut OnnxLowering<'_>, x: TensorId, rows: &Rows) -> Result<TensorId, String> {
    let mut shape = rows.shape.clone();
    shape[rows.axis..].fill(Dim::from(1));
    lower.reshape(x, shape)
}

pub(super) fn layer_norm(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.real(call, 0)?;
    let rows = Rows::new(lower, call, x)?;
    let (weight, bias) = (lower.maybe(call, 1)?, lower.maybe(call, 2)?);
    let eps = call.float_or("epsilon", 1e-5)?;
    let vectors = (
        rows.vector(lower, weight, 1.0)?,
        rows.vector(lower, bias, 0.0)?,
    );
    let result = match vectors {
        (Some(weight), Some(bias)) => {
            let result = lower.emit(LayerNorm { eps }, &[rows.rows, weight, bias])?;
            lower.reshape(result, rows.shape.clone())?
        }
        _ => {
            let ones = lower.filled(Scalar::F32(1.0), DType::F32, &[rows.width])?;
            let zeros = lower.filled(Scalar::F32(0.0), DType::F32, &[rows.width])?;
            let result = lower.emit(LayerNorm { eps }, &[rows.rows, ones, zeros])?;
            let mut result = lower.reshape(result, rows.shape.clone())?;
            for (operand, function) in [(weight, B::Mul), (bias, B::Add)] {
                if let Some(operand) = operand {
                    result = lower.binary(function, result, operand)?;
                }
            }
            result
        }
    };
    let mut results = vec![result];
    if call.wants(1) || call.wants(2) {
        let mean = mean(lower, rows.rows)?;
        let away = lower.binary(B::Sub, rows.rows, mean)?;
        let squares = lower.binary(B::Mul, away, away)?;
        results.push(kept(lower, mean, &rows)?);
        results.push(inverse_deviation(lower, squares, eps, &rows)?);
    }
    Ok(results)
}

/// ONNX Runtime's norms of the sum `x + skip (+ bias)`; the sum is the fourth result.
pub(super) fn skip(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let simplified = call.op().contains("Simplified");
    let (x, skip) = (lower.real(call, 0)?, lower.real(call, 1)?);
    let mut sum = lower.binary(B::Add, x, skip)?;
    let bias = if simplified { 3 } else { 4 };
    if let Some(bias) = lower.maybe(call, bias)? {
        sum = lower.binary(B::Add, sum, bias)?;
    }
    if call.wants(1) || call.wants(2) {
        return Err("its mean and deviation outputs are not supported".into());
    }
    let weight = lower.operand(call, 2)?;
    let eps = call.float_or("epsilon", 1e-5)?;
    let result = if simplified {
        lower.emit(RmsNorm { eps }, &[sum, weight])?
    } else {
        let width = lower.shape(sum).last().and_then(Dim::as_const).unwrap_or(0);
        let beta = match lower.maybe(call, 3)? {
            Some(beta) => beta,
            None => lower.filled(Scalar::F32(0.0), DType::F32, &[width])?,
        };
        lower.emit(LayerNorm { eps }, &[sum, weight, beta])?
    };
    // Results 1 and 2 are unused, so any tensor can stand for them.
    Ok(vec![result, result, result, sum])
}

pub(super) fn batch_norm(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    if call.flag("training_mode", false)? || call.wants(1) {
        return Err("normalises by the batch: export the model in inference mode".into());
    }
    let x = lower.real(call, 0)?;
    let affine = [lower.maybe(call, 1)?, lower.maybe(call, 2)?];
    let statistics = [lower.real(call, 3)?, lower.real(call, 4)?];
    let eps = call.float_or("epsilon", 1e-5)?;
    Ok(vec![lower.batch_norm(x, statistics, affine, eps)?])
}

/// Normalises groups of channels; an instance norm has a group for each channel.
pub(super) fn group_norm(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.real(call, 0)?;
    let shape = lower.shape(x);
    let all = elements(shape.get(1..).unwrap_or_default())?;
    let channels = shape.get(1).and_then(Dim::as_const).unwrap_or(0);
    let groups = match call.op() {
        "GroupNormalization" => call.count("num_groups")?.unwrap_or(0),
        _ => channels,
    };
    if groups == 0 || channels == 0 || !channels.is_multiple_of(groups) {
        return Err(format!("{groups} groups do not divide {channels} channels"));
    }
    let width = all / groups;
    let rows = lower.reshape(x, vec![shape[0], Dim::from(groups), Dim::from(width)])?;
    let ones = lower.filled(Scalar::F32(1.0), DType::F32, &[width])?;
    let zeros = lower.filled(Scalar::F32(0.0), DType::F32, &[width])?;
    let eps = call.float_or("epsilon", 1e-5)?;
    let normed = lower.emit(LayerNorm { eps }, &[rows, ones, zeros])?;
    // Before opset 21, group norms had a weight and bias for each group.
    let by_group = call.op() == "GroupNormalization" && call.version() < 21;
    let (mut result, count) = match by_group {
        true => (normed, groups),
        false => (lower.reshape(normed, shape.clone())?, channels),
    };
    let mut column = vec![Dim::from(1); lower.rank(result) - 1];
    column[0] = Dim::from(count);
    for (index, function) in [(1, B::Mul), (2, B::Add)] {
        if let Some(vector) = lower.maybe(call, index)? {
            let vector = lower.reshape(vector, column.clone())?;
            result = lower.binary(function, result, vector)?;
        }
    }
    Ok(vec![lower.reshape(result, shape)?])
}

/// Divides by a power of the mean square of the channels near by.
pub(super) fn local_response(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.real(call, 0)?;
    let size = call.count("size")?.filter(|size| (1..=256).contains(size));
    let size = size.ok_or("its size is missing or out of range")?;
    let channels = *lower.shape(x).get(1).ok_or("its operand has no channels")?;
    let squares = lower.binary(B::Mul, x, x)?;
    let (before, after) = ((size - 1) / 2, size / 2);
    let pads = [before as i64, after as i64];
    let padded = lower.pad_axis(squares, 1, pads, Scalar::F32(0.0))?;
    let mut sum = lower.slice(padded, 1, Dim::from(0), channels)?;
    for start in 1..size {
        let next = lower.slice(padded, 1, Dim::from(start), channels)?;
        sum = lower.binary(B::Add, sum, next)?;
    }
    let alpha = call.float_or("alpha", 1e-4)? / size as f32;
    let scaled = lower.with_number(B::Mul, sum, alpha)?;
    let moved = lower.with_number(B::Add, scaled, call.float_or("bias", 1.0)?)?;
    let power = lower.with_number(B::Pow, moved, call.float_or("beta", 0.75)?)?;
    Ok(vec![lower.binary(B::Div, x, power)?])
}
