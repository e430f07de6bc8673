//! Permutation of axes.

use super::operands::{operands, require_unquantised};
use super::strided::{offsets, strides};
use super::{BufferReuse, DimFormatter, OpDefinition};
use crate::tensor_type::TensorType;
use crate::{Bindings, Value};

/// `x` with its axes in another order: axis `i` of the result is axis `axes[i]` of `x`.
#[derive(Clone, Debug, PartialEq)]
pub struct Permute {
    /// Every axis of `x` once.
    pub axes: Vec<usize>,
}

impl Permute {
    /// The swap of the last two of `rank` axes.
    pub fn transpose(rank: usize) -> Permute {
        let mut axes: Vec<usize> = (0..rank).collect();
        axes.swap(rank - 2, rank - 1);
        Permute { axes }
    }

    /// Whether this is the identity.
    pub fn is_identity(&self) -> bool {
        self.axes.iter().enumerate().all(|(i, axis)| i == *axis)
    }

    /// The inverse permutation.
    pub fn inverse(&self) -> Permute {
        let mut axes = vec![0; self.axes.len()];
        for (to, from) in self.axes.iter().enumerate() {
            axes[*from] = to;
        }
        Permute { axes }
    }

    /// The composition of this permutation with `next` after it.
    pub fn then(&self, next: &Permute) -> Permute {
        let axes = next.axes.iter().map(|i| self.axes[*i]).collect();
        Permute { axes }
    }

    /// Whether no element of a tensor of this shape moves: only axes of size 1 change their order.
    pub fn keeps_order(&self, shape: &[usize]) -> bool {
        let long = self.axes.iter().filter(|axis| shape[**axis] != 1);
        shape.contains(&0) || long.is_sorted()
    }
}

impl OpDefinition for Permute {
    fn name(&self) -> &'static str {
        "permute"
    }

    fn attributes(&self, _: DimFormatter<'_>) -> Vec<String> {
        vec![format!("axes: {:?}", self.axes)]
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<TensorType, String> {
        let [x] = operands(inputs)?;
        require_unquantised("x", x)?;
        let mut seen = vec![false; x.shape.len()];
        let mut once = |axis: &usize| {
            let first = seen.get_mut(*axis).map(|s| std::mem::replace(s, true));
            first == Some(false)
        };
        if self.axes.len() != x.shape.len() || !self.axes.iter().all(&mut once) {
            return Err(format!(
                "axes {:?} are not a permutation of the {} axes of x",
                self.axes,
                x.shape.len()
            ));
        }
        Ok(TensorType {
            dtype: x.dtype,
            shape: self.axes.iter().map(|axis| x.shape[*axis]).collect(),
        })
    }

    fn sharing(&self, inputs: &[&TensorType], at: &Bindings) -> Result<BufferReuse, String> {
        let shape = inputs[0].dims(at).ok_or("x has no size")?;
        Ok(match self.keeps_order(&shape) {
            true => BufferReuse::ALIAS,
            false => BufferReuse::None,
        })
    }

    fn keeps_operand(&self, _: &dyn Fn(usize, i64) -> bool) -> bool {
        self.is_identity()
    }

    fn evaluate(&self, inputs: &[&Value], shape: &[usize], _: &Bindings) -> Result<Value, String> {
        let own = strides(&inputs[0].shape);
        let moved: Vec<usize> = self.axes.iter().map(|axis| own[*axis]).collect();
        Ok(Value {
            shape: shape.to_vec(),
            data: inputs[0].data.pick(offsets(shape, &moved)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_axes() {
        let x = Value::i64([2, 3, 1], (0..6).collect());
        let p = Permute {
            axes: vec![1, 2, 0],
        };
        let y = p.evaluate(&[&x], &[3, 1, 2], &Bindings::default());
        assert_eq!(y.unwrap(), Value::i64([3, 1, 2], vec![0, 3, 1, 4, 2, 5]));
        assert_eq!(p.inverse().axes, [2, 0, 1]);
        assert!(p.then(&p.inverse()).is_identity());
        assert_eq!(Permute::transpose(3).axes, [0, 2, 1]);
        assert!(!p.keeps_order(&[2, 3, 1]));
        assert!(p.keeps_order(&[1, 3, 4]), "an axis of one may move");
    }
}
