//! Teacher-forced scoring: the probability that the model gives to a sequence.

use crate::sampler::argmax;
use crate::{Runner, RuntimeError, RuntimeErrorKind};

/// A scored sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct Score {
    /// The most likely next token at each position.
    pub argmax: Vec<u32>,
    /// For each position but the last, the natural logarithm of the probability of the next token.
    pub logprob: Vec<f64>,
}

impl Score {
    /// Mean negative log-probability per predicted token.
    pub fn nll(&self) -> f64 {
        -self.logprob.iter().sum::<f64>() / self.logprob.len().max(1) as f64
    }

    /// The perplexity: `e` to the power of the mean negative log-probability.
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
    /// Appends a sequence to the context and scores it. `progress` receives the number of tokens done and returns false
    /// to cancel; the score then covers only the tokens done.
    ///
    /// # Errors
    /// If there are fewer than two tokens: the first one is not predicted.
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
