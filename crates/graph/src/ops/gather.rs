//! Slices of a tensor by index along one axis.

use super::operands::{
    integers, operands, require_axis, require_index, require_unquantised, wrap_index,
};
use super::{DimFormatter, OpDefinition};
use crate::tensor_type::TensorType;
use crate::{Bindings, Value};

/// `numpy.take`: operands `data` and `indices` (i32 or i64, any rank); `axis` of `data` is replaced by the axes of
/// `indices`. Negative indices count from the end; a run fails for indices out of range.
#[derive(Clone, Debug, PartialEq)]
pub struct Gather {
    /// The axis that is indexed.
    pub axis: usize,
}

impl OpDefinition for Gather {
    fn name(&self) -> &'static str {
        "gather"
    }

    fn attributes(&self, _: DimFormatter<'_>) -> Vec<String> {
        vec![format!("axis: {}", self.axis)]
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<TensorType, String> {
        let [data, indices] = operands(inputs)?;
        require_unquantised("data", data)?;
        require_axis("data", data, self.axis)?;
        require_index("indices", indices)?;
        let mut shape = data.shape.clone();
        shape.splice(self.axis..=self.axis, indices.shape.iter().copied());
        Ok(TensorType {
            dtype: data.dtype,
            shape,
        })
    }

    fn evaluate(&self, inputs: &[&Value], shape: &[usize], _: &Bindings) -> Result<Value, String> {
        let data = inputs[0];
        let size = data.shape[self.axis];
        let outer: usize = data.shape[..self.axis].iter().product();
        let inner: usize = data.shape[self.axis + 1..].iter().product();
        let indices = integers(inputs[1])?;
        let rows: Result<Vec<usize>, String> =
            indices.iter().map(|i| wrap_index(*i, size)).collect();
        let rows = rows?;
        let picked = (0..outer).flat_map(|o| {
            rows.iter().flat_map(move |row| {
                let start = (o * size + row) * inner;
                start..start + inner
            })
        });
        Ok(Value {
            shape: shape.to_vec(),
            data: data.data.pick(picked),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes() {
        let data = Value::i64([2, 3], (0..6).collect());
        let indices = Value::i64([2, 1], vec![-1, 0]);
        let op = Gather { axis: 1 };
        let y = op.evaluate(&[&data, &indices], &[2, 2, 1], &Bindings::default());
        assert_eq!(y.unwrap(), Value::i64([2, 2, 1], vec![2, 0, 5, 3]));
        let bad = Value::i32([1], vec![3]);
        let error = op.evaluate(&[&data, &bad], &[2, 1], &Bindings::default());
        assert_eq!(error.unwrap_err(), "index 3 is outside an axis of 3");
    }
}
