//! Change of shape without moving elements.

use super::operands::operands;
use super::{BufferReuse, OpDefinition};
use crate::element_count::same_element_count;
use crate::tensor_type::TensorType;
use crate::{Bindings, Dim, Value};

/// Splits or joins dimensions without moving data: the elements of `x` in the given shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Reshape {
    /// The new shape, with the same number of elements.
    pub shape: Vec<Dim>,
}

impl OpDefinition for Reshape {
    fn name(&self) -> &'static str {
        "reshape"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<TensorType, String> {
        let [x] = operands(inputs)?;
        if !same_element_count(&x.shape, &self.shape) || x.dtype.is_quantised() {
            return Err(format!("cannot reshape {:?} to {:?}", x.shape, self.shape));
        }
        Ok(TensorType {
            dtype: x.dtype,
            shape: self.shape.clone(),
        })
    }

    fn sharing(&self, _: &[&TensorType], _: &Bindings) -> Result<BufferReuse, String> {
        Ok(BufferReuse::ALIAS)
    }

    fn keeps_operand(&self, _: &dyn Fn(usize, i64) -> bool) -> bool {
        true
    }

    fn evaluate(&self, inputs: &[&Value], shape: &[usize], _: &Bindings) -> Result<Value, String> {
        Ok(Value {
            shape: shape.to_vec(),
            data: inputs[0].data.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Symbol;

    #[test]
    fn counts_symbolic_elements() {
        let (b, t) = (Dim::from(Symbol(0)), Dim::from(Symbol(1)));
        let fits = |from: &[Dim], to: &[Dim]| {
            let shape = to.to_vec();
            Reshape { shape }.infer(&[&TensorType::f32(from)]).is_ok()
        };
        let n = |n: usize| Dim::from(n);
        assert!(fits(&[b, t, n(12)], &[b, t, n(3), n(4)]));
        assert!(fits(&[t, b], &[b, n(1), t]));
        assert!(fits(&[t * 6 + n(3), n(4)], &[t * 4 + n(2), n(6)]));
        assert!(!fits(&[b, n(4)], &[t, n(4)]));
        assert!(!fits(&[n(6)], &[n(4)]));
        assert!(fits(&[n(0), t], &[n(0)]));
        assert!(fits(&[n(1)], &[]));
        let product = b.checked_mul(&t).unwrap();
        assert!(fits(&[b, t, n(12)], &[product, n(12)]));
        assert!(fits(&[product * 3, n(4)], &[t * 2, b * 6]));
        assert!(!fits(&[b, b, n(12)], &[product, n(12)]));
    }
}
