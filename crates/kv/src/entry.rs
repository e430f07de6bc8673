//! `CacheEntry`: the bookkeeping and the bytes of one cache behind one lock.

use crate::sync::{TryMutex, TryMutexGuard};
use crate::{
    CacheConfig, CacheManager, CellRun, Compaction, FrozenKv, GatherPlan, KvError, KvErrorKind,
    RowBlock, Side, Step, StepPlan,
};
use std::any::Any;
use std::sync::{Arc, TryLockError};

/// The stored keys and values of a cache. This is the only cache trait that a backend implements. Its executables
/// downcast it to the backend's own type through [`Any`], once per step.
pub trait KvBytes: Any + Send {
    /// The configuration that the storage was built from.
    fn config(&self) -> &CacheConfig;

    /// Bytes allocated now, not counting a shared prefix.
    fn resident_bytes(&self) -> usize;

    /// Makes the row copies of `gather` in every layer. Rows of a shared prefix are not counted. After an error, rows from
    /// `gather.base` on are undefined.
    fn gather(&mut self, gather: &GatherPlan) -> Result<(), KvError>;

    /// Moves the rows of every layer to their new cells. Cells of a shared prefix are not counted. After an error, no row has
    /// moved.
    fn reorder(&mut self, order: &Compaction) -> Result<(), KvError>;

    /// Copies the encoded rows of these runs to `out`: `[heads, rows, row]`, rows in the order of the runs. The caller
    /// ensures that `out` has exactly that size and that the cells exist.
    fn read_rows(
        &self,
        layer: usize,
        side: Side,
        runs: &[CellRun],
        out: &mut [u8],
    ) -> Result<(), KvError>;

    /// Writes encoded rows, at most one block for each side of a layer. Allocates all memory before the first write, so
    /// that a failed allocation leaves the rows unchanged.
    fn write_rows(&mut self, blocks: &[RowBlock<'_>]) -> Result<(), KvError>;

    /// Gives the memory of a layer back, whose rows are not needed any more. Storage in one piece keeps it until it is dropped.
    fn release_layer(&mut self, layer: usize) {
        let _ = layer;
    }

    /// Freezes the first `cells[i]` cells of every layer `i`: they become read-only and shareable. This storage continues after them
    /// with an empty private tail; it is not continued if layers have states. After an error, nothing has changed.
    fn freeze(&mut self, cells: &[u32]) -> Result<Arc<dyn FrozenKv>, KvError>;
}

/// The locked state of a cache, which a forward or a cache operation works on.
pub struct CacheState {
    /// The bookkeeping: which cells hold which tokens.
    pub bookkeeping: Box<dyn CacheManager>,
    /// The backend's storage of keys and values.
    pub bytes: Box<dyn KvBytes>,
    /// The plan of the current step; kept so that its memory is reused.
    pub plan: StepPlan,
}

/// One cache, shared by the registry, the runner's session and the modules bound to it.
pub struct CacheEntry {
    kind: &'static str,
    state: TryMutex<CacheState>,
}

impl CacheEntry {
    /// A cache of the named kind, from its bookkeeping and a backend's storage.
    pub fn new(
        kind: &'static str,
        bookkeeping: Box<dyn CacheManager>,
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

    /// The name of the cache's kind.
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// Locks the cache for a forward or a cache operation.
    ///
    /// # Errors
    /// `Busy` while a forward runs; `Poisoned` after a forward panicked.
    pub fn try_lock(&self) -> Result<TryMutexGuard<'_, CacheState>, KvError> {
        self.state.try_lock().map_err(|e| match e {
            TryLockError::WouldBlock => KvErrorKind::Busy.into(),
            TryLockError::Poisoned(_) => KvErrorKind::Poisoned.into(),
        })
    }
}

impl CacheState {
    /// Plans a step, calls `forward` with the plan and the bytes, and commits the step. After an error, the cache holds
    /// the tokens that it held before.
    ///
    /// # Errors
    /// `StepPending` if a cache operation has declared another step, which stays declared; errors of planning and of `forward`.
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

    /// Like [`run`](CacheState::run), for the step that a cache operation declared; its tokens have these positions.
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
