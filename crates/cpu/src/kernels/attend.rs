//! Attention over cached rows, read in place in their storage type.
//!
//! Keys are taken in blocks of consecutive *positions*, in ascending order, with an online softmax between blocks. A
//! masked key contributes exactly nothing. So a query's result depends only on what it sees, not on the other queries
//! of the step and not on the cells its keys lie in.

mod cut;
mod decoded;
mod mix;
mod parts;
mod passes;
mod score;
mod segments;

use super::{Context, Shared};
use crate::ahead::Reader;
use crate::isa::Kernel;
use crate::kv::{CpuKv, HeadKv};
use crate::simd::{LANES, Simd};
use cut::{Cut, How, Which};
use decoded::Decoded;
use kv::{QueryView, Visibility};
use parts::{PART, Partials, State, merge};
use passes::{Pass, Passes};
use score::Keys;
use segments::Segment;
use std::cell::RefCell;
use std::f32::consts::LOG2_E;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Positions per block of the online softmax.
const BLOCK: usize = 64;
/// The largest value for which an item has as many rows as it may.
const MOST_DIM: usize = 256;
/// Query rows that share a pass over a block of keys.
const ROWS: usize = 48;
/// Query rows whose sums are kept in registers at once, for four vectors of keys or values.
const BATCH: usize = 6;
/// Query rows that keys and values are not decoded for beforehand.
const FEW: usize = 4;
/// Vectors of a block's scores.
const VECTORS: usize = BLOCK / LANES;

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
        let queries = attending(visible);
        let padding = visible.queries().len() - queries.len();
        if padding > 0 {
            let row = self.heads * self.value_dim;
            // SAFETY: the output has a row for every query.
            unsafe { out.add(queries.len() * row).write_bytes(0, padding * row) };
        }
        let cut = &Cut::new(self, queries, ctx.threads.count());
        let (q, out) = (Shared(q.cast_mut()), Shared(out));
        let item = |which: Which| Item {
            op: self,
            visible,
            queries: which.queries,
            first_head: which.first_head,
            heads: which.heads,
            kv: kv.head(id, which.kv_head),
            q,
            out,
        };
        let whole = |task: usize, thread: usize| {
            let item = item(cut.task(task).0);
            let parts = parts::of(&queries[item.queries.clone()]);
            run_item(ctx, thread, item, parts, None);
        };
        match cut.how {
            How::Alone => (0..cut.tasks()).for_each(|task| whole(task, 0)),
            How::Whole => ctx.threads.run(cut.tasks(), &whole),
            How::Shared => ctx.threads.run_near(cut.tasks(), &whole),
            How::Apart => {
                let mut room = parts::Room::new();
                let rows = queries.len() * self.heads;
                let partials = &Partials::new(&mut room, rows, cut.parts.len(), self.value_dim);
                ctx.threads.run_near(cut.tasks(), &|task, thread| {
                    let (which, part) = cut.task(task);
                    let parts = cut.parts.start + part..cut.parts.start + part + 1;
                    let apart = Some((partials, part));
                    run_item(ctx, thread, item(which), parts, apart);
                });
                ctx.isa.run(parts::Join { partials, out });
            }
        }
    }
}

/// The queries that see something: all before the padding at the end of a step.
fn attending(visible: &Visibility) -> &[QueryView] {
    let queries = visible.queries();
    let padding = queries.iter().rev().take_while(|q| q.positions.is_empty());
    &queries[..queries.len() - padding.count()]
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

/// Where an item's rows are summed, and how far they are.
struct Sums<'a> {
    /// A row after the other, whatever their place in the output is.
    mixed: &'a mut [f32],
    /// The sums of weights, in lanes; they are added up when the part is done.
    totals: [[f32; LANES]; ROWS],
    states: [State; ROWS],
}

impl<'a> Sums<'a> {
    /// Memory for the rows of any item.
    #[inline(always)]
    fn room() -> [MaybeUninit<f32>; ROWS * MOST_DIM] {
        [MaybeUninit::uninit(); ROWS * MOST_DIM]
    }

    /// So many zeros, in rows.
    #[inline(always)]
    fn new(room: &'a mut [MaybeUninit<f32>], count: usize) -> Sums<'a> {
        let mixed = &mut room[..count];
        mixed.fill(MaybeUninit::new(0.0));
        Sums {
            // SAFETY: they have just been written.
            mixed: unsafe { std::slice::from_raw_parts_mut(mixed.as_mut_ptr().cast(), count) },
            totals: [[0.0; LANES]; ROWS],
            states: [State::NOTHING; ROWS],
        }
    }
}

/// Some parts of an item's positions.
struct Parts<'a> {
    item: Item<'a>,
    parts: Range<usize>,
    /// Where the only part goes, and which of the step's parts it is; else all parts are joined.
    apart: Option<(&'a Partials<'a>, usize)>,
    work: &'a mut Work,
    reader: Reader<'a>,
}

fn run_item(
    ctx: &Context<'_>,
    thread: usize,
    item: Item<'_>,
    parts: Range<usize>,
    apart: Option<(&Partials<'_>, usize)>,
) {
    WORK.with_borrow_mut(|work| {
        ctx.isa.run(Parts {
            item,
            parts,
            apart,
            work,
            reader: ctx.threads.course(thread).reader(),
        });
    });
}

impl Kernel for Parts<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Parts {
            item,
            parts,
            apart,
            work,
            mut reader,
        } = self;
        let (rows, dim) = (item.queries.len() * item.heads, item.op.value_dim);
        let mut room = Sums::room();
        let mut all = [State::NOTHING; ROWS];
        for part in parts {
            let sums = item.part(s, part, &mut room, work, &mut reader);
            for row in 0..rows {
                let (state, mixed) = (sums.states[row], &sums.mixed[row * dim..][..dim]);
                // SAFETY: both hold a row; that of the output, or the row's part, is written by this task alone.
                unsafe {
                    if let Some((partials, index)) = apart {
                        partials.put(item.place(row), index, state, mixed);
                    } else {
                        let out = item.out_row(row);
                        merge(s, dim, &mut all[row], out, state, mixed.as_ptr());
                    }
                }
            }
        }
        if apart.is_none() {
            for (row, state) in all.iter().enumerate().take(rows) {
                // SAFETY: a row of the output.
                unsafe { parts::finish(s, dim, *state, item.out_row(row)) };
            }
        }
    }
}

/// What a pass over a block works with. Nothing is kept from one to the next.
struct Work {
    scores: Scores,
    /// The block's keys, then its values.
    decoded: Decoded,
}

thread_local! {
    static WORK: RefCell<Work> = const {
        RefCell::new(Work {
            scores: [[0.0; BLOCK]; ROWS],
            decoded: Decoded::new(),
        })
    };
}

impl Item<'_> {
    /// The sums over one part of the positions.
    #[inline(always)]
    fn part<'a, S: Simd>(
        &self,
        s: S,
        part: usize,
        room: &'a mut [MaybeUninit<f32>],
        work: &mut Work,
        reader: &mut Reader<'_>,
    ) -> Sums<'a> {
        let rows = self.queries.len() * self.heads;
        let mut sums = Sums::new(room, rows * self.op.value_dim);
        let mut passes = Passes::new(self, part * PART..(part + 1) * PART);
        while let Some(pass) = passes.next() {
            self.pass(s, &pass, work, &mut sums, reader);
        }
        for row in 0..rows {
            // SAFETY: a row of totals is a vector.
            sums.states[row].sum = s.sum(unsafe { s.load(sums.totals[row].as_ptr()) });
        }
        sums
    }

    #[inline(always)]
    fn pass<S: Simd>(
        &self,
        s: S,
        pass: &Pass<'_>,
        work: &mut Work,
        sums: &mut Sums<'_>,
        reader: &mut Reader<'_>,
    ) {
        let Pass { base, segments, .. } = *pass;
        let keys = Keys::new(segments, self.kv.keys);
        self.score(s, pass.rows.clone(), &keys, work, reader);
        let scores = &mut work.scores;
        for row in pass.rows.clone() {
            self.weigh(s, row, base, segments, &mut scores[row], sums);
        }
        self.mix(s, pass.rows.clone(), segments, work, sums, reader);
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

    /// A row's scores, scaled and capped, as powers of two; those of keys that its query does not see are nothing.
    #[inline(always)]
    fn seen<S: Simd>(
        &self,
        s: S,
        row: usize,
        base: usize,
        segments: &[Segment],
        scores: &mut [f32; BLOCK],
    ) -> [S::V; VECTORS] {
        let mut vectors = [s.zero(); VECTORS];
        for (i, v) in vectors.iter_mut().enumerate() {
            // SAFETY: a block holds whole vectors.
            *v = unsafe { s.load(scores.as_ptr().add(i * LANES)) };
            *v = if let Some(cap) = self.op.softcap {
                let inner = s.mul(*v, s.splat(self.op.scale / cap));
                s.mul(s.splat(cap * LOG2_E), s.tanh(inner))
            } else {
                s.mul(*v, s.splat(self.op.scale * LOG2_E))
            };
        }
        let view = &self.visible.queries()[self.queries.start + row / self.heads].positions;
        let from = (view.start as usize).saturating_sub(base).min(BLOCK);
        let to = (view.end as usize).saturating_sub(base).min(BLOCK);
        if let ([segment], 0, BLOCK) = (segments, from, to)
            && segment.len() == BLOCK
        {
            return vectors;
        }
        for (i, v) in vectors.iter().enumerate() {
            // SAFETY: as above.
            unsafe { s.store(scores.as_mut_ptr().add(i * LANES), *v) };
        }
        let mut column = 0;
        for segment in segments {
            scores[column..segment.start].fill(f32::NEG_INFINITY);
            column = segment.end;
        }
        scores[column..].fill(f32::NEG_INFINITY);
        scores[..from].fill(f32::NEG_INFINITY);
        scores[to..].fill(f32::NEG_INFINITY);
        for (i, v) in vectors.iter_mut().enumerate() {
            // SAFETY: as above.
            *v = unsafe { s.load(scores.as_ptr().add(i * LANES)) };
        }
        vectors
    }

    /// Turns scores into weights relative to the largest so far, and rescales what was summed before.
    #[inline(always)]
    fn weigh<S: Simd>(
        &self,
        s: S,
        row: usize,
        base: usize,
        segments: &[Segment],
        scores: &mut [f32; BLOCK],
        sums: &mut Sums<'_>,
    ) {
        let vectors = self.seen(s, row, base, segments, scores);
        let largest = &mut sums.states[row].largest;
        let mut top = vectors[0];
        for v in &vectors[1..] {
            top = s.max(top, *v);
        }
        let total = sums.totals[row].as_mut_ptr();
        // SAFETY: rows of sums and totals, and a block's whole vectors.
        unsafe {
            if s.any_larger(top, s.splat(*largest)) {
                let new = s.largest(top);
                if *largest > f32::NEG_INFINITY {
                    let factor = s.exp2_below(s.splat(*largest - new));
                    let dim = self.op.value_dim;
                    let mixed = sums.mixed[row * dim..][..dim].as_mut_ptr();
                    parts::scale(s, dim, mixed, factor);
                    s.store(total, s.mul(s.load(total), factor));
                }
                *largest = new;
            } else if *largest == f32::NEG_INFINITY {
                scores.fill(0.0);
                return;
            }
            let mut sum = s.load(total);
            for (i, v) in vectors.into_iter().enumerate() {
                let weight = s.exp2_below(s.sub(v, s.splat(*largest)));
                sum = s.add(sum, weight);
                s.store(scores.as_mut_ptr().add(i * LANES), weight);
            }
            s.store(total, sum);
        }
    }
}
