//! Linear layers with f16 or bf16 weights.
//!
//! Every output is one chain of sixteen-lane multiply-adds along the depth, summed at the end in a fixed order. That
//! order is the same for one row of activations and for many, so a row's result never depends on its neighbours. On matrix
//! tiles the order is another one, also for any number of rows.

#[cfg(target_arch = "x86_64")]
mod tiles;

use super::epilogue::OutputTile;
use super::{LinearOperands, MAX_MEMORY_BOUND_ROWS};
use crate::kernels::decode::half::{Bf16, F16, HalfDecoder};
use crate::kernels::{Context, SendPtr, split_vectors};
use crate::prefetch::{PrefetchPlan, Span, SpanList};
#[cfg(target_arch = "x86_64")]
use crate::simd::amx::TILE_ROWS;
use crate::simd::{Kernel, LANES, Simd};
use base::DType;
use base::gate::chunk_start;
use std::marker::PhantomData;

/// Weight rows that are decoded to scratch together, for many rows of activations.
const DECODED_ROWS: usize = 32;

/// `out [m, n] = epilogue(x [m, k] · weightᵀ [n, k])`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HalfLinear {
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) weight: DType,
}

impl HalfLinear {
    /// Bytes of scratch: decoded weight rows for every thread, or what matrix tiles need.
    pub(crate) fn scratch(&self, threads: usize) -> usize {
        let vectors = match self.m <= MAX_MEMORY_BOUND_ROWS {
            true => 0,
            false => threads * self.decoded_elements() * size_of::<f32>(),
        };
        #[cfg(target_arch = "x86_64")]
        if tiles::fits(self) && crate::simd::amx::available() {
            return vectors.max(tiles::scratch(self));
        }
        vectors
    }

    fn decoded_elements(&self) -> usize {
        DECODED_ROWS * self.padded_depth()
    }

    fn padded_depth(&self) -> usize {
        self.k.next_multiple_of(LANES)
    }

    /// Weight rows of a task. With few rows of activations the weights are streamed, so tasks are large; otherwise a
    /// task is one set of decoded rows.
    fn task_rows(&self, threads: usize) -> usize {
        if self.m <= MAX_MEMORY_BOUND_ROWS {
            #[cfg(target_arch = "x86_64")]
            let unit = if tiles::fits(self) { TILE_ROWS } else { 4 };
            #[cfg(not(target_arch = "x86_64"))]
            let unit = 4;
            self.n.div_ceil(threads * 4).next_multiple_of(unit)
        } else {
            DECODED_ROWS
        }
    }

    /// The spans of a weight at this address that every thread reads in its own chunk, before any stealing.
    pub(crate) fn prefetch_spans(&self, weight: usize, threads: usize) -> Vec<SpanList> {
        let step = self.task_rows(threads);
        let row = self.k * self.weight.block_bytes() / self.weight.block_len();
        let start = |thread| {
            let task = chunk_start(self.n.div_ceil(step), threads, thread);
            (task * step).min(self.n) * row
        };
        let plan = |thread| {
            let (start, end) = (start(thread), start(thread + 1));
            std::iter::once(Span::new(weight + start, end - start)).collect()
        };
        (0..threads).map(plan).collect()
    }

    /// # Safety
    /// The operands must be valid for the shapes of `self`, and the output must overlap none of them.
    pub(crate) unsafe fn run(&self, ctx: &Context<'_>, operands: LinearOperands) {
        if self.m == 0 {
            return;
        }
        #[cfg(target_arch = "x86_64")]
        let on_tiles = ctx.isa.has_tiles() && tiles::fits(self);
        #[cfg(target_arch = "x86_64")]
        if on_tiles {
            // SAFETY: as the caller guarantees.
            unsafe { tiles::split_activations(ctx, self, &operands) };
        }
        let shared = SharedLinearOperands(operands);
        let step = self.task_rows(ctx.threads.count());
        ctx.threads
            .run_chunked(self.n.div_ceil(step), &|task, thread| {
                let rows = (task * step, (task * step + step).min(self.n));
                let task = HalfLinearTask {
                    linear: *self,
                    operands: &shared,
                    rows,
                    thread,
                    prefetch_plan: ctx.threads.prefetch_plan(thread),
                };
                let on_vectors = |task| match self.weight {
                    DType::BF16 => ctx.isa.run(HalfLinearKernel::<Bf16>(task, PhantomData)),
                    _ => ctx.isa.run(HalfLinearKernel::<F16>(task, PhantomData)),
                };
                #[cfg(target_arch = "x86_64")]
                match on_tiles {
                    true => ctx.isa.run_tiles(tiles::TileTask(task)),
                    false => on_vectors(task),
                }
                #[cfg(not(target_arch = "x86_64"))]
                on_vectors(task);
                let LinearOperands { out, epilogue, .. } = shared.get();
                let tile = OutputTile {
                    out,
                    first: 0,
                    stride: self.n,
                };
                // SAFETY: the task has stored these columns of all rows.
                unsafe { epilogue.finish(ctx.isa, tile, (self.m, rows.0..rows.1), self.n) };
            });
    }
}

struct SharedLinearOperands(LinearOperands);
// SAFETY: tasks read the operands and write disjoint columns of the output and their own thread's scratch.
unsafe impl Sync for SharedLinearOperands {}

impl SharedLinearOperands {
    fn get(&self) -> LinearOperands {
        self.0
    }
}

struct HalfLinearTask<'a> {
    linear: HalfLinear,
    operands: &'a SharedLinearOperands,
    /// The range of weight rows.
    rows: (usize, usize),
    thread: usize,
    /// The memory that this thread prefetches.
    prefetch_plan: &'a PrefetchPlan,
}

struct HalfLinearKernel<'a, F>(HalfLinearTask<'a>, PhantomData<F>);

impl<F: HalfDecoder> Kernel for HalfLinearKernel<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let task = self.0;
        // SAFETY: `HalfLinear::run`'s caller guarantees the operands; the task stays inside its rows.
        unsafe {
            match task.linear.m {
                1 => run_streaming::<S, F, 4, 1>(s, &task),
                2 => run_streaming::<S, F, 4, 2>(s, &task),
                3 | 4 => run_streaming::<S, F, 2, 4>(s, &task),
                5..=MAX_MEMORY_BOUND_ROWS => {
                    run_streaming::<S, F, 2, MAX_MEMORY_BOUND_ROWS>(s, &task)
                }
                _ => run_decoded::<S, F>(s, &task),
            }
        }
    }
}

/// Address of weight row `n` for formats whose blocks may end inside a row.
///
/// # Safety
/// `n` must be a row of the weight at `weight`.
#[inline(always)]
unsafe fn weight_row<F: HalfDecoder>(weight: *const u8, n: usize, k: usize) -> *const u8 {
    // SAFETY: the caller guarantees the row. Plain formats have LEN 16 and rows of any length; others whole blocks.
    unsafe { weight.add(n * (k * F::BYTES / F::LEN)) }
}

/// Decodes the last `n < 16` elements of a row of a plain format, followed by zeros.
///
/// # Safety
/// `n` elements must be readable at `block` and sixteen f32 writable at `out`.
#[inline(always)]
unsafe fn decode_tail<S: Simd, F: HalfDecoder>(s: S, block: *const u8, n: usize, out: *mut f32) {
    let mut bytes = [0u8; 4 * LANES];
    // SAFETY: only plain formats, of at most four bytes an element, have tails; the copy stays inside both.
    unsafe {
        std::ptr::copy_nonoverlapping(block, bytes.as_mut_ptr(), n * F::BYTES / F::LEN);
        F::decode(s, bytes.as_ptr(), out);
    }
}

/// For few activation rows: weights are decoded in registers while they stream, `W` weight rows and `X` activation rows
/// at a time.
///
/// # Safety
/// As for [`HalfLinear::run`], within the task's rows; there are at most `X` activation rows.
#[inline(always)]
unsafe fn run_streaming<S: Simd, F: HalfDecoder, const W: usize, const X: usize>(
    s: S,
    task: &HalfLinearTask<'_>,
) {
    let HalfLinear {
        m, n: columns, k, ..
    } = task.linear;
    let o = task.operands.0;
    let (blocks, tail) = (k / F::LEN, k % F::LEN);
    let (mut n, end) = task.rows;
    let mut prefetcher = task.prefetch_plan.prefetcher();
    let mut decoded = [0.0f32; 256];
    // SAFETY: rows from `n` to `end` exist, and every block read lies inside its row. If fewer than `W` rows are left,
    // the last one is computed again and not stored.
    unsafe {
        let xs: [*const f32; X] = std::array::from_fn(|j| o.x.add(j.min(m - 1) * k));
        while n < end {
            let streams = (end - n).min(W);
            let mut sums = [[s.zero(); X]; W];
            let rows: [*const u8; W] =
                std::array::from_fn(|i| weight_row::<F>(o.weight, n + i.min(streams - 1), k));
            for block in 0..blocks {
                prefetcher.consumed(W * F::BYTES);
                for (sums, row) in sums.iter_mut().zip(rows) {
                    F::decode(s, row.add(block * F::BYTES), decoded.as_mut_ptr());
                    for i in 0..F::LEN / LANES {
                        let w = s.load(decoded.as_ptr().add(i * LANES));
                        for j in 0..X {
                            sums[j] =
                                s.fma(w, s.load(xs[j].add(block * F::LEN + i * LANES)), sums[j]);
                        }
                    }
                }
            }
            if tail > 0 {
                for (sums, row) in sums.iter_mut().zip(rows) {
                    decode_tail::<S, F>(s, row.add(blocks * F::BYTES), tail, decoded.as_mut_ptr());
                    for j in 0..X {
                        let x = s.load_part(xs[j].add(blocks * F::LEN), tail);
                        sums[j] = s.fma(s.load(decoded.as_ptr()), x, sums[j]);
                    }
                }
            }
            for i in 0..streams {
                for j in 0..X.min(m) {
                    write(o, j * columns + n + i, n + i, s.reduce_sum(sums[i][j]));
                }
            }
            n += streams;
        }
    }
}

/// For many activation rows: the task's weight rows are decoded to scratch once, then multiplied tile by tile.
///
/// # Safety
/// As for [`HalfLinear::run`], within the task's rows.
#[inline(always)]
unsafe fn run_decoded<S: Simd, F: HalfDecoder>(s: S, task: &HalfLinearTask<'_>) {
    let HalfLinear { m, n, k, .. } = task.linear;
    let o = task.operands.0;
    let depth = task.linear.padded_depth();
    let (start, end) = task.rows;
    let (blocks, tail) = (k / F::LEN, k % F::LEN);
    // SAFETY: the scratch holds decoded rows for every thread; rows from `start` to `end` exist; tiles stay inside `m`
    // and the decoded rows.
    unsafe {
        let decoded = o.scratch.add(task.thread * task.linear.decoded_elements());
        for row in start..end {
            let (from, to) = (
                weight_row::<F>(o.weight, row, k),
                decoded.add((row - start) * depth),
            );
            for block in 0..blocks {
                F::decode(s, from.add(block * F::BYTES), to.add(block * F::LEN));
            }
            if tail > 0 {
                decode_tail::<S, F>(
                    s,
                    from.add(blocks * F::BYTES),
                    tail,
                    to.add(blocks * F::LEN),
                );
            }
        }
        let (tile_w, tile_x) = S::REGISTER_TILE;
        let mut row = 0;
        while row < m {
            let xs = (m - row).min(tile_x);
            let mut w = start;
            while w < end {
                let ws = (end - w).min(tile_w);
                let weights = decoded.add((w - start) * depth);
                let tile = RegisterTile {
                    o,
                    weights,
                    depth,
                    k,
                    x_row: row,
                    w_row: w,
                    n,
                };
                tile.dispatch(s, ws, xs);
                w += ws;
            }
            row += xs;
        }
    }
}

/// Stores one output with bias and residual added.
///
/// # Safety
/// `at` must be an element of the output and `n` one of the bias.
#[inline(always)]
unsafe fn write(o: LinearOperands, at: usize, n: usize, sum: f32) {
    // SAFETY: the caller guarantees both places.
    unsafe {
        let (bias, residual) = (o.epilogue.bias, o.epilogue.stored_residual());
        let mut sum = sum + if bias.is_null() { 0.0 } else { *bias.add(n) };
        if !residual.is_null() {
            sum += *residual.add(at);
        }
        *SendPtr(o.out).at(at) = sum;
    }
}

/// Whether a tier has tiles of this many weight and activation rows.
const fn has_tile<S: Simd>(weights: usize, rows: usize) -> bool {
    weights <= S::REGISTER_TILE.0 && rows <= S::REGISTER_TILE.1
}

/// A few weight rows times a few activation rows.
#[derive(Clone, Copy)]
struct RegisterTile {
    o: LinearOperands,
    weights: *const f32,
    depth: usize,
    k: usize,
    x_row: usize,
    w_row: usize,
    n: usize,
}

impl RegisterTile {
    /// # Safety
    /// `ws` weight rows and `xs` activation rows must exist from the tile's origin; both are at most `S::REGISTER_TILE`.
    #[inline(always)]
    unsafe fn dispatch<S: Simd>(self, s: S, ws: usize, xs: usize) {
        // SAFETY: the caller guarantees the rows.
        unsafe {
            // Tiles that are larger than a tier's are not compiled for it.
            match (ws, xs) {
                (4, 6) if const { has_tile::<S>(4, 6) } => self.run::<S, 4, 6>(s),
                (2, 3) if const { has_tile::<S>(2, 3) } => self.run::<S, 2, 3>(s),
                (2, 2) if const { has_tile::<S>(2, 2) } => self.run::<S, 2, 2>(s),
                (4, 1) if const { has_tile::<S>(4, 1) } => self.run::<S, 4, 1>(s),
                (4, 2) if const { has_tile::<S>(4, 2) } => self.run::<S, 4, 2>(s),
                (4, 3) if const { has_tile::<S>(4, 3) } => self.run::<S, 4, 3>(s),
                (4, 4) if const { has_tile::<S>(4, 4) } => self.run::<S, 4, 4>(s),
                (4, 5) if const { has_tile::<S>(4, 5) } => self.run::<S, 4, 5>(s),
                (2, 1) if const { has_tile::<S>(2, 1) } => self.run::<S, 2, 1>(s),
                // An odd remainder at the edge of the matrix: one pair of rows at a time.
                _ => {
                    for i in 0..ws * xs {
                        let (w, x) = (i / xs, i % xs);
                        let weights = self.weights.add(w * self.depth);
                        RegisterTile {
                            weights,
                            w_row: self.w_row + w,
                            x_row: self.x_row + x,
                            ..self
                        }
                        .run::<S, 1, 1>(s);
                    }
                }
            }
        }
    }

    /// # Safety
    /// `W` weight rows and `X` activation rows must exist from the tile's origin.
    #[inline(always)]
    unsafe fn run<S: Simd, const W: usize, const X: usize>(self, s: S) {
        let (chunks, tail) = split_vectors(self.k);
        let mut sums = [[s.zero(); X]; W];
        // SAFETY: the caller guarantees the rows; decoded rows are padded to whole vectors, activation rows end with a
        // partial load.
        unsafe {
            let x = self.o.x.add(self.x_row * self.k);
            for chunk in 0..chunks {
                let at = chunk * LANES;
                let xs: [S::V; X] = std::array::from_fn(|j| s.load(x.add(j * self.k + at)));
                for i in 0..W {
                    let w = s.load(self.weights.add(i * self.depth + at));
                    for j in 0..X {
                        sums[i][j] = s.fma(w, xs[j], sums[i][j]);
                    }
                }
            }
            if tail > 0 {
                let at = chunks * LANES;
                for i in 0..W {
                    let w = s.load(self.weights.add(i * self.depth + at));
                    for j in 0..X {
                        sums[i][j] =
                            s.fma(w, s.load_part(x.add(j * self.k + at), tail), sums[i][j]);
                    }
                }
            }
            for i in 0..W {
                for j in 0..X {
                    let (row, n) = (self.x_row + j, self.w_row + i);
                    write(self.o, row * self.n + n, n, s.reduce_sum(sums[i][j]));
                }
            }
        }
    }
}
