//! Single elements by index along one axis.

use super::operands::{
    integers, operands, require_axis, require_index, require_unquantised, wrap_index,
};
use super::strided::{offsets, strides};
use super::{DimFormatter, OpDefinition};
use crate::tensor_type::TensorType;
use crate::{Bindings, Value};

/// `torch.gather`: operands `data` and `indices` (i32 or i64) of the same rank. The result has the shape of `indices`; each
/// element is taken from `data` at the same coordinates, with the coordinate of `axis` replaced by the index.
///
/// Along the other axes `indices` must not be longer than `data`.
#[derive(Clone, Debug, PartialEq)]
pub struct GatherElements {
    /// The axis that is indexed.
    pub axis: usize,
}

impl OpDefinition for GatherElements {
    fn name(&self) -> &'static str {
        "gather_elements"
    }

    fn attributes(&self, _: DimFormatter<'_>) -> Vec<String> {
        vec![format!("axis: {}", self.axis)]
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<TensorType, String> {
        let [data, indices] = operands(inputs)?;
        require_unquantised("data", data)?;
        require_axis("data", data, self.axis)?;
        require_index("indices", indices)?;
        let shorter = |axis: usize| {
            let (a, b) = (data.shape[axis], indices.shape[axis]);
            let known = a.as_const().zip(b.as_const());
            axis == self.axis || a == b || known.is_some_and(|(a, b)| b <= a)
        };
        let same_rank = data.shape.len() == indices.shape.len();
        if !same_rank || !(0..data.shape.len()).all(shorter) {
            return Err(format!(
                "indices of shape {:?} do not match data of shape {:?}",
                indices.shape, data.shape
            ));
        }
        Ok(TensorType {
            dtype: data.dtype,
            shape: indices.shape.clone(),
        })
    }

    fn evaluate(&self, inputs: &[&Value], shape: &[usize], _: &Bindings) -> Result<Value, String> {
        let data = inputs[0];
        let mut steps = strides(&data.shape);
        let along = std::mem::replace(&mut steps[self.axis], 0);
        let places: Result<Vec<usize>, String> = offsets(shape, &steps)
            .zip(integers(inputs[1])?)
            .map(|(at, i)| Ok(at + wrap_index(i, data.shape[self.axis])? * along))
            .collect();
        Ok(Value {
            shape: shape.to_vec(),
            data: data.data.pick(places?.into_iter()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn picks() {
        let data = Value::i64([2, 3], (0..6).collect());
        let indices = Value::i64([2, 2], vec![2, 0, 1, 1]);
        let y =
            GatherElements { axis: 1 }.evaluate(&[&data, &indices], &[2, 2], &Bindings::default());
        assert_eq!(y.unwrap(), Value::i64([2, 2], vec![2, 0, 4, 4]));
    }
}
