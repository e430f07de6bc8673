//! Attention over cached rows, read in place in their storage type.
//!
//! Keys are taken in blocks of consecutive *positions*, in ascending order, with an online softmax between blocks. A
//! masked key contributes exactly nothing. So a query's result depends only on what it sees, not on the other queries
//! of the step and not on the cells its keys lie in.

use super::{Context, Shared, split};
use crate::isa::Kernel;
use crate::kv::{HeadRows, LayerKv};
use crate::simd::{LANES, Simd};
use half::f16;
use kv::{Run, Visibility};

/// Positions per block of the online softmax.
const BLOCK: usize = 64;
/// Query rows that share a pass over a block of keys.
const ROWS: usize = 24;
/// Query rows whose sums are kept in registers at once.
const BATCH: usize = 6;

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
    /// Every visible cell must exist in `layer`.
    pub(crate) unsafe fn run(
        &self,
        ctx: &Context<'_>,
        visible: &Visibility,
        layer: &LayerKv,
        q: *const f32,
        out: *mut f32,
    ) {
        let group = self.heads / self.kv_heads;
        let heads_per_item = group.min(ROWS);
        let tiles = tiles(visible, ROWS / heads_per_item);
        let splits = group.div_ceil(heads_per_item);
        let (q, out) = (Shared(q.cast_mut()), Shared(out));
        ctx.threads
            .run(tiles.len() * self.kv_heads * splits, &|task, _| {
                // Long tiles last in a causal step, so they are taken first.
                let (tile, rest) = (
                    &tiles[tiles.len() - 1 - task / (self.kv_heads * splits)],
                    task % (self.kv_heads * splits),
                );
                let (kv_head, part) = (rest / splits, rest % splits);
                let first_head = kv_head * group + part * heads_per_item;
                let heads = heads_per_item.min((kv_head + 1) * group - first_head);
                ctx.isa.run(Item {
                    op: self,
                    visible,
                    tokens: tile.clone(),
                    first_head,
                    heads,
                    keys: layer.keys.head(kv_head),
                    values: layer.values.head(kv_head),
                    q,
                    out,
                });
            });
    }
}

/// Splits the queries into ranges of at most `most` whose keys lie alike, so that one pass over the keys serves all.
fn tiles(visible: &Visibility, most: usize) -> Vec<std::ops::Range<usize>> {
    let mut tiles: Vec<std::ops::Range<usize>> = Vec::new();
    for query in 0..visible.queries() {
        let joins = tiles.last().is_some_and(|tile| {
            tile.len() < most.max(1) && alike(visible.runs(tile.start), visible.runs(query))
        });
        match tiles.last_mut() {
            Some(tile) if joins => tile.end = query + 1,
            _ => tiles.push(query..query + 1),
        }
    }
    tiles
}

/// Whether two queries each see one run, with the same position in the same cell.
fn alike(a: &[Run], b: &[Run]) -> bool {
    match (a, b) {
        ([a], [b]) => {
            i64::from(a.cell) - i64::from(a.position) == i64::from(b.cell) - i64::from(b.position)
        }
        _ => false,
    }
}

/// Some query heads of one KV head, for the tokens of one tile.
struct Item<'a> {
    op: &'a Attend,
    visible: &'a Visibility,
    tokens: std::ops::Range<usize>,
    first_head: usize,
    heads: usize,
    keys: HeadRows<'a>,
    values: HeadRows<'a>,
    q: Shared<f32>,
    out: Shared<f32>,
}

/// Keys of a block that lie in consecutive cells: positions relative to the block, and the first one's cell.
#[derive(Clone, Copy)]
struct Segment {
    start: usize,
    end: usize,
    cell: usize,
}

/// A block's scores, then its weights, by query row.
type Scores = [[f32; BLOCK]; ROWS];

impl Kernel for Item<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let rows = self.tokens.len() * self.heads;
        let mut scores: Scores = [[0.0; BLOCK]; ROWS];
        let (mut largest, mut sums) = ([f32::NEG_INFINITY; ROWS], [0.0f32; ROWS]);
        for row in 0..rows {
            // SAFETY: a row of the output, written by this item alone.
            unsafe { std::slice::from_raw_parts_mut(self.out_row(row), self.op.value_dim) }
                .fill(0.0);
        }
        let runs = self.union();
        let end = runs.last().map_or(0, |r| (r.position + r.len) as usize);
        let first = runs.first().map_or(0, |r| r.position as usize);
        for base in (first / BLOCK * BLOCK..end).step_by(BLOCK) {
            for row in &mut scores[..rows] {
                row.fill(f32::NEG_INFINITY);
            }
            for segment in segments(&runs, base) {
                match self.keys {
                    HeadRows::F32(keys) => self.score::<S, f32>(s, keys, segment, &mut scores),
                    HeadRows::F16(keys) => self.score::<S, f16>(s, keys, segment, &mut scores),
                }
            }
            for row in 0..rows {
                self.finish_scores(s, row, base, &mut scores[row]);
                self.weigh(s, row, &mut scores[row], &mut largest[row], &mut sums[row]);
            }
            match self.values {
                HeadRows::F32(values) => self.mix::<S, f32>(s, values, &runs, base, &scores),
                HeadRows::F16(values) => self.mix::<S, f16>(s, values, &runs, base, &scores),
            }
        }
        for (row, sum) in sums.iter().enumerate().take(rows) {
            // A query that sees nothing gives zeros.
            let inverse = if *sum > 0.0 { 1.0 / sum } else { 0.0 };
            self.scale_out(s, row, inverse);
        }
    }
}

/// The parts of `runs` inside the block at `base`.
#[inline(always)]
fn segments(runs: &[Run], base: usize) -> impl Iterator<Item = Segment> + '_ {
    runs.iter().filter_map(move |run| {
        let (from, to) = (run.position as usize, (run.position + run.len) as usize);
        let (start, end) = (from.max(base), to.min(base + BLOCK));
        (start < end).then(|| Segment {
            start: start - base,
            end: end - base,
            cell: run.cell as usize + start - from,
        })
    })
}

impl Item<'_> {
    /// The runs that any token of the tile sees. Tiles of several tokens see one run each, at the same cells.
    fn union(&self) -> Vec<Run> {
        let mut runs = self.visible.runs(self.tokens.start).to_vec();
        for token in self.tokens.clone().skip(1) {
            let (joined, other) = (&mut runs[0], self.visible.runs(token)[0]);
            let end = (joined.position + joined.len).max(other.position + other.len);
            if other.position < joined.position {
                (joined.position, joined.cell) = (other.position, other.cell);
            }
            joined.len = end - joined.position;
        }
        runs
    }

    /// Token and query head of a row.
    #[inline(always)]
    fn place(&self, row: usize) -> usize {
        (self.tokens.start + row / self.heads) * self.op.heads + self.first_head + row % self.heads
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

    /// Dot products of every query row with the segment's keys.
    #[inline(always)]
    fn score<S: Simd, E: Stored>(&self, s: S, keys: &[E], segment: Segment, scores: &mut Scores) {
        let rows = self.tokens.len() * self.heads;
        for first in (0..rows).step_by(BATCH) {
            match rows - first {
                1 => self.score_batch::<S, E, 1>(s, keys, segment, first, scores),
                2 => self.score_batch::<S, E, 2>(s, keys, segment, first, scores),
                3 => self.score_batch::<S, E, 3>(s, keys, segment, first, scores),
                4 => self.score_batch::<S, E, 4>(s, keys, segment, first, scores),
                5 => self.score_batch::<S, E, 5>(s, keys, segment, first, scores),
                _ => self.score_batch::<S, E, BATCH>(s, keys, segment, first, scores),
            }
        }
    }

    #[inline(always)]
    fn score_batch<S: Simd, E: Stored, const R: usize>(
        &self,
        s: S,
        keys: &[E],
        segment: Segment,
        first: usize,
        scores: &mut Scores,
    ) {
        let dim = self.op.key_dim;
        let (chunks, tail) = split(dim);
        let queries: [*const f32; R] = std::array::from_fn(|r| self.q_row(first + r));
        for column in segment.start..segment.end {
            let key = &keys[(segment.cell + column - segment.start) * dim..][..dim];
            let mut dots = [s.zero(); R];
            // SAFETY: `key` and every query row hold `dim` elements.
            unsafe {
                for chunk in 0..chunks {
                    let k = E::load(s, key.as_ptr().add(chunk * LANES));
                    for r in 0..R {
                        dots[r] = s.fma(s.load(queries[r].add(chunk * LANES)), k, dots[r]);
                    }
                }
                if tail > 0 {
                    let k = E::load_part(s, key.as_ptr().add(chunks * LANES), tail);
                    for r in 0..R {
                        dots[r] = s.fma(
                            s.load_part(queries[r].add(chunks * LANES), tail),
                            k,
                            dots[r],
                        );
                    }
                }
            }
            for r in 0..R {
                scores[first + r][column] = s.sum(dots[r]);
            }
        }
    }

    /// Scales and caps a row's scores and removes what its token does not see.
    #[inline(always)]
    fn finish_scores<S: Simd>(&self, s: S, row: usize, base: usize, scores: &mut [f32; BLOCK]) {
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
        // Scaling keeps minus infinity, capping does not; and a tile of several tokens was scored on all their keys.
        if self.tokens.len() > 1 || self.op.softcap.is_some() {
            let runs = self.visible.runs(self.tokens.start + row / self.heads);
            let mut seen = [false; BLOCK];
            for segment in segments(runs, base) {
                seen[segment.start..segment.end].fill(true);
            }
            for (score, seen) in scores.iter_mut().zip(seen) {
                if !seen {
                    *score = f32::NEG_INFINITY;
                }
            }
        }
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

    /// Adds the block's values, weighted, to every output row.
    #[inline(always)]
    fn mix<S: Simd, E: Stored>(
        &self,
        s: S,
        values: &[E],
        runs: &[Run],
        base: usize,
        weights: &Scores,
    ) {
        let rows = self.tokens.len() * self.heads;
        for segment in segments(runs, base) {
            for first in (0..rows).step_by(BATCH) {
                match rows - first {
                    1 => self.mix_batch::<S, E, 1>(s, values, segment, first, weights),
                    2 => self.mix_batch::<S, E, 2>(s, values, segment, first, weights),
                    3 => self.mix_batch::<S, E, 3>(s, values, segment, first, weights),
                    4 => self.mix_batch::<S, E, 4>(s, values, segment, first, weights),
                    5 => self.mix_batch::<S, E, 5>(s, values, segment, first, weights),
                    _ => self.mix_batch::<S, E, BATCH>(s, values, segment, first, weights),
                }
            }
        }
    }

    #[inline(always)]
    fn mix_batch<S: Simd, E: Stored, const R: usize>(
        &self,
        s: S,
        values: &[E],
        segment: Segment,
        first: usize,
        weights: &Scores,
    ) {
        let dim = self.op.value_dim;
        let (chunks, tail) = split(dim);
        let outs: [*mut f32; R] = std::array::from_fn(|r| self.out_row(first + r));
        let rows = &values[segment.cell * dim..][..(segment.end - segment.start) * dim];
        // SAFETY: `rows` holds `dim` elements for every column of the segment, and so does every output row.
        unsafe {
            for chunk in 0..chunks {
                let at = chunk * LANES;
                let mut sums: [S::V; R] = std::array::from_fn(|r| s.load(outs[r].add(at)));
                for column in segment.start..segment.end {
                    let v = E::load(s, rows.as_ptr().add((column - segment.start) * dim + at));
                    for r in 0..R {
                        sums[r] = s.fma(s.splat(weights[first + r][column]), v, sums[r]);
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
                        rows.as_ptr().add((column - segment.start) * dim + at),
                        tail,
                    );
                    for r in 0..R {
                        sums[r] = s.fma(s.splat(weights[first + r][column]), v, sums[r]);
                    }
                }
                for r in 0..R {
                    s.store_part(outs[r].add(at), sums[r], tail);
                }
            }
        }
    }
}

/// An element type that rows are stored in.
trait Stored: Copy {
    /// # Safety
    /// Sixteen elements must be readable at `p`.
    unsafe fn load<S: Simd>(s: S, p: *const Self) -> S::V;
    /// # Safety
    /// `n < 16` elements must be readable at `p`.
    unsafe fn load_part<S: Simd>(s: S, p: *const Self, n: usize) -> S::V;
}

impl Stored for f32 {
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, p: *const f32) -> S::V {
        // SAFETY: as the caller vouches.
        unsafe { s.load(p) }
    }

    #[inline(always)]
    unsafe fn load_part<S: Simd>(s: S, p: *const f32, n: usize) -> S::V {
        // SAFETY: as the caller vouches.
        unsafe { s.load_part(p, n) }
    }
}

impl Stored for f16 {
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, p: *const f16) -> S::V {
        // SAFETY: as the caller vouches; `f16` is a transparent `u16`.
        unsafe { s.load_f16(p.cast()) }
    }

    #[inline(always)]
    unsafe fn load_part<S: Simd>(s: S, p: *const f16, n: usize) -> S::V {
        let mut halves = [0u16; LANES];
        // SAFETY: the caller vouches for `n` elements, fewer than the sixteen of `halves`.
        unsafe {
            std::ptr::copy_nonoverlapping(p.cast::<u16>(), halves.as_mut_ptr(), n.min(LANES));
            s.load_f16(halves.as_ptr())
        }
    }
}
