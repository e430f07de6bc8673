//! Temperature and the draw: logits divided by the temperature, then one candidate by its probability.

use super::SamplerOptions;
use super::candidates::Candidate;
use super::chain::{self, Effect, Link};

/// The name of this sampler.
pub(super) const NAME: &str = "temperature";

/// A temperature before other links. The last link's temperature is part of the draw.
pub(super) fn link(options: &SamplerOptions) -> Option<Box<dyn Link>> {
    match options.temperature {
        1.0 => None,
        t if t > 0.0 => chain::link(Effect::Adjusts, move |list, _, _| list.divide(t)),
        _ => chain::link(Effect::TopK(1), |list, _, _| list.select(1)),
    }
}

/// Draws a candidate; `random` is a number from 0 to 1, 1 excluded. A temperature of 0 takes the first one.
pub(super) fn draw(list: &[Candidate], temperature: f32, random: f64) -> u32 {
    let first = list[0];
    if temperature <= 0.0 {
        return first.id;
    }
    let weight = |c: &Candidate| f64::from((c.logit - first.logit) / temperature).exp();
    let mut left = random * list.iter().map(weight).sum::<f64>();
    for candidate in list {
        left -= weight(candidate);
        if left < 0.0 {
            return candidate.id;
        }
    }
    list[list.len() - 1].id
}
