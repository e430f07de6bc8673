//! A cache as it is shared: bookkeeping and bytes behind one lock.

use crate::sync::{TryMutex, TryMutexGuard};
use crate::{
    Bookkeeping, CacheConfig, Compaction, FrozenKv, GatherPlan, KvError, KvErrorKind, RowBlock,
    Run, Side, Step, StepPlan,
};
use std::any::Any;
use std::sync::{Arc, TryLockError};

/// The stored keys and values, as far as the neutral side needs to know them. A backend implements this and nothing else
/// of a cache; its executables find their own type again through [`Any`], once a step.
pub trait KvBytes: Any + Send {
    /// What the bytes were built from.
    fn config(&self) -> &CacheConfig;

    /// Bytes allocated now, without those of a shared prefix.
    fn resident_bytes(&self) -> usize;

    /// Copies accepted rows to the front, in every layer. When it fails, rows from `gather.base` on are unknown.
    fn gather(&mut self, gather: &GatherPlan) -> Result<(), KvError>;

    /// Gives the cells of every layer the rows of their old ones. What fails has moved nothing.
    fn reorder(&mut self, order: &Compaction) -> Result<(), KvError>;

    /// Copies the rows of these runs out, as they are encoded: `[heads, rows, row]`, rows in the order of the runs. `out`
    /// has just that size, and the cells exist.
    fn read_rows(
        &self,
        layer: usize,
        side: Side,
        runs: &[Run],
        out: &mut [u8],
    ) -> Result<(), KvError>;

    /// Stores encoded rows, at most one block for each side of a layer. All memory is made first: what fails has written
    /// nothing.
    fn write_rows(&mut self, blocks: &[RowBlock<'_>]) -> Result<(), KvError>;

    /// Makes the first `cells` cells read-only for good and goes on over them with an empty tail.
    fn freeze(&mut self, cells: u32) -> Result<Arc<dyn FrozenKv>, KvError>;
}

/// What a forward or a control verb works on.
pub struct CacheState {
    /// Who is where.
    pub bookkeeping: Box<dyn Bookkeeping>,
    /// The bytes.
    pub bytes: Box<dyn KvBytes>,
    /// The plan of the step at hand; kept so that its memory is reused.
    pub plan: StepPlan,
}

/// One cache, shared by the registry, the runner's session and the modules bound to it.
pub struct CacheEntry {
    kind: &'static str,
    state: TryMutex<CacheState>,
}

impl CacheEntry {
    /// Joins bookkeeping of the named kind with a backend's bytes.
    pub fn new(
        kind: &'static str,
        bookkeeping: Box<dyn Bookkeeping>,
        bytes: Box<dyn KvBytes>,
    ) -> CacheEntry {
        CacheEntry {
            kind,
            state: TryMutex::new(CacheState {
                bookkeeping,
                bytes,
                plan: StepPlan::default(),
            }),
        }
    }

    /// The kind of cache.
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// Takes the cache for a forward or a verb; `Busy` when a forward has it.
    pub fn try_lock(&self) -> Result<TryMutexGuard<'_, CacheState>, KvError> {
        self.state.try_lock().map_err(|e| match e {
            TryLockError::WouldBlock => KvErrorKind::Busy.into(),
            TryLockError::Poisoned(_) => KvErrorKind::Poisoned.into(),
        })
    }
}

impl CacheState {
    /// Plans a step, runs `forward` over plan and bytes, and commits. When anything fails, what was held before stays
    /// held.
    ///
    /// # Errors
    /// `StepPending` when a verb has declared another step, which stays declared.
    pub fn run<R, E: From<KvError>>(
        &mut self,
        step: &Step,
        forward: impl FnOnce(&StepPlan, &mut dyn KvBytes) -> Result<R, E>,
    ) -> Result<R, E> {
        if self.bookkeeping.is_declared() {
            return Err(KvError::from(KvErrorKind::StepPending).into());
        }
        let planned = self.bookkeeping.plan(step, &mut self.plan);
        self.finish(planned, forward)
    }

    /// The same for the step that the verbs declared, whose tokens have these positions.
    pub fn run_declared<R, E: From<KvError>>(
        &mut self,
        positions: &[i32],
        forward: impl FnOnce(&StepPlan, &mut dyn KvBytes) -> Result<R, E>,
    ) -> Result<R, E> {
        let planned = self.bookkeeping.plan_declared(positions, &mut self.plan);
        self.finish(planned, forward)
    }

    fn finish<R, E: From<KvError>>(
        &mut self,
        planned: Result<(), KvError>,
        forward: impl FnOnce(&StepPlan, &mut dyn KvBytes) -> Result<R, E>,
    ) -> Result<R, E> {
        if let Err(error) = planned {
            self.bookkeeping.abort(None);
            return Err(error.into());
        }
        let result = forward(&self.plan, &mut *self.bytes);
        match result {
            Ok(_) => self.bookkeeping.commit(&self.plan),
            Err(_) => self.bookkeeping.abort(Some(&self.plan)),
        }
        result
    }
}
