//! `Engine`: the thread that owns a model's runner, and the handles that other threads submit requests through.

use super::request::{Generation, Request, RequestEvent, RequestHandle};
use super::state::{Counters, EngineState};
use super::{Scheduler, SchedulerOptions};
use crate::decoder::check_token_ids;
use crate::{
    MigrationOptions, MigrationReport, Model, RunnerOptions, RuntimeError, RuntimeErrorKind,
};
use backend::Backend;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Receives the events of a request on the engine's thread. It must not block; it returns false if nobody reads them,
/// which cancels the request.
pub type EventSink = Box<dyn FnMut(RequestEvent) -> bool + Send>;

/// What handles tell the scheduler.
pub(super) enum Command {
    Submit(Box<Submission>),
    /// Asks for the state.
    Inspect(Sender<EngineState>),
    /// Asks for the rung from which each of these texts would come.
    Rungs(Vec<Arc<Vec<u32>>>, Sender<Vec<(String, usize)>>),
    /// Asks whether rows of the model's sequences can be moved.
    CheckSplice(Sender<Result<(), RuntimeError>>),
    /// Asks for the tokens of a sequence of the state.
    Tokens(kv::SeqId, Sender<Vec<u32>>),
    /// Removes all retained prefixes.
    ClearPrefixes,
    /// Moves the pool with all that it holds to another one on this backend.
    Migrate(
        Arc<dyn Backend>,
        MigrationOptions,
        Sender<Result<MigrationReport, RuntimeError>>,
    ),
    /// Ends running requests at this time; accepts no new ones.
    Stop(Instant),
}

/// A request on its way to the scheduler.
pub(super) struct Submission {
    pub(super) id: u64,
    pub(super) request: Request,
    pub(super) sink: EventSink,
    pub(super) cancelled: Arc<AtomicBool>,
    pub(super) submitted: Instant,
}

/// State that handles read without asking the engine's thread.
pub(super) struct Shared {
    pub(super) counters: Arc<Counters>,
    /// Requests that were submitted and have no sequence yet.
    pub(super) waiting: AtomicUsize,
    stopping: AtomicBool,
    next_id: AtomicU64,
    vocab: usize,
    /// The maximum number of tokens of a sequence.
    context: usize,
    /// Whether requests are streams, whose prompts may be longer than the context.
    streams: bool,
    queue: usize,
    slots: usize,
    planned_bytes: AtomicUsize,
}

impl Shared {
    /// The maximum number of tokens of a sequence.
    pub(super) fn context(&self) -> usize {
        self.context
    }

    pub(super) fn streams(&self) -> bool {
        self.streams
    }

    pub(super) fn set_planned_bytes(&self, bytes: usize) {
        self.planned_bytes.store(bytes, Ordering::Relaxed);
    }
}

/// A model that generates for many requests at once, on a thread of its own.
///
/// Every step carries the next token of all running requests and a part of the prompts of new ones. What a request
/// gets does not depend on the other requests.
pub struct Engine {
    handle: EngineHandle,
    thread: Option<JoinHandle<()>>,
}

/// Submits requests to an [`Engine`].
#[derive(Clone)]
pub struct EngineHandle {
    commands: Sender<Command>,
    shared: Arc<Shared>,
}

impl Engine {
    /// Loads `model` on `backend` and starts the thread. `runner.pool_cells` is the number of tokens that all requests
    /// and retained prefixes share; `runner.context` limits one request.
    pub fn start(
        model: Arc<Model>,
        backend: &dyn Backend,
        runner: &RunnerOptions,
        options: &SchedulerOptions,
    ) -> Result<Engine, RuntimeError> {
        let (commands, receiver) = channel();
        let stream = runner.kv_policy.stream.map(|rule| rule.window as usize);
        let context = runner.context_of(model.facts());
        let context = context.min(stream.unwrap_or(context));
        let shared = Arc::new(Shared {
            counters: options.counters.clone(),
            waiting: AtomicUsize::new(0),
            stopping: AtomicBool::new(false),
            next_id: AtomicU64::new(1),
            vocab: model.facts().vocab_size,
            context: context.min(runner.pool_cells.unwrap_or(context)),
            streams: stream.is_some(),
            queue: options.queue,
            slots: options.slots,
            planned_bytes: AtomicUsize::new(0),
        });
        let scheduler = Scheduler::new(model, backend, runner, options, shared.clone(), receiver)?;
        let planned = scheduler.runner.planned_bytes();
        shared.set_planned_bytes(planned);
        let thread = std::thread::Builder::new().name("kvark-engine".to_owned());
        let thread = thread.spawn(move || scheduler.run());
        let thread = thread.map_err(|error| {
            RuntimeErrorKind::InvalidOptions(format!("the engine's thread did not start: {error}"))
        })?;
        Ok(Engine {
            handle: EngineHandle { commands, shared },
            thread: Some(thread),
        })
    }

    /// A handle for other threads.
    pub fn handle(&self) -> &EngineHandle {
        &self.handle
    }

    /// Accepts no more requests, lets the running ones finish for up to `grace`, ends the others, and joins the thread.
    pub fn stop(mut self, grace: Duration) {
        self.handle.stop_at(Instant::now() + grace);
        self.join();
    }

    fn join(&mut self) {
        if let Some(thread) = self.thread.take()
            && let Err(panic) = thread.join()
        {
            std::panic::resume_unwind(panic);
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if self.thread.is_some() && !std::thread::panicking() {
            self.handle.stop_at(Instant::now());
            self.join();
        }
    }
}

impl EngineHandle {
    /// Submits a request. `sink` receives its events.
    ///
    /// # Errors
    /// `EmptyPrompt`, `UnknownToken` or `PromptTooLong` for a prompt that cannot run, `QueueFull` if too many requests
    /// wait, `EngineStopped` if the engine is stopping. Nothing of a refused request reaches a step.
    pub fn submit(&self, request: Request, sink: EventSink) -> Result<RequestHandle, RuntimeError> {
        let shared = &self.shared;
        if request.prompt.is_empty() {
            return Err(RuntimeErrorKind::EmptyPrompt.into());
        }
        check_token_ids(request.prompt.iter().copied(), shared.vocab)?;
        request.sampling.check(shared.vocab)?;
        if !shared.streams && request.prompt.len() >= shared.context {
            return Err(RuntimeErrorKind::PromptTooLong {
                tokens: request.prompt.len(),
                room: shared.context - 1,
                capacity: shared.context,
            }
            .into());
        }
        if let Some(moved) = &request.moved {
            moved.check(&request.prompt)?;
            if shared.streams {
                self.check_splice()?;
            }
        }
        if shared.stopping.load(Ordering::Relaxed) {
            return Err(RuntimeErrorKind::EngineStopped.into());
        }
        let waiting = shared.waiting.fetch_add(1, Ordering::Relaxed);
        if waiting >= shared.queue {
            shared.waiting.fetch_sub(1, Ordering::Relaxed);
            shared.counters.refused.fetch_add(1, Ordering::Relaxed);
            return Err(RuntimeErrorKind::QueueFull {
                limit: shared.queue,
            }
            .into());
        }
        let handle = RequestHandle {
            id: shared.next_id.fetch_add(1, Ordering::Relaxed),
            cancelled: Arc::default(),
        };
        let submission = Submission {
            id: handle.id,
            request,
            sink,
            cancelled: handle.cancelled.clone(),
            submitted: Instant::now(),
        };
        let sent = self.commands.send(Command::Submit(Box::new(submission)));
        sent.map_err(|_| RuntimeErrorKind::EngineStopped)?;
        Ok(handle)
    }

    /// Submits a request and returns its events as an iterator.
    pub fn generate(&self, request: Request) -> Result<Generation, RuntimeError> {
        let (sender, events) = channel();
        let sink = Box::new(move |event| sender.send(event).is_ok());
        let handle = self.submit(request, sink)?;
        Ok(Generation { handle, events })
    }

    /// The sequences and cells now. The engine answers between two steps.
    pub fn state(&self) -> Result<EngineState, RuntimeError> {
        self.ask(Command::Inspect)
    }

    /// The tokens of a sequence or retained prefix; empty if it is gone.
    pub fn tokens(&self, seq: kv::SeqId) -> Result<Vec<u32>, RuntimeError> {
        self.ask(|reply| Command::Tokens(seq, reply))
    }

    /// For each text the rung from which the most of its tokens would come (`memory`, `host` with the type if it is smaller, `disk` or
    /// `none`), and their number.
    pub fn rungs(&self, texts: Vec<Arc<Vec<u32>>>) -> Result<Vec<(String, usize)>, RuntimeError> {
        self.ask(|reply| Command::Rungs(texts, reply))
    }

    /// Checks that the rows of this model's sequences can be moved to other positions.
    ///
    /// # Errors
    /// `Backend` with the reason if they cannot.
    pub fn check_splice(&self) -> Result<(), RuntimeError> {
        self.ask(Command::CheckSplice)?
    }

    /// Accepts no more requests, and ends the running ones at this time if they have not ended before. Does not wait.
    pub fn stop_at(&self, at: Instant) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        // An engine that has stopped needs no command.
        _ = self.commands.send(Command::Stop(at));
    }

    /// Removes all retained prefixes from memory. Files on disk stay.
    pub fn clear_prefixes(&self) -> Result<(), RuntimeError> {
        let sent = self.commands.send(Command::ClearPrefixes);
        Ok(sent.map_err(|_| RuntimeErrorKind::EngineStopped)?)
    }

    /// Stores the keys and values of the pool otherwise, or on another backend, between two steps; see [`BatchRunner::migrate`].
    /// Running requests go on in the new pool, and retained prefixes and holds stay. A pool stays a pool.
    ///
    /// # Errors
    /// Those of `BatchRunner::migrate`, and `InvalidOptions` for another kind of cache.
    ///
    /// [`BatchRunner::migrate`]: crate::BatchRunner::migrate
    pub fn migrate(
        &self,
        backend: Arc<dyn Backend>,
        to: MigrationOptions,
    ) -> Result<MigrationReport, RuntimeError> {
        if to.kind.is_some() {
            let reason = "an engine's cache is a pool of cells, and stays one".to_owned();
            return Err(RuntimeErrorKind::InvalidOptions(reason).into());
        }
        self.ask(|reply| Command::Migrate(backend, to, reply))?
    }

    /// The counters since the start.
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// Requests that wait for a sequence.
    pub fn waiting(&self) -> usize {
        self.shared.waiting.load(Ordering::Relaxed)
    }

    /// The maximum number of requests that run or wait.
    pub fn max_requests(&self) -> usize {
        self.shared.slots.saturating_add(self.shared.queue)
    }

    /// The bytes of the engine's memory plan.
    pub fn planned_bytes(&self) -> usize {
        self.shared.planned_bytes.load(Ordering::Relaxed)
    }

    /// The maximum number of tokens of one request, prompt and answer together.
    pub fn context(&self) -> usize {
        self.shared.context
    }

    fn ask<T>(&self, command: impl FnOnce(Sender<T>) -> Command) -> Result<T, RuntimeError> {
        let (reply, answer) = channel();
        let sent = self.commands.send(command(reply));
        sent.map_err(|_| RuntimeErrorKind::EngineStopped)?;
        Ok(answer.recv().map_err(|_| RuntimeErrorKind::EngineStopped)?)
    }
}
