//! Strips times 11 to 16 rows of activations on AMX tiles, with the expansion pipelined.
//!
//! As in `tiles`, weights are expanded to two-byte integers and sums are exact, so the result is bit-identical. Here
//! each step is multiplied as soon as its stores are visible to tile loads; expanding a whole strip first made sixteen
//! rows 1.5 times as slow.

use super::super::format::{BLOCK, LINE, StripLayout};
use super::super::{StripTask, write};
use super::activations::{RowScaledActivations, TILE};
use super::tiles::expand_inputs;
use crate::simd::amx::{AmxTiles, TILE_ROWS};
use crate::simd::{Avx512, Simd, TileKernel};

/// The only tier with AMX tiles.
type S = Avx512<true>;

/// Steps between expanding weights and multiplying them: stores take a while to become visible to tile loads.
const PIPELINE_STEPS: usize = 2;
/// Bytes of the expanded weights of a step: a tile of high and one of low bytes.
const STEP: usize = 2 * TILE_ROWS * LINE;

#[repr(align(64))]
struct ExpandRing {
    /// A ring of the expanded weights of the last steps.
    weights: [[u8; STEP]; PIPELINE_STEPS + 1],
    /// The products of the high and low bytes of both sides.
    products: [i32; 4 * TILE_ROWS * TILE_ROWS],
}

/// The AMX kernel for the strips of a task and up to sixteen rows of activations.
pub(super) struct RowScaledSmallM<'a>(pub(super) StripTask<'a, RowScaledActivations>);

impl TileKernel for RowScaledSmallM<'_> {
    #[inline(always)]
    fn run(self, s: S) {
        // SAFETY: `QuantisedLinear::run` takes this path only on a tier with tiles and for few rows; its caller
        // guarantees the operands.
        unsafe { run_strips(s, &self.0) }
    }
}

/// Multiplies all strips with up to sixteen rows.
///
/// # Safety
/// As for [`super::super::QuantisedLinear::run`], within the task's strips.
#[inline(always)]
unsafe fn run_strips(s: S, task: &StripTask<'_, RowScaledActivations>) {
    let linear = &task.linear;
    let x = &task.activations;
    let StripLayout {
        scales: scales_at,
        bytes: packed,
        ..
    } = linear.format.strip_layout(linear.k);
    let mut prefetcher = task.prefetch_plan.prefetcher();
    let mut ring = ExpandRing {
        weights: [[0; STEP]; PIPELINE_STEPS + 1],
        products: [0; 4 * TILE_ROWS * TILE_ROWS],
    };
    // SAFETY: as the caller guarantees; sixteen rows are laid out, used or not.
    unsafe {
        let tiles = AmxTiles::new();
        for strip in task.strips.clone() {
            let from = task.operands.weight.add(strip * packed);
            let mut sums = [s.zero(); TILE_ROWS];
            for chunk in 0..x.layout.chunks() {
                let inputs = x.layout.chunk(chunk);
                let x_tiles = x.line(0, inputs.start / BLOCK).cast_const();
                let steps = inputs.len().div_ceil(TILE);
                tiles.zero_accumulators();
                let mut turn = 0;
                for step in 0..steps + PIPELINE_STEPS {
                    if step < steps {
                        let first = inputs.start + step * TILE;
                        let inputs = first..inputs.end.min(first + TILE);
                        let to = ring.weights[turn].as_mut_ptr();
                        expand_inputs(s, &linear.format, Some(&mut prefetcher), from, inputs, to);
                    }
                    // The next slot to overwrite is the oldest one.
                    turn = if turn == PIPELINE_STEPS { 0 } else { turn + 1 };
                    if let Some(step) = step.checked_sub(PIPELINE_STEPS) {
                        let weights = ring.weights[turn].as_ptr();
                        tiles.accumulate_planes(x_tiles.add(step * STEP), weights);
                    }
                }
                tiles.store_accumulators(ring.products.as_mut_ptr());
                let scale = x.scale(0, chunk);
                for r in 0..TILE_ROWS {
                    let products = ring.products.as_ptr().add(r * TILE_ROWS);
                    let number = s.products_to_f32(products);
                    sums[r] = s.fma(number, s.splat(*scale.add(r)), sums[r]);
                }
            }
            prefetcher.consumed(LINE);
            let units = s.load(from.add(scales_at).cast());
            for (r, sum) in sums.iter().enumerate().take(linear.m) {
                write(s, task, r, strip, s.mul(*sum, units));
            }
        }
    }
}
