//! A cache as it is shared: bookkeeping and bytes behind one lock.

use crate::{Bookkeeping, CacheConfig, KvError, KvErrorKind};
use std::any::Any;
use std::sync::{Mutex, MutexGuard, TryLockError};

/// The stored keys and values, as far as the neutral side needs to know them.
///
/// The backend that built them finds its own type again through [`Any`].
pub trait KvBytes: Any + Send {
    /// What the bytes were built from.
    fn config(&self) -> &CacheConfig;

    /// Bytes allocated now.
    fn resident_bytes(&self) -> usize;
}

/// What a forward or a control verb works on.
pub struct CacheState {
    /// Who is where.
    pub book: Box<dyn Bookkeeping>,
    /// The bytes.
    pub bytes: Box<dyn KvBytes>,
}

/// One cache, shared by the registry, the runner's session and the modules bound to it.
pub struct CacheEntry {
    kind: &'static str,
    state: Mutex<CacheState>,
}

impl CacheEntry {
    /// Joins bookkeeping of the named kind with a backend's bytes.
    pub fn new(
        kind: &'static str,
        book: Box<dyn Bookkeeping>,
        bytes: Box<dyn KvBytes>,
    ) -> CacheEntry {
        CacheEntry {
            kind,
            state: Mutex::new(CacheState { book, bytes }),
        }
    }

    /// The kind of cache.
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// Takes the cache for a forward or a verb; `Busy` when a forward has it.
    pub fn try_lock(&self) -> Result<MutexGuard<'_, CacheState>, KvError> {
        self.state.try_lock().map_err(|e| match e {
            TryLockError::WouldBlock => KvErrorKind::Busy.into(),
            TryLockError::Poisoned(_) => KvErrorKind::Poisoned.into(),
        })
    }
}
