//! The row-scaled scheme, for weights of four to six bits.
//!
//! Scales and mins of a row's groups are integers in units of one scale per row, so a weight is an integer, and so is
//! its product with an activation. A whole chunk of inputs is summed exactly: on vectors straight from the quants, on
//! AMX tiles from expanded strips. Only the sum of a chunk is rounded and scaled.

mod activations;
mod factors;
mod microkernel;
mod pack;
mod strip;
#[cfg(target_arch = "x86_64")]
mod tiles;
#[cfg(target_arch = "x86_64")]
mod tiles_small_m;

use super::format::{BLOCK, Quant};
use super::strip_kernel::StripKernel;
use super::{QuantScheme, QuantisedLinear, StripTask};
use crate::isa::Isa;
use activations::{MAX_INTERLEAVED_ROWS, QuantiseRowScaled, RowScaledLayout};
use microkernel::RowScaledMicrokernel;

pub(super) use activations::RowScaledActivations;
pub(super) use factors::centre;
pub(super) use pack::pack_strip;
pub(super) use strip::{RowScaledStrip, plain_strip};

/// Rows of activations from which AMX tiles are faster than vectors.
const MIN_TILE_ROWS: usize = 5;
/// Rows from which the inputs of a chunk are expanded before they are multiplied.
const MIN_CHUNK_ROWS: usize = MAX_INTERLEAVED_ROWS + 1;

impl QuantScheme for RowScaledActivations {
    fn suits_tiles(rows: usize) -> bool {
        rows >= MIN_TILE_ROWS
    }

    fn expands_strips(rows: usize) -> bool {
        rows >= MIN_CHUNK_ROWS
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
        const HALF: usize = BLOCK / 2;
        let format = task.linear.format;
        // SAFETY: as the caller guarantees.
        unsafe {
            match (format.quant, format.group) {
                (Quant::Five, _) => {
                    StripKernel::<RowScaledMicrokernel<1>, BLOCK>::multiply(task, isa)
                }
                (Quant::Six, _) => {
                    StripKernel::<RowScaledMicrokernel<2>, HALF>::multiply(task, isa)
                }
                (_, BLOCK) => StripKernel::<RowScaledMicrokernel<0>, BLOCK>::multiply(task, isa),
                _ => StripKernel::<RowScaledMicrokernel<0>, HALF>::multiply(task, isa),
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    unsafe fn multiply_tiles(task: StripTask<'_, RowScaledActivations>, isa: Isa) {
        if task.linear.m < MIN_CHUNK_ROWS {
            isa.run_tiles(tiles_small_m::RowScaledSmallM(task));
        } else {
            isa.run_tiles(tiles::RowScaledTiles(task));
        }
    }

    #[cfg(target_arch = "x86_64")]
    const MAX_TILE_STRIPS: usize = 8;

    #[cfg(target_arch = "x86_64")]
    fn tile_scratch_bytes(linear: &QuantisedLinear) -> usize {
        tiles::scratch_bytes(linear, Self::MAX_TILE_STRIPS)
    }
}
