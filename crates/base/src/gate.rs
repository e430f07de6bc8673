//! How the caller of a thread pool and its workers agree on who takes part in a job: the pool's protocol, without its threads.
//!
//! One job at a time. A worker takes part only if it joins while the job is open, so a worker that the system has put
//! aside is not waited for. `RUSTFLAGS="--cfg loom" cargo test --release -p kvark-base --test loom` checks every
//! interleaving of a caller and a worker.

use std::ops::Range;

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Padded to cache lines of its own, because threads write it while others read what is beside it.
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
    /// Per chunk of the job, the tasks that nobody has taken.
    chunks: Box<[CachePadded<Tasks>]>,
    sleeping: AtomicUsize,
    quit: AtomicBool,
}

impl Gate {
    /// A gate for jobs of up to so many chunks; no job is open.
    pub fn new(chunks: usize) -> Gate {
        Gate {
            state: CachePadded(AtomicU64::new(0)),
            chunks: (0..chunks).map(|_| CachePadded(Tasks::new())).collect(),
            sleeping: AtomicUsize::new(0),
            quit: AtomicBool::new(false),
        }
    }

    /// Opens a job of tasks in equal chunks and tells whether a worker may be asleep. What the caller has written before
    /// is seen by all who join. No job may be open and the last one must have been [`close`](Gate::close)d and
    /// [`is_left`](Gate::is_left).
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

    /// Closes the job: nobody joins any more.
    #[inline]
    pub fn close(&self) {
        self.state.0.fetch_and(!OPEN, Ordering::AcqRel);
    }

    /// Whether all participants of a closed job have left. What they have written is seen then.
    #[inline]
    pub fn is_left(&self) -> bool {
        self.state.0.load(Ordering::Acquire) & PARTICIPANTS == 0
    }

    /// Joins the open job if it is not the one seen last; the new epoch when joined.
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

    /// Leaves the job that was joined.
    #[inline]
    pub fn leave(&self) {
        self.state.0.fetch_sub(1, Ordering::AcqRel);
    }

    /// Takes a task of a chunk: the first one left, or the last one.
    #[inline]
    pub fn take(&self, chunk: usize, first: bool) -> Option<usize> {
        self.chunks[chunk].0.take(first)
    }

    /// Calls `park` unless a job that was not seen is open or the pool ends. Whoever opens a job later unparks.
    pub fn sleep(&self, seen: u64, park: impl FnOnce()) {
        self.sleeping.fetch_add(1, Ordering::SeqCst);
        // A job opened before the line above is seen here; one opened after it finds a sleeper.
        let state = self.state.0.load(Ordering::SeqCst);
        let missed = state & OPEN != 0 && state >> 32 != seen;
        if !missed && !self.quit.load(Ordering::SeqCst) {
            park();
        }
        self.sleeping.fetch_sub(1, Ordering::SeqCst);
    }

    /// Tells the workers to end; all of them must be unparked afterwards.
    pub fn quit(&self) {
        self.quit.store(true, Ordering::SeqCst);
    }

    /// Whether the workers are to end.
    #[inline]
    pub fn has_quit(&self) -> bool {
        self.quit.load(Ordering::Acquire)
    }
}

/// The first task of a chunk, of some tasks in equal chunks; that behind the last chunk is their number.
#[inline]
pub const fn chunk_start(tasks: usize, chunks: usize, chunk: usize) -> usize {
    tasks * chunk / chunks
}

/// Tasks of a chunk that nobody has taken: `end << 32 | start`.
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

    /// The first of them, or the last.
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
