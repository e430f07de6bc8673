//! A frozen prefix that several caches read and none writes.

use crate::{CacheConfig, CacheEntry, Contiguous, KvBytes, KvError, KvErrorKind};
use std::sync::Arc;

/// Rows that are read-only for good. The backend that froze them opens caches over them.
pub trait FrozenKv: Send + Sync {
    /// Storage for one more cache: the frozen rows in front, a private tail behind.
    fn open(self: Arc<Self>) -> Result<Box<dyn KvBytes>, KvError>;

    /// Bytes of the frozen rows, held once however many caches read them.
    fn resident_bytes(&self) -> usize;
}

/// The tokens of a session, frozen and shared. Every clone and every session over it counts a reference; the rows live
/// as long as one is left.
#[derive(Clone)]
pub struct SharedPrefix {
    frozen: Arc<dyn FrozenKv>,
    len: u32,
    config: CacheConfig,
}

impl SharedPrefix {
    pub(crate) fn new(frozen: Arc<dyn FrozenKv>, len: u32, config: CacheConfig) -> SharedPrefix {
        SharedPrefix {
            frozen,
            len,
            config,
        }
    }

    /// Tokens in the prefix.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether the prefix holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of the shared rows.
    pub fn resident_bytes(&self) -> usize {
        self.frozen.resident_bytes()
    }

    /// What the frozen cache was built from.
    pub fn config(&self) -> &CacheConfig {
        &self.config
    }

    /// Refuses a cache that is built from something else: other layers, another capacity or storage.
    ///
    /// # Errors
    /// `PrefixMismatch`, which names what differs.
    pub fn check(&self, config: &CacheConfig) -> Result<(), KvError> {
        let own = &self.config;
        let mismatch = |what: String| Err(KvErrorKind::PrefixMismatch(what).into());
        if own.layers != config.layers {
            return mismatch("its layers are not those of the model".into());
        }
        let storage = |config: &CacheConfig| [config.key_storage, config.value_storage];
        if storage(own) != storage(config) {
            let ([k, v], [key, value]) = (storage(own), storage(config));
            return mismatch(format!(
                "its keys and values are stored as {k} and {v}, not {key} and {value}"
            ));
        }
        if own.capacity != config.capacity {
            let (found, wanted) = (own.capacity, config.capacity);
            return mismatch(format!(
                "it was frozen in a context of {found} tokens, not {wanted}"
            ));
        }
        match own == config {
            true => Ok(()),
            false => mismatch("its windows keep another number of rows".into()),
        }
    }

    pub(crate) fn entry(&self) -> Result<CacheEntry, KvError> {
        let bookkeeping = Contiguous::with_prefix(self.len, &self.config);
        let bytes = self.frozen.clone().open()?;
        Ok(CacheEntry::new("contiguous", Box::new(bookkeeping), bytes))
    }
}
