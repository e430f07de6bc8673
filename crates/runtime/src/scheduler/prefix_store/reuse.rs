//! What a request reuses: the longest prefix of its prompt that the pool, host memory or the disk has.

use super::{MIN_RESTORED_TOKENS, PrefixStore};
use crate::batch_runner::Approximation;
use crate::scheduler::request::{CacheMiss, CacheReport, CacheSource, MissReason};
use crate::scheduler::speeds::Way;
use crate::scheduler::stored::inexact_of;
use crate::{BatchRunner, Model, RuntimeError, RuntimeErrorKind};
use kv::{KvErrorKind, SeqId};
use std::time::Instant;

/// The sequence that a request can share a prefix with.
struct Candidate {
    /// Tokens that it has in common with the prompt.
    len: usize,
    /// Those of them that a sequence can go on after: recurrent layers keep few states.
    kept: usize,
    source: CacheSource,
    owner: SeqId,
}

/// A prefix outside the pool that shares tokens with a prompt.
struct Outside {
    /// Tokens that both begin with.
    shared: usize,
    /// Those of them that can be restored.
    kept: usize,
    id: u32,
    source: CacheSource,
    /// The token after the shared ones, if it has one.
    next: Option<u32>,
}

impl PrefixStore {
    /// Gives the empty sequence `seq` the longest stored prefix of `prompt`: of a retained prefix, of a running sequence, from host
    /// memory or of a file. At least the last token is left to compute. With `moved`, rows may be taken that a splice has moved.
    pub(in crate::scheduler) fn reuse(
        &mut self,
        runner: &mut BatchRunner,
        model: &Model,
        running: &[SeqId],
        (prompt, moved): (&[u32], bool),
        seq: SeqId,
    ) -> Result<CacheReport, RuntimeError> {
        let limit = prompt.len() - 1;
        let mut candidates = self.candidates(runner, running, prompt, moved);
        let nearest = candidates.iter().max_by_key(|c| c.len);
        let nearest = nearest.map(|c| (c.owner, c.len));
        let mut stored = nearest.and_then(|(owner, len)| runner.tokens(owner).get(len).copied());
        let mut longest = nearest.map_or(0, |(_, len)| len);
        let mut report = CacheReport::nothing(prompt.len(), None);
        let mut window_lost = false;
        let in_memory = candidates.first().map_or(0, |candidate| candidate.kept);
        if let Some(found) = self.outside(prompt, limit, in_memory + MIN_RESTORED_TOKENS) {
            let shared = candidates.first().filter(|c| c.kept >= MIN_RESTORED_TOKENS);
            let shared = shared.map(|c| (c.owner, c.kept));
            let restored = self.bring_back(runner, model, running, (&found, shared), seq)?;
            // Prefixes that were removed to make room share nothing with the prompt any more.
            candidates = self.candidates(runner, running, prompt, moved);
            if restored {
                (report.cached_tokens, report.source) = (found.kept, found.source);
                stored = found.next;
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
        let inexact = runner.inexact(seq);
        report.approximate_tokens = inexact.map_or(0, |i| report.cached_tokens - i.from);
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

    /// The prefix in host memory or on disk from which the most tokens of `prompt`, at least `least`, can be restored.
    fn outside(&self, prompt: &[u32], limit: usize, least: usize) -> Option<Outside> {
        let host = self.host.find(prompt, limit).map(|found| Outside {
            shared: found.shared,
            kept: found.kept,
            id: found.id,
            source: CacheSource::Host,
            next: self.host.tokens(found.id).get(found.shared).copied(),
        });
        let disk = self.disk.as_ref();
        let disk = disk.and_then(|disk| Some((disk, disk.find(prompt, limit)?)));
        let disk = disk.map(|(disk, found)| Outside {
            shared: found.shared,
            kept: found.kept,
            id: found.id,
            source: CacheSource::Disk,
            next: disk.file(found.id).tokens.get(found.shared).copied(),
        });
        let best = disk.into_iter().chain(host).max_by_key(|found| found.kept);
        best.filter(|found| found.kept >= least)
    }

    /// Restores a prefix from outside the pool in the empty sequence `seq`, which shares what a prefix in the pool has of it. Returns
    /// false, with an empty sequence, if there is too little room or the file is damaged: the tokens are computed then.
    fn bring_back(
        &mut self,
        runner: &mut BatchRunner,
        model: &Model,
        running: &[SeqId],
        (found, shared): (&Outside, Option<(SeqId, usize)>),
        seq: SeqId,
    ) -> Result<bool, RuntimeError> {
        let start = Instant::now();
        let way = match found.source {
            CacheSource::Host => Way::Host,
            _ => Way::Disk,
        };
        let snapshot = match (way, &mut self.disk) {
            (Way::Host, _) => self.host.take_up(found.id),
            (Way::Disk, Some(disk)) => match disk.open_file(found.id) {
                Ok(snapshot) => snapshot,
                Err(_) => return Ok(false),
            },
            (Way::Disk, None) => return Ok(false),
        };
        let inexact = inexact_of(snapshot.notes());
        let types = runner.layer_types();
        let snapshot = match snapshot.layer_types() == types {
            true => snapshot,
            false => snapshot.in_types(&types, &[])?,
        };
        let shared = shared.filter(|_| !runner.has_states());
        let held = match shared.map(|(owner, len)| (runner.fork_prefix(owner, seq, len), len)) {
            Some((Ok(_), len)) => len,
            _ => 0,
        };
        // Computed tokens need room as well: making it is no part of the way back.
        let opened = start.elapsed();
        if !self.make_room(runner, model, running, found.kept - held)? {
            runner.remove(seq)?;
            return Ok(false);
        }
        let start = Instant::now();
        let restored = match held {
            0 => runner.restore_prefix(model, seq, &snapshot, found.kept),
            _ => runner.restore_rest(model, seq, &snapshot, found.kept),
        };
        if let Err(error) = restored {
            runner.remove(seq)?;
            // A cache error means that there was no room.
            let damaged = !matches!(error.kind(), RuntimeErrorKind::Cache(_));
            if let (true, Way::Disk, Some(disk)) = (damaged, way, &mut self.disk) {
                disk.delete(found.id);
            }
            return Ok(false);
        }
        let from = inexact.map(|inexact| inexact.from.max(held));
        if let Some(from) = from.filter(|from| *from < found.kept) {
            runner.mark_inexact(seq, from, Approximation::Stored);
        }
        let time = opened + start.elapsed();
        self.speeds.record(way, found.kept - held, time);
        Ok(true)
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
        moved: bool,
    ) -> Vec<Candidate> {
        let found = self.index.find(prompt);
        let candidate = |owner: SeqId, len: usize, source: CacheSource| {
            let inexact = runner.inexact(owner);
            let inexact = inexact.filter(|i| i.cause == Approximation::Moved && !moved);
            let exact = inexact.map_or(len, |inexact| len.min(inexact.from));
            Candidate {
                len,
                kept: runner.shareable(owner, exact.min(prompt.len() - 1)),
                source,
                owner,
            }
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
}

fn is_window_loss(kind: &KvErrorKind) -> bool {
    matches!(kind, KvErrorKind::RewindTooFar { .. })
}
