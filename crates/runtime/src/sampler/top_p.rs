//! Top-p (nucleus sampling): the most likely tokens whose probabilities add up to p.

use super::SamplerOptions;
use super::candidates::{Candidate, relative};
use super::chain::{self, Effect, Link};

pub(super) fn link(options: &SamplerOptions) -> Option<Box<dyn Link>> {
    let p = options.top_p;
    chain::link(Effect::KeepsBest, move |candidates, _, _| {
        filter(candidates.list(), p);
    })
}

/// Keeps the shortest beginning of `list` with a probability of at least `p`, and at least one candidate.
pub(super) fn filter(list: &mut Vec<Candidate>, p: f32) {
    let total: f64 = relative(list).sum();
    let mut cumulative = 0.0;
    let mut keep = 0;
    for weight in relative(list) {
        if keep > 0 && cumulative >= f64::from(p) {
            break;
        }
        cumulative += weight / total;
        keep += 1;
    }
    list.truncate(keep);
}
