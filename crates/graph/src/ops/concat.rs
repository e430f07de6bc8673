//! Concatenation along one axis.

use super::operands::{require_axis, require_unquantised};
use super::{DimFormatter, OpDefinition};
use crate::tensor_type::TensorType;
use crate::{Bindings, Dim, Value};

/// Concatenates all operands along `axis`.
#[derive(Clone, Debug, PartialEq)]
pub struct Concat {
    /// The concatenated axis.
    pub axis: usize,
}

impl OpDefinition for Concat {
    fn name(&self) -> &'static str {
        "concat"
    }

    fn attributes(&self, _: DimFormatter<'_>) -> Vec<String> {
        vec![format!("axis: {}", self.axis)]
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<TensorType, String> {
        let [first, ..] = inputs else {
            return Err("takes at least one operand".into());
        };
        require_unquantised("x0", first)?;
        require_axis("x0", first, self.axis)?;
        let mut result = (*first).clone();
        result.shape[self.axis] = Dim::from(0);
        for (i, x) in inputs.iter().enumerate() {
            let mut expect = (*first).clone();
            if let Some(size) = x.shape.get(self.axis) {
                expect.shape[self.axis] = *size;
            }
            if **x != expect {
                return Err(format!(
                    "x{i} is {} {:?}, which cannot be concatenated with {} {:?}",
                    x.dtype, x.shape, first.dtype, first.shape
                ));
            }
            result.shape[self.axis] = result.shape[self.axis] + x.shape[self.axis];
        }
        Ok(result)
    }

    fn keeps_operand(&self, _: &dyn Fn(usize, i64) -> bool) -> bool {
        true
    }

    fn evaluate(&self, inputs: &[&Value], shape: &[usize], _: &Bindings) -> Result<Value, String> {
        let outer: usize = shape[..self.axis].iter().product();
        let inner: usize = shape[self.axis + 1..].iter().product();
        // Append all operands first, so that every element has one index.
        let mut all = inputs[0].data.clone();
        let mut starts = vec![0];
        for x in &inputs[1..] {
            starts.push(all.len());
            all.append(&x.data)?;
        }
        let blocks = (0..outer).flat_map(|o| {
            inputs.iter().zip(&starts).flat_map(move |(x, start)| {
                let block = x.shape[self.axis] * inner;
                start + o * block..start + (o + 1) * block
            })
        });
        Ok(Value {
            shape: shape.to_vec(),
            data: all.pick(blocks),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joins() {
        let (a, b) = (
            Value::i64([2, 1], vec![1, 2]),
            Value::i64([2, 2], vec![3, 4, 5, 6]),
        );
        let y = Concat { axis: 1 }.evaluate(&[&a, &b, &a], &[2, 4], &Bindings::default());
        let expect = vec![1, 3, 4, 1, 2, 5, 6, 2];
        assert_eq!(y.unwrap(), Value::i64([2, 4], expect));
        let (x, y) = (
            TensorType::f32([Dim::from(2), 3.into()]),
            TensorType::f32([Dim::from(2), 4.into()]),
        );
        let joined = Concat { axis: 1 }.infer(&[&x, &y]).unwrap();
        assert_eq!(joined.shape, [Dim::from(2), 7.into()]);
        assert!(Concat { axis: 0 }.infer(&[&x, &y]).is_err());
        assert!(Concat { axis: 0 }.infer(&[]).is_err());
    }
}
