//! `CacheOperations`: the operations of a session's cache, whatever its kind.

use crate::contiguous::check_only_sequence;
use crate::sync::Arc;
use crate::{
    CacheConfig, CacheEntry, CacheManager, CacheSession, CellRun, Cells, Contiguous, KvBytes,
    KvError, KvErrorKind, RowShift, SavedPositions, SeqId, SequenceRows, SharedPrefix, Tree,
};

/// Reads the rows of a sequence from the bytes that store them.
pub type ReadRows<'a> = &'a mut dyn FnMut(&SequenceRows, &dyn KvBytes);
/// Writes the rows of a sequence to the bytes that store them.
pub type WriteRows<'a> = &'a mut dyn FnMut(&SequenceRows, &mut dyn KvBytes) -> Result<(), KvError>;
/// Moves the rows of a sequence to lower positions.
pub type MoveRows<'a> = &'a mut dyn FnMut(&RowShift, &mut dyn KvBytes) -> Result<(), KvError>;

/// The operations of a session's cache, called between forwards. Object-safe, so that a runner works on every kind of cache.
///
/// A kind implements the operations that it has. The others return `Unsupported`, which names the kind and the operation.
pub trait CacheOperations: Send {
    /// The name of the cache's kind.
    fn kind(&self) -> &'static str;
    /// The cache, for modules that are bound to it.
    fn entry(&self) -> Arc<CacheEntry>;
    /// The configuration of the cache.
    fn config(&self) -> Result<CacheConfig, KvError>;
    /// The maximum number of cells.
    fn capacity(&self) -> Result<u32, KvError>;
    /// Cells in use now. A shared cell counts once.
    fn len(&self) -> Result<u32, KvError>;
    /// Whether no cell is in use.
    fn is_empty(&self) -> Result<bool, KvError> {
        Ok(self.len()? == 0)
    }
    /// Whether `n` more tokens fit.
    fn can_extend(&self, n: u32) -> Result<bool, KvError>;
    /// Bytes of keys and values allocated now, not counting a shared prefix.
    fn resident_bytes(&self) -> Result<usize, KvError>;
    /// Removes all tokens of a sequence after the first `len`.
    fn rewind(&self, seq: SeqId, len: u32) -> Result<(), KvError>;
    /// The longest length, at most `len`, at which a sequence or a retained prefix can be rewound or forked; 0 if it can only begin
    /// anew. Ring layers have evicted the rows that a shorter one needs, and recurrent layers keep few states.
    fn restorable(&self, seq: SeqId, len: u32) -> Result<u32, KvError>;
    /// Slots of states in use and their number; zeros if no layer has a state.
    fn states_used(&self) -> Result<(u32, u32), KvError> {
        Ok((0, 0))
    }

    /// Makes `dst`, which must be empty, share the first `len` tokens of `src`. Copies no rows.
    fn fork(&self, src: SeqId, dst: SeqId, len: u32) -> Result<(), KvError> {
        let _ = (src, dst, len);
        self.unsupported("fork a sequence")
    }
    /// Removes all sequences except one.
    fn keep_only(&self, seq: SeqId) -> Result<(), KvError> {
        let _ = seq;
        self.unsupported("hold several sequences")
    }
    /// Makes a read-only sequence that shares the cells of `seq`, and returns its id.
    fn retain(&self, seq: SeqId) -> Result<SeqId, KvError> {
        let _ = seq;
        self.unsupported("retain a prefix")
    }
    /// Removes a retained prefix.
    fn release(&self, id: SeqId) -> Result<(), KvError> {
        let _ = id;
        self.unsupported("retain a prefix")
    }
    /// The sequence of a frozen prefix that this pool stands on, to fork from. A cache of one sequence has the prefix already.
    fn prefix(&self) -> Result<Option<SeqId>, KvError> {
        Ok(None)
    }
    /// Whether steps of this cache can have candidates.
    fn holds_candidates(&self) -> bool {
        false
    }
    /// Commits a chain of a sequence's candidates and removes the others.
    fn accept(&self, seq: SeqId, path: &[u32]) -> Result<(), KvError> {
        let _ = (seq, path);
        self.unsupported("hold candidates")
    }
    /// Moves rows so that the pool has no holes and sequences have long runs.
    fn compact(&self) -> Result<(), KvError> {
        Ok(())
    }
    /// The cell runs of a sequence, in the order of its positions.
    fn runs(&self, seq: SeqId) -> Result<Vec<CellRun>, KvError> {
        let len = match seq {
            0 => self.len()?,
            _ => 0,
        };
        Ok(Vec::from_iter((len > 0).then_some(CellRun {
            position: 0,
            cell: 0,
            len,
        })))
    }
    /// The number of cell runs of a sequence.
    fn run_count(&self, seq: SeqId) -> Result<usize, KvError> {
        Ok(self.runs(seq)?.len())
    }
    /// For each cell up to the last one in use, the number of sequences that hold it.
    fn ref_counts(&self) -> Result<Vec<u16>, KvError> {
        Ok(vec![1; self.len()? as usize])
    }
    /// Freezes all tokens into a prefix that other sessions can share. This session continues after it.
    fn freeze(&self) -> Result<SharedPrefix, KvError> {
        self.unsupported("be frozen into a prefix")
    }
    /// Calls `read` with the location of a sequence's rows and the bytes that store them.
    fn read_rows(&self, seq: SeqId, read: ReadRows<'_>) -> Result<(), KvError> {
        let _ = (seq, read);
        self.unsupported("be saved")
    }
    /// Replaces the content of `seq` by `len` tokens, as [`CacheSession::replace_sequence`].
    fn write_rows(
        &self,
        seq: SeqId,
        len: u32,
        saved: SavedPositions<'_>,
        write: WriteRows<'_>,
    ) -> Result<(), KvError> {
        let _ = (seq, len, saved, write);
        self.unsupported("be restored")
    }
    /// Appends tokens to `seq`, up to `len`, whose rows `write` stores, as [`CacheSession::append_rows`].
    fn append_rows(
        &self,
        seq: SeqId,
        len: u32,
        first: &[u32],
        write: WriteRows<'_>,
    ) -> Result<(), KvError> {
        let _ = (seq, len, first, write);
        self.unsupported("take rows")
    }
    /// The maximum number of tokens that [`shift`](CacheOperations::shift) can drop after the first `keep` of a sequence.
    fn max_shift(&self, seq: SeqId, keep: u32) -> Result<u32, KvError> {
        let _ = (seq, keep);
        self.unsupported("be shifted")
    }
    /// Drops the `dropped` tokens of a sequence after its first `keep`, as [`CacheSession::shift`].
    fn shift(
        &self,
        seq: SeqId,
        keep: u32,
        dropped: u32,
        move_rows: MoveRows<'_>,
    ) -> Result<(), KvError> {
        let _ = (seq, keep, dropped, move_rows);
        self.unsupported("be shifted")
    }
}

/// The error of an operation that a kind does not have. A private extension, so that every default above is one line.
trait Refuses {
    fn unsupported<T>(&self, operation: &'static str) -> Result<T, KvError>;
}

impl<C: CacheOperations + ?Sized> Refuses for C {
    fn unsupported<T>(&self, operation: &'static str) -> Result<T, KvError> {
        let kind = self.kind();
        Err(KvErrorKind::Unsupported { kind, operation }.into())
    }
}

/// The operations that every kind has.
macro_rules! common_operations {
    ($kind:literal) => {
        fn kind(&self) -> &'static str {
            $kind
        }

        fn entry(&self) -> Arc<CacheEntry> {
            CacheSession::entry(self).clone()
        }

        fn config(&self) -> Result<CacheConfig, KvError> {
            CacheSession::config(self)
        }

        fn capacity(&self) -> Result<u32, KvError> {
            CacheSession::capacity(self)
        }

        fn len(&self) -> Result<u32, KvError> {
            CacheSession::len(self)
        }

        fn can_extend(&self, n: u32) -> Result<bool, KvError> {
            CacheSession::can_extend(self, n)
        }

        fn resident_bytes(&self) -> Result<usize, KvError> {
            CacheSession::resident_bytes(self)
        }
    };
}

/// The operations of kinds whose sequences can be saved, restored and shifted.
macro_rules! restorable_operations {
    () => {
        fn read_rows(&self, seq: SeqId, read: ReadRows<'_>) -> Result<(), KvError> {
            self.read_sequence(seq, |rows, bytes| read(rows, bytes))
        }

        fn write_rows(
            &self,
            seq: SeqId,
            len: u32,
            saved: SavedPositions<'_>,
            write: WriteRows<'_>,
        ) -> Result<(), KvError> {
            self.replace_sequence(seq, len, saved, |rows, bytes| write(rows, bytes))
        }

        fn append_rows(
            &self,
            seq: SeqId,
            len: u32,
            first: &[u32],
            write: WriteRows<'_>,
        ) -> Result<(), KvError> {
            CacheSession::append_rows(self, seq, len, first, |rows, bytes| write(rows, bytes))
        }

        fn max_shift(&self, seq: SeqId, keep: u32) -> Result<u32, KvError> {
            CacheSession::max_shift(self, seq, keep)
        }

        fn shift(
            &self,
            seq: SeqId,
            keep: u32,
            dropped: u32,
            move_rows: MoveRows<'_>,
        ) -> Result<(), KvError> {
            CacheSession::shift(self, seq, keep, dropped, |shift, bytes| {
                move_rows(shift, bytes)
            })
        }
    };
}

impl CacheOperations for CacheSession<Contiguous> {
    common_operations!("contiguous");
    restorable_operations!();

    fn rewind(&self, seq: SeqId, len: u32) -> Result<(), KvError> {
        rewind_only_sequence(self, seq, len)
    }

    fn restorable(&self, _: SeqId, len: u32) -> Result<u32, KvError> {
        let floor = self.with(Contiguous::rewind_floor)?;
        Ok(if len >= floor { len } else { 0 })
    }

    fn keep_only(&self, _: SeqId) -> Result<(), KvError> {
        Ok(())
    }

    fn freeze(&self) -> Result<SharedPrefix, KvError> {
        CacheSession::freeze(self)
    }
}

impl CacheOperations for CacheSession<Tree> {
    common_operations!("tree");
    restorable_operations!();

    fn rewind(&self, seq: SeqId, len: u32) -> Result<(), KvError> {
        // Candidates of an abandoned round are removed with the tokens.
        if self.with(Tree::candidates)? > 0 {
            CacheSession::<Tree>::accept(self, &[])?;
        }
        rewind_only_sequence(self, seq, len)
    }

    fn restorable(&self, _: SeqId, len: u32) -> Result<u32, KvError> {
        let floor = self.with(Tree::rewind_floor)?;
        Ok(if len >= floor { len } else { 0 })
    }

    fn keep_only(&self, _: SeqId) -> Result<(), KvError> {
        Ok(())
    }

    fn holds_candidates(&self) -> bool {
        true
    }

    fn accept(&self, seq: SeqId, path: &[u32]) -> Result<(), KvError> {
        check_only_sequence(seq)?;
        CacheSession::<Tree>::accept(self, path)
    }
}

impl CacheOperations for CacheSession<Cells> {
    common_operations!("cells");
    restorable_operations!();

    fn rewind(&self, seq: SeqId, len: u32) -> Result<(), KvError> {
        self.seq_rm(seq, len..)
    }

    fn restorable(&self, seq: SeqId, len: u32) -> Result<u32, KvError> {
        self.with(|cells| cells.restorable(seq, len))?
    }

    fn states_used(&self) -> Result<(u32, u32), KvError> {
        self.with(Cells::states_used)
    }

    fn fork(&self, src: SeqId, dst: SeqId, len: u32) -> Result<(), KvError> {
        self.seq_cp(src, dst, ..len)
    }

    fn keep_only(&self, seq: SeqId) -> Result<(), KvError> {
        self.seq_keep(seq)
    }

    fn retain(&self, seq: SeqId) -> Result<SeqId, KvError> {
        CacheSession::<Cells>::retain(self, seq, ..)
    }

    fn release(&self, id: SeqId) -> Result<(), KvError> {
        CacheSession::<Cells>::release(self, id)
    }

    fn prefix(&self) -> Result<Option<SeqId>, KvError> {
        self.with(Cells::prefix)
    }

    fn holds_candidates(&self) -> bool {
        true
    }

    fn accept(&self, seq: SeqId, path: &[u32]) -> Result<(), KvError> {
        CacheSession::<Cells>::accept(self, seq, path)
    }

    fn compact(&self) -> Result<(), KvError> {
        CacheSession::<Cells>::compact(self)
    }

    fn runs(&self, seq: SeqId) -> Result<Vec<CellRun>, KvError> {
        self.with(|cells| cells.runs(seq).map(<[CellRun]>::to_vec))?
    }

    fn run_count(&self, seq: SeqId) -> Result<usize, KvError> {
        self.with(|cells| cells.runs(seq).map(<[CellRun]>::len))?
    }

    fn ref_counts(&self) -> Result<Vec<u16>, KvError> {
        self.with(|cells| cells.ref_counts().to_vec())
    }
}

/// A session whose cache holds one sequence, of a kind that this crate does not know. It has the operations of [`Cache`](crate::Cache).
pub struct OneSequence<K>(pub CacheSession<K>);

impl<K: CacheManager> CacheOperations for OneSequence<K> {
    fn kind(&self) -> &'static str {
        self.0.kind()
    }

    fn entry(&self) -> Arc<CacheEntry> {
        self.0.entry().clone()
    }

    fn config(&self) -> Result<CacheConfig, KvError> {
        self.0.config()
    }

    fn capacity(&self) -> Result<u32, KvError> {
        self.0.capacity()
    }

    fn len(&self) -> Result<u32, KvError> {
        self.0.len()
    }

    fn can_extend(&self, n: u32) -> Result<bool, KvError> {
        self.0.can_extend(n)
    }

    fn resident_bytes(&self) -> Result<usize, KvError> {
        self.0.resident_bytes()
    }

    fn rewind(&self, seq: SeqId, len: u32) -> Result<(), KvError> {
        rewind_only_sequence(&self.0, seq, len)
    }

    fn restorable(&self, _: SeqId, len: u32) -> Result<u32, KvError> {
        Ok(len)
    }
}

/// Rewinds the cache of one sequence. Length 0 clears it, as far as a shared prefix allows.
fn rewind_only_sequence<K: CacheManager>(
    session: &CacheSession<K>,
    seq: SeqId,
    len: u32,
) -> Result<(), KvError> {
    if seq != 0 && len == 0 {
        return Ok(());
    }
    check_only_sequence(seq)?;
    if len > 0 {
        return session.rewind(len);
    }
    session.clear()?;
    match session.len()? {
        0 => Ok(()),
        tokens => Err(KvErrorKind::PrefixReadOnly { tokens }.into()),
    }
}
