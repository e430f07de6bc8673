//! Softmax weights of a block's scores, relative to the largest score so far.

use super::key_blocks::KeyBlockPass;
use super::kv_splits;
use super::{Accumulators, KEY_BLOCK, QueryTile, Scores};
use crate::simd::{Kernel, LANES, Simd};
use std::f32::consts::LOG2_E;
use std::ops::Range;

/// Vectors of a row's scores.
const VECTORS: usize = KEY_BLOCK / LANES;

/// Turns the scores of a pass into softmax weights, and rescales the accumulators of rows whose largest score grew.
pub(super) struct BlockSoftmax<'a, 's> {
    pub(super) query_tile: &'a QueryTile<'a>,
    pub(super) pass: &'a KeyBlockPass<'a>,
    pub(super) scores: &'a mut Scores,
    pub(super) sums: &'a mut Accumulators<'s>,
}

impl Kernel for BlockSoftmax<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let heads = self.query_tile.heads;
        // All query heads of a token see the same keys.
        for first in self.pass.rows.clone().step_by(heads) {
            let visible = self.visible_columns(first / heads);
            let sees_all = self.has_all_columns() && visible.is_all();
            for row in first..first + heads {
                self.scale_scores(s, row);
                if !sees_all {
                    self.mask_scores(row, visible.clone());
                }
                self.update_largest(s, row);
            }
        }
        // A loop of its own: without branches, the chains of several rows run in parallel.
        for row in self.pass.rows.clone() {
            self.weigh(s, row);
        }
    }
}

/// The columns of a block that a query sees: the first ones, which are sinks, and a range of the others.
#[derive(Clone)]
struct VisibleColumns {
    sinks: usize,
    latest: Range<usize>,
}

impl VisibleColumns {
    #[inline(always)]
    fn is_all(&self) -> bool {
        self.latest == (0..KEY_BLOCK) || self.sinks == KEY_BLOCK
    }
}

impl BlockSoftmax<'_, '_> {
    /// Whether every column of the block has a key.
    #[inline(always)]
    fn has_all_columns(&self) -> bool {
        matches!(self.pass.segments, [segment] if segment.len() == KEY_BLOCK)
    }

    /// The columns of the block that a query of the tile may see.
    #[inline(always)]
    fn visible_columns(&self, query: usize) -> VisibleColumns {
        let tile = self.query_tile;
        let view = &tile.visible.queries()[tile.queries.start + query];
        let column = |position| (position as usize).saturating_sub(self.pass.base);
        let column = |position| column(position).min(KEY_BLOCK);
        VisibleColumns {
            sinks: column(view.sinks),
            latest: column(view.positions.start)..column(view.positions.end),
        }
    }

    /// Scales and caps the scores of a row, in units of log2.
    #[inline(always)]
    fn scale_scores<S: Simd>(&mut self, s: S, row: usize) {
        let op = self.query_tile.op;
        for i in 0..VECTORS {
            // SAFETY: a row of scores holds whole vectors.
            unsafe {
                let at = self.scores[row].as_mut_ptr().add(i * LANES);
                let scaled = if let Some(cap) = op.softcap {
                    let inner = s.mul(s.load(at), s.splat(op.scale / cap));
                    s.mul(s.splat(cap * LOG2_E), s.tanh(inner))
                } else {
                    s.mul(s.load(at), s.splat(op.scale * LOG2_E))
                };
                s.store(at, scaled);
            }
        }
    }

    /// Sets the scores of columns that have no key or are not visible to negative infinity.
    #[inline(always)]
    fn mask_scores(&mut self, row: usize, visible: VisibleColumns) {
        let scores = &mut self.scores[row];
        let mut column = 0;
        for segment in self.pass.segments {
            scores[column..segment.start].fill(f32::NEG_INFINITY);
            column = segment.end;
        }
        scores[column..].fill(f32::NEG_INFINITY);
        let VisibleColumns { sinks, latest } = visible;
        scores[sinks..latest.start.max(sinks)].fill(f32::NEG_INFINITY);
        scores[latest.end.max(sinks)..].fill(f32::NEG_INFINITY);
    }

    /// Updates the largest score of a row, and rescales its accumulators if it grew.
    #[inline(always)]
    fn update_largest<S: Simd>(&mut self, s: S, row: usize) {
        let Accumulators {
            weighted,
            weight_sums,
            states,
        } = self.sums;
        let largest = &mut states[row].largest;
        let total = weight_sums[row].as_mut_ptr();
        // SAFETY: rows of scores, weighted values and weight sums; scores and sums hold whole vectors.
        unsafe {
            let scores = self.scores[row].as_ptr();
            let mut top = s.load(scores);
            for i in 1..VECTORS {
                top = s.max(top, s.load(scores.add(i * LANES)));
            }
            if !s.any_gt(top, s.splat(*largest)) {
                return;
            }
            let new = s.reduce_max(top);
            if *largest > f32::NEG_INFINITY {
                let factor = s.exp2_nonpositive(s.splat(*largest - new));
                let dim = self.query_tile.op.value_dim;
                let weighted = weighted[row * dim..][..dim].as_mut_ptr();
                kv_splits::scale(s, dim, weighted, factor);
                s.store(total, s.mul(s.load(total), factor));
            }
            *largest = new;
        }
    }

    /// Stores the weights of a row's scores in their place, and adds them to the row's sum.
    #[inline(always)]
    fn weigh<S: Simd>(&mut self, s: S, row: usize) {
        // A row that has seen no key yet has weights of zero.
        let largest = self.sums.states[row].largest.max(f32::MIN);
        // SAFETY: rows of scores and weight sums hold whole vectors.
        unsafe {
            let scores = self.scores[row].as_mut_ptr();
            let total = self.sums.weight_sums[row].as_mut_ptr();
            let mut sum = s.load(total);
            for i in 0..VECTORS {
                let at = scores.add(i * LANES);
                let weight = s.exp2_nonpositive(s.sub(s.load(at), s.splat(largest)));
                sum = s.add(sum, weight);
                s.store(at, weight);
            }
            s.store(total, sum);
        }
    }
}
