//! Gated activation of a feed-forward block.

use super::operands::{f32s, operands, require_f32, require_shape};
use super::{Activation, BufferReuse, Dependence, DimFormatter, OpDefinition};
use crate::tensor_type::TensorType;
use crate::{Bindings, Value};

/// `function(gate) · up`, elementwise: SwiGLU and its relatives.
#[derive(Clone, Debug, PartialEq)]
pub struct Gated {
    /// Activation of the gate.
    pub function: Activation,
}

impl OpDefinition for Gated {
    fn name(&self) -> &'static str {
        "gated"
    }

    fn attributes(&self, _: DimFormatter<'_>) -> Vec<String> {
        vec![format!("function: {}", self.function.name())]
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<TensorType, String> {
        let [gate, up] = operands(inputs)?;
        require_f32("gate", gate)?;
        require_f32("up", up)?;
        require_shape("up", up, &gate.shape)?;
        Ok(gate.clone())
    }

    fn sharing(&self, _: &[&TensorType], _: &Bindings) -> Result<BufferReuse, String> {
        Ok(BufferReuse::InPlace(2))
    }

    fn dependence(&self) -> Dependence {
        Dependence::Element
    }

    fn evaluate(&self, inputs: &[&Value], shape: &[usize], _: &Bindings) -> Result<Value, String> {
        let pairs = f32s(&inputs[0])?.iter().zip(f32s(&inputs[1])?);
        let gated = pairs.map(|(gate, up)| self.function.apply(*gate) * up);
        Ok(Value::f32(shape, gated.collect()))
    }
}
