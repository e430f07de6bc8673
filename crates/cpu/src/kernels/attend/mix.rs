//! Values, weighted and added.

use super::segments::Segment;
use super::{BLOCK, Item};
use crate::kernels::split;
use crate::kernels::stored::Stored;
use crate::simd::{LANES, Simd};

/// Some rows to mix a segment's values into.
pub(super) struct Mix<'a> {
    pub(super) item: &'a Item<'a>,
    pub(super) segment: Segment,
    pub(super) ahead: bool,
    pub(super) weights: &'a [[f32; BLOCK]],
    pub(super) mixed: *mut f32,
}

impl Mix<'_> {
    /// `R` rows, `C` vectors of dimensions at a time; how many rows those are.
    #[inline(always)]
    pub(super) fn run<S: Simd, E: Stored, const R: usize, const C: usize>(self, s: S) -> usize {
        let (chunks, tail) = split(self.item.op.value_dim);
        let mut chunk = 0;
        while C > 1 && S::TILE.0 >= 4 && chunk + C <= chunks {
            self.chunks::<S, E, R, C>(s, chunk);
            chunk += C;
        }
        while chunk < chunks {
            self.chunks::<S, E, R, 1>(s, chunk);
            chunk += 1;
        }
        if tail > 0 {
            self.tail::<S, E, R>(s, chunks, tail);
        }
        R
    }

    /// The stored rows of the segment, and the bytes of one.
    #[inline(always)]
    fn rows(&self) -> (*const u8, usize) {
        let values = &self.item.kv.values;
        let count = self.segment.end - self.segment.start;
        let rows = &self.segment.rows(values)[..count * values.row_bytes];
        (rows.as_ptr(), values.row_bytes)
    }

    #[inline(always)]
    fn chunks<S: Simd, E: Stored, const R: usize, const C: usize>(&self, s: S, chunk: usize) {
        let dim = self.item.op.value_dim;
        let (rows, row_bytes) = self.rows();
        let part = row_bytes * chunk * LANES / dim;
        let bytes = row_bytes * C * LANES / dim;
        // SAFETY: a stored row is there for every column of the segment, and `R` rows of weights and sums.
        unsafe {
            let mut sums = [[s.zero(); C]; R];
            for r in 0..R {
                for c in 0..C {
                    sums[r][c] = s.load(self.mixed.add(r * dim + (chunk + c) * LANES));
                }
            }
            for column in self.segment.start..self.segment.end {
                let row = rows.add((column - self.segment.start) * row_bytes);
                if self.ahead {
                    let next = row.wrapping_add(BLOCK * row_bytes + part);
                    s.prefetch(next);
                    if C > 2 && bytes > 64 {
                        s.prefetch(next.wrapping_add(64));
                    }
                }
                let mut v = [s.zero(); C];
                for c in 0..C {
                    v[c] = E::load(s, row, chunk + c, dim);
                }
                for r in 0..R {
                    let weight = s.splat(*self.weights.as_ptr().add(r).cast::<f32>().add(column));
                    for c in 0..C {
                        sums[r][c] = s.fma(weight, v[c], sums[r][c]);
                    }
                }
            }
            for r in 0..R {
                for c in 0..C {
                    s.store(self.mixed.add(r * dim + (chunk + c) * LANES), sums[r][c]);
                }
            }
        }
    }

    #[inline(always)]
    fn tail<S: Simd, E: Stored, const R: usize>(&self, s: S, chunk: usize, tail: usize) {
        let dim = self.item.op.value_dim;
        let (rows, row_bytes) = self.rows();
        // SAFETY: as above.
        unsafe {
            let at = self.mixed.add(chunk * LANES);
            let mut sums = [s.zero(); R];
            for r in 0..R {
                sums[r] = s.load_part(at.add(r * dim), tail);
            }
            for column in self.segment.start..self.segment.end {
                let row = rows.add((column - self.segment.start) * row_bytes);
                let v = E::load_part(s, row, chunk, dim);
                for r in 0..R {
                    let weight = s.splat(*self.weights.as_ptr().add(r).cast::<f32>().add(column));
                    sums[r] = s.fma(weight, v, sums[r]);
                }
            }
            for r in 0..R {
                s.store_part(at.add(r * dim), sums[r], tail);
            }
        }
    }
}
