//! The order in which a query tile reads its keys.

use super::segments::{Segment, Segments};
use super::{KEY_BLOCK, MAX_TILE_ROWS, QueryTile};
use std::ops::Range;

/// Iterates over key blocks, and in each over the query rows that find the block's keys in the same cells.
pub(super) struct KeyBlockPasses<'a> {
    query_tile: &'a QueryTile<'a>,
    base: usize,
    end: usize,
    query: usize,
    /// For each query, the first run of its list that may still reach into a block.
    cursors: [usize; MAX_TILE_ROWS],
    segments: Segments,
    others: Segments,
}

/// One block of keys for the rows that find its keys in the same cells.
pub(super) struct KeyBlockPass<'a> {
    pub(super) rows: Range<usize>,
    /// The first position of the block.
    pub(super) base: usize,
    /// The cells of the keys.
    pub(super) segments: &'a [Segment],
}

impl<'a> KeyBlockPasses<'a> {
    /// Iterates over some positions, which start at a block boundary.
    pub(super) fn new(
        query_tile: &'a QueryTile<'a>,
        positions: Range<usize>,
    ) -> KeyBlockPasses<'a> {
        KeyBlockPasses {
            query_tile,
            base: positions.start,
            end: positions.end,
            query: 0,
            cursors: [0; MAX_TILE_ROWS],
            segments: Segments::new(),
            others: Segments::new(),
        }
    }

    /// The next rows of the tile and their block.
    pub(super) fn next(&mut self) -> Option<KeyBlockPass<'_>> {
        let query_tile = self.query_tile;
        let queries = &query_tile.visible.queries()[query_tile.queries.clone()];
        while self.base < self.end {
            while self.query < queries.len() {
                let start = self.query;
                self.query += 1;
                if !self.sees(start) {
                    continue;
                }
                self.find(start, SegmentSlot::Own);
                // Following queries share the pass if they find the same keys in the same cells: queries of one
                // sequence, and of sequences that share this part of their history.
                while self.query < queries.len() && self.sees(self.query) {
                    if queries[self.query].list != queries[start].list {
                        self.find(self.query, SegmentSlot::Other);
                        if self.others.get() != self.segments.get() {
                            break;
                        }
                    }
                    self.query += 1;
                }
                // Keys after the last visible one contribute nothing.
                let ends = queries[start..self.query].iter().map(|q| q.positions.end);
                let end = ends.max().unwrap_or(0) as usize;
                self.segments.clip(end.saturating_sub(self.base));
                return Some(KeyBlockPass {
                    rows: start * query_tile.heads..self.query * query_tile.heads,
                    base: self.base,
                    segments: self.segments.get(),
                });
            }
            self.query = 0;
            self.base += KEY_BLOCK;
        }
        None
    }

    /// Finds the cells of a query's keys in the block.
    fn find(&mut self, query: usize, which: SegmentSlot) {
        let query_tile = self.query_tile;
        let view = &query_tile.visible.queries()[query_tile.queries.start + query];
        let runs = query_tile.visible.run_list(view.list);
        let cursor = &mut self.cursors[query];
        while runs
            .get(*cursor)
            .is_some_and(|run| (run.position + run.len) as usize <= self.base)
        {
            *cursor += 1;
        }
        let segments = match which {
            SegmentSlot::Own => &mut self.segments,
            SegmentSlot::Other => &mut self.others,
        };
        segments.fill(
            &runs[*cursor..],
            self.base,
            query_tile.kv.frozen_cells as usize,
        );
    }

    /// Whether a query sees any key of the block.
    fn sees(&self, query: usize) -> bool {
        let view = &self.query_tile.visible.queries()[self.query_tile.queries.start + query];
        let latest = (view.positions.start as usize) < self.base + KEY_BLOCK
            && view.positions.end as usize > self.base;
        latest || view.sinks as usize > self.base
    }
}

/// Which segments are found: those of the pass, or those of a query that might share it.
enum SegmentSlot {
    Own,
    Other,
}
