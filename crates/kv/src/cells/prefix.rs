//! A pool that stands on a frozen prefix.
//!
//! The cells of the prefix are the first of every space and are never free: a read-only sequence holds them, which other sequences
//! are forked from. Nothing else in the pool knows of the prefix, except that its cells are not renumbered.

use super::space::CellSpace;
use super::{Cells, MAX_SEQUENCES};
use crate::{CacheConfig, CellRun, KvError, KvErrorKind, PrefixCells, Prefixed, SeqId};

impl Prefixed for Cells {
    const KIND: &'static str = "cells";

    fn after_prefix(config: &CacheConfig, prefix: &PrefixCells) -> Result<Cells, KvError> {
        config.check_no_sinks("put after a prefix")?;
        let mut cells = Cells::new(config);
        cells.prefix = prefix.clone();
        let layers = 0..config.layers.len();
        let states = |layer: &usize| config.layers[*layer].is_state();
        for layer in layers.filter(|layer| !states(layer)) {
            let space = &cells.spaces[cells.space_of(layer)];
            let (runs, _) =
                prefix.of_class(&cells.classes, usize::from(cells.classes.class_of[layer]));
            let all = runs.first().is_some_and(|run| run.position == 0);
            if space.ring().is_none() && !all {
                let reason =
                    "its window layers hold their window only, and this cache keeps all rows";
                return Err(KvErrorKind::PrefixMismatch(reason.into()).into());
            }
        }
        cells.place_prefix();
        Ok(cells)
    }
}

impl Cells {
    /// The read-only sequence of the prefix that the pool stands on.
    pub fn prefix(&self) -> Option<SeqId> {
        (!self.prefix.is_empty()).then_some(MAX_SEQUENCES)
    }

    /// The same pool on storage of its own, in which the prefix is an ordinary retained one.
    pub(crate) fn without_prefix(&self) -> Cells {
        let mut pool = self.clone();
        if let Some(id) = self.prefix() {
            for index in 0..pool.spaces.len() {
                let (_, cells) = self.prefix_cells(index);
                pool.spaces[index].release_lost(id, cells);
            }
        }
        pool.prefix = PrefixCells::default();
        pool
    }

    /// Returns an error if `id` is the prefix that the pool stands on.
    pub(super) fn check_not_prefix(&self, id: SeqId) -> Result<(), KvError> {
        match self.prefix() == Some(id) {
            true => Err(KvErrorKind::PrefixReadOnly {
                tokens: self.prefix.len(),
            }
            .into()),
            false => Ok(()),
        }
    }

    /// Gives the cells of the prefix, if there is one, to its sequence. The pool is empty.
    pub(super) fn place_prefix(&mut self) {
        let Some(id) = self.prefix() else { return };
        self.resize_retained(1);
        self.retained[0] = true;
        for index in 0..self.spaces.len() {
            let (runs, cells) = self.prefix_cells(index);
            self.spaces[index].place(id, runs, cells);
        }
    }

    /// The runs of the prefix in a space, and the number of its cells.
    fn prefix_cells(&self, space: usize) -> (Vec<CellRun>, u32) {
        let class = self.spaces[space].class;
        if class < self.classes.windows.len() {
            let (runs, cells) = self.prefix.of_class(&self.classes, class);
            return (runs.to_vec(), cells);
        }
        // The space of all positions belongs to no layer.
        let len = self.prefix.len();
        let (position, cell) = (0, 0);
        let run = CellRun {
            position,
            cell,
            len,
        };
        (Vec::from_iter((len > 0).then_some(run)), len)
    }

    /// The number of cells at the beginning of a space that are never renumbered: those of the prefix. Its state was copied.
    pub(super) fn fixed_cells(&self, space: usize) -> u32 {
        match self.spaces[space].policy() {
            Some(_) => 0,
            None => self.prefix_cells(space).1,
        }
    }
}

impl CellSpace {
    /// Gives the first `cells` cells to a sequence, of which it has rows in these runs. Cells without rows stay in use.
    fn place(&mut self, seq: SeqId, runs: Vec<CellRun>, cells: u32) {
        self.share(seq, runs);
        for cell in self.lost(seq, cells) {
            self.retain(cell..cell + 1);
        }
        self.advance_first_free();
    }

    /// Frees those of the first `cells` cells that the sequence of a prefix has no rows in.
    fn release_lost(&mut self, seq: SeqId, cells: u32) {
        for cell in self.lost(seq, cells) {
            self.release(cell..cell + 1);
        }
        self.lower_high_water();
    }

    /// Those of the first `cells` cells that a sequence has no rows in.
    fn lost(&self, seq: SeqId, cells: u32) -> Vec<u32> {
        let runs = &self.sequences[seq as usize].runs;
        let held = |cell: &u32| runs.iter().any(|run| run.cells().contains(cell));
        (0..cells).filter(|cell| !held(cell)).collect()
    }
}
