//! `RunningRequest`: a request that has a sequence.

use super::constraint::ConstraintState;
use super::engine::{EventSink, Submission};
use super::request::{CacheReport, GeneratedToken, RequestEvent, RequestOutput, TokenLogprobs};
use crate::detokenizer::IncrementalDetokenizer;
use crate::generation::{FinishReason, Timings};
use crate::score::LogSoftmax;
use crate::speculative::{SpecOptions, Speculator};
use crate::{RuntimeError, Sampler};
use backend::{RowOutputs, Wanted};
use kv::SeqId;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use text::Tokenizer;

/// A request with its sampler and its text, between submission and end.
pub(super) struct RunningRequest {
    pub(super) id: u64,
    pub(super) priority: i32,
    pub(super) seq: SeqId,
    /// The tokens that are fed next: the rest of the prompt, or the sampled token. The first `fed` are done.
    pending: Vec<u32>,
    fed: usize,
    /// Whether the prompt is computed and the request generates.
    pub(super) decoding: bool,
    pub(super) cache_prompt: bool,
    sampler: Sampler,
    detokenizer: IncrementalDetokenizer,
    pub(super) constraint: Option<ConstraintState>,
    logprobs: Option<usize>,
    deadline: Option<Instant>,
    sink: EventSink,
    cancelled: Arc<AtomicBool>,
    pub(super) report: Option<CacheReport>,
    submitted: Instant,
    started: Instant,
    first_token: Option<Instant>,
    computed: usize,
    masked: Vec<f32>,
    pub(super) speculation: Option<SpecOptions>,
    /// Made when the request starts.
    pub(super) speculator: Option<Speculator>,
}

impl RunningRequest {
    pub(super) fn new(submission: Submission) -> RunningRequest {
        let Submission {
            id,
            request,
            sink,
            cancelled,
            submitted,
        } = submission;
        let detokenizer = IncrementalDetokenizer::new(request.options, request.prompt.iter());
        RunningRequest {
            id,
            priority: request.priority,
            seq: SeqId::MAX,
            pending: request.prompt,
            fed: 0,
            decoding: false,
            cache_prompt: request.cache_prompt,
            sampler: Sampler::new(request.sampling),
            detokenizer,
            constraint: request.constraint.map(ConstraintState::new),
            logprobs: request.logprobs,
            deadline: request.deadline,
            sink,
            cancelled,
            report: None,
            submitted,
            started: submitted,
            first_token: None,
            computed: 0,
            masked: vec![],
            speculation: request.speculation,
            speculator: None,
        }
    }

    /// The tokens of the prompt and the generated ones.
    pub(super) fn history(&self) -> &[u32] {
        self.detokenizer.history()
    }

    /// The number of tokens that may still be generated.
    pub(super) fn wanted(&self) -> usize {
        let most = self.detokenizer.max_tokens().unwrap_or(usize::MAX);
        most.saturating_sub(self.detokenizer.len())
    }

    /// All tokens that the sequence will hold before it can be sampled from.
    pub(super) fn prompt(&self) -> &[u32] {
        &self.pending
    }

    /// Tokens that are not fed yet.
    pub(super) fn remaining(&self) -> &[u32] {
        &self.pending[self.fed..]
    }

    /// The number of generated tokens.
    pub(super) fn generated(&self) -> usize {
        self.detokenizer.len()
    }

    /// Whether only the prompt is to be computed.
    pub(super) fn is_prefill_only(&self) -> bool {
        self.detokenizer.max_tokens() == Some(0)
    }

    /// Starts with a sequence that holds the reported prefix of the prompt.
    pub(super) fn start(&mut self, seq: SeqId, report: CacheReport) {
        self.seq = seq;
        self.fed = report.cached_tokens;
        // A request that was preempted has reported before.
        if self.report.is_none() {
            self.started = Instant::now();
            self.report = Some(report.clone());
            self.emit(RequestEvent::Started(report));
        }
    }

    /// Gives the sequence up. All tokens so far become the prompt of a later start.
    pub(super) fn preempt(&mut self) {
        self.pending = self.detokenizer.history().to_vec();
        self.fed = 0;
        self.decoding = false;
    }

    /// Records that `n` tokens were fed.
    pub(super) fn advance(&mut self, n: usize) {
        self.fed += n;
        if !self.decoding {
            self.computed += n;
            let done = self.fed;
            self.emit(RequestEvent::PromptProgress(done));
        }
    }

    /// Why the request must end before its next step.
    pub(super) fn interruption(&self, now: Instant) -> Option<FinishReason> {
        if self.cancelled.load(Ordering::Relaxed) {
            Some(FinishReason::Interrupted)
        } else {
            let late = self.deadline.is_some_and(|deadline| now >= deadline);
            late.then_some(FinishReason::Deadline)
        }
    }

    /// The outputs that the next sample needs. Constraints and log-probabilities need all logits.
    pub(super) fn wanted_outputs(&self) -> Wanted {
        match self.constraint.is_some() || self.logprobs.is_some() {
            true => Wanted::Logits,
            false => self.sampler.wanted(),
        }
    }

    /// Samples the next token from the outputs after all pending tokens. Returns the reason if it ends the generation.
    pub(super) fn sample(
        &mut self,
        row: RowOutputs<'_>,
        tokenizer: Option<&Tokenizer>,
    ) -> Result<Option<FinishReason>, RuntimeError> {
        self.decoding = true;
        let mut complete = false;
        let token = match &mut self.constraint {
            None => self.sampler.sample_row(row, self.detokenizer.history()),
            Some(constraint) => {
                self.masked.clear();
                self.masked.extend_from_slice(row.logits());
                constraint.apply(&mut self.masked)?;
                let token = self
                    .sampler
                    .sample(&self.masked, self.detokenizer.history());
                // An end-of-generation token ends the text; it is not part of it.
                if !tokenizer.is_some_and(|t| t.is_eog(token)) {
                    complete = constraint.accept(token)?;
                }
                token
            }
        };
        self.first_token.get_or_insert_with(Instant::now);
        let logprobs = self.logprobs;
        let logprobs = logprobs.map(|top| token_logprobs(row.logits(), token, top));
        let (text, finish) = self.detokenizer.push(tokenizer, token);
        self.pending.clear();
        self.pending.push(token);
        self.fed = 0;
        self.emit(RequestEvent::Token(GeneratedToken {
            id: token,
            text,
            logprobs,
        }));
        Ok(finish.or(complete.then_some(FinishReason::Stop)))
    }

    /// The token that was sampled last.
    pub(super) fn last_token(&self) -> u32 {
        *self.pending.last().expect("a token was sampled")
    }

    /// Ends the request with what it has.
    pub(super) fn finish(mut self, finish: FinishReason) {
        let now = Instant::now();
        let first = self.first_token.unwrap_or(now);
        let stop_string = self.detokenizer.stop_string().map(str::to_owned);
        let mut rest = String::new();
        let output = self.detokenizer.finish(finish, |text| rest.push_str(text));
        let timings = Timings {
            prompt_tokens: self.computed,
            prompt_time: first - self.started,
            generated_tokens: output.tokens.len(),
            decode_time: now - first,
            decoded_tokens: output.decoded(),
            queue_time: self.started - self.submitted,
        };
        let cache = self.report.unwrap_or(CacheReport {
            prompt_tokens: self.pending.len(),
            cached_tokens: 0,
            source: super::CacheSource::None,
            miss: None,
        });
        (self.sink)(RequestEvent::Finished(Box::new(RequestOutput {
            tokens: output.tokens,
            rest,
            finish,
            stop_string,
            timings,
            cache,
            speculation: self.speculator.map(|s| s.stats().clone()),
        })));
    }

    /// Ends the request with an error.
    pub(super) fn fail(mut self, error: RuntimeError) {
        (self.sink)(RequestEvent::Failed(error));
    }

    pub(super) fn emit(&mut self, event: RequestEvent) {
        if !(self.sink)(event) {
            self.cancelled.store(true, Ordering::Relaxed);
        }
    }
}

/// The log-probabilities of a token and of the `top` most likely ones.
fn token_logprobs(logits: &[f32], token: u32, top: usize) -> TokenLogprobs {
    let softmax = LogSoftmax::new(logits);
    let logprob = |logit: f32| softmax.of(logit) as f32;
    let mut best: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
    let order = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    let top = top.min(best.len());
    if top > 0 && top < best.len() {
        best.select_nth_unstable_by(top - 1, order);
    }
    best.truncate(top);
    best.sort_unstable_by(order);
    best.iter_mut()
        .for_each(|(_, logit)| *logit = logprob(*logit));
    TokenLogprobs {
        logprob: logprob(logits[token as usize]),
        top: best,
    }
}
