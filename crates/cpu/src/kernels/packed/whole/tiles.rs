//! Many rows of activations times strips of weights, on matrix tiles.
//!
//! Weights are written out as integers of two bytes. The tiles give the exact sums that the vector path gives, and the
//! rest is the same arithmetic in the same order, so both paths give the same bits.

use super::super::weights::{BLOCK, LINE};
use super::super::{Task, write};
use super::activations::{Activations, TILE};
use crate::amx::{SIDE, Tiles};
use crate::isa::TileKernel;
use crate::simd::{Avx512, Integers, Simd};

/// The only tier with tiles.
type S = Avx512<true>;

/// How far ahead of their use weights are asked for, in bytes.
const AHEAD: usize = 4096;

/// The products of high and low bytes of both sides.
#[repr(align(64))]
struct Products([i32; 4 * SIDE * SIDE]);

/// Bytes of a strip of depth `k`, written out.
pub(super) fn strip_bytes(k: usize) -> usize {
    k.next_multiple_of(TILE) * SIDE * 2
}

/// The strips of a task for all rows of activations.
pub(super) struct Panel<'a>(pub(super) Task<'a, Activations>);

impl TileKernel for Panel<'_> {
    #[inline(always)]
    fn run(self, s: S) {
        let task = &self.0;
        let linear = &task.linear;
        let (scales_at, _, packed) = linear.form.offsets(linear.k);
        let written = strip_bytes(linear.k);
        let mut products = Products([0; 4 * SIDE * SIDE]);
        // SAFETY: `PackedLinear::run` takes this path only where tiles are there; its caller vouches for the operands.
        // Activations are laid out for whole tiles of rows, and the panel has room for its strips.
        unsafe {
            let tiles = Tiles::new();
            for (i, strip) in task.strips.clone().enumerate() {
                let from = task.operands.weight.add(strip * packed);
                write_out(s, task, from, task.panel.add(i * written));
            }
            for first in (0..linear.m).step_by(SIDE) {
                let rows = (linear.m - first).min(SIDE);
                for (i, strip) in task.strips.clone().enumerate() {
                    let start = task.operands.weight.add(strip * packed);
                    let weights = task.panel.add(i * written).cast_const();
                    let units = s.load(start.add(scales_at).cast());
                    let to = products.0.as_mut_ptr();
                    tile(s, task, &tiles, weights, (first, rows), (strip, units), to);
                }
            }
        }
    }
}

/// Sixteen rows and sixteen columns of the result.
///
/// # Safety
/// The rows and the strip must be the task's, the strip be written out at `weights`, and `products` have room for four
/// tiles.
#[inline(always)]
unsafe fn tile(
    s: S,
    task: &Task<'_, Activations>,
    tiles: &Tiles,
    weights: *const u8,
    (first, rows): (usize, usize),
    (strip, units): (usize, <S as Simd>::V),
    products: *mut i32,
) {
    let x = &task.activations;
    // SAFETY: as the caller vouches; sixteen rows of activations are laid out from `first` on, whether used or not.
    unsafe {
        for row in first..first + rows {
            // The output is not read, but its lines are fetched to be written.
            s.prefetch(task.place(row, strip).cast());
        }
        let mut out = [s.zero(); SIDE];
        for chunk in 0..x.layout.chunks() {
            let inputs = x.layout.chunk(chunk);
            let steps = inputs.len().div_ceil(TILE);
            let x_tiles = x.line(first, inputs.start / BLOCK).cast_const();
            let w_tiles = weights.add(inputs.start / TILE * 2 * SIDE * LINE);
            tiles.multiply_planes(x_tiles, w_tiles, steps, products);
            let scale = x.scale(first, chunk);
            for r in 0..SIDE {
                let number = s.number_of_products(products.add(r * SIDE));
                out[r] = s.fma(number, s.splat(*scale.add(r)), out[r]);
            }
        }
        for (r, out) in out.iter().enumerate().take(rows) {
            let out = s.mul(*out, units);
            write(s, task, first + r, strip, out);
        }
    }
}

/// Writes a strip's weights as integers: for every 64 inputs, a tile of high and a tile of low bytes.
///
/// # Safety
/// A packed strip must be at `from` and its integers fit at `to`.
#[inline(always)]
unsafe fn write_out(s: S, task: &Task<'_, Activations>, from: *const u8, to: *mut u8) {
    let form = task.linear.form;
    let stride = form.block_stride();
    let quants = form.block_bytes();
    let groups = BLOCK / form.group;
    // SAFETY: as the caller vouches.
    unsafe {
        for block in 0..task.linear.k / BLOCK {
            let block_at = from.add(block * stride);
            for line in 0..stride / LINE {
                s.prefetch(block_at.wrapping_add(AHEAD + line * LINE));
            }
            let tile = to.add(block / 2 * 2 * SIDE * LINE + block % 2 * 8 * LINE);
            for half in 0..2 {
                let factors = block_at.add(quants + half * groups / 2 * LINE);
                for index in 0..4 {
                    let p = block_at.add(index * LINE);
                    let line = if half == 0 { s.low(p) } else { s.high(p) };
                    let [high, low] = s.whole(line, factors);
                    let at = tile.add((4 * half + index) * LINE);
                    s.store_line(at, high);
                    s.store_line(at.add(SIDE * LINE), low);
                }
            }
        }
        if !task.linear.k.is_multiple_of(TILE) {
            // What the last tile lacks meets zeros; it must only be there.
            let tile = to.add(task.linear.k / TILE * 2 * SIDE * LINE + 8 * LINE);
            tile.write_bytes(0, 8 * LINE);
            tile.add(SIDE * LINE).write_bytes(0, 8 * LINE);
        }
    }
}
