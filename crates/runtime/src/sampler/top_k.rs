//! Top-k: the candidates are the k most likely tokens.

use super::SamplerOptions;
use super::candidates::Candidates;
use super::chain::{Effect, Link};
use super::random::Random;

#[derive(Clone)]
struct TopK(usize);

pub(super) fn link(options: &SamplerOptions) -> Option<Box<dyn Link>> {
    (options.top_k > 0).then(|| Box::new(TopK(options.top_k)) as _)
}

impl Link for TopK {
    fn apply(&mut self, candidates: &mut Candidates<'_>, _: &[u32], _: &mut Random) {
        candidates.select(self.0);
    }

    fn effect(&self) -> Effect {
        Effect::TopK(self.0)
    }
}
