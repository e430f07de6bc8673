//! Linear layers with bf16 weights on AMX tiles.
//!
//! AMX multiplies bf16. Activations are rounded to two bf16 parts, which have seventeen bits together. Weights are the left
//! side, so their rows are read in place. One row of activations takes the same path as many, and a row's sums do not depend on
//! the rows beside it.
//!
//! f16 weights stay on vectors: splitting them into two parts takes a single token longer than multiplying them.

use super::{HalfLinear, HalfLinearTask};
use crate::kernels::matmul::LinearOperands;
use crate::kernels::{Context, SendPtr};
use crate::simd::amx::{AmxTiles, TILE_ROWS};
use crate::simd::{Avx512, LANES, Simd, TileKernel};
use base::DType;
use std::ops::Range;

/// The only tier with AMX tiles.
type S = Avx512<true>;

/// The depth of a bf16 tile.
const TILE_DEPTH: usize = 32;
/// Bytes of a tile, and of a tile's row.
const TILE_BYTES: usize = 1024;
const TILE_ROW_BYTES: usize = 64;
/// Bytes of a step of sixteen rows: their higher parts, then their lower ones.
const STEP_BYTES: usize = 2 * TILE_BYTES;
/// As above for a single row, whose tiles have one column.
const ROW_STEP_BYTES: usize = 2 * TILE_ROW_BYTES;
/// Tiles of weights that are multiplied with one tile of activation rows, and with two.
const NARROW_TILES: usize = 4;
const WIDE_TILES: usize = 2;

/// Whether the product is computed on tiles. It must not depend on the number of rows.
pub(super) fn fits(linear: &HalfLinear) -> bool {
    let HalfLinear { n, k, weight, .. } = *linear;
    weight == DType::BF16 && n >= TILE_ROWS && k > 0 && k.is_multiple_of(TILE_DEPTH)
}

fn steps(linear: &HalfLinear) -> usize {
    linear.k / TILE_DEPTH
}

/// Tiles of activation rows.
fn row_tiles(linear: &HalfLinear) -> usize {
    linear.m.div_ceil(TILE_ROWS)
}

/// Bytes of scratch: all activations.
pub(super) fn scratch(linear: &HalfLinear) -> usize {
    // Two tiles are multiplied together.
    row_tiles(linear).next_multiple_of(2) * steps(linear) * STEP_BYTES
}

/// Splits all activations.
///
/// # Safety
/// As for [`HalfLinear::run`], with a scratch of [`scratch`] bytes; the tier must have tiles.
pub(super) unsafe fn split_activations(
    ctx: &Context<'_>,
    linear: &HalfLinear,
    operands: &LinearOperands,
) {
    let (x, to) = (SendPtr(operands.x.cast_mut()), SendPtr(operands.scratch));
    let split = |tile: usize, _: usize| {
        // SAFETY: the addresses are those of the buffers.
        let (x, to) = unsafe { (x.at(0), to.at(0).cast()) };
        let linear = *linear;
        ctx.isa.run_tiles(SplitActivations {
            linear,
            tile,
            x,
            to,
        });
    };
    match row_tiles(linear) {
        1 => split(0, 0),
        tiles => ctx.threads.run(tiles, &split),
    }
}

/// Splits sixteen rows of activations and stores them as the right side of products.
struct SplitActivations {
    linear: HalfLinear,
    tile: usize,
    x: *const f32,
    to: *mut u8,
}

impl TileKernel for SplitActivations {
    #[inline(always)]
    fn run(self, s: S) {
        let HalfLinear { m, k, .. } = self.linear;
        let first = self.tile * TILE_ROWS;
        let rows = (m - first).min(TILE_ROWS);
        // SAFETY: `split_activations`' caller guarantees the rows and the scratch, which has a place for every tile.
        unsafe {
            if m == 1 {
                for step in 0..steps(&self.linear) {
                    let x = self.x.add(step * TILE_DEPTH);
                    let [high, low] = s.split_bf16x2([s.load(x), s.load(x.add(LANES))]);
                    let to = self.to.add(step * ROW_STEP_BYTES);
                    s.store(to.cast(), high);
                    s.store(to.add(TILE_ROW_BYTES).cast(), low);
                }
                return;
            }
            let mut to = self.to.add(self.tile * steps(&self.linear) * STEP_BYTES);
            for from in (0..k).step_by(TILE_DEPTH) {
                let (mut high, mut low) = ([s.zero(); LANES], [s.zero(); LANES]);
                for row in 0..rows {
                    let x = self.x.add((first + row) * k + from);
                    [high[row], low[row]] = s.split_bf16x2([s.load(x), s.load(x.add(LANES))]);
                }
                // Each lane is a pair of inputs.
                let (high, low) = (s.transpose(high), s.transpose(low));
                for pair in 0..LANES {
                    let at = to.add(pair * TILE_ROW_BYTES);
                    s.store(at.cast(), high[pair]);
                    s.store(at.add(TILE_BYTES).cast(), low[pair]);
                }
                to = to.add(STEP_BYTES);
            }
        }
    }
}

/// Multiplies the weight rows of a task with all activations.
pub(super) struct TileTask<'a>(pub(super) HalfLinearTask<'a>);

impl TileKernel for TileTask<'_> {
    #[inline(always)]
    fn run(self, s: S) {
        let task = self.0;
        let (start, end) = task.rows;
        let HalfLinear { m, k, .. } = task.linear;
        let (steps, row_bytes) = (steps(&task.linear), k * size_of::<u16>());
        let mut prefetcher = task.prefetch_plan.prefetcher();
        // SAFETY: `HalfLinear::run` takes this path only on a tier with tiles; its caller guarantees the operands, and the scratch
        // has all activations, padded to two tiles.
        unsafe {
            let operands = task.operands.get();
            let tiles = match m {
                1 => AmxTiles::with_one_column(),
                _ => AmxTiles::new(),
            };
            let activations = operands.scratch.cast::<u8>().cast_const();
            let together = match m <= TILE_ROWS {
                true => NARROW_TILES,
                false => WIDE_TILES,
            };
            for first in (start..end).step_by(together * TILE_ROWS) {
                let rows = first..end.min(first + together * TILE_ROWS);
                let weights = WeightTiles::new(&task.linear, rows.clone(), operands.weight);
                let mut row_tile = 0;
                while row_tile * TILE_ROWS < m {
                    tiles.zero_accumulators();
                    for step in 0..steps {
                        let at = weights.step(step);
                        if row_tile == 0 {
                            prefetcher.consumed(rows.len() * TILE_ROW_BYTES);
                        }
                        let right = activations.add((row_tile * steps + step) * STEP_BYTES);
                        if m == 1 {
                            let right = activations.add(step * ROW_STEP_BYTES);
                            tiles.accumulate_bf16_narrow(at, row_bytes, (right, size_of::<f32>()));
                        } else if together == NARROW_TILES {
                            tiles.accumulate_bf16_narrow(at, row_bytes, (right, TILE_ROW_BYTES));
                        } else {
                            let next = right.add(steps * STEP_BYTES);
                            tiles.accumulate_bf16_wide([at[0], at[1]], row_bytes, [right, next]);
                        }
                    }
                    store(s, &tiles, &task.linear, &operands, &weights, row_tile);
                    row_tile += NARROW_TILES / together;
                }
            }
        }
    }
}

/// Up to four tiles of weight rows.
struct WeightTiles {
    /// The rows that are wanted, and the first row of each tile. The last tile of a weight may start earlier than wanted.
    rows: Range<usize>,
    first: [usize; NARROW_TILES],
    at: [*const u8; NARROW_TILES],
}

impl WeightTiles {
    fn new(linear: &HalfLinear, rows: Range<usize>, weight: *const u8) -> WeightTiles {
        let last = linear.n - TILE_ROWS;
        let first = std::array::from_fn(|tile| (rows.start + tile * TILE_ROWS).min(last));
        let row_bytes = linear.k * size_of::<u16>();
        WeightTiles {
            rows,
            first,
            at: first.map(|row| weight.wrapping_add(row * row_bytes)),
        }
    }

    #[inline(always)]
    fn step(&self, step: usize) -> [*const u8; NARROW_TILES] {
        self.at.map(|at| at.wrapping_add(step * TILE_ROW_BYTES))
    }

    /// The rows of a tile that are wanted.
    fn wanted(&self, tile: usize) -> Range<usize> {
        let start = self.rows.start + tile * TILE_ROWS;
        start..self.rows.end.min(start + TILE_ROWS)
    }
}

/// Stores the products of four tiles, with bias and residual added.
///
/// # Safety
/// The accumulators must have the products of these weights, and all operands be valid.
#[inline(always)]
unsafe fn store(
    s: S,
    tiles: &AmxTiles,
    linear: &HalfLinear,
    operands: &LinearOperands,
    weights: &WeightTiles,
    row_tile: usize,
) {
    let HalfLinear { m, n, .. } = *linear;
    let epilogue = &operands.epilogue;
    let narrow = m <= TILE_ROWS;
    // By weight row, for each tile.
    let mut products = [[[0.0f32; TILE_ROWS]; TILE_ROWS]; 4];
    // SAFETY: the products have room for four tiles; only rows and columns that exist are written.
    unsafe {
        tiles.store_accumulators(products.as_mut_ptr().cast());
        for (i, products) in products.iter().enumerate() {
            let (tile, first_row) = match narrow {
                true => (i, 0),
                false => (i / 2, (row_tile + i % 2) * TILE_ROWS),
            };
            let wanted = weights.wanted(tile);
            if wanted.is_empty() || first_row >= m {
                continue;
            }
            let skipped = wanted.start - weights.first[tile];
            let mut columns = [s.zero(); LANES];
            for (column, product) in columns.iter_mut().zip(&products[skipped..]) {
                *column = s.load(product.as_ptr());
            }
            let by_row = s.transpose(columns);
            let (first, count) = (wanted.start, wanted.len());
            let bias = match epilogue.bias.is_null() {
                true => s.zero(),
                false => s.load_part(epilogue.bias.add(first), count),
            };
            for (row, sums) in (first_row..m.min(first_row + TILE_ROWS)).zip(by_row) {
                let at = row * n + first;
                let mut sums = s.add(sums, bias);
                if !epilogue.stored_residual().is_null() {
                    let residual = epilogue.stored_residual().add(at);
                    sums = s.add(sums, s.load_part(residual, count));
                }
                s.store_part(operands.out.add(at), sums, count);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aligned::AlignedBuffer;
    use crate::isa::Isa;
    use crate::kernels::matmul::Epilogue;
    use crate::thread_pool::ThreadPool;
    use conformance::TestRng;

    fn compute(ctx: &Context<'_>, linear: HalfLinear, x: &[f32], weight: &[u16]) -> Vec<f32> {
        let mut scratch = AlignedBuffer::new(linear.scratch(ctx.threads.count())).unwrap();
        let mut out = vec![f32::NAN; linear.m * linear.n];
        let operands = LinearOperands {
            x: x.as_ptr(),
            weight: weight.as_ptr().cast(),
            epilogue: Epilogue::NONE,
            out: out.as_mut_ptr(),
            scratch: scratch.as_mut_ptr().cast(),
        };
        // SAFETY: every operand has the size its shape says.
        unsafe { linear.run(ctx, operands) };
        out
    }

    #[test]
    fn rows_are_close_to_exact_products_and_have_the_same_bits_alone() {
        let Some(isa) = Isa::available().into_iter().find(|isa| isa.has_tiles()) else {
            return;
        };
        let mut noise = TestRng::new(5);
        for (threads, m, n, k) in [
            (1, 1, 16, 32),
            (3, 2, 70, 64),
            (1, 16, 33, 96),
            (2, 17, 48, 32),
            (3, 40, 131, 576),
        ] {
            let ctx = &Context {
                isa,
                threads: &ThreadPool::new(threads),
            };
            let weight = DType::BF16;
            let linear = HalfLinear { m, n, k, weight };
            assert!(fits(&linear));
            let x = noise.units(m * k);
            let bits: Vec<u16> = noise
                .units(n * k)
                .iter()
                .map(|w| (w.to_bits() >> 16) as u16)
                .collect();
            let found = compute(ctx, linear, &x, &bits);
            for (row, found) in found.chunks(n).enumerate() {
                let x = &x[row * k..][..k];
                let alone = compute(ctx, HalfLinear { m: 1, ..linear }, x, &bits);
                assert_eq!(alone, found, "row {row} of {m}x{n}x{k}");
                for (column, found) in found.iter().enumerate() {
                    let weight = |d: usize| f32::from_bits(u32::from(bits[column * k + d]) << 16);
                    let product = |d: usize| f64::from(x[d]) * f64::from(weight(d));
                    let (exact, size) = (0..k).fold((0.0, 0.0), |(sum, size), d| {
                        (sum + product(d), size + product(d).abs())
                    });
                    let error = (f64::from(*found) - exact).abs();
                    assert!(error <= 5e-6 * size, "{m}x{n}x{k} {row},{column}: {error}");
                }
            }
        }
    }
}
