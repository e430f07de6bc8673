//! Temperature and the draw: logits divided by the temperature, then one candidate by its probability.

use super::SamplerOptions;
use super::candidates::{Candidate, Candidates};
use super::chain::{Effect, Link};
use super::random::Random;

/// A temperature before other links. The last link's temperature is part of the draw.
#[derive(Clone)]
struct Temperature(f32);

pub(super) fn link(options: &SamplerOptions) -> Option<Box<dyn Link>> {
    Some(Box::new(Temperature(options.temperature)))
}

impl Link for Temperature {
    fn apply(&mut self, candidates: &mut Candidates<'_>, _: &[u32], _: &mut Random) {
        match self.0 > 0.0 {
            true => candidates.divide(self.0),
            false => candidates.select(1),
        }
    }

    fn effect(&self) -> Effect {
        match self.0 > 0.0 {
            true => Effect::Adjusts,
            false => Effect::TopK(1),
        }
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
