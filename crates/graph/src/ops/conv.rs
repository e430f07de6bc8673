//! Convolutions in groups of channels.

use super::operands::{f32s, require_f32, require_shape};
use super::windows::{MAX_WINDOW_AXES, PaddedAxes, WindowAxis};
use super::{Activation, DimFormatter, OpDefinition};
use crate::tensor_type::TensorType;
use crate::{Bindings, Value};

/// A convolution, `activation(x * weight (+ bias) (+ residual))`: operands `x [N, C, S..]`, `weight [O, C / groups, K..]`,
/// optionally `bias [O]`, and after a bias optionally `residual [N, O, P..]`, all f32; the result is `[N, O, P..]`. Output
/// channel `o` sees the input channels of its group.
#[derive(Clone, Debug, PartialEq)]
pub struct Conv {
    /// How the kernel slides along each spatial axis; one to three.
    pub axes: Vec<WindowAxis>,
    /// Groups of channels.
    pub groups: usize,
    /// Activation applied to the result, if any.
    pub activation: Option<Activation>,
}

impl OpDefinition for Conv {
    fn name(&self) -> &'static str {
        "conv"
    }

    fn attributes(&self, _: DimFormatter<'_>) -> Vec<String> {
        let mut list = WindowAxis::text(&self.axes);
        list.push(format!("groups: {}", self.groups));
        list.extend(self.activation.map(|a| format!("activation: {}", a.name())));
        list
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<TensorType, String> {
        let (&[x, weight], rest) = inputs
            .split_at_checked(2)
            .filter(|(_, rest)| rest.len() <= 2)
            .ok_or_else(|| format!("takes 2 to 4 operands, has {}", inputs.len()))?
        else {
            return Err("takes x and a weight".into());
        };
        require_f32("x", x)?;
        require_f32("weight", weight)?;
        let count = self.axes.len();
        let rank = count + 2;
        if !(1..=MAX_WINDOW_AXES).contains(&count)
            || [x, weight].iter().any(|t| t.shape.len() != rank)
        {
            return Err(format!(
                "x {:?} and weight {:?} do not have {count} spatial axes",
                x.shape, weight.shape
            ));
        }
        let out = weight.shape[0];
        if self.groups == 0
            || weight.shape[1] * self.groups != x.shape[1]
            || out.checked_div(self.groups).is_none()
        {
            return Err(format!(
                "x {:?} and weight {:?} do not have {} groups",
                x.shape, weight.shape, self.groups
            ));
        }
        let mut shape = vec![x.shape[0], out];
        for (i, axis) in self.axes.iter().enumerate() {
            if weight.shape[2 + i].as_const() != Some(axis.size) {
                return Err(format!(
                    "weight {:?} does not have kernels of {}",
                    weight.shape, axis.size
                ));
            }
            shape.push(axis.windows(x.shape[2 + i])?);
        }
        for (what, operand, shape) in [("bias", 0, &[out][..]), ("residual", 1, &shape[..])] {
            if let Some(operand) = rest.get(operand) {
                require_f32(what, operand)?;
                require_shape(what, operand, shape)?;
            }
        }
        Ok(TensorType::f32(shape))
    }

    fn evaluate(&self, inputs: &[&Value], shape: &[usize], _: &Bindings) -> Result<Value, String> {
        let (x, weight) = (f32s(&inputs[0])?, f32s(&inputs[1])?);
        let bias = inputs.get(2).map(f32s).transpose()?;
        let residual = inputs.get(3).map(f32s).transpose()?;
        let axes = PaddedAxes::new(&self.axes, &inputs[0].shape[2..]);
        let (channels, out) = (inputs[0].shape[1], shape[1]);
        let (inner, per_group) = (channels / self.groups, out / self.groups);
        let plane = axes.plane();
        let kernel: usize = self.axes.iter().map(|a| a.size).product();
        let mut result = Vec::with_capacity(shape.iter().product());
        for n in 0..shape[0] {
            for o in 0..out {
                for window in axes.windows(&shape[2..]) {
                    let mut sum = 0.0f64;
                    for (within, at) in window.enumerate() {
                        let Some(at) = at else { continue };
                        for c in 0..inner {
                            let from = (n * channels + o / per_group * inner + c) * plane;
                            let weight = weight[(o * inner + c) * kernel + within];
                            sum += f64::from(x[from + at]) * f64::from(weight);
                        }
                    }
                    let sum = sum as f32 + bias.map_or(0.0, |bias| bias[o]);
                    let sum = sum + residual.map_or(0.0, |residual| residual[result.len()]);
                    result.push(self.activation.map_or(sum, |a| a.apply(sum)));
                }
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
    fn convolves_in_groups() {
        let x = Value::f32([1, 2, 3], vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let weight = Value::f32([2, 1, 2], vec![1.0, 10.0, 1.0, 0.0]);
        let bias = Value::f32([2], vec![0.5, 0.0]);
        let axis = WindowAxis {
            size: 2,
            stride: 1,
            dilation: 2,
            before: 1,
            after: 0,
        };
        let op = Conv {
            axes: vec![axis],
            groups: 2,
            activation: Some(Activation::Relu),
        };
        let ty = |shape: &[usize]| {
            TensorType::f32(shape.iter().map(|n| Dim::from(*n)).collect::<Vec<_>>())
        };
        let types = [ty(&[1, 2, 3]), ty(&[2, 1, 2]), ty(&[2])];
        let types: Vec<&TensorType> = types.iter().collect();
        let shape = op
            .infer(&types)
            .unwrap()
            .dims(&Bindings::default())
            .unwrap();
        assert_eq!(shape, [1, 2, 2]);
        let residual = Value::f32([1, 2, 2], vec![0.0, 1.0, -1.0, -5.0]);
        let y = op.evaluate(
            &[&x, &weight, &bias, &residual],
            &shape,
            &Bindings::default(),
        );
        assert_eq!(y.unwrap().as_f32().unwrap(), [20.5, 32.5, 0.0, 0.0]);
        let whole = Conv { groups: 1, ..op };
        assert!(whole.infer(&types).is_err());
    }
}
