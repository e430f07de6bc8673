//! `CacheSession`: a runner's handle on a registered cache. Dropping the session removes the registration.

use crate::sync::Arc;
use crate::{
    Cache, CacheBuilderRegistry, CacheConfig, CacheEntry, CacheKey, CacheManager, CacheRegistry,
    CacheState, Cells, Contiguous, KvBytes, KvError, KvErrorKind, PrefixCells, Prefixed,
    Restorable, RowShift, SavedPositions, ScatterIndex, SeqCache, SeqId, SequenceRows,
    SharedPrefix, Tree, TreeCache,
};
use std::any::Any;
use std::marker::PhantomData;
use std::ops::RangeBounds;

/// The options that bind a module load to a session.
#[derive(Clone, Debug, Default)]
pub struct BackendOptions {
    /// The key of the cache that the module's `UpdateAndAttend` ops use.
    pub cache_key: Option<CacheKey>,
}

/// A handle on a registered cache whose bookkeeping is `K`.
///
/// Cache operations are called between forwards; while a forward runs they return `Busy`. Dropping the session removes the
/// registry entry; a module that is already bound keeps the cache alive.
pub struct CacheSession<K> {
    registry: CacheRegistry,
    key: CacheKey,
    entry: Arc<CacheEntry>,
    kind: PhantomData<fn() -> K>,
}

/// The result of the `make_*_session` functions: a session and the options to load a module with.
pub type SessionResult<K> = Result<(CacheSession<K>, BackendOptions), KvError>;

/// A session with one contiguous sequence on the named backend.
pub fn make_decode_session(backend: &str, config: &CacheConfig) -> SessionResult<Contiguous> {
    make_session(backend, "contiguous", config, Contiguous::new(config))
}

/// A session with many sequences in one pool of cells.
pub fn make_seq_session(backend: &str, config: &CacheConfig) -> SessionResult<Cells> {
    make_session(backend, "cells", config, Cells::new(config))
}

/// A session with one sequence and a tree of candidates.
pub fn make_tree_session(backend: &str, config: &CacheConfig) -> SessionResult<Tree> {
    make_session(backend, "tree", config, Tree::new(config))
}

/// A session with static buffers of `config.capacity` rows, one for each of `sequences` sequences.
pub fn make_scatter_session(
    backend: &str,
    config: &CacheConfig,
    sequences: u32,
) -> SessionResult<ScatterIndex> {
    let cells = u64::from(config.capacity) * u64::from(sequences);
    let cells = u32::try_from(cells).map_err(|_| {
        let rows = config.capacity;
        KvErrorKind::Config(format!("{sequences} static buffers of {rows} rows"))
    })?;
    let blocks = u64::from(config.initial_cells) * u64::from(sequences);
    let all = CacheConfig {
        capacity: cells,
        initial_cells: u32::try_from(blocks).unwrap_or(u32::MAX).min(cells),
        ..config.clone()
    };
    let bookkeeping = ScatterIndex::new(config, sequences);
    make_session(backend, "scatter", &all, bookkeeping)
}

/// A session with one contiguous sequence that continues a frozen prefix with a private tail.
pub fn make_prefixed_session(prefix: &SharedPrefix) -> SessionResult<Contiguous> {
    make_session_after(prefix, prefix.config())
}

/// A session of any kind, with this configuration, on a frozen prefix.
pub fn make_session_after<K: Prefixed>(
    prefix: &SharedPrefix,
    config: &CacheConfig,
) -> SessionResult<K> {
    let entry = prefix.entry::<K>(config)?;
    CacheSession::install(CacheRegistry::global(), entry, K::KIND)
}

/// Builds the backend's storage and registers the cache.
fn make_session<K: CacheManager>(
    backend: &str,
    kind: &'static str,
    config: &CacheConfig,
    bookkeeping: K,
) -> SessionResult<K> {
    let bytes = CacheBuilderRegistry::global().bytes(backend, config)?;
    let entry = CacheEntry::new(kind, Box::new(bookkeeping), bytes);
    CacheSession::install(CacheRegistry::global(), entry, kind)
}

/// The bookkeeping, downcast to `K`, and the bytes.
fn parts<K: CacheManager>(state: &mut CacheState) -> (&mut K, &mut dyn KvBytes) {
    let bookkeeping: &mut dyn Any = &mut *state.bookkeeping;
    let bookkeeping = bookkeeping.downcast_mut().expect("checked at installation");
    (bookkeeping, &mut *state.bytes)
}

impl<K: CacheManager> CacheSession<K> {
    /// Registers a cache with bookkeeping `K`; `wanted` is the name of its kind. The `make_*_session` functions call
    /// this with the process-wide registry, which module loads use.
    ///
    /// # Errors
    /// `WrongKind` if the bookkeeping of `entry` is not `K`.
    pub fn install(
        registry: &CacheRegistry,
        entry: CacheEntry,
        wanted: &'static str,
    ) -> SessionResult<K> {
        let is_k = (&*entry.try_lock()?.bookkeeping as &dyn Any).is::<K>();
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

    /// A session on a cache that no registry knows: [`entry`](CacheSession::entry) is handed to the modules that use it.
    pub fn new(kind: &'static str, bookkeeping: K, bytes: Box<dyn KvBytes>) -> CacheSession<K> {
        CacheSession::unregistered(CacheEntry::new(kind, Box::new(bookkeeping), bytes))
    }

    /// The entry's bookkeeping must be `K`.
    fn unregistered(entry: CacheEntry) -> CacheSession<K> {
        CacheSession {
            registry: CacheRegistry::default(),
            key: CacheKey::unique(),
            entry: Arc::new(entry),
            kind: PhantomData,
        }
    }

    /// The cache, for modules that are bound to it.
    pub fn entry(&self) -> &Arc<CacheEntry> {
        &self.entry
    }

    /// The key of the cache, for module loads.
    pub fn key(&self) -> &CacheKey {
        &self.key
    }

    /// The name of the cache's kind.
    pub fn kind(&self) -> &'static str {
        self.entry.kind()
    }

    /// Calls `read` with the bookkeeping. Only the session's operations can change it, because they keep the bytes
    /// consistent.
    pub fn with<R>(&self, read: impl FnOnce(&K) -> R) -> Result<R, KvError> {
        self.change(|cache| read(cache))
    }

    /// Calls a cache operation of the bookkeeping that moves no rows.
    fn change<R>(&self, operation: impl FnOnce(&mut K) -> R) -> Result<R, KvError> {
        let mut state = self.entry.try_lock()?;
        Ok(operation(parts(&mut state).0))
    }

    /// Whether `n` more tokens fit.
    pub fn can_extend(&self, n: u32) -> Result<bool, KvError> {
        self.with(|cache| cache.can_extend(n))
    }

    /// Cells in use now.
    pub fn len(&self) -> Result<u32, KvError> {
        self.with(|cache| cache.len())
    }

    /// Whether no cell is in use.
    pub fn is_empty(&self) -> Result<bool, KvError> {
        Ok(self.len()? == 0)
    }

    /// The maximum number of cells.
    pub fn capacity(&self) -> Result<u32, KvError> {
        self.with(|cache| cache.capacity())
    }

    /// Removes all tokens.
    pub fn clear(&self) -> Result<(), KvError> {
        self.change(|cache| cache.clear())
    }

    /// Removes all tokens after the first `len`.
    pub fn rewind(&self, len: u32) -> Result<(), KvError> {
        self.change(|cache| cache.rewind(len))?
    }

    /// The configuration of the cache.
    pub fn config(&self) -> Result<CacheConfig, KvError> {
        Ok(self.entry.try_lock()?.bytes.config().clone())
    }

    /// Bytes of keys and values allocated now, not counting a shared prefix.
    pub fn resident_bytes(&self) -> Result<usize, KvError> {
        Ok(self.entry.try_lock()?.bytes.resident_bytes())
    }
}

impl<K: Prefixed> CacheSession<K> {
    /// A session on a frozen prefix, on a cache that no registry knows.
    pub fn after_prefix(
        prefix: &SharedPrefix,
        config: &CacheConfig,
    ) -> Result<CacheSession<K>, KvError> {
        Ok(CacheSession::unregistered(prefix.entry::<K>(config)?))
    }
}

impl CacheSession<Contiguous> {
    /// Freezes the tokens of the session into a prefix that other sessions can share. This session continues after it.
    pub fn freeze(&self) -> Result<SharedPrefix, KvError> {
        let mut state = self.entry.try_lock()?;
        let config = state.bytes.config().clone();
        config.check_no_sinks("frozen into a prefix")?;
        let (contiguous, bytes) = parts::<Contiguous>(&mut state);
        let cells = PrefixCells::frozen(&contiguous.sequence_rows(0)?, &config);
        let frozen = bytes.freeze(&cells.counts())?;
        *contiguous = Contiguous::on(&config, &cells);
        Ok(SharedPrefix::new(frozen, cells, config))
    }
}

impl<K: CacheManager + Restorable> CacheSession<K> {
    /// Calls `read` with the location of a sequence's rows and the bytes that store them.
    pub fn read_sequence<R>(
        &self,
        seq: SeqId,
        read: impl FnOnce(&SequenceRows, &dyn KvBytes) -> R,
    ) -> Result<R, KvError> {
        let mut state = self.entry.try_lock()?;
        let (cache, bytes) = parts::<K>(&mut state);
        bytes.config().check_no_sinks("saved or shifted")?;
        Ok(read(&cache.sequence_rows(seq)?, bytes))
    }

    /// Replaces the content of `seq` by `len` tokens of which this was saved, and which `write` stores. An error leaves the cache unchanged, except that a device error in `write` leaves `seq` empty.
    pub fn replace_sequence(
        &self,
        seq: SeqId,
        len: u32,
        saved: SavedPositions<'_>,
        write: impl FnOnce(&SequenceRows, &mut dyn KvBytes) -> Result<(), KvError>,
    ) -> Result<(), KvError> {
        let mut state = self.entry.try_lock()?;
        let (cache, bytes) = parts::<K>(&mut state);
        bytes.config().check_no_sinks("restored")?;
        let (after, rows) = cache.plan_restore(seq, len, saved)?;
        let written = write(&rows, bytes);
        settle(cache, seq, after, written)
    }

    /// Appends tokens to `seq`, up to `len`, whose rows `write` stores: in each layer those from the position of `first` on. An error
    /// leaves the cache unchanged, except that a device error in `write` leaves `seq` empty.
    pub fn append_rows(
        &self,
        seq: SeqId,
        len: u32,
        first: &[u32],
        write: impl FnOnce(&SequenceRows, &mut dyn KvBytes) -> Result<(), KvError>,
    ) -> Result<(), KvError> {
        let mut state = self.entry.try_lock()?;
        let (cache, bytes) = parts::<K>(&mut state);
        bytes.config().check_no_sinks("appended")?;
        let (after, rows) = cache.plan_append(seq, len, first)?;
        let written = write(&rows, bytes);
        settle(cache, seq, after, written)
    }

    /// The maximum number of tokens that [`shift`](CacheSession::shift) can drop after the first `keep` of a sequence.
    pub fn max_shift(&self, seq: SeqId, keep: u32) -> Result<u32, KvError> {
        self.read_sequence(seq, |rows, bytes| rows.max_shift(keep, bytes.config()))
    }

    /// Drops the `dropped` tokens of a sequence after its first `keep` and moves the later tokens to lower positions.
    /// `move_rows` moves their rows and rotates their keys to the new positions. An error leaves the cache unchanged,
    /// except that a device error in `move_rows` leaves `seq` empty.
    pub fn shift(
        &self,
        seq: SeqId,
        keep: u32,
        dropped: u32,
        move_rows: impl FnOnce(&RowShift, &mut dyn KvBytes) -> Result<(), KvError>,
    ) -> Result<(), KvError> {
        let mut state = self.entry.try_lock()?;
        let (cache, bytes) = parts::<K>(&mut state);
        bytes.config().check_no_sinks("shifted")?;
        let before = cache.sequence_rows(seq)?;
        let (after, rows) = cache.plan_shift(seq, keep, dropped)?;
        let shift = RowShift::new(keep, dropped, before, rows);
        let moved = move_rows(&shift, bytes);
        settle(cache, seq, after, moved)
    }
}

/// Commits a change of a sequence's rows if `written` succeeded. After a device error the rows are undefined, so the
/// sequence is removed.
fn settle<K: Restorable>(
    cache: &mut K,
    seq: SeqId,
    after: K,
    written: Result<(), KvError>,
) -> Result<(), KvError> {
    match &written {
        Ok(()) => *cache = after,
        Err(error) if matches!(error.kind(), KvErrorKind::Device(_)) => cache.forget(seq),
        Err(_) => {}
    }
    written
}

impl<K: CacheManager + SeqCache> CacheSession<K> {
    /// Declares the sequence of every token of the next forward.
    pub fn begin_step(&self, seqs: &[SeqId]) -> Result<(), KvError> {
        self.change(|cache| cache.begin_step(seqs))?
    }

    /// Makes `dst` share the cells of `src` at these positions.
    pub fn seq_cp(
        &self,
        src: SeqId,
        dst: SeqId,
        positions: impl RangeBounds<u32>,
    ) -> Result<(), KvError> {
        self.change(|cache| cache.seq_cp(src, dst, positions))?
    }

    /// Removes these positions from `seq`.
    pub fn seq_rm(&self, seq: SeqId, positions: impl RangeBounds<u32>) -> Result<(), KvError> {
        self.change(|cache| cache.seq_rm(seq, positions))?
    }

    /// Removes all sequences except `seq`.
    pub fn seq_keep(&self, seq: SeqId) -> Result<(), KvError> {
        self.change(|cache| cache.seq_keep(seq))?
    }

    /// The number of tokens in a sequence.
    pub fn seq_len(&self, seq: SeqId) -> Result<u32, KvError> {
        self.with(|cache| cache.seq_len(seq))?
    }

    /// The position of the next token of a sequence; `None` for an empty one.
    pub fn seq_next(&self, seq: SeqId) -> Result<Option<u32>, KvError> {
        self.with(|cache| cache.seq_next(seq))?
    }
}

impl CacheSession<ScatterIndex> {
    /// Declares the tokens of the next forward, with a flag whether a token is real. Pads come last.
    pub fn begin_padded_step(&self, tokens: &[(SeqId, bool)]) -> Result<(), KvError> {
        self.change(|cache| cache.begin_padded_step(tokens))?
    }
}

impl CacheSession<Cells> {
    /// Makes a read-only sequence that shares the cells of `src` at these positions. See [`Cells::retain`].
    pub fn retain(&self, src: SeqId, positions: impl RangeBounds<u32>) -> Result<SeqId, KvError> {
        self.change(|cells| cells.retain(src, positions))?
    }

    /// Removes a retained prefix.
    pub fn release(&self, id: SeqId) -> Result<(), KvError> {
        self.change(|cells| cells.release(id))?
    }

    /// Declares candidates of a sequence as tokens of the next forward. See [`Cells::propose`].
    pub fn propose(&self, seq: SeqId, parents: &[Option<u32>]) -> Result<(), KvError> {
        self.change(|cells| cells.propose(seq, parents))?
    }

    /// Commits a chain of a sequence's candidates and removes the others. Moves no rows.
    pub fn accept(&self, seq: SeqId, path: &[u32]) -> Result<(), KvError> {
        self.change(|cells| cells.commit_path(seq, path))?
    }

    /// Moves rows so that the pool has no holes and sequences have long runs.
    pub fn compact(&self) -> Result<(), KvError> {
        let mut state = self.entry.try_lock()?;
        let (cells, bytes) = parts::<Cells>(&mut state);
        let mut after = cells.clone();
        if let Some(order) = after.compact() {
            bytes.reorder(&order)?;
            *cells = after;
        }
        Ok(())
    }
}

impl CacheSession<Tree> {
    /// Declares candidates as the tokens of the next forward.
    pub fn propose(&self, parents: &[Option<u32>]) -> Result<(), KvError> {
        self.change(|cache| cache.propose(parents))?
    }

    /// Commits a chain of candidates, compacts its rows and removes the other candidates. If the device fails to copy
    /// the rows, no candidate is committed and all are removed.
    pub fn accept(&self, path: &[u32]) -> Result<(), KvError> {
        let mut state = self.entry.try_lock()?;
        let (tree, bytes) = parts::<Tree>(&mut state);
        let before = tree.len();
        let gather = tree.commit_path(path)?;
        let gathered = bytes.gather(&gather);
        if gathered.is_err() {
            tree.rewind(before)?;
        }
        gathered
    }
}

impl<K> Drop for CacheSession<K> {
    fn drop(&mut self) {
        self.registry.erase(&self.key);
    }
}

#[cfg(test)]
mod tests;
