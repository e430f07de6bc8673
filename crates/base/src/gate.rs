//! `Gate`: the protocol by which the workers of a thread pool join and leave a job, without the threads themselves.
//!
//! One job runs at a time. A worker takes part only if it joins while the job is open, so the caller never waits for a
//! descheduled worker. `RUSTFLAGS="--cfg loom" cargo test --release -p kvark-base --test loom` checks the
//! interleavings of a caller and a worker with up to three preemptions.

use std::ops::Range;

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Aligned to its own cache lines, because some threads write it while others read neighbouring fields.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct CachePadded<T>(pub T);

/// `state` is `epoch << 32 | OPEN | participants`.
const OPEN: u64 = 1 << 31;
const PARTICIPANTS: u64 = OPEN - 1;

/// Opens and closes jobs, and lets workers join and leave them.
#[derive(Debug)]
pub struct Gate {
    state: CachePadded<AtomicU64>,
    /// The tasks of each chunk that are not taken yet.
    chunks: Box<[CachePadded<Tasks>]>,
    sleeping: AtomicUsize,
    quit: AtomicBool,
}

impl Gate {
    /// A gate without an open job, for jobs of up to `chunks` chunks.
    pub fn new(chunks: usize) -> Gate {
        Gate {
            state: CachePadded(AtomicU64::new(0)),
            chunks: (0..chunks).map(|_| CachePadded(Tasks::new())).collect(),
            sleeping: AtomicUsize::new(0),
            quit: AtomicBool::new(false),
        }
    }

    /// Opens a job of tasks in equal chunks. Returns whether a worker may be asleep. Workers that join see everything
    /// that the caller has written before. The previous job must be closed ([`close`](Gate::close)) and left
    /// ([`is_left`](Gate::is_left)).
    #[inline]
    pub fn open(&self, tasks: usize, chunks: usize) -> bool {
        for chunk in 0..chunks {
            let start = |chunk| chunk_start(tasks, chunks, chunk);
            self.chunks[chunk].0.set(start(chunk)..start(chunk + 1));
        }
        let state = &self.state.0;
        let epoch = (state.load(Ordering::Relaxed) >> 32) + 1;
        state.store(epoch << 32 | OPEN, Ordering::SeqCst);
        self.sleeping.load(Ordering::SeqCst) > 0
    }

    /// Closes the job: no worker can join any more.
    #[inline]
    pub fn close(&self) {
        self.state.0.fetch_and(!OPEN, Ordering::AcqRel);
    }

    /// Whether all participants of a closed job have left. If so, the caller sees everything that they have written.
    #[inline]
    pub fn is_left(&self) -> bool {
        self.state.0.load(Ordering::Acquire) & PARTICIPANTS == 0
    }

    /// Joins the open job if its epoch is not `seen`. Returns the epoch of the joined job.
    #[inline]
    pub fn join(&self, seen: u64) -> Option<u64> {
        let state = self.state.0.load(Ordering::SeqCst);
        if state & OPEN == 0 || state >> 32 == seen {
            return None;
        }
        let joined =
            self.state
                .0
                .compare_exchange(state, state + 1, Ordering::AcqRel, Ordering::Relaxed);
        joined.is_ok().then_some(state >> 32)
    }

    /// Leaves the joined job.
    #[inline]
    pub fn leave(&self) {
        self.state.0.fetch_sub(1, Ordering::AcqRel);
    }

    /// Takes the first or the last remaining task of a chunk.
    #[inline]
    pub fn take(&self, chunk: usize, first: bool) -> Option<usize> {
        self.chunks[chunk].0.take(first)
    }

    /// Calls `park` unless a job with another epoch than `seen` is open or the pool ends. The caller that opens the
    /// next job must unpark.
    pub fn sleep(&self, seen: u64, park: impl FnOnce()) {
        self.sleeping.fetch_add(1, Ordering::SeqCst);
        // A job opened before the line above is seen here; a caller that opens one after it sees the sleeper.
        let state = self.state.0.load(Ordering::SeqCst);
        let missed = state & OPEN != 0 && state >> 32 != seen;
        if !missed && !self.quit.load(Ordering::SeqCst) {
            park();
        }
        self.sleeping.fetch_sub(1, Ordering::SeqCst);
    }

    /// Asks the workers to end. The caller must unpark all of them afterwards.
    pub fn quit(&self) {
        self.quit.store(true, Ordering::SeqCst);
    }

    /// Whether the workers should end.
    #[inline]
    pub fn has_quit(&self) -> bool {
        self.quit.load(Ordering::Acquire)
    }
}

/// The first task of a chunk when `tasks` are divided into equal chunks. For the chunk after the last one, this is the
/// number of tasks.
#[inline]
pub const fn chunk_start(tasks: usize, chunks: usize, chunk: usize) -> usize {
    tasks * chunk / chunks
}

/// The remaining tasks of a chunk, as `end << 32 | start`.
#[derive(Debug)]
struct Tasks(AtomicU64);

impl Tasks {
    fn new() -> Tasks {
        Tasks(AtomicU64::new(0))
    }

    #[inline]
    fn set(&self, tasks: Range<usize>) {
        let packed = (tasks.end as u64) << 32 | tasks.start as u64;
        self.0.store(packed, Ordering::Relaxed);
    }

    /// Takes the first or the last remaining task.
    #[inline]
    fn take(&self, first: bool) -> Option<usize> {
        let bounds = |tasks: u64| (tasks as u32 as usize, (tasks >> 32) as usize);
        let less = |tasks| {
            let (start, end) = bounds(tasks);
            let less = || if first { tasks + 1 } else { tasks - (1 << 32) };
            (start < end).then(less)
        };
        let taken = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        let (start, end) = bounds(taken.ok()?);
        Some(if first { start } else { end - 1 })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_is_taken_from_both_ends_until_nothing_is_left() {
        for turns in 0..16 {
            let chunk = Tasks::new();
            chunk.set(0..3);
            let mut taken: Vec<usize> = (0..4)
                .filter_map(|i| chunk.take(turns >> i & 1 == 1))
                .collect();
            assert_eq!((chunk.take(true), chunk.take(false)), (None, None));
            taken.sort();
            assert_eq!(taken, [0, 1, 2]);
        }
    }

    #[test]
    fn a_job_is_joined_once_and_only_while_it_is_open() {
        let gate = Gate::new(2);
        assert_eq!(gate.join(0), None);
        assert!(!gate.open(5, 2), "nobody sleeps");
        assert_eq!(gate.join(0), Some(1));
        assert_eq!(gate.join(1), None, "it was seen");
        assert!(!gate.is_left());
        gate.close();
        assert_eq!(gate.join(0), None);
        gate.leave();
        assert!(gate.is_left());
        let chunks: Vec<usize> = (0..3).map(|chunk| chunk_start(5, 2, chunk)).collect();
        assert_eq!(chunks, [0, 2, 5]);
        assert_eq!(
            (gate.take(0, true), gate.take(1, false)),
            (Some(0), Some(4))
        );
    }
}
