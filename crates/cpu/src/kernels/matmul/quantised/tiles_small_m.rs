//! Panels times few rows of activations on AMX tiles, with the expansion pipelined.
//!
//! As in `tiles`, weights are expanded to two-byte integers and sums are exact, so the result is bit-identical. Here
//! each step is multiplied as soon as its stores are visible to tile loads, so that expansion and products overlap. Up to
//! eight rows have their high and low bytes in one tile, which halves the products.

use super::activations::{HALF_TILE_ROWS, TILE};
use super::format::{BLOCK, LINE};
use super::panel::{PanelReader, RowScaledPanel};
use super::task::{PanelTask, write};
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

/// The AMX kernel for the panels of a task and up to sixteen rows of activations.
pub(super) struct RowScaledSmallM<'a>(pub(super) PanelTask<'a>);

impl TileKernel for RowScaledSmallM<'_> {
    #[inline(always)]
    fn run(self, s: S) {
        // SAFETY: `QuantisedLinear::run` takes this path only on a tier with tiles and for few rows; its caller
        // guarantees the operands.
        unsafe {
            if self.0.linear.m <= HALF_TILE_ROWS {
                run_panels::<HALF_TILE_ROWS>(s, &self.0);
            } else {
                run_panels::<TILE_ROWS>(s, &self.0);
            }
        }
    }
}

/// Multiplies all panels with up to `ROWS` rows, eight or sixteen.
///
/// # Safety
/// As for [`super::task::QuantisedLinear::run`], within the task's panels.
#[inline(always)]
unsafe fn run_panels<const ROWS: usize>(s: S, task: &PanelTask<'_>) {
    let linear = &task.linear;
    let x = &task.activations;
    let layout = RowScaledPanel::new(&linear.format, linear.k);
    let mut prefetcher = task.prefetch_plan.prefetcher();
    let mut ring = ExpandRing {
        weights: [[0; STEP]; PIPELINE_STEPS + 1],
        products: [0; 4 * TILE_ROWS * TILE_ROWS],
    };
    // SAFETY: as the caller guarantees; sixteen rows are laid out, used or not.
    unsafe {
        let tiles = AmxTiles::new();
        for panel in task.panels.clone() {
            let from = task.operands.weight.add(panel * layout.bytes);
            let units = s.load(from.cast());
            prefetcher.consumed(layout.spans);
            let mut reader = PanelReader::new(from, &layout, 0);
            let mut sums = [s.zero(); ROWS];
            for (chunk, inputs) in x.layout.chunk_ranges().enumerate() {
                let x_tiles = x.line(0, inputs.start / BLOCK).cast_const();
                let steps = inputs.len().div_ceil(TILE);
                tiles.zero_accumulators();
                let mut turn = 0;
                for step in 0..steps + PIPELINE_STEPS {
                    if step < steps {
                        let inputs = TILE.min(inputs.len() - step * TILE);
                        let to = ring.weights[turn].as_mut_ptr();
                        expand_inputs(s, &mut reader, Some(&mut prefetcher), inputs, to);
                    }
                    // The next slot to overwrite is the oldest one.
                    turn = if turn == PIPELINE_STEPS { 0 } else { turn + 1 };
                    if let Some(step) = step.checked_sub(PIPELINE_STEPS) {
                        let weights = ring.weights[turn].as_ptr();
                        let x_tile = x_tiles.add(step * 2 * ROWS * LINE);
                        if const { ROWS == TILE_ROWS } {
                            tiles.accumulate_planes(x_tile, weights);
                        } else {
                            tiles.accumulate_joint_planes(x_tile, weights);
                        }
                    }
                }
                tiles.store_accumulators(ring.products.as_mut_ptr());
                let scale = x.scale(0, chunk);
                // The products of low activation bytes: two tiles further, or the lower half of a tile.
                let low = if ROWS == TILE_ROWS {
                    2 * TILE_ROWS
                } else {
                    ROWS
                } * TILE_ROWS;
                for r in 0..ROWS {
                    let products = ring.products.as_ptr().add(r * TILE_ROWS);
                    let number = s.products_to_f32(products, low);
                    sums[r] = s.fma(number, s.splat(*scale.add(r)), sums[r]);
                }
            }
            for (r, sum) in sums.iter().enumerate().take(linear.m) {
                write(s, task, r, panel, s.mul(*sum, units));
            }
        }
    }
}
