//! The dot products of queries with the keys of a block.

use super::segments::Segment;
use super::{BATCH, BLOCK, Item, Scores};
use crate::kernels::stored::{Stored, with_storage};
use crate::kv::HeadRows;
use crate::simd::{LANES, Simd};
use kv::Storage;
use std::ops::Range;

/// Dimensions of the keys that are turned over together.
const DEPTH: usize = 64;

/// A block's keys, by dimension.
#[repr(align(64))]
pub(super) struct Turned([[f32; BLOCK]; DEPTH]);

impl Turned {
    #[inline(always)]
    pub(super) fn new() -> Turned {
        Turned([[0.0; BLOCK]; DEPTH])
    }

    /// Takes some dimensions of the keys, whose rows are of this storage type and `dim` long.
    #[inline(always)]
    fn turn<S: Simd>(
        &mut self,
        s: S,
        keys: &KeyRows,
        storage: Storage,
        dims: Range<usize>,
        dim: usize,
    ) {
        let mut plain = [[0.0f32; DEPTH]; LANES];
        for vector in 0..keys.vectors {
            let rows = &keys.rows[vector * LANES..][..LANES];
            with_storage!(storage, E => decode::<S, E>(s, rows, dims.clone(), dim, &mut plain));
            for chunk in 0..dims.len().div_ceil(LANES) {
                let mut square = [s.zero(); LANES];
                for lane in 0..LANES {
                    // SAFETY: a row of `plain` holds whole vectors.
                    square[lane] = unsafe { s.load(plain[lane].as_ptr().add(chunk * LANES)) };
                }
                let square = s.transpose(square);
                for i in 0..LANES {
                    let to = &mut self.0[chunk * LANES + i][vector * LANES..];
                    // SAFETY: a row of the block holds whole vectors, and this one's index is below their number.
                    unsafe { s.store(to.as_mut_ptr(), square[i]) };
                }
            }
        }
    }
}

/// Decodes some dimensions of some rows; rows that are not there become zeros.
#[inline(always)]
fn decode<S: Simd, E: Stored>(
    s: S,
    rows: &[*const u8],
    dims: Range<usize>,
    dim: usize,
    plain: &mut [[f32; DEPTH]; LANES],
) {
    for (row, plain) in rows.iter().zip(plain) {
        for chunk in 0..dims.len().div_ceil(LANES) {
            let at = dims.start / LANES + chunk;
            // SAFETY: an address that is not null is that of a stored row of `dim` elements; a row of `plain` holds whole
            // vectors.
            unsafe {
                let v = if row.is_null() {
                    s.zero()
                } else if (at + 1) * LANES <= dim {
                    E::load(s, *row, at, dim)
                } else {
                    E::load_part(s, *row, at, dim)
                };
                s.store(plain.as_mut_ptr().add(chunk * LANES), v);
            }
        }
    }
}

/// Where the keys of a block are, by column; null where there is none.
pub(super) struct KeyRows {
    rows: [*const u8; BLOCK],
    /// Vectors of columns up to the last key.
    vectors: usize,
}

impl KeyRows {
    #[inline(always)]
    pub(super) fn new(segments: &[Segment], keys: &HeadRows<'_>) -> KeyRows {
        let mut rows = [std::ptr::null(); BLOCK];
        let mut end = 0;
        for segment in segments {
            let stored = segment.rows(keys);
            for column in segment.start..segment.end {
                let at = (column - segment.start) * keys.row_bytes;
                rows[column] = stored[at..][..keys.row_bytes].as_ptr();
            }
            end = segment.end;
        }
        KeyRows {
            rows,
            vectors: end.div_ceil(LANES),
        }
    }
}

impl Item<'_> {
    /// Dot products of the query rows with all keys of the block. Columns without a key get numbers without a meaning.
    ///
    /// Keys are turned over first, positions to lanes, some dimensions at a time: then one query number serves sixteen
    /// keys, and nothing is summed across lanes. A score is one chain of multiply-adds along the dimensions.
    #[inline(always)]
    pub(super) fn score<S: Simd>(
        &self,
        s: S,
        rows: Range<usize>,
        keys: &KeyRows,
        turned: &mut Turned,
        scores: &mut Scores,
    ) {
        let dim = self.op.key_dim;
        for from in (0..dim).step_by(DEPTH) {
            let dims = from..dim.min(from + DEPTH);
            turned.turn(s, keys, self.kv.keys.storage, dims.clone(), dim);
            for first in rows.clone().step_by(BATCH) {
                match rows.end - first {
                    1 => self.score_batch::<S, 1>(s, keys, turned, dims.clone(), first, scores),
                    2 => self.score_batch::<S, 2>(s, keys, turned, dims.clone(), first, scores),
                    3 => self.score_batch::<S, 3>(s, keys, turned, dims.clone(), first, scores),
                    4 => self.score_batch::<S, 4>(s, keys, turned, dims.clone(), first, scores),
                    5 => self.score_batch::<S, 5>(s, keys, turned, dims.clone(), first, scores),
                    _ => self.score_batch::<S, BATCH>(s, keys, turned, dims.clone(), first, scores),
                }
            }
        }
    }

    #[inline(always)]
    fn score_batch<S: Simd, const R: usize>(
        &self,
        s: S,
        keys: &KeyRows,
        turned: &Turned,
        dims: Range<usize>,
        first: usize,
        scores: &mut Scores,
    ) {
        let mut vector = 0;
        while vector < keys.vectors {
            // As many vectors at once as leave the sums in registers.
            if S::TILE.0 >= 4 && vector + 4 <= keys.vectors {
                self.score_vectors::<S, R, 4>(s, turned, dims.clone(), first, vector, scores);
                vector += 4;
            } else if S::TILE.0 >= 4 && vector + 2 <= keys.vectors {
                self.score_vectors::<S, R, 2>(s, turned, dims.clone(), first, vector, scores);
                vector += 2;
            } else {
                self.score_vectors::<S, R, 1>(s, turned, dims.clone(), first, vector, scores);
                vector += 1;
            }
        }
    }

    #[inline(always)]
    fn score_vectors<S: Simd, const R: usize, const V: usize>(
        &self,
        s: S,
        turned: &Turned,
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
                let row = turned.0[d].as_ptr().add(vector * LANES);
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
