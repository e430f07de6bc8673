//! Shared code of elementwise ops: broadcasting, and loops over one, two or three operands.

use super::operands::{broadcast, f32s, operands, require_f32};
use super::strided::{broadcast_strides, offsets};
use crate::Value;
use crate::tensor_type::TensorType;

/// Infers the result of a function of one f32 operand.
pub(super) fn infer_f32(inputs: &[&TensorType]) -> Result<TensorType, String> {
    let [x] = operands(inputs)?;
    require_f32("x", x)?;
    Ok(x.clone())
}

/// Infers the result of a function of two operands of one type.
pub(super) fn infer_alike(a: &TensorType, b: &TensorType) -> Result<TensorType, String> {
    if a.dtype != b.dtype {
        return Err(format!(
            "a is {} and b is {}, must have one type",
            a.dtype, b.dtype
        ));
    }
    Ok(TensorType {
        dtype: a.dtype,
        shape: broadcast(&a.shape, &b.shape)?,
    })
}

/// Applies `function` to every element of the first operand.
pub(super) fn map_f32(inputs: &[&Value], function: impl Fn(f32) -> f32) -> Result<Value, String> {
    let x = f32s(&inputs[0])?;
    let data = x.iter().map(|x| function(*x)).collect();
    Ok(Value::f32(inputs[0].shape.clone(), data))
}

/// The elements of an operand, broadcast to the result's shape.
pub(super) struct Broadcast<'a> {
    strides: Vec<usize>,
    shape: &'a [usize],
}

impl<'a> Broadcast<'a> {
    pub(super) fn new(operand: &Value, shape: &'a [usize]) -> Broadcast<'a> {
        let strides = broadcast_strides(&operand.shape, shape);
        Broadcast { strides, shape }
    }

    pub(super) fn read<T: Copy>(&self, elements: &[T]) -> impl Iterator<Item = T> {
        offsets(self.shape, &self.strides).map(|i| elements[i])
    }
}

/// Applies `function` to every pair of elements.
pub(super) fn zip<T: Copy, R>(
    (a, b): (&[T], &[T]),
    (walk_a, walk_b): (&Broadcast<'_>, &Broadcast<'_>),
    function: impl Fn(T, T) -> R,
) -> Vec<R> {
    walk_a
        .read(a)
        .zip(walk_b.read(b))
        .map(|(a, b)| function(a, b))
        .collect()
}
