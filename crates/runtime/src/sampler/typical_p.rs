//! Locally typical sampling: tokens whose information is near the distribution's entropy.

use super::SamplerOptions;
use super::candidates::{Candidate, relative};
use super::chain::{self, Effect, Link};

pub(super) fn link(options: &SamplerOptions) -> Option<Box<dyn Link>> {
    let p = options.typical_p;
    if p >= 1.0 {
        return None;
    }
    chain::link(Effect::Removes, move |candidates, _, _| {
        filter(candidates.list(), p);
    })
}

/// Keeps the candidates whose negative log-probability is nearest to the entropy, until their probabilities add up to more
/// than `p`. A `p` of 1 keeps all.
pub(super) fn filter(list: &mut Vec<Candidate>, p: f32) {
    if p >= 1.0 {
        return;
    }
    let total: f64 = relative(list).sum();
    let probabilities: Vec<f64> = relative(list).map(|weight| weight / total).collect();
    let entropy: f64 = probabilities
        .iter()
        .filter(|p| **p > 0.0)
        .map(|p| -p * p.ln())
        .sum();
    let mut order: Vec<(f64, usize)> = probabilities
        .iter()
        .map(|p| (-p.ln() - entropy).abs())
        .zip(0..)
        .collect();
    order.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut cumulative = 0.0;
    let mut keep = order.len();
    for (i, (_, at)) in order.iter().enumerate() {
        cumulative += probabilities[*at];
        if cumulative > f64::from(p) {
            keep = i + 1;
            break;
        }
    }
    *list = order[..keep].iter().map(|(_, at)| list[*at]).collect();
    list.sort_unstable_by(Candidate::best_first);
}
