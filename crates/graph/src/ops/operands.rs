//! Operand checks for type inference, and typed access to evaluator operands. Errors are reasons only; the caller adds the
//! node's name.

use crate::tensor_type::TensorType;
use crate::{Dim, Value};
use base::DType;

/// Exactly `N` operands, or an error with their number.
pub(super) fn operands<'a, const N: usize>(
    inputs: &[&'a TensorType],
) -> Result<[&'a TensorType; N], String> {
    inputs
        .try_into()
        .map_err(|_| format!("takes {N} operands, has {}", inputs.len()))
}

/// Checks that the operand is f32.
pub(super) fn require_f32(what: &str, ty: &TensorType) -> Result<(), String> {
    require_dtype(what, ty, &[DType::F32])
}

/// Checks that the operand has an index type, i32 or i64.
pub(super) fn require_index(what: &str, ty: &TensorType) -> Result<(), String> {
    require_dtype(what, ty, &[DType::I32, DType::I64])
}

/// Checks that the operand has one of these types.
pub(super) fn require_dtype(what: &str, ty: &TensorType, allowed: &[DType]) -> Result<(), String> {
    if allowed.contains(&ty.dtype) {
        return Ok(());
    }
    let names: Vec<&str> = allowed.iter().map(|t| t.name()).collect();
    Err(format!(
        "{what} is {}, must be {}",
        ty.dtype,
        names.join(" or ")
    ))
}

/// Checks that the operand is not quantised, so that single elements can be moved.
pub(super) fn require_unquantised(what: &str, ty: &TensorType) -> Result<(), String> {
    if ty.dtype.is_quantised() {
        return Err(format!("{what} is {}, must not be quantised", ty.dtype));
    }
    Ok(())
}

pub(super) fn require_shape(what: &str, ty: &TensorType, shape: &[Dim]) -> Result<(), String> {
    if ty.shape == shape {
        Ok(())
    } else {
        Err(format!(
            "{what} has shape {:?}, must be {shape:?}",
            ty.shape
        ))
    }
}

/// Checks that the axis is in range for the operand.
pub(super) fn require_axis(what: &str, ty: &TensorType, axis: usize) -> Result<(), String> {
    if axis < ty.shape.len() {
        Ok(())
    } else {
        Err(format!(
            "axis {axis} is out of range for the {} axes of {what}",
            ty.shape.len()
        ))
    }
}

/// The last dimension, which must be a constant.
pub(super) fn last_dim(what: &str, ty: &TensorType) -> Result<usize, String> {
    ty.shape
        .last()
        .and_then(Dim::as_const)
        .ok_or_else(|| format!("the last dimension of {what} must be a constant"))
}

/// The shape that both shapes broadcast to, as in numpy.
pub(super) fn broadcast(a: &[Dim], b: &[Dim]) -> Result<Vec<Dim>, String> {
    let (long, short) = if a.len() >= b.len() { (a, b) } else { (b, a) };
    let mut shape = long.to_vec();
    let tail = long.len() - short.len();
    for (to, from) in shape[tail..].iter_mut().zip(short) {
        match (to.as_const(), from.as_const()) {
            _ if to == from => {}
            (_, Some(1)) => {}
            (Some(1), _) => *to = *from,
            _ => return Err(format!("shapes {a:?} and {b:?} do not broadcast")),
        }
    }
    Ok(shape)
}

/// Checks that the operand broadcasts to `shape` without changing it.
pub(super) fn require_broadcast(what: &str, ty: &TensorType, shape: &[Dim]) -> Result<(), String> {
    match broadcast(&ty.shape, shape) {
        Ok(result) if result == shape => Ok(()),
        _ => Err(format!(
            "{what} has shape {:?}, which does not broadcast to {shape:?}",
            ty.shape
        )),
    }
}

/// The f32 elements of an evaluator's operand.
pub(super) fn f32s<'a>(value: &&'a Value) -> Result<&'a [f32], String> {
    value
        .as_f32()
        .ok_or_else(|| format!("an operand is {}, must be f32", value.dtype()))
}

/// The elements of an evaluator's operand as integers.
pub(super) fn integers(value: &Value) -> Result<Vec<i64>, String> {
    match (value.as_i32(), value.as_i64()) {
        (Some(v), _) => Ok(v.iter().map(|i| (*i).into()).collect()),
        (_, Some(v)) => Ok(v.to_vec()),
        _ => Err(format!(
            "an operand is {}, must be i32 or i64",
            value.dtype()
        )),
    }
}

/// Normalises an index into an axis of `size`; negative indices count from the end.
pub(super) fn wrap_index(index: i64, size: usize) -> Result<usize, String> {
    let wrapped = if index < 0 {
        index + size as i64
    } else {
        index
    };
    usize::try_from(wrapped)
        .ok()
        .filter(|i| *i < size)
        .ok_or_else(|| format!("index {index} is outside an axis of {size}"))
}

/// Applies `row` to every row of the last dimension.
pub(super) fn by_row(
    x: &Value,
    mut row: impl FnMut(usize, &[f32], &mut [f32]),
) -> Result<Value, String> {
    let data = f32s(&x)?;
    let (_, width) = x.rows();
    let mut out = vec![0.0; data.len()];
    if width > 0 {
        for (i, (from, to)) in data.chunks(width).zip(out.chunks_mut(width)).enumerate() {
            row(i, from, to);
        }
    }
    Ok(Value::f32(x.shape.clone(), out))
}
