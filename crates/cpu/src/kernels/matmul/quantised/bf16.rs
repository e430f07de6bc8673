//! Products in fast precision on AMX tiles: activations and weights are rounded to bf16.
//!
//! `tdpbf16ps` sums products in f32, in an order that is the same for every row. Weights are expanded on vectors, about half as many
//! in the same time as the vector kernels multiply with a single row: for few rows the other precisions are faster.

mod expand;
mod product;

pub(super) use product::{max_panels, thread_scratch};

use super::format::{BLOCK, LINE};
use super::task::{PanelTask, QuantisedLinear};
use crate::isa::Isa;
use crate::simd::amx::TILE_ROWS;
use crate::simd::{Avx512, LANES, RowScaledDot, Simd, TileKernel};

/// The only tier with AMX tiles.
type S = Avx512<true>;

/// Bytes of a tile: sixteen rows of 32 activations, or 32 weights of sixteen columns.
const TILE: usize = TILE_ROWS * LINE;
/// Rows of two tiles, which are multiplied together.
const PAIR_ROWS: usize = 2 * TILE_ROWS;

/// A step's activations in scratch, as bf16.
///
/// Rows are interleaved in sets of 32: for every block of inputs, the lines of a set's rows follow each other.
#[derive(Clone, Copy)]
pub(super) struct Bf16Activations {
    lines: *mut u8,
    blocks: usize,
}

// SAFETY: rows are written by one task each before any task reads them.
unsafe impl Send for Bf16Activations {}
// SAFETY: as above.
unsafe impl Sync for Bf16Activations {}

impl Bf16Activations {
    /// The activations laid out in `scratch`, whose address is a multiple of 64.
    pub(super) fn in_scratch(scratch: *mut u8, linear: &QuantisedLinear) -> Bf16Activations {
        Bf16Activations {
            lines: scratch,
            blocks: linear.k / BLOCK,
        }
    }

    /// Bytes of all activations. Rows that a kernel reads and does not use are laid out too.
    pub(super) fn bytes(linear: &QuantisedLinear) -> usize {
        linear.m.next_multiple_of(PAIR_ROWS) * linear.k * size_of::<u16>()
    }

    /// The line of a block of a row.
    #[inline(always)]
    fn line(&self, row: usize, block: usize) -> *mut u8 {
        let within = row % PAIR_ROWS;
        let line = (row - within) * self.blocks + block * PAIR_ROWS + within;
        self.lines.wrapping_add(line * LINE)
    }

    /// Rounds a row.
    ///
    /// # Safety
    /// `k` activations must be readable at `x`, and the row be laid out; the tier must have tiles.
    pub(super) unsafe fn round(self, isa: Isa, x: *const f32, row: usize) {
        isa.run_tiles(RoundRow { x, row, to: self });
    }
}

/// Rounds a row of activations.
struct RoundRow {
    x: *const f32,
    row: usize,
    to: Bf16Activations,
}

impl TileKernel for RoundRow {
    #[inline(always)]
    fn run(self, s: S) {
        for block in 0..self.to.blocks {
            let x = self.x.wrapping_add(block * BLOCK);
            // SAFETY: `Bf16Activations::round`'s caller guarantees the row on both sides.
            unsafe {
                let rounded = s.round_to_bf16([s.load(x), s.load(x.add(LANES))]);
                s.store_bytes(rounded, self.to.line(self.row, block));
            }
        }
    }
}

/// Multiplies the panels of a task, at most [`max_panels`].
///
/// # Safety
/// As for [`QuantisedLinear::run`](super::QuantisedLinear::run), within the task's panels; the task's scratch must have
/// [`thread_scratch`], and the tier tiles.
pub(super) unsafe fn multiply(task: PanelTask<'_, Bf16Activations>, isa: Isa) {
    isa.run_tiles(product::Bf16Product(task));
}
