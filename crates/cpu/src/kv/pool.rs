//! The stored rows of one layer and side.

use super::region::{PoolMemory, RegionPart, zeroed_buffer};
use crate::kernels::SendPtr;
use crate::kernels::attention::rope::Rotation;
use backend::{RowLayout, row_codec};
use base::Bytes;
use kv::{KvError, KvErrorKind, KvStorage, NO_CELL, PoolGrowth, RowBlock};
use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::Range;

/// Rows of one layer and side: head after head, each in the pool's layout.
pub(crate) struct CpuPool {
    pub(super) heads: usize,
    pub(super) dim: usize,
    pub(super) storage: KvStorage,
    pub(super) layout: RowLayout,
    cells: usize,
    growth: PoolGrowth,
    bytes: PoolMemory,
    /// Scratch for one encoded row.
    row: Vec<u8>,
}

/// A step's rows, token-major, and the rotation applied to them as they are stored.
#[derive(Clone, Copy)]
pub(crate) struct StepRows<'a> {
    pub(crate) data: &'a [f32],
    pub(crate) rotation: Option<Rotation<'a>>,
}

/// Writes rows to the cells of a pool.
pub(super) struct Writer<'a> {
    heads: usize,
    dim: usize,
    storage: KvStorage,
    layout: RowLayout,
    head_bytes: usize,
    bytes: SendPtr<u8>,
    /// Cells of the frozen prefix: stored in another pool, counted in cell numbers.
    frozen_cells: u32,
    cells: &'a [u32],
    rows: StepRows<'a>,
    pool: PhantomData<&'a mut CpuPool>,
}

/// The states of a layer, `[heads, cells, elements]` of f32 or f16.
#[derive(Clone, Copy)]
pub(crate) struct StatePool {
    start: SendPtr<u8>,
    cells: usize,
    state_bytes: usize,
    pub(crate) is_half: bool,
}

impl StatePool {
    /// Where a head's state in a cell begins.
    ///
    /// # Safety
    /// The pool must have the head and the cell.
    pub(crate) unsafe fn at(&self, head: usize, cell: u32) -> *mut u8 {
        let state = head * self.cells + cell as usize;
        // SAFETY: the caller guarantees that the state lies in the pool.
        unsafe { self.start.at(state * self.state_bytes) }
    }
}

/// Thread-local buffers for one row: rotated, and encoded.
#[derive(Default)]
struct RowScratch {
    numbers: Vec<f32>,
    encoded: Vec<u8>,
}

thread_local! {
    static ROW_SCRATCH: RefCell<RowScratch> = RefCell::default();
}

impl Writer<'_> {
    /// Writes the rows of one head.
    ///
    /// # Safety
    /// No other thread writes the same head.
    pub(super) unsafe fn write(&self, head: usize) {
        // SAFETY: the pool is borrowed mutably and has `head_bytes` bytes per head; the caller guarantees that no other
        // thread writes this head.
        let to = unsafe {
            let start = self.bytes.at(head * self.head_bytes);
            std::slice::from_raw_parts_mut(start, self.head_bytes)
        };
        ROW_SCRATCH.with_borrow_mut(|RowScratch { numbers, encoded }| {
            numbers.resize(self.dim, 0.0);
            // The bytes after a row's elements are zero.
            encoded.clear();
            encoded.resize(self.layout.row_bytes(), 0);
            let cells = self.cells.iter().enumerate();
            for (token, cell) in cells.filter(|(_, cell)| **cell != NO_CELL) {
                let row = &self.rows.data[(token * self.heads + head) * self.dim..][..self.dim];
                let row = match &self.rows.rotation {
                    Some(rotation) => {
                        numbers.copy_from_slice(row);
                        rotation.rotate(token, numbers);
                        &numbers[..]
                    }
                    None => row,
                };
                row_codec::encode(self.storage, row, encoded);
                self.layout
                    .put(to, (cell - self.frozen_cells) as usize, encoded);
            }
        });
    }
}

/// An empty buffer with capacity for `bytes` bytes.
pub(super) fn buffer(bytes: usize) -> Result<Vec<u8>, KvError> {
    let mut buffer = Vec::new();
    base::fallible(|| buffer.try_reserve_exact(bytes))
        .map_err(|_| KvErrorKind::OutOfMemory(bytes))?;
    Ok(buffer)
}

impl CpuPool {
    pub(crate) fn new(
        layout: RowLayout,
        heads: usize,
        dim: usize,
        storage: KvStorage,
        growth: PoolGrowth,
    ) -> CpuPool {
        CpuPool {
            heads,
            dim,
            storage,
            layout,
            cells: 0,
            growth,
            bytes: PoolMemory::Own(Vec::new()),
            row: vec![0; layout.row_bytes()],
        }
    }

    /// A pool of `cells` rows that are never written.
    pub(super) fn frozen(self, cells: u32, bytes: Bytes) -> CpuPool {
        let cells = cells as usize;
        assert_eq!(bytes.len(), self.heads * cells * self.row_bytes());
        CpuPool {
            cells,
            bytes: PoolMemory::Frozen(bytes),
            ..self
        }
    }

    /// Bytes of the rows of one sequence that fills the pool.
    pub(super) fn full_bytes(&self) -> usize {
        self.heads * self.full_cells() * self.row_bytes()
    }

    fn full_cells(&self) -> usize {
        let most = self.growth.capacity.min(self.growth.max_rows_per_sequence);
        self.growth.rows(most) as usize
    }

    /// Puts an empty pool into a part of a region, with all its cells.
    pub(super) fn place(&mut self, part: RegionPart) {
        self.cells = self.full_cells();
        assert_eq!(
            part.len(),
            self.heads * self.head_bytes(),
            "the part has the pool's size"
        );
        self.bytes = PoolMemory::Part(part);
    }

    pub(super) fn row_bytes(&self) -> usize {
        self.layout.row_bytes()
    }

    /// The rows of one head.
    pub(super) fn head(&self, head: usize) -> &[u8] {
        let len = self.head_bytes();
        &self.bytes[head * len..(head + 1) * len]
    }

    pub(super) fn head_bytes(&self) -> usize {
        self.cells * self.row_bytes()
    }

    /// A writer for a step's rows, which writes head by head.
    pub(super) fn writer<'a>(
        &'a mut self,
        frozen_cells: u32,
        cells: &'a [u32],
        rows: StepRows<'a>,
    ) -> Writer<'a> {
        Writer {
            heads: self.heads,
            dim: self.dim,
            storage: self.storage,
            layout: self.layout,
            head_bytes: self.head_bytes(),
            bytes: SendPtr(self.bytes.as_mut_ptr()),
            frozen_cells,
            cells,
            rows,
            pool: PhantomData,
        }
    }

    /// The pool as states.
    pub(super) fn states(&mut self) -> StatePool {
        StatePool {
            start: SendPtr(self.bytes.as_mut_ptr()),
            cells: self.cells,
            state_bytes: self.row_bytes(),
            is_half: self.storage == KvStorage::F16,
        }
    }

    /// Stores the encoded rows of a block, whose cells count `frozen_cells` of a prefix.
    pub(super) fn take(&mut self, frozen_cells: u32, block: &RowBlock<'_>) {
        let row_bytes = self.row_bytes();
        for head in 0..self.heads {
            let mut from = head * block.head_stride;
            for run in block.runs {
                let len = run.len as usize * row_bytes;
                self.write_rows(
                    head,
                    run.cell - frozen_cells,
                    &block.bytes[from..from + len],
                );
                from += len;
            }
        }
    }

    /// Moves the row of cell `order[i]` to cell `i`, through a copy of each head in turn.
    pub(super) fn reorder_through(&mut self, before: &mut Vec<u8>, order: &[u32]) {
        let (len, layout) = (self.head_bytes(), self.layout);
        for head in self.bytes.chunks_exact_mut(len.max(1)) {
            before.clear();
            before.extend_from_slice(head);
            for (to, &from) in order.iter().enumerate() {
                layout.get(before, from as usize, &mut self.row);
                layout.put(head, to, &self.row);
            }
        }
    }

    /// Grows the pool to at least `cells` cells. Growth does not renumber cells.
    pub(super) fn ensure(&mut self, cells: u32) -> Result<(), KvError> {
        let needed = cells as usize;
        if needed <= self.cells {
            return Ok(());
        }
        let cells = self.growth.rows(cells) as usize;
        assert!(
            needed <= cells,
            "bookkeeping admits no step past the capacity"
        );
        let (old, new) = (self.head_bytes(), cells * self.row_bytes());
        let len = self.heads * new;
        if old == 0 {
            self.bytes = PoolMemory::Own(zeroed_buffer(len)?);
            self.cells = cells;
            return Ok(());
        }
        let bytes = self.bytes.detach();
        base::fallible(|| bytes.try_reserve_exact(len - bytes.len()))
            .map_err(|_| KvErrorKind::OutOfMemory(len))?;
        bytes.resize(len, 0);
        // In descending order, so that no head is overwritten before it has moved.
        for head in (0..self.heads).rev() {
            self.bytes
                .copy_within(head * old..(head + 1) * old, head * new);
            let head = &mut self.bytes[head * new..(head + 1) * new];
            head[old..].fill(0);
            self.layout.relayout_last_tile(head, self.cells);
        }
        self.cells = cells;
        Ok(())
    }

    /// Copies cell `rows[i]` to cell `base + i`, in order; `rows[i] >= base + i`. In a ring, cell numbers are taken modulo its
    /// size.
    pub(super) fn gather_into(&mut self, base: u32, rows: &[u32]) -> Result<(), KvError> {
        let (len, layout) = (self.head_bytes(), self.layout);
        let ring = self.growth.max_rows_per_sequence as usize;
        for head in self.bytes.chunks_exact_mut(len.max(1)) {
            for (to, &from) in (base as usize..).zip(rows) {
                if to != from as usize {
                    layout.get(head, from as usize % ring, &mut self.row);
                    layout.put(head, to % ring, &self.row);
                }
            }
        }
        Ok(())
    }

    /// Copies one head's encoded rows of adjacent cells to `out`.
    pub(super) fn read_rows(&self, head: usize, cells: Range<u32>, out: &mut [u8]) {
        let first = cells.start as usize;
        if !cells.is_empty() {
            self.layout.get_rows(self.head(head), first, out);
        }
    }

    /// Writes one head's encoded rows to adjacent cells, which must exist.
    pub(super) fn write_rows(&mut self, head: usize, first: u32, rows: &[u8]) {
        let len = self.head_bytes();
        let head = &mut self.bytes[head * len..(head + 1) * len];
        self.layout.put_rows(head, first as usize, rows);
    }

    /// Removes all cells. Memory that is not a part of a region becomes free.
    pub(super) fn release(&mut self) {
        self.bytes = PoolMemory::Own(Vec::new());
        self.cells = 0;
    }

    /// Bytes allocated now.
    pub(super) fn resident_bytes(&self) -> usize {
        self.bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl CpuPool {
        /// Stores token-major rows `[tokens, heads, dim]`, token `i` in `cells[i]`, converted to the storage type.
        fn write(&mut self, cells: &[u32], data: &[f32]) {
            let heads = self.heads;
            let rows = StepRows {
                data,
                rotation: None,
            };
            let writer = self.writer(0, cells, rows);
            // SAFETY: no other thread has the writer.
            (0..heads).for_each(|head| unsafe { writer.write(head) });
        }

        /// Decodes one head's row of a cell.
        fn read(&self, head: usize, cell: u32, out: &mut [f32]) {
            let mut row = vec![0; self.row_bytes()];
            self.layout.get(self.head(head), cell as usize, &mut row);
            row_codec::decode(self.storage, &row, out);
        }
    }

    #[test]
    fn growth_doubles_to_the_capacity_and_keeps_every_row() {
        for storage in KvStorage::ALL {
            let growth = PoolGrowth {
                initial_rows: 4,
                max_rows_per_sequence: 50,
                capacity: 50,
            };
            for layout in [RowLayout::rows(storage, 5), RowLayout::keys(storage, 5)] {
                let mut pool = CpuPool::new(layout, 3, 5, storage, growth);
                // Groups of equal elements that FP8 has are exact in every type.
                let row = |cell: u32| -> Vec<f32> {
                    let code = |head: u32| match cell * 3 + head {
                        n @ 0..100 => n,
                        n => n - 99 + 0x80,
                    };
                    let value = |i: u32| backend::e4m3::decode(code(i / 5) as u8);
                    (0..15).map(value).collect()
                };
                let mut sizes = vec![];
                for cell in 0..50 {
                    pool.ensure(cell + 1).unwrap();
                    pool.write(&[cell], &row(cell));
                    sizes.push(pool.resident_bytes() / 3 / storage.row_bytes(5));
                }
                sizes.dedup();
                assert_eq!(sizes, [4, 8, 16, 32, 50]);
                let check = |pool: &CpuPool, at: u32, cell: u32| {
                    for head in 0..3 {
                        let mut out = [0.0; 5];
                        pool.read(head, at, &mut out);
                        assert_eq!(
                            out,
                            row(cell)[head * 5..][..5],
                            "{storage} head {head} cell {at}"
                        );
                    }
                };
                (0..50).for_each(|cell| check(&pool, cell, cell));
                pool.gather_into(10, &[10, 13, 14, 20]).unwrap();
                [10, 13, 14, 20]
                    .into_iter()
                    .zip(10..)
                    .for_each(|(cell, at)| check(&pool, at, cell));
                pool.reorder_through(&mut vec![], &[49, 0, 30]);
                [49, 0, 30]
                    .into_iter()
                    .zip(0..)
                    .for_each(|(cell, at)| check(&pool, at, cell));
            }
        }
    }
}
