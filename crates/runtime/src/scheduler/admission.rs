//! Admission: which waiting requests get a sequence, and the stored prefix that each begins with.

use super::request::{CacheMiss, CacheReport, MissReason};
use super::running::RunningRequest;
use super::{Counters, Scheduler};
use crate::RuntimeError;
use crate::speculative::{SpecType, Speculator};
use kv::SeqId;
use std::sync::atomic::Ordering;

/// A request waits for a running one that is computing at least this many tokens more of its prompt than are stored.
const MIN_SHARED_TOKENS: usize = 4;

impl Scheduler {
    /// Gives sequences to waiting requests: the highest priority first, then the first that came.
    pub(super) fn admit(&mut self) {
        let mut order: Vec<usize> = (0..self.waiting.len()).collect();
        order.sort_by_key(|index| std::cmp::Reverse(self.waiting[*index].priority));
        let mut admitted = vec![];
        for index in order {
            if self.running.len() + admitted.len() >= self.options.slots {
                break;
            }
            if !self.is_blocked(&self.waiting[index], &admitted) {
                admitted.push(index);
            }
        }
        // Removing from the back keeps the other indices.
        let mut starting = vec![];
        admitted.sort_unstable();
        for index in admitted.into_iter().rev() {
            starting.push(self.waiting.remove(index));
        }
        for request in starting.into_iter().rev() {
            self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
            self.start(request);
        }
    }

    /// Whether another request is computing a long prefix of this one: it is shared once it is there.
    fn is_blocked(&self, request: &RunningRequest, admitted: &[usize]) -> bool {
        if !request.reuses() {
            return false;
        }
        let prompt = request.sequence.prompt();
        // One of a lower priority as well: what is shared is computed once, and what is not never delays the request.
        let computing = self.running.iter();
        let computing = computing.filter(|r| !r.sequence.is_decoding());
        let shared = computing.map(|other| {
            let there = self.runner.tokens(other.seq());
            let all =
                crate::common_prefix_len(other.sequence.prompt(), prompt).min(prompt.len() - 1);
            all.saturating_sub(there.len())
        });
        let beside = admitted.iter().map(|index| {
            let all = crate::common_prefix_len(self.waiting[*index].sequence.prompt(), prompt);
            all.min(prompt.len() - 1)
        });
        let stored = self.store.longest(prompt);
        shared.max().is_some_and(|n| n >= MIN_SHARED_TOKENS)
            || beside
                .max()
                .is_some_and(|n| n >= stored + MIN_SHARED_TOKENS)
    }

    /// Gives a request a sequence with the longest stored prefix of its prompt.
    fn start(&mut self, mut request: RunningRequest) {
        let taken: Vec<SeqId> = self.running.iter().map(RunningRequest::seq).collect();
        let seq = self.runner.free_sequence(&taken);
        let seq = seq.expect("as many sequences as slots");
        let reused = match request.reuses() {
            true => {
                let prompt = (request.sequence.prompt(), request.approximate);
                let (runner, model) = (&mut self.runner, &self.model);
                self.store.reuse(runner, model, &taken, prompt, seq)
            }
            false => {
                let disabled = CacheMiss {
                    reason: MissReason::Disabled,
                    position: 0,
                    stored: None,
                    requested: None,
                };
                let prompt = request.sequence.prompt();
                Ok(CacheReport::nothing(prompt.len(), Some(disabled)))
            }
        };
        let reused = reused.and_then(|report| {
            self.begin_speculation(&mut request)?;
            let cached = report.cached_tokens;
            request
                .sequence
                .begin_after(&mut self.runner, seq, cached)?;
            Ok(report)
        });
        match reused {
            Ok(report) => {
                if request.listener.report.is_none() {
                    let waited = request.listener.waited();
                    self.shared.counters.queue_times.add_time(waited);
                    self.shared.counters.add_report(&report);
                }
                request.listener.start(report, request.moved.is_some());
                self.running.push(request);
            }
            Err(error) => {
                _ = self.runner.remove(seq);
                Counters::add(&self.shared.counters.failed, 1);
                request.fail(error);
            }
        }
    }

    /// Makes the speculation of a request that gets a sequence for the first time.
    fn begin_speculation(&mut self, request: &mut RunningRequest) -> Result<(), RuntimeError> {
        let Some(options) = request.speculation.take() else {
            return Ok(());
        };
        options.check(self.runner.max_step_tokens())?;
        if options.kind == SpecType::Auto && self.costs.measured().is_empty() {
            let file = self.costs_file.as_deref();
            self.costs = self.runner.verify_costs(file, options.max_candidates)?;
        }
        let draft = self.options.draft.as_ref();
        let speculator = Speculator::new(&options, &self.costs, draft)?;
        request.sequence.speculate(speculator);
        Ok(())
    }
}
