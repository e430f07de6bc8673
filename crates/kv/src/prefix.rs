//! A frozen prefix that several caches read and none writes.

use crate::{CacheConfig, CacheEntry, Contiguous, KvBytes, KvError};
use std::sync::Arc;

/// Rows that are read-only for good. The backend that froze them opens caches over them.
pub trait FrozenKv: Send + Sync {
    /// Storage for one more cache: the frozen rows in front, a private tail behind.
    fn open(self: Arc<Self>) -> Box<dyn KvBytes>;

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

    pub(crate) fn entry(&self) -> Result<CacheEntry, KvError> {
        let book = Contiguous::behind(self.len, &self.config);
        Ok(CacheEntry::new(
            "contiguous",
            Box::new(book),
            self.frozen.clone().open(),
        ))
    }
}
