//! The registries: caches by key, with which a module load finds the runner's cache, and builders of KV bytes by
//! backend.

use crate::sync::{Arc, Mutex, MutexGuard};
use crate::{CacheConfig, CacheEntry, KvBytes, KvError, KvErrorKind};
use std::any::TypeId;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, PoisonError};

/// The key of a registered cache; unique in the process.
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

/// The live caches by key. Clones share one registry.
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

    /// Every critical section is one map call, so a poisoned map is still consistent.
    fn lock(&self) -> MutexGuard<'_, HashMap<CacheKey, Arc<CacheEntry>>> {
        self.caches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Allocates a backend's storage for a cache. The closure may hold the device.
pub type KvBytesBuilder =
    dyn Fn(&CacheConfig) -> Result<Box<dyn KvBytes>, KvError> + Send + Sync + 'static;

/// The builders of KV bytes by backend. Every kind of cache works on the bytes of any backend.
#[derive(Default)]
pub struct CacheBuilderRegistry {
    builders: Mutex<HashMap<String, Registered>>,
}

/// A builder and the type of its closure, which tells a backend that registers again from another one with its name.
struct Registered {
    closure: TypeId,
    builder: std::sync::Arc<KvBytesBuilder>,
}

impl CacheBuilderRegistry {
    /// The process-wide registry.
    pub fn global() -> &'static CacheBuilderRegistry {
        static GLOBAL: LazyLock<CacheBuilderRegistry> =
            LazyLock::new(CacheBuilderRegistry::default);
        &GLOBAL
    }

    /// Registers the builder of a backend. The first builder stays: a backend may register again where it did before, which
    /// changes nothing.
    ///
    /// # Errors
    /// `BackendTaken` if another backend has registered under this name.
    pub fn register<F>(&self, backend: &str, builder: F) -> Result<(), KvError>
    where
        F: Fn(&CacheConfig) -> Result<Box<dyn KvBytes>, KvError> + Send + Sync + 'static,
    {
        let closure = TypeId::of::<F>();
        let mut builders = self.builders.lock().unwrap_or_else(PoisonError::into_inner);
        let registered = builders
            .entry(backend.to_owned())
            .or_insert_with(|| Registered {
                closure,
                builder: std::sync::Arc::new(builder),
            });
        match registered.closure == closure {
            true => Ok(()),
            false => Err(KvErrorKind::BackendTaken(backend.to_owned()).into()),
        }
    }

    /// Builds the storage of a cache on this backend.
    ///
    /// # Errors
    /// `Config` for an invalid configuration, `UnknownBackend`, and the errors of the backend's builder.
    pub fn bytes(&self, backend: &str, config: &CacheConfig) -> Result<Box<dyn KvBytes>, KvError> {
        config.check()?;
        let builders = self.builders.lock().unwrap_or_else(PoisonError::into_inner);
        let builder = builders.get(backend).map(|found| found.builder.clone());
        drop(builders);
        let unknown = || KvErrorKind::UnknownBackend(backend.to_owned());
        builder.ok_or_else(unknown)?(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LayerConfig;

    #[test]
    fn the_first_backend_of_a_name_stays() {
        let registry = CacheBuilderRegistry::default();
        let layer = LayerConfig {
            kv_heads: 1,
            key_dim: 2,
            value_dim: 2,
            window: None,
            sinks: 0,
        };
        let config = CacheConfig::new(4, vec![layer]);
        let refuses = |message: &'static str| {
            move |_: &CacheConfig| Err(KvErrorKind::Device(message.to_owned()).into())
        };
        // One closure: the same backend, opened twice.
        registry.register("gpu", refuses("first")).unwrap();
        registry.register("gpu", refuses("second")).unwrap();
        let other = |_: &CacheConfig| Err(KvErrorKind::Device("other".to_owned()).into());
        let taken = registry.register("gpu", other).unwrap_err();
        assert_eq!(*taken.kind(), KvErrorKind::BackendTaken("gpu".to_owned()));
        assert!(taken.to_string().contains("gpu"), "{taken}");
        let found = registry.bytes("gpu", &config).err().unwrap();
        assert_eq!(*found.kind(), KvErrorKind::Device("first".to_owned()));
        registry.register("tpu", other).unwrap();
    }
}
