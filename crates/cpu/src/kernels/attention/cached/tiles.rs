//! The products of attention on AMX tiles: queries times keys, and softmax weights times values.
//!
//! AMX multiplies bf16, so every number is split into two bf16 parts. A stored f16, bf16 or FP8 number is the sum of its
//! parts; other numbers are rounded to seventeen bits. The product of both lower parts is left out: it is smaller than
//! that rounding. A row's products do not depend on the rows beside it, and few rows take the same path as many, so a
//! query's bits do not depend on the step.

use super::decoded_block::{DEPTH, DecodeValues};
use super::key_blocks::KeyBlockPass;
use super::segments::BlockKeys;
use super::tile_columns::{Columns, MAX_DIM, TILE_DEPTH};
use super::{
    Accumulators, BlockProducts, BlockScratch, CachedAttention, KEY_BLOCK, QueryTile, SCORE_ROWS,
};
use crate::kernels::decode::kv_rows::with_storage;
use crate::kv::{HeadKv, HeadRows};
use crate::prefetch::Prefetcher;
use crate::simd::amx::{AmxTiles, Bf16x2Rows, TILE_ROWS};
use crate::simd::{Avx512, LANES, Simd};
use kv::KvStorage;
use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::Range;

/// The only tier with AMX tiles.
type S = Avx512<true>;

const _: () = assert!(KEY_BLOCK == 4 * TILE_ROWS && DEPTH == 4 * TILE_ROWS);

/// The fewest query heads per KV head. A single token's keys and values are split for these rows only; with fewer of them, a
/// vector product of each row takes less time than the split.
const MIN_GROUP: usize = 4;

/// Whether the products of an attention are computed on tiles. The number of queries must not matter, so that a row has the
/// same bits in every step. f32 rows have more bits than two parts.
pub(super) fn fits(op: &CachedAttention, kv: &HeadKv<'_>) -> bool {
    let whole = |dim: usize| dim.is_multiple_of(LANES) && (1..=MAX_DIM).contains(&dim);
    let split = |side: &HeadRows<'_>| side.storage != KvStorage::F32;
    op.heads >= MIN_GROUP * op.kv_heads
        && whole(op.key_dim)
        && whole(op.value_dim)
        && split(&kv.keys)
        && split(&kv.values)
}

/// Whether every stored number is the sum of two bf16 parts. The parts of a number must not depend on where it is read.
fn is_exact(storage: KvStorage) -> bool {
    matches!(
        storage,
        KvStorage::F16 | KvStorage::BF16 | KvStorage::F8E4M3
    )
}

/// Operands of tile products, split into parts.
#[repr(C, align(64))]
pub(super) struct TileScratch {
    /// The higher parts of all query rows, then the lower ones; rows are as long as keys, padded to whole tiles.
    queries: [[u16; SCORE_ROWS * MAX_DIM]; 2],
    weights: [[[u16; KEY_BLOCK]; SCORE_ROWS]; 2],
    /// The keys of a block, then some dimensions of its values.
    columns: Columns,
    products: [[f32; DEPTH]; TILE_ROWS],
}

thread_local! {
    static TILE_SCRATCH: RefCell<Box<TileScratch>> = RefCell::new(Box::new(TileScratch {
        queries: [[0; SCORE_ROWS * MAX_DIM]; 2],
        weights: [[[0; KEY_BLOCK]; SCORE_ROWS]; 2],
        columns: Columns::ZERO,
        products: [[0.0; DEPTH]; TILE_ROWS],
    }));
}

/// Calls `f` with the scratch of this thread.
pub(super) fn with_scratch(f: impl FnOnce(&mut TileScratch)) {
    TILE_SCRATCH.with_borrow_mut(|scratch| f(scratch));
}

/// The products of one query tile.
pub(super) struct TileProducts<'a> {
    tiles: AmxTiles,
    scratch: &'a mut TileScratch,
    /// Elements of a split query row.
    query_len: usize,
}

impl<'a> TileProducts<'a> {
    /// Configures the tiles and splits the query rows.
    ///
    /// # Safety
    /// The tier must have tiles.
    #[inline(always)]
    pub(super) unsafe fn new(
        s: S,
        query_tile: &QueryTile<'_>,
        scratch: &'a mut TileScratch,
    ) -> TileProducts<'a> {
        let rows = query_tile.queries.len() * query_tile.heads;
        let dim = query_tile.op.key_dim;
        let query_len = dim.next_multiple_of(TILE_DEPTH);
        let [high, low] = &mut scratch.queries;
        for row in 0..rows {
            let q = query_tile.q_row(row);
            for from in (0..dim).step_by(TILE_DEPTH) {
                let at = row * query_len + from;
                // SAFETY: the query has `dim` elements, whole vectors of them, and the scratch all rows of a tile.
                unsafe {
                    let second = match from + LANES < dim {
                        true => s.load(q.add(from + LANES)),
                        false => s.zero(),
                    };
                    let x = [s.load(q.add(from)), second];
                    let parts = s.split_bf16x2(x);
                    s.store(high[at..].as_mut_ptr().cast(), parts[0]);
                    s.store(low[at..].as_mut_ptr().cast(), parts[1]);
                }
            }
        }
        TileProducts {
            // SAFETY: as the caller guarantees.
            tiles: unsafe { AmxTiles::with_rows(rows) },
            scratch,
            query_len,
        }
    }

    /// The split query rows from `first` on.
    #[inline(always)]
    fn queries(&self, first: usize) -> Bf16x2Rows {
        let [high, low] = &self.scratch.queries;
        let at = first * self.query_len;
        Bf16x2Rows {
            parts: [high[at..].as_ptr().cast(), low[at..].as_ptr().cast()],
            stride: self.query_len * size_of::<u16>(),
        }
    }

    /// The split weights of the rows from `first` on, for the keys of a step.
    #[inline(always)]
    fn weights(&self, first: usize, step: usize) -> Bf16x2Rows {
        let [high, low] = &self.scratch.weights;
        let at = step * TILE_DEPTH;
        Bf16x2Rows {
            parts: [
                high[first][at..].as_ptr().cast(),
                low[first][at..].as_ptr().cast(),
            ],
            stride: size_of_val(&high[0]),
        }
    }

    /// Splits the weights of some rows.
    #[inline(always)]
    fn split_weights(&mut self, s: S, rows: Range<usize>, steps: usize, work: &BlockScratch) {
        let [high, low] = &mut self.scratch.weights;
        for row in rows {
            for at in (0..steps * TILE_DEPTH).step_by(TILE_DEPTH) {
                // SAFETY: a row of weights has two tiles.
                unsafe {
                    let from = work.scores[row].as_ptr().add(at);
                    let x = [s.load(from), s.load(from.add(LANES))];
                    let parts = s.split_bf16x2(x);
                    s.store(high[row][at..].as_mut_ptr().cast(), parts[0]);
                    s.store(low[row][at..].as_mut_ptr().cast(), parts[1]);
                }
            }
        }
    }

    /// Adds the products of a tile of rows to some dimensions of their accumulators.
    #[inline(always)]
    fn add_products(
        &mut self,
        s: S,
        rows: Range<usize>,
        dims: Range<usize>,
        dim: usize,
        sums: &mut Accumulators<'_>,
    ) {
        let products = &mut self.scratch.products;
        // SAFETY: the products have a row for each of a tile, and rows of accumulators have these dimensions.
        unsafe {
            self.tiles
                .store_bf16x2(products.as_mut_ptr().cast(), size_of_val(&products[0]));
            for (product, row) in products.iter().zip(rows) {
                let to = sums.weighted[row * dim + dims.start..].as_mut_ptr();
                for at in (0..dims.len()).step_by(LANES) {
                    let sum = s.add(s.load(to.add(at)), s.load(product.as_ptr().add(at)));
                    s.store(to.add(at), sum);
                }
            }
        }
    }
}

impl BlockProducts<S> for TileProducts<'_> {
    #[inline(always)]
    fn score(
        &mut self,
        s: S,
        query_tile: &QueryTile<'_>,
        pass: &KeyBlockPass<'_>,
        work: &mut BlockScratch,
        prefetcher: &mut Prefetcher<'_>,
    ) {
        let rows = pass.rows.clone();
        let keys = &BlockKeys::new(pass.segments, query_tile.kv.keys);
        let dim = query_tile.op.key_dim;
        let steps = self.query_len / TILE_DEPTH;
        let stored = keys.tiles();
        if stored.is_none() {
            for from in (0..dim).step_by(DEPTH) {
                let dims = from..dim.min(from + DEPTH);
                work.decoded.keys(s, keys, dims.clone(), dim, prefetcher);
                let columns = &mut self.scratch.columns;
                for vector in 0..keys.vectors {
                    let dims = dims.clone();
                    match is_exact(keys.side.storage) {
                        true => columns.split_keys::<false>(s, &work.decoded, dims, vector),
                        false => columns.split_keys::<true>(s, &work.decoded, dims, vector),
                    }
                }
            }
        }
        let out_stride = size_of_val(&work.scores[0]);
        for vector in 0..keys.vectors {
            let columns = &mut self.scratch.columns;
            if let Some(stored) = &stored {
                // Keys in whole stored tiles are split as they are read.
                if !stored.vectors.contains(&vector) {
                    continue;
                }
                columns.split_stored_keys(s, stored, keys.side.storage, dim, vector, prefetcher);
            }
            columns.clear(s, dim..self.query_len, vector);
            if rows.len() > TILE_ROWS {
                continue;
            }
            // The products of a vector of keys are computed while the next one is split.
            // SAFETY: queries, columns and scores have whole tiles of rows, and there is at least one step.
            unsafe {
                let out = work.scores[rows.start].as_mut_ptr().add(vector * LANES);
                let right = self.scratch.columns.tile(vector);
                let left = self.queries(rows.start);
                self.tiles
                    .bf16x2_one_tile(left, right, steps, (out, out_stride));
            }
        }
        if rows.len() <= TILE_ROWS {
            return;
        }
        for first in rows.step_by(TILE_ROWS) {
            self.tiles.zero_accumulators();
            let mut left = self.queries(first);
            for step in 0..steps {
                // SAFETY: as above.
                unsafe {
                    self.tiles
                        .accumulate_bf16x2(left, self.scratch.columns.step(step));
                    left.parts[0] = left.parts[0].add(2 * TILE_DEPTH);
                    left.parts[1] = left.parts[1].add(2 * TILE_DEPTH);
                }
            }
            // SAFETY: as above.
            unsafe {
                self.tiles
                    .store_bf16x2(work.scores[first].as_mut_ptr(), out_stride);
            }
        }
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
        let (rows, segments) = (pass.rows.clone(), pass.segments);
        let (dim, values) = (query_tile.op.value_dim, &query_tile.kv.values);
        let steps = segments.last().map_or(0, |s| s.end).div_ceil(TILE_DEPTH);
        if steps == 0 {
            return;
        }
        self.split_weights(s, rows.clone(), steps, work);
        let in_place = match (segments, values.storage) {
            ([segment], KvStorage::F16) => Some(segment),
            _ => None,
        };
        for from in (0..dim).step_by(DEPTH) {
            let dims = from..dim.min(from + DEPTH);
            if in_place.is_none() {
                with_storage!(values.storage, E => s.call(DecodeValues {
                    block: &mut work.decoded,
                    segments,
                    side: values,
                    dims: dims.clone(),
                    dim,
                    prefetcher,
                    decoder: PhantomData::<E>,
                }));
                work.decoded
                    .clear_missing_values(segments, steps * TILE_DEPTH);
            }
            self.tiles.zero_accumulators();
            for step in 0..steps {
                let columns = &mut self.scratch.columns;
                match in_place {
                    Some(segment) => {
                        let dims = (dims.clone(), dim);
                        columns.split_stored_values(s, segment, values, dims, step, prefetcher);
                    }
                    None if is_exact(values.storage) => {
                        columns.split_values::<false>(s, &work.decoded, dims.len(), step);
                    }
                    None => columns.split_values::<true>(s, &work.decoded, dims.len(), step),
                }
                // The products of a step are computed while the next one is split.
                // SAFETY: weights and columns have whole tiles of rows.
                unsafe {
                    let left = self.weights(rows.start, step);
                    self.tiles
                        .accumulate_bf16x2(left, self.scratch.columns.step(step));
                }
            }
            let first = rows.start..rows.end.min(rows.start + TILE_ROWS);
            self.add_products(s, first.clone(), dims.clone(), dim, sums);
            for first in (first.end..rows.end).step_by(TILE_ROWS) {
                self.tiles.zero_accumulators();
                for step in 0..steps {
                    // SAFETY: as above.
                    unsafe {
                        let left = self.weights(first, step);
                        self.tiles
                            .accumulate_bf16x2(left, self.scratch.columns.step(step));
                    }
                }
                let rows = first..rows.end.min(first + TILE_ROWS);
                self.add_products(s, rows, dims.clone(), dim, sums);
            }
        }
    }
}
