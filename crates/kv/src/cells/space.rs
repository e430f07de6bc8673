//! `CellSpace`: one numbering of cells, with the reference count of every cell and the runs of every sequence.

use crate::plan::push_run;
use crate::window::{LayerWindow, seen};
use crate::{CellRun, SeqId, StatePolicy};
use std::ops::Range;

/// One numbering of cells, shared by the layers with the same retention policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CellSpace {
    /// The index of its layer class in a [`StepPlan`](crate::StepPlan).
    pub(super) class: usize,
    pub(super) retention: Retention,
    /// For each cell, the number of sequences that hold it.
    pub(super) ref_counts: Vec<u16>,
    pub(super) sequences: Vec<SequenceRuns>,
    pub(super) used: u32,
    /// One past the last cell in use.
    pub(super) high_water: u32,
    /// No cell below this one is free.
    pub(super) first_free: u32,
}

/// The content of the cells, and when it is evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retention {
    /// The rows of all positions.
    All,
    /// Rows, of which those that are older than the window are evicted.
    Ring(RingSize),
    /// States after some positions.
    States(StatePolicy),
}

/// The size of a sequence's ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RingSize {
    pub(super) window: LayerWindow,
    /// The maximum number of rows of one sequence, those of its sinks included.
    pub(super) slots: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SequenceRuns {
    /// In position order. Adjacent runs are merged.
    pub(super) runs: Vec<CellRun>,
    pub(super) len: u32,
    /// The cells of the candidates, which are after the runs.
    pub(super) candidates: Vec<u32>,
    /// In a space of states, whether the last one is kept as a snapshot when the sequence goes on.
    pub(super) keeps_live: bool,
}

impl SequenceRuns {
    pub(super) fn next(&self) -> Option<u32> {
        self.runs.last().map(|run| run.position + run.len)
    }

    /// The number of these positions that the sequence holds.
    pub(super) fn count(&self, positions: &Range<u32>) -> u32 {
        let parts = self.runs.iter().filter_map(|run| run.clip(positions));
        parts.map(|run| run.len).sum()
    }
}

impl CellSpace {
    pub(super) fn new(
        class: usize,
        retention: Retention,
        capacity: u32,
        sequences: u32,
    ) -> CellSpace {
        CellSpace {
            class,
            retention,
            ref_counts: vec![0; capacity as usize],
            sequences: vec![SequenceRuns::default(); sequences as usize],
            used: 0,
            high_water: 0,
            first_free: 0,
        }
    }

    /// Set for ring layers, which evict rows that are older than their window.
    pub(super) fn ring(&self) -> Option<RingSize> {
        match self.retention {
            Retention::Ring(ring) => Some(ring),
            _ => None,
        }
    }

    pub(super) fn capacity(&self) -> u32 {
        self.ref_counts.len() as u32
    }

    pub(super) fn clear(&mut self) {
        self.ref_counts.fill(0);
        self.sequences.truncate(super::MAX_SEQUENCES as usize);
        self.sequences.fill(SequenceRuns::default());
        (self.used, self.high_water, self.first_free) = (0, 0, 0);
    }

    /// The end of the cells that are searched first for a free one: for rings, the cells of all rings in use.
    pub(super) fn search_limit(&self) -> u32 {
        match self.ring() {
            Some(RingSize { slots, .. }) => {
                let rings = u64::from(self.high_water.div_ceil(slots).max(1));
                (rings * u64::from(slots)).min(self.capacity().into()) as u32
            }
            None => self.capacity(),
        }
    }

    /// The positions that a ring evicts when its sequence grows to the length `next`.
    pub(super) fn evicted_positions(&self, next: u32) -> Range<u32> {
        let Some(RingSize { window, slots }) = self.ring() else {
            return 0..0;
        };
        match next > slots {
            true => window.sinks..window.sinks + next - slots,
            false => 0..0,
        }
    }

    /// The positions before `next` that the token at `next` attends to: sinks, and the latest ones.
    pub(super) fn seen_before(&self, next: u32) -> [Range<u32>; 2] {
        let (latest, sinks) = self.seen(next);
        [0..sinks, latest.start..next]
    }

    /// The positions that the token at `position` sees, as [`seen`] returns them.
    pub(super) fn seen(&self, position: u32) -> (Range<u32>, u32) {
        seen(self.ring().map(|ring| ring.window), position)
    }

    /// The runs of a sequence that the token at `next` and later ones attend to.
    pub(super) fn seen_runs(&self, seq: SeqId, next: u32) -> impl Iterator<Item = CellRun> + '_ {
        let runs = &self.sequences[seq as usize].runs;
        let seen = self.seen_before(next).into_iter();
        seen.flat_map(|seen| runs.iter().filter_map(move |run| run.clip(&seen)))
    }

    /// Appends a cell to a sequence.
    pub(super) fn append(&mut self, seq: SeqId, position: u32, cell: u32) {
        self.retain(cell..cell + 1);
        let sequence = &mut self.sequences[seq as usize];
        sequence.len += 1;
        let len = 1;
        push_run(
            &mut sequence.runs,
            CellRun {
                position,
                cell,
                len,
            },
        );
    }

    /// Adds runs to a sequence, at positions that it does not hold yet.
    pub(super) fn share(&mut self, seq: SeqId, added: Vec<CellRun>) {
        added.iter().for_each(|run| self.retain(run.cells()));
        let sequence = &mut self.sequences[seq as usize];
        sequence.len += added.iter().map(|run| run.len).sum::<u32>();
        let mut all = std::mem::take(&mut sequence.runs);
        all.extend(added);
        all.sort_unstable_by_key(|run| run.position);
        all.into_iter()
            .for_each(|run| push_run(&mut sequence.runs, run));
    }

    /// Removes positions from a sequence.
    pub(super) fn remove(&mut self, seq: SeqId, range: &Range<u32>) {
        let runs = &self.sequences[seq as usize].runs;
        if !runs.iter().any(|run| run.clip(range).is_some()) {
            return;
        }
        let runs = std::mem::take(&mut self.sequences[seq as usize].runs);
        let mut kept = Vec::with_capacity(runs.len() + 1);
        for run in &runs {
            kept.extend(run.clip(&(0..range.start)));
            if let Some(gone) = run.clip(range) {
                self.release(gone.cells());
                self.sequences[seq as usize].len -= gone.len;
            }
            kept.extend(run.clip(&(range.end..u32::MAX)));
        }
        self.sequences[seq as usize].runs = kept;
        self.lower_high_water();
    }

    /// Advances `first_free` past used cells. Called after cells were allocated.
    pub(super) fn advance_first_free(&mut self) {
        let free = |n: &u16| *n == 0;
        let from = &self.ref_counts[self.first_free as usize..];
        let taken = from.iter().position(free).unwrap_or(from.len());
        self.first_free += taken as u32;
    }

    /// Renumbers the cells after the first `fixed` without holes, so that every sequence has runs as long as possible. Returns the
    /// old cell of every new cell, both counted after those, or `None` if the numbering does not change.
    pub(super) fn compact(&mut self, fixed: u32) -> Option<Vec<u32>> {
        let mut new_of = vec![u32::MAX; self.high_water as usize];
        let mut order = Vec::with_capacity(self.used as usize);
        for cell in 0..fixed {
            new_of[cell as usize] = cell;
            order.push(cell);
        }
        let cells = |sequence: &SequenceRuns| {
            let runs = sequence.runs.clone().into_iter();
            let candidates = sequence.candidates.clone();
            runs.flat_map(|run| run.cells()).chain(candidates)
        };
        for cell in self.sequences.iter().flat_map(cells) {
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
                for (position, old) in run.positions().zip(run.cells()) {
                    let (cell, len) = (new_of[old as usize], 1);
                    push_run(
                        &mut runs,
                        CellRun {
                            position,
                            cell,
                            len,
                        },
                    );
                }
            }
            sequence.runs = runs;
            for cell in &mut sequence.candidates {
                *cell = new_of[*cell as usize];
            }
        }
        let held = order.iter().map(|old| self.ref_counts[*old as usize]);
        let ref_counts: Vec<u16> = held.collect();
        self.ref_counts.fill(0);
        self.ref_counts[..ref_counts.len()].copy_from_slice(&ref_counts);
        (self.high_water, self.first_free) = (self.used, self.used);
        let moved = order.drain(fixed as usize..).map(|old| old - fixed);
        Some(moved.collect())
    }

    /// Increments the reference counts of cells.
    pub(super) fn retain(&mut self, cells: Range<u32>) {
        self.high_water = self.high_water.max(cells.end);
        for n in &mut self.ref_counts[cells.start as usize..cells.end as usize] {
            self.used += u32::from(*n == 0);
            *n += 1;
        }
    }

    /// Decrements the reference counts of cells; cells with count 0 become free.
    pub(super) fn release(&mut self, cells: Range<u32>) {
        let mut freed = 0;
        for n in &mut self.ref_counts[cells.start as usize..cells.end as usize] {
            *n -= 1;
            freed += u32::from(*n == 0);
        }
        if freed > 0 {
            self.used -= freed;
            self.first_free = self.first_free.min(cells.start);
        }
    }

    /// Lowers the high water to the last used cell. Called after cells were freed.
    pub(super) fn lower_high_water(&mut self) {
        let below = &self.ref_counts[..self.high_water as usize];
        let held = below.iter().rposition(|n| *n > 0);
        self.high_water = held.map_or(0, |last| last as u32 + 1);
    }
}
