//! Generated tokens with their log-probabilities.

use crate::score::LogSoftmax;
use crate::{RuntimeError, RuntimeErrorKind};
use backend::RowOutputs;

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

/// The log-probabilities of a prompt's tokens, while it is computed.
pub(super) struct PromptLogprobs {
    /// The number of the most likely tokens that are wanted.
    top: usize,
    /// The length of the prompt.
    len: usize,
    /// Those of the tokens from the second one on.
    pub(super) tokens: Vec<TokenLogprobs>,
}

impl PromptLogprobs {
    /// The prompt's tokens in one step: the logits of many rows are large.
    pub(super) const STEP: usize = 32;

    pub(super) fn new(top: usize, len: usize) -> PromptLogprobs {
        PromptLogprobs {
            top,
            len,
            tokens: vec![],
        }
    }

    /// Adds those of the tokens that follow `fed` tokens of `prompt`, of which `n` were fed in the last step. The outputs after these
    /// are the last of `rows`. Tokens that were added before, in front of a preemption, stay as they are.
    pub(super) fn push<'r>(
        &mut self,
        (prompt, fed, n): (&[u32], usize, usize),
        rows: impl ExactSizeIterator<Item = RowOutputs<'r>>,
    ) -> Result<(), RuntimeError> {
        let Some(before) = rows.len().checked_sub(n) else {
            let reason = "the step failed for several requests at once, and the outputs of a prompt were lost";
            return Err(RuntimeErrorKind::InvalidOptions(reason.to_owned()).into());
        };
        let next = prompt[..self.len].iter().enumerate().skip(fed + 1);
        for ((position, token), row) in next.zip(rows.skip(before)) {
            if position == self.tokens.len() + 1 {
                let logprobs = TokenLogprobs::new(row.logits(), *token, self.top);
                self.tokens.push(logprobs);
            }
        }
        Ok(())
    }
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
