//! Which free cells a step's tokens get.

use super::Cells;
use crate::Cache;

/// A sequence that cannot go on in the next cell starts in the lowest free block of this many cells, so that sequences
/// which grow together keep runs and do not interleave cell by cell. When no block is left, the lowest free cell is used.
const BLOCK: u32 = 16;

/// Hands out free cells for one plan without marking them in the pool.
pub(super) struct Allocator<'a> {
    cells: &'a Cells,
    /// One bit per cell handed out.
    taken: &'a mut Vec<u64>,
    next_block: u32,
    next_cell: u32,
}

impl<'a> Allocator<'a> {
    pub(super) fn new(cells: &'a Cells, taken: &'a mut Vec<u64>) -> Allocator<'a> {
        taken.clear();
        taken.resize(cells.holders.len().div_ceil(64), 0);
        Allocator {
            cells,
            taken,
            next_block: cells.first_free / BLOCK * BLOCK,
            next_cell: cells.first_free,
        }
    }

    fn is_free(&self, cell: u32) -> bool {
        self.cells.holders.get(cell as usize) == Some(&0)
            && self.taken[cell as usize / 64] >> (cell % 64) & 1 == 0
    }

    /// A free cell: `wanted` if it is one, else the first of the lowest free block, else the lowest.
    pub(super) fn take(&mut self, wanted: Option<u32>) -> Option<u32> {
        let cell = wanted
            .filter(|cell| self.is_free(*cell))
            .or_else(|| self.block())
            .or_else(|| self.single())?;
        self.taken[cell as usize / 64] |= 1 << (cell % 64);
        Some(cell)
    }

    fn block(&mut self) -> Option<u32> {
        let capacity = self.cells.capacity();
        while self.next_block < capacity {
            let block = self.next_block;
            if (block..(block + BLOCK).min(capacity)).all(|cell| self.is_free(cell)) {
                return Some(block);
            }
            self.next_block += BLOCK;
        }
        None
    }

    fn single(&mut self) -> Option<u32> {
        while self.next_cell < self.cells.capacity() {
            if self.is_free(self.next_cell) {
                return Some(self.next_cell);
            }
            self.next_cell += 1;
        }
        None
    }
}
