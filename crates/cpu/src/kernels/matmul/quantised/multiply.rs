//! How products are multiplied: on vectors, or on matrix tiles.
//!
//! Scales and mins of a row's groups are integers in units of one scale per row, so a weight is an integer of two bytes, and
//! its product with an activation is an integer. A whole chunk of inputs is summed exactly: on vectors straight from the quants, on
//! AMX tiles from expanded panels. Only the sum of a chunk is rounded and scaled.

use super::activations::{
    MAX_INTERLEAVED_ROWS, QuantiseRowScaled, RowScaledActivations, RowScaledLayout,
};
use super::byte_quants::ByteQuantMicrokernel;
use super::format::{BLOCK, Quant};
use super::microkernel::RowScaledMicrokernel;
use super::panel_kernel::PanelKernel;
use super::task::{PanelTask, QuantisedLinear};
#[cfg(target_arch = "x86_64")]
use super::{tiles, tiles_small_m};
use crate::isa::Isa;

/// Rows of activations from which AMX tiles are faster than vectors.
const MIN_TILE_ROWS: usize = 5;
/// Rows from which the inputs of a chunk are expanded before they are multiplied.
const MIN_CHUNK_ROWS: usize = MAX_INTERLEAVED_ROWS + 1;

/// Whether matrix tiles multiply this many rows faster than vectors.
pub(super) fn suits_tiles(rows: usize) -> bool {
    rows >= MIN_TILE_ROWS
}

/// Whether matrix tiles multiply this many rows with weights that are expanded in the thread's scratch. With fewer rows the
/// product is memory-bound, as it is on vectors.
pub(super) fn expands_panels(rows: usize) -> bool {
    rows >= MIN_CHUNK_ROWS
}

impl RowScaledActivations {
    /// Bytes of the quantised activations, whether they are laid out for matrix tiles or for vectors.
    pub(super) fn bytes(linear: &QuantisedLinear) -> usize {
        let bytes = |tiled| RowScaledLayout::new(&linear.format, linear.m, linear.k, tiled).bytes();
        match suits_tiles(linear.m) {
            true => bytes(true).max(bytes(false)),
            false => bytes(false),
        }
    }

    /// The activations laid out in `scratch`, whose address is a multiple of 64.
    pub(super) fn in_scratch(
        scratch: *mut u8,
        linear: &QuantisedLinear,
        tiled: bool,
    ) -> RowScaledActivations {
        let layout = RowScaledLayout::new(&linear.format, linear.m, linear.k, tiled);
        RowScaledActivations::at(scratch, layout)
    }

    /// Quantises a row.
    ///
    /// # Safety
    /// `k` activations must be readable at `x`, and the row be laid out.
    pub(super) unsafe fn quantise(self, isa: Isa, x: *const f32, row: usize) {
        isa.run_integers(QuantiseRowScaled { x, row, to: self });
    }
}

/// Multiplies on vectors.
///
/// # Safety
/// As for [`QuantisedLinear::run`], within the task's panels.
pub(super) unsafe fn multiply_vectors(task: PanelTask<'_>, isa: Isa) {
    const HALF: usize = BLOCK / 2;
    use ByteQuantMicrokernel as Bytes;
    use RowScaledMicrokernel as Bits;
    let format = task.linear.format;
    // SAFETY: as the caller guarantees.
    unsafe {
        match (format.quant, format.group) {
            (Quant::Byte, _) => PanelKernel::<Bytes<false>, BLOCK>::multiply(task, isa),
            (Quant::Table(_), _) => PanelKernel::<Bytes<true>, BLOCK>::multiply(task, isa),
            (Quant::Five, _) => PanelKernel::<Bits<1>, BLOCK>::multiply(task, isa),
            (Quant::Six, _) => PanelKernel::<Bits<2>, HALF>::multiply(task, isa),
            (Quant::Nibble, BLOCK) => PanelKernel::<Bits<0>, BLOCK>::multiply(task, isa),
            (Quant::Nibble, _) => PanelKernel::<Bits<0>, HALF>::multiply(task, isa),
        }
    }
}

/// Multiplies on matrix tiles.
///
/// # Safety
/// As for [`QuantisedLinear::run`], within the task's panels, at most [`tiles::max_panels`] if they are expanded; the task's
/// scratch must have [`tiles::scratch_bytes`].
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn multiply_tiles(task: PanelTask<'_>, isa: Isa) {
    if task.linear.m < MIN_CHUNK_ROWS {
        isa.run_tiles(tiles_small_m::RowScaledSmallM(task));
    } else {
        isa.run_tiles(tiles::RowScaledTiles(task));
    }
}
