//! Repetition, frequency and presence penalties on recent tokens.

use super::SamplerOptions;
use super::candidates::Candidates;
use super::chain::{Effect, Link};
use super::random::Random;

#[derive(Clone)]
struct Penalties {
    repeat: f32,
    frequency: f32,
    presence: f32,
    last_n: usize,
    /// Scratch: the recent tokens, sorted.
    recent: Vec<u32>,
}

pub(super) fn link(options: &SamplerOptions) -> Option<Box<dyn Link>> {
    let penalties = Penalties {
        repeat: options.repeat_penalty,
        frequency: options.frequency_penalty,
        presence: options.presence_penalty,
        last_n: options.repeat_last_n,
        recent: vec![],
    };
    let on = penalties.repeat != 1.0 || penalties.frequency != 0.0 || penalties.presence != 0.0;
    on.then(|| Box::new(penalties) as _)
}

impl Link for Penalties {
    /// Penalises the tokens among the last `last_n` of `history`. The repetition penalty divides positive and multiplies
    /// negative logits, once for each token. Then the frequency penalty is subtracted once for each occurrence, and the
    /// presence penalty once.
    fn apply(&mut self, candidates: &mut Candidates<'_>, history: &[u32], _: &mut Random) {
        self.recent.clear();
        self.recent
            .extend(&history[history.len().saturating_sub(self.last_n)..]);
        self.recent.sort_unstable();
        for same in self.recent.chunk_by(|a, b| a == b) {
            let Some(logit) = candidates.logit_mut(same[0]) else {
                continue;
            };
            *logit = if *logit > 0.0 {
                *logit / self.repeat
            } else {
                *logit * self.repeat
            };
            *logit -= same.len() as f32 * self.frequency + self.presence;
        }
    }

    fn effect(&self) -> Effect {
        Effect::Adjusts
    }
}
