//! Mirostat 2: removes tokens that are more surprising than a limit, and moves the limit so that the surprise of the drawn
//! tokens approaches a target. Surprise is the negative logarithm of a probability to the base of 2.

use super::SamplerOptions;
use super::candidates::{Candidate, Candidates, relative};
use super::chain::{Effect, Link};
use super::random::Random;

/// The state of a sequence.
#[derive(Clone)]
struct Mirostat {
    target: f64,
    rate: f64,
    /// The largest surprise of a candidate.
    limit: f64,
}

pub(super) fn link(options: &SamplerOptions) -> Option<Box<dyn Link>> {
    let target = f64::from(options.mirostat_tau);
    let mirostat = Mirostat {
        target,
        rate: f64::from(options.mirostat_eta),
        limit: 2.0 * target,
    };
    (options.mirostat == 2).then(|| Box::new(mirostat) as _)
}

impl Link for Mirostat {
    fn apply(&mut self, candidates: &mut Candidates<'_>, _: &[u32], _: &mut Random) {
        let top = candidates.logits().fold(f32::NEG_INFINITY, f32::max);
        let total: f64 = candidates.logits().map(|l| f64::from(l - top).exp()).sum();
        // A logit is the logarithm of its probability plus that of the total.
        let least = f64::from(top) + total.ln() - self.limit * std::f64::consts::LN_2;
        candidates.keep_at_least(least);
    }

    fn effect(&self) -> Effect {
        Effect::KeepsBest
    }

    fn drawn(&mut self, list: &[Candidate], id: u32) {
        let total: f64 = relative(list).sum();
        let drawn = list.iter().zip(relative(list)).find(|(c, _)| c.id == id);
        let surprise = -drawn.map_or(1.0, |(_, weight)| weight / total).log2();
        if surprise.is_finite() {
            self.limit -= self.rate * (surprise - self.target);
        }
    }
}
