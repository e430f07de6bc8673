//! Adds values times softmax weights to the accumulators.

use super::decoded_block::{DEPTH, DecodeValues, DecodedBlock};
use super::segments::Segment;
use super::{
    Accumulators, BlockScratch, KEY_BLOCK, MAX_UNDECODED_ROWS, QueryTile, REGISTER_ROWS, Scores,
};
use crate::kernels::decode::kv_rows::{KvDecoder, with_storage};
use crate::kernels::split_vectors;
use crate::prefetch::Prefetcher;
use crate::simd::{Kernel, LANES, Simd};
use std::marker::PhantomData;
use std::ops::Range;

impl QueryTile<'_> {
    /// Adds the values of a block times their weights to the accumulators.
    ///
    /// Many rows read decoded values, few rows read them in place; either way every sum runs along the columns in
    /// order.
    #[inline(always)]
    pub(super) fn add_weighted_values<S: Simd>(
        &self,
        s: S,
        rows: Range<usize>,
        segments: &[Segment],
        work: &mut BlockScratch,
        sums: &mut Accumulators<'_>,
        prefetcher: &mut Prefetcher<'_>,
    ) {
        let (dim, values) = (self.op.value_dim, &self.kv.values);
        if rows.len() > MAX_UNDECODED_ROWS && dim.is_multiple_of(LANES) {
            let BlockScratch { scores, decoded } = work;
            for from in (0..dim).step_by(DEPTH) {
                let dims = from..dim.min(from + DEPTH);
                with_storage!(values.storage, E => s.call(DecodeValues {
                    block: decoded,
                    segments,
                    side: values,
                    dims: dims.clone(),
                    dim,
                    prefetcher,
                    decoder: PhantomData::<E>,
                }));
                s.call(AddDecodedValues {
                    rows: rows.clone(),
                    decoded,
                    segments,
                    scores,
                    weighted: sums.weighted,
                    dims,
                    dim,
                });
            }
            return;
        }
        with_storage!(values.storage, E => s.call(AddStoredValues {
            query_tile: self,
            rows,
            segments,
            scores: &work.scores,
            weighted: sums.weighted,
            prefetcher,
            decoder: PhantomData::<E>,
        }));
    }
}

/// Adds some dimensions of decoded values times their weights.
struct AddDecodedValues<'a> {
    rows: Range<usize>,
    decoded: &'a DecodedBlock,
    segments: &'a [Segment],
    scores: &'a Scores,
    weighted: &'a mut [f32],
    dims: Range<usize>,
    /// Elements from one row of accumulators to the next.
    dim: usize,
}

impl Kernel for AddDecodedValues<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for first in self.rows.clone().step_by(REGISTER_ROWS) {
            let batch = DecodedValues {
                decoded: self.decoded,
                segments: self.segments,
                weights: self.scores[first..].as_ptr().cast(),
                weighted: self.weighted[first * self.dim + self.dims.start..].as_mut_ptr(),
                dim: self.dim,
            };
            match self.rows.end - first {
                1 => batch.run::<S, 1>(s, self.dims.len()),
                2 => batch.run::<S, 2>(s, self.dims.len()),
                3 => batch.run::<S, 3>(s, self.dims.len()),
                4 => batch.run::<S, 4>(s, self.dims.len()),
                5 => batch.run::<S, 5>(s, self.dims.len()),
                _ => batch.run::<S, REGISTER_ROWS>(s, self.dims.len()),
            }
        }
    }
}

/// Adds values times their weights for few rows; the values are read in place.
struct AddStoredValues<'a, 'p, E> {
    query_tile: &'a QueryTile<'a>,
    rows: Range<usize>,
    segments: &'a [Segment],
    scores: &'a Scores,
    weighted: &'a mut [f32],
    prefetcher: &'a mut Prefetcher<'p>,
    decoder: PhantomData<E>,
}

impl<E: KvDecoder> Kernel for AddStoredValues<'_, '_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let dim = self.query_tile.op.value_dim;
        for segment in self.segments {
            let mut first = self.rows.start;
            while first < self.rows.end {
                let mix = StoredValues {
                    query_tile: self.query_tile,
                    segment: *segment,
                    first: first == self.rows.start,
                    weights: &self.scores[first..],
                    weighted: self.weighted[first * dim..].as_mut_ptr(),
                };
                // The call takes the most rows whose sums fit in registers.
                first += match self.rows.end - first {
                    1 => mix.run::<S, E, 1, 4>(s, self.prefetcher),
                    2 => mix.run::<S, E, 2, 4>(s, self.prefetcher),
                    3 => mix.run::<S, E, 3, 4>(s, self.prefetcher),
                    _ => mix.run::<S, E, MAX_UNDECODED_ROWS, 4>(s, self.prefetcher),
                };
            }
        }
    }
}

/// Some rows that accumulate decoded values.
struct DecodedValues<'a> {
    decoded: &'a DecodedBlock,
    segments: &'a [Segment],
    weights: *const f32,
    weighted: *mut f32,
    /// Elements from one row of accumulators to the next.
    dim: usize,
}

impl DecodedValues<'_> {
    /// Accumulates `R` rows over the decoded dimensions.
    #[inline(always)]
    fn run<S: Simd, const R: usize>(&self, s: S, dims: usize) {
        let vectors = dims / LANES;
        let mut vector = 0;
        while vector < vectors {
            // The tile takes the most vectors whose sums fit in registers.
            if const { S::REGISTER_TILE.0 >= 4 } && vector + 4 <= vectors {
                self.vectors::<S, R, 4>(s, vector);
                vector += 4;
            } else if const { S::REGISTER_TILE.0 >= 4 } && vector + 2 <= vectors {
                self.vectors::<S, R, 2>(s, vector);
                vector += 2;
            } else {
                self.vectors::<S, R, 1>(s, vector);
                vector += 1;
            }
        }
    }

    #[inline(always)]
    fn vectors<S: Simd, const R: usize, const V: usize>(&self, s: S, vector: usize) {
        // SAFETY: there are `R` rows of weights and accumulators, and the segments' values are decoded.
        unsafe {
            let weighted = self.weighted.add(vector * LANES);
            let mut sums = [[s.zero(); V]; R];
            for r in 0..R {
                for v in 0..V {
                    sums[r][v] = s.load(weighted.add(r * self.dim + v * LANES));
                }
            }
            for segment in self.segments {
                for column in segment.start..segment.end {
                    let from = self.decoded.value(column, vector);
                    let mut values = [s.zero(); V];
                    for v in 0..V {
                        values[v] = s.load(from.add(v * LANES));
                    }
                    for r in 0..R {
                        let weight = s.splat(*self.weights.add(r * KEY_BLOCK + column));
                        for v in 0..V {
                            sums[r][v] = s.fma(weight, values[v], sums[r][v]);
                        }
                    }
                }
            }
            for r in 0..R {
                for v in 0..V {
                    s.store(weighted.add(r * self.dim + v * LANES), sums[r][v]);
                }
            }
        }
    }
}

/// Some rows that accumulate the values of a segment, read in place.
struct StoredValues<'a> {
    query_tile: &'a QueryTile<'a>,
    segment: Segment,
    /// Whether these rows are the first to read the values, and so prefetch.
    first: bool,
    weights: &'a [[f32; KEY_BLOCK]],
    weighted: *mut f32,
}

impl StoredValues<'_> {
    /// Accumulates `R` rows, `C` vectors of dimensions at a time; returns `R`.
    #[inline(always)]
    fn run<S: Simd, E: KvDecoder, const R: usize, const C: usize>(
        self,
        s: S,
        prefetcher: &mut Prefetcher<'_>,
    ) -> usize {
        let (chunks, tail) = split_vectors(self.query_tile.op.value_dim);
        let mut chunk = 0;
        while const { C > 1 && S::REGISTER_TILE.0 >= 4 } && chunk + C <= chunks {
            self.chunks::<S, E, R, C>(s, chunk, prefetcher);
            chunk += C;
        }
        while chunk < chunks {
            self.chunks::<S, E, R, 1>(s, chunk, prefetcher);
            chunk += 1;
        }
        if tail > 0 {
            self.tail::<S, E, R>(s, chunks, tail);
        }
        R
    }

    /// The stored rows of the segment, and the bytes of one row.
    #[inline(always)]
    fn rows(&self) -> (*const u8, usize) {
        let values = &self.query_tile.kv.values;
        let count = self.segment.len();
        let rows = &self.segment.rows(values)[..count * values.row_bytes];
        (rows.as_ptr(), values.row_bytes)
    }

    #[inline(always)]
    fn chunks<S: Simd, E: KvDecoder, const R: usize, const C: usize>(
        &self,
        s: S,
        chunk: usize,
        prefetcher: &mut Prefetcher<'_>,
    ) {
        let dim = self.query_tile.op.value_dim;
        let (rows, row_bytes) = self.rows();
        let used = if self.first {
            row_bytes * C * LANES / dim
        } else {
            0
        };
        // SAFETY: there is a stored row for every column of the segment, and `R` rows of weights and accumulators.
        unsafe {
            let mut sums = [[s.zero(); C]; R];
            for r in 0..R {
                for c in 0..C {
                    sums[r][c] = s.load(self.weighted.add(r * dim + (chunk + c) * LANES));
                }
            }
            for column in self.segment.start..self.segment.end {
                let row = rows.add((column - self.segment.start) * row_bytes);
                prefetcher.consumed(used);
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
                    s.store(self.weighted.add(r * dim + (chunk + c) * LANES), sums[r][c]);
                }
            }
        }
    }

    #[inline(always)]
    fn tail<S: Simd, E: KvDecoder, const R: usize>(&self, s: S, chunk: usize, tail: usize) {
        let dim = self.query_tile.op.value_dim;
        let (rows, row_bytes) = self.rows();
        // SAFETY: as above.
        unsafe {
            let at = self.weighted.add(chunk * LANES);
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
