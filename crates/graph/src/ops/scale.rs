//! Multiplication by a number.

use super::elementwise::{infer_f32, map_f32};
use super::{BufferReuse, Dependence, DimFormatter, OpDefinition};
use crate::tensor_type::TensorType;
use crate::{Bindings, Value};

/// `x · factor`.
#[derive(Clone, Debug, PartialEq)]
pub struct Scale {
    /// The factor.
    pub factor: f32,
}

impl OpDefinition for Scale {
    fn name(&self) -> &'static str {
        "scale"
    }

    fn attributes(&self, _: DimFormatter<'_>) -> Vec<String> {
        vec![format!("factor: {}", self.factor)]
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

    fn keeps_operand(&self, _: &dyn Fn(usize, i64) -> bool) -> bool {
        self.factor == 1.0
    }

    fn evaluate(&self, inputs: &[&Value], _: &[usize], _: &Bindings) -> Result<Value, String> {
        map_f32(inputs, |x| x * self.factor)
    }
}
