//! Cumulative sum along one axis.

use super::operands::{operands, require_axis, require_dtype};
use super::strided::Lines;
use super::{BufferReuse, DimFormatter, OpDefinition};
use crate::tensor_type::TensorType;
use crate::{Bindings, Data, Value};
use base::DType;

/// Inclusive cumulative sum of `x` along `axis`.
#[derive(Clone, Debug, PartialEq)]
pub struct CumSum {
    /// The axis that is summed.
    pub axis: usize,
}

impl OpDefinition for CumSum {
    fn name(&self) -> &'static str {
        "cum_sum"
    }

    fn attributes(&self, _: DimFormatter<'_>) -> Vec<String> {
        vec![format!("axis: {}", self.axis)]
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<TensorType, String> {
        let [x] = operands(inputs)?;
        require_dtype("x", x, &[DType::F32, DType::I32, DType::I64])?;
        require_axis("x", x, self.axis)?;
        Ok(x.clone())
    }

    fn sharing(&self, _: &[&TensorType], _: &Bindings) -> Result<BufferReuse, String> {
        Ok(BufferReuse::InPlace(1))
    }

    fn evaluate(&self, inputs: &[&Value], shape: &[usize], _: &Bindings) -> Result<Value, String> {
        let lines = Lines::new(shape, self.axis);
        fn run<T: Copy>(lines: &Lines, x: &[T], add: impl Fn(T, T) -> T) -> Vec<T> {
            let mut out = x.to_vec();
            for start in lines.starts() {
                for i in 1..lines.len {
                    let at = start + i * lines.stride;
                    out[at] = add(out[at - lines.stride], out[at]);
                }
            }
            out
        }
        let data = match &inputs[0].data {
            Data::F32(x) => Data::F32(run(&lines, x, |a, b| a + b)),
            Data::I32(x) => Data::I32(run(&lines, x, i32::wrapping_add)),
            Data::I64(x) => Data::I64(run(&lines, x, i64::wrapping_add)),
            Data::Bool(_) => return Err("is not defined for bool".into()),
        };
        let shape = shape.to_vec();
        Ok(Value { shape, data })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums() {
        let x = Value::i64([2, 3], (1..7).collect());
        let run = |axis| CumSum { axis }.evaluate(&[&x], &[2, 3], &Bindings::default());
        assert_eq!(run(1), Ok(Value::i64([2, 3], vec![1, 3, 6, 4, 9, 15])));
        assert_eq!(run(0), Ok(Value::i64([2, 3], vec![1, 2, 3, 5, 7, 9])));
    }
}
