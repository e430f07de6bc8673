//! Top-p (nucleus sampling): the most likely tokens whose probabilities add up to p.

use super::SamplerOptions;
use super::candidates::{Candidate, Candidates, relative};
use super::chain::{Effect, Link};
use super::random::Random;

#[derive(Clone)]
struct TopP(f32);

pub(super) fn link(options: &SamplerOptions) -> Option<Box<dyn Link>> {
    Some(Box::new(TopP(options.top_p)))
}

impl Link for TopP {
    fn apply(&mut self, candidates: &mut Candidates<'_>, _: &[u32], _: &mut Random) {
        filter(candidates.list(), self.0);
    }

    fn effect(&self) -> Effect {
        Effect::KeepsBest
    }
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
