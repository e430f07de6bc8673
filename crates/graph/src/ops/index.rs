//! Indexing of several leading axes at once.

use super::OpDefinition;
use super::elementwise::Broadcast;
use super::operands::{broadcast, integers, require_index, require_unquantised, wrap_index};
use super::strided::strides;
use crate::tensor_type::TensorType;
use crate::{Bindings, Value};

/// `data[i0, i1, …]`: operands `data` and one index (i32 or i64) for each of its first axes, broadcast together. The
/// result has their common shape, then the axes of `data` that were not indexed. Negative indices count from the end.
#[derive(Clone, Debug, PartialEq)]
pub struct Index;

impl OpDefinition for Index {
    fn name(&self) -> &'static str {
        "index"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<TensorType, String> {
        let Some((data, indices @ [_, ..])) = inputs.split_first() else {
            return Err("takes data and at least one index".into());
        };
        require_unquantised("data", data)?;
        let rest = data.shape.get(indices.len()..).ok_or_else(|| {
            let axes = data.shape.len();
            format!("has {} indices for {axes} axes", indices.len())
        })?;
        let mut shape = Vec::new();
        for (i, index) in indices.iter().enumerate() {
            require_index(&format!("index {i}"), index)?;
            shape = broadcast(&shape, &index.shape)?;
        }
        shape.extend_from_slice(rest);
        Ok(TensorType {
            dtype: data.dtype,
            shape,
        })
    }

    fn evaluate(&self, inputs: &[&Value], shape: &[usize], _: &Bindings) -> Result<Value, String> {
        let (data, indices) = (inputs[0], &inputs[1..]);
        let steps = strides(&data.shape);
        let rest = data.shape.len() - indices.len();
        let common = &shape[..shape.len() - rest];
        let mut starts = vec![0; common.iter().product()];
        for (axis, index) in indices.iter().enumerate() {
            let values = integers(index)?;
            for (start, i) in starts
                .iter_mut()
                .zip(Broadcast::new(index, common).read(&values))
            {
                *start += wrap_index(i, data.shape[axis])? * steps[axis];
            }
        }
        let block: usize = data.shape[indices.len()..].iter().product();
        let places = starts.into_iter().flat_map(|start| start..start + block);
        Ok(Value {
            shape: shape.to_vec(),
            data: data.data.pick(places),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes() {
        let data = Value::i64([2, 3, 2], (0..12).collect());
        let rows = Value::i64([2, 1], vec![0, -1]);
        let columns = Value::i32([2], vec![2, 0]);
        let y = Index.evaluate(&[&data, &rows, &columns], &[2, 2, 2], &Bindings::default());
        let expect = vec![4, 5, 0, 1, 10, 11, 6, 7];
        assert_eq!(y.unwrap(), Value::i64([2, 2, 2], expect));
    }
}
