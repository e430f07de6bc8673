//! Conversion to another element type.

use super::operands::{operands, require_dtype};
use super::{BufferReuse, Dependence, DimFormatter, OpDefinition};
use crate::tensor_type::TensorType;
use crate::{Bindings, Data, Value};
use base::DType;

/// The compute types.
const RUN_TYPES: [DType; 4] = [DType::F32, DType::I32, DType::I64, DType::Bool];

/// Converts `x` to another type. Conversion to integers truncates towards zero; conversion to bool is `x != 0`.
#[derive(Clone, Debug, PartialEq)]
pub struct Cast {
    /// The new type: f32, i32, i64 or bool.
    pub to: DType,
}

impl OpDefinition for Cast {
    fn name(&self) -> &'static str {
        "cast"
    }

    fn attributes(&self, _: DimFormatter<'_>) -> Vec<String> {
        vec![format!("to: {}", self.to)]
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<TensorType, String> {
        let [x] = operands(inputs)?;
        require_dtype("x", x, &RUN_TYPES)?;
        let result = TensorType {
            dtype: self.to,
            shape: x.shape.clone(),
        };
        require_dtype("the result", &result, &RUN_TYPES)?;
        Ok(result)
    }

    fn sharing(&self, inputs: &[&TensorType], _: &Bindings) -> Result<BufferReuse, String> {
        Ok(match inputs[0].dtype {
            from if from == self.to => BufferReuse::ALIAS,
            from if from.block_bytes() == self.to.block_bytes() => BufferReuse::InPlace(1),
            _ => BufferReuse::None,
        })
    }

    fn dependence(&self) -> Dependence {
        Dependence::Element
    }

    fn keeps_operand(&self, _: &dyn Fn(usize, i64) -> bool) -> bool {
        true
    }

    fn evaluate(&self, inputs: &[&Value], shape: &[usize], _: &Bindings) -> Result<Value, String> {
        // `as` truncates towards zero and saturates.
        let data = match (&inputs[0].data, self.to) {
            (data, to) if data.dtype() == to => data.clone(),
            (Data::F32(x), DType::I32) => Data::I32(x.iter().map(|x| *x as i32).collect()),
            (Data::F32(x), DType::I64) => Data::I64(x.iter().map(|x| *x as i64).collect()),
            (Data::F32(x), DType::Bool) => Data::Bool(x.iter().map(|x| *x != 0.0).collect()),
            (Data::I32(x), DType::F32) => Data::F32(x.iter().map(|x| *x as f32).collect()),
            (Data::I32(x), DType::I64) => Data::I64(x.iter().map(|x| (*x).into()).collect()),
            (Data::I32(x), DType::Bool) => Data::Bool(x.iter().map(|x| *x != 0).collect()),
            (Data::I64(x), DType::F32) => Data::F32(x.iter().map(|x| *x as f32).collect()),
            (Data::I64(x), DType::I32) => Data::I32(x.iter().map(|x| *x as i32).collect()),
            (Data::I64(x), DType::Bool) => Data::Bool(x.iter().map(|x| *x != 0).collect()),
            (Data::Bool(x), DType::F32) => Data::F32(x.iter().map(|x| (*x).into()).collect()),
            (Data::Bool(x), DType::I32) => Data::I32(x.iter().map(|x| (*x).into()).collect()),
            (Data::Bool(x), DType::I64) => Data::I64(x.iter().map(|x| (*x).into()).collect()),
            (_, to) => return Err(format!("a cast to {to} is not supported")),
        };
        let shape = shape.to_vec();
        Ok(Value { shape, data })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn converts() {
        let cast = |x: Value, to| Cast { to }.evaluate(&[&x], &[3], &Bindings::default());
        let x = Value::f32([3], vec![-1.5, 0.0, 2.9]);
        assert_eq!(
            cast(x.clone(), DType::I64).unwrap(),
            Value::i64([3], vec![-1, 0, 2])
        );
        let truths = Value::bool([3], vec![true, false, true]);
        assert_eq!(cast(x, DType::Bool).unwrap(), truths);
        let numbers = Value::f32([3], vec![1.0, 0.0, 1.0]);
        assert_eq!(cast(truths, DType::F32).unwrap(), numbers);
    }
}
