//! Elementwise functions that are composed of others, and bitwise operations.

use base::DType;
use graph::TensorId;
use graph::ops::{BinaryFunction as B, CompareFunction as C, Scalar, UnaryFunction as U};

use super::arithmetic::{pair, real};
use super::call::Call;
use super::context::Pt2Lowering;

type Results = Result<Vec<TensorId>, String>;

fn number(lower: &mut Pt2Lowering<'_>, x: f32) -> Result<TensorId, String> {
    lower.scalar(Scalar::F32(x), DType::F32)
}

/// `fmod` and `atan2`, and shifts.
pub(super) fn binary(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let (a, b) = pair(lower, call)?;
    let function = match call.name() {
        "fmod" => B::Rem,
        "bitwise_left_shift" | "__lshift__" => B::ShiftLeft,
        "bitwise_right_shift" | "__rshift__" => B::ShiftRight,
        _ => {
            let (a, b) = (lower.cast(a, DType::F32)?, lower.cast(b, DType::F32)?);
            return Ok(vec![lower.binary(B::Atan2, a, b)?]);
        }
    };
    Ok(vec![lower.binary(function, a, b)?])
}

/// The larger or the smaller of two numbers; that which is a number if one is NaN.
pub(super) fn number_of_two(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let (a, b) = pair(lower, call)?;
    let function = match call.name() {
        "fmax" => B::Max,
        _ => B::Min,
    };
    let both = lower.binary(function, a, b)?;
    if lower.dtype(a) != DType::F32 {
        return Ok(vec![both]);
    }
    let (no_a, no_b) = (lower.compare(C::Ne, a, a)?, lower.compare(C::Ne, b, b)?);
    let other = lower.choose(no_b, a, both)?;
    Ok(vec![lower.choose(no_a, b, other)?])
}

pub(super) fn is_finite(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = real(lower, call)?;
    let size = lower.unary(U::Abs, x)?;
    let infinity = number(lower, f32::INFINITY)?;
    Ok(vec![lower.compare(C::Lt, size, infinity)?])
}

pub(super) fn nan_to_num(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.tensor(call, "self")?;
    if lower.dtype(x) != DType::F32 {
        return Ok(vec![x]);
    }
    let is_nan = lower.compare(C::Ne, x, x)?;
    let nan = number(lower, call.float("nan", 0.0)?)?;
    let mut result = lower.choose(is_nan, nan, x)?;
    for (name, infinity, limit) in [
        ("posinf", f32::INFINITY, f32::MAX),
        ("neginf", f32::NEG_INFINITY, f32::MIN),
    ] {
        let infinity = number(lower, infinity)?;
        let is_infinite = lower.compare(C::Eq, x, infinity)?;
        let limit = number(lower, call.float(name, limit)?)?;
        result = lower.choose(is_infinite, limit, result)?;
    }
    Ok(vec![result])
}

/// Functions of one number.
pub(super) fn composed(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = real(lower, call)?;
    Ok(vec![match call.name() {
        "frac" => {
            let (size, sign) = (lower.unary(U::Abs, x)?, lower.unary(U::Sign, x)?);
            let whole = lower.unary(U::Floor, size)?;
            let whole = lower.binary(B::Mul, sign, whole)?;
            lower.binary(B::Sub, x, whole)?
        }
        "threshold" => {
            let limit = number(lower, call.float("threshold", 0.0)?)?;
            let value = number(lower, call.float("value", 0.0)?)?;
            let above = lower.compare(C::Gt, x, limit)?;
            lower.choose(above, x, value)?
        }
        "hardshrink" | "softshrink" => {
            let limit = call.float("lambd", 0.5)?;
            let size = lower.unary(U::Abs, x)?;
            let shrunk = match call.name() {
                "hardshrink" => x,
                _ => {
                    let sign = lower.unary(U::Sign, x)?;
                    let rest = lower.with_number(B::Sub, size, limit)?;
                    lower.binary(B::Mul, sign, rest)?
                }
            };
            let (limit, zero) = (number(lower, limit)?, number(lower, 0.0)?);
            let small = lower.compare(C::Le, size, limit)?;
            lower.choose(small, zero, shrunk)?
        }
        "logit" => {
            let mut x = x;
            if call.get("eps").is_some() {
                let eps = call.float("eps", 0.0)?;
                x = lower.with_number(B::Max, x, eps)?;
                x = lower.with_number(B::Min, x, 1.0 - eps)?;
            }
            let one = number(lower, 1.0)?;
            let rest = lower.binary(B::Sub, one, x)?;
            let odds = lower.binary(B::Div, x, rest)?;
            lower.unary(U::Log, odds)?
        }
        "deg2rad" => lower.with_number(B::Mul, x, std::f32::consts::PI / 180.0)?,
        "rad2deg" => lower.with_number(B::Mul, x, 180.0 / std::f32::consts::PI)?,
        other => return Err(format!("{other} is not supported")),
    }])
}
