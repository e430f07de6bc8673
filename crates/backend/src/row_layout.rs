//! `RowLayout`: how one head's rows lie in the CPU's memory and in prefix files.
//!
//! Values and all quantised rows are stored row after row. Keys of plain types are *transposed*: sixteen cells make a
//! tile that stores their first elements side by side, then their second elements, and so on. Scoring then multiplies a
//! query element with a vector of sixteen keys, without a transposition or a sum across lanes. The last tile is as wide
//! as there are cells left, so both layouts take the same memory.

use kv::{CacheConfig, KvStorage, Side};
use std::ops::Range;

/// Cells of a tile.
pub const TILE_CELLS: usize = 16;

/// How the rows of a head are stored.
#[derive(Clone, Copy, Debug)]
pub enum RowLayout {
    /// Row after row.
    Rows {
        /// Bytes of a row.
        row_bytes: usize,
    },
    /// Tiles of sixteen cells, dimension-major, with elements of this size.
    Transposed {
        /// Bytes of a row.
        row_bytes: usize,
        /// Bytes of an element.
        element: usize,
    },
}

impl RowLayout {
    /// The layout of one side of a layer.
    pub fn of(config: &CacheConfig, layer: usize, side: Side) -> RowLayout {
        let (facts, storage) = (&config.layers[layer], config.storage(layer, side));
        match side {
            Side::Key if facts.is_state() => RowLayout::rows(storage, 0),
            Side::Key => RowLayout::keys(storage, facts.key_dim),
            Side::Value => RowLayout::rows(storage, facts.value_dim),
        }
    }

    /// Row after row.
    pub fn rows(storage: KvStorage, dim: usize) -> RowLayout {
        RowLayout::Rows {
            row_bytes: storage.row_bytes(dim),
        }
    }

    /// The layout of keys: transposed where elements are stored individually, else row after row.
    pub fn keys(storage: KvStorage, dim: usize) -> RowLayout {
        let row_bytes = storage.row_bytes(dim);
        let element = match storage {
            KvStorage::F32 => 4,
            KvStorage::F16 | KvStorage::BF16 => 2,
            KvStorage::F8E4M3 => 1,
            KvStorage::Q8(_) | KvStorage::Q4(_) | KvStorage::Q4Rotated => {
                return RowLayout::Rows { row_bytes };
            }
        };
        RowLayout::Transposed { row_bytes, element }
    }

    /// Bytes of a row.
    #[inline]
    pub fn row_bytes(self) -> usize {
        match self {
            RowLayout::Rows { row_bytes } | RowLayout::Transposed { row_bytes, .. } => row_bytes,
        }
    }

    /// Stores a row at a cell of a head.
    pub fn put(self, head: &mut [u8], cell: usize, row: &[u8]) {
        match self {
            RowLayout::Rows { row_bytes } => {
                head[cell * row_bytes..][..row_bytes].copy_from_slice(row);
            }
            RowLayout::Transposed { row_bytes, element } => {
                let (tile, step) = tile_of(head.len() / row_bytes, cell, element);
                let to = &mut head[tile * row_bytes + cell % TILE_CELLS * element..];
                // One loop per element size, so that a store is a single instruction.
                match element {
                    1 => scatter::<1>(to, step, row),
                    2 => scatter::<2>(to, step, row),
                    _ => scatter::<4>(to, step, row),
                }
            }
        }
    }

    /// Reads the row of a cell of a head.
    pub fn get(self, head: &[u8], cell: usize, row: &mut [u8]) {
        match self {
            RowLayout::Rows { row_bytes } => {
                row.copy_from_slice(&head[cell * row_bytes..][..row_bytes]);
            }
            RowLayout::Transposed { row_bytes, element } => {
                let (tile, step) = tile_of(head.len() / row_bytes, cell, element);
                let from = &head[tile * row_bytes + cell % TILE_CELLS * element..];
                for (to, from) in row.chunks_exact_mut(element).zip(from.chunks(step)) {
                    to.copy_from_slice(&from[..element]);
                }
            }
        }
    }

    /// Stores rows at adjacent cells of a head.
    pub fn put_rows(self, head: &mut [u8], first: usize, rows: &[u8]) {
        match self {
            RowLayout::Rows { row_bytes } => {
                head[first * row_bytes..][..rows.len()].copy_from_slice(rows);
            }
            RowLayout::Transposed { row_bytes, element } => {
                let cells = head.len() / row_bytes;
                for part in parts(first, rows.len() / row_bytes) {
                    let (tile, step) = tile_of(cells, part.start, element);
                    let to = &mut head[tile * row_bytes + part.start % TILE_CELLS * element..];
                    let from = &rows[(part.start - first) * row_bytes..][..part.len() * row_bytes];
                    match element {
                        1 => transpose_rows::<1>(to, step, from, row_bytes),
                        2 => transpose_rows::<2>(to, step, from, row_bytes),
                        _ => transpose_rows::<4>(to, step, from, row_bytes),
                    }
                }
            }
        }
    }

    /// Reads the rows of adjacent cells of a head.
    pub fn get_rows(self, head: &[u8], first: usize, rows: &mut [u8]) {
        match self {
            RowLayout::Rows { row_bytes } => {
                rows.copy_from_slice(&head[first * row_bytes..][..rows.len()]);
            }
            RowLayout::Transposed { row_bytes, .. } => {
                for (cell, row) in (first..).zip(rows.chunks_exact_mut(row_bytes)) {
                    self.get(head, cell, row);
                }
            }
        }
    }

    /// Rewrites the last tile after the head has grown beyond its `old` cells.
    pub fn relayout_last_tile(self, head: &mut [u8], old: usize) {
        let RowLayout::Transposed { row_bytes, element } = self else {
            return;
        };
        let (first, width) = (old / TILE_CELLS * TILE_CELLS, old % TILE_CELLS);
        if width == 0 {
            return;
        }
        let (_, step) = tile_of(head.len() / row_bytes, first, element);
        let tile = &mut head[first * row_bytes..];
        // In descending order, so that no element is overwritten before it has moved.
        for i in (0..row_bytes / element).rev() {
            let from = i * width * element;
            tile.copy_within(from..from + width * element, i * step);
        }
    }
}

/// The first cell of a cell's tile, and the bytes from one element of a row to the next there.
fn tile_of(cells: usize, cell: usize, element: usize) -> (usize, usize) {
    let first = cell / TILE_CELLS * TILE_CELLS;
    (first, (cells - first).min(TILE_CELLS) * element)
}

/// Adjacent cells, divided at tile boundaries.
fn parts(first: usize, cells: usize) -> impl Iterator<Item = Range<usize>> {
    let (mut at, end) = (first, first + cells);
    std::iter::from_fn(move || {
        let start = at;
        at = ((at / TILE_CELLS + 1) * TILE_CELLS).min(end);
        (start < end).then_some(start..at)
    })
}

/// Writes rows side by side, element by element; `to` starts at the first row's place.
fn transpose_rows<const N: usize>(to: &mut [u8], step: usize, rows: &[u8], row_bytes: usize) {
    let width = rows.len() / row_bytes;
    for (i, to) in to.chunks_mut(step).take(row_bytes / N).enumerate() {
        let places = to[..width * N].as_chunks_mut::<N>().0;
        for (place, row) in places.iter_mut().zip(rows.chunks_exact(row_bytes)) {
            *place = row.as_chunks::<N>().0[i];
        }
    }
}

fn scatter<const N: usize>(to: &mut [u8], step: usize, row: &[u8]) {
    for (to, from) in to.chunks_mut(step).zip(row.as_chunks::<N>().0) {
        to[..N].copy_from_slice(from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back_also_after_the_head_has_grown() {
        for storage in [KvStorage::F8E4M3, KvStorage::F16, KvStorage::F32] {
            let dim = 5;
            let layout = RowLayout::keys(storage, dim);
            let row_bytes = layout.row_bytes();
            let row = |cell: usize| -> Vec<u8> {
                (0..row_bytes).map(|i| (cell * 31 + i) as u8).collect()
            };
            for (old, new) in [(3, 9), (7, 16), (10, 40), (16, 32), (20, 33), (40, 41)] {
                let mut head = vec![0; old * row_bytes];
                (0..old).for_each(|cell| layout.put(&mut head, cell, &row(cell)));
                head.resize(new * row_bytes, 0);
                layout.relayout_last_tile(&mut head, old);
                (old..new).for_each(|cell| layout.put(&mut head, cell, &row(cell)));
                let mut found = vec![0; row_bytes];
                for cell in 0..new {
                    layout.get(&head, cell, &mut found);
                    assert_eq!(found, row(cell), "{storage} {old} to {new}, cell {cell}");
                }
                let rows: Vec<u8> = (2..new).flat_map(row).collect();
                let mut again = vec![0; new * row_bytes];
                layout.put_rows(&mut again, 2, &rows);
                (0..2).for_each(|cell| layout.put(&mut again, cell, &row(cell)));
                assert!(again == head, "{storage}: blocks and rows differ");
                let mut back = vec![0; rows.len()];
                layout.get_rows(&head, 2, &mut back);
                assert!(back == rows, "{storage}: rows do not come back");
            }
        }
    }

    #[test]
    fn a_tile_has_an_element_of_sixteen_rows_side_by_side() {
        let layout = RowLayout::keys(KvStorage::F32, 2);
        let mut head = vec![0; 20 * 8];
        for cell in 0..20u32 {
            let row: Vec<u8> = [cell, 100 + cell]
                .iter()
                .flat_map(|x| x.to_le_bytes())
                .collect();
            layout.put(&mut head, cell as usize, &row);
        }
        let numbers = head
            .as_chunks::<4>()
            .0
            .iter()
            .map(|b| u32::from_le_bytes(*b));
        let expect = (0..16).chain(100..116).chain(16..20).chain(116..120);
        assert!(numbers.eq(expect));
    }
}
