//! `SharedPrefix`: frozen rows that several caches read and none writes.

use crate::{CacheConfig, CacheEntry, Contiguous, KvBytes, KvError, KvErrorKind, Side};
use std::sync::Arc;

/// Frozen, read-only rows of a backend.
pub trait FrozenKv: Send + Sync {
    /// Storage for one more cache: the frozen rows followed by a private tail.
    fn open(self: Arc<Self>) -> Result<Box<dyn KvBytes>, KvError>;

    /// Bytes of the frozen rows. They are allocated once for all caches that share them.
    fn resident_bytes(&self) -> usize;
}

/// The frozen tokens of a session, shared by other sessions. Clones and sessions hold a reference to the rows, which
/// are freed with the last reference.
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

    /// Whether the prefix has no tokens.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of the shared rows.
    pub fn resident_bytes(&self) -> usize {
        self.frozen.resident_bytes()
    }

    /// The configuration of the frozen cache.
    pub fn config(&self) -> &CacheConfig {
        &self.config
    }

    /// Checks that a cache with this configuration can use the prefix.
    ///
    /// # Errors
    /// `PrefixMismatch` if layers, capacity, storage types or rings differ; the message names the difference.
    pub fn check(&self, config: &CacheConfig) -> Result<(), KvError> {
        let own = &self.config;
        let mismatch = |what: String| Err(KvErrorKind::PrefixMismatch(what).into());
        if own.layers != config.layers {
            return mismatch("its layers are not those of the model".into());
        }
        let types = |config: &CacheConfig, layer: usize| {
            [Side::Key, Side::Value].map(|side| config.storage(layer, side))
        };
        for layer in 0..own.layers.len() {
            let ([k, v], [key, value]) = (types(own, layer), types(config, layer));
            if [k, v] != [key, value] {
                return mismatch(format!(
                    "the keys and values of its layer {layer} are stored as {k} and {v}, not {key} and {value}"
                ));
            }
        }
        if own.capacity != config.capacity {
            let (found, wanted) = (own.capacity, config.capacity);
            return mismatch(format!(
                "it was frozen in a context of {found} tokens, not {wanted}"
            ));
        }
        match own == config {
            true => Ok(()),
            false => mismatch("its ring layers have another number of rows".into()),
        }
    }

    pub(crate) fn entry(&self) -> Result<CacheEntry, KvError> {
        let bookkeeping = Contiguous::with_prefix(self.len, &self.config);
        let bytes = self.frozen.clone().open()?;
        Ok(CacheEntry::new("contiguous", Box::new(bookkeeping), bytes))
    }
}
