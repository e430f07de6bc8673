//! `PrefixStore`: the prefixes of finished requests, retained in the pool of cells, and from there in host memory and on disk.

mod reuse;

use super::branch_cells::{BranchCells, Released};
use super::disk::DiskStore;
use super::evictions::{Eviction, EvictionLog, EvictionReason};
use super::host::HostStore;
use super::radix::RadixIndex;
use super::request::CacheSource;
use super::speeds::{Speeds, Way};
use super::state::Rung;
use super::stored::notes_of;
use crate::batch_runner::Approximation;
use crate::snapshot::Snapshot;
use crate::{BatchRunner, Model, RuntimeError};
use kv::SeqId;
use std::collections::{HashMap, VecDeque};
use std::time::Instant;

/// Shorter prefixes leave the pool for nowhere: computing them again is as fast.
const MIN_SAVED_TOKENS: usize = 64;

/// A prefix comes back only if it has this many tokens more than the pool has.
const MIN_RESTORED_TOKENS: usize = 64;

/// The largest number of tokens of removed prefixes that are remembered.
const MAX_EVICTED_TOKENS: usize = 1 << 20;

/// Retained prefixes, by their sequence in the pool, with an index over their tokens.
pub(super) struct PrefixStore {
    entries: HashMap<SeqId, Entry>,
    index: RadixIndex,
    /// Counts uses: the entry with the lowest count was not used for the longest time.
    clock: u64,
    max_entries: usize,
    host: HostStore,
    disk: Option<DiskStore>,
    /// What it takes to bring a prefix back.
    pub(super) speeds: Speeds,
    evictions: EvictionLog,
    next_number: u64,
    /// The prefixes whose holds have ended.
    released: Released,
    /// What was removed, so that a miss can name the reason.
    evicted: EvictedPrefixes,
}

/// The tokens of the last prefixes that were removed to make room.
#[derive(Default)]
struct EvictedPrefixes {
    index: RadixIndex,
    lists: VecDeque<(u32, Vec<u32>)>,
    next: u32,
    tokens: usize,
}

impl EvictedPrefixes {
    fn add(&mut self, tokens: Vec<u32>) {
        self.tokens += tokens.len();
        self.index.insert(&tokens, self.next);
        self.lists.push_back((self.next, tokens));
        self.next = self.next.wrapping_add(1);
        while self.tokens > MAX_EVICTED_TOKENS {
            let Some((id, tokens)) = self.lists.pop_front() else {
                break;
            };
            self.tokens -= tokens.len();
            self.index.remove(&tokens, id);
        }
    }

    /// The number of tokens of `prompt` that a removed prefix had.
    fn longest(&self, prompt: &[u32]) -> usize {
        self.index.find(prompt).len
    }
}

struct Entry {
    tokens: Vec<u32>,
    used: u64,
    /// Whether a file on disk has its tokens.
    saved: bool,
    /// Its number, which no other prefix ever has.
    number: u64,
    /// The number of branches that hold it.
    holds: usize,
    /// Whether it is the frozen prefix that the pool stands on, which is never removed.
    frozen: bool,
}

impl PrefixStore {
    pub(super) fn new(
        max_entries: usize,
        host: HostStore,
        mut disk: Option<DiskStore>,
        runner: &BatchRunner,
    ) -> PrefixStore {
        if let Some(disk) = &mut disk {
            disk.use_files_for(runner, host.stores_smaller());
        }
        PrefixStore {
            speeds: Speeds::new(runner),
            host,
            entries: HashMap::new(),
            index: RadixIndex::default(),
            clock: 0,
            max_entries,
            disk,
            evictions: EvictionLog::default(),
            next_number: 0,
            released: Released::default(),
            evicted: EvictedPrefixes::default(),
        }
    }

    /// Goes on with a runner whose rows are stored otherwise: files of rows of other types are not used.
    pub(super) fn after_migration(&mut self, runner: &BatchRunner) {
        if let Some(disk) = &mut self.disk {
            disk.use_files_for(runner, self.host.stores_smaller());
        }
        self.speeds = Speeds::new(runner);
        for entry in self.entries.values_mut() {
            entry.saved = entry.frozen;
        }
    }

    /// Adds the frozen prefix that the pool stands on, if there is one.
    pub(super) fn add_frozen(&mut self, runner: &BatchRunner) {
        if let Some(id) = runner.prefix() {
            self.insert(id, runner.tokens(id).to_vec(), true);
        }
    }

    /// Adds a retained prefix to the index.
    fn insert(&mut self, id: SeqId, tokens: Vec<u32>, frozen: bool) {
        self.index.insert(&tokens, id);
        let on_disk = || self.disk.as_ref().is_some_and(|disk| disk.holds(&tokens));
        let entry = Entry {
            saved: frozen || on_disk(),
            tokens,
            used: 0,
            number: self.next_number,
            holds: 0,
            frozen,
        };
        self.entries.insert(id, entry);
        self.next_number += 1;
        self.touch(id);
    }

    /// The retained prefixes with their tokens.
    pub(super) fn entries(&self) -> impl Iterator<Item = (SeqId, &[u32])> {
        self.entries.iter().map(|(id, e)| (*id, &*e.tokens))
    }

    /// The number of tokens of `prompt` that the longest retained prefix has.
    pub(super) fn longest(&self, prompt: &[u32]) -> usize {
        self.index.find(prompt).len
    }

    /// The retained prefix that has the most of these tokens, and their number.
    pub(super) fn owner_of(&self, tokens: &[u32]) -> (Option<SeqId>, usize) {
        let found = self.index.find(tokens);
        (found.owners.first().copied(), found.len)
    }

    /// The prefixes that were removed to make room.
    pub(super) fn evictions(&self) -> &EvictionLog {
        &self.evictions
    }

    /// The rungs below memory, and what is on them.
    pub(super) fn rungs(&self) -> Vec<Rung> {
        let disk = self.disk.iter().map(DiskStore::rung);
        self.host.rungs().into_iter().chain(disk).collect()
    }

    /// The number of files on disk, and their bytes.
    pub(super) fn disk_usage(&self) -> (usize, u64) {
        self.disk.as_ref().map_or((0, 0), DiskStore::usage)
    }

    /// The rung from which the most of these tokens would come, and their number.
    pub(super) fn rung_of(&self, tokens: &[u32]) -> (String, usize) {
        let pool = self.index.find(tokens).len;
        let host = self.host.find(tokens, tokens.len());
        let disk = self.disk.as_ref();
        let disk = disk.and_then(|disk| disk.find(tokens, tokens.len()));
        let mut best = ("memory".to_owned(), pool);
        if let Some(found) = host.filter(|found| found.kept > best.1) {
            best = (self.host.rung_of(found.id), found.kept);
        }
        if let Some(found) = disk.filter(|found| found.kept > best.1) {
            best = ("disk".to_owned(), found.kept);
        }
        match best.1 {
            0 => ("none".to_owned(), 0),
            _ => best,
        }
    }

    /// Retains the tokens of a sequence for a branch, if there is one. Prefixes that are the beginning of it and that no branch
    /// holds are released.
    pub(super) fn retain(
        &mut self,
        runner: &mut BatchRunner,
        model: &Model,
        seq: SeqId,
        branch: Option<&BranchCells>,
    ) -> Result<(), RuntimeError> {
        let id = self.retain_tokens(runner, model, seq)?;
        let entry = id.and_then(|id| self.entries.get_mut(&id));
        if let Some((entry, branch)) = entry.zip(branch) {
            entry.holds += 1;
            branch.hold(entry.number, &self.released);
        }
        self.drop_released();
        Ok(())
    }

    /// Ends the holds of branches that have gone.
    fn drop_released(&mut self) {
        for number in self.released.take() {
            let mut entries = self.entries.values_mut();
            if let Some(entry) = entries.find(|entry| entry.number == number) {
                entry.holds -= 1;
            }
        }
    }

    /// Retains the tokens of a sequence, and returns the prefix that has them.
    fn retain_tokens(
        &mut self,
        runner: &mut BatchRunner,
        model: &Model,
        seq: SeqId,
    ) -> Result<Option<SeqId>, RuntimeError> {
        let tokens = runner.fed_tokens(seq).to_vec();
        let found = self.index.find(&tokens);
        if tokens.is_empty() {
            return Ok(None);
        }
        // An approximation takes the place of another one only.
        let replaces = |id: SeqId| runner.inexact(seq).is_none() || runner.inexact(id).is_some();
        let has_all = |id: &&SeqId| runner.inexact(**id).is_none() || runner.inexact(seq).is_some();
        let owners = found.owners.iter();
        if found.len == tokens.len()
            && let Some(owner) = owners.clone().find(has_all).copied()
        {
            self.touch(owner);
            return Ok(Some(owner));
        }
        self.drop_released();
        let covered = self.entries.iter().filter(|(id, e)| {
            let starts = e.holds == 0 && !e.frozen && tokens.starts_with(&e.tokens);
            starts && replaces(**id)
        });
        let covered: Vec<SeqId> = covered.map(|(id, _)| *id).collect();
        for id in covered {
            self.release(runner, id)?;
        }
        while self.entries.len() >= self.max_entries {
            if !self.evict_for(EvictionReason::Count, runner, model)? {
                return Ok(None);
            }
        }
        let id = runner.retain(seq)?;
        self.insert(id, tokens, false);
        Ok(Some(id))
    }

    /// Removes a prefix from the pool after it was copied to host memory or disk. Returns whether there was one.
    pub(super) fn evict(
        &mut self,
        runner: &mut BatchRunner,
        model: &Model,
    ) -> Result<bool, RuntimeError> {
        self.evict_for(EvictionReason::Room, runner, model)
    }

    fn evict_for(
        &mut self,
        reason: EvictionReason,
        runner: &mut BatchRunner,
        model: &Model,
    ) -> Result<bool, RuntimeError> {
        self.drop_released();
        let Some(id) = self.first_to_leave(runner)? else {
            return Ok(false);
        };
        self.leave(runner, model, id);
        if let Some(entry) = self.entries.get(&id) {
            self.evicted.add(entry.tokens.clone());
            let kept_on = self.kept_on(&entry.tokens);
            self.evictions.add(Eviction {
                tokens: entry.tokens.len(),
                reason,
                kept_on,
                at: Instant::now(),
            });
        }
        self.release(runner, id)?;
        Ok(true)
    }

    /// The prefix that should leave the pool first: one that no branch holds, and that has cells which are freed then, and of those the one
    /// that was not used for the longest time. In a pool all tokens hold equal bytes and have the same way back, so that bytes for the
    /// time of the way back are the same for all prefixes.
    fn first_to_leave(&self, runner: &BatchRunner) -> Result<Option<SeqId>, RuntimeError> {
        let holders = runner.ref_counts()?;
        let mut first: Option<((bool, bool, u64), SeqId)> = None;
        for (id, entry) in self.entries.iter().filter(|(_, e)| !e.frozen) {
            let runs = runner.runs(*id)?;
            // The last cells are the most likely to be its own.
            let last_first = runs.iter().rev();
            let mut cells = last_first.flat_map(|run| (run.cell..run.cell + run.len).rev());
            let frees = cells.any(|cell| holders[cell as usize] < 2);
            let order = (entry.holds > 0, !frees, entry.used);
            if first.as_ref().is_none_or(|(than, _)| order < *than) {
                first = Some((order, *id));
            }
        }
        Ok(first.map(|(_, id)| id))
    }

    /// Copies a prefix that leaves the pool to where it can come back from.
    fn leave(&mut self, runner: &BatchRunner, model: &Model, id: SeqId) {
        let entry = &self.entries[&id];
        if entry.tokens.len() < MIN_SAVED_TOKENS || is_moved(runner, id) {
            return;
        }
        if !self.host.is_there() {
            self.save(runner, model, id);
        } else if !self.host.holds(&entry.tokens) {
            self.copy_out(runner, model, id, false);
        }
    }

    /// Copies a sequence to host memory. What has no more room there goes to disk. Returns whether it can come back.
    fn copy_out(&mut self, runner: &BatchRunner, model: &Model, seq: SeqId, running: bool) -> bool {
        let notes = notes_of(runner.inexact(seq));
        let Ok(snapshot) = runner.snapshot(model, seq, &notes) else {
            return false;
        };
        let len = snapshot.tokens().len();
        for left in self.host.put(snapshot, running) {
            self.keep_on_disk(&left);
        }
        self.kept_on(&runner.fed_tokens(seq)[..len]).is_some()
    }

    /// The rung outside the pool that has all these tokens.
    fn kept_on(&self, tokens: &[u32]) -> Option<String> {
        let in_host = self.host.find(tokens, tokens.len());
        let in_host = in_host.filter(|found| found.kept == tokens.len());
        let on_disk = || self.disk.as_ref().is_some_and(|disk| disk.holds(tokens));
        match in_host {
            Some(found) => Some(self.host.rung_of(found.id)),
            None => on_disk().then(|| CacheSource::Disk.name().to_owned()),
        }
    }

    fn keep_on_disk(&mut self, snapshot: &Snapshot) {
        if let Some(disk) = self
            .disk
            .as_mut()
            .filter(|disk| !disk.holds(snapshot.tokens()))
        {
            // A disk that is full or read-only makes later requests slower, nothing else.
            _ = disk.keep(snapshot);
        }
    }

    /// Copies a running sequence out of the pool before it gives up its cells, if that and its way back take less time than computing it
    /// again. Returns whether it can come back.
    pub(super) fn swap_out(&mut self, runner: &BatchRunner, model: &Model, seq: SeqId) -> bool {
        let tokens = runner.fed_tokens(seq);
        let way = match (self.host.is_there(), &self.disk) {
            (true, _) => Way::Host,
            (false, Some(_)) => Way::Disk,
            (false, None) => return false,
        };
        let stored = self.index.find(tokens).len;
        let computed = self.speeds.seconds(None, tokens.len() - stored);
        let cheaper = 2.0 * self.speeds.seconds(Some(way), tokens.len()) < computed;
        if !cheaper || tokens.len() < stored + MIN_RESTORED_TOKENS || runner.inexact(seq).is_some()
        {
            return false;
        }
        match way {
            Way::Host => self.copy_out(runner, model, seq, true),
            Way::Disk => {
                let disk = self.disk.as_mut();
                disk.is_some_and(|disk| disk.save(runner, model, seq).is_ok())
            }
        }
    }

    /// Removes all prefixes but the frozen one.
    pub(super) fn clear(&mut self, runner: &mut BatchRunner) -> Result<(), RuntimeError> {
        let removable = self.entries.iter().filter(|(_, e)| !e.frozen);
        let ids: Vec<SeqId> = removable.map(|(id, _)| *id).collect();
        ids.into_iter().try_for_each(|id| self.release(runner, id))
    }

    /// Writes one prefix that is not on disk yet, the most recently used one first. Returns whether there was one.
    pub(super) fn save_one(&mut self, runner: &BatchRunner, model: &Model) -> bool {
        if self.disk.is_none() {
            return false;
        }
        let unsaved = |id: SeqId, e: &Entry| {
            !e.saved && e.tokens.len() >= MIN_SAVED_TOKENS && !is_moved(runner, id)
        };
        let unsaved = self.entries.iter().filter(|(id, e)| unsaved(**id, e));
        let Some(id) = unsaved.max_by_key(|(_, e)| e.used).map(|(id, _)| *id) else {
            return false;
        };
        self.save(runner, model, id);
        true
    }

    fn save(&mut self, runner: &BatchRunner, model: &Model, id: SeqId) {
        let entry = self.entries.get_mut(&id).expect("an entry");
        let Some(disk) = self.disk.as_mut().filter(|_| !entry.saved) else {
            return;
        };
        if entry.tokens.len() >= MIN_SAVED_TOKENS && !is_moved(runner, id) {
            // A disk that is full or read-only makes later requests slower, nothing else. It is not tried again.
            _ = disk.save(runner, model, id);
            entry.saved = true;
        }
    }

    fn release(&mut self, runner: &mut BatchRunner, id: SeqId) -> Result<(), RuntimeError> {
        if let Some(entry) = self.entries.remove(&id) {
            self.index.remove(&entry.tokens, id);
            runner.release(id)?;
        }
        Ok(())
    }

    fn touch(&mut self, id: SeqId) {
        self.clock += 1;
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.used = self.clock;
        }
    }
}

/// Whether a splice has moved rows of a sequence: they serve the requests only that allow it, and are computed rightly once they left.
fn is_moved(runner: &BatchRunner, seq: SeqId) -> bool {
    let inexact = runner.inexact(seq);
    inexact.is_some_and(|inexact| inexact.cause == Approximation::Moved)
}
