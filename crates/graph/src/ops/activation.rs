//! Activation functions: as an op, as the gate of a feed-forward block, or fused into a matrix product.

/// An activation function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x · sigmoid(x)`.
    Silu,
    /// GELU, tanh approximation.
    GeluTanh,
    /// GELU, with the error function.
    GeluErf,
    /// `max(x, 0)`.
    Relu,
    /// The hyperbolic tangent.
    Tanh,
    /// `1 / (1 + exp(−x))`.
    Sigmoid,
    /// `x · min(max(x + 3, 0), 6) / 6`.
    HardSwish,
}

impl Activation {
    /// Every activation.
    pub const ALL: [Activation; 7] = [
        Activation::Silu,
        Activation::GeluTanh,
        Activation::GeluErf,
        Activation::Relu,
        Activation::Tanh,
        Activation::Sigmoid,
        Activation::HardSwish,
    ];

    /// Name in text form.
    pub fn name(self) -> &'static str {
        match self {
            Activation::Silu => "silu",
            Activation::GeluTanh => "gelu_tanh",
            Activation::GeluErf => "gelu_erf",
            Activation::Relu => "relu",
            Activation::Tanh => "tanh",
            Activation::Sigmoid => "sigmoid",
            Activation::HardSwish => "hard_swish",
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
            // Written so that NaN stays NaN.
            Activation::Relu => {
                if x < 0.0 {
                    0.0
                } else {
                    x
                }
            }
            Activation::Tanh => x.tanh(),
            Activation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
            Activation::HardSwish => x * (x + 3.0).clamp(0.0, 6.0) / 6.0,
        }
    }
}

/// The error function to about 1e-15: its Maclaurin series near zero, a continued fraction of `erfc` beyond.
pub(super) fn erf(x: f64) -> f64 {
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
        assert_eq!([-2.0, 3.0].map(|x| Activation::Relu.apply(x)), [0.0, 3.0]);
        assert!(Activation::Relu.apply(f32::NAN).is_nan());
        assert_eq!(Activation::Sigmoid.apply(0.0), 0.5);
        let points = [-4.0, -1.0, 0.0, 5.0].map(|x| Activation::HardSwish.apply(x));
        assert_eq!(points, [0.0, -1.0 / 3.0, 0.0, 5.0]);
        assert!((Activation::GeluTanh.apply(1.0) - 0.841_192).abs() < 1e-6);
    }
}
