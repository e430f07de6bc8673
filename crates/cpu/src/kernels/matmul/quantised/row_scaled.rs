//! The row-scaled scheme, for weights of four bits.
//!
//! Scales and mins of a row's groups are integers in units of one scale per row, so a weight is an integer, and so is
//! its product with an activation. A whole chunk of inputs is summed exactly: on vectors straight from the quants, on
//! AMX tiles from expanded strips. Only the sum of a chunk is rounded and scaled.

mod activations;
mod microkernel;
mod pack;
#[cfg(target_arch = "x86_64")]
mod tiles;
#[cfg(target_arch = "x86_64")]
mod tiles_small_m;

use super::format::BLOCK;
use super::strip_kernel::StripKernel;
use super::{MIN_EXPANDED_ROWS, QuantScheme, QuantisedLinear, StripTask};
use crate::isa::Isa;
use activations::{MAX_INTERLEAVED_ROWS, QuantiseRowScaled, RowScaledLayout};
use microkernel::RowScaledMicrokernel;

pub(super) use activations::RowScaledActivations;
pub(super) use pack::pack_strip;

/// Rows of activations from which one AMX tile of them is faster than vectors.
const MIN_SMALL_M_ROWS: usize = 11;

impl QuantScheme for RowScaledActivations {
    fn suits_tiles(rows: usize) -> bool {
        matches!(rows, MIN_SMALL_M_ROWS..=MAX_INTERLEAVED_ROWS | MIN_EXPANDED_ROWS..)
    }

    fn bytes(linear: &QuantisedLinear, tiled: bool) -> usize {
        RowScaledLayout::new(&linear.format, linear.m, linear.k, tiled).bytes()
    }

    fn in_scratch(scratch: *mut u8, linear: &QuantisedLinear, tiled: bool) -> RowScaledActivations {
        let layout = RowScaledLayout::new(&linear.format, linear.m, linear.k, tiled);
        RowScaledActivations::at(scratch, layout)
    }

    unsafe fn quantise(self, isa: Isa, x: *const f32, row: usize) {
        isa.run_integers(QuantiseRowScaled { x, row, to: self });
    }

    unsafe fn multiply_vectors(task: StripTask<'_, RowScaledActivations>, isa: Isa) {
        // SAFETY: as the caller guarantees.
        unsafe { StripKernel::<RowScaledMicrokernel, BLOCK>::multiply(task, isa) }
    }

    #[cfg(target_arch = "x86_64")]
    unsafe fn multiply_tiles(task: StripTask<'_, RowScaledActivations>, isa: Isa) {
        if task.linear.m < MIN_EXPANDED_ROWS {
            isa.run_tiles(tiles_small_m::RowScaledSmallM(task));
        } else {
            isa.run_tiles(tiles::RowScaledTiles(task));
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn expanded_strip_bytes(linear: &QuantisedLinear) -> usize {
        tiles::expanded_strip_bytes(linear.k)
    }
}
