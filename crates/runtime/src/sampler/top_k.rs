//! Top-k: the candidates are the k most likely tokens.

use super::SamplerOptions;
use super::chain::{self, Effect, Link};

pub(super) fn link(options: &SamplerOptions) -> Option<Box<dyn Link>> {
    match options.top_k {
        0 => None,
        k => chain::link(Effect::TopK(k), move |candidates, _, _| {
            candidates.select(k)
        }),
    }
}
