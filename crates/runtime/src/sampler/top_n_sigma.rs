//! Top-n-sigma: tokens whose logits are at most n standard deviations below the highest one.

use super::SamplerOptions;
use super::candidates::Candidates;
use super::chain::{self, Effect, Link};

pub(super) fn link(options: &SamplerOptions) -> Option<Box<dyn Link>> {
    let n = f64::from(options.top_n_sigma);
    if n <= 0.0 {
        return None;
    }
    chain::link(Effect::KeepsBest, move |candidates, _, _| {
        let top = candidates.logits().fold(f32::NEG_INFINITY, f32::max);
        let least = f64::from(top) - n * standard_deviation(candidates);
        candidates.keep_at_least(least);
    })
}

/// The standard deviation of the logits. Tokens that a grammar or a bias excludes do not count.
fn standard_deviation(candidates: &Candidates<'_>) -> f64 {
    let logits = || {
        let logits = candidates.logits().filter(|logit| logit.is_finite());
        logits.map(f64::from)
    };
    let count = logits().count() as f64;
    let mean = logits().sum::<f64>() / count;
    let variance = logits().map(|x| (x - mean) * (x - mean)).sum::<f64>() / count;
    variance.sqrt()
}
