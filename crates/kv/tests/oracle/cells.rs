//! Histories of many sequences in one pool.

use crate::facts::{Bytes, End, Stamp, Step, config, end, histories, kind, windows};
use kv::{
    Bookkeeping, Cache, CacheConfig, CellRun, Cells, KvErrorKind, MAX_SEQUENCES, RingPolicy,
    SeqCache, SeqId, StepPlan,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::{Bound, RangeBounds};

type Positions = (Bound<u32>, Bound<u32>);

#[derive(Clone, Debug)]
enum Verb {
    /// Declares so many tokens of each sequence, one sequence after the other or in turns.
    Begin {
        parts: Vec<(SeqId, usize)>,
        in_turns: bool,
    },
    Forward(Forward),
    /// Declares candidates of a sequence, and runs a forward if one is given.
    Propose {
        seq: SeqId,
        /// The parent among the candidates so far, by its number plus one; 0 for none.
        parents: Vec<u8>,
        forward: Option<Forward>,
    },
    /// Commits the path to a candidate, without some of its nodes if it is to be no chain.
    Accept {
        seq: SeqId,
        leaf: u8,
        skip: Option<u8>,
    },
    /// Both.
    Step {
        parts: Vec<(SeqId, usize)>,
        in_turns: bool,
        forward: Forward,
    },
    Copy {
        src: SeqId,
        dst: SeqId,
        range: Positions,
    },
    Remove {
        seq: SeqId,
        range: Positions,
    },
    Keep {
        seq: SeqId,
    },
    Rewind {
        len: u32,
    },
    Retain {
        src: SeqId,
        range: Positions,
    },
    Release {
        id: SeqId,
    },
    Clear,
    Compact,
    /// A forward that never got as far as a plan.
    Abort,
}

#[derive(Clone, Debug)]
struct Forward {
    /// Where a sequence that holds nothing begins.
    start: u32,
    end: End,
    wrong: Option<Wrong>,
}

#[derive(Clone, Debug)]
enum Wrong {
    TokenMissing,
    TokenTooMany,
    Position { index: usize, by: i32 },
}

fn seq() -> impl Strategy<Value = SeqId> {
    prop_oneof![
        24 => 0u32..5,
        2 => Just(MAX_SEQUENCES - 1),
        1 => prop::sample::select(vec![MAX_SEQUENCES, u32::MAX]),
    ]
}

/// A sequence, or a retained prefix, which may exist or not.
fn owner() -> impl Strategy<Value = SeqId> {
    prop_oneof![3 => seq(), 1 => MAX_SEQUENCES..MAX_SEQUENCES + 4]
}

fn range() -> impl Strategy<Value = Positions> {
    let bound = || {
        prop_oneof![
            2 => Just(Bound::Unbounded),
            3 => (0u32..16).prop_map(Bound::Included),
            3 => (0u32..16).prop_map(Bound::Excluded),
        ]
    };
    (bound(), bound())
}

fn forward() -> impl Strategy<Value = Forward> {
    let wrong = prop_oneof![
        Just(Wrong::TokenMissing),
        Just(Wrong::TokenTooMany),
        (
            0usize..8,
            prop::sample::select(vec![-40, -1, 1, 7, i32::MAX])
        )
            .prop_map(|(index, by)| Wrong::Position { index, by }),
    ];
    let wrong = prop::option::weighted(0.1, wrong);
    let start = prop_oneof![3 => Just(0u32), 1 => 0u32..6];
    (start, end(), wrong).prop_map(|(start, end, wrong)| Forward { start, end, wrong })
}

fn parts() -> impl Strategy<Value = Vec<(SeqId, usize)>> {
    let tokens = prop_oneof![2 => Just(1usize), 1 => 1usize..6];
    prop::collection::vec((seq(), tokens), 0..4)
}

fn propose() -> impl Strategy<Value = Verb> {
    let parents = prop::collection::vec(0u8..9, 0..6);
    let forward = prop::option::weighted(0.8, forward());
    (seq(), parents, forward).prop_map(|(seq, parents, forward)| Verb::Propose {
        seq,
        parents,
        forward,
    })
}

fn verb() -> impl Strategy<Value = Verb> {
    prop_oneof![
        14 => (parts(), any::<bool>(), forward()).prop_map(|(parts, in_turns, forward)| {
            Verb::Step { parts, in_turns, forward }
        }),
        2 => (parts(), any::<bool>()).prop_map(|(parts, in_turns)| Verb::Begin { parts, in_turns }),
        2 => forward().prop_map(Verb::Forward),
        10 => propose(),
        6 => (seq(), any::<u8>(), prop::option::weighted(0.1, any::<u8>()))
            .prop_map(|(seq, leaf, skip)| Verb::Accept { seq, leaf, skip }),
        5 => (owner(), owner(), range()).prop_map(|(src, dst, range)| Verb::Copy { src, dst, range }),
        3 => (owner(), range()).prop_map(|(src, range)| Verb::Retain { src, range }),
        2 => (MAX_SEQUENCES..MAX_SEQUENCES + 4).prop_map(|id| Verb::Release { id }),
        5 => (seq(), range()).prop_map(|(seq, range)| Verb::Remove { seq, range }),
        1 => seq().prop_map(|seq| Verb::Keep { seq }),
        1 => (0u32..20).prop_map(|len| Verb::Rewind { len }),
        2 => Just(Verb::Compact),
        1 => Just(Verb::Clear),
        1 => Just(Verb::Abort),
    ]
}

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
    /// Most rows of a sequence.
    slots: u32,
    /// Per sequence.
    positions: Vec<BTreeSet<u32>>,
}

impl Window {
    /// A sequence gives up what it cannot keep once it goes on at `next`.
    fn trim(&mut self, seq: usize, next: u32) {
        let slots = self.slots;
        self.positions[seq].retain(|position| position + slots >= next);
    }
}

fn kept(config: &CacheConfig) -> Vec<Window> {
    let layers = config.layers.iter().enumerate();
    let window = |(layer, facts): (usize, &kv::LayerConfig)| {
        let (window, ring) = facts.window.zip(config.ring)?;
        Some(Window {
            layer,
            window,
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

    fn apply(&mut self, verb: &Verb) {
        let before = self.cache.clone();
        let (expected, result) = match verb {
            Verb::Begin { parts, in_turns } => {
                self.begin(parts, *in_turns);
                (Ok(()), Ok(()))
            }
            Verb::Forward(forward) => {
                self.forward(forward);
                (Ok(()), Ok(()))
            }
            Verb::Propose {
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
            &Verb::Accept { seq, leaf, skip } => self.accept(seq, leaf, skip),
            Verb::Step {
                parts,
                in_turns,
                forward,
            } => {
                self.begin(parts, *in_turns);
                self.forward(forward);
                (Ok(()), Ok(()))
            }
            &Verb::Copy { src, dst, range } => {
                let owners = self.known_owner(src).and_then(|()| known(dst));
                let free = owners.and_then(|()| self.no_candidates(dst));
                let expected = free.and_then(|()| self.copy(src, dst, range));
                (expected, self.cache.seq_cp(src, dst, range))
            }
            &Verb::Retain { src, range } => {
                let expected = self.retain(src, range);
                let result = self.cache.retain(src, range);
                if let (Ok(expected), Ok(id)) = (&expected, &result) {
                    assert_eq!(expected, id);
                }
                (expected.map(|_| ()), result.map(|_| ()))
            }
            &Verb::Release { id } => {
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
            &Verb::Remove { seq, range } => {
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
            &Verb::Keep { seq } => {
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
            &Verb::Rewind { len } => {
                let all = 0..self.held.len() as u32;
                let free = (0..MAX_SEQUENCES).try_for_each(|seq| self.no_candidates(seq));
                let cut = || all.clone().try_for_each(|seq| self.removable(seq, len..));
                let expected = free.and_then(|()| cut());
                if expected.is_ok() {
                    all.for_each(|seq| self.remove(seq, len..));
                }
                (expected, self.cache.rewind(len))
            }
            Verb::Clear => {
                self.held = vec![BTreeMap::new(); MAX_SEQUENCES as usize];
                self.retained.clear();
                self.kept = kept(&self.config);
                self.declared.clear();
                self.candidates = vec![vec![]; MAX_SEQUENCES as usize];
                self.cache.clear();
                assert_eq!(self.cache, Cells::new(&self.config));
                (Ok(()), Ok(()))
            }
            Verb::Compact => {
                if let Some(order) = self.cache.compact() {
                    self.bytes.reorder(&order);
                    assert_eq!(self.cache.compact(), None, "nothing is left to do");
                }
                assert_eq!(self.cache.high_water(), self.cache.len(), "no holes");
                (Ok(()), Ok(()))
            }
            Verb::Abort => {
                self.declared.clear();
                self.cache.abort(None);
                (Ok(()), Ok(()))
            }
        };
        let result = kind(result);
        if result.is_err() {
            assert_eq!(self.cache, before, "a refused verb changed the cache");
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
            if !has(&both, &all, next, window.window) {
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
            if !has(&held, &window.positions[seq as usize], to, window.window) {
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

    /// Every sequence holds what the facts say, in rows that have its stamps, and the counts agree.
    fn audit(&self) {
        let mut holders = vec![0u16; self.config.capacity as usize];
        assert!(self.cache.retained().eq(self.retained.iter().copied()));
        for (seq, held) in (0..).zip(&self.held) {
            if self.known_owner(seq).is_err() {
                assert!(held.is_empty(), "prefix {seq} was released");
                continue;
            }
            let runs = self.cache.runs(seq).unwrap();
            for pair in runs.windows(2) {
                assert!(pair[0].position + pair[0].len <= pair[1].position);
                assert!(!pair[0].continues_with(&pair[1]), "runs that could be one");
            }
            assert_eq!(self.cache.seq_len(seq).unwrap() as usize, held.len());
            let next = held.last_key_value().map(|(position, _)| position + 1);
            assert_eq!(self.cache.seq_next(seq).unwrap(), next);
            for (layer, rows) in self.bytes.rows.iter().enumerate() {
                if let Some(window) = self.kept.iter().find(|w| w.layer == layer) {
                    self.audit_window(window, seq);
                    continue;
                }
                let placed = runs.iter().flat_map(|run| run.positions().zip(run.cells()));
                let placed = placed.map(|(position, cell)| (position, rows[cell as usize]));
                assert!(
                    placed.eq(held.iter().map(|(p, s)| (*p, *s))),
                    "sequence {seq} holds {held:?}, not {runs:?}"
                );
            }
            for cell in runs.iter().flat_map(CellRun::cells) {
                holders[cell as usize] += 1;
            }
        }
        let trees = (0..).zip(&self.candidates);
        for (seq, tree) in trees.filter(|(_, tree)| !tree.is_empty()) {
            assert_eq!(self.cache.candidates(seq) as usize, tree.len());
            for (layer, rows) in self.bytes.rows.iter().enumerate() {
                let cells = self.cache.candidate_cells(layer, seq).unwrap().iter();
                let stamps = cells.map(|cell| rows[*cell as usize]);
                assert!(stamps.eq(tree.iter().map(|c| c.stamp)));
            }
            let flat = (0..self.bytes.rows.len())
                .find(|layer| self.kept.iter().all(|window| window.layer != *layer));
            match flat {
                Some(layer) => {
                    for cell in self.cache.candidate_cells(layer, seq).unwrap() {
                        holders[*cell as usize] += 1;
                    }
                }
                // Every layer is a ring; the cells of all positions belong to no layer.
                None => return,
            }
        }
        let used = holders.iter().filter(|n| **n > 0).count() as u32;
        let high_water = holders.iter().rposition(|n| *n > 0).map_or(0, |c| c + 1);
        assert_eq!(self.live().len() as u32, used);
        assert_eq!(self.cache.len(), used);
        assert_eq!(self.cache.ref_counts(), &holders[..high_water]);
        assert_eq!(self.cache.high_water() as usize, high_water);
        let live = (0..MAX_SEQUENCES).zip(&self.held);
        let live = live.filter(|(_, held)| !held.is_empty());
        assert!(self.cache.live().eq(live.map(|(seq, _)| seq)));
        let room = self.config.capacity - used;
        assert!(self.cache.can_extend(room) && !self.cache.can_extend(room + 1));
    }

    /// A sequence keeps in a layer with a window what it should, in rows that have its stamps.
    fn audit_window(&self, window: &Window, seq: SeqId) {
        let rows = &self.bytes.rows[window.layer];
        let runs = self.cache.layer_runs(window.layer, seq).unwrap();
        let kept = &window.positions[seq as usize];
        assert!(kept.len() <= window.slots as usize);
        let placed = runs.iter().flat_map(|run| run.positions().zip(run.cells()));
        let placed = placed.map(|(position, cell)| (position, rows[cell as usize]));
        let held = &self.held[seq as usize];
        let expected = kept.iter().map(|position| (*position, held[position]));
        assert!(
            placed.eq(expected),
            "sequence {seq} keeps {kept:?}, not {runs:?}"
        );
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

    /// The first token whose position does not continue its sequence: candidates are looked at first.
    fn misplaced(&self, positions: &[i32]) -> Option<KvErrorKind> {
        let error = |index: usize, found: i32, expected: u32| {
            Some(KvErrorKind::Position {
                index,
                found: found.into(),
                expected,
            })
        };
        let tokens = || self.declared.iter().zip(positions).enumerate();
        let mut bases: BTreeMap<SeqId, u32> = BTreeMap::new();
        let mut depths: BTreeMap<SeqId, Vec<u32>> = BTreeMap::new();
        for (index, (&(seq, role), &found)) in tokens() {
            let Some(parent) = role else { continue };
            let start = found.clamp(0, i32::MAX - 1) as u32;
            let base = *bases.entry(seq).or_insert(self.base(seq, start));
            let depths = depths.entry(seq).or_insert_with(|| {
                let tree = self.candidates[seq as usize].iter();
                tree.map(|c| c.position - base).collect()
            });
            depths.push(parent.map_or(0, |parent| depths[parent as usize] + 1));
            let expected = base + depths[depths.len() - 1];
            if i64::from(expected) != i64::from(found) {
                return error(index, found, expected);
            }
        }
        let mut last: BTreeMap<SeqId, u32> = BTreeMap::new();
        for (index, (&(seq, role), &found)) in tokens() {
            if role.is_some() {
                continue;
            }
            let held = self.held[seq as usize].last_key_value();
            let before = last.get(&seq).or(held.map(|(position, _)| position));
            let expected = before.map(|position| position + 1);
            let fits = (0..i32::MAX).contains(&found)
                && expected.is_none_or(|expected| i64::from(expected) == found.into());
            if !fits {
                return error(index, found, expected.unwrap_or(0));
            }
            last.insert(seq, found as u32);
        }
        None
    }

    /// The position of candidates that follow the committed tokens; `start` in an empty sequence.
    fn base(&self, seq: SeqId, start: u32) -> u32 {
        let roots = self.candidates[seq as usize].first();
        let held = self.held[seq as usize].last_key_value();
        let next = held.map(|(position, _)| position + 1);
        roots.map(|root| root.position).or(next).unwrap_or(start)
    }

    fn forward(&mut self, forward: &Forward) {
        let mut next: BTreeMap<SeqId, u32> = BTreeMap::new();
        let mut trees: BTreeMap<SeqId, Vec<Candidate>> = BTreeMap::new();
        let mut positions = vec![];
        for &(seq, role) in &self.declared {
            let base = self.base(seq, forward.start);
            if let Some(parent) = role {
                let tree = trees
                    .entry(seq)
                    .or_insert_with(|| self.candidates[seq as usize].clone());
                let position = parent.map_or(base, |parent| tree[parent as usize].position + 1);
                tree.push(Candidate {
                    parent,
                    position,
                    stamp: Stamp::default(),
                });
                positions.push(position as i32);
                continue;
            }
            let next = next.entry(seq).or_insert(base);
            positions.push(*next as i32);
            *next += 1;
        }
        if positions.is_empty() {
            let refused = kind(self.cache.plan_declared(&[0], &mut self.plan));
            assert_eq!(refused, Err(KvErrorKind::StepNotDeclared));
            return;
        }
        if let Some(wrong) = &forward.wrong {
            self.refused(wrong, &positions);
        }
        self.cache
            .plan_declared(&positions, &mut self.plan)
            .unwrap();
        let mut fresh = StepPlan::default();
        self.cache.plan_declared(&positions, &mut fresh).unwrap();
        for layer in 0..fresh.layers() {
            assert_eq!(fresh.layer(layer), self.plan.layer(layer));
        }
        let stamps = self.bytes.stamps(positions.len());
        let live = self.live();
        let mut tried = self.held.clone();
        let mut added: BTreeMap<SeqId, usize> = BTreeMap::new();
        let tokens = self.declared.iter().zip(&positions);
        for ((&(seq, role), &position), &stamp) in tokens.clone().zip(&stamps) {
            let index = added.entry(seq).or_insert(0);
            match role {
                None => _ = tried[seq as usize].insert(position as u32, stamp),
                Some(_) => {
                    let computed = self.candidates[seq as usize].len();
                    trees.get_mut(&seq).unwrap()[computed + *index].stamp = stamp;
                }
            }
            *index += 1;
        }
        let see = |((seq, role), position, stamp): (Declared, i32, Stamp)| {
            let committed = tried[seq as usize].range(..=position as u32);
            let mut seen: Vec<(u32, Stamp)> = committed.map(|(p, s)| (*p, *s)).collect();
            if role.is_some() {
                let tree = &trees[&seq];
                let own = tree.iter().position(|c| c.stamp == stamp).unwrap();
                let mut chain = vec![];
                let mut at = Some(own as u32);
                while let Some(node) = at {
                    let candidate = tree[node as usize];
                    chain.insert(0, (candidate.position, candidate.stamp));
                    at = candidate.parent;
                }
                seen.extend(chain);
            }
            seen
        };
        let tokens = tokens.zip(&stamps);
        let visible: Vec<Vec<(u32, Stamp)>> = tokens
            .map(|((declared, position), stamp)| see((*declared, *position, *stamp)))
            .collect();
        let written = match forward.end {
            End::Commit => usize::MAX,
            End::Fail { written } => written,
        };
        let step = Step {
            plan: &self.plan,
            config: &self.config,
            stamps: &stamps,
            visible: &visible,
            live: &|stamp| live.contains(&stamp),
        };
        step.run(&mut self.bytes, written);
        let committed = matches!(forward.end, End::Commit);
        for (&(seq, role), &position) in self.declared.iter().zip(&positions) {
            let next = match role {
                None => position as u32 + 1,
                Some(_) => {
                    let held = self.held[seq as usize].last_key_value();
                    let next = held.map_or(0, |(position, _)| position + 1);
                    next + trees[&seq].len() as u32
                }
            };
            for window in &mut self.kept {
                if committed && role.is_none() {
                    window.positions[seq as usize].insert(position as u32);
                }
                // A failed step has overwritten what a good one gives up.
                window.trim(seq as usize, next);
            }
        }
        if committed {
            for (seq, tree) in trees {
                self.candidates[seq as usize] = tree;
            }
        }
        match committed {
            true => {
                self.cache.commit(&self.plan);
                self.held = tried;
            }
            false => self.cache.abort(Some(&self.plan)),
        }
        self.declared.clear();
    }

    /// A forward that does not fit its declaration; the declaration stays until the step is ended.
    fn refused(&mut self, wrong: &Wrong, positions: &[i32]) {
        let declared = positions.len();
        let mut positions = positions.to_vec();
        let expected = match *wrong {
            Wrong::TokenMissing => {
                positions.pop();
                let found = positions.len();
                Some(KvErrorKind::TokenCount { declared, found })
            }
            Wrong::TokenTooMany => {
                positions.push(0);
                let found = positions.len();
                Some(KvErrorKind::TokenCount { declared, found })
            }
            Wrong::Position { index, by } => {
                let position = &mut positions[index % declared];
                *position = position.saturating_add(by);
                self.misplaced(&positions)
            }
        };
        let before = self.cache.clone();
        let result = self.cache.plan_declared(&positions, &mut self.plan);
        assert_eq!(kind(result).err(), expected);
        assert_eq!(self.cache, before);
    }
}

/// Whether `kept` has all held positions that a token at `next` sees before itself.
fn has(held: &BTreeMap<u32, Stamp>, kept: &BTreeSet<u32>, next: u32, window: u32) -> bool {
    let mut seen = held.range((next + 1).saturating_sub(window)..next);
    seen.all(|(position, _)| kept.contains(position))
}

proptest! {
    #![proptest_config(histories())]

    #[test]
    fn cells_histories(
        capacity in 4u32..64,
        windows in windows(),
        ring in prop::option::of((0u32..9, 0u32..9)),
        verbs in prop::collection::vec(verb(), 1..40),
    ) {
        let ring = ring.map(|(max_step, max_rewind)| RingPolicy { max_step, max_rewind });
        let mut history = History::new(config(capacity, &windows, ring));
        for verb in &verbs {
            history.apply(verb);
        }
    }
}
