//! What an engine reports about itself: counters, sequences and cells.

use super::evictions::EvictionLog;
use super::histogram::{Histogram, Sizes, Times};
use super::prefix_store::PrefixStore;
use super::request::{CacheReport, CacheSource, MissReason};
use crate::{BatchRunner, MemoryUsage, RuntimeError};
use kv::{CellRun, SeqId};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Counts since the start of an engine.
#[derive(Debug, Default)]
pub struct Counters {
    /// Requests that got a sequence.
    pub started: AtomicU64,
    /// Requests that ended with an answer, a stop or a limit.
    pub finished: AtomicU64,
    /// Requests that were cancelled or whose client has gone.
    pub cancelled: AtomicU64,
    /// Requests that failed.
    pub failed: AtomicU64,
    /// Requests that were refused because the queue was full.
    pub refused: AtomicU64,
    /// Prompt tokens of all requests.
    pub prompt_tokens: AtomicU64,
    /// Prompt tokens that were reused.
    pub cached_tokens: AtomicU64,
    /// Requests by [`CacheSource`]: where their reused tokens came from.
    pub requests_from: [AtomicU64; CacheSource::ALL.len()],
    /// Reused tokens by [`CacheSource`].
    pub cached_tokens_from: [AtomicU64; CacheSource::ALL.len()],
    /// Prompt tokens that were computed, by the [`MissReason`] of their request.
    pub computed_tokens_for: [AtomicU64; MissReason::ALL.len()],
    /// Microseconds of the longest time between two tokens of one answer.
    pub longest_gap_micros: AtomicU64,
    /// Generated tokens.
    pub generated_tokens: AtomicU64,
    /// Forwards.
    pub steps: AtomicU64,
    /// Forwards of the draft, each for all requests that speculate with it.
    pub draft_forwards: AtomicU64,
    /// Tokens of all forwards.
    pub step_tokens: AtomicU64,
    /// Microseconds in forwards.
    pub step_micros: AtomicU64,
    /// Running requests that gave up their cells to others.
    pub preempted: AtomicU64,
    /// Those of them whose rows were copied out and come back. The others are computed again.
    pub swapped: AtomicU64,
    /// Steps that no recording from before them served.
    pub missed_recordings: AtomicU64,
    /// Times that requests waited for a sequence.
    pub queue_times: Histogram<Times>,
    /// Times from a request's submission to its first token.
    pub first_token_times: Histogram<Times>,
    /// Times between two tokens of one answer.
    pub gap_times: Histogram<Times>,
    /// Tokens of each forward.
    pub step_sizes: Histogram<Sizes>,
}

impl Counters {
    pub(super) fn add(counter: &AtomicU64, n: usize) {
        counter.fetch_add(n as u64, Ordering::Relaxed);
    }

    /// Counts what a request that begins has reused, and why not more.
    pub(super) fn add_report(&self, report: &CacheReport) {
        let source = report.source as usize;
        Counters::add(&self.started, 1);
        Counters::add(&self.prompt_tokens, report.prompt_tokens);
        Counters::add(&self.cached_tokens, report.cached_tokens);
        Counters::add(&self.requests_from[source], 1);
        Counters::add(&self.cached_tokens_from[source], report.cached_tokens);
        if let Some(miss) = &report.miss {
            let computed = report.prompt_tokens - report.cached_tokens;
            Counters::add(&self.computed_tokens_for[miss.reason as usize], computed);
        }
    }

    /// Counts the time between two tokens of an answer.
    pub(super) fn add_gap(&self, gap: Duration) {
        let micros = u64::try_from(gap.as_micros()).unwrap_or(u64::MAX);
        self.longest_gap_micros.fetch_max(micros, Ordering::Relaxed);
        self.gap_times.add_time(gap);
    }
}

/// The sequences and cells of an engine at one moment.
#[derive(Clone, Debug)]
pub struct EngineState {
    /// Cells of the pool.
    pub capacity: usize,
    /// Cells in use.
    pub used: usize,
    /// For each cell up to the last one in use, the number of sequences and prefixes that hold it.
    pub ref_counts: Vec<u16>,
    /// Running requests and retained prefixes.
    pub sequences: Vec<SequenceInfo>,
    /// Requests that wait for a sequence.
    pub waiting: usize,
    /// Memory in use.
    pub memory: MemoryUsage,
    /// Prefixes that were removed to make room.
    pub evictions: EvictionLog,
    /// Where keys and values are, memory first.
    pub rungs: Vec<Rung>,
    /// The number of prefix files on disk, and their bytes.
    pub disk: (usize, u64),
}

/// A place that keys and values are kept in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rung {
    /// Its name.
    pub name: String,
    /// The prefixes there.
    pub prefixes: usize,
    /// Their tokens; in memory the cells in use, running requests included.
    pub tokens: usize,
    /// Bytes of these tokens.
    pub bytes: u64,
    /// Bytes that it may have.
    pub limit: u64,
}

/// A sequence of an engine.
#[derive(Clone, Debug)]
pub struct SequenceInfo {
    /// Its number in the pool.
    pub seq: SeqId,
    /// The request that extends it; `None` for a retained prefix.
    pub request: Option<u64>,
    /// Its tokens in the cache.
    pub tokens: usize,
    /// Prompt tokens that are not computed yet.
    pub pending: usize,
    /// Tokens that were generated.
    pub generated: usize,
    /// Its cells.
    pub runs: Vec<CellRun>,
}

impl EngineState {
    /// The state of a runner with its retained prefixes; `running` has no runs yet.
    pub(super) fn new(
        runner: &BatchRunner,
        store: &PrefixStore,
        running: Vec<SequenceInfo>,
        waiting: usize,
    ) -> Result<EngineState, RuntimeError> {
        let retained = store.entries().map(|(seq, tokens)| SequenceInfo {
            seq,
            request: None,
            tokens: tokens.len(),
            pending: 0,
            generated: 0,
            runs: vec![],
        });
        let mut sequences: Vec<_> = running.into_iter().chain(retained).collect();
        sequences.sort_by_key(|info| info.seq);
        for info in &mut sequences {
            info.runs = runner.runs(info.seq)?;
        }
        let (capacity, used, memory) = (runner.capacity()?, runner.cells_used()?, runner.memory()?);
        let in_memory = Rung {
            name: CacheSource::Memory.name().to_owned(),
            prefixes: store.entries().count(),
            tokens: used,
            bytes: (memory.kv as u128 * used as u128 / capacity.max(1) as u128) as u64,
            limit: memory.kv as u64,
        };
        let mut rungs = vec![in_memory];
        rungs.extend(store.rungs());
        Ok(EngineState {
            capacity,
            used,
            ref_counts: runner.ref_counts()?,
            sequences,
            waiting,
            memory,
            evictions: store.evictions().clone(),
            rungs,
            disk: store.disk_usage(),
        })
    }
}
