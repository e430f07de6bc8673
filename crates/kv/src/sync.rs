//! The locks of this crate: those of std, or loom's when the lifecycle is model-checked
//! (`RUSTFLAGS="--cfg loom" cargo test --release -p kvark-kv --test loom`).

#[cfg(loom)]
pub(crate) use loom::sync::{Arc, Mutex, MutexGuard};
#[cfg(not(loom))]
pub(crate) use std::sync::{Arc, Mutex, MutexGuard};

#[cfg(loom)]
pub(crate) use model::{TryMutex, TryMutexGuard};
/// A lock that is only used through `try_lock`.
#[cfg(not(loom))]
pub(crate) use std::sync::{Mutex as TryMutex, MutexGuard as TryMutexGuard};

/// A lock that is only used through `try_lock`, built on a loom atomic. Loom 0.7's own `try_lock` blocks on a held
/// lock, and its release is not a switch point, so the failing case would never be explored.
#[cfg(loom)]
mod model {
    use loom::sync::atomic::{AtomicBool, Ordering};
    use std::ops::{Deref, DerefMut};
    use std::sync::{Mutex, MutexGuard, TryLockError, TryLockResult};

    pub(crate) struct TryMutex<T> {
        held: AtomicBool,
        data: Mutex<T>,
    }

    #[allow(unreachable_pub, reason = "CacheEntry::try_lock returns it")]
    pub struct TryMutexGuard<'a, T> {
        held: &'a AtomicBool,
        data: Option<MutexGuard<'a, T>>,
    }

    impl<T> TryMutex<T> {
        pub(crate) fn new(data: T) -> TryMutex<T> {
            TryMutex {
                held: AtomicBool::new(false),
                data: Mutex::new(data),
            }
        }

        pub(crate) fn try_lock(&self) -> TryLockResult<TryMutexGuard<'_, T>> {
            self.held
                .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
                .map_err(|_| TryLockError::WouldBlock)?;
            Ok(TryMutexGuard {
                held: &self.held,
                data: Some(self.data.try_lock().expect("`held` lets one in")),
            })
        }
    }

    impl<T> Deref for TryMutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.data.as_ref().expect("held until the drop")
        }
    }

    impl<T> DerefMut for TryMutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.data.as_mut().expect("held until the drop")
        }
    }

    impl<T> Drop for TryMutexGuard<'_, T> {
        fn drop(&mut self) {
            self.data = None;
            self.held.store(false, Ordering::Release);
        }
    }
}
