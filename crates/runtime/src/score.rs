//! Teacher-forced scoring: how likely the model finds a given sequence.

use crate::sampler::argmax;
use crate::{Runner, RuntimeError, RuntimeErrorKind};

/// A scored sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct Score {
    /// Per position, the most likely next token.
    pub argmax: Vec<u32>,
    /// Per position but the last, the natural logarithm of the probability of the token that follows.
    pub logprob: Vec<f64>,
}

impl Score {
    /// Mean negative log-probability per predicted token.
    pub fn nll(&self) -> f64 {
        -self.logprob.iter().sum::<f64>() / self.logprob.len().max(1) as f64
    }

    /// `e` to the mean negative log-probability.
    pub fn perplexity(&self) -> f64 {
        self.nll().exp()
    }
}

/// The log-probability of one entry under the softmax of `logits`.
pub fn log_softmax_at(logits: &[f32], index: usize) -> f64 {
    let top = logits.iter().fold(f32::NEG_INFINITY, |a, b| a.max(*b));
    let sum: f64 = logits.iter().map(|l| f64::from(l - top).exp()).sum();
    f64::from(logits[index] - top) - sum.ln()
}

impl Runner {
    /// Scores a sequence behind what the context holds; `progress` is told how many tokens are done and may stop the
    /// run by returning false, which leaves the score short.
    ///
    /// # Errors
    /// When there are fewer than two tokens: the first is only given, and no other is left to predict.
    pub fn score(
        &mut self,
        tokens: &[u32],
        mut progress: impl FnMut(usize) -> bool,
    ) -> Result<Score, RuntimeError> {
        if tokens.is_empty() {
            return Err(RuntimeErrorKind::EmptyPrompt.into());
        }
        if tokens.len() == 1 {
            return Err(RuntimeErrorKind::NothingToPredict.into());
        }
        let mut score = Score {
            argmax: Vec::with_capacity(tokens.len()),
            logprob: Vec::with_capacity(tokens.len()),
        };
        self.feed_all_logits(tokens, |i, logits| {
            score.argmax.push(argmax(logits));
            score.logprob.extend(
                tokens
                    .get(i + 1)
                    .map(|next| log_softmax_at(logits, *next as usize)),
            );
            progress(i + 1)
        })?;
        Ok(score)
    }
}
