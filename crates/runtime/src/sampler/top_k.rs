//! Top-k: the candidates are the k most likely tokens.

use super::candidates::{Candidate, by_logit};

/// Fills `list` with the `k` most likely tokens, the most likely first; with all of them if `k` is 0.
pub(super) fn fill(list: &mut Vec<Candidate>, logits: &[f32], k: usize) {
    list.clear();
    let all = logits.iter().zip(0..);
    list.extend(all.map(|(logit, id)| Candidate { logit: *logit, id }));
    if k > 0 && k < list.len() {
        list.select_nth_unstable_by(k - 1, by_logit);
        list.truncate(k);
    }
    list.sort_unstable_by(by_logit);
}
