//! Many sequences in one pool of cells. Batching, forks, eviction and rollback move no bytes.

mod allocator;
mod candidates;
mod prefix;
mod restore;
mod space;
mod states;
mod step;

use crate::candidate_tree::CandidateTree;
use crate::plan::LayerClasses;
use crate::step::Role;
use crate::{
    Cache, CacheConfig, CellRun, KvError, KvErrorKind, PrefixCells, RingPolicy, SeqCache, SeqId,
};
use space::{CellSpace, Retention, RingSize};
use std::ops::{Bound, Range, RangeBounds};

/// The maximum number of sequences in one pool that steps can extend. Retained prefixes do not count.
pub const MAX_SEQUENCES: u32 = 256;

/// The maximum number of prefixes that a pool retains.
const MAX_RETAINED: usize = 4096;

/// A pool of cells shared by up to [`MAX_SEQUENCES`] sequences.
///
/// A sequence is a list of runs in position order. Every cell has a reference count: the number of sequences that hold
/// it. A cell with count 0 is free. [`retain`](Cells::retain) makes a read-only sequence, which keeps its cells without
/// taking one of the numbers that steps use. A cache operation costs in proportion to the runs that it touches; a fork copies a run
/// list.
///
/// A sequence may hold a tree of candidates after its committed tokens ([`propose`](Cells::propose),
/// [`commit_path`](Cells::commit_path)). Forks, retained prefixes and saved sequences take the committed tokens only; a cache operation
/// that changes the committed tokens returns [`KvErrorKind::TreeActive`], unless it removes the whole sequence. With rings,
/// there can be at most as many candidates as tokens in a step.
///
/// If the configuration has a [`RingPolicy`], layers with a window use a cell space of their own, in which a sequence
/// keeps its last `window − 1 + slack` rows. Older rows are released, layer by layer, and their cells are reused. An
/// operation that needs released rows returns [`KvErrorKind::RewindTooFar`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cells {
    classes: LayerClasses,
    ring: Option<RingPolicy>,
    /// `spaces[0]` holds the cells of all positions. Then come the cells of ring layers, one space per window, and last those of
    /// states.
    spaces: Vec<CellSpace>,
    /// The sequence and role of every token of the declared step; empty when no step is declared.
    declared: Vec<(SeqId, Role)>,
    /// The candidates of each sequence. Their cells are in the spaces.
    trees: Vec<CandidateTree>,
    /// Whether retained prefix `MAX_SEQUENCES + i` exists.
    retained: Vec<bool>,
    /// The frozen prefix that the pool stands on; empty if there is none. Its sequence is the first retained one.
    prefix: PrefixCells,
}

/// The row moves of a compaction: for each layer, the old cell that is copied to each new cell. Cells of a shared prefix are not counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compaction {
    /// One list per cell space; `None` where no cell moves.
    orders: Vec<Option<Vec<u32>>>,
    /// The cell space of each layer.
    order_of: Vec<usize>,
}

impl Compaction {
    /// The old cell of every new cell of a layer, in the order of new cells; `None` if no cell moves.
    pub fn layer(&self, layer: usize) -> Option<&[u32]> {
        self.orders[self.order_of[layer]].as_deref()
    }
}

impl Cells {
    /// An empty pool.
    pub fn new(config: &CacheConfig) -> Cells {
        let classes = LayerClasses::new(&config.layers);
        let ring = config
            .ring
            .filter(|_| classes.windows.iter().any(Option::is_some));
        let space = |class, retention| {
            let capacity = match retention {
                Retention::States(policy) => policy.slots,
                _ => config.capacity,
            };
            CellSpace::new(class, retention, capacity, MAX_SEQUENCES)
        };
        let flat = match ring {
            // The space of all positions always exists. If every layer is a ring or has a state, it gets a class that no layer has.
            Some(_) => classes.rows_with_window(None),
            None => classes.first_rows(),
        };
        let flat = flat.unwrap_or(classes.windows.len());
        let mut all = vec![space(flat, Retention::All)];
        for (class, window) in classes.windows.iter().enumerate() {
            if let Some((window, ring)) = window.zip(ring) {
                let slots = window.slots(ring);
                all.push(space(class, Retention::Ring(RingSize { window, slots })));
            }
        }
        if let Some(class) = classes.states {
            all.push(space(class, Retention::States(config.states)));
        }
        Cells {
            classes,
            ring,
            spaces: all,
            declared: Vec::new(),
            trees: vec![CandidateTree::default(); MAX_SEQUENCES as usize],
            retained: Vec::new(),
            prefix: PrefixCells::default(),
        }
    }

    /// One past the last cell in use.
    pub fn high_water(&self) -> u32 {
        self.spaces[0].high_water
    }

    /// One past the last cell in use of a layer.
    pub(crate) fn layer_cells(&self, layer: usize) -> u32 {
        self.spaces[self.space_of(layer)].high_water
    }

    /// The runs of a sequence, in position order.
    pub fn runs(&self, seq: SeqId) -> Result<&[CellRun], KvError> {
        let seq = self.check_owner(seq)?;
        Ok(&self.spaces[0].sequences[seq as usize].runs)
    }

    /// The runs of the positions that a layer still holds of a sequence.
    pub fn layer_runs(&self, layer: usize, seq: SeqId) -> Result<&[CellRun], KvError> {
        let seq = self.check_owner(seq)?;
        Ok(&self.spaces[self.space_of(layer)].sequences[seq as usize].runs)
    }

    /// The sequences that hold at least one token.
    pub fn live(&self) -> impl Iterator<Item = SeqId> + '_ {
        (0..MAX_SEQUENCES).filter(|s| self.spaces[0].sequences[*s as usize].len > 0)
    }

    /// The retained prefixes.
    pub fn retained(&self) -> impl Iterator<Item = SeqId> + '_ {
        let all = (MAX_SEQUENCES..).zip(&self.retained);
        all.filter(|(_, exists)| **exists).map(|(id, _)| id)
    }

    /// Makes a read-only sequence that shares the cells of `src` at these positions, and returns its number, which is
    /// at least [`MAX_SEQUENCES`]. It can be copied to sequences and saved; steps cannot extend it.
    ///
    /// # Errors
    /// `TooManyRetained`, and the errors of [`seq_cp`](SeqCache::seq_cp).
    pub fn retain(
        &mut self,
        src: SeqId,
        positions: impl RangeBounds<u32>,
    ) -> Result<SeqId, KvError> {
        let src = self.check_owner(src)?;
        let free = self.retained.iter().position(|exists| !exists);
        let index = free.unwrap_or(self.retained.len());
        if index == MAX_RETAINED {
            return Err(KvErrorKind::TooManyRetained { max: MAX_RETAINED }.into());
        }
        let id = MAX_SEQUENCES + index as u32;
        self.resize_retained(self.retained.len().max(index + 1));
        let shared = self.share(src, id, &resolve_positions(positions));
        self.retained[index] = shared.is_ok();
        if shared.is_err() && free.is_none() {
            self.resize_retained(index);
        }
        shared.map(|()| id)
    }

    /// Removes a retained prefix.
    ///
    /// # Errors
    /// `PrefixReadOnly` for the prefix that the pool stands on.
    pub fn release(&mut self, id: SeqId) -> Result<(), KvError> {
        self.check_not_prefix(id)?;
        let index = id.checked_sub(MAX_SEQUENCES).map(|index| index as usize);
        let exists = index.and_then(|index| self.retained.get_mut(index));
        let exists = exists.filter(|exists| **exists);
        let exists = exists.ok_or(KvErrorKind::UnknownSequence {
            seq: id,
            max: MAX_SEQUENCES,
        })?;
        *exists = false;
        self.remove(id, &(0..u32::MAX));
        Ok(())
    }

    /// For each cell below the high water, the number of sequences and retained prefixes that hold it.
    pub fn ref_counts(&self) -> &[u16] {
        &self.spaces[0].ref_counts[..self.high_water() as usize]
    }

    /// Renumbers the cells without holes, so that every sequence has runs as long as possible. Returns the rows to
    /// move, or `None` if the numbering does not change.
    pub fn compact(&mut self) -> Option<Compaction> {
        let fixed: Vec<u32> = (0..self.spaces.len())
            .map(|space| self.fixed_cells(space))
            .collect();
        let spaces = self.spaces.iter_mut().zip(fixed);
        let orders: Vec<_> = spaces.map(|(space, fixed)| space.compact(fixed)).collect();
        let layers = 0..self.classes.class_of.len();
        let order_of = layers.map(|layer| self.space_of(layer)).collect();
        let any = orders.iter().any(Option::is_some);
        any.then_some(Compaction { orders, order_of })
    }

    /// The shortest length that `seq` can be rewound to. Ring layers have evicted the rows that a shorter one needs.
    pub fn rewind_floor(&self, seq: SeqId) -> Result<u32, KvError> {
        let seq = self.check_owner(seq)?;
        Ok(self.floor(seq))
    }

    fn floor(&self, seq: SeqId) -> u32 {
        let all = &self.spaces[0].sequences[seq as usize];
        let floor = |space: &CellSpace| {
            let ring = space.ring().filter(|ring| ring.window.len > 1)?;
            let kept = &space.sequences[seq as usize];
            let mut held = all.runs.iter().rev().flat_map(|run| run.positions().rev());
            let lost = held.find(|p| kept.count(&(*p..p + 1)) == 0)?;
            // The window of the next token must not reach the evicted position `lost`. The sequence may have holes, so
            // the floor is the first held position from there on.
            let end = lost + ring.window.len - 1..u32::MAX;
            let last = all.runs.iter().find_map(|run| run.clip(&end));
            Some(last.map_or(end.start, |run| run.position) + 1)
        };
        self.spaces[1..].iter().filter_map(floor).max().unwrap_or(0)
    }

    /// The index of a layer's cell space.
    fn space_of(&self, layer: usize) -> usize {
        let class = self.classes.class_of[layer] as usize;
        self.spaces
            .iter()
            .position(|r| r.class == class)
            .unwrap_or(0)
    }

    /// Returns an error if a token has an unknown sequence or if the tokens do not fit.
    fn check_tokens(&self, seqs: impl Iterator<Item = SeqId> + Clone) -> Result<(), KvError> {
        for seq in seqs.clone() {
            self.check_seq(seq)?;
        }
        let counts = Cells::counts(seqs);
        let needed = u64::from(self.len()) + counts.iter().map(|n| u64::from(*n)).sum::<u64>();
        if needed > u64::from(self.capacity()) {
            return Err(KvErrorKind::Full {
                needed,
                capacity: self.capacity(),
            }
            .into());
        }
        let max = self.ring.map_or(u32::MAX, |ring| ring.slack());
        let with_candidates = counts.iter().zip(&self.trees);
        let with_candidates = with_candidates.filter(|(n, _)| **n > 0);
        let longest = with_candidates.map(|(n, tree)| n + tree.len()).max();
        let longest = longest.unwrap_or(0);
        if longest > max {
            let tokens = longest as usize;
            return Err(KvErrorKind::StepTooLong { tokens, max }.into());
        }
        Ok(())
    }

    fn check_seq(&self, seq: SeqId) -> Result<SeqId, KvError> {
        let max = MAX_SEQUENCES;
        match seq < max {
            true => Ok(seq),
            false => Err(KvErrorKind::UnknownSequence { seq, max }.into()),
        }
    }

    /// Returns an error unless `seq` is a sequence or a retained prefix.
    fn check_owner(&self, seq: SeqId) -> Result<SeqId, KvError> {
        let retained = seq.checked_sub(MAX_SEQUENCES);
        let exists = retained.and_then(|index| self.retained.get(index as usize));
        match exists {
            Some(true) => Ok(seq),
            _ => self.check_seq(seq),
        }
    }

    fn resize_retained(&mut self, len: usize) {
        self.retained.resize(len, false);
        let owners = MAX_SEQUENCES as usize + len;
        for space in &mut self.spaces {
            space.sequences.resize_with(owners, Default::default);
        }
    }

    /// Every sequence and retained prefix.
    fn owners(&self) -> Range<SeqId> {
        0..self.spaces[0].sequences.len() as u32
    }

    /// Returns an error if, after the removal of `range`, a ring layer lacks rows that the next token attends to.
    fn check_removal(&self, seq: SeqId, range: &Range<u32>) -> Result<(), KvError> {
        self.check_states_after_removal(seq, range)?;
        let all = &self.spaces[0].sequences[seq as usize];
        let behind = |run: &CellRun| {
            run.clip(&(range.end..u32::MAX))
                .or(run.clip(&(0..range.start)))
        };
        let last = all.runs.iter().rev().find_map(behind);
        let Some(next) = last.map(|run| run.position + run.len) else {
            return Ok(());
        };
        let count = |space: &CellSpace, seen: &Range<u32>| {
            let sequence = &space.sequences[seq as usize];
            let end = range.start.max(range.end);
            let before = seen.start..seen.end.min(range.start);
            sequence.count(&before) + sequence.count(&(seen.start.max(end)..seen.end))
        };
        for space in self.rings() {
            let lacks = |seen: &Range<u32>| count(space, seen) < count(&self.spaces[0], seen);
            if space.seen_before(next).iter().any(lacks) {
                let floor = self.floor(seq);
                return Err(KvErrorKind::RewindTooFar { to: next, floor }.into());
            }
        }
        Ok(())
    }

    /// Makes `dst` share the cells of `src` at these positions.
    fn share(&mut self, src: SeqId, dst: SeqId, range: &Range<u32>) -> Result<(), KvError> {
        if src == dst {
            return Ok(());
        }
        self.check_shared_states(src, dst, range)?;
        let added = |space: &CellSpace| -> Result<Vec<CellRun>, u32> {
            let mut added = Vec::new();
            let [from, to] = [src, dst].map(|seq| &space.sequences[seq as usize].runs);
            for run in from.iter().filter_map(|run| run.clip(range)) {
                missing(run, to, &mut added)?;
            }
            Ok(added)
        };
        let added: Result<Vec<Vec<CellRun>>, u32> = self.spaces.iter().map(added).collect();
        let added = added.map_err(|position| KvErrorKind::Occupied { seq: dst, position })?;
        let next = |runs: &[CellRun]| runs.iter().map(|run| run.position + run.len).max();
        let own = self.spaces[0].sequences[dst as usize].next();
        let Some(next) = next(&added[0]).max(own) else {
            return Ok(());
        };
        let held = |(space, added): (&CellSpace, &Vec<CellRun>), seen: &Range<u32>| {
            let parts = added.iter().filter_map(|run| run.clip(seen));
            let shared: u32 = parts.map(|run| run.len).sum();
            space.sequences[dst as usize].count(seen) + shared
        };
        let rings = self.spaces.iter().zip(&added);
        for each in rings.filter(|(space, _)| space.ring().is_some()) {
            let all = (&self.spaces[0], &added[0]);
            let lacks = |seen: &Range<u32>| held(each, seen) < held(all, seen);
            if each.0.seen_before(next).iter().any(lacks) {
                let floor = self.floor(src);
                return Err(KvErrorKind::RewindTooFar { to: next, floor }.into());
            }
        }
        for (space, added) in self.spaces.iter_mut().zip(added) {
            space.share(dst, added);
            space.remove(dst, &space.evicted_positions(next));
        }
        self.keep_live_state(dst);
        Ok(())
    }

    /// The cell spaces of ring layers.
    fn rings(&self) -> impl Iterator<Item = &CellSpace> {
        self.spaces.iter().filter(|space| space.ring().is_some())
    }

    /// Keeps the state that a fork or a rewind ends at when the sequence goes on.
    fn keep_live_state(&mut self, seq: SeqId) {
        for space in &mut self.spaces {
            space.sequences[seq as usize].keeps_live = space.policy().is_some();
        }
    }

    fn remove(&mut self, seq: SeqId, range: &Range<u32>) {
        self.spaces
            .iter_mut()
            .for_each(|space| space.remove(seq, range));
        self.keep_live_state(seq);
    }
}

/// Converts any range of positions to a half-open one.
pub(crate) fn resolve_positions(range: impl RangeBounds<u32>) -> Range<u32> {
    let start = match range.start_bound() {
        Bound::Included(p) => *p,
        Bound::Excluded(p) => p.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(p) => p.saturating_add(1),
        Bound::Excluded(p) => *p,
        Bound::Unbounded => u32::MAX,
    };
    start..end.max(start)
}

impl Cache for Cells {
    fn can_extend(&self, n: u32) -> bool {
        n <= self.capacity() - self.len()
    }

    fn capacity(&self) -> u32 {
        self.spaces[0].capacity()
    }

    fn len(&self) -> u32 {
        self.spaces[0].used
    }

    fn clear(&mut self) {
        self.spaces.iter_mut().for_each(CellSpace::clear);
        self.declared.clear();
        self.trees.fill(CandidateTree::default());
        self.retained.clear();
        self.place_prefix();
    }

    /// Removes all positions from `len` on from every sequence and retained prefix.
    ///
    /// # Errors
    /// `PrefixReadOnly` for a length inside the prefix that the pool stands on.
    fn rewind(&mut self, len: u32) -> Result<(), KvError> {
        let behind = len..u32::MAX;
        if len < self.prefix.len() {
            self.check_not_prefix(MAX_SEQUENCES)?;
        }
        self.trees.iter().try_for_each(CandidateTree::check_empty)?;
        for seq in self.owners() {
            self.check_removal(seq, &behind)?;
        }
        self.owners().for_each(|seq| self.remove(seq, &behind));
        Ok(())
    }
}

impl SeqCache for Cells {
    fn begin_step(&mut self, seqs: &[SeqId]) -> Result<(), KvError> {
        if !self.declared.is_empty() {
            return Err(KvErrorKind::StepPending.into());
        }
        if seqs.is_empty() {
            return Err(KvErrorKind::EmptyStep.into());
        }
        self.check_tokens(seqs.iter().copied())?;
        for seq in seqs {
            self.trees[*seq as usize].check_empty()?;
        }
        let next = seqs.iter().map(|seq| (*seq, Role::Next));
        self.declared.extend(next);
        Ok(())
    }

    fn seq_cp(
        &mut self,
        src: SeqId,
        dst: SeqId,
        range: impl RangeBounds<u32>,
    ) -> Result<(), KvError> {
        let (src, dst) = (self.check_owner(src)?, self.check_seq(dst)?);
        self.trees[dst as usize].check_empty()?;
        self.share(src, dst, &resolve_positions(range))
    }

    fn seq_rm(&mut self, seq: SeqId, range: impl RangeBounds<u32>) -> Result<(), KvError> {
        let seq = self.check_seq(seq)?;
        let range = resolve_positions(range);
        if range == (0..u32::MAX) {
            self.check_undeclared(seq)?;
            self.drop_candidates(seq);
        }
        self.trees[seq as usize].check_empty()?;
        self.check_removal(seq, &range)?;
        self.remove(seq, &range);
        Ok(())
    }

    fn seq_keep(&mut self, seq: SeqId) -> Result<(), KvError> {
        let keep = self.check_seq(seq)?;
        let others = || (0..MAX_SEQUENCES).filter(|s| *s != keep);
        others().try_for_each(|other| self.check_undeclared(other))?;
        for other in others() {
            self.drop_candidates(other);
            self.remove(other, &(0..u32::MAX));
        }
        Ok(())
    }

    fn seq_len(&self, seq: SeqId) -> Result<u32, KvError> {
        let seq = self.check_owner(seq)?;
        Ok(self.spaces[0].sequences[seq as usize].len)
    }

    fn seq_next(&self, seq: SeqId) -> Result<Option<u32>, KvError> {
        let seq = self.check_owner(seq)?;
        Ok(self.spaces[0].sequences[seq as usize].next())
    }
}

/// Appends the parts of `run` whose positions are not in `held` to `parts`.
///
/// # Errors
/// The first position that `held` stores in another cell.
fn missing(run: CellRun, held: &[CellRun], parts: &mut Vec<CellRun>) -> Result<(), u32> {
    let mut from = run.position;
    for other in held {
        let Some(common) = other.clip(&run.positions()) else {
            continue;
        };
        let own = run.clip(&common.positions()).expect("positions of both");
        if own.cell != common.cell {
            return Err(common.position);
        }
        parts.extend(run.clip(&(from..common.position)));
        from = common.position + common.len;
    }
    parts.extend(run.clip(&(from..run.position + run.len)));
    Ok(())
}

#[cfg(test)]
mod tests;
