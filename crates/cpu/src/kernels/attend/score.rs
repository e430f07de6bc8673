//! The dot products of queries with the keys of a block.

use super::segments::Segment;
use super::{BATCH, BLOCK, Item, Scores};
use crate::kernels::stored::{self, Stored, with_storage};
use crate::kv::HeadRows;
use crate::kv::layout::{RowLayout, TILE};
use crate::simd::{LANES, Simd};
use kv::Storage;
use std::ops::Range;

/// Dimensions of the keys that are turned over together.
const DEPTH: usize = 64;
/// Query rows that keys are not laid out anew for.
const FEW: usize = 4;

/// A block's keys, by dimension, with room on both sides for the rest of a tile that begins or ends elsewhere.
#[repr(align(64))]
pub(super) struct Turned([[f32; WIDTH]; DEPTH]);

const WIDTH: usize = LANES + BLOCK + LANES;

impl Turned {
    #[inline(always)]
    pub(super) fn new() -> Turned {
        Turned([[0.0; WIDTH]; DEPTH])
    }

    /// Some dimensions of the keys, whatever their layout.
    #[inline(always)]
    fn fill<S: Simd>(&mut self, s: S, keys: &Keys<'_>, dims: Range<usize>, dim: usize) {
        let storage = keys.side.storage;
        match (keys.side.layout, storage) {
            (RowLayout::Rows { .. }, _) => self.turn(s, keys, storage, dims, dim),
            (_, Storage::F32) => self.copy::<S, stored::F32>(s, keys, dims),
            (_, Storage::BF16) => self.copy::<S, stored::Bf16>(s, keys, dims),
            _ => self.copy::<S, stored::F16>(s, keys, dims),
        }
    }

    /// Takes some dimensions of keys that are stored turned.
    #[inline(always)]
    fn copy<S: Simd, E: Stored>(&mut self, s: S, keys: &Keys<'_>, dims: Range<usize>) {
        let RowLayout::Turned { row_bytes, element } = keys.side.layout else {
            return;
        };
        for segment in keys.segments {
            let (bytes, first) = segment.place(&keys.side);
            let cells = bytes.len() / row_bytes;
            let end = first + (segment.end - segment.start);
            assert!(end <= cells, "a segment's rows exist");
            let mut tile = first / TILE * TILE;
            while tile < end {
                let width = (cells - tile).min(TILE);
                // Where the tile's first cell belongs, counted from the room before the block.
                let column = LANES + segment.start + tile - first;
                // Cells before the segment's first may only be written where no other segment is.
                let keep = if segment.start > 0 {
                    first.saturating_sub(tile)
                } else {
                    0
                };
                for d in dims.clone() {
                    let to = &mut self.0[d - dims.start][column..];
                    // SAFETY: the tile lies inside the side's bytes, and a row of the block has room for a vector from
                    // any column of it on, or one vector before.
                    unsafe {
                        let from = bytes.as_ptr().add(tile * row_bytes + d * width * element);
                        // The next block's, most often.
                        s.prefetch(from.wrapping_add(BLOCK * row_bytes));
                        let v = if width == TILE {
                            E::load(s, from, 0, TILE)
                        } else {
                            E::load_part(s, from, 0, width)
                        };
                        if keep == 0 {
                            s.store(to.as_mut_ptr(), v);
                        } else {
                            let mut lanes = [0.0; LANES];
                            s.store(lanes.as_mut_ptr(), v);
                            to[keep..LANES].copy_from_slice(&lanes[keep..]);
                        }
                    }
                }
                tile += TILE;
            }
        }
    }

    /// Takes some dimensions of the keys, whose rows are of this storage type and `dim` long.
    #[inline(always)]
    fn turn<S: Simd>(
        &mut self,
        s: S,
        keys: &Keys<'_>,
        storage: Storage,
        dims: Range<usize>,
        dim: usize,
    ) {
        let found = KeyRows::new(s, keys);
        let mut plain = [[0.0f32; DEPTH]; LANES];
        for vector in 0..keys.vectors {
            let rows = &found.0[vector * LANES..][..LANES];
            with_storage!(storage, E => decode::<S, E>(s, rows, dims.clone(), dim, &mut plain));
            for chunk in 0..dims.len().div_ceil(LANES) {
                let mut square = [s.zero(); LANES];
                for lane in 0..LANES {
                    // SAFETY: a row of `plain` holds whole vectors.
                    square[lane] = unsafe { s.load(plain[lane].as_ptr().add(chunk * LANES)) };
                }
                let square = s.transpose(square);
                for i in 0..LANES {
                    let to = &mut self.0[chunk * LANES + i][LANES + vector * LANES..];
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

/// The keys of a block.
pub(super) struct Keys<'a> {
    segments: &'a [Segment],
    side: HeadRows<'a>,
    /// Vectors of columns up to the last key.
    vectors: usize,
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

/// Where the keys of a block are, by column; null where there is none.
struct KeyRows([*const u8; BLOCK]);

impl KeyRows {
    #[inline(always)]
    fn new<S: Simd>(s: S, keys: &Keys<'_>) -> KeyRows {
        let mut rows = [std::ptr::null(); BLOCK];
        let row_bytes = keys.side.row_bytes;
        for segment in keys.segments {
            let stored = segment.rows(&keys.side);
            for column in segment.start..segment.end {
                let at = (column - segment.start) * row_bytes;
                rows[column] = stored[at..][..row_bytes].as_ptr();
                for line in (0..row_bytes).step_by(64) {
                    s.prefetch(rows[column].wrapping_add(BLOCK * row_bytes + line));
                }
            }
        }
        KeyRows(rows)
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
        turned: &mut Option<Turned>,
        scores: &mut Scores,
    ) {
        let dim = self.op.key_dim;
        if rows.len() <= FEW
            && let Some(tiles) = keys.tiles()
        {
            let storage = keys.side.storage;
            match storage {
                Storage::F32 => self.score_tiles::<S, stored::F32>(s, rows, &tiles, scores),
                Storage::BF16 => self.score_tiles::<S, stored::Bf16>(s, rows, &tiles, scores),
                _ => self.score_tiles::<S, stored::F16>(s, rows, &tiles, scores),
            }
            return;
        }
        let turned = turned.get_or_insert_with(Turned::new);
        for from in (0..dim).step_by(DEPTH) {
            let dims = from..dim.min(from + DEPTH);
            turned.fill(s, keys, dims.clone(), dim);
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

    /// The same, in the same order, for few rows and keys that lie in whole tiles: these are read where they are.
    #[inline(always)]
    fn score_tiles<S: Simd, E: Stored>(
        &self,
        s: S,
        rows: Range<usize>,
        tiles: &Tiles,
        scores: &mut Scores,
    ) {
        match rows.len() {
            1 => self.score_few::<S, E, 1>(s, tiles, rows.start, scores),
            2 => self.score_few::<S, E, 2>(s, tiles, rows.start, scores),
            3 => self.score_few::<S, E, 3>(s, tiles, rows.start, scores),
            _ => self.score_few::<S, E, FEW>(s, tiles, rows.start, scores),
        }
    }

    #[inline(always)]
    fn score_few<S: Simd, E: Stored, const R: usize>(
        &self,
        s: S,
        tiles: &Tiles,
        first: usize,
        scores: &mut Scores,
    ) {
        let mut vector = tiles.vectors.start;
        while vector < tiles.vectors.end {
            if S::TILE.0 >= 4 && vector + 4 <= tiles.vectors.end {
                self.score_few_vectors::<S, E, R, 4>(s, tiles, vector, first, scores);
                vector += 4;
            } else {
                self.score_few_vectors::<S, E, R, 1>(s, tiles, vector, first, scores);
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
                for v in 0..V {
                    let from = start.add(v * tiles.bytes + d * TILE * tiles.element);
                    // The next block's.
                    s.prefetch(from.wrapping_add(BLOCK / TILE * tiles.bytes));
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
                let row = turned.0[d].as_ptr().add(LANES + vector * LANES);
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
