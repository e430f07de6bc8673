//! The scheduler: one model, many requests, one forward a step for all of them.
//!
//! A step carries the next token of every request that generates, and a part of the prompts of those that do not yet.
//! Requests share the prefixes of running and finished requests. When the pool of cells is full, retained prefixes are
//! removed first; then the newest request of the lowest priority gives up its cells and is computed again later.

mod admission;
mod branch_cells;
mod disk;
mod engine;
mod evictions;
mod histogram;
mod host;
mod pace;
mod prefix_store;
mod radix;
mod request;
mod running;
mod speeds;
mod state;
mod step;
mod stored;

pub use branch_cells::BranchCells;
pub use engine::{Engine, EngineHandle, EventSink};
pub use evictions::{Eviction, EvictionLog, EvictionReason};
pub use histogram::{Buckets, Histogram, Sizes, Times};
pub use host::HostRungs;
pub use request::{
    CacheMiss, CacheReport, CacheSource, Generation, MissReason, MovedTokens, Request,
    RequestEvent, RequestHandle, RequestOutput,
};
pub use state::{Counters, EngineState, Rung, SequenceInfo};

use crate::decode::MaskWorker;
use crate::generation::FinishReason;
use crate::speculative::{Drafter, VerifyCosts};
use crate::{BatchRunner, Model, RunnerOptions, RuntimeError, RuntimeErrorKind};
use backend::Backend;
use disk::DiskStore;
use engine::{Command, Shared};
use host::HostStore;
use pace::StepPace;
use prefix_store::PrefixStore;
use running::RunningRequest;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

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
    /// Host memory for prefixes that leave the pool, before they go to disk.
    pub host: HostRungs,
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
            host: HostRungs::default(),
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
        let host = HostStore::new(options.host.clone());
        let mut store = PrefixStore::new(prefixes, host, disk, &runner);
        store.add_frozen(&runner);
        Ok(Scheduler {
            masks: MaskWorker::new(model.facts().vocab_size),
            pace: StepPace::new(options.step_time),
            store,
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
            // The one who asked may have gone.
            Command::CheckSplice(reply) => _ = reply.send(self.runner.check_splice()),
            Command::Rungs(texts, reply) => {
                let rungs = texts.iter().map(|text| self.store.rung_of(text));
                // The one who asked may have gone.
                _ = reply.send(rungs.collect());
            }
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
            Command::Migrate(backend, to, reply) => {
                let migrated = self.runner.migrate(&self.model, &*backend, &to);
                if migrated.is_ok() {
                    self.store.after_migration(&self.runner);
                    let planned = self.runner.planned_bytes();
                    self.shared.set_planned_bytes(planned);
                }
                _ = reply.send(migrated);
            }
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
