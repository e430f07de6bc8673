//! Where a runner's cache and a module's load meet: caches by key, and builders of KV bytes by backend.

use crate::sync::{Arc, Mutex, MutexGuard};
use crate::{CacheConfig, CacheEntry, KvBytes, KvError, KvErrorKind};
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, PoisonError};

/// The name under which a cache is registered; unique in the process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CacheKey(String);

impl CacheKey {
    pub(crate) fn unique() -> CacheKey {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        CacheKey(format!("cache-{}", NEXT.fetch_add(1, Ordering::Relaxed)))
    }
}

impl fmt::Display for CacheKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Live caches by key. Clones are handles on one registry.
#[derive(Clone, Default)]
pub struct CacheRegistry {
    caches: Arc<Mutex<HashMap<CacheKey, Arc<CacheEntry>>>>,
}

impl CacheRegistry {
    /// The process-wide registry.
    pub fn global() -> &'static CacheRegistry {
        static GLOBAL: LazyLock<CacheRegistry> = LazyLock::new(CacheRegistry::default);
        &GLOBAL
    }

    /// The cache under `key`.
    pub fn get(&self, key: &CacheKey) -> Result<Arc<CacheEntry>, KvError> {
        self.lock()
            .get(key)
            .cloned()
            .ok_or_else(|| KvErrorKind::UnknownKey(key.to_string()).into())
    }

    pub(crate) fn install(&self, key: CacheKey, cache: Arc<CacheEntry>) {
        let previous = self.lock().insert(key, cache);
        assert!(previous.is_none(), "cache keys are unique");
    }

    pub(crate) fn erase(&self, key: &CacheKey) {
        self.lock().remove(key);
    }

    /// Every critical section is one map call, so a poisoned map is still whole.
    fn lock(&self) -> MutexGuard<'_, HashMap<CacheKey, Arc<CacheEntry>>> {
        self.caches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes a backend's storage for a cache. The closure may hold the device that the storage lies on.
pub type KvBytesBuilder =
    dyn Fn(&CacheConfig) -> Result<Box<dyn KvBytes>, KvError> + Send + Sync + 'static;

/// How each backend makes its KV bytes. Kinds of caches are built here, over any backend's bytes.
#[derive(Default)]
pub struct CacheBuilderRegistry {
    builders: Mutex<HashMap<String, std::sync::Arc<KvBytesBuilder>>>,
}

impl CacheBuilderRegistry {
    /// The process-wide registry.
    pub fn global() -> &'static CacheBuilderRegistry {
        static GLOBAL: LazyLock<CacheBuilderRegistry> =
            LazyLock::new(CacheBuilderRegistry::default);
        &GLOBAL
    }

    /// Makes `builder` answer for this backend; the last one registered wins.
    pub fn register(
        &self,
        backend: &str,
        builder: impl Fn(&CacheConfig) -> Result<Box<dyn KvBytes>, KvError> + Send + Sync + 'static,
    ) {
        let builder: std::sync::Arc<KvBytesBuilder> = std::sync::Arc::new(builder);
        let mut builders = self.builders.lock().unwrap_or_else(PoisonError::into_inner);
        builders.insert(backend.to_owned(), builder);
    }

    /// The bytes of a cache on this backend.
    ///
    /// # Errors
    /// `Config` for a configuration that cannot be built, `UnknownBackend`, and what the backend itself refuses.
    pub fn bytes(&self, backend: &str, config: &CacheConfig) -> Result<Box<dyn KvBytes>, KvError> {
        config.check()?;
        let builders = self.builders.lock().unwrap_or_else(PoisonError::into_inner);
        let builder = builders.get(backend).cloned();
        drop(builders);
        let unknown = || KvErrorKind::UnknownBackend(backend.to_owned());
        builder.ok_or_else(unknown)?(config)
    }
}
