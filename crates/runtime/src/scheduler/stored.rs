//! `StoredPrefixes`: prefixes outside the pool of cells, found by their tokens.

use super::radix::RadixIndex;
use crate::batch_runner::{Approximation, Inexact};
use crate::snapshot::{RestorableLengths, Snapshot, SnapshotError};
use kv::KvStorage;
use std::collections::HashMap;
use std::time::SystemTime;

/// A prefix outside the pool. `P` is the place of its rows.
pub(super) struct StoredPrefix<P> {
    pub(super) tokens: Vec<u32>,
    restorable: RestorableLengths,
    /// How the rows of each layer are stored.
    pub(super) types: Vec<[KvStorage; 2]>,
    /// The rows that are an approximation.
    pub(super) inexact: Option<Inexact>,
    pub(super) bytes: u64,
    /// The time of the last use.
    pub(super) used: SystemTime,
    pub(super) place: P,
}

impl<P> StoredPrefix<P> {
    /// The prefix that a snapshot has.
    pub(super) fn of(snapshot: &Snapshot, bytes: u64, used: SystemTime, place: P) -> Self {
        StoredPrefix {
            tokens: snapshot.tokens().to_vec(),
            restorable: snapshot.restorable(),
            types: snapshot.layer_types(),
            inexact: inexact_of(snapshot.notes()),
            bytes,
            used,
            place,
        }
    }
}

/// The notes of a snapshot that say which of its rows are an approximation.
pub(super) fn notes_of(inexact: Option<Inexact>) -> Vec<u8> {
    let from = inexact.map(|inexact| (inexact.from as u32).to_le_bytes());
    from.map_or(vec![], |from| from.to_vec())
}

impl Snapshot {
    /// The snapshot with its rows in smaller types, all of them an approximation from now on.
    pub(super) fn approximated_in(
        &self,
        types: &[[KvStorage; 2]],
    ) -> Result<Snapshot, SnapshotError> {
        let notes = notes_of(Some(Inexact {
            from: 0,
            cause: Approximation::Stored,
        }));
        self.in_types(types, &notes)
    }
}

pub(super) fn inexact_of(notes: &[u8]) -> Option<Inexact> {
    let from = u32::from_le_bytes(notes.try_into().ok()?);
    Some(Inexact {
        from: from as usize,
        cause: Approximation::Stored,
    })
}

/// A prefix that shares tokens with a prompt.
pub(super) struct Found {
    /// The number of tokens that both begin with.
    pub(super) shared: usize,
    /// Those of them that can be restored.
    pub(super) kept: usize,
    pub(super) id: u32,
}

/// Prefixes by number, with an index over the tokens of those that can be used.
pub(super) struct StoredPrefixes<P> {
    all: HashMap<u32, StoredPrefix<P>>,
    index: RadixIndex,
    next: u32,
}

impl<P> Default for StoredPrefixes<P> {
    fn default() -> Self {
        StoredPrefixes {
            all: HashMap::new(),
            index: RadixIndex::default(),
            next: 0,
        }
    }
}

impl<P> StoredPrefixes<P> {
    /// Adds a prefix that can be used.
    pub(super) fn add(&mut self, prefix: StoredPrefix<P>) -> u32 {
        let id = self.next;
        self.index.insert(&prefix.tokens, id);
        self.all.insert(id, prefix);
        self.next += 1;
        id
    }

    pub(super) fn remove(&mut self, id: u32) -> Option<StoredPrefix<P>> {
        let prefix = self.all.remove(&id)?;
        self.index.remove(&prefix.tokens, id);
        Some(prefix)
    }

    pub(super) fn get(&self, id: u32) -> Option<&StoredPrefix<P>> {
        self.all.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut StoredPrefix<P>> {
        self.all.get_mut(&id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &StoredPrefix<P>)> {
        self.all.iter().map(|(id, prefix)| (*id, prefix))
    }

    /// Finds only these prefixes from now on. The others stay.
    pub(super) fn use_only(&mut self, usable: impl Fn(&StoredPrefix<P>) -> bool) {
        self.index = RadixIndex::default();
        for (id, prefix) in self.all.iter().filter(|(_, prefix)| usable(prefix)) {
            self.index.insert(&prefix.tokens, *id);
        }
    }

    /// The number of prefixes, and their bytes.
    pub(super) fn usage(&self) -> (usize, u64) {
        let bytes = self.all.values().map(|prefix| prefix.bytes).sum();
        (self.all.len(), bytes)
    }

    /// The prefix from which the most of the first `limit` tokens can be restored.
    pub(super) fn find(&self, tokens: &[u32], limit: usize) -> Option<Found> {
        let found = self.index.find(tokens);
        let longest = found.owners.iter().map(|id| (*id, found.len));
        // With recurrent layers, a shorter prefix on the way may have a later state.
        let types = found.owners.first().map(|id| &self.all[id].types);
        let on_the_way = self.all.iter().filter(|(_, stored)| {
            stored.restorable.has_states()
                && Some(&stored.types) == types
                && stored.tokens.len() < found.len
                && tokens.starts_with(&stored.tokens)
        });
        let on_the_way = on_the_way.map(|(id, stored)| (*id, stored.tokens.len()));
        let candidates = longest.chain(on_the_way).map(|(id, shared)| Found {
            shared,
            kept: self.all[&id].restorable.longest(shared.min(limit)),
            id,
        });
        let exact = |found: &Found| self.all[&found.id].inexact.is_none();
        let best = candidates.max_by_key(|f| (f.kept, f.shared, exact(f), f.id));
        best.filter(|found| found.kept > 0)
    }

    /// The prefixes that one with more tokens in the same types replaces: whatever can be restored from them can be restored from it.
    pub(super) fn replaced_by(&self, longer: &StoredPrefix<P>) -> Vec<u32> {
        let replaced = |prefix: &StoredPrefix<P>| {
            let kept = |lengths: &RestorableLengths| lengths.longest(prefix.tokens.len());
            longer.tokens.starts_with(&prefix.tokens)
                && prefix.types == longer.types
                && (prefix.inexact.is_some() || longer.inexact.is_none())
                && kept(&longer.restorable) >= kept(&prefix.restorable)
        };
        let all = self.all.iter().filter(|(_, prefix)| replaced(prefix));
        all.map(|(id, _)| *id).collect()
    }

    /// Whether a prefix can be restored from which all these tokens come.
    pub(super) fn holds(&self, tokens: &[u32]) -> bool {
        let found = self.find(tokens, tokens.len());
        found.is_some_and(|found| found.kept == tokens.len())
    }
}
