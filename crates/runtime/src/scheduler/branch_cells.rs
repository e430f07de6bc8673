//! `BranchCells`: the cells that a branch of a conversation holds while it lives.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The stored prefix of a branch. A request that is given it stores its tokens there when it ends, and they stay in memory while the
/// branch lives: memory pressure removes prefixes that no branch holds first.
#[derive(Clone, Debug, Default)]
pub struct BranchCells(Arc<Mutex<Option<Arc<Hold>>>>);

/// A hold on a stored prefix, by the prefix's number. Dropping the last one releases the prefix.
#[derive(Debug)]
struct Hold {
    prefix: u64,
    released: Released,
}

impl Drop for Hold {
    fn drop(&mut self) {
        lock(&self.released.0).push(self.prefix);
    }
}

/// The numbers of prefixes whose holds have ended, until the store hears of them.
#[derive(Clone, Debug, Default)]
pub(super) struct Released(Arc<Mutex<Vec<u64>>>);

impl Released {
    /// The numbers since the last call, one for each hold.
    pub(super) fn take(&self) -> Vec<u64> {
        std::mem::take(&mut lock(&self.0))
    }
}

impl BranchCells {
    /// A branch of its own with the same cells: nothing is computed and no row is copied.
    pub fn fork(&self) -> BranchCells {
        let held = lock(&self.0).clone();
        BranchCells(Arc::new(Mutex::new(held)))
    }

    /// Holds another prefix instead.
    pub(super) fn hold(&self, prefix: u64, released: &Released) {
        let hold = Hold {
            prefix,
            released: released.clone(),
        };
        *lock(&self.0) = Some(Arc::new(hold));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
