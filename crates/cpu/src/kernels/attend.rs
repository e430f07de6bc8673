//! Attention over cached rows, read in place in their storage type.
//!
//! Keys are taken in blocks of consecutive *positions*, in ascending order, with an online softmax between blocks. A
//! masked key contributes exactly nothing. So a query's result depends only on what it sees, not on the other queries
//! of the step and not on the cells its keys lie in.

mod score;
mod segments;

use super::stored::{Stored, with_storage};
use super::{Context, Shared, split};
use crate::isa::Kernel;
use crate::kv::{CpuKv, HeadKv};
use crate::simd::{LANES, Simd};
use kv::Visibility;
use score::{Keys, Turned};
use segments::{Segment, Segments};
use std::ops::Range;

/// Positions per block of the online softmax.
const BLOCK: usize = 64;
/// Query rows that share a pass over a block of keys.
const ROWS: usize = 24;
/// Query rows whose sums are kept in registers at once, for four vectors of keys.
const BATCH: usize = 6;
/// The same, for one vector of values.
const MIXED: usize = 12;

/// The attention of one step over one layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attend {
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) key_dim: usize,
    pub(crate) value_dim: usize,
    pub(crate) scale: f32,
    pub(crate) softcap: Option<f32>,
}

impl Attend {
    /// # Safety
    /// `q` must hold `queries · heads · key_dim` elements and `out` `queries · heads · value_dim`, without overlap.
    /// Every visible cell must exist in layer `id` of `kv`.
    pub(crate) unsafe fn run(
        &self,
        ctx: &Context<'_>,
        visible: &Visibility,
        (kv, id): (&CpuKv, usize),
        q: *const f32,
        out: *mut f32,
    ) {
        let group = self.heads / self.kv_heads;
        let heads_per_item = group.min(ROWS);
        let splits = group.div_ceil(heads_per_item);
        let queries = visible.queries().len();
        // As many queries as share a pass, but enough items for the threads to come out even.
        let wanted_tiles = (2 * ctx.threads.count()).div_ceil(self.kv_heads * splits);
        let queries_per_item = (ROWS / heads_per_item)
            .min(queries.div_ceil(wanted_tiles))
            .max(1);
        let tiles = queries.div_ceil(queries_per_item);
        let (q, out) = (Shared(q.cast_mut()), Shared(out));
        ctx.threads.run(tiles * self.kv_heads * splits, &|task, _| {
            // The last queries of a causal step see most, so their tiles are taken first.
            let tile = tiles - 1 - task / (self.kv_heads * splits);
            let (kv_head, part) = (task / splits % self.kv_heads, task % splits);
            let first_head = kv_head * group + part * heads_per_item;
            let queries = tile * queries_per_item..((tile + 1) * queries_per_item).min(queries);
            let heads = heads_per_item.min((kv_head + 1) * group - first_head);
            ctx.isa.run(Item {
                op: self,
                visible,
                queries,
                first_head,
                heads,
                kv: kv.head(id, kv_head),
                q,
                out,
            });
        });
    }
}

/// Some query heads of one KV head, for some queries of the step.
struct Item<'a> {
    op: &'a Attend,
    visible: &'a Visibility,
    queries: Range<usize>,
    first_head: usize,
    heads: usize,
    kv: HeadKv<'a>,
    q: Shared<f32>,
    out: Shared<f32>,
}

/// A block's scores, then its weights, by query row.
type Scores = [[f32; BLOCK]; ROWS];

impl Kernel for Item<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let queries = &self.visible.queries()[self.queries.clone()];
        let rows = queries.len() * self.heads;
        let mut scores: Scores = [[0.0; BLOCK]; ROWS];
        let mut turned = Turned::new();
        let (mut largest, mut sums) = ([f32::NEG_INFINITY; ROWS], [0.0f32; ROWS]);
        let (mut segments, mut others) = (Segments::new(), Segments::new());
        // Per query, the first run of its list that may still matter.
        let mut cursors = [0usize; ROWS];
        for row in 0..rows {
            // SAFETY: a row of the output, written by this item alone.
            unsafe { std::slice::from_raw_parts_mut(self.out_row(row), self.op.value_dim) }
                .fill(0.0);
        }
        let first = queries.iter().map(|q| q.positions.start).min().unwrap_or(0) as usize;
        let end = queries.iter().map(|q| q.positions.end).max().unwrap_or(0) as usize;
        for base in (first / BLOCK * BLOCK..end).step_by(BLOCK) {
            let mut query = 0;
            while query < queries.len() {
                if !self.fill(&mut segments, query, base, &mut cursors) {
                    query += 1;
                    continue;
                }
                // Queries behind it that find the same keys in the same rows share the pass: those of one sequence, and
                // those of sequences that share their history here.
                let start = query;
                query += 1;
                while query < queries.len() {
                    let same = queries[query].list == queries[start].list;
                    if !self.fill(&mut others, query, base, &mut cursors)
                        || !(same || others.get() == segments.get())
                    {
                        break;
                    }
                    query += 1;
                }
                let rows = start * self.heads..query * self.heads;
                self.block(
                    s,
                    rows,
                    base,
                    segments.get(),
                    &mut turned,
                    &mut scores,
                    &mut largest,
                    &mut sums,
                );
            }
        }
        for (row, sum) in sums.iter().enumerate().take(rows) {
            // A query that sees nothing gives zeros.
            let inverse = if *sum > 0.0 { 1.0 / sum } else { 0.0 };
            self.scale_out(s, row, inverse);
        }
    }
}

impl Item<'_> {
    /// Finds a query's keys in the block; whether it sees any.
    #[inline(always)]
    fn fill(
        &self,
        segments: &mut Segments,
        query: usize,
        base: usize,
        cursors: &mut [usize; ROWS],
    ) -> bool {
        let view = &self.visible.queries()[self.queries.start + query];
        if view.positions.start as usize >= base + BLOCK || view.positions.end as usize <= base {
            return false;
        }
        let runs = self.visible.list(view.list);
        let cursor = &mut cursors[query];
        while runs
            .get(*cursor)
            .is_some_and(|run| (run.position + run.len) as usize <= base)
        {
            *cursor += 1;
        }
        segments.fill(&runs[*cursor..], base, self.kv.frozen_cells as usize);
        true
    }

    /// One block of keys for some rows that find them in the same places.
    #[inline(always)]
    #[allow(clippy::too_many_arguments, reason = "the state of the loop above")]
    fn block<S: Simd>(
        &self,
        s: S,
        rows: Range<usize>,
        base: usize,
        segments: &[Segment],
        turned: &mut Turned,
        scores: &mut Scores,
        largest: &mut [f32; ROWS],
        sums: &mut [f32; ROWS],
    ) {
        let keys = Keys::new(segments, self.kv.keys);
        self.score(s, rows.clone(), &keys, turned, scores);
        for row in rows.clone() {
            self.finish_scores(s, row, base, segments, &mut scores[row]);
            self.weigh(s, row, &mut scores[row], &mut largest[row], &mut sums[row]);
        }
        for segment in segments {
            with_storage!(self.kv.values.storage, E => self.mix::<S, E>(s, rows.clone(), *segment, scores));
        }
    }

    /// Token and query head of a row.
    #[inline(always)]
    fn place(&self, row: usize) -> usize {
        (self.queries.start + row / self.heads) * self.op.heads + self.first_head + row % self.heads
    }

    #[inline(always)]
    fn q_row(&self, row: usize) -> *const f32 {
        // SAFETY: `Attend::run`'s caller vouches for every query.
        unsafe { self.q.at(self.place(row) * self.op.key_dim) }
    }

    #[inline(always)]
    fn out_row(&self, row: usize) -> *mut f32 {
        // SAFETY: `Attend::run`'s caller vouches for every output row.
        unsafe { self.out.at(self.place(row) * self.op.value_dim) }
    }

    /// Scales and caps a row's scores and removes what its query does not see.
    #[inline(always)]
    fn finish_scores<S: Simd>(
        &self,
        s: S,
        row: usize,
        base: usize,
        segments: &[Segment],
        scores: &mut [f32; BLOCK],
    ) {
        for i in 0..BLOCK / LANES {
            // SAFETY: a block holds whole vectors.
            unsafe {
                let p = scores.as_mut_ptr().add(i * LANES);
                let mut v = s.mul(s.load(p), s.splat(self.op.scale));
                if let Some(cap) = self.op.softcap {
                    v = s.mul(s.splat(cap), s.tanh(s.div(v, s.splat(cap))));
                }
                s.store(p, v);
            }
        }
        let mut column = 0;
        for segment in segments {
            scores[column..segment.start].fill(f32::NEG_INFINITY);
            column = segment.end;
        }
        scores[column..].fill(f32::NEG_INFINITY);
        let view = &self.visible.queries()[self.queries.start + row / self.heads].positions;
        let from = (view.start as usize).saturating_sub(base).min(BLOCK);
        let to = (view.end as usize).saturating_sub(base).min(BLOCK);
        scores[..from].fill(f32::NEG_INFINITY);
        scores[to..].fill(f32::NEG_INFINITY);
    }

    /// Turns scores into weights relative to the largest so far, and rescales what was summed before.
    #[inline(always)]
    fn weigh<S: Simd>(
        &self,
        s: S,
        row: usize,
        scores: &mut [f32; BLOCK],
        largest: &mut f32,
        sum: &mut f32,
    ) {
        let mut vectors = [s.zero(); BLOCK / LANES];
        let mut top = s.splat(f32::NEG_INFINITY);
        for (i, v) in vectors.iter_mut().enumerate() {
            // SAFETY: a block holds whole vectors.
            *v = unsafe { s.load(scores.as_ptr().add(i * LANES)) };
            top = s.max(top, *v);
        }
        let block_top = s.largest(top);
        let new = block_top.max(*largest);
        if new == f32::NEG_INFINITY {
            scores.fill(0.0);
            return;
        }
        if new > *largest {
            let factor = s.largest(s.exp(s.splat(*largest - new)));
            self.scale_out(s, row, factor);
            *sum *= factor;
            *largest = new;
        }
        let mut total = s.zero();
        for (i, v) in vectors.into_iter().enumerate() {
            let weight = s.exp(s.sub(v, s.splat(new)));
            total = s.add(total, weight);
            // SAFETY: a block holds whole vectors.
            unsafe { s.store(scores.as_mut_ptr().add(i * LANES), weight) };
        }
        *sum += s.sum(total);
    }

    /// Multiplies an output row.
    #[inline(always)]
    fn scale_out<S: Simd>(&self, s: S, row: usize, factor: f32) {
        let out = self.out_row(row);
        let (chunks, tail) = split(self.op.value_dim);
        // SAFETY: an output row holds `value_dim` elements.
        unsafe {
            for chunk in 0..chunks {
                let p = out.add(chunk * LANES);
                s.store(p, s.mul(s.load(p), s.splat(factor)));
            }
            if tail > 0 {
                let p = out.add(chunks * LANES);
                s.store_part(p, s.mul(s.load_part(p, tail), s.splat(factor)), tail);
            }
        }
    }

    /// Adds the segment's values, weighted, to the output rows.
    #[inline(always)]
    fn mix<S: Simd, E: Stored>(
        &self,
        s: S,
        rows: Range<usize>,
        segment: Segment,
        weights: &Scores,
    ) {
        let start = rows.start;
        let mut first = start;
        while first < rows.end {
            let (segment, at) = (segment, (start, first));
            first += match rows.end - first {
                1 => self.mix_batch::<S, E, 1>(s, segment, at, weights),
                2 => self.mix_batch::<S, E, 2>(s, segment, at, weights),
                3 => self.mix_batch::<S, E, 3>(s, segment, at, weights),
                4 | 5 => self.mix_batch::<S, E, 4>(s, segment, at, weights),
                6..MIXED => self.mix_batch::<S, E, 6>(s, segment, at, weights),
                _ => self.mix_batch::<S, E, MIXED>(s, segment, at, weights),
            };
        }
    }

    /// Some rows from `first` on, as many as the constant says; how many those are.
    #[inline(always)]
    fn mix_batch<S: Simd, E: Stored, const R: usize>(
        &self,
        s: S,
        segment: Segment,
        (start, first): (usize, usize),
        weights: &Scores,
    ) -> usize {
        let dim = self.op.value_dim;
        let (chunks, tail) = split(dim);
        let outs: [*mut f32; R] = std::array::from_fn(|r| self.out_row(first + r));
        let weights: [*const f32; R] = std::array::from_fn(|r| weights[first + r].as_ptr());
        let row_bytes = self.kv.values.row_bytes;
        let rows = &segment.rows(&self.kv.values)[..(segment.end - segment.start) * row_bytes];
        // Keys and values are used once per step, so they come from far away: those of the next block are asked for while
        // this one's are used, by the rows that use them first.
        let ahead = first == start;
        // SAFETY: `rows` holds a stored row for every column of the segment; output rows hold `dim` elements.
        unsafe {
            for chunk in 0..chunks {
                let at = chunk * LANES;
                let mut sums: [S::V; R] = std::array::from_fn(|r| s.load(outs[r].add(at)));
                for column in segment.start..segment.end {
                    let row = rows.as_ptr().add((column - segment.start) * row_bytes);
                    if ahead {
                        let part = row_bytes * chunk / chunks;
                        s.prefetch(row.wrapping_add(BLOCK * row_bytes + part));
                    }
                    let v = E::load(s, row, chunk, dim);
                    for r in 0..R {
                        sums[r] = s.fma(s.splat(*weights[r].add(column)), v, sums[r]);
                    }
                }
                for r in 0..R {
                    s.store(outs[r].add(at), sums[r]);
                }
            }
            if tail > 0 {
                let at = chunks * LANES;
                let mut sums: [S::V; R] =
                    std::array::from_fn(|r| s.load_part(outs[r].add(at), tail));
                for column in segment.start..segment.end {
                    let v = E::load_part(
                        s,
                        rows.as_ptr().add((column - segment.start) * row_bytes),
                        chunks,
                        dim,
                    );
                    for r in 0..R {
                        sums[r] = s.fma(s.splat(*weights[r].add(column)), v, sums[r]);
                    }
                }
                for r in 0..R {
                    s.store_part(outs[r].add(at), sums[r], tail);
                }
            }
        }
        R
    }
}
