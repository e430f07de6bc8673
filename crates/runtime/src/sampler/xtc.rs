//! XTC (exclude top choices): now and then removes the most likely tokens, so that a less likely one is taken.

use super::SamplerOptions;
use super::candidates::{Candidate, relative};
use super::chain::{self, Effect, Link};

pub(super) fn link(options: &SamplerOptions) -> Option<Box<dyn Link>> {
    let (probability, threshold) = (options.xtc_probability, options.xtc_threshold);
    if probability <= 0.0 {
        return None;
    }
    chain::link(Effect::Removes, move |candidates, _, random| {
        filter(candidates.list(), probability, threshold, random.uniform());
    })
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
