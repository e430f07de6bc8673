//! Many sequences in one pool of cells: batches, forks, eviction and rollback without moving a byte.

mod allocator;
mod restore;
mod space;
mod step;

use crate::plan::LayerClasses;
use crate::{Cache, CacheConfig, KvError, KvErrorKind, RingPolicy, Run, SeqCache, SeqId};
use space::{CellSpace, RingSize};
use std::ops::{Bound, Range, RangeBounds};

/// Most sequences alive at once.
pub const MAX_SEQUENCES: u32 = 64;

/// A pool of cells shared by up to [`MAX_SEQUENCES`] sequences.
///
/// Each sequence is a list of runs in position order, and each cell counts the sequences that hold it; a cell nobody
/// holds is free. So verbs cost what the runs they touch cost, and a fork copies a run list.
///
/// Where the configuration says how far steps and rewinds may reach, layers with a window have cells of their own, and a
/// sequence keeps only `window − 1 + slack` of them: what is behind is released, layer by layer, and used again. A verb
/// that would need released rows is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cells {
    classes: LayerClasses,
    ring: Option<RingPolicy>,
    /// First the cells of all positions; then, for each window, those of the layers that release them.
    spaces: Vec<CellSpace>,
    /// The next forward's sequences, one per token; empty when none is declared.
    declared: Vec<SeqId>,
}

/// For each layer, the old cell whose rows each new cell must get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compaction {
    /// Per numbering of cells; `None` where nothing moves.
    orders: Vec<Option<Vec<u32>>>,
    /// Per layer, its numbering.
    order_of: Vec<usize>,
}

impl Compaction {
    /// The old cells of a layer in their new order, if any of them moves.
    pub fn layer(&self, layer: usize) -> Option<&[u32]> {
        self.orders[self.order_of[layer]].as_deref()
    }
}

impl Cells {
    /// An empty pool.
    pub fn new(config: &CacheConfig) -> Cells {
        let classes = LayerClasses::new(config.layers.iter().map(|l| l.window));
        let ring = config
            .ring
            .filter(|_| classes.windows.iter().any(Option::is_some));
        let space = |class, ring| CellSpace::new(class, ring, config.capacity, MAX_SEQUENCES);
        let flat = match ring {
            // All positions are planned somewhere, be it in a class that no layer has.
            Some(_) => classes.windows.iter().position(Option::is_none),
            None => Some(0),
        };
        let flat = flat.unwrap_or(classes.windows.len());
        let mut all = vec![space(flat, None)];
        for (class, window) in classes.windows.iter().enumerate() {
            if let Some((window, ring)) = window.zip(ring) {
                let slots = ring.slots(window);
                all.push(space(class, Some(RingSize { window, slots })));
            }
        }
        Cells {
            classes,
            ring,
            spaces: all,
            declared: Vec::new(),
        }
    }

    /// One past the last cell in use: what a read of the whole pool would span.
    pub fn high_water(&self) -> u32 {
        self.spaces[0].high_water
    }

    /// Where a sequence's positions lie.
    pub fn runs(&self, seq: SeqId) -> Result<&[Run], KvError> {
        let seq = self.check_seq(seq)?;
        Ok(&self.spaces[0].sequences[seq as usize].runs)
    }

    /// Where what a sequence keeps of its positions lies in a layer.
    pub fn layer_runs(&self, layer: usize, seq: SeqId) -> Result<&[Run], KvError> {
        let seq = self.check_seq(seq)?;
        Ok(&self.spaces[self.space_of(layer)].sequences[seq as usize].runs)
    }

    /// The sequences that hold something.
    pub fn live(&self) -> impl Iterator<Item = SeqId> + '_ {
        (0..MAX_SEQUENCES).filter(|s| self.spaces[0].sequences[*s as usize].len > 0)
    }

    /// How many sequences hold each cell below the high water.
    pub fn ref_counts(&self) -> &[u8] {
        &self.spaces[0].ref_counts[..self.high_water() as usize]
    }

    /// Renumbers the cells so that sequences lie in runs as long as they can be, without holes. Returns which rows must
    /// move; `None` when nothing would change.
    pub fn compact(&mut self) -> Option<Compaction> {
        let orders: Vec<_> = self.spaces.iter_mut().map(CellSpace::compact).collect();
        let layers = 0..self.classes.class_of.len();
        let order_of = layers.map(|layer| self.space_of(layer)).collect();
        let any = orders.iter().any(Option::is_some);
        any.then_some(Compaction { orders, order_of })
    }

    /// The shortest length that `seq` can be cut back to: what its windows keep.
    pub fn rewind_floor(&self, seq: SeqId) -> Result<u32, KvError> {
        let seq = self.check_seq(seq)?;
        Ok(self.floor(seq))
    }

    fn floor(&self, seq: SeqId) -> u32 {
        let all = &self.spaces[0].sequences[seq as usize];
        let floor = |space: &CellSpace| {
            let ring = space.ring.filter(|ring| ring.window > 1)?;
            let kept = &space.sequences[seq as usize];
            let mut held = all.runs.iter().rev().flat_map(|run| run.positions().rev());
            let lost = held.find(|p| kept.count(&(*p..p + 1)) == 0)?;
            // The sequence must end with a token that far from what is lost, and may have holes.
            let end = lost + ring.window - 1..u32::MAX;
            let last = all.runs.iter().find_map(|run| run.clip(&end));
            Some(last.map_or(end.start, |run| run.position) + 1)
        };
        self.spaces[1..].iter().filter_map(floor).max().unwrap_or(0)
    }

    /// Which numbering a layer's cells have.
    fn space_of(&self, layer: usize) -> usize {
        let class = self.classes.class_of[layer] as usize;
        self.spaces
            .iter()
            .position(|r| r.class == class)
            .unwrap_or(0)
    }

    /// Refuses tokens of unknown sequences, and more of them than fit.
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
        let longest = counts.into_iter().max().unwrap_or(0);
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

    /// Refuses to take positions out of a sequence when its windows no longer have what its next token would see.
    fn check_removal(&self, seq: SeqId, range: &Range<u32>) -> Result<(), KvError> {
        let all = &self.spaces[0].sequences[seq as usize];
        let behind = |run: &Run| {
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
        for space in &self.spaces[1..] {
            let seen = space.seen_before(next);
            if count(space, &seen) < count(&self.spaces[0], &seen) {
                let floor = self.floor(seq);
                return Err(KvErrorKind::RewindTooFar { to: next, floor }.into());
            }
        }
        Ok(())
    }

    fn remove(&mut self, seq: SeqId, range: &Range<u32>) {
        self.spaces
            .iter_mut()
            .for_each(|space| space.remove(seq, range));
    }
}

/// The positions that a range stands for.
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
    }

    /// Takes all positions from `len` on out of every sequence.
    fn rewind(&mut self, len: u32) -> Result<(), KvError> {
        let behind = len..u32::MAX;
        for seq in 0..MAX_SEQUENCES {
            self.check_removal(seq, &behind)?;
        }
        (0..MAX_SEQUENCES).for_each(|seq| self.remove(seq, &behind));
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
        self.declared.extend_from_slice(seqs);
        Ok(())
    }

    fn seq_cp(
        &mut self,
        src: SeqId,
        dst: SeqId,
        range: impl RangeBounds<u32>,
    ) -> Result<(), KvError> {
        let (src, dst) = (self.check_seq(src)?, self.check_seq(dst)?);
        let range = resolve_positions(range);
        if src == dst {
            return Ok(());
        }
        let added = |space: &CellSpace| -> Result<Vec<Run>, u32> {
            let mut added = Vec::new();
            let [from, to] = [src, dst].map(|seq| &space.sequences[seq as usize].runs);
            for run in from.iter().filter_map(|run| run.clip(&range)) {
                missing(run, to, &mut added)?;
            }
            Ok(added)
        };
        let added: Result<Vec<Vec<Run>>, u32> = self.spaces.iter().map(added).collect();
        let added = added.map_err(|position| KvErrorKind::Occupied { seq: dst, position })?;
        let next = |runs: &[Run]| runs.iter().map(|run| run.position + run.len).max();
        let own = self.spaces[0].sequences[dst as usize].next();
        let Some(next) = next(&added[0]).max(own) else {
            return Ok(());
        };
        let held = |(space, added): (&CellSpace, &Vec<Run>), seen: &Range<u32>| {
            let parts = added.iter().filter_map(|run| run.clip(seen));
            let shared: u32 = parts.map(|run| run.len).sum();
            space.sequences[dst as usize].count(seen) + shared
        };
        for each in self.spaces.iter().zip(&added).skip(1) {
            let seen = each.0.seen_before(next);
            if held(each, &seen) < held((&self.spaces[0], &added[0]), &seen) {
                let floor = self.floor(src);
                return Err(KvErrorKind::RewindTooFar { to: next, floor }.into());
            }
        }
        for (space, added) in self.spaces.iter_mut().zip(added) {
            space.share(dst, added);
            space.remove(dst, &space.evicted_positions(next));
        }
        Ok(())
    }

    fn seq_rm(&mut self, seq: SeqId, range: impl RangeBounds<u32>) -> Result<(), KvError> {
        let seq = self.check_seq(seq)?;
        let range = resolve_positions(range);
        self.check_removal(seq, &range)?;
        self.remove(seq, &range);
        Ok(())
    }

    fn seq_keep(&mut self, seq: SeqId) -> Result<(), KvError> {
        let keep = self.check_seq(seq)?;
        for other in (0..MAX_SEQUENCES).filter(|s| *s != keep) {
            self.remove(other, &(0..u32::MAX));
        }
        Ok(())
    }

    fn seq_len(&self, seq: SeqId) -> Result<u32, KvError> {
        let seq = self.check_seq(seq)?;
        Ok(self.spaces[0].sequences[seq as usize].len)
    }

    fn seq_next(&self, seq: SeqId) -> Result<Option<u32>, KvError> {
        let seq = self.check_seq(seq)?;
        Ok(self.spaces[0].sequences[seq as usize].next())
    }
}

/// The parts of `run` whose positions `held` does not have; the position where `held` has another cell is the error.
fn missing(run: Run, held: &[Run], parts: &mut Vec<Run>) -> Result<(), u32> {
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
