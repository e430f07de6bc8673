//! The runner's hold on a cache: registered while the session lives, erased on every way out.

use crate::sync::Arc;
use crate::{
    Bookkeeping, CacheBuilderRegistry, CacheConfig, CacheEntry, CacheKey, CacheRegistry, Cells,
    Contiguous, Held, KvBytes, KvError, KvErrorKind, Restorable, RowBlock, SavedRows, ScatterIndex,
    SeqCache, SeqId, SharedPrefix, Side, Tree, TreeCache,
};
use std::any::Any;
use std::marker::PhantomData;
use std::ops::{Range, RangeBounds};

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
    registry: CacheRegistry,
    key: CacheKey,
    entry: Arc<CacheEntry>,
    kind: PhantomData<fn() -> K>,
}

/// A session with what a module load must be told.
pub type MadeSession<K> = Result<(CacheSession<K>, BackendOptions), KvError>;

/// A session over one contiguous sequence on the named backend.
pub fn make_decode_session(backend: &str, config: &CacheConfig) -> MadeSession<Contiguous> {
    make_session(backend, "contiguous", config)
}

/// A session over many sequences in one pool of cells.
pub fn make_seq_session(backend: &str, config: &CacheConfig) -> MadeSession<Cells> {
    make_session(backend, "cells", config)
}

/// A session over a prefix and a tree of candidates.
pub fn make_tree_session(backend: &str, config: &CacheConfig) -> MadeSession<Tree> {
    make_session(backend, "tree", config)
}

/// A session over static buffers of `config.capacity` rows, one for each of `sequences` sequences.
pub fn make_scatter_session(
    backend: &str,
    config: &CacheConfig,
    sequences: u32,
) -> MadeSession<ScatterIndex> {
    let cells = u64::from(config.capacity) * u64::from(sequences);
    let cells = u32::try_from(cells).map_err(|_| {
        let rows = config.capacity;
        KvErrorKind::Config(format!("{sequences} static buffers of {rows} rows"))
    })?;
    let blocks = u64::from(config.min_cells) * u64::from(sequences);
    let all = CacheConfig {
        capacity: cells,
        min_cells: u32::try_from(blocks).unwrap_or(u32::MAX).min(cells),
        ..config.clone()
    };
    let entry = CacheBuilderRegistry::global().build(backend, "scatter", &all)?;
    entry.try_lock()?.book = Box::new(ScatterIndex::new(config, sequences));
    CacheSession::install(CacheRegistry::global(), entry, "scatter")
}

/// A session over a frozen prefix, with a private tail.
pub fn make_prefixed_session(prefix: &SharedPrefix) -> MadeSession<Contiguous> {
    CacheSession::install(CacheRegistry::global(), prefix.entry()?, "contiguous")
}

fn make_session<K: Bookkeeping>(
    backend: &str,
    kind: &'static str,
    config: &CacheConfig,
) -> MadeSession<K> {
    let entry = CacheBuilderRegistry::global().build(backend, kind, config)?;
    CacheSession::install(CacheRegistry::global(), entry, kind)
}

impl<K: Bookkeeping> CacheSession<K> {
    /// Registers a cache of bookkeeping `K`, whose kind is called `wanted`. The `make_*_session` functions do this with
    /// the process-wide registry, which is the one that module loads look into.
    pub fn install(
        registry: &CacheRegistry,
        entry: CacheEntry,
        wanted: &'static str,
    ) -> MadeSession<K> {
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
        registry.install(key.clone(), entry.clone());
        let options = BackendOptions {
            cache_key: Some(key.clone()),
        };
        Ok((
            CacheSession {
                registry: registry.clone(),
                key,
                entry,
                kind: PhantomData,
            },
            options,
        ))
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

    /// Cells in use now.
    pub fn len(&self) -> Result<u32, KvError> {
        self.with(|cache| cache.len())
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> Result<bool, KvError> {
        Ok(self.len()? == 0)
    }

    /// Most cells the cache may hold.
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

    /// What the cache was built from.
    pub fn config(&self) -> Result<CacheConfig, KvError> {
        Ok(self.entry.try_lock()?.bytes.config().clone())
    }

    /// Bytes of keys and values allocated now, without those of a shared prefix.
    pub fn resident_bytes(&self) -> Result<usize, KvError> {
        Ok(self.entry.try_lock()?.bytes.resident_bytes())
    }
}

impl CacheSession<Contiguous> {
    /// Freezes what the session holds into a prefix that other sessions can share, and goes on behind it.
    pub fn freeze(&self) -> Result<SharedPrefix, KvError> {
        let mut state = self.entry.try_lock()?;
        let len = state.book.len();
        let config = state.bytes.config().clone();
        let frozen = state.bytes.freeze(len)?;
        state.book = Box::new(Contiguous::behind(len, &config));
        Ok(SharedPrefix::new(frozen, len, config))
    }
}

impl<K: Bookkeeping + Restorable> CacheSession<K> {
    /// Shows `read` where the rows of a sequence lie, and the bytes that hold them.
    pub fn held<R>(
        &self,
        seq: SeqId,
        read: impl FnOnce(&Held, &dyn KvBytes) -> R,
    ) -> Result<R, KvError> {
        let held = self.with(|cache| cache.held(seq))??;
        Ok(read(&held, &*self.entry.try_lock()?.bytes))
    }

    /// Puts the first `len` tokens of a saved sequence in the place of what `seq` holds. What is refused changes
    /// nothing.
    pub fn restore(&self, seq: SeqId, len: u32, saved: &SavedRows<'_>) -> Result<(), KvError> {
        let mut state = self.entry.try_lock()?;
        let state = &mut *state;
        let config = state.bytes.config().clone();
        saved.check(&config)?;
        if len > saved.len {
            let reason = format!("{len} tokens are wanted, and they have {}", saved.len);
            return Err(KvErrorKind::SavedRows(reason).into());
        }
        let book: &mut dyn Any = &mut *state.book;
        let cache: &mut K = book.downcast_mut().expect("checked at installation");
        let (after, held) = cache.restored(seq, len, &saved.first())?;
        state.bytes.write_rows(&saved.blocks(&config, &held))?;
        *cache = after;
        Ok(())
    }
}

impl<K: Bookkeeping + Restorable> CacheSession<K> {
    /// Most tokens that [`shift`](CacheSession::shift) can drop behind the first `keep` of a sequence.
    pub fn droppable(&self, seq: SeqId, keep: u32) -> Result<u32, KvError> {
        self.held(seq, |held, bytes| held.droppable(keep, bytes.config()))
    }

    /// Drops the `dropped` tokens of a sequence behind its first `keep` and moves the later ones down. `rotate` gets a
    /// layer, the positions that its moved keys had, and these keys, `[heads, rows, row]`, to make them those of the new
    /// positions. What is refused changes nothing.
    pub fn shift(
        &self,
        seq: SeqId,
        keep: u32,
        dropped: u32,
        mut rotate: impl FnMut(usize, Range<u32>, &mut [u8]),
    ) -> Result<(), KvError> {
        let mut state = self.entry.try_lock()?;
        let state = &mut *state;
        let book: &mut dyn Any = &mut *state.book;
        let cache: &mut K = book.downcast_mut().expect("checked at installation");
        let before = cache.held(seq)?;
        let (after, held) = cache.shifted(seq, keep, dropped)?;
        let config = state.bytes.config().clone();
        let block = |layer: usize, side: Side| RowBlock {
            layer,
            side,
            runs: &[],
            cells: held.cells(layer),
            bytes: &[],
            head_stride: 0,
        };
        let sides = (0..held.layers()).flat_map(|i| [(i, Side::Key), (i, Side::Value)]);
        let size = |(layer, side): (usize, Side)| {
            let rows = config.layers[layer].kv_heads * held.rows(layer);
            rows * config.row_bytes(layer, side)
        };
        // All memory first: once a row has moved, nothing may fail.
        let most = sides.clone().map(size).max().unwrap_or(0);
        let mut rows = Vec::new();
        rows.try_reserve_exact(most)
            .map_err(|_| KvErrorKind::OutOfMemory(most))?;
        let places: Vec<_> = sides.clone().map(|(i, side)| block(i, side)).collect();
        state.bytes.write_rows(&places)?;
        for (layer, side) in sides {
            let to = held.first(layer).max(keep)..held.len;
            let from = to.start + dropped..before.len;
            let stride = to.len() * config.row_bytes(layer, side);
            rows.resize(config.layers[layer].kv_heads * stride, 0);
            let runs = before.clipped(layer, &from);
            state.bytes.read_rows(layer, side, &runs, &mut rows);
            if side == Side::Key {
                rotate(layer, from, &mut rows);
            }
            let moved = RowBlock {
                runs: &held.clipped(layer, &to),
                bytes: &rows,
                head_stride: stride,
                ..block(layer, side)
            };
            state.bytes.write_rows(&[moved])?;
        }
        *cache = after;
        Ok(())
    }
}

impl<K: Bookkeeping + SeqCache> CacheSession<K> {
    /// Declares the sequence of every token of the next forward.
    pub fn begin_step(&self, seqs: &[SeqId]) -> Result<(), KvError> {
        self.with(|cache| cache.begin_step(seqs))?
    }

    /// Lets `dst` share what `src` holds at these positions.
    pub fn seq_cp(
        &self,
        src: SeqId,
        dst: SeqId,
        positions: impl RangeBounds<u32>,
    ) -> Result<(), KvError> {
        self.with(|cache| cache.seq_cp(src, dst, positions))?
    }

    /// Takes these positions out of `seq`.
    pub fn seq_rm(&self, seq: SeqId, positions: impl RangeBounds<u32>) -> Result<(), KvError> {
        self.with(|cache| cache.seq_rm(seq, positions))?
    }

    /// Frees all sequences but one.
    pub fn seq_keep(&self, seq: SeqId) -> Result<(), KvError> {
        self.with(|cache| cache.seq_keep(seq))?
    }

    /// Tokens that a sequence holds.
    pub fn seq_len(&self, seq: SeqId) -> Result<u32, KvError> {
        self.with(|cache| cache.seq_len(seq))?
    }

    /// The position that a sequence continues at.
    pub fn seq_next(&self, seq: SeqId) -> Result<Option<u32>, KvError> {
        self.with(|cache| cache.seq_next(seq))?
    }
}

impl CacheSession<ScatterIndex> {
    /// Declares the next forward's tokens, each with whether it is real; pads come last.
    pub fn begin_padded_step(&self, tokens: &[(SeqId, bool)]) -> Result<(), KvError> {
        self.with(|cache| cache.begin_padded_step(tokens))?
    }
}

impl CacheSession<Cells> {
    /// Moves rows together so that holes vanish and sequences lie in long runs again.
    pub fn compact(&self) -> Result<(), KvError> {
        let mut state = self.entry.try_lock()?;
        let state = &mut *state;
        let book: &mut dyn Any = &mut *state.book;
        let cells: &mut Cells = book.downcast_mut().expect("checked at installation");
        let before = cells.clone();
        match cells.compact().map(|order| state.bytes.reorder(&order)) {
            Some(Err(error)) => {
                *cells = before;
                Err(error)
            }
            _ => Ok(()),
        }
    }
}

impl CacheSession<Tree> {
    /// Appends candidates as the next forward's tokens.
    pub fn propose(&self, parents: &[Option<u32>]) -> Result<(), KvError> {
        self.with(|cache| cache.propose(parents))?
    }

    /// Makes a chain of candidates part of the prefix, compacts its rows and forgets the others.
    pub fn accept(&self, path: &[u32]) -> Result<(), KvError> {
        let mut state = self.entry.try_lock()?;
        let state = &mut *state;
        let book: &mut dyn Any = &mut *state.book;
        let tree: &mut Tree = book.downcast_mut().expect("checked at installation");
        let gather = tree.commit_path(path)?;
        state.bytes.gather(&gather);
        Ok(())
    }
}

impl<K> Drop for CacheSession<K> {
    fn drop(&mut self) {
        self.registry.erase(&self.key);
    }
}

#[cfg(test)]
mod tests;
