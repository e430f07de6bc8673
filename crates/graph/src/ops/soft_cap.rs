//! Multiplication by a number, and the smooth limit that some models put on logits.

use super::{Definition, Sharing, f32s, operands, want_f32};
use crate::Value;
use crate::graph::TensorType;

/// `x · factor`.
#[derive(Clone, Debug, PartialEq)]
pub struct Scale {
    /// The factor.
    pub factor: f32,
}

/// `cap · tanh(x / cap)`.
#[derive(Clone, Debug, PartialEq)]
pub struct SoftCap {
    /// No result exceeds this in magnitude.
    pub cap: f32,
}

fn elementwise(inputs: &[&TensorType]) -> Result<TensorType, String> {
    let [x] = operands(inputs)?;
    want_f32("x", x)?;
    Ok(x.clone())
}

impl Definition for Scale {
    fn name(&self) -> &'static str {
        "scale"
    }

    fn attributes(&self) -> Vec<String> {
        vec![format!("factor: {}", self.factor)]
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<TensorType, String> {
        elementwise(inputs)
    }

    fn sharing(&self) -> Sharing {
        Sharing::InPlace(1)
    }

    fn evaluate(&self, inputs: &[&Value], shape: &[usize]) -> Result<Value, String> {
        Ok(Value::f32(
            shape,
            f32s(&inputs[0])?.iter().map(|x| x * self.factor).collect(),
        ))
    }
}

impl Definition for SoftCap {
    fn name(&self) -> &'static str {
        "soft_cap"
    }

    fn attributes(&self) -> Vec<String> {
        vec![format!("cap: {}", self.cap)]
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<TensorType, String> {
        elementwise(inputs)
    }

    fn sharing(&self) -> Sharing {
        Sharing::InPlace(1)
    }

    fn evaluate(&self, inputs: &[&Value], shape: &[usize]) -> Result<Value, String> {
        Ok(Value::f32(
            shape,
            f32s(&inputs[0])?
                .iter()
                .map(|x| self.cap * (x / self.cap).tanh())
                .collect(),
        ))
    }
}
