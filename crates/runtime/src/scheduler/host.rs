//! `HostStore`: prefixes in host memory that left the pool. As they age, their rows are stored in smaller types, if that is allowed.

use super::state::Rung;
use super::stored::{Found, StoredPrefix, StoredPrefixes};
use crate::snapshot::Snapshot;
use kv::KvStorage;
use std::time::SystemTime;

/// Host memory for prefixes that left the pool of cells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostRungs {
    /// The most bytes that they take. With 0 there are none.
    pub limit: u64,
    /// The types in which rows are stored one after the other when there is no more room for them as they are: q8, then q4. Rows that
    /// come back from such a type are an approximation. Empty: they leave as they are.
    pub types: Vec<KvStorage>,
}

/// Prefixes in host memory.
pub(super) struct HostStore {
    rungs: HostRungs,
    prefixes: StoredPrefixes<Held>,
    /// Counts uses.
    clock: u64,
}

struct Held {
    snapshot: Snapshot,
    /// How many of the types it went down.
    rung: usize,
    /// Whether it must keep its rows as they are: a running request goes on with them.
    running: bool,
    used: u64,
}

impl HostStore {
    pub(super) fn new(rungs: HostRungs) -> HostStore {
        HostStore {
            rungs,
            prefixes: StoredPrefixes::default(),
            clock: 0,
        }
    }

    /// Whether rows may be stored in smaller types.
    pub(super) fn stores_smaller(&self) -> bool {
        !self.rungs.types.is_empty()
    }

    /// Whether there is host memory for prefixes.
    pub(super) fn is_there(&self) -> bool {
        self.rungs.limit > 0
    }

    /// Takes a snapshot. Returns those that have no more room, which may be this one.
    pub(super) fn put(&mut self, snapshot: Snapshot, running: bool) -> Vec<Snapshot> {
        if snapshot.file_bytes() as u64 > self.rungs.limit {
            return vec![snapshot];
        }
        self.clock += 1;
        let held = Held {
            snapshot: snapshot.clone(),
            rung: 0,
            running,
            used: self.clock,
        };
        let prefix = stored(&snapshot, held);
        for id in self.prefixes.replaced_by(&prefix) {
            self.prefixes.remove(id);
        }
        self.prefixes.add(prefix);
        self.trim()
    }

    /// Stores prefixes in smaller types, or removes them, until the limit holds.
    fn trim(&mut self) -> Vec<Snapshot> {
        let mut left = vec![];
        while self.prefixes.usage().1 > self.rungs.limit {
            // The bytes that a prefix holds, for what it would take to compute it, and the longer the less it was used.
            let score = |prefix: &StoredPrefix<Held>| {
                let age = self.clock - prefix.place.used + 1;
                age as f64 * prefix.bytes as f64 / prefix.tokens.len() as f64
            };
            let all = self.prefixes.iter();
            let worst = all.max_by(|(_, a), (_, b)| score(a).total_cmp(&score(b)));
            let Some((id, _)) = worst else { break };
            let prefix = self.prefixes.remove(id).expect("it is there");
            match self.smaller(&prefix) {
                Some(smaller) => _ = self.prefixes.add(smaller),
                None => left.push(prefix.place.snapshot),
            }
        }
        left
    }

    /// A prefix on its next rung; `None` if there is none, or if it may not go there.
    fn smaller(&self, prefix: &StoredPrefix<Held>) -> Option<StoredPrefix<Held>> {
        let held = &prefix.place;
        let rungs = held.rung..self.rungs.types.len();
        // A row of few elements may take no less in a type that has fewer bits.
        let mut smaller = rungs.map(|rung| (rung + 1, self.types_on(rung, prefix)));
        let (rung, types) = smaller.find(|(_, types)| *types != prefix.types)?;
        if held.running {
            return None;
        }
        let snapshot = held.snapshot.approximated_in(&types).ok()?;
        let held = Held {
            snapshot: snapshot.clone(),
            rung,
            ..*held
        };
        Some(stored(&snapshot, held))
    }

    /// The types of a prefix's layers in one of the types, where that is smaller.
    fn types_on(&self, rung: usize, prefix: &StoredPrefix<Held>) -> Vec<[KvStorage; 2]> {
        let next = self.rungs.types[rung];
        let layers = prefix.place.snapshot.layers().zip(&prefix.types);
        let types = layers.map(|(layer, types)| {
            let smaller = |storage: KvStorage, dim: usize| match next.row_bytes(dim) {
                bytes if bytes < storage.row_bytes(dim) && !layer.is_state() => next,
                _ => storage,
            };
            [
                smaller(types[0], layer.key_dim),
                smaller(types[1], layer.value_dim),
            ]
        });
        types.collect()
    }

    /// The prefix with the most of the first `limit` tokens.
    pub(super) fn find(&self, tokens: &[u32], limit: usize) -> Option<Found> {
        self.prefixes.find(tokens, limit)
    }

    /// Whether all these tokens can be restored.
    pub(super) fn holds(&self, tokens: &[u32]) -> bool {
        self.prefixes.holds(tokens)
    }

    /// The snapshot of a prefix that was found, and how far down it went.
    pub(super) fn take_up(&mut self, id: u32) -> Snapshot {
        self.clock += 1;
        let clock = self.clock;
        let prefix = self.prefixes.get_mut(id).expect("it was found");
        prefix.place.used = clock;
        // The request that it was kept for has it now.
        prefix.place.running = false;
        prefix.place.snapshot.clone()
    }

    /// The tokens of a prefix that was found.
    pub(super) fn tokens(&self, id: u32) -> &[u32] {
        self.prefixes.get(id).map_or(&[], |prefix| &prefix.tokens)
    }

    /// The name of the rung that a prefix is on.
    pub(super) fn rung_of(&self, id: u32) -> String {
        let rung = self.prefixes.get(id).map_or(0, |prefix| prefix.place.rung);
        self.name(rung)
    }

    /// What is on the rungs, which share the limit.
    pub(super) fn rungs(&self) -> Vec<Rung> {
        if !self.is_there() {
            return vec![];
        }
        let rung = |rung: usize| {
            let there = || {
                let all = self.prefixes.iter().map(|(_, prefix)| prefix);
                all.filter(|prefix| prefix.place.rung == rung)
            };
            Rung {
                name: self.name(rung),
                prefixes: there().count(),
                tokens: there().map(|prefix| prefix.tokens.len()).sum(),
                bytes: there().map(|prefix| prefix.bytes).sum(),
                limit: self.rungs.limit,
            }
        };
        (0..=self.rungs.types.len()).map(rung).collect()
    }

    fn name(&self, rung: usize) -> String {
        match rung.checked_sub(1).and_then(|i| self.rungs.types.get(i)) {
            None => "host".to_owned(),
            Some(storage) => format!("host {storage}"),
        }
    }
}

fn stored(snapshot: &Snapshot, held: Held) -> StoredPrefix<Held> {
    let bytes = snapshot.file_bytes() as u64;
    StoredPrefix::of(snapshot, bytes, SystemTime::UNIX_EPOCH, held)
}
