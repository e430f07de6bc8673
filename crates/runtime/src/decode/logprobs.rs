//! Generated tokens with their log-probabilities.

use crate::score::LogSoftmax;

/// A generated token.
#[derive(Clone, Debug, PartialEq)]
pub struct GeneratedToken {
    /// The token.
    pub id: u32,
    /// The text that it completes, which may be empty. Never a part of a character.
    pub text: String,
    /// Log-probabilities, if they were asked for.
    pub logprobs: Option<TokenLogprobs>,
}

/// The log-probabilities of a generated token, before the sampler's stages.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// That of the token itself.
    pub logprob: f32,
    /// The most likely tokens, the most likely first.
    pub top: Vec<(u32, f32)>,
}

impl TokenLogprobs {
    /// The log-probabilities of a token and of the `top` most likely ones.
    pub(crate) fn new(logits: &[f32], token: u32, top: usize) -> TokenLogprobs {
        let softmax = LogSoftmax::new(logits);
        let logprob = |logit: f32| softmax.of(logit) as f32;
        let mut likely: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
        let order = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
        let top = top.min(likely.len());
        if top > 0 && top < likely.len() {
            likely.select_nth_unstable_by(top - 1, order);
        }
        likely.truncate(top);
        likely.sort_unstable_by(order);
        likely
            .iter_mut()
            .for_each(|(_, logit)| *logit = logprob(*logit));
        TokenLogprobs {
            logprob: logprob(logits[token as usize]),
            top: likely,
        }
    }
}
