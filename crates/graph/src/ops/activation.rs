//! Elementwise activations, alone and as the gate of a feed-forward block.

use super::{Definition, Sharing, f32s, operands, want_f32, want_shape};
use crate::Value;
use crate::graph::TensorType;

/// A nonlinearity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x · sigmoid(x)`.
    Silu,
    /// The Gaussian error linear unit by its tanh approximation.
    GeluTanh,
    /// The Gaussian error linear unit by the error function.
    GeluErf,
}

impl Activation {
    /// Name in text form.
    pub fn name(self) -> &'static str {
        match self {
            Activation::Silu => "silu",
            Activation::GeluTanh => "gelu_tanh",
            Activation::GeluErf => "gelu_erf",
        }
    }

    /// The function at one point.
    pub fn apply(self, x: f32) -> f32 {
        match self {
            Activation::Silu => x / (1.0 + (-x).exp()),
            Activation::GeluTanh => {
                let inner = (2.0f32 / std::f32::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
                0.5 * x * (1.0 + inner.tanh())
            }
            Activation::GeluErf => {
                (0.5 * x as f64 * (1.0 + erf(x as f64 / std::f64::consts::SQRT_2))) as f32
            }
        }
    }
}

/// The error function to about 1e-15: its Maclaurin series near zero, a continued fraction of `erfc` beyond.
fn erf(x: f64) -> f64 {
    let a = x.abs();
    let value = if a < 2.5 {
        let (mut term, mut sum, mut n) = (a, a, 0.0);
        while term.abs() > 1e-17 * sum.abs() && n < 200.0 {
            n += 1.0;
            term *= -a * a / n;
            sum += term / (2.0 * n + 1.0);
        }
        sum * 2.0 / std::f64::consts::PI.sqrt()
    } else {
        let fraction = (1..=60).rev().fold(0.0, |f, k| k as f64 / 2.0 / (a + f));
        1.0 - (-a * a).exp() / std::f64::consts::PI.sqrt() / (a + fraction)
    };
    value.copysign(x)
}

/// `function(x)`, elementwise.
#[derive(Clone, Debug, PartialEq)]
pub struct Unary {
    /// The function.
    pub function: Activation,
}

impl Definition for Unary {
    fn name(&self) -> &'static str {
        "unary"
    }

    fn attributes(&self) -> Vec<String> {
        vec![format!("function: {}", self.function.name())]
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<TensorType, String> {
        let [x] = operands(inputs)?;
        want_f32("x", x)?;
        Ok(x.clone())
    }

    fn sharing(&self) -> Sharing {
        Sharing::InPlace(1)
    }

    fn evaluate(&self, inputs: &[&Value], shape: &[usize]) -> Result<Value, String> {
        Ok(Value::f32(
            shape,
            f32s(&inputs[0])?
                .iter()
                .map(|x| self.function.apply(*x))
                .collect(),
        ))
    }
}

/// `function(gate) · up`, elementwise: SwiGLU and its relatives.
#[derive(Clone, Debug, PartialEq)]
pub struct Gated {
    /// The gate's function.
    pub function: Activation,
}

impl Definition for Gated {
    fn name(&self) -> &'static str {
        "gated"
    }

    fn attributes(&self) -> Vec<String> {
        vec![format!("function: {}", self.function.name())]
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<TensorType, String> {
        let [gate, up] = operands(inputs)?;
        want_f32("gate", gate)?;
        want_f32("up", up)?;
        want_shape("up", up, &gate.shape)?;
        Ok(gate.clone())
    }

    fn sharing(&self) -> Sharing {
        Sharing::InPlace(2)
    }

    fn evaluate(&self, inputs: &[&Value], shape: &[usize]) -> Result<Value, String> {
        let pairs = f32s(&inputs[0])?.iter().zip(f32s(&inputs[1])?);
        Ok(Value::f32(
            shape,
            pairs
                .map(|(gate, up)| self.function.apply(*gate) * up)
                .collect(),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_points() {
        // Values of erf from tables to 15 digits.
        for (x, expect) in [
            (0.5, 0.520499877813047),
            (2.0, 0.995322265018953),
            (3.0, 0.999977909503001),
        ] {
            assert!((erf(x) - expect).abs() < 1e-14, "erf({x}) = {}", erf(x));
            assert_eq!(erf(-x), -erf(x));
        }
        assert_eq!(Activation::Silu.apply(0.0), 0.0);
        assert!((Activation::GeluErf.apply(1.0) - 0.841_344_8).abs() < 1e-6);
        assert!((Activation::GeluTanh.apply(1.0) - 0.841_192).abs() < 1e-6);
    }
}
