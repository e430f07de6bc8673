//! Repetition, frequency and presence penalties on recent tokens.

use super::SamplerOptions;
use super::chain::{self, Effect, Link};

/// Penalises the tokens among the last `repeat_last_n` of the history. The repetition penalty divides positive and multiplies
/// negative logits, once for each token. Then the frequency penalty is subtracted once for each occurrence, and the presence
/// penalty once.
pub(super) fn link(options: &SamplerOptions) -> Option<Box<dyn Link>> {
    let (repeat, last_n) = (options.repeat_penalty, options.repeat_last_n);
    let (frequency, presence) = (options.frequency_penalty, options.presence_penalty);
    if repeat == 1.0 && frequency == 0.0 && presence == 0.0 {
        return None;
    }
    let mut recent = vec![];
    chain::link(Effect::Adjusts, move |candidates, history, _| {
        recent.clear();
        recent.extend(&history[history.len().saturating_sub(last_n)..]);
        recent.sort_unstable();
        for same in recent.chunk_by(|a, b| a == b) {
            let Some(logit) = candidates.logit_mut(same[0]) else {
                continue;
            };
            *logit = if *logit > 0.0 {
                *logit / repeat
            } else {
                *logit * repeat
            };
            *logit -= same.len() as f32 * frequency + presence;
        }
    })
}
