//! Root-mean-square normalisation over the last dimension.

use super::operands::{by_row, f32s, last_dim, operands, require_f32, require_shape};
use super::{BufferReuse, Dependence, DimFormatter, OpDefinition};
use crate::tensor_type::TensorType;
use crate::{Bindings, Value};

/// `x / √(mean(x²) + eps) · weight` over rows of `x`; operands `x [.., D]` and `weight [D]`.
#[derive(Clone, Debug, PartialEq)]
pub struct RmsNorm {
    /// Added to the mean square.
    pub eps: f32,
}

impl OpDefinition for RmsNorm {
    fn name(&self) -> &'static str {
        "rms_norm"
    }

    fn attributes(&self, _: DimFormatter<'_>) -> Vec<String> {
        vec![format!("eps: {:e}", self.eps)]
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<TensorType, String> {
        let [x, weight] = operands(inputs)?;
        require_f32("x", x)?;
        require_f32("weight", weight)?;
        require_shape("weight", weight, &[last_dim("x", x)?.into()])?;
        Ok(x.clone())
    }

    fn sharing(&self, _: &[&TensorType], _: &Bindings) -> Result<BufferReuse, String> {
        Ok(BufferReuse::InPlace(1))
    }

    fn dependence(&self) -> Dependence {
        Dependence::Row
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
