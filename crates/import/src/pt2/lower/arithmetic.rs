//! Elementwise ops.

use base::DType;
use graph::ops::{Activation, BinaryFunction as B, CompareFunction, Scalar, UnaryFunction as U};
use graph::{Dim, TensorId};

use super::call::Call;
use super::context::Pt2Lowering;
use crate::lowering::LoweringBuilder;

type Results = Result<Vec<TensorId>, String>;

/// `self` and the other operand, promoted to one type.
pub(super) fn pair(
    lower: &mut Pt2Lowering<'_>,
    call: &Call<'_>,
) -> Result<(TensorId, TensorId), String> {
    let a = lower.tensor(call, "self")?;
    let b = lower.operand(call, "other", lower.dtype(a))?;
    lower.promoted(a, b)
}

fn plain(lower: &mut Pt2Lowering<'_>, call: &Call<'_>, function: B) -> Results {
    let (a, b) = pair(lower, call)?;
    Ok(vec![lower.binary(function, a, b)?])
}

/// `x · alpha`, if the op has an alpha.
fn times_alpha(
    lower: &mut Pt2Lowering<'_>,
    call: &Call<'_>,
    x: TensorId,
) -> Result<TensorId, String> {
    let alpha = call.number("alpha", Scalar::I64(1))?;
    if alpha.to_f32() == 1.0 {
        return Ok(x);
    }
    let dtype = match alpha {
        Scalar::F32(_) => DType::F32,
        _ => lower.dtype(x),
    };
    let alpha = lower.scalar(alpha, dtype)?;
    lower.binary(B::Mul, x, alpha)
}

pub(super) fn add(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let (a, b) = pair(lower, call)?;
    let b = times_alpha(lower, call, b)?;
    if lower.dtype(a) == DType::Bool {
        return Ok(vec![
            lower.emit(graph::ops::Binary { function: B::Or }, &[a, b])?,
        ]);
    }
    Ok(vec![lower.binary(B::Add, a, b)?])
}

pub(super) fn sub(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let (a, b) = pair(lower, call)?;
    let b = times_alpha(lower, call, b)?;
    Ok(vec![lower.binary(B::Sub, a, b)?])
}

pub(super) fn rsub(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let (a, b) = pair(lower, call)?;
    let a = times_alpha(lower, call, a)?;
    Ok(vec![lower.binary(B::Sub, b, a)?])
}

pub(super) fn mul(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let (a, b) = pair(lower, call)?;
    let function = if lower.dtype(a) == DType::Bool {
        B::And
    } else {
        B::Mul
    };
    Ok(vec![lower.binary(function, a, b)?])
}

pub(super) fn div(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let (a, b) = pair(lower, call)?;
    let result = match call.text("rounding_mode")? {
        None => {
            let (a, b) = (lower.cast(a, DType::F32)?, lower.cast(b, DType::F32)?);
            lower.binary(B::Div, a, b)?
        }
        Some("floor") => lower.binary(B::FloorDiv, a, b)?,
        Some("trunc") => {
            let (size_a, size_b) = (lower.unary(U::Abs, a)?, lower.unary(U::Abs, b)?);
            let size = lower.binary(B::FloorDiv, size_a, size_b)?;
            let (sign_a, sign_b) = (lower.unary(U::Sign, a)?, lower.unary(U::Sign, b)?);
            let sign = lower.binary(B::Mul, sign_a, sign_b)?;
            lower.binary(B::Mul, sign, size)?
        }
        Some(other) => return Err(format!("rounding mode {other:?} is not supported")),
    };
    Ok(vec![result])
}

pub(super) fn floor_divide(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    plain(lower, call, B::FloorDiv)
}

pub(super) fn remainder(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    plain(lower, call, B::Mod)
}

pub(super) fn maximum(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    plain(lower, call, B::Max)
}

pub(super) fn minimum(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    plain(lower, call, B::Min)
}

pub(super) fn pow(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    // The base may be a number.
    let (base, exponent) = match call.maybe_tensor("self") {
        Ok(Some(_)) => {
            let base = lower.tensor(call, "self")?;
            (base, lower.operand(call, "exponent", lower.dtype(base))?)
        }
        _ => {
            let exponent = lower.tensor(call, "exponent")?;
            (
                lower.operand(call, "self", lower.dtype(exponent))?,
                exponent,
            )
        }
    };
    Ok(vec![lower.binary(B::Pow, base, exponent)?])
}

pub(super) fn square(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.tensor(call, "self")?;
    Ok(vec![lower.binary(B::Mul, x, x)?])
}

pub(super) fn clamp(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let mut x = lower.tensor(call, "self")?;
    if call.op.starts_with("aten.relu6") {
        let low = lower.with_number(B::Max, x, 0.0)?;
        return Ok(vec![lower.with_number(B::Min, low, 6.0)?]);
    }
    for (names, function) in [(["min", "min_val"], B::Max), (["max", "max_val"], B::Min)] {
        if let Some(name) = names.iter().find(|name| call.get(name).is_some()) {
            let bound = lower.operand(call, name, lower.dtype(x))?;
            x = lower.binary(function, x, bound)?;
        }
    }
    Ok(vec![x])
}

/// `self + value · tensor1 ∘ tensor2`.
fn add_combined(lower: &mut Pt2Lowering<'_>, call: &Call<'_>, function: B) -> Results {
    let x = lower.tensor(call, "self")?;
    let (a, b) = (
        lower.tensor(call, "tensor1")?,
        lower.tensor(call, "tensor2")?,
    );
    let combined = lower.binary(function, a, b)?;
    let scaled = match call.float("value", 1.0)? {
        1.0 => combined,
        value => lower.with_number(B::Mul, combined, value)?,
    };
    Ok(vec![lower.binary(B::Add, x, scaled)?])
}

pub(super) fn addcmul(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    add_combined(lower, call, B::Mul)
}

pub(super) fn addcdiv(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    add_combined(lower, call, B::Div)
}

pub(super) fn lerp(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let (a, b) = (lower.tensor(call, "self")?, lower.tensor(call, "end")?);
    let weight = lower.operand(call, "weight", lower.dtype(a))?;
    let way = lower.binary(B::Sub, b, a)?;
    let part = lower.binary(B::Mul, way, weight)?;
    Ok(vec![lower.binary(B::Add, a, part)?])
}

pub(super) fn unary(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.tensor(call, "self")?;
    let function = match call.op.split('.').nth(1).unwrap_or_default() {
        "neg" | "negative" => U::Neg,
        "abs" | "absolute" => U::Abs,
        "sign" | "sgn" => U::Sign,
        "exp" => U::Exp,
        "log" => U::Log,
        "sqrt" => U::Sqrt,
        "rsqrt" => U::Rsqrt,
        "reciprocal" => U::Reciprocal,
        "sin" => U::Sin,
        "cos" => U::Cos,
        "tan" => U::Tan,
        "asin" | "arcsin" => U::Asin,
        "acos" | "arccos" => U::Acos,
        "atan" | "arctan" => U::Atan,
        "sinh" => U::Sinh,
        "cosh" => U::Cosh,
        "asinh" | "arcsinh" => U::Asinh,
        "acosh" | "arccosh" => U::Acosh,
        "atanh" | "arctanh" => U::Atanh,
        "erf" => U::Erf,
        "log1p" => U::Log1p,
        "expm1" => U::Expm1,
        "floor" => U::Floor,
        "ceil" => U::Ceil,
        "round" if call.int("decimals", 0)? == 0 => U::Round,
        other => return Err(format!("{other} with these arguments is not supported")),
    };
    let keeps_integers = matches!(function, U::Neg | U::Abs | U::Sign);
    if matches!(function, U::Floor | U::Ceil | U::Round) && lower.dtype(x) != DType::F32 {
        return Ok(vec![x]);
    }
    let x = if keeps_integers {
        x
    } else {
        lower.cast(x, DType::F32)?
    };
    Ok(vec![lower.unary(function, x)?])
}

/// Functions that are composed of others.
pub(super) fn composed(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    use std::f32::consts::{LN_2, LN_10};
    let x = real(lower, call)?;
    let name = call.op.split('.').nth(1).unwrap_or_default();
    Ok(vec![match name {
        "log2" | "log10" => {
            let log = lower.unary(U::Log, x)?;
            lower.with_number(B::Div, log, if name == "log2" { LN_2 } else { LN_10 })?
        }
        "exp2" => {
            let scaled = lower.with_number(B::Mul, x, LN_2)?;
            lower.unary(U::Exp, scaled)?
        }
        "trunc" | "fix" => {
            let (size, sign) = (lower.unary(U::Abs, x)?, lower.unary(U::Sign, x)?);
            let whole = lower.unary(U::Floor, size)?;
            lower.binary(B::Mul, sign, whole)?
        }
        // log(sigmoid(x)) = -softplus(-x)
        "log_sigmoid" => {
            let negative = lower.unary(U::Neg, x)?;
            let soft = lower.unary(U::Softplus, negative)?;
            lower.unary(U::Neg, soft)?
        }
        other => return Err(format!("{other} is not supported")),
    }])
}

pub(super) fn prelu(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = real(lower, call)?;
    let mut slope = lower.tensor(call, "weight")?;
    if lower.shape(slope) != [Dim::from(1)] && lower.rank(slope) == 1 {
        let column = super::windowed::channel_column(lower, x)?;
        slope = lower.reshape(slope, column)?;
    }
    let small = lower.binary(B::Mul, x, slope)?;
    Ok(vec![lower.positive_or(x, small)?])
}

pub(super) fn not(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.tensor(call, "self")?;
    if call.op.starts_with("aten.bitwise") && lower.dtype(x) != DType::Bool {
        let dtype = lower.dtype(x);
        let ones = lower.scalar(Scalar::I64(-1), dtype)?;
        return Ok(vec![lower.binary(B::BitXor, x, ones)?]);
    }
    let x = lower.cast(x, DType::Bool)?;
    Ok(vec![lower.unary(U::Not, x)?])
}

/// `self` as f32.
pub(super) fn real(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Result<TensorId, String> {
    let x = lower.tensor(call, "self")?;
    lower.cast(x, DType::F32)
}

pub(super) fn activation(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.tensor(call, "self")?;
    let name = call.op.split('.').nth(1).unwrap_or_default();
    let activation = match name {
        "relu" if lower.dtype(x) != DType::F32 => {
            return Ok(vec![lower.with_number(B::Max, x, 0.0)?]);
        }
        "relu" => Activation::Relu,
        "silu" => Activation::Silu,
        "tanh" => Activation::Tanh,
        _ => Activation::Sigmoid,
    };
    let x = lower.cast(x, DType::F32)?;
    Ok(vec![lower.unary(U::Activation(activation), x)?])
}

pub(super) fn gelu(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.tensor(call, "self")?;
    let activation = match call.text("approximate")? {
        None | Some("none") => Activation::GeluErf,
        Some("tanh") => Activation::GeluTanh,
        Some(other) => return Err(format!("the approximation {other:?} is not supported")),
    };
    Ok(vec![lower.unary(U::Activation(activation), x)?])
}

pub(super) fn leaky_relu(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = real(lower, call)?;
    let small = lower.with_number(B::Mul, x, call.float("negative_slope", 0.01)?)?;
    Ok(vec![lower.positive_or(x, small)?])
}

pub(super) fn elu(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = real(lower, call)?;
    let name = call.op.split('.').nth(1).unwrap_or_default();
    let alpha = call.float("alpha", 1.0)?;
    Ok(vec![match name {
        "selu" => lower.selu(x)?,
        "celu" => lower.elu(x, alpha, 1.0, 1.0 / alpha)?,
        _ => {
            let inner = call.float("input_scale", 1.0)?;
            lower.elu(x, alpha, call.float("scale", 1.0)?, inner)?
        }
    }])
}

pub(super) fn softplus(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = real(lower, call)?;
    let (beta, threshold) = (call.float("beta", 1.0)?, call.float("threshold", 20.0)?);
    let scaled = match beta {
        1.0 => x,
        beta => lower.with_number(B::Mul, x, beta)?,
    };
    let soft = lower.unary(U::Softplus, scaled)?;
    let soft = match beta {
        1.0 => soft,
        beta => lower.with_number(B::Div, soft, beta)?,
    };
    // From 20 on both are equal in f32.
    if threshold >= 20.0 {
        return Ok(vec![soft]);
    }
    let limit = lower.scalar(Scalar::F32(threshold), DType::F32)?;
    let linear = lower.compare(CompareFunction::Gt, scaled, limit)?;
    Ok(vec![lower.choose(linear, x, soft)?])
}

pub(super) fn mish(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = real(lower, call)?;
    let soft = lower.unary(U::Softplus, x)?;
    let gate = lower.unary(U::Activation(Activation::Tanh), soft)?;
    Ok(vec![lower.binary(B::Mul, x, gate)?])
}

/// `min(max(x + 3, 0), 6) / 6`.
fn hard_sigmoid(lower: &mut Pt2Lowering<'_>, x: TensorId) -> Result<TensorId, String> {
    let moved = lower.with_number(B::Add, x, 3.0)?;
    let low = lower.with_number(B::Max, moved, 0.0)?;
    let both = lower.with_number(B::Min, low, 6.0)?;
    lower.with_number(B::Div, both, 6.0)
}

pub(super) fn hardsigmoid(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = real(lower, call)?;
    Ok(vec![hard_sigmoid(lower, x)?])
}

pub(super) fn hardswish(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = real(lower, call)?;
    let gate = hard_sigmoid(lower, x)?;
    Ok(vec![lower.binary(B::Mul, x, gate)?])
}

pub(super) fn glu(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = real(lower, call)?;
    let axis = LoweringBuilder::axis(call.int("dim", -1)?, lower.rank(x))?;
    let size = lower.shape(x).get(axis).copied();
    let half = size.and_then(|size| size.checked_div(2));
    let half = half.ok_or("the axis must have an even constant size")?;
    let value = lower.slice(x, axis, Dim::from(0), half)?;
    let gate = lower.slice(x, axis, half, half)?;
    let gate = lower.unary(U::Activation(Activation::Sigmoid), gate)?;
    Ok(vec![lower.binary(B::Mul, value, gate)?])
}

pub(super) fn compare(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let function = match call.op.split('.').nth(1).unwrap_or_default() {
        "eq" => CompareFunction::Eq,
        "ne" | "not_equal" => CompareFunction::Ne,
        "lt" | "less" => CompareFunction::Lt,
        "le" | "less_equal" => CompareFunction::Le,
        "gt" | "greater" => CompareFunction::Gt,
        _ => CompareFunction::Ge,
    };
    let (mut a, mut b) = pair(lower, call)?;
    if lower.dtype(a) == DType::Bool {
        (a, b) = (lower.cast(a, DType::I64)?, lower.cast(b, DType::I64)?);
    }
    Ok(vec![lower.compare(function, a, b)?])
}

pub(super) fn logic(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let name = call.op.split('.').nth(1).unwrap_or_default();
    let function = match name.trim_matches('_').rsplit('_').next() {
        Some("and") => B::And,
        Some("or") => B::Or,
        _ => B::Xor,
    };
    let (a, b) = pair(lower, call)?;
    if !name.starts_with("logical") && lower.dtype(a) != DType::Bool {
        let function = match function {
            B::And => B::BitAnd,
            B::Or => B::BitOr,
            _ => B::BitXor,
        };
        return Ok(vec![lower.binary(function, a, b)?]);
    }
    let (a, b) = (lower.cast(a, DType::Bool)?, lower.cast(b, DType::Bool)?);
    Ok(vec![lower.binary(function, a, b)?])
}

pub(super) fn isnan(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = real(lower, call)?;
    Ok(vec![lower.compare(CompareFunction::Ne, x, x)?])
}

pub(super) fn isinf(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = real(lower, call)?;
    let size = lower.unary(U::Abs, x)?;
    let infinity = lower.scalar(Scalar::F32(f32::INFINITY), DType::F32)?;
    Ok(vec![lower.compare(CompareFunction::Eq, size, infinity)?])
}

pub(super) fn choose(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let condition = lower.tensor(call, "condition")?;
    let dtype = lower.result_dtype(call, 0)?;
    let a = lower.operand(call, "self", dtype)?;
    let b = lower.operand(call, "other", dtype)?;
    Ok(vec![lower.choose(condition, a, b)?])
}

pub(super) fn masked_fill(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.tensor(call, "self")?;
    let mask = lower.tensor(call, "mask")?;
    let value = lower.operand(call, "value", lower.dtype(x))?;
    let dtype = lower.dtype(x);
    let value = lower.cast(value, dtype)?;
    Ok(vec![lower.choose(mask, value, x)?])
}

pub(super) fn convert(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.tensor(call, "self")?;
    let dtype = lower.result_dtype(call, 0)?;
    Ok(vec![lower.cast(x, dtype)?])
}

pub(super) fn identity(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    Ok(vec![lower.tensor(call, "self")?])
}

pub(super) fn dropout(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    if call.flag("train", false)? && call.float("p", 0.5)? > 0.0 {
        return Err("has dropout: export the model in eval mode".into());
    }
    Ok(vec![lower.tensor(call, "input")?])
}
