//! Logit bias: a number added to the logit of a token.

use super::SamplerOptions;
use super::candidates::Candidates;
use super::chain::{Effect, Link};
use super::random::Random;

/// Token ids with the numbers that are added. Several of one token add up; ids outside the logits are ignored.
#[derive(Clone)]
struct LogitBias(Vec<(u32, f32)>);

pub(super) fn link(options: &SamplerOptions) -> Option<Box<dyn Link>> {
    let bias = LogitBias(options.logit_bias.clone());
    (!bias.0.is_empty()).then(|| Box::new(bias) as _)
}

impl Link for LogitBias {
    fn apply(&mut self, candidates: &mut Candidates<'_>, _: &[u32], _: &mut Random) {
        for (id, bias) in &self.0 {
            if let Some(logit) = candidates.logit_mut(*id) {
                *logit += bias;
            }
        }
    }

    fn effect(&self) -> Effect {
        Effect::Adjusts
    }
}
