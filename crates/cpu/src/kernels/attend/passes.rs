//! In which order an item meets its keys.

use super::segments::{Segment, Segments};
use super::{BLOCK, Item, ROWS};
use std::ops::Range;

/// Block after block of positions, and in each the queries that find its keys in the same rows.
pub(super) struct Passes<'a> {
    item: &'a Item<'a>,
    base: usize,
    end: usize,
    query: usize,
    /// Per query, the first run of its list that may still matter.
    cursors: [usize; ROWS],
    segments: Segments,
    others: Segments,
}

/// One block of keys for some rows that find them in the same places.
pub(super) struct Pass<'a> {
    pub(super) rows: Range<usize>,
    /// The position that the block begins at.
    pub(super) base: usize,
    /// Where its keys lie.
    pub(super) segments: &'a [Segment],
}

impl<'a> Passes<'a> {
    /// Over some positions, which begin with a block.
    pub(super) fn new(item: &'a Item<'a>, positions: Range<usize>) -> Passes<'a> {
        Passes {
            item,
            base: positions.start,
            end: positions.end,
            query: 0,
            cursors: [0; ROWS],
            segments: Segments::new(),
            others: Segments::new(),
        }
    }

    /// The next rows of the item and their block.
    pub(super) fn next(&mut self) -> Option<Pass<'_>> {
        let item = self.item;
        let queries = &item.visible.queries()[item.queries.clone()];
        while self.base < self.end {
            while self.query < queries.len() {
                let start = self.query;
                self.query += 1;
                if !self.sees(start) {
                    continue;
                }
                self.find(start, Which::Own);
                // Queries behind it that find the same keys in the same rows share the pass: those of one sequence, and
                // those of sequences that share their history here.
                while self.query < queries.len() && self.sees(self.query) {
                    if queries[self.query].list != queries[start].list {
                        self.find(self.query, Which::Other);
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
                return Some(Pass {
                    rows: start * item.heads..self.query * item.heads,
                    base: self.base,
                    segments: self.segments.get(),
                });
            }
            self.query = 0;
            self.base += BLOCK;
        }
        None
    }

    /// Finds a query's keys in the block.
    fn find(&mut self, query: usize, which: Which) {
        let item = self.item;
        let view = &item.visible.queries()[item.queries.start + query];
        let runs = item.visible.run_list(view.list);
        let cursor = &mut self.cursors[query];
        while runs
            .get(*cursor)
            .is_some_and(|run| (run.position + run.len) as usize <= self.base)
        {
            *cursor += 1;
        }
        let segments = match which {
            Which::Own => &mut self.segments,
            Which::Other => &mut self.others,
        };
        segments.fill(&runs[*cursor..], self.base, item.kv.frozen_cells as usize);
    }

    /// Whether a query sees any key of the block.
    fn sees(&self, query: usize) -> bool {
        let view = &self.item.visible.queries()[self.item.queries.start + query];
        (view.positions.start as usize) < self.base + BLOCK
            && view.positions.end as usize > self.base
    }
}

/// Whose segments are found: those of the pass, or those of a query that might join it.
enum Which {
    Own,
    Other,
}
