//! The runner's hold on a cache: registered while the session lives, erased on every way out.

use crate::{
    Bookkeeping, CacheBuilderRegistry, CacheConfig, CacheEntry, CacheKey, CacheRegistry,
    Contiguous, KvError, KvErrorKind,
};
use std::any::Any;
use std::marker::PhantomData;
use std::sync::Arc;

/// What a module load is told about the session it belongs to.
#[derive(Clone, Debug, Default)]
pub struct BackendOptions {
    /// The cache that the module's `UpdateAndAttend` ops work on.
    pub cache_key: Option<CacheKey>,
}

/// A guard over a registered cache whose bookkeeping is `K`.
///
/// Verbs are called between forwards; while one runs they return `Busy`. Dropping the guard erases the registry entry;
/// a module already bound keeps the cache alive.
pub struct CacheSession<K> {
    key: CacheKey,
    entry: Arc<CacheEntry>,
    kind: PhantomData<fn() -> K>,
}

/// A session over one contiguous sequence on the named backend.
pub fn make_decode_session(
    backend: &str,
    config: &CacheConfig,
) -> Result<(CacheSession<Contiguous>, BackendOptions), KvError> {
    make_session(backend, "contiguous", config)
}

fn make_session<K: Bookkeeping>(
    backend: &str,
    kind: &'static str,
    config: &CacheConfig,
) -> Result<(CacheSession<K>, BackendOptions), KvError> {
    let entry = CacheBuilderRegistry::global().build(backend, kind, config)?;
    let session = CacheSession::install(entry, kind)?;
    let options = BackendOptions {
        cache_key: Some(session.key.clone()),
    };
    Ok((session, options))
}

impl<K: Bookkeeping> CacheSession<K> {
    fn install(entry: CacheEntry, wanted: &'static str) -> Result<CacheSession<K>, KvError> {
        let is_k = (&*entry.try_lock()?.book as &dyn Any).is::<K>();
        if !is_k {
            return Err(KvErrorKind::WrongKind {
                found: entry.kind(),
                wanted,
            }
            .into());
        }
        let entry = Arc::new(entry);
        let key = CacheKey::unique();
        CacheRegistry::global().install(key.clone(), entry.clone());
        Ok(CacheSession {
            key,
            entry,
            kind: PhantomData,
        })
    }

    /// The key that a module load is given.
    pub fn key(&self) -> &CacheKey {
        &self.key
    }

    /// Calls a verb of the cache.
    pub fn with<R>(&self, verb: impl FnOnce(&mut K) -> R) -> Result<R, KvError> {
        let mut state = self.entry.try_lock()?;
        let book: &mut dyn Any = &mut *state.book;
        Ok(verb(book.downcast_mut().expect("checked at installation")))
    }

    /// Whether `n` more tokens fit.
    pub fn can_extend(&self, n: u32) -> Result<bool, KvError> {
        self.with(|cache| cache.can_extend(n))
    }

    /// Tokens held now.
    pub fn len(&self) -> Result<u32, KvError> {
        self.with(|cache| cache.len())
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> Result<bool, KvError> {
        Ok(self.len()? == 0)
    }

    /// Most tokens the cache may hold.
    pub fn capacity(&self) -> Result<u32, KvError> {
        self.with(|cache| cache.capacity())
    }

    /// Forgets everything.
    pub fn clear(&self) -> Result<(), KvError> {
        self.with(|cache| cache.clear())
    }

    /// Forgets all but the first `len` tokens.
    pub fn rewind(&self, len: u32) -> Result<(), KvError> {
        self.with(|cache| cache.rewind(len))?
    }

    /// Bytes of keys and values allocated now.
    pub fn resident_bytes(&self) -> Result<usize, KvError> {
        Ok(self.entry.try_lock()?.bytes.resident_bytes())
    }
}

impl<K> Drop for CacheSession<K> {
    fn drop(&mut self) {
        CacheRegistry::global().erase(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{KvBytes, LayerConfig};

    struct NoBytes(CacheConfig);
    impl KvBytes for NoBytes {
        fn config(&self) -> &CacheConfig {
            &self.0
        }

        fn resident_bytes(&self) -> usize {
            0
        }
    }

    fn config() -> CacheConfig {
        CacheConfig::uniform(
            8,
            1,
            LayerConfig {
                kv_heads: 1,
                key_dim: 4,
                value_dim: 4,
                window: None,
            },
        )
    }

    fn session() -> (CacheSession<Contiguous>, BackendOptions) {
        CacheBuilderRegistry::global().register("test", "contiguous", |config| {
            Ok(CacheEntry::new(
                "contiguous",
                Box::new(Contiguous::new(config)),
                Box::new(NoBytes(config.clone())),
            ))
        });
        make_decode_session("test", &config()).unwrap()
    }

    #[test]
    fn the_entry_lives_as_long_as_the_session() {
        let (session, options) = session();
        let key = options.cache_key.unwrap();
        let bound = CacheRegistry::global().get(&key).unwrap();
        drop(session);
        let gone = CacheRegistry::global().get(&key).err().unwrap();
        assert_eq!(gone.kind(), &KvErrorKind::UnknownKey(key.to_string()));
        assert!(bound.try_lock().is_ok(), "a bound module keeps its cache");
    }

    #[test]
    fn verbs_are_refused_while_a_forward_holds_the_cache() {
        let (session, options) = session();
        let entry = CacheRegistry::global()
            .get(&options.cache_key.unwrap())
            .unwrap();
        let forward = entry.try_lock().unwrap();
        assert_eq!(session.clear().unwrap_err().kind(), &KvErrorKind::Busy);
        drop(forward);
        session.clear().unwrap();
    }

    #[test]
    fn an_unknown_backend_is_named() {
        let error = make_decode_session("nowhere", &config()).err().unwrap();
        assert_eq!(
            error.to_string(),
            "backend \"nowhere\" has no contiguous cache"
        );
    }
}
