//! Attention over KV cache rows, read in place in their storage type.
//!
//! Keys are processed in blocks of consecutive *positions*, in ascending order, with an online softmax between blocks.
//! A masked key contributes exactly nothing. So a query's result depends only on the keys that it sees, not on the
//! other queries of the step and not on the cells that store its keys.

mod decoded_block;
mod key_blocks;
mod kv_splits;
mod partition;
mod score;
mod segments;
mod softmax;
#[cfg(target_arch = "x86_64")]
mod tile_columns;
#[cfg(target_arch = "x86_64")]
mod tiles;
mod weighted_values;

use crate::kernels::{Context, SendPtr};
use crate::kv::{CpuKv, HeadKv};
use crate::prefetch::Prefetcher;
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx512, TileKernel};
use crate::simd::{Kernel, LANES, Simd};
use backend::hadamard;
use decoded_block::DecodedBlock;
use key_blocks::{KeyBlockPass, KeyBlockPasses};
use kv::{AttentionSpans, QueryView};
use kv_splits::{KV_SPLIT, Sinks, SoftmaxState, SplitResults, merge};
use partition::{AttentionPartition, Schedule, TileRange};
use segments::BlockKeys;
use softmax::BlockSoftmax;
use std::cell::RefCell;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Positions per block of the online softmax.
const KEY_BLOCK: usize = 64;
/// The largest value dimension for which a query tile may have [`MAX_TILE_ROWS`] rows.
const FULL_TILE_VALUE_DIM: usize = 256;
/// The most query rows of a tile, which share a pass over a block of keys.
const MAX_TILE_ROWS: usize = 48;
/// Query rows whose sums are accumulated in registers at once, with four vectors of keys or values.
const REGISTER_ROWS: usize = 6;
/// The most query rows for which keys and values are read without decoding them first.
const MAX_UNDECODED_ROWS: usize = 4;

/// The attention of one step over one layer's cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CachedAttention {
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) key_dim: usize,
    pub(crate) value_dim: usize,
    pub(crate) scale: f32,
    pub(crate) softcap: Option<f32>,
}

impl CachedAttention {
    /// Computes the attention of all queries.
    ///
    /// # Safety
    /// `q` must hold `queries · heads · key_dim` elements and `out` `queries · heads · value_dim`, without overlap, and `sinks` one for
    /// each head if it is not null.
    /// Every visible cell must exist in layer `id` of `kv`.
    pub(crate) unsafe fn run(
        &self,
        ctx: &Context<'_>,
        visible: &AttentionSpans,
        (kv, id): (&CpuKv, usize),
        q: *const f32,
        sinks: *const f32,
        out: *mut f32,
    ) {
        let sinks = Sinks {
            at: SendPtr(sinks.cast_mut()),
            heads: self.heads,
        };
        let queries = attending(visible);
        let padding = visible.queries().len() - queries.len();
        if padding > 0 {
            let row = self.heads * self.value_dim;
            // SAFETY: the output has a row for every query.
            unsafe { out.add(queries.len() * row).write_bytes(0, padding * row) };
        }
        let partition = &AttentionPartition::new(self, queries, ctx.threads.count());
        let (q, out) = (SendPtr(q.cast_mut()), SendPtr(out));
        let [keys_are_rotated, values_are_rotated] = kv.rotated(id);
        let query_tile = |range: TileRange| QueryTile {
            op: self,
            visible,
            queries: range.queries,
            first_head: range.first_head,
            heads: range.heads,
            kv: kv.head(id, range.kv_head),
            q,
            keys_are_rotated,
            rotated_q: std::ptr::null(),
            sinks,
            out,
        };
        let whole = |task: usize, thread: usize| {
            let query_tile = query_tile(partition.task(task).0);
            let kv_splits = kv_splits::visible_splits(&queries[query_tile.queries.clone()]);
            run_tile(ctx, thread, query_tile, kv_splits, None);
        };
        match partition.schedule {
            Schedule::Serial => (0..partition.tasks()).for_each(|task| whole(task, 0)),
            Schedule::Dynamic => ctx.threads.run(partition.tasks(), &whole),
            Schedule::Chunked => ctx.threads.run_chunked(partition.tasks(), &whole),
            Schedule::SplitKv => {
                let mut buffer = kv_splits::SplitBuffer::new();
                let rows = queries.len() * self.heads;
                let results = &SplitResults::new(
                    &mut buffer,
                    rows,
                    partition.kv_splits.len(),
                    self.value_dim,
                );
                ctx.threads.run_chunked(partition.tasks(), &|task, thread| {
                    let (range, kv_split) = partition.task(task);
                    let kv_splits = partition.kv_splits.start + kv_split
                        ..partition.kv_splits.start + kv_split + 1;
                    let split_output = Some((results, kv_split));
                    run_tile(ctx, thread, query_tile(range), kv_splits, split_output);
                });
                ctx.isa.run(kv_splits::MergeSplits {
                    results,
                    sinks,
                    out,
                });
            }
        }
        if values_are_rotated {
            let rotate = |query: usize, _: usize| {
                // SAFETY: the output has a row for every query and head, and each task has a query of its own.
                let rows = unsafe {
                    let start = out.at(query * self.heads * self.value_dim);
                    std::slice::from_raw_parts_mut(start, self.heads * self.value_dim)
                };
                rows.chunks_exact_mut(self.value_dim).for_each(hadamard);
            };
            match partition.schedule {
                Schedule::Serial => (0..queries.len()).for_each(|query| rotate(query, 0)),
                _ => ctx.threads.run(queries.len(), &rotate),
            }
        }
    }
}

/// The queries that see any key: all before the padding at the end of a step.
fn attending(visible: &AttentionSpans) -> &[QueryView] {
    let queries = visible.queries();
    let padding = queries.iter().rev().take_while(|q| q.positions.is_empty());
    &queries[..queries.len() - padding.count()]
}

/// Some query heads of one KV head, for some queries of the step.
struct QueryTile<'a> {
    op: &'a CachedAttention,
    visible: &'a AttentionSpans,
    queries: Range<usize>,
    first_head: usize,
    heads: usize,
    kv: HeadKv<'a>,
    q: SendPtr<f32>,
    /// Whether the stored keys are rotated; the queries are rotated before they are multiplied with them.
    keys_are_rotated: bool,
    /// The rotated queries of the tile, row after row; null if they are not rotated.
    rotated_q: *const f32,
    sinks: Sinks,
    out: SendPtr<f32>,
}

/// The scores of a block, later its softmax weights, by query row.
type Scores = [[f32; KEY_BLOCK]; SCORE_ROWS];

/// Rows of scores: products of a matrix tile may be stored after the last query row.
const SCORE_ROWS: usize = MAX_TILE_ROWS + 16;

/// How the products of a pass are computed.
trait BlockProducts<S: Simd> {
    /// Computes the dot products of the query rows with all keys of the block. Columns without a key get arbitrary
    /// numbers, and so do the scores of other rows.
    fn score(
        &mut self,
        s: S,
        query_tile: &QueryTile<'_>,
        pass: &KeyBlockPass<'_>,
        work: &mut BlockScratch,
        prefetcher: &mut Prefetcher<'_>,
    );

    /// Adds the values of a block times their weights to the accumulators.
    fn add_weighted_values(
        &mut self,
        s: S,
        query_tile: &QueryTile<'_>,
        pass: &KeyBlockPass<'_>,
        work: &mut BlockScratch,
        sums: &mut Accumulators<'_>,
        prefetcher: &mut Prefetcher<'_>,
    );
}

/// Products in f32 on vectors.
struct VectorProducts;

impl<S: Simd> BlockProducts<S> for VectorProducts {
    #[inline(always)]
    fn score(
        &mut self,
        s: S,
        query_tile: &QueryTile<'_>,
        pass: &KeyBlockPass<'_>,
        work: &mut BlockScratch,
        prefetcher: &mut Prefetcher<'_>,
    ) {
        let keys = BlockKeys::new(pass.segments, query_tile.kv.keys);
        query_tile.score(s, pass.rows.clone(), &keys, work, prefetcher);
    }

    #[inline(always)]
    fn add_weighted_values(
        &mut self,
        s: S,
        query_tile: &QueryTile<'_>,
        pass: &KeyBlockPass<'_>,
        work: &mut BlockScratch,
        sums: &mut Accumulators<'_>,
        prefetcher: &mut Prefetcher<'_>,
    ) {
        let rows = pass.rows.clone();
        query_tile.add_weighted_values(s, rows, pass.segments, work, sums, prefetcher);
    }
}

/// The weighted values and the softmax state of a tile's rows.
struct Accumulators<'a> {
    /// The weighted values, row after row in the order of the tile.
    weighted: &'a mut [f32],
    /// The sums of weights by lane, which are added up at the end of a KV split.
    weight_sums: [[f32; LANES]; MAX_TILE_ROWS],
    states: [SoftmaxState; MAX_TILE_ROWS],
}

impl<'a> Accumulators<'a> {
    /// Uninitialised memory for the rows of any tile.
    #[inline(always)]
    fn buffer() -> [MaybeUninit<f32>; MAX_TILE_ROWS * FULL_TILE_VALUE_DIM] {
        [MaybeUninit::uninit(); MAX_TILE_ROWS * FULL_TILE_VALUE_DIM]
    }

    /// Accumulators of `count` zeros.
    #[inline(always)]
    fn new(buffer: &'a mut [MaybeUninit<f32>], count: usize) -> Accumulators<'a> {
        let weighted = &mut buffer[..count];
        weighted.fill(MaybeUninit::new(0.0));
        Accumulators {
            // SAFETY: the elements have just been written.
            weighted: unsafe {
                std::slice::from_raw_parts_mut(weighted.as_mut_ptr().cast(), count)
            },
            weight_sums: [[0.0; LANES]; MAX_TILE_ROWS],
            states: [SoftmaxState::NOTHING; MAX_TILE_ROWS],
        }
    }
}

/// The kernel for some KV splits of a query tile.
struct AttentionKernel<'a> {
    query_tile: QueryTile<'a>,
    kv_splits: Range<usize>,
    /// Where the result of a single KV split is stored, and its index in the step; `None` to merge all splits here.
    split_output: Option<(&'a SplitResults<'a>, usize)>,
    scratch: &'a mut BlockScratch,
    prefetcher: Prefetcher<'a>,
}

fn run_tile(
    ctx: &Context<'_>,
    thread: usize,
    mut query_tile: QueryTile<'_>,
    kv_splits: Range<usize>,
    split_output: Option<(&SplitResults<'_>, usize)>,
) {
    if query_tile.keys_are_rotated && query_tile.rotated_q.is_null() {
        return ROTATED_QUERIES.with_borrow_mut(|rotated| {
            query_tile.rotate_queries(rotated);
            run_tile(ctx, thread, query_tile, kv_splits, split_output);
        });
    }
    BLOCK_SCRATCH.with_borrow_mut(|scratch| {
        let kernel = AttentionKernel {
            query_tile,
            kv_splits,
            split_output,
            scratch,
            prefetcher: ctx.threads.prefetch_plan(thread).prefetcher(),
        };
        #[cfg(target_arch = "x86_64")]
        if ctx.isa.has_tiles() && tiles::fits(kernel.query_tile.op, &kernel.query_tile.kv) {
            return tiles::with_scratch(|scratch| {
                ctx.isa.run_tiles(TileAttention(kernel, scratch))
            });
        }
        ctx.isa.run(kernel);
    });
}

impl Kernel for AttentionKernel<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.attend(s, VectorProducts);
    }
}

/// The kernel with products on matrix tiles.
#[cfg(target_arch = "x86_64")]
struct TileAttention<'a>(AttentionKernel<'a>, &'a mut tiles::TileScratch);

#[cfg(target_arch = "x86_64")]
impl TileKernel for TileAttention<'_> {
    #[inline(always)]
    fn run(self, s: Avx512<true>) {
        let TileAttention(kernel, scratch) = self;
        // SAFETY: `run_tile` takes this path only on a tier with tiles.
        let products = unsafe { tiles::TileProducts::new(s, &kernel.query_tile, scratch) };
        kernel.attend(s, products);
    }
}

impl AttentionKernel<'_> {
    #[inline(always)]
    fn attend<S: Simd>(self, s: S, mut products: impl BlockProducts<S>) {
        let AttentionKernel {
            query_tile,
            kv_splits,
            split_output,
            scratch,
            mut prefetcher,
        } = self;
        let (rows, dim) = (
            query_tile.queries.len() * query_tile.heads,
            query_tile.op.value_dim,
        );
        let mut buffer = Accumulators::buffer();
        let mut all = [SoftmaxState::NOTHING; MAX_TILE_ROWS];
        for kv_split in kv_splits {
            let mut sums = Accumulators::new(&mut buffer, rows * dim);
            let positions = kv_split * KV_SPLIT..(kv_split + 1) * KV_SPLIT;
            let mut passes = KeyBlockPasses::new(&query_tile, positions);
            while let Some(pass) = passes.next() {
                query_tile.pass(s, &mut products, &pass, scratch, &mut sums, &mut prefetcher);
            }
            for row in 0..rows {
                // SAFETY: a row of weight sums is a vector.
                sums.states[row].sum =
                    s.reduce_sum(unsafe { s.load(sums.weight_sums[row].as_ptr()) });
            }
            for row in 0..rows {
                let (state, weighted) = (sums.states[row], &sums.weighted[row * dim..][..dim]);
                // SAFETY: both hold a row; only this task writes the row of the output, or the row's split.
                unsafe {
                    if let Some((results, index)) = split_output {
                        results.put(query_tile.output_row(row), index, state, weighted);
                    } else {
                        let out = query_tile.out_row(row);
                        merge(s, dim, &mut all[row], out, state, weighted.as_ptr());
                    }
                }
            }
        }
        if split_output.is_none() {
            for (row, state) in all.iter().enumerate().take(rows) {
                // SAFETY: a row of the output, and its head.
                unsafe {
                    let state = query_tile.sinks.add(*state, query_tile.output_row(row));
                    kv_splits::finish(s, dim, state, query_tile.out_row(row));
                }
            }
        }
    }
}

/// Thread-local scratch of a pass over a block; nothing is kept from one pass to the next.
struct BlockScratch {
    scores: Scores,
    /// The decoded keys of the block, then its values.
    decoded: DecodedBlock,
}

thread_local! {
    /// The rotated queries of the tile that runs.
    static ROTATED_QUERIES: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
    static BLOCK_SCRATCH: RefCell<BlockScratch> = const {
        RefCell::new(BlockScratch {
            scores: [[0.0; KEY_BLOCK]; SCORE_ROWS],
            decoded: DecodedBlock::new(),
        })
    };
}

impl QueryTile<'_> {
    #[inline(always)]
    fn pass<S: Simd>(
        &self,
        s: S,
        products: &mut impl BlockProducts<S>,
        pass: &KeyBlockPass<'_>,
        scratch: &mut BlockScratch,
        sums: &mut Accumulators<'_>,
        prefetcher: &mut Prefetcher<'_>,
    ) {
        products.score(s, self, pass, scratch, prefetcher);
        s.call(BlockSoftmax {
            query_tile: self,
            pass,
            scores: &mut scratch.scores,
            sums,
        });
        products.add_weighted_values(s, self, pass, scratch, sums, prefetcher);
    }

    /// Rotates the queries of the tile into a buffer, and reads them there from now on.
    fn rotate_queries(&mut self, rotated: &mut Vec<f32>) {
        let (rows, dim) = (self.queries.len() * self.heads, self.op.key_dim);
        rotated.clear();
        for row in 0..rows {
            // SAFETY: a row of queries has as many elements as a key.
            let query = unsafe { std::slice::from_raw_parts(self.q_row(row), dim) };
            rotated.extend_from_slice(query);
        }
        rotated.chunks_exact_mut(dim).for_each(hadamard);
        self.rotated_q = rotated.as_ptr();
    }

    /// The row's index in the output: its token and query head.
    #[inline(always)]
    fn output_row(&self, row: usize) -> usize {
        (self.queries.start + row / self.heads) * self.op.heads + self.first_head + row % self.heads
    }

    #[inline(always)]
    fn q_row(&self, row: usize) -> *const f32 {
        if !self.rotated_q.is_null() {
            // SAFETY: the buffer has every row of the tile.
            return unsafe { self.rotated_q.add(row * self.op.key_dim) };
        }
        // SAFETY: `CachedAttention::run`'s caller guarantees every query.
        unsafe { self.q.at(self.output_row(row) * self.op.key_dim) }
    }

    #[inline(always)]
    fn out_row(&self, row: usize) -> *mut f32 {
        // SAFETY: `CachedAttention::run`'s caller guarantees every output row.
        unsafe { self.out.at(self.output_row(row) * self.op.value_dim) }
    }
}
