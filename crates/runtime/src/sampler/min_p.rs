//! Min-p: tokens with at least a given share of the most likely token's probability.

use super::SamplerOptions;
use super::candidates::{Candidate, relative};
use super::chain::{self, Effect, Link};

pub(super) fn link(options: &SamplerOptions) -> Option<Box<dyn Link>> {
    let p = options.min_p;
    chain::link(Effect::KeepsBest, move |candidates, _, _| {
        filter(candidates.list(), p);
    })
}

/// Keeps candidates that are at least `p` times as likely as the first one, and at least one.
pub(super) fn filter(list: &mut Vec<Candidate>, p: f32) {
    let likely = relative(list).take_while(|weight| *weight >= f64::from(p));
    let keep = likely.count().max(1);
    list.truncate(keep);
}
