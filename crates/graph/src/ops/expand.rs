//! Broadcast to a larger shape.

use super::operands::{operands, require_broadcast, require_unquantised};
use super::strided::{broadcast_strides, offsets};
use super::{BufferReuse, OpDefinition};
use crate::tensor_type::TensorType;
use crate::{Bindings, Dim, Value};

/// `x` broadcast to `shape`, as in numpy.
#[derive(Clone, Debug, PartialEq)]
pub struct Expand {
    /// The result's shape.
    pub shape: Vec<Dim>,
}

impl OpDefinition for Expand {
    fn name(&self) -> &'static str {
        "expand"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<TensorType, String> {
        let [x] = operands(inputs)?;
        require_unquantised("x", x)?;
        require_broadcast("x", x, &self.shape)?;
        Ok(TensorType {
            dtype: x.dtype,
            shape: self.shape.clone(),
        })
    }

    fn sharing(&self, inputs: &[&TensorType], at: &Bindings) -> Result<BufferReuse, String> {
        let count = |shape: &[Dim]| -> Option<usize> {
            let mut dims = shape.iter().map(|d| d.eval(at));
            dims.try_fold(1usize, |n, d| n.checked_mul(d?))
        };
        Ok(match count(&inputs[0].shape) == count(&self.shape) {
            true => BufferReuse::ALIAS,
            false => BufferReuse::None,
        })
    }

    fn keeps_operand(&self, _: &dyn Fn(usize, i64) -> bool) -> bool {
        true
    }

    fn evaluate(&self, inputs: &[&Value], shape: &[usize], _: &Bindings) -> Result<Value, String> {
        let strides = broadcast_strides(&inputs[0].shape, shape);
        Ok(Value {
            shape: shape.to_vec(),
            data: inputs[0].data.pick(offsets(shape, &strides)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeats() {
        let x = Value::i64([2, 1], vec![5, 6]);
        let shape = [2, 2, 3];
        let op = Expand {
            shape: shape.map(Dim::from).to_vec(),
        };
        let y = op.evaluate(&[&x], &shape, &Bindings::default()).unwrap();
        assert_eq!(y.as_i64().unwrap(), [5, 5, 5, 6, 6, 6].repeat(2));
        let ty = |shape: &[usize]| {
            TensorType::f32(shape.iter().map(|d| (*d).into()).collect::<Vec<_>>())
        };
        assert!(op.infer(&[&ty(&[3])]).is_ok());
        assert!(op.infer(&[&ty(&[2])]).is_err());
        assert!(op.infer(&[&ty(&[1, 2, 2, 3])]).is_err());
    }
}
