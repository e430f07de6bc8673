//! Keys and values as the right side of tile products.

use super::decoded_block::DecodedBlock;
use super::score::KeyTiles;
use super::segments::Segment;
use crate::kernels::decode::kv_rows::{self, KvDecoder};
use crate::kv::HeadRows;
use crate::prefetch::Prefetcher;
use crate::simd::{Avx512, LANES, Simd};
use backend::TILE_CELLS;
use kv::KvStorage;
use std::ops::Range;

/// The only tier with AMX tiles.
type S = Avx512<true>;

/// The largest dimension of keys and values.
pub(super) const MAX_DIM: usize = 256;
/// The depth of a bf16 tile.
pub(super) const TILE_DEPTH: usize = 32;
/// Bytes of a tile.
const TILE_BYTES: usize = 1024;
/// Bytes of 64 columns of a step of the depth: four tiles of the higher parts, then four of the lower ones.
const STEP_BYTES: usize = 8 * TILE_BYTES;

/// 64 columns of the right side of products, in steps of the depth: pairs of rows, column by column, in two bf16 parts.
#[repr(align(64))]
pub(super) struct Columns([u8; MAX_DIM / TILE_DEPTH * STEP_BYTES]);

impl Columns {
    pub(super) const ZERO: Columns = Columns([0; MAX_DIM / TILE_DEPTH * STEP_BYTES]);

    #[inline(always)]
    pub(super) fn step(&self, step: usize) -> *const u8 {
        self.0[step * STEP_BYTES..].as_ptr()
    }

    /// The first step of a vector of columns.
    #[inline(always)]
    pub(super) fn tile(&self, vector: usize) -> *const u8 {
        self.0[vector * TILE_BYTES..].as_ptr()
    }

    /// Stores two rows of a vector of columns, the first of which is even.
    #[inline(always)]
    fn put<const ROUND: bool>(
        &mut self,
        s: S,
        row: usize,
        vector: usize,
        pair: [<S as Simd>::V; 2],
    ) {
        let at = row / TILE_DEPTH * STEP_BYTES + vector * TILE_BYTES;
        let at = at + row % TILE_DEPTH / 2 * 2 * TILE_DEPTH;
        let to = self.0[at..][..STEP_BYTES / 2 + 2 * TILE_DEPTH].as_mut_ptr();
        // SAFETY: the slice has the pairs of both parts.
        unsafe { s.store_bf16x2_pairs::<ROUND>(pair, to, to.add(STEP_BYTES / 2)) };
    }

    /// Sets some rows to zero.
    #[inline(always)]
    pub(super) fn clear(&mut self, s: S, rows: Range<usize>, vector: usize) {
        for row in rows.step_by(2) {
            self.put::<false>(s, row, vector, [s.zero(); 2]);
        }
    }

    /// Splits some dimensions of a vector of decoded keys.
    #[inline(always)]
    pub(super) fn split_keys<const ROUND: bool>(
        &mut self,
        s: S,
        decoded: &DecodedBlock,
        dims: Range<usize>,
        vector: usize,
    ) {
        for d in (0..dims.len()).step_by(2) {
            let (first, second) = (decoded.key(d, vector), decoded.key(d + 1, vector));
            // SAFETY: a decoded row has whole vectors.
            let pair = unsafe { [s.load(first), s.load(second)] };
            self.put::<ROUND>(s, dims.start + d, vector, pair);
        }
    }

    /// Splits a vector of keys that fills a stored tile.
    #[inline(always)]
    pub(super) fn split_stored_keys(
        &mut self,
        s: S,
        stored: &KeyTiles,
        storage: KvStorage,
        dim: usize,
        vector: usize,
        prefetcher: &mut Prefetcher<'_>,
    ) {
        match storage {
            KvStorage::BF16 => {
                self.split_tile::<kv_rows::Bf16>(s, stored, dim, vector, prefetcher);
            }
            KvStorage::F8E4M3 => {
                self.split_tile::<kv_rows::F8E4m3>(s, stored, dim, vector, prefetcher);
            }
            _ => self.split_tile::<kv_rows::F16>(s, stored, dim, vector, prefetcher),
        }
    }

    #[inline(always)]
    fn split_tile<E: KvDecoder>(
        &mut self,
        s: S,
        stored: &KeyTiles,
        dim: usize,
        vector: usize,
        prefetcher: &mut Prefetcher<'_>,
    ) {
        let row = TILE_CELLS * stored.element;
        for d in (0..dim).step_by(2) {
            prefetcher.consumed(2 * row);
            // SAFETY: the tile lies inside the stored bytes.
            let pair = unsafe {
                let tile = stored
                    .at
                    .add((vector - stored.vectors.start) * stored.bytes);
                [
                    E::load(s, tile.add(d * row), 0, TILE_CELLS),
                    E::load(s, tile.add((d + 1) * row), 0, TILE_CELLS),
                ]
            };
            self.put::<false>(s, d, vector, pair);
        }
    }

    /// Splits the decoded values of a step's keys.
    #[inline(always)]
    pub(super) fn split_values<const ROUND: bool>(
        &mut self,
        s: S,
        decoded: &DecodedBlock,
        dims: usize,
        step: usize,
    ) {
        for key in (step * TILE_DEPTH..(step + 1) * TILE_DEPTH).step_by(2) {
            for vector in 0..dims / LANES {
                // SAFETY: the key is one of the block's, and its row has these dimensions.
                let pair = unsafe {
                    let (first, second) =
                        (decoded.value(key, vector), decoded.value(key + 1, vector));
                    [s.load(first), s.load(second)]
                };
                self.put::<ROUND>(s, key, vector, pair);
            }
        }
    }

    /// Splits some dimensions of the f16 values of a step's keys; keys outside of the segment get zeros.
    #[inline(always)]
    pub(super) fn split_stored_values(
        &mut self,
        s: S,
        segment: &Segment,
        values: &HeadRows<'_>,
        (dims, dim): (Range<usize>, usize),
        step: usize,
        prefetcher: &mut Prefetcher<'_>,
    ) {
        let stored = &segment.rows(values)[..segment.len() * values.row_bytes];
        let used = values.row_bytes * dims.len() / dim;
        let first_vector = dims.start / LANES;
        for key in (step * TILE_DEPTH..(step + 1) * TILE_DEPTH).step_by(2) {
            let inside = |key: usize| key >= segment.start && key < segment.end;
            let row = |key: usize| stored[(key - segment.start) * values.row_bytes..].as_ptr();
            if inside(key) && inside(key + 1) {
                prefetcher.consumed(2 * used);
                let (first, second) = (row(key), row(key + 1));
                for vector in 0..dims.len() / LANES {
                    // SAFETY: the segment has the rows, and a row has these dimensions.
                    let pair = unsafe {
                        [
                            kv_rows::F16::load(s, first, first_vector + vector, dim),
                            kv_rows::F16::load(s, second, first_vector + vector, dim),
                        ]
                    };
                    self.put::<false>(s, key, vector, pair);
                }
                continue;
            }
            for vector in 0..dims.len() / LANES {
                let mut pair = [s.zero(); 2];
                for i in 0..2 {
                    if inside(key + i) {
                        // SAFETY: as above.
                        pair[i] = unsafe {
                            kv_rows::F16::load(s, row(key + i), first_vector + vector, dim)
                        };
                    }
                }
                self.put::<false>(s, key, vector, pair);
            }
        }
    }
}
