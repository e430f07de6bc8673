//! Chooses free cells for the tokens of a step.

use super::space::CellSpace;

/// A sequence whose next cell is taken continues in the lowest free block of this many cells, so that sequences which
/// grow together have long runs instead of interleaved cells. If no block is free, it gets the lowest free cell.
const BLOCK: u32 = 16;

/// Allocates cells for one plan without changing the cell space.
pub(super) struct Allocator<'a> {
    space: &'a CellSpace,
    /// Two bits per cell: `TAKEN` by this plan, and `EVICTED` by the step itself.
    marks: &'a mut Vec<u64>,
    next_block: u32,
    next_cell: u32,
}

const TAKEN: u64 = 1;
const EVICTED: u64 = 2;

impl<'a> Allocator<'a> {
    pub(super) fn new(space: &'a CellSpace, marks: &'a mut Vec<u64>) -> Allocator<'a> {
        marks.clear();
        marks.resize(space.ref_counts.len().div_ceil(32), 0);
        Allocator {
            space,
            marks,
            next_block: space.first_free / BLOCK * BLOCK,
            next_cell: space.first_free,
        }
    }

    /// Marks a cell as free: all sequences that hold it evict it in this step.
    pub(super) fn mark_evicted(&mut self, cell: u32) {
        self.mark(cell, EVICTED);
        self.next_cell = self.next_cell.min(cell);
        self.next_block = self.next_block.min(cell / BLOCK * BLOCK);
    }

    fn mark(&mut self, cell: u32, mark: u64) {
        self.marks[cell as usize / 32] |= mark << (cell % 32 * 2);
    }

    fn is_free(&self, cell: u32) -> bool {
        let Some(ref_counts) = self.space.ref_counts.get(cell as usize) else {
            return false;
        };
        let marks = self.marks[cell as usize / 32] >> (cell % 32 * 2) & 3;
        match *ref_counts {
            0 => marks & TAKEN == 0,
            _ => marks == EVICTED,
        }
    }

    /// Allocates a cell: `wanted` if it is free, else the first cell of the lowest free block, else the lowest free
    /// cell.
    pub(super) fn take(&mut self, wanted: Option<u32>) -> Option<u32> {
        let limit = self.space.search_limit();
        let cell = wanted
            .filter(|cell| *cell < limit && self.is_free(*cell))
            .or_else(|| self.block(limit))
            .or_else(|| self.single())?;
        self.mark(cell, TAKEN);
        Some(cell)
    }

    fn block(&mut self, limit: u32) -> Option<u32> {
        while self.next_block < limit {
            let block = self.next_block;
            if (block..(block + BLOCK).min(limit)).all(|cell| self.is_free(cell)) {
                return Some(block);
            }
            self.next_block += BLOCK;
        }
        None
    }

    fn single(&mut self) -> Option<u32> {
        while self.next_cell < self.space.capacity() {
            if self.is_free(self.next_cell) {
                return Some(self.next_cell);
            }
            self.next_cell += 1;
        }
        None
    }
}
