//! The interleavings of a pool's caller and a worker, model-checked:
//! `RUSTFLAGS="--cfg loom" cargo test --release -p kvark-base --test loom`.
#![cfg(loom)]

use base::gate::Gate;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

/// Forced switches between threads in one explored interleaving. Three take seconds; without a bound the check takes minutes.
const MAX_PREEMPTIONS: usize = 3;

fn model(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(MAX_PREEMPTIONS);
    builder.check(body);
}

/// A pool of one worker, whose job is a number that the caller writes while no one takes part.
struct Pool {
    gate: Gate,
    job: UnsafeCell<usize>,
    /// Per task, how often it ran.
    runs: [AtomicUsize; 2],
}

// SAFETY: the gate lets the caller write the job only while nobody takes part; loom checks it.
unsafe impl Sync for Pool {}

impl Pool {
    fn new() -> Arc<Pool> {
        Arc::new(Pool {
            gate: Gate::new(2),
            job: UnsafeCell::new(0),
            runs: [AtomicUsize::new(0), AtomicUsize::new(0)],
        })
    }

    /// Takes tasks of the open job; every task must find the job that the caller wrote.
    fn take_tasks(&self, thread: usize) {
        // SAFETY: as above.
        let job = self.job.with(|job| unsafe { *job });
        for turn in 0..2 {
            while let Some(task) = self.gate.take((thread + turn) % 2, turn == 0) {
                self.runs[task].fetch_add(job, Ordering::Relaxed);
            }
        }
    }

    /// Runs one job as the pool's caller does.
    fn run(&self, job: usize, unpark: impl Fn()) {
        // SAFETY: as above.
        self.job.with_mut(|at| unsafe { *at = job });
        if self.gate.open(2, 2) {
            unpark();
        }
        self.take_tasks(0);
        self.gate.close();
        while !self.gate.is_left() {
            thread::yield_now();
        }
    }
}

#[test]
fn every_task_of_every_job_runs_once_and_no_job_is_written_under_a_worker() {
    model(|| {
        let pool = Pool::new();
        let worker = {
            let pool = pool.clone();
            thread::spawn(move || {
                let mut seen = 0;
                for _ in 0..3 {
                    if let Some(epoch) = pool.gate.join(seen) {
                        seen = epoch;
                        pool.take_tasks(1);
                        pool.gate.leave();
                    }
                }
            })
        };
        pool.run(1, || {});
        pool.run(10, || {});
        let runs = pool
            .runs
            .each_ref()
            .map(|runs| runs.load(Ordering::Relaxed));
        assert_eq!(
            runs,
            [11, 11],
            "each task once for each job, before the caller returns"
        );
        worker.join().unwrap();
    });
}

#[test]
fn a_worker_that_falls_asleep_is_woken_by_the_next_job_or_the_end() {
    model(|| {
        let pool = Pool::new();
        let worker = {
            let pool = pool.clone();
            thread::spawn(move || {
                let mut seen = 0;
                while !pool.gate.has_quit() {
                    match pool.gate.join(seen) {
                        Some(epoch) => {
                            seen = epoch;
                            pool.take_tasks(1);
                            pool.gate.leave();
                        }
                        None => pool.gate.sleep(seen, thread::park),
                    }
                }
            })
        };
        let thread = worker.thread().clone();
        pool.run(1, || thread.unpark());
        pool.gate.quit();
        thread.unpark();
        // Loom finds a worker that is never woken as a deadlock.
        worker.join().unwrap();
    });
}
