//! A tensor with all elements equal.

use super::operands::{operands, require_dtype};
use super::{DimFormatter, OpDefinition};
use crate::tensor_type::TensorType;
use crate::{Bindings, Data, Dim, Value};
use base::DType;

/// A number or bool, converted to the type that is asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs, reason = "each variant is its element type")]
pub enum Scalar {
    F32(f32),
    I64(i64),
    Bool(bool),
}

impl Scalar {
    /// As f32.
    pub fn to_f32(self) -> f32 {
        match self {
            Scalar::F32(x) => x,
            Scalar::I64(x) => x as f32,
            Scalar::Bool(x) => x.into(),
        }
    }

    /// As an integer, truncated towards zero.
    pub fn to_i64(self) -> i64 {
        match self {
            Scalar::F32(x) => x as i64,
            Scalar::I64(x) => x,
            Scalar::Bool(x) => x.into(),
        }
    }

    /// Whether it is not zero.
    pub fn to_bool(self) -> bool {
        match self {
            Scalar::F32(x) => x != 0.0,
            Scalar::I64(x) => x != 0,
            Scalar::Bool(x) => x,
        }
    }

    /// `len` copies as elements of a compute type; `None` for other types.
    pub fn repeat(self, dtype: DType, len: usize) -> Option<Data> {
        Some(match dtype {
            DType::F32 => Data::F32(vec![self.to_f32(); len]),
            DType::I32 => Data::I32(vec![self.to_i64() as i32; len]),
            DType::I64 => Data::I64(vec![self.to_i64(); len]),
            DType::Bool => Data::Bool(vec![self.to_bool(); len]),
            _ => return None,
        })
    }
}

/// A tensor with all elements equal to `value`; no operands.
#[derive(Clone, Debug, PartialEq)]
pub struct Fill {
    /// The element.
    pub value: Scalar,
    /// The result's shape.
    pub shape: Vec<Dim>,
    /// The result's type.
    pub dtype: DType,
}

impl OpDefinition for Fill {
    fn name(&self) -> &'static str {
        "fill"
    }

    fn attributes(&self, _: DimFormatter<'_>) -> Vec<String> {
        vec![match self.value {
            Scalar::F32(x) => format!("value: {x}"),
            Scalar::I64(x) => format!("value: {x}"),
            Scalar::Bool(x) => format!("value: {x}"),
        }]
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<TensorType, String> {
        let [] = operands(inputs)?;
        let result = TensorType {
            dtype: self.dtype,
            shape: self.shape.clone(),
        };
        let allowed = [DType::F32, DType::I32, DType::I64, DType::Bool];
        require_dtype("the result", &result, &allowed)?;
        Ok(result)
    }

    fn evaluate(&self, _: &[&Value], shape: &[usize], _: &Bindings) -> Result<Value, String> {
        let data = self.value.repeat(self.dtype, shape.iter().product());
        Ok(Value {
            shape: shape.to_vec(),
            data: data.ok_or_else(|| format!("a fill of type {} is not supported", self.dtype))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fills() {
        let fill = |value, dtype| {
            let shape = vec![2.into()];
            let op = Fill {
                value,
                shape,
                dtype,
            };
            op.evaluate(&[], &[2], &Bindings::default()).unwrap().data
        };
        assert_eq!(
            fill(Scalar::F32(1.5), DType::F32),
            Data::F32(vec![1.5, 1.5])
        );
        assert_eq!(fill(Scalar::F32(-1.5), DType::I64), Data::I64(vec![-1; 2]));
        assert_eq!(fill(Scalar::I64(3), DType::Bool), Data::Bool(vec![true; 2]));
    }
}
