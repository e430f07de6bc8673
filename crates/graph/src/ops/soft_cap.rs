//! The soft cap that some models apply to logits and scores.

use super::elementwise::{infer_f32, map_f32};
use super::{BufferReuse, Dependence, DimFormatter, OpDefinition};
use crate::tensor_type::TensorType;
use crate::{Bindings, Value};

/// `cap · tanh(x / cap)`.
#[derive(Clone, Debug, PartialEq)]
pub struct SoftCap {
    /// Upper bound of the magnitude of the result.
    pub cap: f32,
}

impl OpDefinition for SoftCap {
    fn name(&self) -> &'static str {
        "soft_cap"
    }

    fn attributes(&self, _: DimFormatter<'_>) -> Vec<String> {
        vec![format!("cap: {}", self.cap)]
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<TensorType, String> {
        infer_f32(inputs)
    }

    fn sharing(&self, _: &[&TensorType], _: &Bindings) -> Result<BufferReuse, String> {
        Ok(BufferReuse::InPlace(1))
    }

    fn dependence(&self) -> Dependence {
        Dependence::Element
    }

    fn evaluate(&self, inputs: &[&Value], _: &[usize], _: &Bindings) -> Result<Value, String> {
        map_f32(inputs, |x| self.cap * (x / self.cap).tanh())
    }
}
