//! Keys or values of a block as f32, in multiplication order; used by tiles of many rows.

use super::KEY_BLOCK;
use super::segments::{BlockKeys, Segment};
use crate::kernels::decode::kv_rows::{self, KvDecoder, with_storage};
use crate::kv::HeadRows;
use crate::prefetch::Prefetcher;
use crate::simd::{Kernel, LANES, Simd};
use backend::{RowLayout, TILE_CELLS};
use kv::KvStorage;
use std::marker::PhantomData;
use std::ops::Range;

/// Dimensions that are decoded together.
pub(super) const DEPTH: usize = 64;

/// Some dimensions of a block: its keys by dimension, padded on both sides for stored tiles that start or end outside
/// of the block, or its values by position.
#[repr(align(64))]
pub(super) struct DecodedBlock([[f32; WIDTH]; DEPTH]);

const WIDTH: usize = LANES + KEY_BLOCK + LANES;

/// Dimensions of a stored tile that are reported to the prefetcher at once: reporting has a cost of its own.
const REPORTED_DIMS: usize = 8;

impl DecodedBlock {
    pub(super) const fn new() -> DecodedBlock {
        DecodedBlock([[0.0; WIDTH]; DEPTH])
    }

    /// A vector of columns of one key dimension.
    #[inline(always)]
    pub(super) fn key(&self, dimension: usize, vector: usize) -> *const f32 {
        self.0[dimension][LANES + vector * LANES..].as_ptr()
    }

    /// A vector of dimensions of the value in a column.
    ///
    /// # Safety
    /// The column must be one of the block's, the vector below four.
    #[inline(always)]
    pub(super) unsafe fn value(&self, column: usize, vector: usize) -> *const f32 {
        // SAFETY: as the caller guarantees.
        unsafe {
            self.0
                .as_ptr()
                .cast::<f32>()
                .add(column * WIDTH + vector * LANES)
        }
    }

    /// Sets values of columns that are in no segment to zero, up to a column.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(super) fn clear_missing_values(&mut self, segments: &[Segment], end: usize) {
        let mut column = 0;
        for segment in segments {
            self.0[column..segment.start].fill([0.0; WIDTH]);
            column = segment.end;
        }
        self.0[column..end.max(column)].fill([0.0; WIDTH]);
    }

    /// Decodes some dimensions of the keys from either layout.
    #[inline(always)]
    pub(super) fn keys<S: Simd>(
        &mut self,
        s: S,
        keys: &BlockKeys<'_>,
        dims: Range<usize>,
        dim: usize,
        prefetcher: &mut Prefetcher<'_>,
    ) {
        macro_rules! copy_key_tiles {
            ($E:ty) => {
                s.call(CopyKeyTiles {
                    block: self,
                    keys,
                    dims,
                    prefetcher,
                    decoder: PhantomData::<$E>,
                })
            };
        }
        let storage = keys.side.storage;
        match (keys.side.layout, storage) {
            (RowLayout::Rows { .. }, _) => {
                self.transpose_keys(s, keys, storage, dims, dim, prefetcher)
            }
            (_, KvStorage::F32) => copy_key_tiles!(kv_rows::F32),
            (_, KvStorage::BF16) => copy_key_tiles!(kv_rows::Bf16),
            (_, KvStorage::F8E4M3) => copy_key_tiles!(kv_rows::F8E4m3),
            _ => copy_key_tiles!(kv_rows::F16),
        }
    }

    /// Transposes some dimensions of keys that are stored row after row, with `dim` elements each.
    #[inline(always)]
    fn transpose_keys<S: Simd>(
        &mut self,
        s: S,
        keys: &BlockKeys<'_>,
        storage: KvStorage,
        dims: Range<usize>,
        dim: usize,
        prefetcher: &mut Prefetcher<'_>,
    ) {
        let found = KeyRows::new(keys);
        let used = keys.side.row_bytes * dims.len() / dim;
        let mut plain = [[0.0f32; DEPTH]; LANES];
        for vector in 0..keys.vectors {
            let rows = &found.0[vector * LANES..][..LANES];
            prefetcher.consumed(LANES * used);
            with_storage!(storage, E => s.call(DecodeRows {
                rows,
                dims: dims.clone(),
                dim,
                plain: &mut plain,
                decoder: PhantomData::<E>,
            }));
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

/// Decodes some dimensions of the values, whose rows have `dim` elements; the dimensions are whole vectors.
pub(super) struct DecodeValues<'a, 'p, E> {
    pub(super) block: &'a mut DecodedBlock,
    pub(super) segments: &'a [Segment],
    pub(super) side: &'a HeadRows<'a>,
    pub(super) dims: Range<usize>,
    pub(super) dim: usize,
    pub(super) prefetcher: &'a mut Prefetcher<'p>,
    pub(super) decoder: PhantomData<E>,
}

impl<E: KvDecoder> Kernel for DecodeValues<'_, '_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let row_bytes = self.side.row_bytes;
        for segment in self.segments {
            let rows = &segment.rows(self.side)[..segment.len() * row_bytes];
            for (i, to) in self.block.0[segment.start..segment.end]
                .iter_mut()
                .enumerate()
            {
                // SAFETY: the segment has the row, the row has these dimensions, and the block's row holds them.
                unsafe {
                    let row = rows.as_ptr().add(i * row_bytes);
                    self.prefetcher
                        .consumed(row_bytes * self.dims.len() / self.dim);
                    for vector in 0..self.dims.len() / LANES {
                        let v = E::load(s, row, self.dims.start / LANES + vector, self.dim);
                        s.store(to.as_mut_ptr().add(vector * LANES), v);
                    }
                }
            }
        }
    }
}

/// Copies some dimensions of keys that are stored transposed.
struct CopyKeyTiles<'a, 'p, E> {
    block: &'a mut DecodedBlock,
    keys: &'a BlockKeys<'a>,
    dims: Range<usize>,
    prefetcher: &'a mut Prefetcher<'p>,
    decoder: PhantomData<E>,
}

impl<E: KvDecoder> Kernel for CopyKeyTiles<'_, '_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let RowLayout::Transposed { row_bytes, element } = self.keys.side.layout else {
            return;
        };
        for segment in self.keys.segments {
            let (bytes, first) = segment.stored_rows(&self.keys.side);
            let cells = bytes.len() / row_bytes;
            let end = first + (segment.end - segment.start);
            assert!(end <= cells, "a segment's rows exist");
            let mut tile = first / TILE_CELLS * TILE_CELLS;
            while tile < end {
                let width = (cells - tile).min(TILE_CELLS);
                // The column of the tile's first cell, counted from the padding before the block.
                let column = LANES + segment.start + tile - first;
                // Columns before the segment may be overwritten only if no other segment has written them.
                let keep = if segment.start > 0 {
                    first.saturating_sub(tile)
                } else {
                    0
                };
                // SAFETY: the tile lies inside the stored bytes, and a row of the block holds a vector from any of its
                // columns on, or one vector before.
                unsafe {
                    let tile = bytes.as_ptr().add(tile * row_bytes);
                    for (i, d) in self.dims.clone().enumerate() {
                        if i.is_multiple_of(REPORTED_DIMS) {
                            let dims = REPORTED_DIMS.min(self.dims.len() - i);
                            self.prefetcher.consumed(dims * width * element);
                        }
                        let from = tile.add(d * width * element);
                        let to = self.block.0[i].as_mut_ptr().add(column);
                        if width == TILE_CELLS && keep == 0 {
                            s.store(to, E::load(s, from, 0, TILE_CELLS));
                            continue;
                        }
                        let mut lanes = [0.0; LANES];
                        s.store(lanes.as_mut_ptr(), E::load_part(s, from, 0, width));
                        let kept = &lanes[keep..];
                        to.add(keep)
                            .copy_from_nonoverlapping(kept.as_ptr(), kept.len());
                    }
                }
                tile += TILE_CELLS;
            }
        }
    }
}

/// Decodes some dimensions of some rows; missing rows become zeros.
struct DecodeRows<'a, E> {
    rows: &'a [*const u8],
    dims: Range<usize>,
    dim: usize,
    plain: &'a mut [[f32; DEPTH]; LANES],
    decoder: PhantomData<E>,
}

impl<E: KvDecoder> Kernel for DecodeRows<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (row, plain) in self.rows.iter().zip(self.plain) {
            for chunk in 0..self.dims.len().div_ceil(LANES) {
                let at = self.dims.start / LANES + chunk;
                // SAFETY: an address that is not null is that of a stored row of `dim` elements; a row of `plain` holds
                // whole vectors.
                unsafe {
                    let v = if row.is_null() {
                        s.zero()
                    } else if (at + 1) * LANES <= self.dim {
                        E::load(s, *row, at, self.dim)
                    } else {
                        E::load_part(s, *row, at, self.dim)
                    };
                    s.store(plain.as_mut_ptr().add(chunk * LANES), v);
                }
            }
        }
    }
}

/// The address of every key of a block, by column; null where there is none.
struct KeyRows([*const u8; KEY_BLOCK]);

impl KeyRows {
    #[inline(always)]
    fn new(keys: &BlockKeys<'_>) -> KeyRows {
        let mut rows = [std::ptr::null(); KEY_BLOCK];
        let row_bytes = keys.side.row_bytes;
        for segment in keys.segments {
            let stored = segment.rows(&keys.side);
            for column in segment.start..segment.end {
                let at = (column - segment.start) * row_bytes;
                rows[column] = stored[at..][..row_bytes].as_ptr();
            }
        }
        KeyRows(rows)
    }
}
