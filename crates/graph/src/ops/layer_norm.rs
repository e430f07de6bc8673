//! Layer normalisation over the last dimension.

use super::operands::{by_row, f32s, last_dim, operands, require_f32, require_shape};
use super::{BufferReuse, Dependence, DimFormatter, OpDefinition};
use crate::tensor_type::TensorType;
use crate::{Bindings, Value};

/// `(x − mean) / √(variance + eps) · weight + bias` over rows of `x`; operands `x`, `weight`, `bias`.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerNorm {
    /// Added to the variance.
    pub eps: f32,
}

impl OpDefinition for LayerNorm {
    fn name(&self) -> &'static str {
        "layer_norm"
    }

    fn attributes(&self, _: DimFormatter<'_>) -> Vec<String> {
        vec![format!("eps: {:e}", self.eps)]
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<TensorType, String> {
        let [x, weight, bias] = operands(inputs)?;
        let width = last_dim("x", x)?;
        for (what, ty) in [("x", x), ("weight", weight), ("bias", bias)] {
            require_f32(what, ty)?;
        }
        require_shape("weight", weight, &[width.into()])?;
        require_shape("bias", bias, &[width.into()])?;
        Ok(x.clone())
    }

    fn sharing(&self, _: &[&TensorType], _: &Bindings) -> Result<BufferReuse, String> {
        Ok(BufferReuse::InPlace(1))
    }

    fn dependence(&self) -> Dependence {
        Dependence::Row
    }

    fn evaluate(&self, inputs: &[&Value], _: &[usize], _: &Bindings) -> Result<Value, String> {
        let (weight, bias) = (f32s(&inputs[1])?, f32s(&inputs[2])?);
        by_row(inputs[0], |_, x, y| {
            let n = x.len() as f32;
            let mean = x.iter().sum::<f32>() / n;
            let variance = x.iter().map(|v| (v - mean) * (v - mean)).sum::<f32>() / n;
            let inverse = 1.0 / (variance + self.eps).sqrt();
            for (i, (x, y)) in x.iter().zip(y).enumerate() {
                *y = (x - mean) * inverse * weight[i] + bias[i];
            }
        })
    }
}
