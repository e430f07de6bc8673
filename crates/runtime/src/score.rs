//! Teacher-forced scoring: the probability that the model gives to a sequence.

use crate::{Runner, RuntimeError, RuntimeErrorKind};
use backend::argmax;

/// A scored sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct Score {
    /// The most likely next token at each position.
    pub argmax: Vec<u32>,
    /// For each position but the last, the natural logarithm of the probability of the next token.
    pub logprob: Vec<f64>,
}

impl Score {
    /// Adds the logits after a token, and the token that follows it.
    fn push(&mut self, logits: &[f32], next: Option<&u32>) {
        self.argmax.push(argmax(logits));
        let logprob = next.map(|next| log_softmax_at(logits, *next as usize));
        self.logprob.extend(logprob);
    }

    /// Mean negative log-probability per predicted token.
    pub fn nll(&self) -> f64 {
        -self.logprob.iter().sum::<f64>() / self.logprob.len().max(1) as f64
    }

    /// The mean negative log-probability of each `tokens` predicted tokens, one after the other; the last part may be shorter.
    pub fn segments(&self, tokens: usize) -> impl Iterator<Item = (usize, f64)> + '_ {
        let mean = |part: &[f64]| (part.len(), -part.iter().sum::<f64>() / part.len() as f64);
        self.logprob.chunks(tokens.max(1)).map(mean)
    }

    /// The perplexity: `e` to the power of the mean negative log-probability.
    pub fn perplexity(&self) -> f64 {
        self.nll().exp()
    }
}

/// The log-probability of one entry under the softmax of `logits`.
pub fn log_softmax_at(logits: &[f32], index: usize) -> f64 {
    LogSoftmax::new(logits).of(logits[index])
}

/// The normalisation of a row of logits, computed once for several of its tokens.
pub(crate) struct LogSoftmax {
    top: f32,
    log_sum: f64,
}

impl LogSoftmax {
    pub(crate) fn new(logits: &[f32]) -> LogSoftmax {
        let top = logits.iter().fold(f32::NEG_INFINITY, |a, b| a.max(*b));
        let sum: f64 = logits.iter().map(|l| f64::from(l - top).exp()).sum();
        LogSoftmax {
            top,
            log_sum: sum.ln(),
        }
    }

    /// The log-probability of a token with this logit.
    pub(crate) fn of(&self, logit: f32) -> f64 {
        f64::from(logit - self.top) - self.log_sum
    }
}

impl Runner {
    /// Appends a sequence to the context and scores it; in a stream, which drops its older tokens, of any length. `progress` receives the number of tokens done and returns false
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
            score.push(logits, tokens.get(i + 1));
            progress(i + 1)
        })?;
        Ok(score)
    }

    /// Scores a sequence that may be longer than the context, in windows of the context's size whose starts are `stride` tokens
    /// apart. A window scores the tokens that the windows before it did not reach, so every token but the first is scored
    /// once, after at least the last `context - stride` tokens before it. With `bos`, the first token of the later windows
    /// is replaced by it: models that are trained with one need it.
    ///
    /// The tokens before the windows are removed from the context. `progress` receives the number of tokens done and returns
    /// false to cancel; the score then covers only the tokens done.
    ///
    /// # Errors
    /// If there are fewer than two tokens, or if `stride` is not from 1 to the context's size less one.
    pub fn score_windows(
        &mut self,
        tokens: &[u32],
        stride: usize,
        bos: Option<u32>,
        mut progress: impl FnMut(usize) -> bool,
    ) -> Result<Score, RuntimeError> {
        if self.stream_window().is_some() {
            let reason = "a stream is scored without windows: it needs no stride".to_owned();
            return Err(RuntimeErrorKind::InvalidOptions(reason).into());
        }
        let context = self.capacity()?;
        if !(1..context).contains(&stride) {
            return Err(RuntimeErrorKind::InvalidOptions(format!(
                "the stride is {stride}, must be at least 1 and below the context of {context} tokens"
            ))
            .into());
        }
        self.rewind(0)?;
        let mut end = tokens.len().min(context);
        let mut score = self.score(&tokens[..end], &mut progress)?;
        let mut begin = 0;
        while end < tokens.len() && score.argmax.len() == end {
            // The next window predicts again from the last token, now for the token after it.
            score.argmax.pop();
            let known = end - 1;
            begin += stride;
            end = tokens.len().min(begin + context);
            let mut window = tokens[begin..end].to_vec();
            if let Some(bos) = bos {
                window[0] = bos;
            }
            let (before, scored) = window.split_at(known - begin);
            self.rewind(0)?;
            if !before.is_empty() && !self.feed(before, |_| progress(known))? {
                return Ok(score);
            }
            self.feed_all_logits(scored, |i, logits| {
                score.push(logits, tokens[..end].get(known + i + 1));
                progress(known + i + 1)
            })?;
        }
        Ok(score)
    }
}
