//! The scheduler: one model, many requests, one forward a step for all of them.
//!
//! A step carries the next token of every request that generates, and a part of the prompts of those that do not yet.
//! Requests share the prefixes of running and finished requests. When the pool of cells is full, retained prefixes are
//! removed first; then the newest request of the lowest priority gives up its cells and is computed again later.

mod branch_cells;
mod disk;
mod engine;
mod pace;
mod prefix_store;
mod radix;
mod request;
mod running;
mod state;

pub use branch_cells::BranchCells;
pub use engine::{Engine, EngineHandle, EventSink};
pub use request::{
    CacheMiss, CacheReport, CacheSource, Generation, MissReason, Request, RequestEvent,
    RequestHandle, RequestOutput,
};
pub use state::{Counters, EngineState, SequenceInfo};

use crate::decode::{DecodeStep, MaskWorker, Sequence};
use crate::generation::FinishReason;
use crate::speculative::{Drafter, SpecType, Speculator, VerifyCosts};
use crate::{BatchRunner, Model, RunnerOptions, RuntimeError, RuntimeErrorKind};
use backend::Backend;
use disk::DiskStore;
use engine::{Command, Shared};
use kv::SeqId;
use pace::StepPace;
use prefix_store::PrefixStore;
use running::{Listener, RunningRequest};
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
    /// With `Some(keep)`, a request whose context is full keeps its first `keep` tokens and drops the older half of the others,
    /// instead of ending.
    pub context_shift: Option<usize>,
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
            context_shift: None,
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
        let mut runner =
            BatchRunner::with_trees(&model, backend, runner, slots, prefixes, candidates)?;
        if let Some(keep) = options.context_shift {
            runner.enable_context_shift(keep)?;
        }
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
            masks: MaskWorker::new(model.facts().vocab_size),
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
                    seq: request.seq(),
                    request: Some(request.id),
                    tokens: self.runner.fed_tokens(request.seq()).len(),
                    pending: request.sequence.remaining().len(),
                    generated: request.sequence.generated(),
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
        let reused = match request.cache_prompt {
            true => {
                let prompt = request.sequence.prompt();
                let (runner, model) = (&mut self.runner, &self.model);
                self.store.reuse(runner, model, &taken, prompt, seq)
            }
            false => Ok(CacheReport {
                prompt_tokens: request.sequence.prompt().len(),
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
            self.begin_speculation(&mut request)?;
            let cached = report.cached_tokens;
            request
                .sequence
                .begin_after(&mut self.runner, seq, cached)?;
            Ok(report)
        });
        match reused {
            Ok(report) => {
                let counters = &self.shared.counters;
                if request.listener.report.is_none() {
                    Counters::add(&counters.started, 1);
                    Counters::add(&counters.prompt_tokens, report.prompt_tokens);
                    Counters::add(&counters.cached_tokens, report.cached_tokens);
                }
                request.listener.start(report);
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

    /// Runs one forward for all requests, and samples.
    fn step(&mut self) {
        self.shift_full_contexts();
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
        let counters = &self.shared.counters;
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
            if !self.runner.is_pending(seq) || self.runner.fed_tokens(seq).len() < context {
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
            let n = self.running[index].sequence.remaining().len().min(share);
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

    /// Takes the sequence of a request. It waits, before all others of its priority.
    fn preempt(&mut self, index: usize) {
        let mut request = self.running.remove(index);
        let seq = request.seq();
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

    /// Ends a running request and retains its tokens.
    fn finish(&mut self, index: usize, finish: FinishReason) {
        let request = self.running.remove(index);
        self.count_end(finish);
        let seq = request.seq();
        // The rows of a shifted sequence are not those that its tokens have without a shift.
        let keep = request.cache_prompt && self.runner.take_shifts(seq).is_empty();
        // A prefix that cannot be retained is computed again. The client that hears of the end may ask for it at once.
        if keep {
            let branch = request.branch.as_ref();
            let (runner, model) = (&mut self.runner, &self.model);
            _ = self.store.retain(runner, model, seq, branch);
        }
        _ = self.runner.remove(seq);
        request.finish(finish);
    }

    fn fail(&mut self, index: usize, error: RuntimeError) {
        let request = self.running.remove(index);
        Counters::add(&self.shared.counters.failed, 1);
        _ = self.runner.remove(request.seq());
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
