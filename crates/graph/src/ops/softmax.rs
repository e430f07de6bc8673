//! Softmax or log-softmax along one axis.

use super::elementwise::infer_f32;
use super::operands::{f32s, require_axis};
use super::strided::Lines;
use super::{BufferReuse, DimFormatter, OpDefinition};
use crate::tensor_type::TensorType;
use crate::{Bindings, Value};

/// `exp(x) / Σ exp(x)` along `axis`, with the maximum subtracted first. A lane of negative infinities gives NaN, as in
/// PyTorch.
#[derive(Clone, Debug, PartialEq)]
pub struct Softmax {
    /// The normalised axis.
    pub axis: usize,
    /// Whether to return the logarithm.
    pub log: bool,
}

impl OpDefinition for Softmax {
    fn name(&self) -> &'static str {
        if self.log { "log_softmax" } else { "softmax" }
    }

    fn attributes(&self, _: DimFormatter<'_>) -> Vec<String> {
        vec![format!("axis: {}", self.axis)]
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<TensorType, String> {
        let result = infer_f32(inputs)?;
        require_axis("x", &result, self.axis)?;
        Ok(result)
    }

    fn sharing(&self, _: &[&TensorType], _: &Bindings) -> Result<BufferReuse, String> {
        Ok(BufferReuse::InPlace(1))
    }

    fn evaluate(&self, inputs: &[&Value], shape: &[usize], _: &Bindings) -> Result<Value, String> {
        let x = f32s(&inputs[0])?;
        let mut out = x.to_vec();
        let lines = Lines::new(shape, self.axis);
        for start in lines.starts() {
            let places = || (0..lines.len).map(|i| start + i * lines.stride);
            let max = places().fold(f32::NEG_INFINITY, |max, at| max.max(x[at]));
            let sum: f32 = places().map(|at| (x[at] - max).exp()).sum();
            for at in places() {
                out[at] = match self.log {
                    true => x[at] - max - sum.ln(),
                    false => (x[at] - max).exp() / sum,
                };
            }
        }
        Ok(Value::f32(shape, out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_to_one() {
        let x = Value::f32([2, 2], vec![0.0, 0.0, 3f32.ln(), 0.0]);
        let run = |axis, log| {
            let y = Softmax { axis, log }.evaluate(&[&x], &[2, 2], &Bindings::default());
            y.unwrap().as_f32().unwrap().to_vec()
        };
        let close = |found: Vec<f32>, expect: [f32; 4]| {
            let near = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-6;
            assert!(found.iter().zip(&expect).all(near), "{found:?}");
        };
        close(run(0, false), [0.25, 0.5, 0.75, 0.5]);
        close(run(1, false), [0.5, 0.5, 0.75, 0.25]);
        close(run(1, true), [0.5, 0.5, 0.75, 0.25].map(f32::ln));
    }
}
