//! The group-scaled scheme: quants are bytes or table indices, and the integer sum of every 32 inputs is scaled and added
//! in f32, in order.

mod activations;
mod microkernel;
mod pack;
#[cfg(target_arch = "x86_64")]
mod tiles;

use super::format::{BLOCK, Quant};
use super::strip_kernel::StripKernel;
use super::{QuantScheme, QuantisedLinear, StripTask};
use crate::isa::Isa;
use activations::{GroupScaledLayout, QuantiseGroupScaled};
use microkernel::{GroupScaledMicrokernel, with_quants};

pub(super) use activations::GroupScaledActivations;
pub(super) use pack::pack_strip;

/// Rows of activations from which a task expands its strips for matrix tiles.
const MIN_EXPANDED_ROWS: usize = 24;

impl QuantScheme for GroupScaledActivations {
    fn suits_tiles(rows: usize) -> bool {
        rows >= MIN_EXPANDED_ROWS
    }

    fn expands_strips(rows: usize) -> bool {
        rows >= MIN_EXPANDED_ROWS
    }

    fn bytes(linear: &QuantisedLinear, tiled: bool) -> usize {
        GroupScaledLayout::new(linear.m, linear.k, tiled).bytes()
    }

    fn in_scratch(
        scratch: *mut u8,
        linear: &QuantisedLinear,
        tiled: bool,
    ) -> GroupScaledActivations {
        let layout = GroupScaledLayout::new(linear.m, linear.k, tiled);
        GroupScaledActivations::at(scratch, linear.format.zero, layout)
    }

    unsafe fn quantise(self, isa: Isa, x: *const f32, row: usize) {
        isa.run_integers(QuantiseGroupScaled { x, row, to: self });
    }

    unsafe fn multiply_vectors(task: StripTask<'_, GroupScaledActivations>, isa: Isa) {
        with_quants!(task.linear.format.quant, L => {
            // SAFETY: as the caller guarantees.
            unsafe { StripKernel::<GroupScaledMicrokernel<L>, BLOCK>::multiply(task, isa) }
        });
    }

    #[cfg(target_arch = "x86_64")]
    unsafe fn multiply_tiles(task: StripTask<'_, GroupScaledActivations>, isa: Isa) {
        isa.run_tiles(tiles::GroupScaledTiles(task));
    }

    #[cfg(target_arch = "x86_64")]
    const MAX_TILE_STRIPS: usize = 4;

    #[cfg(target_arch = "x86_64")]
    fn tile_scratch_bytes(linear: &QuantisedLinear) -> usize {
        Self::MAX_TILE_STRIPS * tiles::expanded_strip_bytes(linear.k / BLOCK)
    }
}
