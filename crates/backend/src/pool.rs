//! Storage of one layer's keys or values.

use kv::KvError;
use std::ops::Range;

/// A head-major cell store `[heads, cells, dim]`, grown by doubling up to its capacity. Growth never renumbers cells.
pub trait KvPool {
    /// Makes at least `cells` cells exist.
    fn ensure(&mut self, cells: u32) -> Result<(), KvError>;

    /// Stores token-major rows `[tokens, heads, dim]`, token `i` in `cells[i]`, converted to the storage type.
    ///
    /// The cells must exist; a row whose cell is [`NO_CELL`](kv::NO_CELL) is not stored.
    fn write(&mut self, cells: &[u32], data: &[f32]);

    /// Copies cell `rows[i]` to cell `base + i`, in order; no row may lie before its target. Where the pool is a ring, a
    /// cell is meant by its remainder.
    fn gather_into(&mut self, base: u32, rows: &[u32]) -> Result<(), KvError>;

    /// Gives cell `i` what cell `order[i]` held.
    fn reorder(&mut self, order: &[u32]) -> Result<(), KvError>;

    /// Reads one head's row of a cell back.
    fn read(&self, head: usize, cell: u32, out: &mut [f32]);

    /// Copies one head's rows of adjacent cells out, as they are encoded.
    fn read_rows(&self, head: usize, cells: Range<u32>, out: &mut [u8]);

    /// Stores one head's encoded rows in adjacent cells, which must exist.
    fn write_rows(&mut self, head: usize, first: u32, rows: &[u8]);

    /// Bytes allocated now.
    fn resident_bytes(&self) -> usize;
}
