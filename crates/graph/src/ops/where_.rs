//! Elementwise selection between two tensors.

use super::elementwise::{Broadcast, infer_alike};
use super::operands::{broadcast, operands, require_dtype, require_unquantised};
use super::{BufferReuse, Dependence, OpDefinition};
use crate::tensor_type::TensorType;
use crate::{Bindings, Data, Value};
use base::DType;

/// `a` where `condition` is true and `b` elsewhere; the operands `condition` (bool), `a` and `b` broadcast.
#[derive(Clone, Debug, PartialEq)]
pub struct Where;

impl OpDefinition for Where {
    fn name(&self) -> &'static str {
        "where"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<TensorType, String> {
        let [condition, a, b] = operands(inputs)?;
        require_dtype("condition", condition, &[DType::Bool])?;
        require_unquantised("a", a)?;
        let either = infer_alike(a, b)?;
        Ok(TensorType {
            dtype: a.dtype,
            shape: broadcast(&condition.shape, &either.shape)?,
        })
    }

    fn sharing(&self, _: &[&TensorType], _: &Bindings) -> Result<BufferReuse, String> {
        Ok(BufferReuse::InPlace(3))
    }

    fn dependence(&self) -> Dependence {
        Dependence::Element
    }

    fn evaluate(&self, inputs: &[&Value], shape: &[usize], _: &Bindings) -> Result<Value, String> {
        let condition = inputs[0].as_bool().ok_or("its condition is not bool")?;
        let walks = [0, 1, 2].map(|i| Broadcast::new(inputs[i], shape));
        fn choose<T: Copy>(
            walks: &[Broadcast<'_>; 3],
            condition: &[bool],
            a: &[T],
            b: &[T],
        ) -> Vec<T> {
            let either = walks[1].read(a).zip(walks[2].read(b));
            let chosen = walks[0].read(condition).zip(either);
            chosen.map(|(c, (a, b))| if c { a } else { b }).collect()
        }
        let data = match (&inputs[1].data, &inputs[2].data) {
            (Data::F32(a), Data::F32(b)) => Data::F32(choose(&walks, condition, a, b)),
            (Data::I32(a), Data::I32(b)) => Data::I32(choose(&walks, condition, a, b)),
            (Data::I64(a), Data::I64(b)) => Data::I64(choose(&walks, condition, a, b)),
            (Data::Bool(a), Data::Bool(b)) => Data::Bool(choose(&walks, condition, a, b)),
            _ => return Err("its operands have different types".into()),
        };
        let shape = shape.to_vec();
        Ok(Value { shape, data })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chooses() {
        let condition = Value::bool([2, 1], vec![true, false]);
        let a = Value::f32([2], vec![1.0, 2.0]);
        let b = Value::f32([], vec![-1.0]);
        let y = Where.evaluate(&[&condition, &a, &b], &[2, 2], &Bindings::default());
        assert_eq!(y.unwrap(), Value::f32([2, 2], vec![1.0, 2.0, -1.0, -1.0]));
    }
}
