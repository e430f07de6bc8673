//! Expanded strips times many rows of activations, on AMX tiles.
//!
//! Weights are expanded to two-byte integers. The tiles compute the same exact sums as the vector microkernel, and the
//! f32 operations that follow are the same in the same order, so both paths are bit-identical.

use super::super::format::{BLOCK, LINE, PackedFormat, StripLayout};
use super::super::{StripTask, write};
use super::activations::{RowScaledActivations, TILE};
use crate::prefetch::Prefetcher;
use crate::simd::amx::{AmxTiles, TILE_ROWS};
use crate::simd::{Avx512, Simd, TileKernel};
use std::ops::Range;

/// The only tier with AMX tiles.
type S = Avx512<true>;

/// The prefetch distance of packed weights, in bytes.
const PREFETCH_BYTES: usize = 4096;

/// The products of the high and low bytes of both sides.
#[repr(align(64))]
struct PlaneProducts([i32; 4 * TILE_ROWS * TILE_ROWS]);

/// Bytes of an expanded strip of depth `k`.
pub(super) fn expanded_strip_bytes(k: usize) -> usize {
    k.next_multiple_of(TILE) * TILE_ROWS * 2
}

/// The AMX kernel for the strips of a task and all rows of activations.
pub(super) struct RowScaledTiles<'a>(pub(super) StripTask<'a, RowScaledActivations>);

impl TileKernel for RowScaledTiles<'_> {
    #[inline(always)]
    fn run(self, s: S) {
        let task = &self.0;
        let linear = &task.linear;
        let StripLayout {
            scales: scales_at,
            bytes: packed,
            ..
        } = linear.format.strip_layout(linear.k);
        let written = expanded_strip_bytes(linear.k);
        let mut products = PlaneProducts([0; 4 * TILE_ROWS * TILE_ROWS]);
        // SAFETY: `QuantisedLinear::run` takes this path only on a tier with tiles; its caller guarantees the operands.
        // Activations are laid out for whole tiles of rows, and the scratch holds the task's expanded strips.
        unsafe {
            let tiles = AmxTiles::new();
            for (i, strip) in task.strips.clone().enumerate() {
                let from = task.operands.weight.add(strip * packed);
                let to = task.expanded.add(i * written);
                expand_inputs(s, &linear.format, None, from, 0..linear.k, to);
            }
            for first in (0..linear.m).step_by(TILE_ROWS) {
                let rows = (linear.m - first).min(TILE_ROWS);
                for (i, strip) in task.strips.clone().enumerate() {
                    let start = task.operands.weight.add(strip * packed);
                    let weights = task.expanded.add(i * written).cast_const();
                    let units = s.load(start.add(scales_at).cast());
                    let to = products.0.as_mut_ptr();
                    tile(s, task, &tiles, weights, (first, rows), (strip, units), to);
                }
            }
        }
    }
}

/// Computes sixteen rows and sixteen columns of the result.
///
/// # Safety
/// The rows and the strip must be the task's, the expanded strip be at `weights`, and `products` hold four tiles.
#[inline(always)]
unsafe fn tile(
    s: S,
    task: &StripTask<'_, RowScaledActivations>,
    tiles: &AmxTiles,
    weights: *const u8,
    (first, rows): (usize, usize),
    (strip, units): (usize, <S as Simd>::V),
    products: *mut i32,
) {
    let x = &task.activations;
    // SAFETY: as the caller guarantees; sixteen rows of activations are laid out from `first` on, used or not.
    unsafe {
        for row in first..first + rows {
            // The output is not read, but its lines are fetched before they are written.
            s.prefetch(task.output_address(row, strip).cast());
        }
        let mut out = [s.zero(); TILE_ROWS];
        for chunk in 0..x.layout.chunks() {
            let inputs = x.layout.chunk(chunk);
            let steps = inputs.len().div_ceil(TILE);
            let x_tiles = x.line(first, inputs.start / BLOCK).cast_const();
            let w_tiles = weights.add(inputs.start / TILE * 2 * TILE_ROWS * LINE);
            tiles.multiply_planes(x_tiles, w_tiles, steps, products);
            let scale = x.scale(first, chunk);
            for r in 0..TILE_ROWS {
                let number = s.products_to_f32(products.add(r * TILE_ROWS));
                out[r] = s.fma(number, s.splat(*scale.add(r)), out[r]);
            }
        }
        for (r, out) in out.iter().enumerate().take(rows) {
            let out = s.mul(*out, units);
            write(s, task, first + r, strip, out);
        }
    }
}

/// Expands some inputs of a packed strip to two-byte integers: for every 64 inputs, a tile of high and a tile of low
/// bytes. Prefetches along the prefetcher's plan, or a fixed distance ahead without one.
///
/// # Safety
/// A packed strip must be at `from`, have the inputs, and their integers fit at `to`.
#[inline(always)]
pub(super) unsafe fn expand_inputs(
    s: S,
    format: &PackedFormat,
    mut prefetcher: Option<&mut Prefetcher<'_>>,
    from: *const u8,
    inputs: Range<usize>,
    to: *mut u8,
) {
    const STEP: usize = 2 * TILE_ROWS * LINE;
    const HALF: usize = TILE_ROWS / 2 * LINE;
    let (stride, quants) = (format.block_stride(), format.block_bytes());
    let first = inputs.start / BLOCK;
    // SAFETY: as the caller guarantees.
    unsafe {
        for block in 0..inputs.len() / BLOCK {
            let at = from.add((first + block) * stride);
            if let Some(prefetcher) = &mut prefetcher {
                prefetcher.consumed(stride);
            } else {
                for line in 0..stride / LINE {
                    s.prefetch(at.wrapping_add(PREFETCH_BYTES + line * LINE));
                }
            }
            let factors = [at.add(quants), at.add(stride - LINE)];
            let to = to.add(block / 2 * STEP + block % 2 * HALF);
            s.expand_block(at, factors, to, TILE_ROWS * LINE);
        }
        if !inputs.len().is_multiple_of(TILE) {
            // The missing half of the last tile meets zero activations, so it only has to be initialised.
            let tile = to.add(inputs.len() / TILE * STEP + HALF);
            tile.write_bytes(0, HALF);
            tile.add(TILE_ROWS * LINE).write_bytes(0, HALF);
        }
    }
}
