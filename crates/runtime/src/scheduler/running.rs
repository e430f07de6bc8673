//! `RunningRequest`: a request between its submission and its end.

use super::Counters;
use super::branch_cells::BranchCells;
use super::engine::{EventSink, Submission};
use super::request::{CacheReport, MovedTokens, RequestEvent, RequestOutput};
use crate::decode::{Sequence, StepEvent};
use crate::generation::{FinishReason, Timings};
use crate::speculative::SpecOptions;
use crate::{RuntimeError, Sampler};
use kv::SeqId;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A request: what it generates with, and who hears of it.
pub(super) struct RunningRequest {
    pub(super) id: u64,
    pub(super) priority: i32,
    pub(super) cache_prompt: bool,
    pub(super) approximate: bool,
    /// Rows to move once the tokens before them are computed.
    pub(super) moved: Option<MovedTokens>,
    pub(super) branch: Option<BranchCells>,
    pub(super) speculation: Option<SpecOptions>,
    pub(super) sequence: Sequence<'static>,
    pub(super) listener: Listener,
}

/// Receives the events of a request.
pub(super) struct Listener {
    sink: EventSink,
    cancelled: Arc<AtomicBool>,
    pub(super) report: Option<CacheReport>,
    submitted: Instant,
    started: Instant,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
    /// The times between tokens that are not counted yet.
    gaps: Vec<Duration>,
    /// The time to the first token, if it is not counted yet.
    first_wait: Option<Duration>,
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
        let sampler = Sampler::new(request.sampling);
        let sequence = Sequence::new(SeqId::MAX, request.prompt, sampler, &request.options);
        RunningRequest {
            id,
            priority: request.priority,
            cache_prompt: request.cache_prompt,
            approximate: request.approximate,
            moved: request.moved,
            branch: request.branch,
            speculation: request.speculation,
            sequence: sequence
                .with_message_ends(&request.message_ends)
                .with_constraint(request.constraint)
                .with_logprobs(request.logprobs)
                .with_prompt_logprobs(request.prompt_logprobs)
                .with_deadline(request.deadline),
            listener: Listener {
                sink,
                cancelled,
                report: None,
                submitted,
                started: submitted,
                first_token: None,
                last_token: None,
                gaps: vec![],
                first_wait: None,
            },
        }
    }

    /// Whether it begins on stored rows. The outputs after their tokens are not stored.
    pub(super) fn reuses(&self) -> bool {
        self.cache_prompt && !self.sequence.scores_prompt()
    }

    pub(super) fn seq(&self) -> SeqId {
        self.sequence.seq
    }

    /// Why the request must end before its next step.
    pub(super) fn interruption(&self, now: Instant) -> Option<FinishReason> {
        if self.listener.cancelled.load(Ordering::Relaxed) {
            return Some(FinishReason::Interrupted);
        }
        let late = self.sequence.is_late(now);
        late.then_some(FinishReason::Deadline)
    }

    /// Ends the request with what it has.
    pub(super) fn finish(mut self, finish: FinishReason) {
        let now = Instant::now();
        let Listener {
            started, submitted, ..
        } = self.listener;
        let first = self.listener.first_token.unwrap_or(now);
        let prompt_tokens = self.sequence.computed();
        let cache = self.listener.report.take().unwrap_or_else(|| {
            let prompt = self.sequence.prompt();
            CacheReport::nothing(prompt.len(), None)
        });
        self.sequence.finish = Some(finish);
        let (output, rest) = self.sequence.end();
        let timings = Timings {
            prompt_tokens,
            prompt_time: first - started,
            decode_time: now - first,
            queue_time: started - submitted,
            ..output.timings
        };
        (self.listener.sink)(RequestEvent::Finished(Box::new(RequestOutput {
            tokens: output.tokens,
            rest,
            finish,
            stop_string: output.stop_string,
            prompt_logprobs: output.prompt_logprobs,
            timings,
            cache,
            speculation: output.speculation,
        })));
    }

    /// Ends the request with an error.
    pub(super) fn fail(mut self, error: RuntimeError) {
        (self.listener.sink)(RequestEvent::Failed(error));
    }
}

impl Listener {
    /// Reports that the request got a sequence, unless it `moves` rows, which the report counts. A request that was preempted has
    /// reported before.
    pub(super) fn start(&mut self, report: CacheReport, moves: bool) {
        if let Some(first) = &mut self.report {
            first.approximate_tokens = report.approximate_tokens;
            return;
        }
        self.started = Instant::now();
        self.report = Some(report.clone());
        if !moves {
            self.emit(RequestEvent::Started(report));
        }
    }

    /// Reports that the request got a sequence and that the rows of so many of its prompt tokens were moved.
    pub(super) fn moved(&mut self, tokens: usize) {
        if let Some(report) = &mut self.report {
            report.cached_tokens += tokens;
            report.approximate_tokens += tokens;
            let report = report.clone();
            self.emit(RequestEvent::Started(report));
        }
    }

    /// Hands on what a step did. Returns false if nobody reads it.
    pub(super) fn hear(&mut self, event: StepEvent) -> bool {
        let event = match event {
            StepEvent::PromptProgress(done) => RequestEvent::PromptProgress(done),
            StepEvent::Round(round) => RequestEvent::Round(round),
            StepEvent::Token(token) => {
                let now = Instant::now();
                if self.first_token.is_none() {
                    self.first_token = Some(now);
                    self.first_wait = Some(now - self.submitted);
                }
                if let Some(before) = self.last_token.replace(now) {
                    self.gaps.push(now - before);
                }
                RequestEvent::Token(token)
            }
        };
        self.emit(event)
    }

    /// How long the request has been there.
    pub(super) fn waited(&self) -> Duration {
        self.submitted.elapsed()
    }

    /// Counts the times of the last step.
    pub(super) fn count_times(&mut self, counters: &Counters) {
        self.gaps.drain(..).for_each(|gap| counters.add_gap(gap));
        if let Some(wait) = self.first_wait.take() {
            counters.first_token_times.add_time(wait);
        }
    }

    fn emit(&mut self, event: RequestEvent) -> bool {
        let heard = (self.sink)(event);
        if !heard {
            self.cancelled.store(true, Ordering::Relaxed);
        }
        heard
    }
}
