//! A part of a tensor along one axis.

use super::operands::{operands, require_axis, require_unquantised};
use super::strided::{offsets, strides};
use super::{BufferReuse, DimFormatter, OpDefinition};
use crate::tensor_type::TensorType;
use crate::{Bindings, Dim, Value};

/// The `len` elements `start`, `start + step`, … of `x` along `axis`.
#[derive(Clone, Debug, PartialEq)]
pub struct Slice {
    /// The sliced axis.
    pub axis: usize,
    /// Index of the first element.
    pub start: Dim,
    /// Number of elements.
    pub len: Dim,
    /// Distance between consecutive elements; at least 1.
    pub step: usize,
}

impl Slice {
    /// First element and length in an axis of `size`, or the reason why they are out of range.
    pub fn resolve(&self, size: usize, at: &Bindings) -> Result<(usize, usize), String> {
        let inside = || {
            let (start, len) = (self.start.eval(at)?, self.len.eval(at)?);
            let past = match len.checked_sub(1) {
                Some(steps) => start
                    .checked_add(steps.checked_mul(self.step)?)?
                    .checked_add(1)?,
                None => start,
            };
            (past <= size).then_some((start, len))
        };
        inside().ok_or_else(|| {
            let value = |dim: &Dim| dim.value(at).map_or("?".to_owned(), |v| v.to_string());
            format!(
                "{} elements from {} by {} are not all in an axis of {size}",
                value(&self.len),
                value(&self.start),
                self.step
            )
        })
    }
}

impl OpDefinition for Slice {
    fn name(&self) -> &'static str {
        "slice"
    }

    fn attributes(&self, dim: DimFormatter<'_>) -> Vec<String> {
        let mut list = vec![
            format!("axis: {}", self.axis),
            format!("start: {}", dim(&self.start)),
        ];
        if self.step != 1 {
            list.push(format!("step: {}", self.step));
        }
        list
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<TensorType, String> {
        let [x] = operands(inputs)?;
        require_unquantised("x", x)?;
        require_axis("x", x, self.axis)?;
        if self.step == 0 {
            return Err("its step is zero".into());
        }
        let fixed = self.start.as_const().is_some() && self.len.as_const().is_some();
        if let (Some(size), true) = (x.shape[self.axis].as_const(), fixed) {
            self.resolve(size, &Bindings::default())?;
        }
        let mut shape = x.shape.clone();
        shape[self.axis] = self.len;
        Ok(TensorType {
            dtype: x.dtype,
            shape,
        })
    }

    fn sharing(&self, inputs: &[&TensorType], at: &Bindings) -> Result<BufferReuse, String> {
        let shape = inputs[0].dims(at).ok_or("x has no size")?;
        let (start, len) = self.resolve(shape[self.axis], at)?;
        let whole = shape[..self.axis].iter().all(|d| *d == 1) && (self.step == 1 || len <= 1);
        if !whole {
            return Ok(BufferReuse::None);
        }
        let element = inputs[0].dtype.block_bytes();
        let row: usize = shape[self.axis + 1..].iter().product();
        Ok(BufferReuse::Alias {
            offset: start * row * element,
        })
    }

    fn keeps_operand(&self, _: &dyn Fn(usize, i64) -> bool) -> bool {
        self.step == 1 && self.start.as_const() == Some(0)
    }

    fn evaluate(
        &self,
        inputs: &[&Value],
        shape: &[usize],
        bindings: &Bindings,
    ) -> Result<Value, String> {
        let x = inputs[0];
        let (start, _) = self.resolve(x.shape[self.axis], bindings)?;
        let mut steps = strides(&x.shape);
        let first = start * steps[self.axis];
        steps[self.axis] *= self.step;
        Ok(Value {
            shape: shape.to_vec(),
            data: x.data.pick(offsets(shape, &steps).map(|i| first + i)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Symbol;

    #[test]
    fn cuts() {
        let x = Value::i64([2, 5], (0..10).collect());
        let cut = |axis, start: usize, len: usize, step| {
            let op = Slice {
                axis,
                start: start.into(),
                len: len.into(),
                step,
            };
            let mut shape = x.shape.clone();
            shape[axis] = len;
            op.evaluate(&[&x], &shape, &Bindings::default())
        };
        assert_eq!(
            cut(1, 1, 2, 2).unwrap(),
            Value::i64([2, 2], vec![1, 3, 6, 8])
        );
        assert_eq!(
            cut(0, 1, 1, 1).unwrap(),
            Value::i64([1, 5], vec![5, 6, 7, 8, 9])
        );
        assert_eq!(
            cut(1, 2, 3, 2).unwrap_err(),
            "3 elements from 2 by 2 are not all in an axis of 5"
        );
        assert_eq!(cut(1, 5, 0, 1).unwrap(), Value::i64([2, 0], vec![]));
    }

    #[test]
    fn is_a_view_where_it_is_whole() {
        let t = Symbol(0);
        let x = TensorType::f32([1.into(), Dim::from(t), 4.into()]);
        let last = Slice {
            axis: 1,
            start: Dim::from(t) - Dim::from(1),
            len: 1.into(),
            step: 1,
        };
        let at = |n| Bindings::default().with(t, n);
        let view = |offset| Ok(BufferReuse::Alias { offset });
        assert_eq!(last.sharing(&[&x], &at(3)), view(32));
        assert!(last.sharing(&[&x], &at(0)).is_err());
        let columns = Slice {
            axis: 2,
            start: 1.into(),
            len: 2.into(),
            step: 1,
        };
        assert_eq!(columns.sharing(&[&x], &at(3)), Ok(BufferReuse::None));
        assert_eq!(columns.sharing(&[&x], &at(1)), view(4));
    }
}
