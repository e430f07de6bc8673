//! The order of elements along one axis.

use std::cmp::Ordering;

use super::operands::{operands, require_axis, require_dtype};
use super::strided::Lines;
use super::{BufferReuse, DimFormatter, OpDefinition};
use crate::tensor_type::TensorType;
use crate::{Bindings, Data, Dim, Value};
use base::DType;

/// Indices (i64) of the first `count` elements of `x` along `axis` in sorted order. Equal elements keep their order; NaN is
/// greater than every number.
#[derive(Clone, Debug, PartialEq)]
pub struct ArgSort {
    /// The sorted axis.
    pub axis: usize,
    /// Whether the greatest element comes first.
    pub descending: bool,
    /// Elements of the result along the axis.
    pub count: Dim,
}

impl ArgSort {
    /// The order of two elements, by which [`ArgSort`] sorts.
    pub fn order<T: PartialOrd>(a: &T, b: &T) -> Ordering {
        let is_nan = |x: &T| x.partial_cmp(x).is_none();
        a.partial_cmp(b)
            .unwrap_or_else(|| is_nan(a).cmp(&is_nan(b)))
    }
}

impl OpDefinition for ArgSort {
    fn name(&self) -> &'static str {
        "arg_sort"
    }

    fn attributes(&self, _: DimFormatter<'_>) -> Vec<String> {
        let mut list = vec![format!("axis: {}", self.axis)];
        if self.descending {
            list.push("descending".to_owned());
        }
        list
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<TensorType, String> {
        let [x] = operands(inputs)?;
        require_dtype("x", x, &[DType::F32, DType::I32, DType::I64, DType::Bool])?;
        require_axis("x", x, self.axis)?;
        let len = x.shape[self.axis];
        let known = self.count.as_const().zip(len.as_const());
        if known.is_some_and(|(count, len)| count > len) {
            return Err(too_few(self.count, len));
        }
        let mut shape = x.shape.clone();
        shape[self.axis] = self.count;
        Ok(TensorType {
            dtype: DType::I64,
            shape,
        })
    }

    fn sharing(&self, inputs: &[&TensorType], at: &Bindings) -> Result<BufferReuse, String> {
        let len = inputs[0].shape[self.axis];
        match self.count.eval(at) <= len.eval(at) {
            true => Ok(BufferReuse::None),
            false => Err(too_few(self.count, len)),
        }
    }

    fn evaluate(&self, inputs: &[&Value], shape: &[usize], _: &Bindings) -> Result<Value, String> {
        let from = Lines::new(&inputs[0].shape, self.axis);
        let to = Lines::new(shape, self.axis);
        let mut out = vec![0; shape.iter().product()];
        fn line<T: PartialOrd>(x: &[T], start: usize, lines: &Lines, descending: bool) -> Vec<i64> {
            let mut indices: Vec<i64> = (0..lines.len as i64).collect();
            let at = |i: &i64| &x[start + *i as usize * lines.stride];
            indices.sort_by(|a, b| match descending {
                true => ArgSort::order(at(b), at(a)),
                false => ArgSort::order(at(a), at(b)),
            });
            indices
        }
        for (start, first) in from.starts().zip(to.starts()) {
            let sorted = match &inputs[0].data {
                Data::F32(x) => line(x, start, &from, self.descending),
                Data::I32(x) => line(x, start, &from, self.descending),
                Data::I64(x) => line(x, start, &from, self.descending),
                Data::Bool(x) => line(x, start, &from, self.descending),
            };
            for (i, index) in sorted.into_iter().take(to.len).enumerate() {
                out[first + i * to.stride] = index;
            }
        }
        Ok(Value::i64(shape, out))
    }
}

fn too_few(count: Dim, len: Dim) -> String {
    format!("{count:?} of {len:?} elements cannot be taken")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sorts() {
        let x = Value::f32([2, 4], vec![2.0, f32::NAN, -1.0, 2.0, 0.0, 0.0, 1.0, -0.0]);
        let run = |descending, count: usize| {
            let op = ArgSort {
                axis: 1,
                descending,
                count: count.into(),
            };
            let y = op.evaluate(&[&x], &[2, count], &Bindings::default());
            y.unwrap().as_i64().unwrap().to_vec()
        };
        assert_eq!(run(false, 4), [2, 0, 3, 1, 0, 1, 3, 2]);
        assert_eq!(run(true, 2), [1, 0, 2, 0]);
        let ty = TensorType::f32([Dim::from(2), 4.into()]);
        let op = ArgSort {
            axis: 1,
            descending: true,
            count: 5.into(),
        };
        assert!(op.infer(&[&ty]).is_err());
    }
}
