//! f32 linear layers on AMX tiles.
//!
//! AMX multiplies bf16, so every f32 is split into three bf16 that sum to it. Of the nine partial products, the six
//! that are significant in f32 are accumulated, smallest first; the result is as accurate as an f32 product. The
//! summation order differs from that of the panel kernel, so only graphs without a KV cache use this path: their rows
//! are never recomputed in a step of another size.

use crate::kernels::elementwise::functions::{Identity, VectorFunction, with_activation};
use crate::kernels::{Context, SendPtr};
use crate::simd::amx::{AmxTiles, TILE_ROWS};
use crate::simd::{Avx512, LANES, Simd, TileKernel};
use std::mem::MaybeUninit;
use std::ops::Range;

use super::super::LinearOperands;

/// `out [m, n] = epilogue(x [m, k] · weightᵀ [n, k])` with a weight that [`Bf16x3Weight`] has packed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AmxLinear {
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
}

/// The fewest rows for which AMX pays: half a tile.
const MIN_AMX_ROWS: usize = 8;
/// The depth of a bf16 tile.
const TILE_DEPTH: usize = 32;
/// Bytes of a tile.
const TILE_BYTES: usize = 1024;
/// Bytes of sixteen rows or columns of one step of the depth: three bf16 parts, the most significant first.
const STEP_BYTES: usize = 3 * TILE_BYTES;
/// Rows and columns of a block of two by two tiles.
const BLOCK: usize = 2 * TILE_ROWS;
/// Columns of a block that is one tile high; weights are padded to a multiple of it.
const WIDE_BLOCK: usize = 4 * TILE_ROWS;
/// Steps of all blocks below which the calling thread computes them: distributing them would cost as much.
const SERIAL_STEPS: usize = 64;
/// The largest weight that stays in a core's own cache while rows are multiplied with it.
const MAX_CACHED_WEIGHT_BYTES: usize = 1 << 20;
/// The most row blocks that share one read of a larger weight.
const MAX_ROW_BLOCKS: usize = 4;
/// The fewest column blocks of a task that justify splitting its rows again.
const MIN_COLUMN_BLOCKS: usize = 4;
/// Bytes before a thread's split rows: the header says which rows they are.
const SCRATCH_HEADER: usize = 64;

/// A weight `[n, k]` as three bf16 parts in tile order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bf16x3Weight {
    pub(crate) n: usize,
    pub(crate) k: usize,
}

impl Bf16x3Weight {
    /// The bytes of the packed weight.
    pub(crate) fn bytes(&self) -> usize {
        self.n.next_multiple_of(WIDE_BLOCK) / TILE_ROWS * panel_bytes(self.k)
    }

    /// Packs a weight.
    ///
    /// # Safety
    /// The weight must be readable at `from` and [`bytes`](Self::bytes) zeros be writable at `to`.
    pub(crate) unsafe fn pack(&self, ctx: &Context<'_>, from: *const f32, to: *mut u8) {
        let (from, to) = (SendPtr(from.cast_mut()), SendPtr(to));
        let (n, k) = (self.n, self.k);
        ctx.threads.run(n.div_ceil(TILE_ROWS), &|panel, _| {
            for column in 0..TILE_ROWS.min(n - panel * TILE_ROWS) {
                for depth in 0..k {
                    // SAFETY: the caller guarantees both buffers, and only this task writes the panel.
                    unsafe {
                        let value = *from.at((panel * TILE_ROWS + column) * k + depth);
                        let pair = depth % TILE_DEPTH / 2 * TILE_ROWS + column;
                        let at = panel * panel_bytes(k) + depth / TILE_DEPTH * STEP_BYTES;
                        for (part, bits) in split_bf16x3(value).into_iter().enumerate() {
                            let at = at + part * TILE_BYTES + 4 * pair + 2 * (depth % 2);
                            to.at(at).cast::<u16>().write(bits);
                        }
                    }
                }
            }
        });
    }
}

/// Bytes of sixteen rows or columns of depth `k`.
fn panel_bytes(k: usize) -> usize {
    k.div_ceil(TILE_DEPTH) * STEP_BYTES
}

/// The three bf16 that sum to `x`.
fn split_bf16x3(x: f32) -> [u16; 3] {
    let mut rest = x;
    std::array::from_fn(|_| {
        let part = f32::from_bits(rest.to_bits() & 0xffff_0000);
        rest = if x.is_finite() { rest - part } else { 0.0 };
        (part.to_bits() >> 16) as u16
    })
}

impl AmxLinear {
    /// The layer, if AMX pays for it.
    pub(crate) fn new([m, n, k]: [usize; 3]) -> Option<AmxLinear> {
        (m >= MIN_AMX_ROWS && n > 0 && k > 0).then_some(AmxLinear { m, n, k })
    }

    /// The packing of its weight.
    pub(crate) fn weight(&self) -> Bf16x3Weight {
        Bf16x3Weight {
            n: self.n,
            k: self.k,
        }
    }

    /// Whether two products of the same rows can be fused.
    pub(crate) fn can_fuse_with(&self, other: &AmxLinear) -> bool {
        (self.m, self.k) == (other.m, other.k)
    }

    /// Whether a block is one tile high and four wide instead of two by two.
    fn is_one_tile_high(&self) -> bool {
        self.m <= TILE_ROWS
    }

    /// Rows and columns of a block.
    fn block(&self) -> (usize, usize) {
        match self.is_one_tile_high() {
            true => (TILE_ROWS, WIDE_BLOCK),
            false => (BLOCK, BLOCK),
        }
    }

    /// Row blocks whose rows are split together.
    fn row_blocks(&self, threads: usize) -> usize {
        let blocks = self.m.div_ceil(self.block().0);
        match self.weight().bytes() > MAX_CACHED_WEIGHT_BYTES {
            true => (blocks / threads).clamp(1, MAX_ROW_BLOCKS),
            false => 1,
        }
    }

    /// Bytes of a thread's scratch.
    fn thread_scratch(&self, threads: usize) -> usize {
        let rows = self.row_blocks(threads) * self.block().0;
        SCRATCH_HEADER + rows / TILE_ROWS * panel_bytes(self.k)
    }

    /// Bytes of scratch: some split rows for every thread.
    pub(crate) fn scratch(&self, threads: usize) -> usize {
        threads * self.thread_scratch(threads)
    }

    /// Computes the product.
    ///
    /// # Safety
    /// The operands must be valid for the shapes of `self`, the weight packed, the scratch as large as
    /// [`scratch`](Self::scratch) says, and the output must overlap none of them. The tier must have tiles.
    pub(crate) unsafe fn run(&self, ctx: &Context<'_>, o: LinearOperands) {
        // SAFETY: as the caller guarantees.
        unsafe { run_fused(ctx, &[(*self, o)]) }
    }
}

/// Runs products of the same rows as one call; each must be [fusible](AmxLinear::can_fuse_with) with the first. A
/// thread splits rows once, in its own cache, and multiplies them with all weights.
///
/// # Safety
/// As for [`AmxLinear::run`], for every product; the scratch is the last product's.
pub(crate) unsafe fn run_fused(ctx: &Context<'_>, products: &[(AmxLinear, LinearOperands)]) {
    let Some((last, operands)) = products.last() else {
        return;
    };
    let threads = ctx.threads.count();
    let (height, width) = last.block();
    let down = last.m.div_ceil(height);
    let across = |(linear, _): &(AmxLinear, LinearOperands)| linear.n.div_ceil(width);
    let columns = products.iter().map(across).sum::<usize>();
    let group = last.row_blocks(threads);
    let groups = down.div_ceil(group);
    let serial = threads == 1 || down * columns * last.k.div_ceil(TILE_DEPTH) < SERIAL_STEPS;
    let parts = match serial {
        true => 1,
        false => (2 * threads)
            .div_ceil(groups)
            .min(columns / MIN_COLUMN_BLOCKS)
            .max(1),
    };
    let scratch = SendPtr(operands.scratch.cast::<u8>());
    let thread_scratch = last.thread_scratch(threads);
    for thread in 0..threads {
        // SAFETY: the scratch holds split rows for every thread.
        unsafe { scratch.at(thread * thread_scratch).cast::<usize>().write(0) };
    }
    let products = &SharedAmxProducts(products);
    let task = |task: usize, thread: usize| {
        let (index, part) = (task / parts, task % parts);
        let rows = index * group..((index + 1) * group).min(down);
        // SAFETY: the caller guarantees the operands; a thread's scratch is its own.
        unsafe {
            let held = scratch.at(thread * thread_scratch);
            let to = held.add(SCRATCH_HEADER);
            if held.cast::<usize>().replace(index + 1) != index + 1 {
                ctx.isa.run_tiles(SplitRows {
                    x: products.get()[0].1.x,
                    to,
                    k: last.k,
                    rows: rows.start * height..(rows.end * height).min(last.m),
                });
            }
            let (mut first, end) = (columns * part / parts, columns * (part + 1) / parts);
            let mut before = 0;
            for product in products.get() {
                let behind = before + across(product);
                if first < end.min(behind) {
                    ctx.isa.run_tiles(AmxBlocks {
                        linear: product.0,
                        operands: product.1,
                        x: to,
                        rows: rows.clone(),
                        columns: first - before..end.min(behind) - before,
                    });
                    first = end.min(behind);
                }
                before = behind;
            }
        }
    };
    if serial {
        (0..groups * parts).for_each(|i| task(i, 0));
    } else {
        ctx.threads.run_chunked(groups * parts, &task);
    }
}

struct SharedAmxProducts<'a>(&'a [(AmxLinear, LinearOperands)]);
// SAFETY: tasks read the operands and write disjoint parts of the outputs and their own thread's scratch.
unsafe impl Sync for SharedAmxProducts<'_> {}

impl SharedAmxProducts<'_> {
    fn get(&self) -> &[(AmxLinear, LinearOperands)] {
        self.0
    }
}

/// The kernel that splits activation rows into three bf16 parts.
struct SplitRows {
    x: *const f32,
    to: *mut u8,
    k: usize,
    rows: Range<usize>,
}

impl TileKernel for SplitRows {
    #[inline(always)]
    fn run(self, s: Avx512<true>) {
        let panel = panel_bytes(self.k);
        for row in self.rows.clone() {
            // SAFETY: constructed by `run_fused`, whose caller guarantees the rows and the scratch for their parts.
            unsafe {
                let from = self.x.add(row * self.k);
                let row = row - self.rows.start;
                let to = self
                    .to
                    .add(row / TILE_ROWS * panel + row % TILE_ROWS * 2 * TILE_DEPTH);
                let whole = self.k / TILE_DEPTH;
                for step in 0..whole {
                    let x = from.add(step * TILE_DEPTH);
                    let x = [s.load(x), s.load(x.add(LANES))];
                    s.store_bf16x3(x, to.add(step * STEP_BYTES), TILE_BYTES);
                }
                let rest = self.k % TILE_DEPTH;
                if rest > 0 {
                    let x = from.add(whole * TILE_DEPTH);
                    let first = rest.min(LANES);
                    let x = [
                        s.load_part(x, first),
                        s.load_part(x.add(first), rest - first),
                    ];
                    s.store_bf16x3(x, to.add(whole * STEP_BYTES), TILE_BYTES);
                }
            }
        }
    }
}

/// The kernel for some blocks of the result.
struct AmxBlocks {
    linear: AmxLinear,
    operands: LinearOperands,
    /// The split rows.
    x: *const u8,
    rows: Range<usize>,
    columns: Range<usize>,
}

/// The products of a block's four tiles.
#[repr(align(64))]
struct BlockProducts([MaybeUninit<f32>; 4 * TILE_ROWS * TILE_ROWS]);

impl TileKernel for AmxBlocks {
    #[inline(always)]
    fn run(self, s: Avx512<true>) {
        match self.operands.epilogue.activation {
            None => self.multiply(s, Identity),
            Some(activation) => with_activation!(activation, f => self.multiply(s, f)),
        }
    }
}

impl AmxBlocks {
    #[inline(always)]
    fn multiply(&self, s: Avx512<true>, activation: impl VectorFunction) {
        let steps = self.linear.k.div_ceil(TILE_DEPTH);
        let panel = panel_bytes(self.linear.k);
        // A block is stored while the next one is multiplied.
        let empty = || BlockProducts([MaybeUninit::uninit(); 4 * TILE_ROWS * TILE_ROWS]);
        let [mut first, mut second] = [empty(), empty()];
        let (mut now, mut before) = (&mut first, &mut second);
        let mut unfinished = None;
        // SAFETY: constructed by `run_fused`, which takes this path only on a tier with tiles; its caller guarantees
        // the operands, which are padded to whole blocks.
        unsafe {
            let tiles = AmxTiles::new();
            let weights = self.operands.weight;
            for column in self.columns.clone() {
                for row in self.rows.clone() {
                    let to = now.0.as_mut_ptr().cast();
                    let own = row - self.rows.start;
                    if self.linear.is_one_tile_high() {
                        let weight = weights.add(column * 4 * panel);
                        tiles.bf16x3_1x4(self.x.add(own * panel), weight, panel, steps, to);
                    } else {
                        let (x, weight) = (own * 2 * panel, column * 2 * panel);
                        tiles.bf16x3_2x2(self.x.add(x), weights.add(weight), panel, steps, to);
                    }
                    if let Some(place) = unfinished.replace((row, column)) {
                        self.store_result(s, activation, before, place);
                    }
                    std::mem::swap(&mut now, &mut before);
                }
            }
            if let Some(place) = unfinished {
                self.store_result(s, activation, before, place);
            }
        }
    }

    /// Applies the epilogue to a block and stores it.
    ///
    /// # Safety
    /// The block must be one of the result's, and its products be computed.
    #[inline(always)]
    unsafe fn store_result(
        &self,
        s: Avx512<true>,
        activation: impl VectorFunction,
        products: &BlockProducts,
        (row, column): (usize, usize),
    ) {
        let AmxLinear { m, n, .. } = self.linear;
        let (height, width) = self.linear.block();
        let wide = width / TILE_ROWS;
        let (first_row, first) = (row * height, column * width);
        let rows = (m - first_row).min(height);
        let width = (n - first).min(width);
        // SAFETY: only rows and columns that exist are written, and as many biases are read.
        unsafe {
            let out = self.operands.out.add(first_row * n + first);
            for tile in 0..width.div_ceil(TILE_ROWS) {
                let count = (width - tile * TILE_ROWS).min(TILE_ROWS);
                let bias = if self.operands.epilogue.bias.is_null() {
                    s.zero()
                } else {
                    s.load_part(
                        self.operands.epilogue.bias.add(first + tile * TILE_ROWS),
                        count,
                    )
                };
                for r in 0..rows {
                    let at =
                        ((r / TILE_ROWS * wide + tile) * TILE_ROWS + r % TILE_ROWS) * TILE_ROWS;
                    let sum = s.add(s.load(products.0.as_ptr().cast::<f32>().add(at)), bias);
                    let mut result = activation.apply(s, sum, sum);
                    let at = (first_row + r) * n + first + tile * TILE_ROWS;
                    let residual = self.operands.epilogue.residual_at(at);
                    if !residual.is_null() {
                        result = s.add(result, s.load_part(residual, count));
                    }
                    s.store_part(out.add(r * n + tile * TILE_ROWS), result, count);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::Epilogue;
    use super::*;
    use crate::aligned::AlignedBuffer;
    use crate::isa::Isa;
    use crate::thread_pool::ThreadPool;
    use conformance::TestRng;
    use graph::ops::Activation;

    fn compute(
        ctx: &Context<'_>,
        op: AmxLinear,
        x: &[f32],
        weight: &[f32],
        epilogue: Epilogue,
    ) -> Vec<f32> {
        let mut laid_out = AlignedBuffer::new(op.weight().bytes()).unwrap();
        let mut scratch = AlignedBuffer::new(op.scratch(ctx.threads.count())).unwrap();
        let mut out = vec![f32::NAN; op.m * op.n];
        // SAFETY: every operand has the size its shape says.
        unsafe {
            op.weight()
                .pack(ctx, weight.as_ptr(), laid_out.as_mut_ptr());
            let operands = LinearOperands {
                x: x.as_ptr(),
                weight: laid_out.as_ptr(),
                epilogue,
                out: out.as_mut_ptr(),
                scratch: scratch.as_mut_ptr().cast(),
            };
            op.run(ctx, operands);
        }
        out
    }

    fn with_tiles(test: impl Fn(&Context<'_>)) {
        for isa in Isa::available().into_iter().filter(|isa| isa.has_tiles()) {
            for threads in [1, 3] {
                let threads = &ThreadPool::new(threads);
                test(&Context { isa, threads });
            }
        }
    }

    #[test]
    fn bf16_parts_sum_to_the_number() {
        let mut noise = TestRng::new(3);
        for x in noise.units(1000).into_iter().chain([0.0, f32::MAX, 1e-30]) {
            let sum: f32 = split_bf16x3(x)
                .map(|bits| f32::from_bits(u32::from(bits) << 16))
                .iter()
                .sum();
            assert_eq!(sum, x);
        }
        assert_eq!(split_bf16x3(f32::NEG_INFINITY), [0xff80, 0, 0]);
    }

    #[test]
    fn products_are_as_close_as_in_f32() {
        with_tiles(|ctx| {
            let mut noise = TestRng::new(7);
            for (m, n, k) in [
                (8, 1, 1),
                (9, 70, 33),
                (16, 64, 64),
                (17, 33, 100),
                (40, 130, 520),
                (65, 96, 32),
            ] {
                let (x, weight) = (noise.units(m * k), noise.units(n * k));
                let bias = noise.units(n);
                let activation = (m % 2 == 1).then_some(Activation::Relu);
                let op = AmxLinear::new([m, n, k]).unwrap();
                let epilogue = Epilogue {
                    bias: bias.as_ptr(),
                    activation,
                    ..Epilogue::NONE
                };
                let found = compute(ctx, op, &x, &weight, epilogue);
                for (i, found) in found.iter().enumerate() {
                    let (row, column) = (i / n, i % n);
                    let product =
                        |d: usize| f64::from(x[row * k + d]) * f64::from(weight[column * k + d]);
                    let mut expect = (0..k).map(product).sum::<f64>() + f64::from(bias[column]);
                    if activation.is_some() {
                        expect = expect.max(0.0);
                    }
                    let error = (f64::from(*found) - expect).abs();
                    let size: f64 = (0..k).map(|d| product(d).abs()).sum();
                    assert!(
                        error <= 3e-7 * (1.0 + size),
                        "{m}x{n}x{k} {row},{column}: {error}"
                    );
                }
            }
        });
    }

    #[test]
    fn non_finite_values_stay_in_their_row() {
        with_tiles(|ctx| {
            let (m, n, k) = (20, 20, 40);
            let op = AmxLinear::new([m, n, k]).unwrap();
            let mut x = vec![1.0; m * k];
            x[3 * k + 7] = f32::INFINITY;
            x[5 * k + 2] = f32::NAN;
            let found = compute(ctx, op, &x, &vec![1.0; n * k], Epilogue::NONE);
            for (row, found) in found.chunks(n).enumerate() {
                // Infinity times a zero part of a weight is NaN.
                let expected: fn(f32) -> bool = match row {
                    3 | 5 => f32::is_nan,
                    _ => |x| x == 40.0,
                };
                assert!(found.iter().all(|x| expected(*x)), "row {row}: {found:?}");
            }
        });
    }
}
