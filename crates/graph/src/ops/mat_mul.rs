//! The matrix product of two computed tensors.

use super::operands::{broadcast, f32s, require_f32, require_shape};
use super::strided::{broadcast_strides, offsets};
use super::{DimFormatter, OpDefinition};
use crate::tensor_type::TensorType;
use crate::{Bindings, Dim, Value};

/// `alpha · a · b (+ bias)`: operands `a [.., M, K]`, `b [.., K, N]` (or `[.., N, K]` when transposed) and optionally
/// `bias [N]`, all f32. The axes before the last two broadcast to each other.
#[derive(Clone, Debug, PartialEq)]
pub struct MatMul {
    /// Whether `b` is given with its last two axes swapped.
    pub transpose_b: bool,
    /// Factor on the product.
    pub alpha: f32,
}

impl Default for MatMul {
    fn default() -> MatMul {
        MatMul {
            transpose_b: false,
            alpha: 1.0,
        }
    }
}

/// The axes before the last two, rows and columns.
fn split<T: Copy>(shape: &[T]) -> Option<(&[T], T, T)> {
    match shape {
        [batch @ .., rows, columns] => Some((batch, *rows, *columns)),
        _ => None,
    }
}

impl OpDefinition for MatMul {
    fn name(&self) -> &'static str {
        "mat_mul"
    }

    fn attributes(&self, _: DimFormatter<'_>) -> Vec<String> {
        let mut list = Vec::new();
        if self.transpose_b {
            list.push("transpose_b".to_owned());
        }
        if self.alpha != 1.0 {
            list.push(format!("alpha: {}", self.alpha));
        }
        list
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<TensorType, String> {
        let (a, b, bias) = match inputs {
            [a, b] => (a, b, None),
            [a, b, bias] => (a, b, Some(bias)),
            _ => return Err(format!("takes 2 or 3 operands, has {}", inputs.len())),
        };
        require_f32("a", a)?;
        require_f32("b", b)?;
        let (Some((batch_a, m, k)), Some((batch_b, rows, columns))) =
            (split(&a.shape), split(&b.shape))
        else {
            return Err("a and b must have at least two axes".into());
        };
        let (depth, n): (Dim, Dim) = match self.transpose_b {
            true => (columns, rows),
            false => (rows, columns),
        };
        if k != depth {
            return Err(format!(
                "a {:?} has {k:?} columns, b {:?} has {depth:?} rows",
                a.shape, b.shape
            ));
        }
        if let Some(bias) = bias {
            require_f32("bias", bias)?;
            require_shape("bias", bias, &[n])?;
        }
        let mut shape = broadcast(batch_a, batch_b)?;
        shape.extend([m, n]);
        Ok(TensorType::f32(shape))
    }

    fn evaluate(&self, inputs: &[&Value], shape: &[usize], _: &Bindings) -> Result<Value, String> {
        let (a, b) = (f32s(&inputs[0])?, f32s(&inputs[1])?);
        let bias = inputs.get(2).map(f32s).transpose()?;
        let parts = split(&inputs[0].shape).zip(split(&inputs[1].shape));
        let (Some(((batch_a, _, k), (batch_b, _, columns))), Some((batch, m, n))) =
            (parts, split(shape))
        else {
            return Err("a and b must have at least two axes".into());
        };
        let (row_step, column_step) = match self.transpose_b {
            true => (1, k),
            false => (columns, 1),
        };
        let starts = |own: &[usize]| offsets(batch, &broadcast_strides(own, batch));
        let mut out = Vec::with_capacity(shape.iter().product());
        for (at_a, at_b) in starts(batch_a).zip(starts(batch_b)) {
            let (a, b) = (&a[at_a * m * k..], &b[at_b * k * n..]);
            for i in 0..m {
                for j in 0..n {
                    let product = |l: usize| {
                        f64::from(a[i * k + l]) * f64::from(b[l * row_step + j * column_step])
                    };
                    let dot: f64 = (0..k).map(product).sum();
                    out.push(dot as f32 * self.alpha + bias.map_or(0.0, |bias| bias[j]));
                }
            }
        }
        Ok(Value::f32(shape, out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multiplies() {
        let a = Value::f32([2, 1, 2], vec![1.0, 2.0, 3.0, 4.0]);
        let b = Value::f32([2, 3], vec![1.0, 0.0, 2.0, 0.0, 1.0, 3.0]);
        let run = |op: MatMul, operands: &[&Value]| {
            let y = op.evaluate(operands, &[2, 1, 3], &Bindings::default());
            y.unwrap().as_f32().unwrap().to_vec()
        };
        let plain = MatMul::default();
        assert_eq!(run(plain, &[&a, &b]), [1.0, 2.0, 8.0, 3.0, 4.0, 18.0]);
        let bt = Value::f32([3, 2], vec![1.0, 0.0, 0.0, 1.0, 2.0, 3.0]);
        let bias = Value::f32([3], vec![0.5, 0.0, -1.0]);
        let op = MatMul {
            transpose_b: true,
            alpha: 2.0,
        };
        assert_eq!(run(op, &[&a, &bt, &bias]), [2.5, 4.0, 15.0, 6.5, 8.0, 35.0]);
    }
}
