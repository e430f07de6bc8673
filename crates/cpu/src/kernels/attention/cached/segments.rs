//! The cells that store the keys of a block.

use super::KEY_BLOCK;
use crate::kv::HeadRows;
use crate::simd::LANES;
use kv::CellRun;

/// Keys of a block in consecutive cells: their columns in the block, and the row of the first key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) start: usize,
    pub(super) end: usize,
    row: usize,
    frozen: bool,
}

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

/// The segments of one block: at most one run per column, and one more where the frozen rows end.
#[derive(Clone, Copy)]
pub(super) struct Segments {
    list: [Segment; KEY_BLOCK + 1],
    len: usize,
}

impl Segments {
    #[inline(always)]
    pub(super) fn new() -> Segments {
        Segments {
            list: [Segment {
                start: 0,
                end: 0,
                row: 0,
                frozen: false,
            }; KEY_BLOCK + 1],
            len: 0,
        }
    }

    #[inline(always)]
    pub(super) fn get(&self) -> &[Segment] {
        &self.list[..self.len]
    }

    /// Sets the segments to the parts of `runs` inside the block at `base`; `runs` starts with the first run that
    /// reaches into it.
    #[inline(always)]
    pub(super) fn fill(&mut self, runs: &[CellRun], base: usize, frozen_cells: usize) {
        self.len = 0;
        for run in runs {
            let (from, to) = (run.position as usize, (run.position + run.len) as usize);
            if from >= base + KEY_BLOCK {
                break;
            }
            let (start, end) = (from.max(base), to.min(base + KEY_BLOCK));
            let cell = run.cell as usize + (start - from);
            let frozen = frozen_cells.saturating_sub(cell).min(end - start);
            if frozen > 0 {
                self.push(Segment {
                    start: start - base,
                    end: start - base + frozen,
                    row: cell,
                    frozen: true,
                });
            }
            if start + frozen < end {
                let row = cell + frozen - frozen_cells;
                self.push(Segment {
                    start: start - base + frozen,
                    end: end - base,
                    row,
                    frozen: false,
                });
            }
        }
    }

    /// Removes the columns from `end` on.
    pub(super) fn clip(&mut self, end: usize) {
        while self.len > 0 && self.list[self.len - 1].start >= end {
            self.len -= 1;
        }
        if let Some(last) = self.list[..self.len].last_mut() {
            last.end = last.end.min(end);
        }
    }

    #[inline(always)]
    fn push(&mut self, segment: Segment) {
        self.list[self.len] = segment;
        self.len += 1;
    }
}

impl Segment {
    /// Keys of the segment.
    #[inline(always)]
    pub(super) fn len(&self) -> usize {
        self.end - self.start
    }

    /// All rows that the segment's rows belong to (frozen or own), and the index of its first row.
    #[inline(always)]
    pub(super) fn stored_rows<'a>(&self, side: &HeadRows<'a>) -> (&'a [u8], usize) {
        (if self.frozen { side.frozen } else { side.own }, self.row)
    }

    /// The stored bytes from the segment's first row on.
    #[inline(always)]
    pub(super) fn rows<'a>(&self, side: &HeadRows<'a>) -> &'a [u8] {
        &(if self.frozen { side.frozen } else { side.own })[self.row * side.row_bytes..]
    }
}
