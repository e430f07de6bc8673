//! Histories of many sequences in one pool.

mod audit;
mod forward;
mod operations;

use crate::facts::{Bytes, End, Stamp, Step, config, end, histories, kind, windows};
use kv::{
    Cache, CacheConfig, CacheManager, CellRun, Cells, KvErrorKind, MAX_SEQUENCES, RingPolicy,
    SeqCache, SeqId, StepPlan,
};
use operations::{Forward, Operation, Positions, Wrong, operation};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::{Bound, RangeBounds};

/// One history and its facts.
struct History {
    config: CacheConfig,
    cache: Cells,
    plan: StepPlan,
    bytes: Bytes,
    /// Per sequence and retained prefix, the stamp at each position it holds.
    held: Vec<BTreeMap<u32, Stamp>>,
    /// The retained prefixes that exist.
    retained: BTreeSet<SeqId>,
    /// The positions that layers with a window keep, as far as they release any.
    kept: Vec<Window>,
    declared: Vec<Declared>,
    /// Per sequence.
    candidates: Vec<Vec<Candidate>>,
}

/// A declared token: its sequence and, for a candidate, its parent.
type Declared = (SeqId, Option<Option<u32>>);

#[derive(Clone, Copy, Debug)]
struct Candidate {
    parent: Option<u32>,
    position: u32,
    stamp: Stamp,
}

/// What the layers with one window keep.
struct Window {
    layer: usize,
    window: u32,
    sinks: u32,
    /// Most rows of a sequence, but for the sinks.
    slots: u32,
    /// Per sequence.
    positions: Vec<BTreeSet<u32>>,
}

impl Window {
    /// A sequence gives up what it cannot keep once it goes on at `next`.
    fn trim(&mut self, seq: usize, next: u32) {
        let (slots, sinks) = (self.slots, self.sinks);
        self.positions[seq].retain(|position| *position < sinks || position + slots >= next);
    }
}

fn kept(config: &CacheConfig) -> Vec<Window> {
    let layers = config.layers.iter().enumerate();
    let window = |(layer, facts): (usize, &kv::LayerConfig)| {
        let (window, ring) = facts.window.zip(config.ring)?;
        Some(Window {
            layer,
            window,
            sinks: facts.sinks,
            slots: window - 1 + ring.max_step.max(ring.max_rewind).max(1),
            positions: vec![BTreeSet::new(); MAX_SEQUENCES as usize],
        })
    };
    layers.filter_map(window).collect()
}

fn known(seq: SeqId) -> Result<(), KvErrorKind> {
    let max = MAX_SEQUENCES;
    match seq < max {
        true => Ok(()),
        false => Err(KvErrorKind::UnknownSequence { seq, max }),
    }
}

impl History {
    fn new(config: CacheConfig) -> History {
        History {
            cache: Cells::new(&config),
            plan: StepPlan::default(),
            bytes: Bytes::new(&config),
            held: vec![BTreeMap::new(); MAX_SEQUENCES as usize],
            retained: BTreeSet::new(),
            kept: kept(&config),
            declared: vec![],
            candidates: vec![vec![]; MAX_SEQUENCES as usize],
            config,
        }
    }

    fn live(&self) -> HashSet<Stamp> {
        let all = self.held.iter().flat_map(|held| held.values());
        let candidates = self.candidates.iter().flatten().map(|c| &c.stamp);
        all.chain(candidates).copied().collect()
    }

    fn apply(&mut self, operation: &Operation) {
        let before = self.cache.clone();
        let (expected, result) = match operation {
            Operation::Begin { parts, in_turns } => {
                self.begin(parts, *in_turns);
                (Ok(()), Ok(()))
            }
            Operation::Forward(forward) => {
                self.forward(forward);
                (Ok(()), Ok(()))
            }
            Operation::Propose {
                seq,
                parents,
                forward,
            } => {
                self.propose(*seq, parents);
                if let Some(forward) = forward {
                    self.forward(forward);
                }
                (Ok(()), Ok(()))
            }
            &Operation::Accept { seq, leaf, skip } => self.accept(seq, leaf, skip),
            Operation::Step {
                parts,
                in_turns,
                forward,
            } => {
                self.begin(parts, *in_turns);
                self.forward(forward);
                (Ok(()), Ok(()))
            }
            &Operation::Copy { src, dst, range } => {
                let owners = self.known_owner(src).and_then(|()| known(dst));
                let free = owners.and_then(|()| self.no_candidates(dst));
                let expected = free.and_then(|()| self.copy(src, dst, range));
                (expected, self.cache.seq_cp(src, dst, range))
            }
            &Operation::Retain { src, range } => {
                let expected = self.retain(src, range);
                let result = self.cache.retain(src, range);
                if let (Ok(expected), Ok(id)) = (&expected, &result) {
                    assert_eq!(expected, id);
                }
                (expected.map(|_| ()), result.map(|_| ()))
            }
            &Operation::Release { id } => {
                let existed = self.retained.remove(&id);
                if existed {
                    self.remove(id, ..);
                }
                let unknown = KvErrorKind::UnknownSequence {
                    seq: id,
                    max: MAX_SEQUENCES,
                };
                let expected = existed.then_some(()).ok_or(unknown);
                (expected, self.cache.release(id))
            }
            &Operation::Remove { seq, range } => {
                let whole = matches!(
                    range,
                    (Bound::Unbounded | Bound::Included(0), Bound::Unbounded)
                );
                let expected = known(seq);
                let expected = match whole {
                    true => expected.and_then(|()| self.undeclared(seq)),
                    false => expected,
                };
                if whole && expected.is_ok() {
                    self.candidates[seq as usize].clear();
                }
                let expected = expected.and_then(|()| self.no_candidates(seq));
                let expected = expected.and_then(|()| self.removable(seq, range));
                if expected.is_ok() {
                    self.remove(seq, range);
                }
                (expected, self.cache.seq_rm(seq, range))
            }
            &Operation::Keep { seq } => {
                let mut others = (0..MAX_SEQUENCES).filter(|other| *other != seq);
                let free = others.clone().try_for_each(|other| self.undeclared(other));
                let expected = known(seq).and(free);
                if expected.is_ok() {
                    others.by_ref().for_each(|other| {
                        self.candidates[other as usize].clear();
                        self.remove(other, ..);
                    });
                }
                (expected, self.cache.seq_keep(seq))
            }
            &Operation::Rewind { len } => {
                let all = 0..self.held.len() as u32;
                let free = (0..MAX_SEQUENCES).try_for_each(|seq| self.no_candidates(seq));
                let cut = || all.clone().try_for_each(|seq| self.removable(seq, len..));
                let expected = free.and_then(|()| cut());
                if expected.is_ok() {
                    all.for_each(|seq| self.remove(seq, len..));
                }
                (expected, self.cache.rewind(len))
            }
            Operation::Clear => {
                self.held = vec![BTreeMap::new(); MAX_SEQUENCES as usize];
                self.retained.clear();
                self.kept = kept(&self.config);
                self.declared.clear();
                self.candidates = vec![vec![]; MAX_SEQUENCES as usize];
                self.cache.clear();
                assert_eq!(self.cache, Cells::new(&self.config));
                (Ok(()), Ok(()))
            }
            Operation::Compact => {
                if let Some(order) = self.cache.compact() {
                    self.bytes.reorder(&order);
                    assert_eq!(self.cache.compact(), None, "nothing is left to do");
                }
                assert_eq!(self.cache.high_water(), self.cache.len(), "no holes");
                (Ok(()), Ok(()))
            }
            Operation::Abort => {
                self.declared.clear();
                self.cache.abort(None);
                (Ok(()), Ok(()))
            }
        };
        let result = kind(result);
        if result.is_err() {
            assert_eq!(self.cache, before, "a refused operation changed the cache");
        }
        assert_eq!(result, expected);
        self.audit();
    }

    /// The candidates of a sequence cannot be removed while further ones are declared.
    fn undeclared(&self, seq: SeqId) -> Result<(), KvErrorKind> {
        let declared = self.declared.iter().any(|(other, _)| *other == seq);
        match declared && !self.candidates[seq as usize].is_empty() {
            true => Err(KvErrorKind::StepPending),
            false => Ok(()),
        }
    }

    fn no_candidates(&self, seq: SeqId) -> Result<(), KvErrorKind> {
        match self.candidates[seq as usize].len() as u32 {
            0 => Ok(()),
            candidates => Err(KvErrorKind::TreeActive { candidates }),
        }
    }

    /// The error of declaring these tokens on top of the declared ones.
    fn declarable(&self, seqs: &[SeqId]) -> Result<(), KvErrorKind> {
        let declared = self.declared.iter().map(|(seq, _)| *seq);
        let all: Vec<SeqId> = declared.chain(seqs.iter().copied()).collect();
        let capacity = self.config.capacity;
        let needed = (self.live().len() + all.len()) as u64;
        all.iter().try_for_each(|seq| known(*seq))?;
        if needed > capacity.into() {
            return Err(KvErrorKind::Full { needed, capacity });
        }
        let tokens = |seq: SeqId| {
            let step = all.iter().filter(|other| **other == seq).count();
            step + self.candidates[seq as usize].len()
        };
        let tokens = all.iter().map(|seq| tokens(*seq)).max().unwrap_or(0);
        let max = self.config.ring.filter(|_| !self.kept.is_empty());
        match max.map(|ring| ring.slack()) {
            Some(max) if tokens > max as usize => Err(KvErrorKind::StepTooLong { tokens, max }),
            _ => Ok(()),
        }
    }

    fn propose(&mut self, seq: SeqId, parents: &[u8]) {
        let parents: Vec<Option<u32>> = parents
            .iter()
            .map(|parent| u32::from(*parent).checked_sub(1))
            .collect();
        let expected = if self.declared.iter().any(|(other, _)| *other == seq) {
            Err(KvErrorKind::StepPending)
        } else if parents.is_empty() {
            Err(KvErrorKind::EmptyStep)
        } else {
            self.declarable(&vec![seq; parents.len()]).and_then(|()| {
                let computed = self.candidates[seq as usize].len() as u32;
                let wrong = (computed..).zip(&parents);
                let wrong = wrong.filter_map(|(node, parent)| Some((node, (*parent)?)));
                let wrong = { wrong }.find(|(node, parent)| parent >= node);
                match wrong {
                    Some((node, parent)) => Err(KvErrorKind::Parent { node, parent }),
                    None => Ok(()),
                }
            })
        };
        let before = self.cache.clone();
        assert_eq!(kind(self.cache.propose(seq, &parents)), expected);
        match expected {
            Ok(()) => self
                .declared
                .extend(parents.iter().map(|parent| (seq, Some(*parent)))),
            Err(_) => assert_eq!(self.cache, before),
        }
    }

    fn accept(
        &mut self,
        seq: SeqId,
        leaf: u8,
        skip: Option<u8>,
    ) -> (Result<(), KvErrorKind>, Result<(), kv::KvError>) {
        let tree = match known(seq) {
            Ok(()) => self.candidates[seq as usize].clone(),
            Err(_) => vec![],
        };
        let mut path = vec![];
        let mut at = (u32::from(leaf) % (tree.len() as u32 + 1)).checked_sub(1);
        while let Some(node) = at {
            path.insert(0, node);
            at = tree[node as usize].parent;
        }
        if let Some(skip) = skip {
            match path.is_empty() {
                true => path.push(skip.into()),
                false => _ = path.remove(usize::from(skip) % path.len()),
            }
        }
        let mut parent = None;
        let mut expected = known(seq).and_then(|()| self.undeclared(seq));
        for &node in path.iter().take_while(|_| known(seq).is_ok()) {
            if tree.get(node as usize).is_none_or(|c| c.parent != parent) {
                expected = expected.and(Err(KvErrorKind::NotAChain { node, parent }));
            }
            parent = Some(node);
        }
        if expected.is_ok() {
            for node in &path {
                let Candidate {
                    position, stamp, ..
                } = tree[*node as usize];
                self.held[seq as usize].insert(position, stamp);
                for window in &mut self.kept {
                    window.positions[seq as usize].insert(position);
                }
            }
            self.candidates[seq as usize].clear();
        }
        (expected, self.cache.commit_path(seq, &path))
    }

    fn known_owner(&self, seq: SeqId) -> Result<(), KvErrorKind> {
        match self.retained.contains(&seq) {
            true => Ok(()),
            false => known(seq),
        }
    }

    /// Retains positions of a sequence under the lowest number that is free.
    fn retain(&mut self, src: SeqId, range: Positions) -> Result<SeqId, KvErrorKind> {
        self.known_owner(src)?;
        let id = (MAX_SEQUENCES..).find(|id| !self.retained.contains(id));
        let id = id.expect("a free number");
        let owners = self.held.len().max(id as usize + 1);
        self.held.resize_with(owners, BTreeMap::new);
        for window in &mut self.kept {
            window.positions.resize_with(owners, BTreeSet::new);
        }
        self.copy(src, id, range)?;
        self.retained.insert(id);
        Ok(id)
    }

    fn copy(&mut self, src: SeqId, dst: SeqId, range: Positions) -> Result<(), KvErrorKind> {
        let shared: Vec<(u32, Stamp)> = self.held[src as usize]
            .iter()
            .map(|(position, stamp)| (*position, *stamp))
            .filter(|(position, _)| range.contains(position))
            .collect();
        let dst_held = &mut self.held[dst as usize];
        let other = |(position, stamp): &&(u32, Stamp)| {
            dst_held.get(position).is_some_and(|held| held != stamp)
        };
        if let Some(&(position, _)) = shared.iter().find(other) {
            return Err(KvErrorKind::Occupied { seq: dst, position });
        }
        let mut both = dst_held.clone();
        both.extend(shared);
        let next = both
            .last_key_value()
            .map_or(0, |(position, _)| position + 1);
        for window in &mut self.kept {
            let [from, own] = [src, dst].map(|seq| &window.positions[seq as usize]);
            let taken = from.iter().filter(|position| range.contains(position));
            let all: BTreeSet<u32> = own.iter().chain(taken).copied().collect();
            if !has(&both, &all, next, window) {
                let to = next;
                let floor = self.cache.rewind_floor(src).unwrap();
                return Err(KvErrorKind::RewindTooFar { to, floor });
            }
        }
        for window in &mut self.kept {
            let from = window.positions[src as usize].clone();
            let taken = from.iter().filter(|position| range.contains(position));
            window.positions[dst as usize].extend(taken);
            window.trim(dst as usize, next);
        }
        self.held[dst as usize] = both;
        Ok(())
    }

    /// Whether the windows have what the sequence's next token sees once these positions are gone.
    fn removable(&self, seq: SeqId, range: impl RangeBounds<u32>) -> Result<(), KvErrorKind> {
        let mut held = self.held[seq as usize].clone();
        held.retain(|position, _| !range.contains(position));
        let Some((last, _)) = held.last_key_value() else {
            return Ok(());
        };
        let to = last + 1;
        for window in &self.kept {
            if !has(&held, &window.positions[seq as usize], to, window) {
                let floor = self.cache.rewind_floor(seq).unwrap();
                // What it names can be gone back to.
                let mut trial = self.cache.clone();
                let cut = match known(seq) {
                    Ok(()) => trial.seq_rm(seq, floor..),
                    Err(_) => trial.retain(seq, ..floor).map(|_| ()),
                };
                assert!(cut.is_ok(), "{cut:?}");
                return Err(KvErrorKind::RewindTooFar { to, floor });
            }
        }
        Ok(())
    }

    fn remove(&mut self, seq: SeqId, range: impl RangeBounds<u32>) {
        self.held[seq as usize].retain(|position, _| !range.contains(position));
        for window in &mut self.kept {
            window.positions[seq as usize].retain(|position| !range.contains(position));
        }
    }

    fn begin(&mut self, parts: &[(SeqId, usize)], in_turns: bool) {
        let mut seqs: Vec<SeqId> = vec![];
        let longest = parts.iter().map(|(_, n)| *n).max().unwrap_or(0);
        if in_turns {
            for turn in 0..longest {
                seqs.extend(parts.iter().filter(|(_, n)| *n > turn).map(|(s, _)| *s));
            }
        } else {
            seqs.extend(parts.iter().flat_map(|(s, n)| vec![*s; *n]));
        }
        let expected = if !self.declared.is_empty() {
            Err(KvErrorKind::StepPending)
        } else if seqs.is_empty() {
            Err(KvErrorKind::EmptyStep)
        } else {
            let free = || seqs.iter().try_for_each(|seq| self.no_candidates(*seq));
            self.declarable(&seqs).and_then(|()| free())
        };
        let before = self.cache.clone();
        assert_eq!(kind(self.cache.begin_step(&seqs)), expected);
        match expected {
            Ok(()) => self.declared = seqs.into_iter().map(|seq| (seq, None)).collect(),
            Err(_) => assert_eq!(self.cache, before),
        }
    }
}

/// Whether `kept` has all held positions that a token at `next` sees before itself.
fn has(held: &BTreeMap<u32, Stamp>, kept: &BTreeSet<u32>, next: u32, window: &Window) -> bool {
    let latest = held.range((next + 1).saturating_sub(window.window)..next);
    let mut seen = held.range(..window.sinks.min(next)).chain(latest);
    seen.all(|(position, _)| kept.contains(position))
}

proptest! {
    #![proptest_config(histories())]

    #[test]
    fn cells_histories(
        capacity in 4u32..64,
        windows in windows(),
        ring in prop::option::of((0u32..9, 0u32..9)),
        operations in prop::collection::vec(operation(), 1..40),
    ) {
        let ring = ring.map(|(max_step, max_rewind)| RingPolicy { max_step, max_rewind });
        let mut history = History::new(config(capacity, &windows, ring));
        for operation in &operations {
            history.apply(operation);
        }
    }
}
