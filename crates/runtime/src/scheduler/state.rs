//! What an engine reports about itself: counters, sequences and cells.

use super::prefix_store::PrefixStore;
use crate::{BatchRunner, MemoryUsage, RuntimeError};
use kv::{CellRun, SeqId};
use std::sync::atomic::{AtomicU64, Ordering};

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
}

impl Counters {
    pub(super) fn add(counter: &AtomicU64, n: usize) {
        counter.fetch_add(n as u64, Ordering::Relaxed);
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
    pub evictions: u64,
    /// The number of prefix files on disk, and their bytes.
    pub disk: (usize, u64),
    /// The rungs of host memory: name, prefixes, bytes.
    pub host: Vec<(String, usize, u64)>,
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
        Ok(EngineState {
            capacity: runner.capacity()?,
            used: runner.cells_used()?,
            ref_counts: runner.ref_counts()?,
            sequences,
            waiting,
            memory: runner.memory()?,
            evictions: store.evictions(),
            disk: store.disk_usage(),
            host: store.host_usage(),
        })
    }
}
