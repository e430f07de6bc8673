//! Ops whose memory is a state that every token of a sequence replaces.

pub(crate) mod causal_conv;
pub(crate) mod linear_attention;

use crate::kernels::Context;
use crate::kv::{CpuKv, StatePool};
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
