//! Evenly spaced integers.

use super::operands::{operands, require_dtype};
use super::{DimFormatter, OpDefinition};
use crate::tensor_type::TensorType;
use crate::{Bindings, Data, Dim, Value};
use base::DType;

/// The `len` numbers `start`, `start + step`, …; no operands.
#[derive(Clone, Debug, PartialEq)]
pub struct Range {
    /// The first element.
    pub start: Dim,
    /// Difference of consecutive elements.
    pub step: i64,
    /// Number of elements.
    pub len: Dim,
    /// The result's type: f32, i32 or i64.
    pub dtype: DType,
}

impl OpDefinition for Range {
    fn name(&self) -> &'static str {
        "range"
    }

    fn attributes(&self, dim: DimFormatter<'_>) -> Vec<String> {
        let mut list = vec![format!("start: {}", dim(&self.start))];
        if self.step != 1 {
            list.push(format!("step: {}", self.step));
        }
        list
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<TensorType, String> {
        let [] = operands(inputs)?;
        let result = TensorType {
            dtype: self.dtype,
            shape: vec![self.len],
        };
        require_dtype("the result", &result, &[DType::F32, DType::I32, DType::I64])?;
        Ok(result)
    }

    fn evaluate(
        &self,
        _: &[&Value],
        shape: &[usize],
        bindings: &Bindings,
    ) -> Result<Value, String> {
        let start = self
            .start
            .value(bindings)
            .ok_or("its first element overflows")?;
        let elements = (0..shape[0] as i64).map(|i| start.wrapping_add(i.wrapping_mul(self.step)));
        let data = match self.dtype {
            DType::F32 => Data::F32(elements.map(|x| x as f32).collect()),
            DType::I32 => Data::I32(elements.map(|x| x as i32).collect()),
            DType::I64 => Data::I64(elements.collect()),
            dtype => return Err(format!("a range of {dtype} is not supported")),
        };
        let shape = shape.to_vec();
        Ok(Value { shape, data })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Symbol;

    #[test]
    fn counts() {
        let t = Symbol(0);
        let op = Range {
            start: Dim::from(t) - Dim::from(1),
            step: -2,
            len: t.into(),
            dtype: DType::I64,
        };
        let y = op.evaluate(&[], &[3], &Bindings::default().with(t, 3));
        assert_eq!(y, Ok(Value::i64([3], vec![2, 0, -2])));
    }
}
