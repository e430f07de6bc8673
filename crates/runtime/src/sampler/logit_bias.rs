//! Logit bias: a number added to the logit of a token.

use super::SamplerOptions;
use super::chain::{self, Effect, Link};

/// Adds each bias to the logit of its token. Several of one token add up; ids outside the logits are ignored.
pub(super) fn link(options: &SamplerOptions) -> Option<Box<dyn Link>> {
    let biases = options.logit_bias.clone();
    if biases.is_empty() {
        return None;
    }
    chain::link(Effect::Adjusts, move |candidates, _, _| {
        for (id, bias) in &biases {
            if let Some(logit) = candidates.logit_mut(*id) {
                *logit += bias;
            }
        }
    })
}
