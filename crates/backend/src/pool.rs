//! Storage of one layer's keys or values.

use kv::{KvError, Rows};

/// A head-major cell store `[heads, cells, dim]`, grown by doubling up to its capacity. Growth never renumbers cells.
pub trait KvPool {
    /// Makes at least `cells` cells exist.
    fn ensure(&mut self, cells: u32) -> Result<(), KvError>;

    /// Stores one token-major row `[heads, dim]` per token of `rows`, converted to the storage type.
    ///
    /// The cells must exist.
    fn write(&mut self, rows: &Rows, data: &[f32]);

    /// Reads one head's row of a cell back.
    fn read(&self, head: usize, cell: u32, out: &mut [f32]);

    /// Bytes allocated now.
    fn resident_bytes(&self) -> usize;
}
