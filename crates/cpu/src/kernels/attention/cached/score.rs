//! The dot products of queries with the keys of a block.

use super::decoded_block::{DEPTH, DecodedBlock};
use super::segments::Segment;
use super::{BlockScratch, MAX_UNDECODED_ROWS, QueryTile, REGISTER_ROWS, Scores};
use crate::kernels::decode::kv_rows::{self, KvDecoder};
use crate::kv::HeadRows;
use crate::kv::layout::{RowLayout, TILE_CELLS};
use crate::prefetch::Prefetcher;
use crate::simd::{LANES, Simd};
use kv::Storage;
use std::ops::Range;

/// The keys of a block.
pub(super) struct BlockKeys<'a> {
    pub(super) segments: &'a [Segment],
    pub(super) side: HeadRows<'a>,
    /// Vectors of columns up to the last key.
    pub(super) vectors: usize,
}

impl<'a> BlockKeys<'a> {
    #[inline(always)]
    pub(super) fn new(segments: &'a [Segment], side: HeadRows<'a>) -> BlockKeys<'a> {
        let end = segments.last().map_or(0, |segment| segment.end);
        BlockKeys {
            segments,
            side,
            vectors: end.div_ceil(LANES),
        }
    }
}

/// Keys that fill whole stored tiles, one vector of columns each.
struct KeyTiles {
    at: *const u8,
    /// Bytes of a tile, and of an element.
    bytes: usize,
    element: usize,
    vectors: Range<usize>,
}

impl BlockKeys<'_> {
    /// The stored tiles of the block's keys, if the keys are one segment whose columns are aligned with the tiles.
    #[inline(always)]
    fn tiles(&self) -> Option<KeyTiles> {
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
        let dim = self.op.key_dim;
        if rows.len() <= MAX_UNDECODED_ROWS
            && let Some(tiles) = keys.tiles()
        {
            let storage = keys.side.storage;
            match storage {
                Storage::F32 => {
                    self.score_tiles::<S, kv_rows::F32>(s, rows, &tiles, scores, prefetcher)
                }
                Storage::BF16 => {
                    self.score_tiles::<S, kv_rows::Bf16>(s, rows, &tiles, scores, prefetcher)
                }
                _ => self.score_tiles::<S, kv_rows::F16>(s, rows, &tiles, scores, prefetcher),
            }
            return;
        }
        for from in (0..dim).step_by(DEPTH) {
            let dims = from..dim.min(from + DEPTH);
            decoded.keys(s, keys, dims.clone(), dim, prefetcher);
            for first in rows.clone().step_by(REGISTER_ROWS) {
                match rows.end - first {
                    1 => self.score_batch::<S, 1>(s, keys, decoded, dims.clone(), first, scores),
                    2 => self.score_batch::<S, 2>(s, keys, decoded, dims.clone(), first, scores),
                    3 => self.score_batch::<S, 3>(s, keys, decoded, dims.clone(), first, scores),
                    4 => self.score_batch::<S, 4>(s, keys, decoded, dims.clone(), first, scores),
                    5 => self.score_batch::<S, 5>(s, keys, decoded, dims.clone(), first, scores),
                    _ => self.score_batch::<S, REGISTER_ROWS>(
                        s,
                        keys,
                        decoded,
                        dims.clone(),
                        first,
                        scores,
                    ),
                }
            }
        }
    }

    /// As `score`, in the same order, for few rows and keys in whole tiles, which are read in place.
    #[inline(always)]
    fn score_tiles<S: Simd, E: KvDecoder>(
        &self,
        s: S,
        rows: Range<usize>,
        tiles: &KeyTiles,
        scores: &mut Scores,
        prefetcher: &mut Prefetcher<'_>,
    ) {
        match rows.len() {
            1 => self.score_few::<S, E, 1>(s, tiles, rows.start, scores, prefetcher),
            2 => self.score_few::<S, E, 2>(s, tiles, rows.start, scores, prefetcher),
            3 => self.score_few::<S, E, 3>(s, tiles, rows.start, scores, prefetcher),
            _ => {
                self.score_few::<S, E, MAX_UNDECODED_ROWS>(s, tiles, rows.start, scores, prefetcher)
            }
        }
    }

    #[inline(always)]
    fn score_few<S: Simd, E: KvDecoder, const R: usize>(
        &self,
        s: S,
        tiles: &KeyTiles,
        first: usize,
        scores: &mut Scores,
        prefetcher: &mut Prefetcher<'_>,
    ) {
        let mut vector = tiles.vectors.start;
        while vector < tiles.vectors.end {
            if S::REGISTER_TILE.0 >= 4 && vector + 4 <= tiles.vectors.end {
                self.score_few_vectors::<S, E, R, 4>(s, tiles, vector, first, scores, prefetcher);
                vector += 4;
            } else {
                self.score_few_vectors::<S, E, R, 1>(s, tiles, vector, first, scores, prefetcher);
                vector += 1;
            }
        }
    }

    #[inline(always)]
    fn score_few_vectors<S: Simd, E: KvDecoder, const R: usize, const V: usize>(
        &self,
        s: S,
        tiles: &KeyTiles,
        vector: usize,
        first: usize,
        scores: &mut Scores,
        prefetcher: &mut Prefetcher<'_>,
    ) {
        let mut sums = [[s.zero(); V]; R];
        // SAFETY: every query row holds all dimensions, the tiles lie inside the stored bytes, and a row of scores
        // holds whole vectors.
        unsafe {
            let mut queries = [std::ptr::null::<f32>(); R];
            for r in 0..R {
                queries[r] = self.q_row(first + r);
            }
            let start = tiles.at.add((vector - tiles.vectors.start) * tiles.bytes);
            for d in 0..self.op.key_dim {
                prefetcher.consumed(V * TILE_CELLS * tiles.element);
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
                    let at = scores[first + r].as_mut_ptr().add((vector + v) * LANES);
                    s.store(at, sums[r][v]);
                }
            }
        }
    }

    #[inline(always)]
    fn score_batch<S: Simd, const R: usize>(
        &self,
        s: S,
        keys: &BlockKeys<'_>,
        decoded: &DecodedBlock,
        dims: Range<usize>,
        first: usize,
        scores: &mut Scores,
    ) {
        let mut vector = 0;
        while vector < keys.vectors {
            // As many vectors at once as keep the sums in registers.
            if S::REGISTER_TILE.0 >= 4 && vector + 4 <= keys.vectors {
                self.score_vectors::<S, R, 4>(s, decoded, dims.clone(), first, vector, scores);
                vector += 4;
            } else if S::REGISTER_TILE.0 >= 4 && vector + 2 <= keys.vectors {
                self.score_vectors::<S, R, 2>(s, decoded, dims.clone(), first, vector, scores);
                vector += 2;
            } else {
                self.score_vectors::<S, R, 1>(s, decoded, dims.clone(), first, vector, scores);
                vector += 1;
            }
        }
    }

    #[inline(always)]
    fn score_vectors<S: Simd, const R: usize, const V: usize>(
        &self,
        s: S,
        decoded: &DecodedBlock,
        dims: Range<usize>,
        first: usize,
        vector: usize,
        scores: &mut Scores,
    ) {
        let mut sums = [[s.zero(); V]; R];
        // SAFETY: every query row holds these dimensions, and a row of the block whole vectors.
        unsafe {
            if dims.start > 0 {
                for r in 0..R {
                    for v in 0..V {
                        let at = scores[first + r].as_ptr().add((vector + v) * LANES);
                        sums[r][v] = s.load(at);
                    }
                }
            }
            let mut queries = [std::ptr::null::<f32>(); R];
            for r in 0..R {
                queries[r] = self.q_row(first + r).add(dims.start);
            }
            for d in 0..dims.len() {
                let row = decoded.key(d, vector);
                for v in 0..V {
                    let k = s.load(row.add(v * LANES));
                    for r in 0..R {
                        sums[r][v] = s.fma(s.splat(*queries[r].add(d)), k, sums[r][v]);
                    }
                }
            }
            for r in 0..R {
                for v in 0..V {
                    let at = scores[first + r].as_mut_ptr().add((vector + v) * LANES);
                    s.store(at, sums[r][v]);
                }
            }
        }
    }
}
