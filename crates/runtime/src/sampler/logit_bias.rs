//! Logit bias: a number added to the logit of a token.

/// Adds each bias to the logit of its token. Several of one token add up; ids outside the logits are ignored.
pub(super) fn apply(logits: &mut [f32], bias: &[(u32, f32)]) {
    for (id, bias) in bias {
        if let Some(logit) = logits.get_mut(*id as usize) {
            *logit += bias;
        }
    }
}
