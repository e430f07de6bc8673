//! Attention over parts of the positions.
//!
//! Positions are divided into parts of one size, and a row's result is that of its parts, one after the other. Parts can
//! so be handed out to threads where there are few heads and a long context, and the bits are those of one thread.

use super::{BLOCK, Shared};
use crate::isa::Kernel;
use crate::kernels::split;
use crate::simd::{LANES, Simd};
use kv::QueryView;
use std::marker::PhantomData;
use std::ops::Range;

/// Positions of a part.
pub(super) const PART: usize = 8 * BLOCK;

/// The parts that some queries see.
pub(super) fn of(queries: &[QueryView]) -> Range<usize> {
    let seen = queries
        .iter()
        .filter(|q| q.positions.start < q.positions.end);
    let first = seen.clone().map(|q| q.positions.start as usize).min();
    let end = seen.map(|q| q.positions.end as usize).max();
    match (first, end) {
        (Some(first), Some(end)) => first / PART..end.div_ceil(PART),
        _ => 0..0,
    }
}

/// How far the softmax of a row is; scores are powers of two.
#[derive(Clone, Copy)]
pub(super) struct State {
    pub(super) largest: f32,
    pub(super) sum: f32,
}

impl State {
    pub(super) const NOTHING: State = State {
        largest: f32::NEG_INFINITY,
        sum: 0.0,
    };
}

/// Multiplies a row.
///
/// # Safety
/// `dim` numbers must be there.
#[inline(always)]
pub(super) unsafe fn scale<S: Simd>(s: S, dim: usize, row: *mut f32, factor: S::V) {
    let (chunks, tail) = split(dim);
    // SAFETY: as the caller vouches.
    unsafe {
        for chunk in 0..chunks {
            let p = row.add(chunk * LANES);
            s.store(p, s.mul(s.load(p), factor));
        }
        if tail > 0 {
            let p = row.add(chunks * LANES);
            s.store_part(p, s.mul(s.load_part(p, tail), factor), tail);
        }
    }
}

/// Divides a row by the sum of its weights; a row that saw nothing becomes zeros.
///
/// # Safety
/// `dim` numbers must be writable at `row`, and be there where it saw anything.
#[inline(always)]
pub(super) unsafe fn finish<S: Simd>(s: S, dim: usize, state: State, row: *mut f32) {
    // SAFETY: as the caller vouches.
    unsafe {
        if state.sum > 0.0 {
            scale(s, dim, row, s.splat(1.0 / state.sum));
        } else {
            row.write_bytes(0, dim);
        }
    }
}

/// Adds a part of a row to those before it.
///
/// # Safety
/// `dim` numbers must be at both places; at `row` only where there is something before.
#[inline(always)]
pub(super) unsafe fn merge<S: Simd>(
    s: S,
    dim: usize,
    all: &mut State,
    row: *mut f32,
    part: State,
    from: *const f32,
) {
    if part.largest == f32::NEG_INFINITY {
        return;
    }
    // SAFETY: as the caller vouches.
    unsafe {
        if all.largest == f32::NEG_INFINITY {
            std::ptr::copy_nonoverlapping(from, row, dim);
            *all = part;
            return;
        }
        let largest = all.largest.max(part.largest);
        let before = s.largest(s.exp2_below(s.splat(all.largest - largest)));
        let factor = s.largest(s.exp2_below(s.splat(part.largest - largest)));
        for at in (0..dim).step_by(LANES) {
            let count = LANES.min(dim - at);
            let new = s.mul(s.load_part(from.add(at), count), s.splat(factor));
            let sum = s.fma(s.load_part(row.add(at), count), s.splat(before), new);
            s.store_part(row.add(at), sum, count);
        }
        *all = State {
            largest,
            sum: all.sum * before + part.sum * factor,
        };
    }
}

/// Numbers that partial results may take.
const ROOM: usize = 1 << 15;

/// Whether there is room for so many rows and parts.
pub(super) fn fit(rows: usize, parts: usize, dim: usize) -> bool {
    rows * parts * (2 + dim) <= ROOM
}

/// Memory for partial results.
pub(super) struct Room([std::mem::MaybeUninit<f32>; ROOM]);

impl Room {
    pub(super) fn new() -> Room {
        Room([std::mem::MaybeUninit::uninit(); ROOM])
    }
}

/// The results of every part of every row: its state, then its sums.
pub(super) struct Partials<'a> {
    at: Shared<f32>,
    rows: usize,
    parts: usize,
    dim: usize,
    room: PhantomData<&'a mut Room>,
}

impl<'a> Partials<'a> {
    /// As many as that, which must [`fit`].
    pub(super) fn new(room: &'a mut Room, rows: usize, parts: usize, dim: usize) -> Partials<'a> {
        assert!(fit(rows, parts, dim), "more parts than there is room for");
        Partials {
            at: Shared(room.0.as_mut_ptr().cast()),
            rows,
            parts,
            dim,
            room: PhantomData,
        }
    }

    /// # Safety
    /// Row and part must be there.
    unsafe fn place(&self, row: usize, part: usize) -> *mut f32 {
        // SAFETY: as the caller vouches.
        unsafe { self.at.at((row * self.parts + part) * (2 + self.dim)) }
    }

    /// # Safety
    /// No one else may use this part of this row at the same time.
    pub(super) unsafe fn put(&self, row: usize, part: usize, state: State, mixed: &[f32]) {
        assert!(row < self.rows && part < self.parts && mixed.len() == self.dim);
        // SAFETY: as the caller vouches, and the place is there.
        unsafe {
            let to = self.place(row, part);
            to.write(state.largest);
            to.add(1).write(state.sum);
            std::ptr::copy_nonoverlapping(mixed.as_ptr(), to.add(2), self.dim);
        }
    }
}

/// Joins the parts of every row.
pub(super) struct Join<'a> {
    pub(super) partials: &'a Partials<'a>,
    pub(super) out: Shared<f32>,
}

impl Kernel for Join<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let p = self.partials;
        for row in 0..p.rows {
            let mut all = State::NOTHING;
            // SAFETY: every part of every row was put, and the output has a row for each.
            unsafe {
                let out = self.out.at(row * p.dim);
                for part in 0..p.parts {
                    let from = p.place(row, part);
                    let state = State {
                        largest: from.read(),
                        sum: from.add(1).read(),
                    };
                    merge(s, p.dim, &mut all, out, state, from.add(2));
                }
                finish(s, p.dim, all, out);
            }
        }
    }
}
