//! Planning to save a sequence from the pool, restore it or shift it.

use super::Cells;
use super::allocator::Allocator;
use super::space::CellSpace;
use crate::sequence_rows::first_restorable_position;
use crate::{
    Cache, CellRun, KvError, KvErrorKind, Restorable, SavedPositions, SeqId, SequenceRows,
};

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
            let runs = match space.policy() {
                Some(_) if end > 0 && runs.is_empty() => {
                    return Err(KvErrorKind::NoState {
                        to: end,
                        nearest: 0,
                    }
                    .into());
                }
                Some(_) => runs,
                None => {
                    let tail = tail(runs, end);
                    let first = tail.first().map_or(end, |run| run.position);
                    let sinks = space.ring().map_or(0, |ring| ring.window.sinks);
                    let sinks = 0..sinks.min(first);
                    let kept = runs.iter().filter_map(|run| run.clip(&sinks));
                    held.push(kept.chain(tail.iter().copied()), space.high_water);
                    continue;
                }
            };
            held.push(runs.iter().copied(), space.high_water);
        }
        Ok(held)
    }

    fn plan_restore(
        &self,
        seq: SeqId,
        len: u32,
        saved: SavedPositions<'_>,
    ) -> Result<(Cells, SequenceRows), KvError> {
        self.plan_refill(seq, 0, len, saved)
    }

    fn plan_shift(
        &self,
        seq: SeqId,
        keep: u32,
        dropped: u32,
    ) -> Result<(Cells, SequenceRows), KvError> {
        self.check_no_states("be shifted in a model with recurrent layers")?;
        let held = self.sequence_rows(seq)?;
        let first = held.first_positions_after_shift(keep, dropped)?;
        let saved = SavedPositions {
            first: &first,
            states: &[],
        };
        self.plan_refill(seq, keep, held.len - dropped, saved)
    }

    fn plan_append(
        &self,
        seq: SeqId,
        len: u32,
        first: &[u32],
    ) -> Result<(Cells, SequenceRows), KvError> {
        self.check_no_states("take rows in a model with recurrent layers")?;
        let held = self.sequence_rows(seq)?;
        let first = held.first_positions_after_append(len, first)?;
        let saved = SavedPositions {
            first: &first,
            states: &[],
        };
        self.plan_refill(seq, held.len, len, saved)
    }

    fn forget(&mut self, seq: SeqId) {
        self.drop_candidates(seq);
        self.remove(seq, &(0..u32::MAX));
    }
}

impl Cells {
    /// Refuses an operation on rows if there are recurrent layers, whose states cannot take part.
    fn check_no_states(&self, operation: &'static str) -> Result<(), KvError> {
        let kind = "cells";
        match self.states() {
            Some(_) => Err(KvErrorKind::Unsupported { kind, operation }.into()),
            None => Ok(()),
        }
    }

    /// Plans the pool in which `seq` keeps the cells of its first `keep` positions and gets new cells for the positions
    /// up to `len`.
    fn plan_refill(
        &self,
        seq: SeqId,
        keep: u32,
        len: u32,
        saved: SavedPositions<'_>,
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
                .zip(saved.first)
                .filter(|(layer, _)| self.space_of(*layer) == index);
            let of_space = of_space.map(|(layer, first)| (layer, *first));
            let space = &mut after.spaces[index];
            if space.policy().is_some() {
                space.allocate_states(seq, len, saved.states)?;
                continue;
            }
            let sinks = space.ring().map_or(0, |ring| ring.window.sinks);
            // Sinks are saved only with all rows.
            let seen = match space.ring() {
                Some(_) if sinks == 0 => space.seen_before(len)[1].start,
                _ => 0,
            };
            let first = first_restorable_position(of_space, seen)?;
            let first = first.max(space.evicted_positions(len).end);
            let sinks = sinks.min(first);
            space.remove(seq, &(sinks..first));
            if !space.allocate(seq, (keep.min(sinks)..sinks).chain(first.max(keep)..len)) {
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
    /// Appends a cell for each of these positions to a sequence. Returns false if there are not enough free cells.
    fn allocate(&mut self, seq: SeqId, positions: impl Iterator<Item = u32> + Clone) -> bool {
        let mut marks = vec![];
        let mut allocator = Allocator::new(self, &mut marks);
        let mut after = None;
        let mut cells = vec![];
        for _ in positions.clone() {
            let Some(cell) = allocator.take(after) else {
                return false;
            };
            cells.push(cell);
            after = Some(cell + 1);
        }
        for (position, cell) in positions.zip(cells) {
            self.append(seq, position, cell);
        }
        self.advance_first_free();
        true
    }

    /// Appends cells for the saved states of the first `len` tokens to a sequence without states: for the last one, and for as many
    /// of those before it as there are free cells.
    fn allocate_states(&mut self, seq: SeqId, len: u32, saved: &[u32]) -> Result<(), KvError> {
        let saved = &saved[..saved.partition_point(|position| *position < len)];
        let nearest = saved.last().map_or(0, |position| position + 1);
        if nearest < len {
            return Err(KvErrorKind::NoState { to: len, nearest }.into());
        }
        if saved.is_empty() {
            return Ok(());
        }
        self.free_one_state();
        let free = (self.capacity() - self.used) as usize;
        let kept = &saved[saved.len().saturating_sub(free)..];
        if kept.is_empty() || !self.allocate(seq, kept.iter().copied()) {
            let slots = self.capacity();
            return Err(KvErrorKind::StatesFull {
                needed: slots + 1,
                slots,
            }
            .into());
        }
        Ok(())
    }
}
