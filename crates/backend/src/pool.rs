//! `KvPool`: storage of one layer's keys or values.

use kv::KvError;
use std::ops::Range;

/// Head-major storage `[heads, cells, dim]` that doubles up to its capacity. Growth does not renumber cells.
pub trait KvPool {
    /// Grows the pool to at least `cells` cells.
    fn ensure(&mut self, cells: u32) -> Result<(), KvError>;

    /// Stores token-major rows `[tokens, heads, dim]`, token `i` in `cells[i]`, converted to the storage type.
    ///
    /// The cells must exist; a row whose cell is [`NO_CELL`](kv::NO_CELL) is not stored.
    fn write(&mut self, cells: &[u32], data: &[f32]);

    /// Copies cell `rows[i]` to cell `base + i`, in order; `rows[i] >= base + i`. In a ring, cell numbers are taken
    /// modulo its size.
    fn gather_into(&mut self, base: u32, rows: &[u32]) -> Result<(), KvError>;

    /// Moves the row of cell `order[i]` to cell `i`.
    fn reorder(&mut self, order: &[u32]) -> Result<(), KvError>;

    /// Decodes one head's row of a cell.
    fn read(&self, head: usize, cell: u32, out: &mut [f32]);

    /// Copies one head's encoded rows of adjacent cells to `out`.
    fn read_rows(&self, head: usize, cells: Range<u32>, out: &mut [u8]);

    /// Writes one head's encoded rows to adjacent cells, which must exist.
    fn write_rows(&mut self, head: usize, first: u32, rows: &[u8]);

    /// Bytes allocated now.
    fn resident_bytes(&self) -> usize;
}
