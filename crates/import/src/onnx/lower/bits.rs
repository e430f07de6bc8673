//! Functions of the bits of integers.

use base::DType;
use graph::ops::{BinaryFunction as B, Scalar};

use super::call::Call;
use super::context::{OnnxLowering, Results};
use crate::onnx::tensor;
use crate::stored_type::StoredType as K;

pub(super) fn shift(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let (a, b) = (lower.operand(call, 0)?, lower.operand(call, 1)?);
    let kind = lower.operand_kind(call, 0);
    let function = match call.text("direction")? {
        // The engine's widest integers are signed: a shift to the left can reach the bit that they take for the sign.
        Some("LEFT") if kind == Some(K::U64) => {
            return Err("shifts of 64-bit unsigned integers to the left are not supported".into());
        }
        Some("LEFT") => B::ShiftLeft,
        Some("RIGHT") => B::ShiftRight,
        _ => return Err("must shift in the direction LEFT or RIGHT".into()),
    };
    Ok(vec![lower.binary(function, a, b)?])
}

pub(super) fn binary(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let (a, b) = (lower.operand(call, 0)?, lower.operand(call, 1)?);
    let function = match call.op() {
        "BitwiseAnd" => B::BitAnd,
        "BitwiseOr" => B::BitOr,
        _ => B::BitXor,
    };
    Ok(vec![lower.binary(function, a, b)?])
}

pub(super) fn not(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.operand(call, 0)?;
    if lower.operand_kind(call, 0) == Some(K::U64) {
        return Err("of 64-bit unsigned integers is not supported".into());
    }
    let dtype = lower.dtype(x);
    let ones = lower.scalar(Scalar::I64(-1), dtype)?;
    Ok(vec![lower.binary(B::BitXor, x, ones)?])
}

/// The bits of a tensor as another type of the same width. Only integers and booleans: graphs have no bits of reals.
pub(super) fn cast(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.operand(call, 0)?;
    let from = lower
        .operand_kind(call, 0)
        .ok_or("its operand has no stored type")?;
    let to = tensor::kind(call.int("to")?.ok_or("does not state its type")?)?;
    if from.bits() != to.bits() {
        return Err(format!("{} and {} differ in width", from.name(), to.name()));
    }
    lower.set_kind(call, Some(to));
    if from == to {
        return Ok(vec![x]);
    }
    let whole = |kind: K| kind.range().is_some();
    // A bool is stored as 0 or 1, but its bits may be read only, not made.
    let readable = whole(from) || from == K::Bool;
    if !readable || !whole(to) || [from, to].contains(&K::U64) {
        return Err(format!(
            "of {} to {} is not supported",
            from.name(),
            to.name()
        ));
    }
    let x = lower.cast(x, DType::I64)?;
    let x = lower.wrapped(x, to)?;
    Ok(vec![lower.cast(x, to.dtype())?])
}
