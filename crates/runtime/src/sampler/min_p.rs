//! Min-p: tokens with at least a given share of the most likely token's probability.

use super::SamplerOptions;
use super::candidates::{Candidate, Candidates, relative};
use super::chain::{Effect, Link};
use super::random::Random;

#[derive(Clone)]
struct MinP(f32);

pub(super) fn link(options: &SamplerOptions) -> Option<Box<dyn Link>> {
    Some(Box::new(MinP(options.min_p)))
}

impl Link for MinP {
    fn apply(&mut self, candidates: &mut Candidates<'_>, _: &[u32], _: &mut Random) {
        filter(candidates.list(), self.0);
    }

    fn effect(&self) -> Effect {
        Effect::KeepsBest
    }
}

/// Keeps candidates that are at least `p` times as likely as the first one, and at least one.
pub(super) fn filter(list: &mut Vec<Candidate>, p: f32) {
    let likely = relative(list).take_while(|weight| *weight >= f64::from(p));
    let keep = likely.count().max(1);
    list.truncate(keep);
}
