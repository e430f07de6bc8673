//! `PrefixStore`: the prefixes of finished requests, retained in the pool of cells and spilled to disk.

use super::branch_cells::{BranchCells, Released};
use super::disk::DiskStore;
use super::evictions::{Eviction, EvictionLog, EvictionReason};
use super::radix::RadixIndex;
use super::request::{CacheMiss, CacheReport, CacheSource, MissReason};
use super::state::Rung;
use crate::{BatchRunner, Model, RuntimeError, RuntimeErrorKind};
use kv::{KvErrorKind, SeqId};
use std::collections::{HashMap, VecDeque};
use std::time::Instant;

/// Shorter prefixes are not written to disk: computing them again is as fast.
const MIN_SAVED_TOKENS: usize = 64;

/// A file is restored only if it has this many tokens more than the memory has.
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
    disk: Option<DiskStore>,
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

/// The sequence that a request can share a prefix with.
struct Candidate {
    /// Tokens that it has in common with the prompt.
    len: usize,
    /// Those of them that a sequence can go on after: recurrent layers keep few states.
    kept: usize,
    source: CacheSource,
    owner: SeqId,
}

impl PrefixStore {
    pub(super) fn new(
        max_entries: usize,
        mut disk: Option<DiskStore>,
        runner: &BatchRunner,
    ) -> PrefixStore {
        if let Some(disk) = &mut disk {
            disk.use_files_for(runner);
        }
        PrefixStore {
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
            disk.use_files_for(runner);
        }
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

    /// The prefixes that were removed to make room.
    pub(super) fn evictions(&self) -> &EvictionLog {
        &self.evictions
    }

    /// The rungs below memory, and what is on them.
    pub(super) fn rungs(&self) -> Vec<Rung> {
        self.disk.iter().map(DiskStore::rung).collect()
    }

    /// The number of files on disk, and their bytes.
    pub(super) fn disk_usage(&self) -> (usize, u64) {
        self.disk.as_ref().map_or((0, 0), DiskStore::usage)
    }

    /// Gives the empty sequence `seq` the longest stored prefix of `prompt`: of a retained prefix, of a running sequence
    /// or of a file. At least the last token is left to compute.
    pub(super) fn reuse(
        &mut self,
        runner: &mut BatchRunner,
        model: &Model,
        running: &[SeqId],
        prompt: &[u32],
        seq: SeqId,
    ) -> Result<CacheReport, RuntimeError> {
        let limit = prompt.len() - 1;
        let mut candidates = self.candidates(runner, running, prompt);
        let nearest = candidates.iter().max_by_key(|c| c.len);
        let nearest = nearest.map(|c| (c.owner, c.len));
        let mut stored = nearest.and_then(|(owner, len)| runner.tokens(owner).get(len).copied());
        let mut longest = nearest.map_or(0, |(_, len)| len);
        let mut report = CacheReport::nothing(prompt.len(), None);
        let mut window_lost = false;
        let in_memory = candidates.first().map_or(0, |candidate| candidate.kept);
        let from_disk = self.disk.as_ref().and_then(|disk| disk.find(prompt, limit));
        let from_disk = from_disk.filter(|found| found.kept >= in_memory + MIN_RESTORED_TOKENS);
        if let Some(found) = from_disk {
            let (len, file) = (found.kept, found.file);
            let room = self.make_room(runner, model, running, len)?;
            // Prefixes that were removed to make room share nothing with the prompt any more.
            candidates = self.candidates(runner, running, prompt);
            // A damaged file or too little room only means that the tokens are computed.
            if let Some(disk) = self.disk.as_mut().filter(|_| room)
                && disk.restore(file, runner, model, seq, len).is_ok()
            {
                (report.cached_tokens, report.source) = (len, CacheSource::Disk);
                stored = disk.token(file, found.shared);
                longest = found.shared;
                candidates.clear();
            }
        }
        for candidate in candidates.iter().filter(|candidate| candidate.kept > 0) {
            let len = candidate.kept;
            if len <= report.cached_tokens {
                break;
            }
            match runner.fork_prefix(candidate.owner, seq, len) {
                Ok(_) => {
                    (report.cached_tokens, report.source) = (len, candidate.source);
                    self.touch(candidate.owner);
                    break;
                }
                Err(error) => match error.kind() {
                    RuntimeErrorKind::Cache(e) if is_window_loss(e.kind()) => window_lost = true,
                    _ => return Err(error),
                },
            }
        }
        if report.cached_tokens < limit {
            let position = report.cached_tokens;
            let at_nearest = position == longest;
            let reason = match longest {
                _ if window_lost => MissReason::WindowEvicted,
                _ if position < longest.min(limit) && runner.has_states() => MissReason::NoState,
                _ if self.evicted.longest(prompt) > position => MissReason::Evicted,
                0 => MissReason::Empty,
                _ if at_nearest && stored.is_some() => MissReason::Differs,
                _ => MissReason::New,
            };
            report.miss = Some(CacheMiss {
                reason,
                position,
                stored: stored.filter(|_| at_nearest),
                requested: prompt.get(position).copied(),
            });
        }
        Ok(report)
    }

    /// Removes prefixes until `cells` more tokens have room. Returns false, and removes none, if the running sequences alone
    /// leave too little.
    fn make_room(
        &mut self,
        runner: &mut BatchRunner,
        model: &Model,
        running: &[SeqId],
        cells: usize,
    ) -> Result<bool, RuntimeError> {
        let taken: usize = running.iter().map(|seq| runner.tokens(*seq).len()).sum();
        if taken + cells > runner.capacity()? {
            return Ok(false);
        }
        while !runner.can_extend(cells)? {
            if !self.evict(runner, model)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The sequences in memory that share tokens with `prompt`, the longest first.
    fn candidates(
        &self,
        runner: &BatchRunner,
        running: &[SeqId],
        prompt: &[u32],
    ) -> Vec<Candidate> {
        let found = self.index.find(prompt);
        let candidate = |owner: SeqId, len: usize, source: CacheSource| Candidate {
            len,
            kept: runner.shareable(owner, len.min(prompt.len() - 1)),
            source,
            owner,
        };
        let retained = found.owners.iter();
        let retained = retained.map(|owner| candidate(*owner, found.len, CacheSource::Memory));
        let live = running.iter().map(|owner| {
            let len = crate::common_prefix_len(runner.fed_tokens(*owner), prompt);
            candidate(*owner, len, CacheSource::Running)
        });
        // With recurrent layers, a shorter sequence on the way may have a later state.
        let on_the_way = self.entries.iter().filter(|(_, entry)| {
            runner.has_states()
                && entry.tokens.len() < found.len
                && prompt.starts_with(&entry.tokens)
        });
        let on_the_way =
            on_the_way.map(|(id, entry)| candidate(*id, entry.tokens.len(), CacheSource::Memory));
        let mut all: Vec<_> = retained.chain(live).chain(on_the_way).collect();
        // Of equally good ones, the shorter sequence: its window layers are more likely to have the rows.
        all.sort_by_key(|c| {
            let longest = std::cmp::Reverse((c.kept, c.len));
            (longest, runner.tokens(c.owner).len())
        });
        all
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
        if found.len == tokens.len() {
            let owner = found.owners[0];
            self.touch(owner);
            return Ok(Some(owner));
        }
        self.drop_released();
        let covered = self
            .entries
            .iter()
            .filter(|(_, e)| e.holds == 0 && !e.frozen && tokens.starts_with(&e.tokens));
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

    /// Writes the prefix that was not used for the longest time to disk and removes it from the pool: one that no branch holds, if
    /// there is any. Returns whether there was one.
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
        let removable = self.entries.iter().filter(|(_, e)| !e.frozen);
        let oldest = removable.min_by_key(|(_, e)| (e.holds > 0, e.used));
        let Some(id) = oldest.map(|(id, _)| *id) else {
            return Ok(false);
        };
        self.save(runner, model, id);
        if let Some(entry) = self.entries.get(&id) {
            self.evicted.add(entry.tokens.clone());
            let on_disk = self.disk.as_ref().is_some_and(|d| d.holds(&entry.tokens));
            self.evictions.add(Eviction {
                tokens: entry.tokens.len(),
                reason,
                kept_on: on_disk.then_some(CacheSource::Disk.name()),
                at: Instant::now(),
            });
        }
        self.release(runner, id)?;
        Ok(true)
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
        let unsaved = |e: &Entry| !e.saved && e.tokens.len() >= MIN_SAVED_TOKENS;
        let unsaved = self.entries.iter().filter(|(_, e)| unsaved(e));
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
        if entry.tokens.len() >= MIN_SAVED_TOKENS {
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

fn is_window_loss(kind: &KvErrorKind) -> bool {
    matches!(kind, KvErrorKind::RewindTooFar { .. })
}
