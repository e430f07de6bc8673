//! In which order an item meets its keys.

use super::segments::{Segment, Segments};
use super::{KEY_BLOCK, MAX_TILE_ROWS, QueryTile};
use std::ops::Range;

/// Block after block of positions, and in each the queries that find its keys in the same rows.
pub(super) struct KeyBlockPasses<'a> {
    query_tile: &'a QueryTile<'a>,
    base: usize,
    end: usize,
    query: usize,
    /// Per query, the first run of its list that may still matter.
    cursors: [usize; MAX_TILE_ROWS],
    segments: Segments,
    others: Segments,
}

/// One block of keys for some rows that find them in the same places.
pub(super) struct KeyBlockPass<'a> {
    pub(super) rows: Range<usize>,
    /// The position that the block begins at.
    pub(super) base: usize,
    /// Where its keys lie.
    pub(super) segments: &'a [Segment],
}

impl<'a> KeyBlockPasses<'a> {
    /// Over some positions, which begin with a block.
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

    /// The next rows of the item and their block.
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
                // Queries behind it that find the same keys in the same rows share the pass: those of one sequence, and
                // those of sequences that share their history here.
                while self.query < queries.len() && self.sees(self.query) {
                    if queries[self.query].list != queries[start].list {
                        self.find(self.query, SegmentSlot::Other);
                        if self.others.get() != self.segments.get() {
                            break;
                        }
                    }
                    self.query += 1;
                }
                // Keys behind what the last of them sees add nothing to any.
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

    /// Finds a query's keys in the block.
    fn find(&mut self, query: usize, which: SegmentSlot) {
        let query_tile = self.query_tile;
        let view = &query_tile.visible.queries()[query_tile.queries.start + query];
        let runs = query_tile.visible.list(view.list);
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
        (view.positions.start as usize) < self.base + KEY_BLOCK
            && view.positions.end as usize > self.base
    }
}

/// Whose segments are found: those of the pass, or those of a query that might join it.
enum SegmentSlot {
    Own,
    Other,
}
