//! `Sequence`: what one sequence of a runner generates with: its prompt, sampler, constraint, speculation and text.

use super::constraint::{ConstraintState, TokenConstraint};
use super::logprobs::{GeneratedToken, PromptLogprobs, TokenLogprobs};
use crate::batch_runner::KeptStates;
use crate::detokenizer::IncrementalDetokenizer;
use crate::generation::{FinishReason, GenerateOptions, GenerateOutput, Timings};
use crate::speculative::Speculator;
use crate::{BatchRunner, RuntimeError, RuntimeErrorKind, Sampler};
use backend::{LogitsMode, RowOutputs};
use kv::SeqId;
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};
use text::{ReasoningGuard, Tokenizer};

/// Messages at the end of a prompt after which states are kept.
const LAST_MESSAGES: usize = 3;

/// A value that a sequence owns, or borrows from a caller who continues with it.
pub enum Owned<'a, T> {
    /// The sequence's own.
    Value(T),
    /// The caller's.
    Borrowed(&'a mut T),
}

impl<T> Deref for Owned<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        match self {
            Owned::Value(value) => value,
            Owned::Borrowed(value) => value,
        }
    }
}

impl<T> DerefMut for Owned<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        match self {
            Owned::Value(value) => value,
            Owned::Borrowed(value) => value,
        }
    }
}

impl<T> From<T> for Owned<'_, T> {
    fn from(value: T) -> Self {
        Owned::Value(value)
    }
}

impl<'a, T> From<&'a mut T> for Owned<'a, T> {
    fn from(value: &'a mut T) -> Self {
        Owned::Borrowed(value)
    }
}

/// A sequence that generates.
///
/// Its prompt is appended to the tokens that the sequence of the runner holds; without a prompt, it continues after the pending
/// token or from the outputs that are there. The generated tokens stay in the runner's sequence, and the last one is pending.
pub struct Sequence<'a> {
    pub(crate) seq: SeqId,
    /// The tokens to feed before the first sample. The first `fed` are in the cache.
    prompt: Vec<u32>,
    fed: usize,
    /// The lengths of the prompt after which recurrent layers keep their states, ascending.
    kept_states: Vec<usize>,
    sampler: Owned<'a, Sampler>,
    detokenizer: IncrementalDetokenizer,
    pub(super) constraint: Option<ConstraintState>,
    logprobs: Option<usize>,
    prompt_logprobs: Option<PromptLogprobs>,
    pub(super) speculator: Option<Owned<'a, Speculator>>,
    /// Bounds the reasoning of the answer.
    reasoning: Option<ReasoningGuard>,
    deadline: Option<Instant>,
    /// Why it ended; `None` while it runs.
    pub(crate) finish: Option<FinishReason>,
    /// The number of prompt tokens that were computed, also those that were computed again after a preemption.
    computed: usize,
    /// The number of generated tokens that a forward without prompt tokens was computed for.
    decoded: usize,
    prompt_time: Duration,
    decode_time: Duration,
    /// Scratch: the logits with those of forbidden tokens masked.
    masked: Vec<f32>,
}

impl<'a> Sequence<'a> {
    /// A generation on sequence `seq` of a runner, after `prompt`.
    pub fn new(
        seq: SeqId,
        prompt: impl Into<Vec<u32>>,
        sampler: impl Into<Owned<'a, Sampler>>,
        options: &GenerateOptions,
    ) -> Sequence<'a> {
        let prompt = prompt.into();
        Sequence {
            seq,
            detokenizer: IncrementalDetokenizer::new(options.clone(), prompt.iter()),
            prompt,
            fed: 0,
            kept_states: vec![],
            sampler: sampler.into(),
            constraint: None,
            logprobs: None,
            prompt_logprobs: None,
            speculator: None,
            reasoning: options.reasoning.clone().map(ReasoningGuard::new),
            deadline: None,
            finish: None,
            computed: 0,
            decoded: 0,
            prompt_time: Duration::ZERO,
            decode_time: Duration::ZERO,
            masked: vec![],
        }
    }

    /// Restricts the tokens that can be sampled.
    pub fn with_constraint(mut self, constraint: Option<Box<dyn TokenConstraint>>) -> Sequence<'a> {
        self.constraint = constraint.map(ConstraintState::new);
        self
    }

    /// Keeps the states of recurrent layers after messages that end at these lengths of the prompt, so that a later prompt that differs
    /// behind one of them is computed from there: after the first, which many conversations may share, and the last ones, which are edited.
    pub fn with_message_ends(mut self, ends: &[usize]) -> Sequence<'a> {
        let inside = |end: &usize| (1..self.prompt.len()).contains(end);
        let mut ends: Vec<usize> = ends.iter().copied().filter(inside).collect();
        ends.sort_unstable();
        ends.dedup();
        let last = ends.len().saturating_sub(LAST_MESSAGES).max(1);
        self.kept_states = (0..)
            .zip(ends)
            .filter(|(i, _)| *i == 0 || *i >= last)
            .map(|(_, end)| end)
            .collect();
        self
    }

    /// Where recurrent layers keep their states in the rest of the prompt.
    pub(crate) fn kept_states(&self) -> KeptStates<'_> {
        KeptStates {
            lengths: &self.kept_states,
            fed: self.fed,
        }
    }

    /// With `Some(k)`, every generated token has its log-probability and those of the `k` most likely ones.
    pub fn with_logprobs(mut self, top: Option<usize>) -> Sequence<'a> {
        self.logprobs = top;
        self
    }

    /// With `Some(k)`, the tokens of the prompt from the second one on have log-probabilities too. All of it has to be computed.
    pub fn with_prompt_logprobs(mut self, top: Option<usize>) -> Sequence<'a> {
        self.prompt_logprobs = top.map(|top| PromptLogprobs::new(top, self.prompt.len()));
        self
    }

    /// Whether the outputs after every token of the prompt are needed.
    pub(crate) fn scores_prompt(&self) -> bool {
        self.prompt_logprobs.is_some()
    }

    /// The maximum number of tokens of the prompt in a step.
    pub(super) fn most_prompt_tokens(&self) -> usize {
        match self.scores_prompt() {
            true => PromptLogprobs::STEP,
            false => usize::MAX,
        }
    }

    /// Reads the log-probabilities of the tokens after the next `n` ones of the prompt, which were just fed, from the outputs after them.
    pub(super) fn score_prompt<'r>(
        &mut self,
        n: usize,
        rows: impl ExactSizeIterator<Item = RowOutputs<'r>>,
    ) -> Result<(), RuntimeError> {
        match &mut self.prompt_logprobs {
            Some(logprobs) => logprobs.push((&self.prompt, self.fed, n), rows),
            None => Ok(()),
        }
    }

    /// Generates with speculation. The tokens are the same.
    pub fn with_speculator(
        mut self,
        speculator: Option<impl Into<Owned<'a, Speculator>>>,
    ) -> Sequence<'a> {
        self.speculator = speculator.map(Into::into);
        self
    }

    /// Sets the speculation of a sequence that has not begun.
    pub(crate) fn speculate(&mut self, speculator: impl Into<Owned<'a, Speculator>>) {
        self.speculator = Some(speculator.into());
    }

    /// Ends the generation at this time, with what it has.
    pub fn with_deadline(mut self, deadline: Option<Instant>) -> Sequence<'a> {
        self.deadline = deadline;
        self
    }

    /// Begins on the tokens that the runner's sequence holds.
    ///
    /// # Errors
    /// `EmptyPrompt` if there is no prompt and the sequence has neither a pending token nor outputs to sample from.
    pub(crate) fn begin(&mut self, runner: &mut BatchRunner) -> Result<(), RuntimeError> {
        let vocab = runner.vocab_size();
        let can_sample =
            runner.is_pending(self.seq) || runner.row(self.seq).holds(self.wanted(), vocab);
        if self.prompt.is_empty() && !can_sample {
            return Err(RuntimeErrorKind::EmptyPrompt.into());
        }
        self.detokenizer.prepend(runner.tokens(self.seq));
        self.keep_features(runner)
    }

    /// Begins on a sequence that holds the first `fed` tokens of the prompt.
    pub(crate) fn begin_after(
        &mut self,
        runner: &mut BatchRunner,
        seq: SeqId,
        fed: usize,
    ) -> Result<(), RuntimeError> {
        (self.seq, self.fed) = (seq, fed);
        self.keep_features(runner)
    }

    fn keep_features(&self, runner: &mut BatchRunner) -> Result<(), RuntimeError> {
        let Some(speculator) = &self.speculator else {
            return Ok(());
        };
        if !runner.holds_candidates() {
            let reason = format!(
                "a {} cache holds no candidates, which speculation needs: use cells or tree",
                runner.cache_kind()
            );
            return Err(RuntimeErrorKind::InvalidOptions(reason).into());
        }
        runner.keep_features(self.seq, speculator.needs_features())
    }

    /// Gives the runner's sequence up. Its tokens and the rest of the prompt become the prompt of a later
    /// [`begin_after`](Sequence::begin_after).
    pub(crate) fn give_up(&mut self, tokens: &[u32]) {
        self.prompt = [tokens, self.remaining()].concat();
        self.fed = 0;
    }

    /// All tokens that the sequence will hold before it can be sampled from.
    pub(crate) fn prompt(&self) -> &[u32] {
        &self.prompt
    }

    /// The tokens of the prompt that are not fed yet.
    pub(crate) fn remaining(&self) -> &[u32] {
        &self.prompt[self.fed..]
    }

    /// Whether the prompt is in the cache: the next step generates.
    pub(crate) fn is_decoding(&self) -> bool {
        self.fed == self.prompt.len()
    }

    /// The tokens of the sequence before the generation and the generated ones.
    pub(crate) fn history(&self) -> &[u32] {
        self.detokenizer.history()
    }

    /// The number of generated tokens.
    pub(crate) fn generated(&self) -> usize {
        self.detokenizer.len()
    }

    /// The number of prompt tokens that were computed.
    pub(crate) fn computed(&self) -> usize {
        self.computed
    }

    /// The number of tokens that may still be generated.
    pub(super) fn left(&self) -> usize {
        let most = self.detokenizer.max_tokens().unwrap_or(usize::MAX);
        most.saturating_sub(self.detokenizer.len())
    }

    /// Whether only the prompt is to be computed.
    pub(super) fn is_prefill_only(&self) -> bool {
        self.detokenizer.max_tokens() == Some(0)
    }

    /// Whether its deadline has passed.
    pub(crate) fn is_late(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| now >= deadline)
    }

    /// The outputs that the next sample needs. Constraints, log-probabilities and answers of a least length need all logits.
    pub(crate) fn wanted(&self) -> LogitsMode {
        let all_logits = self.constraint.is_some() || self.logprobs.is_some();
        match all_logits || self.scores_prompt() || self.detokenizer.must_go_on() {
            true => LogitsMode::Logits,
            false => self.sampler.wanted(),
        }
    }

    /// Records that `n` tokens of the prompt were fed. Returns how many are in the cache.
    pub(super) fn advance(&mut self, n: usize) -> usize {
        self.fed += n;
        self.computed += n;
        self.fed
    }

    /// Records that `n` tokens of the prompt are in the cache that were not computed.
    pub(crate) fn skip(&mut self, n: usize) {
        self.fed += n;
    }

    /// Records `n` tokens that a forward without prompt tokens was computed for.
    pub(super) fn add_decoded(&mut self, n: usize) {
        self.decoded += n;
    }

    /// Records the time of a step.
    pub(super) fn add_time(&mut self, was_decoding: bool, time: Duration) {
        match was_decoding {
            true => self.decode_time += time,
            false => self.prompt_time += time,
        }
    }

    /// Samples the next token from the outputs after all tokens, and sets `finish` if it ends the generation.
    pub(super) fn sample(
        &mut self,
        row: RowOutputs<'_>,
        tokenizer: Option<&Tokenizer>,
    ) -> Result<GeneratedToken, RuntimeError> {
        let mut complete = false;
        let guard = self.reasoning.as_mut().zip(tokenizer);
        let forced = guard.and_then(|(guard, tokenizer)| guard.forced(tokenizer));
        let token = match (&mut self.constraint, forced) {
            (None, Some(token)) => token,
            (None, None) if self.detokenizer.must_go_on() => {
                self.masked.clear();
                self.masked.extend_from_slice(row.logits());
                mask_ends(&mut self.masked, &self.detokenizer, tokenizer);
                let history = self.detokenizer.history();
                self.sampler.sample(&self.masked, history)
            }
            (None, None) => self.sampler.sample_row(row, self.detokenizer.history()),
            (Some(constraint), _) => {
                self.masked.clear();
                self.masked.extend_from_slice(row.logits());
                constraint.apply(&mut self.masked)?;
                if self.detokenizer.must_go_on() {
                    mask_ends(&mut self.masked, &self.detokenizer, tokenizer);
                }
                let allowed = |token: &u32| self.masked[*token as usize] > f32::NEG_INFINITY;
                let token = forced.filter(allowed).unwrap_or_else(|| {
                    let history = self.detokenizer.history();
                    self.sampler.sample(&self.masked, history)
                });
                // An end-of-generation token ends the text; it is not part of it.
                if !tokenizer.is_some_and(|t| t.is_eog(token)) {
                    complete = constraint.accept(token)?;
                }
                token
            }
        };
        if let Some((guard, tokenizer)) = self.reasoning.as_mut().zip(tokenizer) {
            guard.push(tokenizer, token);
        }
        let logprobs = self.logprobs;
        let logprobs = logprobs.map(|top| TokenLogprobs::new(row.logits(), token, top));
        self.detokenizer.push_logprobs(logprobs.clone());
        let (text, finish) = self.detokenizer.push(tokenizer, token);
        self.finish = finish.or(complete.then_some(FinishReason::Stop));
        Ok(GeneratedToken {
            id: token,
            text,
            logprobs,
        })
    }

    /// Ends the generation for its reason, or as interrupted. Returns the output and the text that was pending.
    pub(crate) fn end(self) -> (GenerateOutput, String) {
        let finish = self.finish.unwrap_or(FinishReason::Interrupted);
        let (mut output, rest) = self.detokenizer.finish(finish);
        output.timings = Timings {
            prompt_tokens: self.computed,
            prompt_time: self.prompt_time,
            generated_tokens: output.tokens.len(),
            decode_time: self.decode_time,
            decoded_tokens: self.decoded,
            queue_time: Duration::ZERO,
        };
        output.prompt_logprobs = self.prompt_logprobs.map_or(vec![], |it| it.tokens);
        output.speculation = self.speculator.map(|s| s.stats().clone());
        (output, rest)
    }
}

/// Masks the logits of tokens that end a generation, unless nothing else is left.
fn mask_ends(
    logits: &mut [f32],
    detokenizer: &IncrementalDetokenizer,
    tokenizer: Option<&Tokenizer>,
) {
    let ends = |token| detokenizer.ends(tokenizer, token);
    let goes_on = |(token, logit): (u32, &f32)| *logit > f32::NEG_INFINITY && !ends(token);
    if (0..).zip(&*logits).any(goes_on) {
        let all = (0..).zip(logits);
        all.filter(|(token, _)| ends(*token))
            .for_each(|(_, logit)| *logit = f32::NEG_INFINITY);
    }
}
