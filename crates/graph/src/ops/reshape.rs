//! Another shape for the same elements.

use super::{Definition, Sharing, operands};
use crate::graph::TensorType;
use crate::{Dim, Value};

/// Splits or joins trailing dimensions without moving data: `x` with `shape` in place of its own.
#[derive(Clone, Debug, PartialEq)]
pub struct Reshape {
    /// The new shape, of as many elements.
    pub shape: Vec<Dim>,
}

impl Reshape {
    /// Symbolic part and constant factor of a shape's element count; at most one dimension may be symbolic.
    fn elements(shape: &[Dim]) -> Option<(Dim, usize)> {
        let mut symbolic = Dim::from(1);
        let mut factor = 1usize;
        for dim in shape {
            match dim.as_const() {
                Some(n) => factor = factor.checked_mul(n)?,
                None if symbolic == Dim::from(1) => symbolic = *dim,
                None => return None,
            }
        }
        Some((symbolic, factor))
    }
}

impl Definition for Reshape {
    fn name(&self) -> &'static str {
        "reshape"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<TensorType, String> {
        let [x] = operands(inputs)?;
        let same = match (Reshape::elements(&x.shape), Reshape::elements(&self.shape)) {
            (Some((a, n)), Some((b, m))) => a * n == b * m,
            _ => false,
        };
        if !same || x.dtype.is_quantised() {
            return Err(format!(
                "cannot turn shape {:?} into {:?}",
                x.shape, self.shape
            ));
        }
        Ok(TensorType {
            dtype: x.dtype,
            shape: self.shape.clone(),
        })
    }

    fn sharing(&self) -> Sharing {
        Sharing::Alias
    }

    fn evaluate(&self, inputs: &[&Value], shape: &[usize]) -> Result<Value, String> {
        Ok(Value {
            shape: shape.to_vec(),
            data: inputs[0].data.clone(),
        })
    }
}
