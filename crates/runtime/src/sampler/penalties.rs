//! Repetition, frequency and presence penalties on recent tokens.

use super::SamplerOptions;

/// Whether a penalty changes any logit.
pub(super) fn are_on(options: &SamplerOptions) -> bool {
    options.repeat_penalty != 1.0
        || options.frequency_penalty != 0.0
        || options.presence_penalty != 0.0
}

/// Penalises the tokens among the last `repeat_last_n` of `history`. `recent` is scratch.
///
/// The repetition penalty divides positive and multiplies negative logits, once for each token. Then the frequency penalty is
/// subtracted once for each occurrence, and the presence penalty once.
pub(super) fn apply(
    logits: &mut [f32],
    history: &[u32],
    options: &SamplerOptions,
    recent: &mut Vec<u32>,
) {
    if !are_on(options) {
        return;
    }
    recent.clear();
    recent.extend(&history[history.len().saturating_sub(options.repeat_last_n)..]);
    recent.sort_unstable();
    for same in recent.chunk_by(|a, b| a == b) {
        let Some(logit) = logits.get_mut(same[0] as usize) else {
            continue;
        };
        *logit = if *logit > 0.0 {
            *logit / options.repeat_penalty
        } else {
            *logit * options.repeat_penalty
        };
        *logit -= same.len() as f32 * options.frequency_penalty + options.presence_penalty;
    }
}
