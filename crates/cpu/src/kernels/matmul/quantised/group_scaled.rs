//! Weights whose quants are bytes, or stand for bytes: each group's integer is scaled and added in f32, in order of the
//! groups.

mod activations;
mod microkernel;
#[cfg(target_arch = "x86_64")]
mod tiles;

use super::{PANELS, PackedLinear, Scheme, Task};
use crate::isa::Isa;
use activations::{Layout, Quantise};

pub(super) use activations::Activations;

impl Scheme for Activations {
    fn suits_tiles(rows: usize) -> bool {
        rows >= PANELS
    }

    fn bytes(linear: &PackedLinear, tiled: bool) -> usize {
        Layout::new(&linear.form, linear.m, linear.k, tiled).bytes()
    }

    fn at(scratch: *mut u8, linear: &PackedLinear, tiled: bool) -> Activations {
        let layout = Layout::new(&linear.form, linear.m, linear.k, tiled);
        Activations::at(scratch, linear.form, layout)
    }

    unsafe fn quantise(self, isa: Isa, x: *const f32, row: usize) {
        isa.run_integers(Quantise { x, row, to: self });
    }

    unsafe fn strips(task: Task<'_, Activations>, isa: Isa) {
        isa.run_integers(microkernel::Strips(task));
    }

    #[cfg(target_arch = "x86_64")]
    unsafe fn tiles(task: Task<'_, Activations>, isa: Isa) {
        isa.run_tiles(tiles::Panel(task));
    }

    #[cfg(target_arch = "x86_64")]
    fn strip_bytes(linear: &PackedLinear) -> usize {
        tiles::spread_bytes(linear.k / linear.form.group)
    }
}
