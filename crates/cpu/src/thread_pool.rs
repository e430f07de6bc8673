//! A persistent thread pool for very short parallel sections: workers spin briefly, then park.
//!
//! One job runs at a time. [`Gate`] is the protocol between the caller and the workers, which `base` model-checks. A
//! worker takes part only if it joins while the job is open, so a worker that the OS has descheduled delays nobody: the
//! other threads run its tasks.

use crate::prefetch::{PrefetchPlan, SpanList};
use base::gate::{CachePadded, Gate};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::{JoinHandle, Thread};

/// How often an idle worker polls for work before it parks: about a millisecond, longer than the gap between two steps
/// of a decoding loop.
const SPINS_BEFORE_PARK: u32 = 20_000;

/// The threads that kernels run on: the caller and `count - 1` workers.
pub(crate) struct ThreadPool {
    shared: Arc<PoolState>,
    /// The number of threads that was asked for.
    wanted: usize,
    workers: Vec<(JoinHandle<()>, Thread)>,
    /// Held while a job runs, so that two callers take turns.
    job_lock: Mutex<()>,
}

struct PoolState {
    gate: Gate,
    /// The open job; written only while no job is open and no worker participates.
    job: CachePadded<std::cell::UnsafeCell<Job>>,
    /// What each thread prefetches.
    prefetch_plans: Box<[PrefetchPlan]>,
    panicked: AtomicBool,
}

// SAFETY: `job` is written by the caller alone, before it opens the gate (release) and after all participants of the
// last job have left (acquire); workers read it only between joining and leaving.
unsafe impl Sync for PoolState {}
// SAFETY: the job's pointers are used only while `run` keeps what they point to alive.
unsafe impl Send for PoolState {}

#[derive(Clone, Copy)]
struct Job {
    /// The lifetime is erased: `ThreadPool::run` returns only when no participant is left.
    task: *const (dyn Fn(usize, usize) + Sync),
    /// The number of equal chunks that the tasks are partitioned into: one, or one per thread.
    chunks: usize,
}

fn no_task(_: usize, _: usize) {}

impl ThreadPool {
    /// The pool of `count` threads that all executables of the process share. With a pool each, the idle workers of a model
    /// would spin while its draft runs.
    pub(crate) fn shared(count: usize) -> Arc<ThreadPool> {
        static POOLS: Mutex<Vec<Weak<ThreadPool>>> = Mutex::new(Vec::new());
        let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
        pools.retain(|pool| pool.strong_count() > 0);
        let alive = pools.iter().filter_map(Weak::upgrade);
        if let Some(pool) = alive.into_iter().find(|pool| pool.wanted == count) {
            return pool;
        }
        let pool = Arc::new(ThreadPool::new(count));
        pools.push(Arc::downgrade(&pool));
        pool
    }

    /// A pool of `count` threads, the caller included.
    pub(crate) fn new(count: usize) -> ThreadPool {
        let shared = Arc::new(PoolState {
            gate: Gate::new(count.max(1)),
            job: CachePadded(std::cell::UnsafeCell::new(Job {
                task: &no_task,
                chunks: 1,
            })),
            prefetch_plans: (0..count.max(1)).map(|_| PrefetchPlan::default()).collect(),
            panicked: AtomicBool::new(false),
        });
        let spawn = |worker: usize| {
            let shared = shared.clone();
            let body = move || worker_loop(&shared, worker);
            let handle = std::thread::Builder::new()
                .name(format!("kvark-{worker}"))
                .spawn(body)
                .ok()?;
            let thread = handle.thread().clone();
            Some((handle, thread))
        };
        // If the OS refuses to start more threads, the pool runs with fewer.
        let workers = (1..count.max(1)).map_while(spawn).collect();
        ThreadPool {
            shared,
            wanted: count,
            workers,
            job_lock: Mutex::new(()),
        }
    }

    /// Number of threads, the caller included.
    pub(crate) fn count(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `task(i, thread)` for every `i < tasks`, with `thread < count()`, and returns when all calls have
    /// returned. Tasks are started in order.
    pub(crate) fn run(&self, tasks: usize, task: &(dyn Fn(usize, usize) + Sync)) {
        self.start(tasks, 1, task);
    }

    /// As [`run`](ThreadPool::run), but with a contiguous chunk of tasks per thread. A thread gets the same chunk each
    /// time, so that its data stays in that core's cache; a thread that is done steals from the end of other chunks.
    pub(crate) fn run_chunked(&self, tasks: usize, task: &(dyn Fn(usize, usize) + Sync)) {
        self.start(tasks, self.count(), task);
    }

    /// Sets what every thread reads in the next job, by the chunk it starts with in
    /// [`run_chunked`](ThreadPool::run_chunked), so that it is prefetched during the current job.
    pub(crate) fn set_next_spans(&self, spans: &[SpanList]) {
        for (prefetch_plan, spans) in self.shared.prefetch_plans.iter().zip(spans) {
            prefetch_plan.set_next(spans);
        }
    }

    /// What a thread prefetches.
    pub(crate) fn prefetch_plan(&self, thread: usize) -> &PrefetchPlan {
        &self.shared.prefetch_plans[thread]
    }

    fn start(&self, tasks: usize, chunks: usize, task: &(dyn Fn(usize, usize) + Sync)) {
        if tasks <= 1 || self.workers.is_empty() {
            (0..tasks).for_each(|i| task(i, 0));
            return;
        }
        let _job = self.job_lock.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes; this function does not return while a participant may use the reference.
        let task: *const (dyn Fn(usize, usize) + Sync) =
            unsafe { std::mem::transmute(std::ptr::from_ref(task)) };
        // SAFETY: no job is open and the last one has no participants, so nobody else touches `job`.
        unsafe { *shared.job.0.get() = Job { task, chunks } };
        if shared.gate.open(tasks, chunks) {
            self.workers.iter().for_each(|(_, thread)| thread.unpark());
        }
        let own = catch_unwind(AssertUnwindSafe(|| shared.take_tasks(0)));
        shared.gate.close();
        while !shared.gate.is_left() {
            if !shared.prefetch_plans[0].prefetch_while_waiting() {
                std::hint::spin_loop();
            }
        }
        // Written only when it changes, because workers poll the same cache line.
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

impl PoolState {
    fn take_tasks(&self, thread: usize) {
        // SAFETY: the caller takes part in the open job, so `job` is not written until it leaves.
        let job = unsafe { *self.job.0.get() };
        // SAFETY: `ThreadPool::run` keeps the task alive until all participants have left.
        let task = unsafe { &*job.task };
        for step in 0..job.chunks {
            // A thread runs its own chunk from the front, where it has prefetched, and steals from the back of other
            // chunks, where the owner has not.
            let chunk = (thread + step) % job.chunks;
            while let Some(i) = self.gate.take(chunk, step == 0) {
                task(i, thread);
            }
        }
    }
}

fn worker_loop(shared: &PoolState, thread: usize) {
    let mut seen = 0;
    let mut idle = 0;
    while !shared.gate.has_quit() {
        if let Some(epoch) = shared.gate.join(seen) {
            seen = epoch;
            idle = 0;
            if catch_unwind(AssertUnwindSafe(|| shared.take_tasks(thread))).is_err() {
                shared.panicked.store(true, Ordering::Relaxed);
            }
            shared.gate.leave();
        } else if idle < SPINS_BEFORE_PARK {
            if !shared.prefetch_plans[thread].prefetch_while_waiting() {
                idle += 1;
                std::hint::spin_loop();
            }
        } else {
            shared.gate.sleep(seen, std::thread::park);
            idle = 0;
        }
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.gate.quit();
        for (handle, thread) in self.workers.drain(..) {
            thread.unpark();
            let _ = handle.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn every_task_runs_once_and_before_the_return() {
        for count in [1, 2, 3, 8] {
            let threads = ThreadPool::new(count);
            assert_eq!(threads.count(), count);
            for round in 0..2000 {
                let tasks = round % 17;
                let hits: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                let task = |i: usize, thread: usize| {
                    assert!(thread < count);
                    hits[i].fetch_add(1, Ordering::Relaxed);
                };
                threads.run(tasks, &task);
                threads.run_chunked(tasks, &task);
                assert!(hits.iter().all(|h| h.load(Ordering::Relaxed) == 2));
                if round % 500 == 0 {
                    std::thread::sleep(std::time::Duration::from_millis(3));
                }
            }
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let threads = ThreadPool::new(3);
        let run = || threads.run(64, &|i, _| assert!(i != 20, "task 20"));
        assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
        let done = AtomicUsize::new(0);
        threads.run(10, &|_, _| {
            done.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(done.into_inner(), 10);
    }
}
