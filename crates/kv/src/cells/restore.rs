//! Planning to save a sequence from the pool, restore it or shift it.

use super::Cells;
use super::allocator::Allocator;
use super::space::CellSpace;
use crate::sequence_rows::first_restorable_position;
use crate::{Cache, CellRun, KvError, KvErrorKind, Restorable, SeqId, SequenceRows};

impl Restorable for Cells {
    fn sequence_rows(&self, seq: SeqId) -> Result<SequenceRows, KvError> {
        let seq = self.check_owner(seq)?;
        let all = &self.spaces[0].sequences[seq as usize];
        let mut end = 0;
        for run in &all.runs {
            if run.position != end {
                return Err(KvErrorKind::Gap { seq, position: end }.into());
            }
            end += run.len;
        }
        let layers = 0..self.classes.class_of.len();
        let space_of = layers.map(|layer| self.space_of(layer) as u16).collect();
        let mut held = SequenceRows::new(end, space_of);
        for space in &self.spaces {
            let runs = &space.sequences[seq as usize].runs;
            let first = match space.policy() {
                // The live state alone: earlier ones help nobody who goes on.
                Some(_) if end > 0 => {
                    space.check_state(seq, end)?;
                    end - 1
                }
                _ => 0,
            };
            let rows = tail(runs, end).iter();
            let rows = rows.filter_map(|run| run.clip(&(first..end)));
            held.push(rows, space.high_water);
        }
        Ok(held)
    }

    fn plan_restore(
        &self,
        seq: SeqId,
        len: u32,
        first: &[u32],
    ) -> Result<(Cells, SequenceRows), KvError> {
        self.plan_refill(seq, 0, len, first)
    }

    fn plan_shift(
        &self,
        seq: SeqId,
        keep: u32,
        dropped: u32,
    ) -> Result<(Cells, SequenceRows), KvError> {
        if self.states().is_some() {
            let (kind, operation) = ("cells", "be shifted in a model with recurrent layers");
            return Err(KvErrorKind::Unsupported { kind, operation }.into());
        }
        let held = self.sequence_rows(seq)?;
        let first = held.first_positions_after_shift(keep, dropped)?;
        self.plan_refill(seq, keep, held.len - dropped, &first)
    }

    fn forget(&mut self, seq: SeqId) {
        self.drop_candidates(seq);
        self.remove(seq, &(0..u32::MAX));
    }
}

impl Cells {
    /// Plans the pool in which `seq` keeps the cells of its first `keep` positions and gets new cells for the positions
    /// up to `len`.
    fn plan_refill(
        &self,
        seq: SeqId,
        keep: u32,
        len: u32,
        first: &[u32],
    ) -> Result<(Cells, SequenceRows), KvError> {
        let seq = self.check_seq(seq)?;
        if !self.declared.is_empty() {
            return Err(KvErrorKind::StepPending.into());
        }
        self.trees[seq as usize].check_empty()?;
        let mut after = self.clone();
        after.remove(seq, &(keep..u32::MAX));
        let (needed, capacity) = (
            u64::from(after.len()) + u64::from(len - keep),
            self.capacity(),
        );
        let full = KvErrorKind::Full { needed, capacity };
        if needed > u64::from(capacity) {
            return Err(full.into());
        }
        for index in 0..after.spaces.len() {
            let layers = 0..self.classes.class_of.len();
            let of_space = layers
                .zip(first)
                .filter(|(layer, _)| self.space_of(*layer) == index);
            let of_space = of_space.map(|(layer, first)| (layer, *first));
            let space = &mut after.spaces[index];
            let seen = match space.policy() {
                Some(_) => len.saturating_sub(1),
                None => space.ring().map_or(0, |_| space.seen_before(len).start),
            };
            let mut first =
                first_restorable_position(of_space, seen)?.max(space.evicted_positions(len).end);
            if space.policy().is_some() {
                first = seen;
                space.free_one_state();
            }
            space.remove(seq, &(0..first));
            if !space.allocate(seq, first.max(keep), len) {
                return Err(full.into());
            }
        }
        let held = after.sequence_rows(seq)?;
        Ok((after, held))
    }
}

/// The longest suffix of `runs` that ends at position `end` and has no gaps.
fn tail(runs: &[CellRun], end: u32) -> &[CellRun] {
    let mut from = end;
    let adjacent = runs.iter().rev().take_while(|run| {
        let meets = run.position + run.len == from;
        from = run.position;
        meets
    });
    &runs[runs.len() - adjacent.count()..]
}

impl CellSpace {
    /// Appends a cell for each position `first..end` to a sequence. Returns false if there are not enough free cells.
    fn allocate(&mut self, seq: SeqId, first: u32, end: u32) -> bool {
        let mut marks = vec![];
        let mut allocator = Allocator::new(self, &mut marks);
        let mut after = None;
        let mut cells = vec![];
        for _ in first..end {
            let Some(cell) = allocator.take(after) else {
                return false;
            };
            cells.push(cell);
            after = Some(cell + 1);
        }
        for (position, cell) in (first..end).zip(cells) {
            self.append(seq, position, cell);
        }
        self.advance_first_free();
        true
    }
}
