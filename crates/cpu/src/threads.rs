//! A persistent pool for very short parallel sections: workers spin a little, then sleep.
//!
//! One job at a time. A worker takes part only if it joins while the job is open, so a worker that the system has put
//! aside is not waited for when the others have done its share.

use crate::ahead::{Course, Stretches};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, Thread};

/// How often an idle worker looks for work before it sleeps; about a millisecond, which is longer than what a loop of steps
/// does between two of them.
const SPINS: u32 = 20_000;

/// The threads that kernels run on: the caller and `count - 1` workers.
pub(crate) struct Threads {
    shared: Arc<Shared>,
    workers: Vec<(JoinHandle<()>, Thread)>,
    /// Held while a job runs, so that two callers take turns.
    turn: Mutex<()>,
}

/// Something that threads change while others look at what is beside it: each has cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct Apart<T>(T);

/// `state` is `epoch << 32 | OPEN | participants`.
const OPEN: u64 = 1 << 31;
const PARTICIPANTS: u64 = OPEN - 1;

struct Shared {
    state: Apart<AtomicU64>,
    /// The open job; written only while no job is open and no worker takes part.
    job: Apart<std::cell::UnsafeCell<Job>>,
    /// Per share of the job, the tasks that nobody has taken.
    left: Box<[Apart<Tasks>]>,
    /// Per thread, what it brings near.
    courses: Box<[Course]>,
    sleeping: AtomicUsize,
    panicked: AtomicBool,
    quit: AtomicBool,
}

// SAFETY: `job` is written by the caller alone, before it opens the epoch (release) and after all participants of the
// last one have left (acquire); workers read it only between joining and leaving.
unsafe impl Sync for Shared {}
// SAFETY: the job's pointers are used only while `run` keeps what they point to alive.
unsafe impl Send for Shared {}

#[derive(Clone, Copy)]
struct Job {
    /// The lifetime is erased: `Threads::run` returns only when no participant is left.
    task: *const (dyn Fn(usize, usize) + Sync),
    /// Into how many equal runs of tasks the job is cut: one, or one a thread.
    shares: usize,
}

/// The first of some tasks in the share of a thread; that behind the last thread is their number.
pub(crate) fn share_start(tasks: usize, threads: usize, thread: usize) -> usize {
    tasks * thread / threads
}

fn no_task(_: usize, _: usize) {}

/// Tasks of a share that nobody has taken: `end << 32 | start`.
#[derive(Default)]
struct Tasks(AtomicU64);

impl Tasks {
    fn set(&self, tasks: Range<usize>) {
        let packed = (tasks.end as u64) << 32 | tasks.start as u64;
        self.0.store(packed, Ordering::Relaxed);
    }

    /// The first of them; or the last, to which those whose share it is come at the end.
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

impl Threads {
    /// A pool of `count` threads, the caller included.
    pub(crate) fn new(count: usize) -> Threads {
        let shared = Arc::new(Shared {
            state: Apart::default(),
            job: Apart(std::cell::UnsafeCell::new(Job {
                task: &no_task,
                shares: 1,
            })),
            left: (0..count.max(1)).map(|_| Apart::default()).collect(),
            courses: (0..count.max(1)).map(|_| Course::default()).collect(),
            sleeping: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            quit: AtomicBool::new(false),
        });
        let spawn = |worker: usize| {
            let shared = shared.clone();
            let body = move || work(&shared, worker);
            let handle = std::thread::Builder::new()
                .name(format!("kvark-{worker}"))
                .spawn(body)
                .ok()?;
            let thread = handle.thread().clone();
            Some((handle, thread))
        };
        // A system that refuses more threads still computes, with fewer.
        let workers = (1..count.max(1)).map_while(spawn).collect();
        Threads {
            shared,
            workers,
            turn: Mutex::new(()),
        }
    }

    /// Number of threads, the caller included.
    pub(crate) fn count(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `task(i, thread)` for every `i < tasks`, `thread < count()`, and returns when all are done. Tasks are taken
    /// in their order.
    pub(crate) fn run(&self, tasks: usize, task: &(dyn Fn(usize, usize) + Sync)) {
        self.start(tasks, 1, task);
    }

    /// As [`run`](Threads::run), but every thread begins with the same part of the tasks each time, and helps with the
    /// others' parts, from their ends, when it is done: what a thread read last time is in its own cache this time.
    pub(crate) fn run_near(&self, tasks: usize, task: &(dyn Fn(usize, usize) + Sync)) {
        self.start(tasks, self.count(), task);
    }

    /// Says what every thread will read after this job, so that it goes on to it: the share that
    /// [`run_near`](Threads::run_near) begins with.
    pub(crate) fn read_ahead(&self, stretches: &[Stretches]) {
        for (course, stretches) in self.shared.courses.iter().zip(stretches) {
            course.tell(stretches);
        }
    }

    /// What a thread brings near.
    pub(crate) fn course(&self, thread: usize) -> &Course {
        &self.shared.courses[thread]
    }

    fn start(&self, tasks: usize, shares: usize, task: &(dyn Fn(usize, usize) + Sync)) {
        if tasks <= 1 || self.workers.is_empty() {
            (0..tasks).for_each(|i| task(i, 0));
            return;
        }
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes; this function does not return while a participant may use the reference.
        let task: *const (dyn Fn(usize, usize) + Sync) =
            unsafe { std::mem::transmute(std::ptr::from_ref(task)) };
        for share in 0..shares {
            let start = |share| share_start(tasks, shares, share);
            shared.left[share].0.set(start(share)..start(share + 1));
        }
        // SAFETY: no job is open and the last one has no participants, so nobody else touches `job`.
        unsafe { *shared.job.0.get() = Job { task, shares } };
        let state = &shared.state.0;
        let epoch = (state.load(Ordering::Relaxed) >> 32) + 1;
        state.store(epoch << 32 | OPEN, Ordering::SeqCst);
        if shared.sleeping.load(Ordering::SeqCst) > 0 {
            self.workers.iter().for_each(|(_, thread)| thread.unpark());
        }
        let own = catch_unwind(AssertUnwindSafe(|| shared.take_tasks(0)));
        state.fetch_and(!OPEN, Ordering::AcqRel);
        while state.load(Ordering::Acquire) & PARTICIPANTS != 0 {
            if !shared.courses[0].wait() {
                std::hint::spin_loop();
            }
        }
        // Written only when it changes: the workers look at what is beside it.
        let panicked = shared.panicked.load(Ordering::Relaxed);
        if panicked {
            shared.panicked.store(false, Ordering::Relaxed);
        }
        if let Err(panic) = own {
            resume_unwind(panic);
        }
        assert!(!panicked, "a worker panicked");
    }
}

impl Shared {
    fn take_tasks(&self, thread: usize) {
        // SAFETY: the caller takes part in the open job, so `job` is not written until it leaves.
        let job = unsafe { *self.job.0.get() };
        // SAFETY: `Threads::run` keeps the task alive until all participants have left.
        let task = unsafe { &*job.task };
        for turn in 0..job.shares {
            // Of its own share, a thread takes what it has asked for; of another's, what that one has not.
            let share = &self.left[(thread + turn) % job.shares].0;
            while let Some(i) = share.take(turn == 0) {
                task(i, thread);
            }
        }
    }

    /// Joins the open job if it is not the one seen last; the new epoch when joined.
    fn join(&self, seen: u64) -> Option<u64> {
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
}

fn work(shared: &Shared, thread: usize) {
    let mut seen = 0;
    let mut idle = 0;
    while !shared.quit.load(Ordering::Acquire) {
        if let Some(epoch) = shared.join(seen) {
            seen = epoch;
            idle = 0;
            if catch_unwind(AssertUnwindSafe(|| shared.take_tasks(thread))).is_err() {
                shared.panicked.store(true, Ordering::Relaxed);
            }
            shared.state.0.fetch_sub(1, Ordering::AcqRel);
        } else if idle < SPINS {
            if !shared.courses[thread].wait() {
                idle += 1;
                std::hint::spin_loop();
            }
        } else {
            shared.sleeping.fetch_add(1, Ordering::SeqCst);
            // A job opened before the line above is seen here; one opened after it sees us sleeping and unparks.
            let state = shared.state.0.load(Ordering::SeqCst);
            let missed = state & OPEN != 0 && state >> 32 != seen;
            if !missed && !shared.quit.load(Ordering::SeqCst) {
                std::thread::park();
            }
            shared.sleeping.fetch_sub(1, Ordering::SeqCst);
            idle = 0;
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.quit.store(true, Ordering::SeqCst);
        for (handle, thread) in self.workers.drain(..) {
            thread.unpark();
            let _ = handle.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_taken_from_both_ends_until_nothing_is_left() {
        for turns in 0..16 {
            let share = Tasks::default();
            share.set(0..3);
            let mut taken: Vec<usize> = (0..4)
                .filter_map(|i| share.take(turns >> i & 1 == 1))
                .collect();
            assert_eq!((share.take(true), share.take(false)), (None, None));
            taken.sort();
            assert_eq!(taken, [0, 1, 2]);
        }
    }

    #[test]
    fn every_task_runs_once_and_before_the_return() {
        for count in [1, 2, 3, 8] {
            let threads = Threads::new(count);
            assert_eq!(threads.count(), count);
            for round in 0..2000 {
                let tasks = round % 17;
                let hits: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                let task = |i: usize, thread: usize| {
                    assert!(thread < count);
                    hits[i].fetch_add(1, Ordering::Relaxed);
                };
                threads.run(tasks, &task);
                threads.run_near(tasks, &task);
                assert!(hits.iter().all(|h| h.load(Ordering::Relaxed) == 2));
                if round % 500 == 0 {
                    std::thread::sleep(std::time::Duration::from_millis(3));
                }
            }
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let threads = Threads::new(3);
        let run = || threads.run(64, &|i, _| assert!(i != 20, "task 20"));
        assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
        let done = AtomicUsize::new(0);
        threads.run(10, &|_, _| {
            done.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(done.into_inner(), 10);
    }
}
