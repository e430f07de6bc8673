//! Root-mean-square normalisation over the last dimension.

use super::check::{by_row, f32s, last_dim, operands, want_f32, want_shape};
use super::{Definition, DimText, Sharing};
use crate::graph::TensorType;
use crate::{Bindings, Value};

/// `x / √(mean(x²) + eps) · weight` over rows of `x`; operands `x [.., D]` and `weight [D]`.
#[derive(Clone, Debug, PartialEq)]
pub struct RmsNorm {
    /// Added to the mean square.
    pub eps: f32,
}

impl Definition for RmsNorm {
    fn name(&self) -> &'static str {
        "rms_norm"
    }

    fn attributes(&self, _: DimText<'_>) -> Vec<String> {
        vec![format!("eps: {:e}", self.eps)]
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<TensorType, String> {
        let [x, weight] = operands(inputs)?;
        want_f32("x", x)?;
        want_f32("weight", weight)?;
        want_shape("weight", weight, &[last_dim("x", x)?.into()])?;
        Ok(x.clone())
    }

    fn sharing(&self, _: &[&TensorType], _: &Bindings) -> Result<Sharing, String> {
        Ok(Sharing::InPlace(1))
    }

    fn evaluate(&self, inputs: &[&Value], _: &[usize], _: &Bindings) -> Result<Value, String> {
        let weight = f32s(&inputs[1])?;
        by_row(inputs[0], |_, x, y| {
            let mean = x.iter().map(|v| v * v).sum::<f32>() / x.len() as f32;
            let inverse = 1.0 / (mean + self.eps).sqrt();
            for (i, (x, y)) in x.iter().zip(y).enumerate() {
                *y = x * inverse * weight[i];
            }
        })
    }
}
