//! Elementwise arithmetic of two tensors.

use super::{Definition, Sharing, f32s, operands, want_f32};
use crate::Value;
use crate::graph::TensorType;

/// Which arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BinaryFunction {
    /// `a + b`.
    Add,
    /// `a · b`.
    Mul,
}

/// `function(a, b)`, elementwise; `b` has `a`'s shape or is repeated over `a`'s outer dimensions.
#[derive(Clone, Debug, PartialEq)]
pub struct Binary {
    /// Which arithmetic.
    pub function: BinaryFunction,
}

impl Definition for Binary {
    fn name(&self) -> &'static str {
        match self.function {
            BinaryFunction::Add => "add",
            BinaryFunction::Mul => "mul",
        }
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<TensorType, String> {
        let [a, b] = operands(inputs)?;
        want_f32("a", a)?;
        want_f32("b", b)?;
        if !a.shape.ends_with(&b.shape) {
            return Err(format!(
                "b has shape {:?}, which does not end a's {:?}",
                b.shape, a.shape
            ));
        }
        Ok(a.clone())
    }

    fn sharing(&self) -> Sharing {
        Sharing::InPlace(2)
    }

    fn evaluate(&self, inputs: &[&Value], shape: &[usize]) -> Result<Value, String> {
        let (a, b) = (f32s(&inputs[0])?, f32s(&inputs[1])?);
        let apply = |(a, b): (&f32, &f32)| match self.function {
            BinaryFunction::Add => a + b,
            BinaryFunction::Mul => a * b,
        };
        Ok(Value::f32(
            shape,
            a.iter().zip(b.iter().cycle()).map(apply).collect(),
        ))
    }
}
