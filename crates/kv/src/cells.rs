//! Many sequences in one pool of cells: batches, forks, eviction and rollback without moving a byte.

use crate::plan::{Classes, push_run};
use crate::{
    Bookkeeping, Cache, CacheConfig, KvError, KvErrorKind, Run, SeqCache, SeqId, StepPlan,
};
use std::ops::{Bound, Range, RangeBounds};

mod allocator;

use allocator::Allocator;

/// Most sequences alive at once.
pub const MAX_SEQUENCES: u32 = 64;

/// A pool of cells shared by up to [`MAX_SEQUENCES`] sequences.
///
/// Each sequence is a list of runs in position order, and each cell counts the sequences that hold it; a cell nobody
/// holds is free. So verbs cost what the runs they touch cost, and a fork copies a run list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cells {
    classes: Classes,
    /// Sequences that hold each cell.
    holders: Vec<u8>,
    sequences: Vec<Sequence>,
    used: u32,
    /// One past the last cell in use.
    high_water: u32,
    /// No cell before this one is free.
    first_free: u32,
    /// The next forward's sequences, one per token; empty when none is declared.
    declared: Vec<SeqId>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Sequence {
    /// Ascending in position; no two touch without being joined.
    runs: Vec<Run>,
    len: u32,
}

impl Sequence {
    fn next(&self) -> Option<u32> {
        self.runs.last().map(|run| run.position + run.len)
    }
}

impl Cells {
    /// An empty pool.
    pub fn new(config: &CacheConfig) -> Cells {
        Cells {
            classes: Classes::new(config.layers.iter().map(|l| l.window)),
            holders: vec![0; config.capacity as usize],
            sequences: vec![Sequence::default(); MAX_SEQUENCES as usize],
            used: 0,
            high_water: 0,
            first_free: 0,
            declared: Vec::new(),
        }
    }

    /// One past the last cell in use: what a read of the whole pool would span.
    pub fn high_water(&self) -> u32 {
        self.high_water
    }

    /// Where a sequence's positions lie.
    pub fn runs(&self, seq: SeqId) -> Result<&[Run], KvError> {
        Ok(&self.sequences[self.index(seq)?].runs)
    }

    /// The sequences that hold something.
    pub fn live(&self) -> impl Iterator<Item = SeqId> + '_ {
        (0..MAX_SEQUENCES).filter(|s| self.sequences[*s as usize].len > 0)
    }

    /// How many sequences hold each cell below the high water.
    pub fn holders(&self) -> &[u8] {
        &self.holders[..self.high_water as usize]
    }

    /// Renumbers the cells so that sequences lie in runs as long as they can be, without holes. Returns, for each new
    /// cell, the old one whose rows it must get; `None` when nothing would change.
    pub fn compact(&mut self) -> Option<Vec<u32>> {
        let mut new_of = vec![u32::MAX; self.high_water as usize];
        let mut order = Vec::with_capacity(self.used as usize);
        for cell in self
            .sequences
            .iter()
            .flat_map(|s| &s.runs)
            .flat_map(Run::cells)
        {
            if new_of[cell as usize] == u32::MAX {
                new_of[cell as usize] = order.len() as u32;
                order.push(cell);
            }
        }
        if order.iter().zip(0..).all(|(old, new)| *old == new) {
            return None;
        }
        for sequence in &mut self.sequences {
            let mut runs = Vec::new();
            for run in &sequence.runs {
                for (position, cell) in run.positions().zip(run.cells()) {
                    push_run(
                        &mut runs,
                        Run {
                            position,
                            cell: new_of[cell as usize],
                            len: 1,
                        },
                    );
                }
            }
            sequence.runs = runs;
        }
        let holders: Vec<u8> = order
            .iter()
            .map(|old| self.holders[*old as usize])
            .collect();
        self.holders.fill(0);
        self.holders[..holders.len()].copy_from_slice(&holders);
        (self.high_water, self.first_free) = (self.used, self.used);
        Some(order)
    }

    fn index(&self, seq: SeqId) -> Result<usize, KvError> {
        if seq < MAX_SEQUENCES {
            Ok(seq as usize)
        } else {
            Err(KvErrorKind::Sequence {
                seq,
                most: MAX_SEQUENCES,
            }
            .into())
        }
    }

    /// Lets one more sequence hold these cells.
    fn hold(&mut self, cells: Range<u32>) {
        self.holders[cells.start as usize..cells.end as usize]
            .iter_mut()
            .for_each(|n| *n += 1);
    }

    /// Lets one sequence fewer hold these cells and counts those that became free.
    fn release(&mut self, cells: Range<u32>) {
        let mut freed = 0;
        for n in &mut self.holders[cells.start as usize..cells.end as usize] {
            *n -= 1;
            freed += u32::from(*n == 0);
        }
        if freed > 0 {
            self.used -= freed;
            self.first_free = self.first_free.min(cells.start);
        }
    }

    /// After cells were freed: the high water falls to the last one held.
    fn lower_high_water(&mut self) {
        let held = self.holders[..self.high_water as usize]
            .iter()
            .rposition(|n| *n > 0);
        self.high_water = held.map_or(0, |last| last as u32 + 1);
    }
}

/// The positions that a range stands for.
pub(crate) fn positions(range: impl RangeBounds<u32>) -> Range<u32> {
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
    start..end
}

impl Cache for Cells {
    fn can_extend(&self, n: u32) -> bool {
        n <= self.capacity() - self.used
    }

    fn capacity(&self) -> u32 {
        self.holders.len() as u32
    }

    fn len(&self) -> u32 {
        self.used
    }

    fn clear(&mut self) {
        self.holders.fill(0);
        for sequence in &mut self.sequences {
            sequence.runs.clear();
            sequence.len = 0;
        }
        (self.used, self.high_water, self.first_free) = (0, 0, 0);
        self.declared.clear();
    }

    /// Takes all positions from `len` on out of every sequence.
    fn rewind(&mut self, len: u32) -> Result<(), KvError> {
        for seq in 0..MAX_SEQUENCES {
            self.seq_rm(seq, len..)?;
        }
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
        for seq in seqs {
            self.index(*seq)?;
        }
        let needed = u64::from(self.used) + seqs.len() as u64;
        if needed > u64::from(self.capacity()) {
            return Err(KvErrorKind::Full {
                needed,
                capacity: self.capacity(),
            }
            .into());
        }
        self.declared.extend_from_slice(seqs);
        Ok(())
    }

    fn seq_cp(
        &mut self,
        src: SeqId,
        dst: SeqId,
        range: impl RangeBounds<u32>,
    ) -> Result<(), KvError> {
        let (src, dst) = (self.index(src)?, self.index(dst)?);
        let range = positions(range);
        if src == dst {
            return Ok(());
        }
        let shared: Vec<Run> = self.sequences[src]
            .runs
            .iter()
            .filter_map(|run| run.clip(&range))
            .collect();
        let mut added = Vec::new();
        for run in shared {
            missing(run, &self.sequences[dst].runs, &mut added).map_err(|position| {
                KvErrorKind::Occupied {
                    seq: dst as SeqId,
                    position,
                }
            })?;
        }
        for run in &added {
            self.hold(run.cells());
        }
        let sequence = &mut self.sequences[dst];
        sequence.len += added.iter().map(|run| run.len).sum::<u32>();
        let mut all = std::mem::take(&mut sequence.runs);
        all.extend(added);
        all.sort_unstable_by_key(|run| run.position);
        all.into_iter()
            .for_each(|run| push_run(&mut sequence.runs, run));
        Ok(())
    }

    fn seq_rm(&mut self, seq: SeqId, range: impl RangeBounds<u32>) -> Result<(), KvError> {
        let seq = self.index(seq)?;
        let range = positions(range);
        let runs = std::mem::take(&mut self.sequences[seq].runs);
        let mut kept = Vec::with_capacity(runs.len());
        for run in &runs {
            // Of an empty range nothing is taken out, and its two sides are joined again.
            if let Some(before) = run.clip(&(0..range.start)) {
                push_run(&mut kept, before);
            }
            if let Some(gone) = run.clip(&range) {
                self.release(gone.cells());
                self.sequences[seq].len -= gone.len;
            }
            if let Some(behind) = run.clip(&(range.end.max(range.start)..u32::MAX)) {
                push_run(&mut kept, behind);
            }
        }
        self.sequences[seq].runs = kept;
        self.lower_high_water();
        Ok(())
    }

    fn seq_keep(&mut self, seq: SeqId) -> Result<(), KvError> {
        let keep = self.index(seq)?;
        for other in (0..self.sequences.len()).filter(|s| *s != keep) {
            for run in std::mem::take(&mut self.sequences[other].runs) {
                self.release(run.cells());
            }
            self.sequences[other].len = 0;
        }
        self.lower_high_water();
        Ok(())
    }

    fn seq_len(&self, seq: SeqId) -> Result<u32, KvError> {
        Ok(self.sequences[self.index(seq)?].len)
    }

    fn seq_next(&self, seq: SeqId) -> Result<Option<u32>, KvError> {
        Ok(self.sequences[self.index(seq)?].next())
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

impl Bookkeeping for Cells {
    fn plan(&self, positions: &[i32], plan: &mut StepPlan) -> Result<(), KvError> {
        if self.declared.is_empty() {
            return Err(KvErrorKind::NoStep.into());
        }
        if self.declared.len() != positions.len() {
            let (declared, found) = (self.declared.len(), positions.len());
            return Err(KvErrorKind::TokenCount { declared, found }.into());
        }
        plan.reset(positions.len() as u32, &self.classes);
        let mut allocator = Allocator::new(self, &mut plan.scratch);
        let Some(first) = plan.classes.first_mut() else {
            return Ok(());
        };
        first.visible.clear();
        first.writes.clear();
        // Per sequence in the step: where it goes on, and its list.
        let mut next = [None; MAX_SEQUENCES as usize];
        let mut lists = [u32::MAX; MAX_SEQUENCES as usize];
        for (index, (&seq, &found)) in self.declared.iter().zip(positions).enumerate() {
            let (seq, found) = (seq as usize, i64::from(found));
            let sequence = &self.sequences[seq];
            let (expected, after) = next[seq].unwrap_or_else(|| {
                let last = sequence.runs.last();
                (sequence.next(), last.map(|run| run.cell + run.len))
            });
            let position = u32::try_from(found).ok().filter(|p| *p < i32::MAX as u32);
            let position = position
                .filter(|p| expected.is_none_or(|e| e == *p))
                .ok_or(KvErrorKind::Position {
                    index,
                    found,
                    expected: expected.unwrap_or(0),
                })?;
            let cell = allocator
                .take(after)
                .expect("begin_step and verbs leave room for a declared step");
            first.writes.push(cell);
            next[seq] = Some((Some(position + 1), Some(cell + 1)));
        }
        first.cells = first
            .writes
            .iter()
            .fold(self.high_water, |high, cell| high.max(cell + 1));
        for (token, &seq) in self.declared.iter().enumerate() {
            let seq = seq as usize;
            if lists[seq] == u32::MAX {
                lists[seq] = first.visible.open_list();
                self.sequences[seq]
                    .runs
                    .iter()
                    .for_each(|run| first.visible.push_run(*run));
                let tokens = self.declared.iter().zip(positions).zip(&first.writes);
                for ((_, &position), &cell) in tokens.skip(token).filter(|t| *t.0.0 as usize == seq)
                {
                    first.visible.push_run(Run {
                        position: position as u32,
                        cell,
                        len: 1,
                    });
                }
            }
            first
                .visible
                .push_query(lists[seq], 0..positions[token] as u32 + 1);
        }
        plan.narrow_classes(&self.classes);
        Ok(())
    }

    fn commit(&mut self, plan: &StepPlan) {
        let declared = std::mem::take(&mut self.declared);
        if let Some(class) = plan.classes.first() {
            for ((&seq, &cell), query) in declared
                .iter()
                .zip(&class.writes)
                .zip(class.visible.queries())
            {
                self.holders[cell as usize] = 1;
                let sequence = &mut self.sequences[seq as usize];
                sequence.len += 1;
                push_run(
                    &mut sequence.runs,
                    Run {
                        position: query.positions.end - 1,
                        cell,
                        len: 1,
                    },
                );
            }
            self.used += plan.tokens;
            self.high_water = self.high_water.max(class.cells);
        }
        while self
            .holders
            .get(self.first_free as usize)
            .is_some_and(|n| *n > 0)
        {
            self.first_free += 1;
        }
        self.declared = declared;
        self.declared.clear();
    }

    fn abort(&mut self, _: Option<&StepPlan>) {
        self.declared.clear();
    }
}

#[cfg(test)]
mod tests;
