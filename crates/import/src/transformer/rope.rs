//! Frequencies of rotary embeddings under the supported RoPE scalings.
//!
//! Arithmetic is f32 where PyTorch models do it in f32, in the same order, so that tables agree with theirs.

use graph::ops::RopeLayout;
use std::f64::consts::PI;

/// One rotary embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeSpec {
    /// Which elements form pairs.
    pub layout: RopeLayout,
    /// Elements of a head that are rotated; even, the rest pass through.
    pub dim: usize,
    /// The base of the frequencies' powers.
    pub base: f32,
    /// RoPE scaling.
    pub scaling: RopeScaling,
    /// Factor on the table, on top of what `scaling` asks for.
    pub attention_factor: f32,
}

/// How frequencies differ from plain powers of the base.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// No scaling.
    None,
    /// All are divided by `factor`.
    Linear {
        /// How many times longer the context became.
        factor: f32,
    },
    /// Low frequencies are divided by `factor`, high ones are kept, with a ramp between; the table grows by
    /// `1 + ln(factor)/10`.
    Yarn {
        /// How many times longer the context became.
        factor: f32,
        /// The context before.
        original_context: usize,
        /// Frequencies with at least so many turns in the original context are kept.
        beta_fast: f32,
        /// Frequencies with at most so many turns in the original context are divided.
        beta_slow: f32,
        /// The ramp begins and ends at whole pairs.
        whole_pairs: bool,
    },
    /// Llama 3: each frequency is divided by its own factor.
    Divided {
        /// One for each frequency.
        factors: Vec<f32>,
    },
    /// LongRoPE: each period is multiplied by its own factor.
    Stretched {
        /// One for each frequency.
        factors: Vec<f32>,
    },
}

impl RopeScaling {
    /// Factor on every cosine and sine that the scaling asks for.
    pub fn growth(&self) -> f64 {
        match self {
            RopeScaling::Yarn { factor, .. } => 0.1 * f64::from(*factor).max(1.0).ln() + 1.0,
            _ => 1.0,
        }
    }
}

impl RopeSpec {
    /// The angle a position adds, for each of the `dim / 2` pairs.
    pub fn frequencies(&self) -> Vec<f32> {
        let periods = (0..self.dim / 2).map(|i| self.period(i));
        match &self.scaling {
            RopeScaling::None => periods.map(|p| 1.0 / p).collect(),
            RopeScaling::Linear { factor } => periods.map(|p| 1.0 / p / factor).collect(),
            RopeScaling::Divided { factors } => {
                let pairs = periods.zip(factors);
                pairs.map(|(p, f)| 1.0 / p / f).collect()
            }
            RopeScaling::Stretched { factors } => {
                let pairs = periods.zip(factors);
                pairs.map(|(p, f)| 1.0 / (f * p)).collect()
            }
            &RopeScaling::Yarn {
                factor,
                original_context,
                beta_fast,
                beta_slow,
                whole_pairs,
            } => {
                let low = self.turning_pair(beta_fast, original_context);
                let high = self.turning_pair(beta_slow, original_context);
                let (low, high) = match whole_pairs {
                    true => (low.floor(), high.ceil()),
                    false => (low, high),
                };
                let low = low.max(0.0);
                let high = high.min(self.dim as f64 - 1.0);
                let width = if low == high { 0.001 } else { high - low };
                let (low, width) = (low as f32, width as f32);
                let blend = |(i, p): (usize, f32)| {
                    let ramp = ((i as f32 - low) / width).clamp(0.0, 1.0);
                    let keep = 1.0 - ramp;
                    1.0 / (factor * p) * (1.0 - keep) + 1.0 / p * keep
                };
                periods.enumerate().map(blend).collect()
            }
        }
    }

    /// Factor on every cosine and sine.
    pub fn magnitude(&self) -> f32 {
        (f64::from(self.attention_factor) * self.scaling.growth()) as f32
    }

    /// `base^(2i/dim)`, rounded once: the power of two f32 numbers.
    fn period(&self, i: usize) -> f32 {
        let exponent = (2 * i) as f32 / self.dim as f32;
        f64::from(self.base).powf(f64::from(exponent)) as f32
    }

    /// The pair, as a fraction, that turns `turns` times within `context` positions.
    fn turning_pair(&self, turns: f32, context: usize) -> f64 {
        let turn = context as f64 / (f64::from(turns) * 2.0 * PI);
        self.dim as f64 * turn.ln() / (2.0 * f64::from(self.base).ln())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(scaling: RopeScaling) -> RopeSpec {
        RopeSpec {
            layout: RopeLayout::Halves,
            dim: 8,
            base: 10000.0,
            scaling,
            attention_factor: 1.0,
        }
    }

    #[test]
    fn powers_of_the_base() {
        assert_eq!(
            spec(RopeScaling::None).frequencies(),
            [1.0, 0.1, 0.01, 0.001]
        );
        let halved = spec(RopeScaling::Linear { factor: 2.0 });
        assert_eq!(halved.frequencies(), [0.5, 0.05, 0.005, 0.0005]);
        assert_eq!(halved.magnitude(), 1.0);
    }

    #[test]
    fn own_factors() {
        let factors = vec![1.0, 1.0, 2.0, 4.0];
        let divided = spec(RopeScaling::Divided {
            factors: factors.clone(),
        });
        assert_eq!(divided.frequencies(), [1.0, 0.1, 0.005, 0.00025]);
        let mut stretched = spec(RopeScaling::Stretched { factors });
        stretched.attention_factor = 1.5;
        assert_eq!(stretched.frequencies(), [1.0, 0.1, 0.005, 0.00025]);
        assert_eq!(stretched.magnitude(), 1.5);
    }

    #[test]
    fn yarn_keeps_fast_pairs_and_divides_slow_ones() {
        let yarn = spec(RopeScaling::Yarn {
            factor: 4.0,
            original_context: 4096,
            beta_fast: 32.0,
            beta_slow: 1.0,
            whole_pairs: true,
        });
        let frequencies = yarn.frequencies();
        assert_eq!(frequencies[..2], [1.0, 0.1]);
        assert!(frequencies[2] < 0.01 && frequencies[2] > 0.0025);
        assert_eq!(frequencies[3], 0.00025);
        assert!((yarn.magnitude() - 1.138_629_4).abs() < 1e-7);
    }
}
