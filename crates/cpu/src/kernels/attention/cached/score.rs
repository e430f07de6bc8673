//! The dot products of queries with the keys of a block.

use super::decoded_block::{DEPTH, DecodedBlock};
use super::segments::BlockKeys;
use super::{BlockScratch, MAX_UNDECODED_ROWS, QueryTile, REGISTER_ROWS, Scores};
use crate::kernels::decode::kv_rows::{self, KvDecoder};
use crate::prefetch::Prefetcher;
use crate::simd::{Kernel, LANES, Simd};
use backend::{RowLayout, TILE_CELLS};
use kv::KvStorage;
use std::marker::PhantomData;
use std::ops::Range;

/// Keys that fill whole stored tiles, one vector of columns each.
pub(super) struct KeyTiles {
    pub(super) at: *const u8,
    /// Bytes of a tile, and of an element.
    pub(super) bytes: usize,
    pub(super) element: usize,
    pub(super) vectors: Range<usize>,
}

impl BlockKeys<'_> {
    /// The stored tiles of the block's keys, if the keys are one segment whose columns are aligned with the tiles.
    #[inline(always)]
    pub(super) fn tiles(&self) -> Option<KeyTiles> {
        let (RowLayout::Transposed { row_bytes, element }, [segment]) =
            (self.side.layout, self.segments)
        else {
            return None;
        };
        let (bytes, first) = segment.stored_rows(&self.side);
        let vectors = segment.start / LANES..self.vectors;
        let tile = first / TILE_CELLS;
        let whole = (tile + vectors.len()) * TILE_CELLS * row_bytes <= bytes.len();
        let aligned = first % TILE_CELLS == segment.start % LANES;
        (whole && aligned).then(|| KeyTiles {
            at: bytes[tile * TILE_CELLS * row_bytes..].as_ptr(),
            bytes: TILE_CELLS * row_bytes,
            element,
            vectors,
        })
    }
}

impl QueryTile<'_> {
    /// Computes the dot products of the query rows with all keys of the block. Columns without a key get arbitrary
    /// numbers.
    ///
    /// Keys are stored with positions in lanes, or are transposed first, some dimensions at a time: one query element
    /// is then multiplied with sixteen keys, and nothing is summed across lanes. A score is one chain of multiply-adds
    /// along the dimensions.
    #[inline(always)]
    pub(super) fn score<S: Simd>(
        &self,
        s: S,
        rows: Range<usize>,
        keys: &BlockKeys<'_>,
        work: &mut BlockScratch,
        prefetcher: &mut Prefetcher<'_>,
    ) {
        let BlockScratch { scores, decoded } = work;
        if rows.len() <= MAX_UNDECODED_ROWS
            && let Some(tiles) = keys.tiles()
        {
            macro_rules! score_tiles {
                ($E:ty) => {
                    s.call(ScoreTiles {
                        query_tile: self,
                        rows,
                        tiles,
                        scores,
                        prefetcher,
                        decoder: PhantomData::<$E>,
                    })
                };
            }
            match keys.side.storage {
                KvStorage::F32 => score_tiles!(kv_rows::F32),
                KvStorage::BF16 => score_tiles!(kv_rows::Bf16),
                KvStorage::F8E4M3 => score_tiles!(kv_rows::F8E4m3),
                _ => score_tiles!(kv_rows::F16),
            }
            return;
        }
        let dim = self.op.key_dim;
        for from in (0..dim).step_by(DEPTH) {
            let dims = from..dim.min(from + DEPTH);
            decoded.keys(s, keys, dims.clone(), dim, prefetcher);
            s.call(ScoreDecoded {
                query_tile: self,
                rows: rows.clone(),
                vectors: keys.vectors,
                dims,
                decoded,
                scores,
            });
        }
    }
}

/// As [`QueryTile::score`], in the same order, for few rows and keys in whole tiles, which are read in place.
struct ScoreTiles<'a, 'p, E> {
    query_tile: &'a QueryTile<'a>,
    rows: Range<usize>,
    tiles: KeyTiles,
    scores: &'a mut Scores,
    prefetcher: &'a mut Prefetcher<'p>,
    decoder: PhantomData<E>,
}

impl<E: KvDecoder> Kernel for ScoreTiles<'_, '_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        match self.rows.len() {
            1 => self.rows::<S, 1>(s),
            2 => self.rows::<S, 2>(s),
            3 => self.rows::<S, 3>(s),
            _ => self.rows::<S, MAX_UNDECODED_ROWS>(s),
        }
    }
}

impl<E: KvDecoder> ScoreTiles<'_, '_, E> {
    #[inline(always)]
    fn rows<S: Simd, const R: usize>(&mut self, s: S) {
        let Range { start, end } = self.tiles.vectors;
        let mut vector = start;
        while vector < end {
            if const { S::REGISTER_TILE.0 >= 4 } && vector + 4 <= end {
                self.vectors::<S, R, 4>(s, vector);
                vector += 4;
            } else {
                self.vectors::<S, R, 1>(s, vector);
                vector += 1;
            }
        }
    }

    #[inline(always)]
    fn vectors<S: Simd, const R: usize, const V: usize>(&mut self, s: S, vector: usize) {
        let (tiles, first) = (&self.tiles, self.rows.start);
        let mut sums = [[s.zero(); V]; R];
        // SAFETY: every query row holds all dimensions, the tiles lie inside the stored bytes, and a row of scores
        // holds whole vectors.
        unsafe {
            let mut queries = [std::ptr::null::<f32>(); R];
            for r in 0..R {
                queries[r] = self.query_tile.q_row(first + r);
            }
            let start = tiles.at.add((vector - tiles.vectors.start) * tiles.bytes);
            for d in 0..self.query_tile.op.key_dim {
                self.prefetcher.consumed(V * TILE_CELLS * tiles.element);
                for v in 0..V {
                    let from = start.add(v * tiles.bytes + d * TILE_CELLS * tiles.element);
                    let k = E::load(s, from, 0, TILE_CELLS);
                    for r in 0..R {
                        sums[r][v] = s.fma(s.splat(*queries[r].add(d)), k, sums[r][v]);
                    }
                }
            }
            for r in 0..R {
                for v in 0..V {
                    let at = self.scores[first + r]
                        .as_mut_ptr()
                        .add((vector + v) * LANES);
                    s.store(at, sums[r][v]);
                }
            }
        }
    }
}

/// The dot products of query rows with the decoded dimensions of a block's keys, added to those of earlier dimensions.
struct ScoreDecoded<'a> {
    query_tile: &'a QueryTile<'a>,
    rows: Range<usize>,
    /// Vectors of columns up to the last key.
    vectors: usize,
    dims: Range<usize>,
    decoded: &'a DecodedBlock,
    scores: &'a mut Scores,
}

impl Kernel for ScoreDecoded<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        for first in self.rows.clone().step_by(REGISTER_ROWS) {
            match self.rows.end - first {
                1 => self.batch::<S, 1>(s, first),
                2 => self.batch::<S, 2>(s, first),
                3 => self.batch::<S, 3>(s, first),
                4 => self.batch::<S, 4>(s, first),
                5 => self.batch::<S, 5>(s, first),
                _ => self.batch::<S, REGISTER_ROWS>(s, first),
            }
        }
    }
}

impl ScoreDecoded<'_> {
    #[inline(always)]
    fn batch<S: Simd, const R: usize>(&mut self, s: S, first: usize) {
        let mut vector = 0;
        while vector < self.vectors {
            // The tile takes the most vectors whose sums fit in registers.
            if const { S::REGISTER_TILE.0 >= 4 } && vector + 4 <= self.vectors {
                self.vectors::<S, R, 4>(s, first, vector);
                vector += 4;
            } else if const { S::REGISTER_TILE.0 >= 4 } && vector + 2 <= self.vectors {
                self.vectors::<S, R, 2>(s, first, vector);
                vector += 2;
            } else {
                self.vectors::<S, R, 1>(s, first, vector);
                vector += 1;
            }
        }
    }

    #[inline(always)]
    fn vectors<S: Simd, const R: usize, const V: usize>(
        &mut self,
        s: S,
        first: usize,
        vector: usize,
    ) {
        let dims = self.dims.clone();
        let mut sums = [[s.zero(); V]; R];
        // SAFETY: every query row holds these dimensions, and a row of the block whole vectors.
        unsafe {
            if dims.start > 0 {
                for r in 0..R {
                    for v in 0..V {
                        let at = self.scores[first + r].as_ptr().add((vector + v) * LANES);
                        sums[r][v] = s.load(at);
                    }
                }
            }
            let mut queries = [std::ptr::null::<f32>(); R];
            for r in 0..R {
                queries[r] = self.query_tile.q_row(first + r).add(dims.start);
            }
            for d in 0..dims.len() {
                let row = self.decoded.key(d, vector);
                for v in 0..V {
                    let k = s.load(row.add(v * LANES));
                    for r in 0..R {
                        sums[r][v] = s.fma(s.splat(*queries[r].add(d)), k, sums[r][v]);
                    }
                }
            }
            for r in 0..R {
                for v in 0..V {
                    let at = self.scores[first + r]
                        .as_mut_ptr()
                        .add((vector + v) * LANES);
                    s.store(at, sums[r][v]);
                }
            }
        }
    }
}
