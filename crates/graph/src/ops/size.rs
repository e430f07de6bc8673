//! The value of a dimension.

use super::operands::operands;
use super::{DimFormatter, OpDefinition};
use crate::tensor_type::TensorType;
use crate::{Bindings, Dim, Value};
use base::DType;

/// The value of a dimension as an i64 scalar; no operands.
#[derive(Clone, Debug, PartialEq)]
pub struct Size {
    /// The dimension.
    pub value: Dim,
}

impl OpDefinition for Size {
    fn name(&self) -> &'static str {
        "size"
    }

    fn attributes(&self, dim: DimFormatter<'_>) -> Vec<String> {
        vec![format!("value: {}", dim(&self.value))]
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<TensorType, String> {
        let [] = operands(inputs)?;
        Ok(TensorType {
            dtype: DType::I64,
            shape: vec![],
        })
    }

    fn evaluate(&self, _: &[&Value], _: &[usize], bindings: &Bindings) -> Result<Value, String> {
        let value = self.value.value(bindings).ok_or("its value overflows")?;
        Ok(Value::i64([], vec![value]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Symbol;

    #[test]
    fn is_the_bound_value() {
        let value = Dim::from(Symbol(0)) * 2 - Dim::from(9);
        let at = Bindings::default().with(Symbol(0), 3);
        let y = Size { value }.evaluate(&[], &[], &at);
        assert_eq!(y, Ok(Value::i64([], vec![-3])));
    }
}
