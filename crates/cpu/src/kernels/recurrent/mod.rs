//! Ops whose memory is a state that every token of a sequence replaces.

pub(crate) mod causal_conv;
pub(crate) mod linear_attention;

use crate::kernels::Context;
use crate::kv::{CpuKv, StatePool};
use crate::simd::{LANES, Simd};
use backend::CacheStep;
use kv::{KvError, LayerPlan};

/// A step's states: which one every token continues, where the one after it is stored, and all that are stored.
#[derive(Clone, Copy)]
pub(crate) struct StepStates<'a> {
    plan: &'a LayerPlan,
    pool: StatePool,
}

impl<'a> StepStates<'a> {
    /// The states of a layer, in a pool that has room for those of the step.
    pub(crate) fn new(
        step: &'a mut CacheStep<'_, CpuKv>,
        cache_id: usize,
    ) -> Result<StepStates<'a>, KvError> {
        let plan = step.plan.layer(cache_id);
        let pool = step.bytes.states(cache_id, plan)?;
        Ok(StepStates { plan, pool })
    }
}

/// A state in its pool, of f32 or f16.
#[derive(Clone, Copy)]
struct StoredState {
    start: *mut u8,
    is_half: bool,
}

impl StepStates<'_> {
    /// A head's state in a cell.
    ///
    /// # Safety
    /// The pool must have the head and the cell.
    #[inline(always)]
    unsafe fn stored(&self, head: usize, cell: u32) -> StoredState {
        StoredState {
            // SAFETY: as the caller guarantees.
            start: unsafe { self.pool.at(head, cell) },
            is_half: self.pool.is_half,
        }
    }
}

impl StoredState {
    /// The elements `at..at + lanes`, and zeros after them.
    ///
    /// # Safety
    /// The state must have the elements; `lanes ≤ 16`.
    #[inline(always)]
    unsafe fn load<S: Simd>(self, s: S, at: usize, lanes: usize) -> S::V {
        // SAFETY: the caller guarantees the elements.
        unsafe {
            if !self.is_half {
                return load(s, self.start.cast::<f32>().add(at), lanes);
            }
            let from = self.start.cast::<u16>().add(at);
            if lanes == LANES {
                return s.load_f16(from);
            }
            let mut halves = [0; LANES];
            std::ptr::copy_nonoverlapping(from, halves.as_mut_ptr(), lanes);
            s.load_f16(halves.as_ptr())
        }
    }

    /// Replaces the elements `at..at + lanes`.
    ///
    /// # Safety
    /// As for [`load`](StoredState::load), and nothing else may access the elements.
    #[inline(always)]
    unsafe fn store<S: Simd>(self, s: S, at: usize, v: S::V, lanes: usize) {
        // SAFETY: the caller guarantees the elements.
        unsafe {
            if !self.is_half {
                return store(s, self.start.cast::<f32>().add(at), v, lanes);
            }
            let to = self.start.cast::<u16>().add(at);
            if lanes == LANES {
                return s.store_f16(to, v);
            }
            let mut halves = [0; LANES];
            s.store_f16(halves.as_mut_ptr(), v);
            std::ptr::copy_nonoverlapping(halves.as_ptr(), to, lanes);
        }
    }
}

/// Numbers as f16 holds them.
#[inline(always)]
fn rounded_to_f16<S: Simd>(s: S, v: S::V) -> S::V {
    let mut halves = [0; LANES];
    // SAFETY: sixteen halves.
    unsafe {
        s.store_f16(halves.as_mut_ptr(), v);
        s.load_f16(halves.as_ptr())
    }
}

/// # Safety
/// `lanes ≤ 16` numbers must be readable at `p`.
#[inline(always)]
unsafe fn load<S: Simd>(s: S, p: *const f32, lanes: usize) -> S::V {
    // SAFETY: the caller guarantees the numbers.
    unsafe {
        match lanes {
            LANES => s.load(p),
            _ => s.load_part(p, lanes),
        }
    }
}

/// # Safety
/// `lanes ≤ 16` numbers must be writable at `p`.
#[inline(always)]
unsafe fn store<S: Simd>(s: S, p: *mut f32, v: S::V, lanes: usize) {
    // SAFETY: the caller guarantees the numbers.
    unsafe {
        match lanes {
            LANES => s.store(p, v),
            _ => s.store_part(p, v, lanes),
        }
    }
}

/// Calls `body` with each of `tasks` tasks, on all threads if they are `work` multiplications or more together.
fn for_tasks(ctx: &Context<'_>, tasks: usize, work: usize, body: &(dyn Fn(usize) + Sync)) {
    /// Waking other threads takes as long as this many multiplications.
    const MIN_PARALLEL_WORK: usize = 256 * 1024;
    if work < MIN_PARALLEL_WORK || tasks < 2 {
        (0..tasks).for_each(body);
    } else {
        ctx.threads.run_chunked(tasks, &|task, _| body(task));
    }
}
