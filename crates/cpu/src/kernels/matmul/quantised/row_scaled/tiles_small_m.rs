//! A few rows of activations times strips of weights, on matrix tiles.
//!
//! As for many rows, weights are written out as integers of two bytes and the sums are exact, so the bits are the same. But
//! they are multiplied as soon as tiles can see what was stored: with a whole strip written first, sixteen rows took half as
//! long again.

use super::super::format::{BLOCK, LINE};
use super::super::{Task, write};
use super::activations::{Activations, TILE};
use super::tiles::write_out;
use crate::isa::TileKernel;
use crate::simd::amx::{SIDE, Tiles};
use crate::simd::{Avx512, Simd};

/// The only tier with tiles.
type S = Avx512<true>;

/// Steps from writing weights out to multiplying them: stores take a while to be seen by tiles.
const BEHIND: usize = 2;
/// Bytes of the weights of a step: a tile of high and one of low bytes.
const STEP: usize = 2 * SIDE * LINE;

#[repr(align(64))]
struct Room {
    /// The weights of some steps, in turns.
    weights: [[u8; STEP]; BEHIND + 1],
    /// The products of high and low bytes of both sides.
    products: [i32; 4 * SIDE * SIDE],
}

/// The strips of a task for all rows of activations.
pub(super) struct Strips<'a>(pub(super) Task<'a, Activations>);

impl TileKernel for Strips<'_> {
    #[inline(always)]
    fn run(self, s: S) {
        // SAFETY: `PackedLinear::run` takes this path only where tiles are there and rows are few; its caller vouches for
        // the operands.
        unsafe { strips(s, &self.0) }
    }
}

/// All strips for up to sixteen rows.
///
/// # Safety
/// As for [`super::super::PackedLinear::run`], within the task's strips.
#[inline(always)]
unsafe fn strips(s: S, task: &Task<'_, Activations>) {
    let linear = &task.linear;
    let x = &task.activations;
    let (scales_at, _, packed) = linear.form.offsets(linear.k);
    let mut reader = task.course.reader();
    let mut room = Room {
        weights: [[0; STEP]; BEHIND + 1],
        products: [0; 4 * SIDE * SIDE],
    };
    // SAFETY: as the caller vouches; sixteen rows are laid out, whether used or not.
    unsafe {
        let tiles = Tiles::new();
        for strip in task.strips.clone() {
            let from = task.operands.weight.add(strip * packed);
            let mut sums = [s.zero(); SIDE];
            for chunk in 0..x.layout.chunks() {
                let inputs = x.layout.chunk(chunk);
                let x_tiles = x.line(0, inputs.start / BLOCK).cast_const();
                let steps = inputs.len().div_ceil(TILE);
                tiles.no_products();
                let mut turn = 0;
                for step in 0..steps + BEHIND {
                    if step < steps {
                        let first = inputs.start + step * TILE;
                        let inputs = first..inputs.end.min(first + TILE);
                        let to = room.weights[turn].as_mut_ptr();
                        write_out(s, &linear.form, Some(&mut reader), from, inputs, to);
                    }
                    // What is written over next is what was written first.
                    turn = if turn == BEHIND { 0 } else { turn + 1 };
                    if let Some(step) = step.checked_sub(BEHIND) {
                        let weights = room.weights[turn].as_ptr();
                        tiles.add_products(x_tiles.add(step * STEP), weights);
                    }
                }
                tiles.store_products(room.products.as_mut_ptr());
                let scale = x.scale(0, chunk);
                for r in 0..SIDE {
                    let products = room.products.as_ptr().add(r * SIDE);
                    let number = s.number_of_products(products);
                    sums[r] = s.fma(number, s.splat(*scale.add(r)), sums[r]);
                }
            }
            reader.used(LINE);
            let units = s.load(from.add(scales_at).cast());
            for (r, sum) in sums.iter().enumerate().take(linear.m) {
                write(s, task, r, strip, s.mul(*sum, units));
            }
        }
    }
}
