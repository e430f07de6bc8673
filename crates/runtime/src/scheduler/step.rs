//! The steps of the scheduler: how many rows each request gets, and the cells that they need.

use super::request::MovedTokens;
use super::running::{Listener, RunningRequest};
use super::{Counters, Scheduler};
use crate::decode::{DecodeStep, Sequence};
use crate::generation::FinishReason;
use crate::speculative::Drafter;
use kv::SeqId;
use std::sync::atomic::Ordering;

impl Scheduler {
    /// Runs one forward for all requests, and samples.
    pub(super) fn step(&mut self) {
        self.shift_full_contexts();
        self.move_rows();
        let counts = self.token_counts();
        let Some(mut counts) = self.make_room(counts) else {
            return;
        };
        let running = self.running.iter_mut();
        let parts = running.map(|r| (&mut r.sequence, &mut r.listener));
        let (mut sequences, mut listeners): (Vec<&mut Sequence<'_>>, Vec<&mut Listener>) =
            parts.unzip();
        let mut step = DecodeStep {
            runner: &mut self.runner,
            tokenizer: self.model.tokenizer().ok(),
            masks: &self.masks,
            context: self.shared.context(),
            samples_after_prompt: true,
        };
        let missed = step.runner.missed_recordings();
        let draft = self.options.draft.as_ref();
        let drafted = draft.map_or(0, Drafter::forwards);
        let report = step.run(&mut sequences, &mut counts, &mut |index, event| {
            listeners[index].hear(event)
        });
        self.pace.record(report.prompt_rows, report.time);
        self.store.speeds.compute = self.pace.per_token();
        let counters = &self.shared.counters;
        for listener in &mut listeners {
            listener.count_times(counters);
        }
        counters.step_sizes.add(report.rows as u64);
        Counters::add(&counters.steps, 1);
        let drafted = draft.map_or(0, Drafter::forwards) - drafted;
        Counters::add(&counters.draft_forwards, drafted);
        Counters::add(&counters.step_tokens, report.rows);
        Counters::add(&counters.step_micros, report.time.as_micros() as usize);
        Counters::add(&counters.generated_tokens, report.generated);
        let missed = self.runner.missed_recordings() - missed;
        Counters::add(&counters.missed_recordings, missed);
        let mut failures = report.failures;
        for index in (0..self.running.len()).rev() {
            let failed = failures.iter().position(|(failed, _)| *failed == index);
            match (failed, self.running[index].sequence.finish) {
                (Some(at), _) => self.fail(index, failures.swap_remove(at).1),
                (None, Some(finish)) => self.finish(index, finish),
                (None, None) => {}
            }
        }
    }

    /// Shifts the sequences whose context is full, and ends those that cannot be shifted.
    fn shift_full_contexts(&mut self) {
        let context = self.shared.context();
        for index in (0..self.running.len()).rev() {
            let seq = self.running[index].seq();
            let prompts = self.shared.streams() && !self.running[index].sequence.is_decoding();
            let waits = self.runner.is_pending(seq) || prompts;
            if !waits || self.runner.fed_tokens(seq).len() < context {
                continue;
            }
            let shifted = loop {
                match self.runner.shift_context(seq) {
                    Ok(shift) => break Ok(shift.is_some()),
                    // Rows that others share are copied, which needs cells.
                    Err(error) => match self.store.evict(&mut self.runner, &self.model) {
                        Ok(true) => continue,
                        _ => break Err(error),
                    },
                }
            };
            match shifted {
                Ok(true) => {}
                Ok(false) => self.finish(index, FinishReason::Context),
                Err(error) => self.fail(index, error),
            }
        }
    }

    /// Moves the rows of earlier texts that requests asked for and have come to. What cannot be moved is computed.
    fn move_rows(&mut self) {
        for index in 0..self.running.len() {
            let seq = self.running[index].seq();
            let fed = self.runner.fed_tokens(seq).len();
            let moved = &mut self.running[index].moved;
            let Some(moved) = moved.take_if(|moved| fed >= moved.at) else {
                continue;
            };
            let count = match fed == moved.at {
                true => self.append_moved(&moved, seq),
                // More of the prompt was stored.
                false => 0,
            };
            let request = &mut self.running[index];
            request.sequence.skip(count);
            request.listener.moved(count);
            Counters::add(&self.shared.counters.cached_tokens, count);
        }
    }

    /// Appends the rows of an earlier text to a sequence, as many as are retained. Returns their number.
    fn append_moved(&mut self, moved: &MovedTokens, seq: SeqId) -> usize {
        loop {
            let (owner, len) = self.store.owner_of(&moved.text);
            let count = len.saturating_sub(moved.from);
            let Some(owner) = owner.filter(|_| count > 0) else {
                return 0;
            };
            if self.runner.has_cells(count).unwrap_or(false) {
                let range = moved.from..moved.from + count;
                let appended = self.runner.append_rows_of(owner, range, seq);
                return if appended.is_ok() { count } else { 0 };
            }
            if !matches!(self.store.evict(&mut self.runner, &self.model), Ok(true)) {
                return 0;
            }
        }
    }

    /// How many tokens of each running request the next step takes.
    fn token_counts(&mut self) -> Vec<usize> {
        let decoding = self.decoding().count();
        let max = self.runner.max_step_tokens();
        let mut budget = self.pace.prompt_tokens(decoding, max);
        let running = self.running.iter();
        let mut counts: Vec<usize> = running.map(|r| r.sequence.is_decoding().into()).collect();
        let mut prompts: Vec<usize> = (0..self.running.len())
            .filter(|index| !self.running[*index].sequence.is_decoding())
            .collect();
        if prompts.is_empty() {
            return counts;
        }
        // Within a priority everybody gets an equal share, beginning with another request each time.
        self.turn = (self.turn + 1) % prompts.len();
        prompts.rotate_left(self.turn);
        prompts.sort_by_key(|index| std::cmp::Reverse(self.running[*index].priority));
        let mut left = prompts.len();
        for index in prompts {
            let share = budget.div_ceil(left);
            let request = &self.running[index];
            let mut n = request.sequence.remaining().len().min(share);
            if let Some(moved) = &request.moved {
                n = n.min(moved.at - self.runner.fed_tokens(request.seq()).len());
            }
            if self.shared.streams() {
                // The rest of a longer prompt follows after a shift.
                let held = self.runner.fed_tokens(request.seq()).len();
                n = n.min(self.shared.context().saturating_sub(held));
            }
            counts[index] = n;
            budget -= n;
            left -= 1;
        }
        counts
    }

    /// Frees cells for a step: removes retained prefixes, then takes cells from requests. Returns the counts that fit,
    /// or `None` if no request can go on in this step.
    fn make_room(&mut self, mut counts: Vec<usize>) -> Option<Vec<usize>> {
        loop {
            let needed: usize = counts.iter().sum();
            if needed == 0 {
                return None;
            }
            if self.runner.has_cells(needed).unwrap_or(false) {
                return Some(counts);
            }
            if matches!(self.store.evict(&mut self.runner, &self.model), Ok(true)) {
                continue;
            }
            // Prompts wait while others generate: those free cells when they end.
            let decoding = self.decoding().next().is_some();
            let prompts = self.running.iter().zip(&mut counts);
            let prompts = prompts.filter(|(r, n)| !r.sequence.is_decoding() && **n > 0);
            let prompts: Vec<&mut usize> = prompts.map(|(_, n)| n).collect();
            if decoding && !prompts.is_empty() {
                prompts.into_iter().for_each(|n| *n = 0);
                continue;
            }
            if self.running.len() == 1 {
                self.finish(0, FinishReason::Context);
                return None;
            }
            let victim = (0..self.running.len()).min_by_key(|index| {
                let request = &self.running[*index];
                (request.priority, std::cmp::Reverse(request.id))
            })?;
            self.preempt(victim);
            counts.remove(victim);
        }
    }

    /// Takes the sequence of a request, whose rows are copied out of the pool if that is faster than computing them again. It waits, before
    /// all others of its priority.
    fn preempt(&mut self, index: usize) {
        let mut request = self.running.remove(index);
        let seq = request.seq();
        if request.cache_prompt && self.store.swap_out(&self.runner, &self.model, seq) {
            Counters::add(&self.shared.counters.swapped, 1);
        }
        request.sequence.give_up(self.runner.tokens(seq));
        _ = self.runner.remove(seq);
        Counters::add(&self.shared.counters.preempted, 1);
        self.shared.waiting.fetch_add(1, Ordering::Relaxed);
        self.waiting.insert(0, request);
    }

    /// The requests that generate.
    fn decoding(&self) -> impl Iterator<Item = &RunningRequest> {
        let running = self.running.iter();
        running.filter(|request| request.sequence.is_decoding())
    }
}
