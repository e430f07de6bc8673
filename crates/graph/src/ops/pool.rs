//! Pooling: the maximum or the sum of each window.

use super::operands::{f32s, operands, require_f32};
use super::windows::{PaddedAxes, WindowAxis, axes_before};
use super::{DimFormatter, OpDefinition};
use crate::tensor_type::TensorType;
use crate::{Bindings, Value};

/// How the elements of a window are pooled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolFunction {
    /// The largest element; NaN if one is NaN, and minus infinity in the padding.
    Max,
    /// The sum; the padding is zero.
    Sum,
}

impl PoolFunction {
    /// Every function.
    pub const ALL: [PoolFunction; 2] = [PoolFunction::Max, PoolFunction::Sum];

    /// Name in text form.
    pub fn name(self) -> &'static str {
        match self {
            PoolFunction::Max => "max",
            PoolFunction::Sum => "sum",
        }
    }
}

/// Windows that slide along the last axes of `x [A.., S..]`, pooled to `[A.., P..]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    /// How the window slides along each of the last axes of `x`; one to three.
    pub axes: Vec<WindowAxis>,
    /// How the elements of a window become one.
    pub function: PoolFunction,
}

impl OpDefinition for Pool {
    fn name(&self) -> &'static str {
        "pool"
    }

    fn attributes(&self, _: DimFormatter<'_>) -> Vec<String> {
        let mut list = WindowAxis::text(&self.axes);
        list.push(format!("function: {}", self.function.name()));
        list
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<TensorType, String> {
        let [x] = operands(inputs)?;
        require_f32("x", x)?;
        let outer = axes_before(&self.axes, x, 0)?;
        let mut shape = x.shape.clone();
        for (axis, len) in self.axes.iter().zip(&mut shape[outer..]) {
            *len = axis.windows(*len)?;
        }
        Ok(TensorType::f32(shape))
    }

    fn evaluate(&self, inputs: &[&Value], shape: &[usize], _: &Bindings) -> Result<Value, String> {
        let x = f32s(&inputs[0])?;
        let outer = shape.len() - self.axes.len();
        let axes = PaddedAxes::new(&self.axes, &inputs[0].shape[outer..]);
        let planes: usize = shape[..outer].iter().product();
        let mut result = Vec::with_capacity(shape.iter().product());
        for plane in 0..planes {
            let x = &x[plane * axes.plane()..];
            for window in axes.windows(&shape[outer..]) {
                let elements = window.flatten().map(|at| x[at]);
                result.push(match self.function {
                    PoolFunction::Max => elements.fold(f32::NEG_INFINITY, |most, x| {
                        if x > most || x.is_nan() { x } else { most }
                    }),
                    PoolFunction::Sum => elements.map(f64::from).sum::<f64>() as f32,
                });
            }
        }
        Ok(Value::f32(shape, result))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Dim;

    #[test]
    fn pools_windows_and_their_padding() {
        let x = Value::f32([1, 2, 3], vec![-1.0, -2.0, -3.0, 4.0, f32::NAN, 6.0]);
        let axis = WindowAxis {
            size: 2,
            stride: 2,
            dilation: 1,
            before: 1,
            after: 0,
        };
        for (function, expect) in [
            (PoolFunction::Max, [-1.0, -2.0, 4.0, f32::NAN]),
            (PoolFunction::Sum, [-1.0, -5.0, 4.0, f32::NAN]),
        ] {
            let op = Pool {
                axes: vec![axis],
                function,
            };
            let ty = TensorType::f32([Dim::from(1), 2.into(), 3.into()]);
            let shape = op.infer(&[&ty]).unwrap().dims(&Bindings::default());
            assert_eq!(shape.as_deref(), Some(&[1, 2, 2][..]));
            let y = op.evaluate(&[&x], &[1, 2, 2], &Bindings::default());
            let y = y.unwrap();
            let y = y.as_f32().unwrap();
            assert_eq!(y[..3], expect[..3]);
            assert!(y[3].is_nan());
        }
        let flat = Pool {
            axes: vec![axis; 2],
            function: PoolFunction::Max,
        };
        assert!(flat.infer(&[&TensorType::f32([Dim::from(3)])]).is_err());
    }
}
