//! Top-k: the candidates are the k most likely tokens.

use super::candidates::Candidate;

/// Fills `list` with the `k` most likely tokens, the most likely first; with all of them if `k` is 0.
pub(super) fn fill(list: &mut Vec<Candidate>, logits: &[f32], k: usize) {
    list.clear();
    let k = if k == 0 { logits.len() } else { k };
    backend::best_tokens(list, logits, k);
}
