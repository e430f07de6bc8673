//! Min-p: tokens with at least a given share of the most likely token's probability.

use super::candidates::{Candidate, relative};

/// Keeps candidates that are at least `p` times as likely as the first one, and at least one.
pub(super) fn filter(list: &mut Vec<Candidate>, p: f32) {
    let likely = relative(list).take_while(|weight| *weight >= f64::from(p));
    let keep = likely.count().max(1);
    list.truncate(keep);
}
