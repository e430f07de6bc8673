//! The scheduler: one model, many requests, one forward a step for all of them.
//!
//! A step carries the next token of every request that generates, and a part of the prompts of those that do not yet.
//! Requests share the prefixes of running and finished requests. When the pool of cells is full, retained prefixes are
//! removed first; then the newest request of the lowest priority gives up its cells and is computed again later.

mod constraint;
mod disk;
mod engine;
mod pace;
mod prefix_store;
mod radix;
mod request;
mod running;
mod speculation;
mod state;

pub use engine::{Engine, EngineHandle, EventSink};
pub use request::{
    CacheMiss, CacheReport, CacheSource, GeneratedToken, Generation, MissReason, Request,
    RequestEvent, RequestHandle, RequestOutput, TokenConstraint, TokenLogprobs,
};
pub use state::{Counters, EngineState, SequenceInfo};

use crate::generation::FinishReason;
use crate::speculative::{Drafter, VerifyCosts};
use crate::{BatchRunner, BatchToken, Model, RunnerOptions, RuntimeError, RuntimeErrorKind};
use backend::{Backend, Wanted};
use constraint::MaskWorker;
use disk::DiskStore;
use engine::{Command, Shared};
use kv::SeqId;
use pace::StepPace;
use prefix_store::PrefixStore;
use running::RunningRequest;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

/// A request waits for a running one that is computing at least this many tokens more of its prompt than are stored.
const MIN_SHARED_TOKENS: usize = 4;

/// The options of an [`Engine`].
#[derive(Clone)]
pub struct SchedulerOptions {
    /// The maximum number of requests that run at once.
    pub slots: usize,
    /// The maximum number of requests that wait.
    pub queue: usize,
    /// The maximum number of retained prefixes. By default 64 of a model with sliding windows, where each prefix holds a
    /// window of its own, and 1,024 of any other, where prefixes share the pool of cells.
    pub prefixes: Option<usize>,
    /// The longest time that the prompts of other requests should delay the next token of a running one.
    pub step_time: Duration,
    /// A folder for prefixes on disk, and its size limit in bytes.
    pub disk: Option<(PathBuf, u64)>,
    /// The number of candidates a request that memory is reserved for. More are possible and allocate more.
    pub candidates: usize,
    /// A draft for requests that speculate with one.
    pub draft: Option<Drafter>,
    /// What the engine counts in. Counters that are handed to one engine after the other go on.
    pub counters: Arc<Counters>,
}

impl Default for SchedulerOptions {
    fn default() -> SchedulerOptions {
        SchedulerOptions {
            slots: 8,
            queue: 64,
            prefixes: None,
            step_time: Duration::from_millis(30),
            disk: None,
            candidates: 0,
            draft: None,
            counters: Arc::default(),
        }
    }
}

/// The engine's thread.
struct Scheduler {
    model: Arc<Model>,
    runner: BatchRunner,
    options: SchedulerOptions,
    shared: Arc<Shared>,
    commands: Receiver<Command>,
    /// In the order of arrival.
    waiting: Vec<RunningRequest>,
    /// In the order of admission.
    running: Vec<RunningRequest>,
    store: PrefixStore,
    masks: MaskWorker,
    pace: StepPace,
    /// When the remaining requests are ended; `None` while the engine accepts requests.
    stop_at: Option<Instant>,
    /// The request that gets prompt tokens first, so that all get their share.
    turn: usize,
    costs: VerifyCosts,
    /// Keeps the costs for the next start.
    costs_file: Option<PathBuf>,
}

impl Scheduler {
    fn new(
        model: Arc<Model>,
        backend: &dyn Backend,
        runner: &RunnerOptions,
        options: &SchedulerOptions,
        shared: Arc<Shared>,
        commands: Receiver<Command>,
    ) -> Result<Scheduler, RuntimeError> {
        let slots = options.slots.clamp(1, kv::MAX_SEQUENCES as usize);
        let options = SchedulerOptions {
            slots,
            ..options.clone()
        };
        let candidates = options.candidates;
        let has_windows = model
            .facts()
            .caches
            .iter()
            .any(|layer| layer.window.is_some());
        let default = if has_windows { 64 } else { 1024 };
        let prefixes = options.prefixes.unwrap_or(default);
        let costs_file = VerifyCosts::file(&model, backend, runner);
        let runner = BatchRunner::with_trees(&model, backend, runner, slots, prefixes, candidates)?;
        let disk = match &options.disk {
            None => None,
            Some((folder, limit)) => {
                let opened = DiskStore::open(folder, *limit, &model);
                Some(opened.map_err(|error| {
                    let reason = format!("{}: {error}", folder.display());
                    RuntimeErrorKind::InvalidOptions(reason)
                })?)
            }
        };
        Ok(Scheduler {
            masks: MaskWorker::start(model.facts().vocab_size),
            pace: StepPace::new(options.step_time),
            store: PrefixStore::new(prefixes, disk),
            model,
            runner,
            options,
            shared,
            commands,
            waiting: vec![],
            running: vec![],
            stop_at: None,
            turn: 0,
            costs: VerifyCosts::default(),
            costs_file,
        })
    }

    /// Runs until the engine is stopped and every request has ended.
    fn run(mut self) {
        loop {
            if !self.receive() {
                break;
            }
            self.end_interrupted();
            self.admit();
            if !self.running.is_empty() {
                self.step();
            }
        }
        while self.store.save_one(&self.runner, &self.model) {}
    }

    /// Handles all commands that have arrived. Waits for one if there is nothing to do; then prefixes are written to
    /// disk first. Returns false if the engine has stopped.
    fn receive(&mut self) -> bool {
        loop {
            let idle = self.running.is_empty() && self.waiting.is_empty();
            if idle && self.stop_at.is_some() {
                return false;
            }
            let command = match self.commands.try_recv() {
                Ok(command) => command,
                Err(TryRecvError::Disconnected) if idle => return false,
                Err(_) if !idle => return true,
                Err(_) => {
                    if self.store.save_one(&self.runner, &self.model) {
                        continue;
                    }
                    match self.commands.recv() {
                        Ok(command) => command,
                        Err(_) => return false,
                    }
                }
            };
            self.handle(command);
        }
    }

    fn handle(&mut self, command: Command) {
        match command {
            Command::Submit(submission) => self.waiting.push(RunningRequest::new(*submission)),
            Command::Inspect(reply) => {
                let info = |request: &RunningRequest| SequenceInfo {
                    seq: request.seq,
                    request: Some(request.id),
                    tokens: self.runner.tokens(request.seq).len(),
                    pending: request.remaining().len(),
                    generated: request.generated(),
                    runs: vec![],
                };
                let running = self.running.iter().map(info).collect();
                let waiting = self.waiting.len();
                let state = EngineState::new(&self.runner, &self.store, running, waiting);
                // Reading the bookkeeping of a pool cannot fail while no forward runs.
                if let Ok(state) = state {
                    _ = reply.send(state);
                }
            }
            Command::Tokens(seq, reply) => _ = reply.send(self.runner.tokens(seq).to_vec()),
            Command::ClearPrefixes => _ = self.store.clear(&mut self.runner),
            Command::Stop(at) => {
                self.stop_at = Some(self.stop_at.map_or(at, |before| before.min(at)));
            }
        }
    }

    /// Ends the requests that were cancelled, are late, or outlive the engine.
    fn end_interrupted(&mut self) {
        let now = Instant::now();
        let stopped = self.stop_at.is_some_and(|at| now >= at);
        let reason = |request: &RunningRequest| {
            let stopped = stopped.then_some(FinishReason::Interrupted);
            request.interruption(now).or(stopped)
        };
        let mut index = 0;
        while let Some(request) = self.waiting.get(index) {
            match reason(request) {
                Some(finish) => {
                    let request = self.waiting.remove(index);
                    self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
                    self.count_end(finish);
                    request.finish(finish);
                }
                None => index += 1,
            }
        }
        let mut index = 0;
        while let Some(request) = self.running.get(index) {
            match reason(request) {
                Some(finish) => self.finish(index, finish),
                None => index += 1,
            }
        }
    }

    /// Gives sequences to waiting requests: the highest priority first, then the first that came.
    fn admit(&mut self) {
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
        if !request.cache_prompt {
            return false;
        }
        let prompt = request.prompt();
        // One of a lower priority as well: what is shared is computed once, and what is not never delays the request.
        let computing = self.running.iter().filter(|r| !r.decoding);
        let shared = computing.map(|other| {
            let there = self.runner.tokens(other.seq);
            let all = crate::common_prefix_len(other.prompt(), prompt).min(prompt.len() - 1);
            all.saturating_sub(there.len())
        });
        let beside = admitted.iter().map(|index| {
            let all = crate::common_prefix_len(self.waiting[*index].prompt(), prompt);
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
        let taken: Vec<SeqId> = self.running.iter().map(|other| other.seq).collect();
        let seq = self.runner.free_sequence(&taken);
        let seq = seq.expect("as many sequences as slots");
        let reused = match request.cache_prompt {
            true => {
                let prompt = request.prompt();
                let (runner, model) = (&mut self.runner, &self.model);
                self.store.reuse(runner, model, &taken, prompt, seq)
            }
            false => Ok(CacheReport {
                prompt_tokens: request.prompt().len(),
                cached_tokens: 0,
                source: CacheSource::None,
                miss: Some(CacheMiss {
                    reason: MissReason::Disabled,
                    position: 0,
                    stored: None,
                    requested: None,
                }),
            }),
        };
        let reused = reused.and_then(|report| {
            self.begin_speculation(&mut request, seq)?;
            Ok(report)
        });
        match reused {
            Ok(report) => {
                let counters = &self.shared.counters;
                if request.report.is_none() {
                    Counters::add(&counters.started, 1);
                    Counters::add(&counters.prompt_tokens, report.prompt_tokens);
                    Counters::add(&counters.cached_tokens, report.cached_tokens);
                }
                request.start(seq, report);
                self.running.push(request);
            }
            Err(error) => {
                _ = self.runner.remove(seq);
                Counters::add(&self.shared.counters.failed, 1);
                request.fail(error);
            }
        }
    }

    /// Runs one forward for all requests, and samples.
    fn step(&mut self) {
        let counts = self.token_counts();
        let Some(mut counts) = self.make_room(counts) else {
            return;
        };
        let failed = self.propose(&mut counts);
        if let Some((index, error)) = failed {
            self.fail(index, error);
            return;
        }
        for request in &mut self.running {
            if let Some(constraint) = &mut request.constraint {
                self.masks.begin(constraint);
            }
        }
        let started = Instant::now();
        let failures = self.forward(&counts);
        let time = started.elapsed();
        let tokens: usize = counts.iter().sum();
        let prompts = self.running.iter().zip(&counts);
        let prompts = prompts.filter(|(r, _)| !r.decoding).map(|(_, n)| *n);
        self.pace.record(prompts.sum(), time);
        let counters = &self.shared.counters;
        Counters::add(&counters.steps, 1);
        Counters::add(&counters.step_tokens, tokens);
        Counters::add(&counters.step_micros, time.as_micros() as usize);
        let mut ends = vec![];
        let tokenizer = self.model.tokenizer().ok();
        for (index, request) in self.running.iter_mut().enumerate() {
            if counts[index] == 0 || failures.iter().any(|(failed, _)| *failed == index) {
                continue;
            }
            if request.decoding && self.runner.has_candidates(request.seq) {
                let context = self.shared.context();
                let verified = request.verify(&mut self.runner, tokenizer, context, tokens, time);
                match verified {
                    Ok((generated, end)) => {
                        Counters::add(&counters.generated_tokens, generated);
                        ends.extend(end.map(|finish| (index, Ok(finish))));
                    }
                    Err(error) => ends.push((index, Err(error))),
                }
                continue;
            }
            request.advance(counts[index].min(request.remaining().len()));
            if !request.remaining().is_empty() {
                continue;
            }
            if request.is_prefill_only() {
                ends.push((index, Ok(FinishReason::Length)));
                continue;
            }
            Counters::add(&counters.generated_tokens, 1);
            match request.sample(self.runner.row(request.seq), tokenizer) {
                Ok(None) if self.runner.tokens(request.seq).len() + 1 > self.shared.context() => {
                    ends.push((index, Ok(FinishReason::Context)));
                }
                Ok(None) => {}
                Ok(Some(finish)) => ends.push((index, Ok(finish))),
                Err(error) => ends.push((index, Err(error))),
            }
        }
        ends.extend(
            failures
                .into_iter()
                .map(|(index, error)| (index, Err(error))),
        );
        ends.sort_by_key(|(index, _)| std::cmp::Reverse(*index));
        for (index, end) in ends {
            match end {
                Ok(finish) => self.finish(index, finish),
                Err(error) => self.fail(index, error),
            }
        }
    }

    /// How many tokens of each running request the next step takes.
    fn token_counts(&mut self) -> Vec<usize> {
        let decoding = self.running.iter().filter(|r| r.decoding).count();
        let max = self.runner.max_step_tokens();
        let mut budget = self.pace.prompt_tokens(decoding, max);
        let mut counts: Vec<usize> = self.running.iter().map(|r| r.decoding.into()).collect();
        let mut prompts: Vec<usize> = (0..self.running.len())
            .filter(|index| !self.running[*index].decoding)
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
            let n = self.running[index].remaining().len().min(share);
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
            if self.runner.can_extend(needed).unwrap_or(false) {
                return Some(counts);
            }
            if matches!(self.store.evict(&mut self.runner, &self.model), Ok(true)) {
                continue;
            }
            // Prompts wait while others generate: those free cells when they end.
            let decoding = self.running.iter().any(|r| r.decoding);
            let prompts = self.running.iter().zip(&mut counts);
            let prompts = prompts.filter(|(r, n)| !r.decoding && **n > 0);
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

    /// Takes the sequence of a request. It waits, before all others of its priority.
    fn preempt(&mut self, index: usize) {
        let mut request = self.running.remove(index);
        _ = self.runner.remove(request.seq);
        request.preempt();
        Counters::add(&self.shared.counters.preempted, 1);
        self.shared.waiting.fetch_add(1, Ordering::Relaxed);
        self.waiting.insert(0, request);
    }

    /// Feeds `counts[i]` tokens of request `i`. If the step fails, the requests are fed one by one, so that only those
    /// that fail alone are returned.
    fn forward(&mut self, counts: &[usize]) -> Vec<(usize, RuntimeError)> {
        let tokens = |request: &RunningRequest, n: usize| -> Vec<BatchToken> {
            let remaining = request.remaining();
            let (seq, last) = (request.seq, remaining.len());
            let token = move |(i, id): (usize, &u32)| BatchToken {
                seq,
                id: *id,
                logits: i + 1 == last,
            };
            remaining[..n].iter().enumerate().map(token).collect()
        };
        let mut parts = vec![];
        for (index, (request, n)) in self.running.iter().zip(counts).enumerate() {
            let tree = request.speculator.as_ref().filter(|_| request.decoding);
            let tree = tree.map(|speculator| (request.seq, speculator.tree()));
            if *n > 0 {
                let tokens = match tree {
                    Some(_) => vec![],
                    None => tokens(request, *n),
                };
                parts.push((index, tokens, tree));
            }
        }
        let whole: Vec<BatchToken> = parts.iter().flat_map(|part| &part.1).copied().collect();
        let trees: Vec<_> = parts.iter().filter_map(|part| part.2).collect();
        // Rows of all requests have the same outputs: as many as the most demanding one needs.
        let sampled = parts
            .iter()
            .filter(|(_, tokens, tree)| tree.is_some() || tokens.iter().any(|token| token.logits));
        let wanted = sampled.map(|(index, ..)| self.running[*index].wanted_outputs());
        let wanted = wanted.fold(Wanted::Argmax, Wanted::and);
        if self.runner.step_wanted(&whole, &trees, wanted).is_ok() {
            return vec![];
        }
        let mut failures = vec![];
        for (index, tokens, tree) in parts {
            // The outputs of a tree last until the next step, so that alone a request gets its next token only.
            let root = tree.map(|(seq, tree)| BatchToken {
                seq,
                id: tree.tokens()[0],
                logits: true,
            });
            let tokens: Vec<BatchToken> = tokens.into_iter().chain(root).collect();
            if let Err(error) = self.runner.step(&tokens) {
                failures.push((index, error));
            }
        }
        failures
    }

    /// Ends a running request and retains its tokens.
    fn finish(&mut self, index: usize, finish: FinishReason) {
        let request = self.running.remove(index);
        self.count_end(finish);
        let seq = request.seq;
        let keep = request.cache_prompt;
        request.finish(finish);
        // A prefix that cannot be retained is computed again.
        if keep {
            _ = self.store.retain(&mut self.runner, &self.model, seq);
        }
        _ = self.runner.remove(seq);
    }

    fn fail(&mut self, index: usize, error: RuntimeError) {
        let request = self.running.remove(index);
        Counters::add(&self.shared.counters.failed, 1);
        _ = self.runner.remove(request.seq);
        request.fail(error);
    }

    fn count_end(&self, finish: FinishReason) {
        let counters = &self.shared.counters;
        match finish {
            FinishReason::Interrupted => Counters::add(&counters.cancelled, 1),
            _ => Counters::add(&counters.finished, 1),
        }
    }
}
