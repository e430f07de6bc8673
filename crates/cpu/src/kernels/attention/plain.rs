//! Attention without a cache, standard and flash.
//!
//! Keys are packed into panels once per head, and blocks of queries are multiplied with them. *Standard* attention
//! computes all scores of a block of queries before it weighs the values. *Flash* attention processes blocks of keys
//! and rescales the sums when a larger score appears, so its scratch does not grow with the keys.

use crate::isa::Isa;

use crate::kernels::matmul::Epilogue;
use crate::kernels::matmul::f32::microkernel::{Gemm, Lhs, PANEL_COLUMNS, Rhs};
use crate::kernels::matmul::f32::pack::PanelPacking;
use crate::kernels::normalise::softmax::largest;
use crate::kernels::{Context, split_vectors};
use crate::simd::{Kernel, LANES, Simd};
use base::DType;

/// Queries of a task: a multiple of the register tile rows of every tier.
const QUERY_BLOCK: usize = 48;
/// Keys of a block of flash attention.
const FLASH_KEY_BLOCK: usize = 512;
/// The number of keys from which flash attention is used: its blocks stay in L2, where all scores of a task would not
/// fit. docs/benchmarks/attention.md has the times of both and says how they are measured.
const FLASH_FROM: usize = 2048;
/// Multiply-adds below which the work stays on the calling thread.
const SERIAL_MACS: usize = 256 * 1024;

/// `out [batch, heads, queries, value_dim] = softmax(scale · q · kᵀ + mask) · v`, or all with tokens before heads.
#[derive(Clone, Debug)]
pub(crate) struct Attention {
    pub(crate) batch: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) queries: usize,
    pub(crate) keys: usize,
    pub(crate) key_dim: usize,
    pub(crate) value_dim: usize,
    pub(crate) scale: f32,
    pub(crate) causal: bool,
    pub(crate) softcap: Option<f32>,
    pub(crate) mask: Option<Mask>,
    pub(crate) token_major: bool,
    /// Keys that are scored at once.
    pub(crate) block: usize,
}

/// The strides of an operand's batches, heads and tokens.
#[derive(Clone, Copy)]
struct HeadStrides {
    heads: usize,
    /// Elements from one token to the next, from one head to the next, and from one batch to the next.
    token: usize,
    head: usize,
    batch: usize,
}

impl HeadStrides {
    /// The first element of a head, counted over all batches.
    fn start(&self, head: usize) -> usize {
        head / self.heads * self.batch + head % self.heads * self.head
    }
}

/// The layout of a mask.
#[derive(Clone, Debug)]
pub(crate) struct Mask {
    /// f32 that is added to the scores, or bool, true where a key is visible.
    pub(crate) dtype: DType,
    /// The first element of each batch and head.
    pub(crate) planes: Vec<usize>,
    /// Elements from one query to the next.
    pub(crate) row: usize,
    /// Elements from one key to the next.
    pub(crate) column: usize,
}

/// Addresses of the operands, result and scratch; `mask` is null without one.
#[derive(Clone, Copy)]
pub(crate) struct AttentionOperands {
    pub(crate) q: *const f32,
    pub(crate) k: *const f32,
    pub(crate) v: *const f32,
    pub(crate) mask: *const u8,
    pub(crate) out: *mut f32,
    pub(crate) scratch: *mut f32,
}

struct SharedAttentionOperands(AttentionOperands);
// SAFETY: tasks read the operands and write disjoint rows of the output, panels, or their own thread's scratch.
unsafe impl Sync for SharedAttentionOperands {}

impl SharedAttentionOperands {
    fn get(&self) -> AttentionOperands {
        self.0
    }
}

impl Attention {
    /// The keys to score at once: all of them for standard attention, a block for flash attention.
    pub(crate) fn best_block(keys: usize) -> usize {
        if keys >= FLASH_FROM {
            FLASH_KEY_BLOCK
        } else {
            keys
        }
    }

    /// The strides of `heads` heads with rows of `dim` elements.
    fn rows(&self, heads: usize, tokens: usize, dim: usize) -> HeadStrides {
        let (token, head) = match self.token_major {
            true => (heads * dim, dim),
            false => (dim, tokens * dim),
        };
        HeadStrides {
            heads,
            token,
            head,
            batch: heads * tokens * dim,
        }
    }

    fn query_rows(&self) -> HeadStrides {
        self.rows(self.heads, self.queries, self.key_dim)
    }

    fn key_rows(&self) -> HeadStrides {
        self.rows(self.kv_heads, self.keys, self.key_dim)
    }

    fn value_rows(&self) -> HeadStrides {
        self.rows(self.kv_heads, self.keys, self.value_dim)
    }

    fn out_rows(&self) -> HeadStrides {
        self.rows(self.heads, self.queries, self.value_dim)
    }

    fn pack_keys(&self) -> PanelPacking {
        PanelPacking {
            row: self.key_rows().token,
            ..PanelPacking::new(self.keys, self.key_dim, true)
        }
    }

    /// The packing of values; `None` if their rows are whole vectors, which are read in place.
    fn pack_values(&self) -> Option<PanelPacking> {
        (!self.value_dim.is_multiple_of(LANES)).then(|| PanelPacking {
            row: self.value_rows().token,
            ..PanelPacking::new(self.value_dim, self.keys, false)
        })
    }

    /// Elements of the scores of a task, rows padded to whole panels.
    fn score_row(&self) -> usize {
        self.block.next_multiple_of(PANEL_COLUMNS)
    }

    fn score_elements(&self) -> usize {
        QUERY_BLOCK.min(self.queries) * self.score_row()
    }

    /// Elements of the panels: keys, then values.
    fn panel_elements(&self) -> usize {
        let heads = self.batch * self.kv_heads;
        let values = self.pack_values().map_or(0, |pack| pack.elements());
        heads * (self.pack_keys().elements() + values)
    }

    /// Bytes of scratch: the panels, and the scores of a task per thread.
    pub(crate) fn scratch(&self, threads: usize) -> usize {
        (self.panel_elements() + threads * self.score_elements()) * size_of::<f32>()
    }

    /// # Safety
    /// The operands must be valid for the shapes of `self`, and the output must overlap none of them.
    pub(crate) unsafe fn run(&self, ctx: &Context<'_>, operands: AttentionOperands) {
        let o = SharedAttentionOperands(operands);
        let (heads, blocks) = (self.batch * self.heads, self.queries.div_ceil(QUERY_BLOCK));
        let kv_heads = self.batch * self.kv_heads;
        let dims = self.key_dim + self.value_dim;
        let serial = heads * self.queries * self.keys * dims < SERIAL_MACS;
        let (keys, values) = (self.pack_keys(), self.pack_values());
        let pack = |head: usize, panel: usize| {
            let o = o.get();
            // SAFETY: the caller guarantees every head and the scratch, of which every panel has its own part.
            unsafe {
                match (&values, panel.checked_sub(keys.panels())) {
                    (Some(values), Some(panel)) => {
                        let behind = kv_heads * keys.elements() + head * values.elements();
                        let from = o.v.add(self.value_rows().start(head));
                        values.pack_panel(panel, from, o.scratch.add(behind));
                    }
                    _ => {
                        let from = o.k.add(self.key_rows().start(head));
                        keys.pack_panel(panel, from, o.scratch.add(head * keys.elements()));
                    }
                }
            }
        };
        let panels = keys.panels() + values.as_ref().map_or(0, PanelPacking::panels);
        let attend = |head: usize, block: usize, thread: usize| {
            let first = block * QUERY_BLOCK;
            let task = QueryBlock {
                op: self,
                o: o.get(),
                isa: ctx.isa,
                head,
                first,
                rows: QUERY_BLOCK.min(self.queries - first),
                thread,
            };
            // SAFETY: the caller guarantees the operands and the scratch.
            unsafe { task.run() };
        };
        let threads = ctx.threads.count();
        if serial || kv_heads.is_multiple_of(threads) || kv_heads >= 4 * threads {
            // A thread computes all queries of a head, so that the panels it packs stay in its cache.
            let group = self.heads / self.kv_heads.max(1);
            let whole = |kv_head: usize, thread: usize| {
                (0..panels).for_each(|panel| pack(kv_head, panel));
                for head in kv_head * group..(kv_head + 1) * group {
                    (0..blocks).for_each(|block| attend(head, block, thread));
                }
            };
            return match serial {
                true => (0..kv_heads).for_each(|kv_head| whole(kv_head, 0)),
                // The rows that the thread's previous products wrote are still in its cache too.
                false => ctx.threads.run_chunked(kv_heads, &whole),
            };
        }
        ctx.threads.run(kv_heads * panels, &|task, _| {
            pack(task / panels, task % panels);
        });
        ctx.threads.run(heads * blocks, &|task, thread| {
            // The last queries of a causal head see the most keys, so they are started first.
            attend(task % heads, blocks - 1 - task / heads, thread);
        });
    }
}

/// A block of queries of one head.
struct QueryBlock<'a> {
    op: &'a Attention,
    o: AttentionOperands,
    isa: Isa,
    /// The index of the head over all batches.
    head: usize,
    first: usize,
    rows: usize,
    thread: usize,
}

impl QueryBlock<'_> {
    /// # Safety
    /// As for [`Attention::run`].
    unsafe fn run(&self) {
        let op = self.op;
        let (mut maxima, mut sums) = ([f32::NEG_INFINITY; QUERY_BLOCK], [0.0f32; QUERY_BLOCK]);
        let visible_keys = if op.causal {
            op.keys.min(self.first + self.rows)
        } else {
            op.keys
        };
        // SAFETY: the caller guarantees the operands and the scratch.
        unsafe {
            let scores = self
                .o
                .scratch
                .add(op.panel_elements() + self.thread * op.score_elements());
            for start in (0..visible_keys).step_by(op.block.max(1)) {
                let keys = op.block.min(visible_keys - start);
                self.score(start, keys, scores);
                self.isa.run(BlockSoftmax {
                    task: self,
                    start,
                    keys,
                    scores,
                    maxima: &mut maxima,
                    sums: &mut sums,
                });
                self.add_weighted_values(start, keys, scores);
            }
            self.isa.run(NormaliseOutput {
                task: self,
                sums: &sums,
            });
        }
    }

    /// The KV head that this head reads, counted over all batches.
    fn kv_head(&self) -> usize {
        let group = self.op.heads / self.op.kv_heads;
        let (batch, head) = (self.head / self.op.heads, self.head % self.op.heads);
        batch * self.op.kv_heads + head / group
    }

    /// # Safety
    /// `r` must be a row of the task.
    unsafe fn out(&self, r: usize) -> *mut f32 {
        let rows = self.op.out_rows();
        // SAFETY: the row is in the output.
        unsafe {
            let head = self.o.out.add(rows.start(self.head));
            head.add((self.first + r) * rows.token)
        }
    }

    /// Computes the scaled products of the queries with a block of keys.
    ///
    /// # Safety
    /// As for [`Attention::run`]; the block lies inside the keys and starts at a panel.
    unsafe fn score(&self, start: usize, keys: usize, scores: *mut f32) {
        let op = self.op;
        let pack = op.pack_keys();
        // SAFETY: as the caller guarantees.
        unsafe {
            let panels = self.o.scratch.add(self.kv_head() * pack.elements());
            let mut right = Rhs::packed(panels, op.key_dim);
            right.at = right.at.add(start / PANEL_COLUMNS * right.panel_stride);
            let rows = op.query_rows();
            let first = rows.start(self.head) + self.first * rows.token;
            let product = Gemm {
                m: self.rows,
                n: keys,
                k: op.key_dim,
                left: Lhs {
                    at: self.o.q.add(first),
                    row_stride: rows.token,
                },
                right,
                out: scores,
                out_row_stride: op.score_row(),
                alpha: op.scale,
                accumulate: false,
                epilogue: Epilogue::NONE,
            };
            product.run(self.isa);
        }
    }

    /// Adds the values of a block of keys times their weights.
    ///
    /// # Safety
    /// As for [`Attention::run`]; `scores` holds the weights.
    unsafe fn add_weighted_values(&self, start: usize, keys: usize, scores: *const f32) {
        let op = self.op;
        // SAFETY: as the caller guarantees.
        unsafe {
            let head = self.kv_head();
            let right = match op.pack_values() {
                Some(pack) => {
                    let behind = op.batch * op.kv_heads * op.pack_keys().elements();
                    let panels = self.o.scratch.add(behind + head * pack.elements());
                    let right = Rhs::packed(panels, op.keys);
                    Rhs {
                        at: right.at.add(start * right.row_stride),
                        ..right
                    }
                }
                None => {
                    let rows = op.value_rows();
                    let first = rows.start(head) + start * rows.token;
                    Rhs::row_major(self.o.v.add(first), rows.token)
                }
            };
            let product = Gemm {
                m: self.rows,
                n: op.value_dim,
                k: keys,
                left: Lhs {
                    at: scores,
                    row_stride: op.score_row(),
                },
                right,
                out: self.out(0),
                out_row_stride: op.out_rows().token,
                alpha: 1.0,
                accumulate: start > 0,
                epilogue: Epilogue::NONE,
            };
            product.run(self.isa);
        }
    }
}

/// The kernel that turns a block's scores into softmax weights.
struct BlockSoftmax<'a> {
    task: &'a QueryBlock<'a>,
    start: usize,
    keys: usize,
    scores: *mut f32,
    maxima: &'a mut [f32; QUERY_BLOCK],
    sums: &'a mut [f32; QUERY_BLOCK],
}

impl Kernel for BlockSoftmax<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let op = self.task.op;
        for r in 0..self.task.rows {
            // SAFETY: `Attention::run`'s caller guarantees the operands and the scratch.
            unsafe {
                let line = self.scores.add(r * op.score_row());
                let visible = self.finish_scores(s, r, line);
                // Keys after the visible ones get zero weights, up to whole vectors.
                let padded = self.keys.next_multiple_of(LANES);
                for i in visible..padded {
                    *line.add(i) = f32::NEG_INFINITY;
                }
                let factor = weigh(s, line, padded, &mut self.maxima[r], &mut self.sums[r]);
                if self.start > 0 && factor != 1.0 {
                    scale(s, self.task.out(r), op.value_dim, factor);
                }
            }
        }
    }
}

impl BlockSoftmax<'_> {
    /// Caps and masks a row's scores; returns the number of keys that may be visible.
    ///
    /// # Safety
    /// As for [`Attention::run`]; `line` holds the row's scores.
    #[inline(always)]
    unsafe fn finish_scores<S: Simd>(&self, s: S, r: usize, line: *mut f32) -> usize {
        let (task, op) = (self.task, self.task.op);
        let (start, keys) = (self.start, self.keys);
        let visible = if op.causal {
            keys.min((task.first + r + 1).saturating_sub(start))
        } else {
            keys
        };
        // SAFETY: rows of scores are padded to whole vectors, and the mask has an element for every key.
        unsafe {
            if let Some(cap) = op.softcap {
                for chunk in 0..visible.div_ceil(LANES) {
                    let at = line.add(chunk * LANES);
                    let v = s.tanh(s.div(s.load(at), s.splat(cap)));
                    s.store(at, s.mul(s.splat(cap), v));
                }
            }
            if let Some(mask) = &op.mask {
                let first =
                    mask.planes[task.head] + (task.first + r) * mask.row + start * mask.column;
                if mask.dtype == DType::Bool {
                    for i in 0..visible {
                        if *task.o.mask.add(first + i * mask.column) == 0 {
                            *line.add(i) = f32::NEG_INFINITY;
                        }
                    }
                } else {
                    let bias = task.o.mask.cast::<f32>().add(first);
                    for i in 0..visible {
                        *line.add(i) += *bias.add(i * mask.column);
                    }
                }
            }
        }
        visible
    }
}

/// The kernel that divides the weighted values by the sum of the weights.
struct NormaliseOutput<'a> {
    task: &'a QueryBlock<'a>,
    sums: &'a [f32; QUERY_BLOCK],
}

impl Kernel for NormaliseOutput<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let width = self.task.op.value_dim;
        for r in 0..self.task.rows {
            // SAFETY: `Attention::run`'s caller guarantees the rows.
            unsafe {
                // A query that sees no key gives zeros.
                if self.sums[r] > 0.0 {
                    scale(s, self.task.out(r), width, 1.0 / self.sums[r]);
                } else {
                    std::slice::from_raw_parts_mut(self.task.out(r), width).fill(0.0);
                }
            }
        }
    }
}

/// Turns scores into weights relative to the largest score so far; returns the factor that rescales the sums before.
///
/// # Safety
/// `len` scores, whole vectors, must be at `line`.
#[inline(always)]
unsafe fn weigh<S: Simd>(
    s: S,
    line: *mut f32,
    len: usize,
    maximum: &mut f32,
    sum: &mut f32,
) -> f32 {
    // SAFETY: the caller guarantees the line.
    unsafe {
        let new = largest(s, line, len).max(*maximum);
        if new == f32::NEG_INFINITY {
            std::slice::from_raw_parts_mut(line, len).fill(0.0);
            return 1.0;
        }
        let factor = if *maximum == new {
            1.0
        } else {
            (*maximum - new).exp()
        };
        let mut sums = s.zero();
        for chunk in 0..len / LANES {
            let at = line.add(chunk * LANES);
            let weight = s.exp(s.sub(s.load(at), s.splat(new)));
            sums = s.add(sums, weight);
            s.store(at, weight);
        }
        *maximum = new;
        *sum = *sum * factor + s.reduce_sum(sums);
        factor
    }
}

/// # Safety
/// `len` elements must be at `row`.
#[inline(always)]
unsafe fn scale<S: Simd>(s: S, row: *mut f32, len: usize, factor: f32) {
    let (chunks, tail) = split_vectors(len);
    // SAFETY: the caller guarantees the row.
    unsafe {
        for chunk in 0..chunks {
            let at = row.add(chunk * LANES);
            s.store(at, s.mul(s.load(at), s.splat(factor)));
        }
        for i in chunks * LANES..chunks * LANES + tail {
            *row.add(i) *= factor;
        }
    }
}

#[cfg(test)]
mod tests;
