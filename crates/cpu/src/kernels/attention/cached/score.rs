//! The dot products of queries with the keys of a block.

use super::decoded_block::{DEPTH, Decoded};
use super::segments::Segment;
use super::{BATCH, FEW, Item, Scores, Work};
use crate::kernels::decode::kv_rows::{self, Stored};
use crate::kv::HeadRows;
use crate::kv::layout::{RowLayout, TILE};
use crate::prefetch::Reader;
use crate::simd::{LANES, Simd};
use kv::Storage;
use std::ops::Range;

/// The keys of a block.
pub(super) struct Keys<'a> {
    pub(super) segments: &'a [Segment],
    pub(super) side: HeadRows<'a>,
    /// Vectors of columns up to the last key.
    pub(super) vectors: usize,
}

impl<'a> Keys<'a> {
    #[inline(always)]
    pub(super) fn new(segments: &'a [Segment], side: HeadRows<'a>) -> Keys<'a> {
        let end = segments.last().map_or(0, |segment| segment.end);
        Keys {
            segments,
            side,
            vectors: end.div_ceil(LANES),
        }
    }
}

/// Keys that lie in whole tiles, a vector of columns each.
struct Tiles {
    at: *const u8,
    /// Bytes of a tile, and of an element.
    bytes: usize,
    element: usize,
    vectors: Range<usize>,
}

impl Keys<'_> {
    /// The tiles of the block's keys, where these are one segment and columns are to tiles as vectors are.
    #[inline(always)]
    fn tiles(&self) -> Option<Tiles> {
        let (RowLayout::Turned { row_bytes, element }, [segment]) =
            (self.side.layout, self.segments)
        else {
            return None;
        };
        let (bytes, first) = segment.place(&self.side);
        let vectors = segment.start / LANES..self.vectors;
        let tile = first / TILE;
        let whole = (tile + vectors.len()) * TILE * row_bytes <= bytes.len();
        let aligned = first % TILE == segment.start % LANES;
        (whole && aligned).then(|| Tiles {
            at: bytes[tile * TILE * row_bytes..].as_ptr(),
            bytes: TILE * row_bytes,
            element,
            vectors,
        })
    }
}

impl Item<'_> {
    /// Dot products of the query rows with all keys of the block. Columns without a key get numbers without a meaning.
    ///
    /// Keys have positions in lanes, or are turned over so first, some dimensions at a time: then one query number serves
    /// sixteen keys, and nothing is summed across lanes. A score is one chain of multiply-adds along the dimensions.
    #[inline(always)]
    pub(super) fn score<S: Simd>(
        &self,
        s: S,
        rows: Range<usize>,
        keys: &Keys<'_>,
        work: &mut Work,
        reader: &mut Reader<'_>,
    ) {
        let Work { scores, decoded } = work;
        let dim = self.op.key_dim;
        if rows.len() <= FEW
            && let Some(tiles) = keys.tiles()
        {
            let storage = keys.side.storage;
            match storage {
                Storage::F32 => {
                    self.score_tiles::<S, kv_rows::F32>(s, rows, &tiles, scores, reader)
                }
                Storage::BF16 => {
                    self.score_tiles::<S, kv_rows::Bf16>(s, rows, &tiles, scores, reader)
                }
                _ => self.score_tiles::<S, kv_rows::F16>(s, rows, &tiles, scores, reader),
            }
            return;
        }
        for from in (0..dim).step_by(DEPTH) {
            let dims = from..dim.min(from + DEPTH);
            decoded.keys(s, keys, dims.clone(), dim, reader);
            for first in rows.clone().step_by(BATCH) {
                match rows.end - first {
                    1 => self.score_batch::<S, 1>(s, keys, decoded, dims.clone(), first, scores),
                    2 => self.score_batch::<S, 2>(s, keys, decoded, dims.clone(), first, scores),
                    3 => self.score_batch::<S, 3>(s, keys, decoded, dims.clone(), first, scores),
                    4 => self.score_batch::<S, 4>(s, keys, decoded, dims.clone(), first, scores),
                    5 => self.score_batch::<S, 5>(s, keys, decoded, dims.clone(), first, scores),
                    _ => {
                        self.score_batch::<S, BATCH>(s, keys, decoded, dims.clone(), first, scores)
                    }
                }
            }
        }
    }

    /// The same, in the same order, for few rows and keys that lie in whole tiles: these are read where they are.
    #[inline(always)]
    fn score_tiles<S: Simd, E: Stored>(
        &self,
        s: S,
        rows: Range<usize>,
        tiles: &Tiles,
        scores: &mut Scores,
        reader: &mut Reader<'_>,
    ) {
        match rows.len() {
            1 => self.score_few::<S, E, 1>(s, tiles, rows.start, scores, reader),
            2 => self.score_few::<S, E, 2>(s, tiles, rows.start, scores, reader),
            3 => self.score_few::<S, E, 3>(s, tiles, rows.start, scores, reader),
            _ => self.score_few::<S, E, FEW>(s, tiles, rows.start, scores, reader),
        }
    }

    #[inline(always)]
    fn score_few<S: Simd, E: Stored, const R: usize>(
        &self,
        s: S,
        tiles: &Tiles,
        first: usize,
        scores: &mut Scores,
        reader: &mut Reader<'_>,
    ) {
        let mut vector = tiles.vectors.start;
        while vector < tiles.vectors.end {
            if S::TILE.0 >= 4 && vector + 4 <= tiles.vectors.end {
                self.score_few_vectors::<S, E, R, 4>(s, tiles, vector, first, scores, reader);
                vector += 4;
            } else {
                self.score_few_vectors::<S, E, R, 1>(s, tiles, vector, first, scores, reader);
                vector += 1;
            }
        }
    }

    #[inline(always)]
    fn score_few_vectors<S: Simd, E: Stored, const R: usize, const V: usize>(
        &self,
        s: S,
        tiles: &Tiles,
        vector: usize,
        first: usize,
        scores: &mut Scores,
        reader: &mut Reader<'_>,
    ) {
        let mut sums = [[s.zero(); V]; R];
        // SAFETY: every query row holds all dimensions, the tiles lie inside the side's bytes, and a row of scores holds
        // whole vectors.
        unsafe {
            let mut queries = [std::ptr::null::<f32>(); R];
            for r in 0..R {
                queries[r] = self.q_row(first + r);
            }
            let start = tiles.at.add((vector - tiles.vectors.start) * tiles.bytes);
            for d in 0..self.op.key_dim {
                reader.used(V * TILE * tiles.element);
                for v in 0..V {
                    let from = start.add(v * tiles.bytes + d * TILE * tiles.element);
                    let k = E::load(s, from, 0, TILE);
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
        keys: &Keys<'_>,
        decoded: &Decoded,
        dims: Range<usize>,
        first: usize,
        scores: &mut Scores,
    ) {
        let mut vector = 0;
        while vector < keys.vectors {
            // As many vectors at once as leave the sums in registers.
            if S::TILE.0 >= 4 && vector + 4 <= keys.vectors {
                self.score_vectors::<S, R, 4>(s, decoded, dims.clone(), first, vector, scores);
                vector += 4;
            } else if S::TILE.0 >= 4 && vector + 2 <= keys.vectors {
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
        decoded: &Decoded,
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
