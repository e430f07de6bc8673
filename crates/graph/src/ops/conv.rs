//! Convolutions in groups of channels.

use super::operands::{f32s, require_f32, require_shape};
use super::windows::{MAX_WINDOW_AXES, WindowAxis};
use super::{DimFormatter, OpDefinition};
use crate::tensor_type::TensorType;
use crate::{Bindings, Value};

/// A convolution: operands `x [N, C, S..]`, `weight [O, C / groups, K..]` and optionally `bias [O]`, all f32; the result is
/// `[N, O, P..]`. Output channel `o` sees the input channels of its group.
#[derive(Clone, Debug, PartialEq)]
pub struct Conv {
    /// How the kernel slides along each spatial axis; one to three.
    pub axes: Vec<WindowAxis>,
    /// Groups of channels.
    pub groups: usize,
}

impl OpDefinition for Conv {
    fn name(&self) -> &'static str {
        "conv"
    }

    fn attributes(&self, _: DimFormatter<'_>) -> Vec<String> {
        let mut list = WindowAxis::text(&self.axes);
        list.push(format!("groups: {}", self.groups));
        list
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<TensorType, String> {
        let (x, weight, bias) = match inputs {
            [x, weight] => (x, weight, None),
            [x, weight, bias] => (x, weight, Some(bias)),
            _ => return Err(format!("takes 2 or 3 operands, has {}", inputs.len())),
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
        if let Some(bias) = bias {
            require_f32("bias", bias)?;
            require_shape("bias", bias, &[out])?;
        }
        Ok(TensorType::f32(shape))
    }

    fn evaluate(&self, inputs: &[&Value], shape: &[usize], _: &Bindings) -> Result<Value, String> {
        let (x, weight) = (f32s(&inputs[0])?, f32s(&inputs[1])?);
        let bias = inputs.get(2).map(f32s).transpose()?;
        // Three spatial axes always; the first ones may have one element.
        let one = WindowAxis {
            size: 1,
            stride: 1,
            dilation: 1,
            before: 0,
            after: 0,
        };
        let mut axes = [one; MAX_WINDOW_AXES];
        let (mut size, mut places) = ([1; MAX_WINDOW_AXES], [1; MAX_WINDOW_AXES]);
        let first = MAX_WINDOW_AXES - self.axes.len();
        for (i, axis) in self.axes.iter().enumerate() {
            axes[first + i] = *axis;
            size[first + i] = inputs[0].shape[2 + i];
            places[first + i] = shape[2 + i];
        }
        let (channels, out) = (inputs[0].shape[1], shape[1]);
        let (inner, per_group) = (channels / self.groups, out / self.groups);
        let plane: usize = size.iter().product();
        let kernel: usize = axes.iter().map(|a| a.size).product();
        let mut result = Vec::with_capacity(shape.iter().product());
        let cube = |n: [usize; 3]| {
            (0..n[0])
                .flat_map(move |a| (0..n[1]).flat_map(move |b| (0..n[2]).map(move |c| [a, b, c])))
        };
        for n in 0..shape[0] {
            for o in 0..out {
                for place in cube(places) {
                    let mut sum = 0.0f64;
                    for c in 0..inner {
                        let from = (n * channels + o / per_group * inner + c) * plane;
                        let weights = &weight[(o * inner + c) * kernel..][..kernel];
                        for (within, w) in cube(axes.map(|a| a.size)).zip(weights) {
                            let at = (0..3).try_fold(0, |at, i| {
                                let along = axes[i].place(place[i], within[i], size[i])?;
                                Some(at * size[i] + along)
                            });
                            sum += at.map_or(0.0, |at| f64::from(x[from + at]) * f64::from(*w));
                        }
                    }
                    result.push(sum as f32 + bias.map_or(0.0, |bias| bias[o]));
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
        let y = op.evaluate(&[&x, &weight, &bias], &shape, &Bindings::default());
        assert_eq!(y.unwrap().as_f32().unwrap(), [20.5, 31.5, 0.0, 4.0]);
        let whole = Conv { groups: 1, ..op };
        assert!(whole.infer(&types).is_err());
    }
}
