//! Cosine and sine table of the rotary embedding, computed once per step for all layers with the same frequencies.

use super::operands::{f32s, integers, operands, require_f32, require_index};
use super::{DimFormatter, OpDefinition};
use crate::tensor_type::TensorType;
use crate::{Bindings, Value};

/// Operands `position [T]` i32 or i64 and `frequency [D/2]` f32; the result `[T, D]` holds the cosines of
/// `position · frequency` in its first half of columns and the sines in its second, all times `magnitude`.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeTable {
    /// Factor on every entry (YaRN's attention factor; 1 otherwise).
    pub magnitude: f32,
}

impl OpDefinition for RopeTable {
    fn name(&self) -> &'static str {
        "rope_table"
    }

    fn attributes(&self, _: DimFormatter<'_>) -> Vec<String> {
        if self.magnitude == 1.0 {
            vec![]
        } else {
            vec![format!("magnitude: {}", self.magnitude)]
        }
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<TensorType, String> {
        let [position, frequency] = operands(inputs)?;
        require_index("position", position)?;
        require_f32("frequency", frequency)?;
        let (&[tokens], &[half]) = (&position.shape[..], &frequency.shape[..]) else {
            return Err("position and frequency must have one dimension each".into());
        };
        Ok(TensorType::f32([tokens, half * 2]))
    }

    fn evaluate(&self, inputs: &[&Value], shape: &[usize], _: &Bindings) -> Result<Value, String> {
        let frequency = f32s(&inputs[1])?;
        let mut out = Vec::with_capacity(shape.iter().product());
        for p in integers(inputs[0])? {
            out.extend(
                frequency
                    .iter()
                    .map(|f| (p as f32 * f).cos() * self.magnitude),
            );
            out.extend(
                frequency
                    .iter()
                    .map(|f| (p as f32 * f).sin() * self.magnitude),
            );
        }
        Ok(Value::f32(shape, out))
    }
}
