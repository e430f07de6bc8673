//! Feed-forward blocks of which every row uses only some: a mixture of experts.

use super::operands::{f32s, last_dim, operands, require_f32, require_shape};
use super::{Activation, DimFormatter, OpDefinition};
use crate::tensor_type::TensorType;
use crate::{Bindings, Dim, Value};

/// `Σ weight · down(function(gate(x), up(x)))` over the experts for which a row has a weight other than zero, in their order.
///
/// Operands: `x [.., K]` f32, `weights [.., E]` f32, and the matrices of all experts, one below the other, of any real types:
/// `gate [E·F, K]`, `up [E·F, K]`, `down [E·N, F]`; then none or all of their biases, f32 `[E, F]`, `[E, F]` and `[E, N]`. The result
/// is `[.., N]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Experts {
    /// How gate and up are combined.
    pub function: ExpertGate,
    /// Experts that a row has weights for, as work is estimated; the weights decide.
    pub used: usize,
}

/// How an expert combines the products with its gate and its up matrix.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ExpertGate {
    /// `activation(gate) · up`.
    Gated(Activation),
    /// `gate · sigmoid(alpha · gate) · (up + 1)`, with gate at most `limit` and up between `−limit` and `limit`.
    ClampedSwish {
        /// Factor in the sigmoid.
        alpha: f32,
        /// Bound of both.
        limit: f32,
    },
}

impl ExpertGate {
    /// Text form.
    fn text(self) -> String {
        match self {
            ExpertGate::Gated(activation) => activation.name().to_owned(),
            ExpertGate::ClampedSwish { alpha, limit } => {
                format!("clamped_swish({alpha}, {limit})")
            }
        }
    }

    /// The function at one point.
    pub fn apply(self, gate: f32, up: f32) -> f32 {
        match self {
            ExpertGate::Gated(activation) => activation.apply(gate) * up,
            ExpertGate::ClampedSwish { alpha, limit } => {
                let (gate, up) = (gate.min(limit), up.clamp(-limit, limit));
                gate / (1.0 + (-alpha * gate).exp()) * (up + 1.0)
            }
        }
    }
}

impl OpDefinition for Experts {
    fn name(&self) -> &'static str {
        "experts"
    }

    fn attributes(&self, _: DimFormatter<'_>) -> Vec<String> {
        vec![
            format!("function: {}", self.function.text()),
            format!("used: {}", self.used),
        ]
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<TensorType, String> {
        let (matrices, biases) = inputs.split_at(inputs.len().min(5));
        let [x, weights, gate, up, down] = operands(matrices)?;
        require_f32("x", x)?;
        require_f32("weights", weights)?;
        let (depth, experts) = (last_dim("x", x)?, last_dim("weights", weights)?);
        let outer = |ty: &TensorType| ty.shape[..ty.shape.len() - 1].to_vec();
        if outer(x) != outer(weights) {
            return Err(format!(
                "weights have shape {:?}, x has {:?}",
                weights.shape, x.shape
            ));
        }
        let rows = |what: &str, ty: &TensorType, columns: usize| {
            if !ty.dtype.is_real() {
                return Err(format!("{what} is {}, must be a real type", ty.dtype));
            }
            match ty.shape.iter().map(Dim::as_const).collect::<Vec<_>>()[..] {
                [Some(all), Some(k)] if k == columns && experts > 0 && all % experts == 0 => {
                    Ok(all / experts)
                }
                _ => Err(format!(
                    "{what} has shape {:?}, must have {columns} columns and rows for {experts} experts",
                    ty.shape
                )),
            }
        };
        let inner = rows("gate", gate, depth)?;
        if rows("up", up, depth)? != inner {
            return Err(format!(
                "up has shape {:?}, gate has {:?}",
                up.shape, gate.shape
            ));
        }
        let width = rows("down", down, inner)?;
        if !matches!(biases.len(), 0 | 3) {
            return Err(format!("takes 5 or 8 operands, has {}", inputs.len()));
        }
        for (bias, (what, n)) in biases.iter().zip([
            ("the gate's bias", inner),
            ("up's bias", inner),
            ("down's bias", width),
        ]) {
            require_f32(what, bias)?;
            require_shape(what, bias, &[experts.into(), n.into()])?;
        }
        let mut shape = outer(x);
        shape.push(width.into());
        Ok(TensorType::f32(shape))
    }

    fn evaluate(&self, inputs: &[&Value], shape: &[usize], _: &Bindings) -> Result<Value, String> {
        let [x, weights, gate, up, down, biases @ ..] = inputs else {
            return Err("takes 5 or 8 operands".into());
        };
        let biases: Vec<_> = biases.iter().map(f32s).collect::<Result<_, _>>()?;
        let bias = |operand: usize, at: usize| biases.get(operand).map_or(0.0, |bias| bias[at]);
        let (rows, depth) = x.rows();
        let (_, experts) = weights.rows();
        let (inner, width) = (gate.rows().0 / experts, down.rows().0 / experts);
        let (x, weights) = (f32s(x)?, f32s(weights)?);
        let (gate, up, down) = (f32s(gate)?, f32s(up)?, f32s(down)?);
        let product = |x: &[f32], matrix: &[f32], row: usize| {
            let row = &matrix[row * x.len()..][..x.len()];
            let dot: f64 = x.iter().zip(row).map(|(x, w)| *x as f64 * *w as f64).sum();
            dot as f32
        };
        let mut out = vec![0.0; rows * width];
        for row in 0..rows {
            let x = &x[row * depth..][..depth];
            let out = &mut out[row * width..][..width];
            for expert in 0..experts {
                let weight = weights[row * experts + expert];
                if weight == 0.0 {
                    continue;
                }
                let hidden = (expert * inner..(expert + 1) * inner).map(|at| {
                    let gate = product(x, gate, at) + bias(0, at);
                    self.function.apply(gate, product(x, up, at) + bias(1, at))
                });
                let hidden: Vec<f32> = hidden.collect();
                for (i, out) in out.iter_mut().enumerate() {
                    let at = expert * width + i;
                    *out += weight * (product(&hidden, down, at) + bias(2, at));
                }
            }
        }
        Ok(Value::f32(shape, out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Bindings;

    #[test]
    fn clamped_swish_is_bounded() {
        let gate = ExpertGate::ClampedSwish {
            alpha: 1.702,
            limit: 7.0,
        };
        assert_eq!(gate.apply(0.0, 3.0), 0.0);
        assert_eq!(gate.apply(50.0, 50.0), gate.apply(7.0, 7.0));
        assert!((gate.apply(7.0, -9.0) + 42.0).abs() < 1e-3);
    }

    #[test]
    fn rows_use_their_experts() {
        let op = Experts {
            function: ExpertGate::Gated(Activation::Relu),
            used: 1,
        };
        let value = |shape: &[usize], data: &[f32]| Value::f32(shape, data.to_vec());
        let x = value(&[2, 2], &[1.0, 2.0, 3.0, -1.0]);
        // The second row uses both experts, the first one only the second.
        let weights = value(&[2, 2], &[0.0, 0.5, 2.0, 1.0]);
        let gate = value(&[2, 2], &[1.0, 0.0, 1.0, 1.0]);
        let up = value(&[2, 2], &[0.0, 1.0, 1.0, 0.0]);
        let down = value(&[4, 1], &[1.0, 2.0, 10.0, 20.0]);
        let inputs = [&x, &weights, &gate, &up, &down];
        let dims = |v: &Value| v.shape.iter().map(|n| Dim::from(*n)).collect::<Vec<_>>();
        let types = inputs.map(|v| TensorType::f32(dims(v)));
        let shape = op.infer(&types.each_ref()).unwrap().shape;
        assert_eq!(shape, [Dim::from(2), Dim::from(2)]);
        let out = op.evaluate(&inputs, &[2, 2], &Bindings::default()).unwrap();
        // First row: gate 3, up 1. Second: expert 0 has gate 3, up −1; expert 1 has gate 2, up 3.
        let expected = [15.0, 30.0, -6.0 + 60.0, -12.0 + 120.0];
        assert_eq!(out.as_f32().unwrap(), expected);
        let [x, weights, gate, up, down] = inputs;
        let (inner, width) = (
            value(&[2, 1], &[0.0, 1.0]),
            value(&[2, 2], &[1.0, 0.0, 0.0, 0.0]),
        );
        let inputs = [x, weights, gate, up, down, &inner, &inner, &width];
        let out = op.evaluate(&inputs, &[2, 2], &Bindings::default()).unwrap();
        // Expert 1 has gate 4, up 2 for the first row, and gate 3, up 4 for the second; expert 0 adds 1 to its first output.
        let expected = [40.0, 80.0, -6.0 + 2.0 + 120.0, -12.0 + 240.0];
        assert_eq!(out.as_f32().unwrap(), expected);
        let mut bad = types.each_ref();
        let odd = TensorType::f32([3.into(), 2.into()]);
        bad[2] = &odd;
        assert!(op.infer(&bad).unwrap_err().starts_with("gate has shape"));
    }
}
