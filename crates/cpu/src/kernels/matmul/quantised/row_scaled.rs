//! Weights of four bits, as integers over their rows.
//!
//! Scales and mins of a row's groups are integers in units of the row, so a weight is an integer, and so is its product
//! with an activation: a whole chunk of inputs is summed exactly, on vectors straight from the quants and on matrix tiles
//! from the weights written out. Only a chunk's sum is rounded, and scaled.

mod activations;
mod microkernel;
mod pack;
#[cfg(target_arch = "x86_64")]
mod tiles;
#[cfg(target_arch = "x86_64")]
mod tiles_small_m;

use super::{PANELS, PackedLinear, Scheme, Task};
use crate::isa::Isa;
use activations::{Layout, Quantise, TOGETHER};

pub(super) use activations::Activations;
pub(super) use pack::pack_strip;

/// Rows of activations from which one tile of them is faster than vectors.
const FEW: usize = 11;

impl Scheme for Activations {
    fn suits_tiles(rows: usize) -> bool {
        matches!(rows, FEW..=TOGETHER | PANELS..)
    }

    fn bytes(linear: &PackedLinear, tiled: bool) -> usize {
        Layout::new(&linear.form, linear.m, linear.k, tiled).bytes()
    }

    fn at(scratch: *mut u8, linear: &PackedLinear, tiled: bool) -> Activations {
        let layout = Layout::new(&linear.form, linear.m, linear.k, tiled);
        Activations::at(scratch, layout)
    }

    unsafe fn quantise(self, isa: Isa, x: *const f32, row: usize) {
        isa.run_integers(Quantise { x, row, to: self });
    }

    unsafe fn strips(task: Task<'_, Activations>, isa: Isa) {
        isa.run_integers(microkernel::Strips(task));
    }

    #[cfg(target_arch = "x86_64")]
    unsafe fn tiles(task: Task<'_, Activations>, isa: Isa) {
        if task.linear.m < PANELS {
            isa.run_tiles(tiles_small_m::Strips(task));
        } else {
            isa.run_tiles(tiles::Panel(task));
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn strip_bytes(linear: &PackedLinear) -> usize {
        tiles::strip_bytes(linear.k)
    }
}
