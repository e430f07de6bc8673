//! XTC (exclude top choices): now and then removes the most likely tokens, so that a less likely one is taken.

use super::SamplerOptions;
use super::candidates::{Candidate, Candidates, relative};
use super::chain::{Effect, Link};
use super::random::Random;

#[derive(Clone)]
struct Xtc {
    probability: f32,
    threshold: f32,
}

pub(super) fn link(options: &SamplerOptions) -> Option<Box<dyn Link>> {
    let xtc = Xtc {
        probability: options.xtc_probability,
        threshold: options.xtc_threshold,
    };
    (xtc.probability > 0.0).then(|| Box::new(xtc) as _)
}

impl Link for Xtc {
    fn apply(&mut self, candidates: &mut Candidates<'_>, _: &[u32], random: &mut Random) {
        let chance = random.uniform();
        filter(candidates.list(), self.probability, self.threshold, chance);
    }

    fn effect(&self) -> Effect {
        Effect::Removes
    }
}

/// With the given probability, removes all candidates of at least `threshold` except the least likely of them. `chance` is
/// a random number from 0 to 1. A threshold above 0.5 removes none: two tokens cannot both have more.
pub(super) fn filter(list: &mut Vec<Candidate>, probability: f32, threshold: f32, chance: f64) {
    if threshold > 0.5 || chance > f64::from(probability) {
        return;
    }
    let total: f64 = relative(list).sum();
    let above = relative(list).take_while(|weight| weight / total >= f64::from(threshold));
    let above = above.count();
    list.drain(..above.saturating_sub(1));
}
