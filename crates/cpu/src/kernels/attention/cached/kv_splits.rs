//! Attention over parts of the positions.
//!
//! Positions are divided into parts of one size, and a row's result is that of its parts, one after the other. Parts can
//! so be handed out to threads where there are few heads and a long context, and the bits are those of one thread.

use super::{KEY_BLOCK, SendPtr};
use crate::isa::Kernel;
use crate::kernels::split_vectors;
use crate::simd::{LANES, Simd};
use kv::Query;
use std::marker::PhantomData;
use std::ops::Range;

/// Positions of a part.
pub(super) const KV_SPLIT: usize = 8 * KEY_BLOCK;

/// The parts that some queries see.
pub(super) fn visible_splits(queries: &[Query]) -> Range<usize> {
    let seen = queries
        .iter()
        .filter(|q| q.positions.start < q.positions.end);
    let first = seen.clone().map(|q| q.positions.start as usize).min();
    let end = seen.map(|q| q.positions.end as usize).max();
    match (first, end) {
        (Some(first), Some(end)) => first / KV_SPLIT..end.div_ceil(KV_SPLIT),
        _ => 0..0,
    }
}

/// How far the softmax of a row is; scores are powers of two.
#[derive(Clone, Copy)]
pub(super) struct SoftmaxState {
    pub(super) largest: f32,
    pub(super) sum: f32,
}

impl SoftmaxState {
    pub(super) const NOTHING: SoftmaxState = SoftmaxState {
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
    let (chunks, tail) = split_vectors(dim);
    // SAFETY: as the caller guarantees.
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
pub(super) unsafe fn finish<S: Simd>(s: S, dim: usize, state: SoftmaxState, row: *mut f32) {
    // SAFETY: as the caller guarantees.
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
    all: &mut SoftmaxState,
    row: *mut f32,
    part: SoftmaxState,
    from: *const f32,
) {
    if part.largest == f32::NEG_INFINITY {
        return;
    }
    // SAFETY: as the caller guarantees.
    unsafe {
        if all.largest == f32::NEG_INFINITY {
            std::ptr::copy_nonoverlapping(from, row, dim);
            *all = part;
            return;
        }
        let largest = all.largest.max(part.largest);
        let before = s.reduce_max(s.exp2_nonpositive(s.splat(all.largest - largest)));
        let factor = s.reduce_max(s.exp2_nonpositive(s.splat(part.largest - largest)));
        for at in (0..dim).step_by(LANES) {
            let count = LANES.min(dim - at);
            let new = s.mul(s.load_part(from.add(at), count), s.splat(factor));
            let sum = s.fma(s.load_part(row.add(at), count), s.splat(before), new);
            s.store_part(row.add(at), sum, count);
        }
        *all = SoftmaxState {
            largest,
            sum: all.sum * before + part.sum * factor,
        };
    }
}

/// Numbers that partial results may take.
const SPLIT_BUFFER_ELEMENTS: usize = 1 << 15;

/// Whether there is room for so many rows and parts.
pub(super) fn fits(rows: usize, parts: usize, dim: usize) -> bool {
    rows * parts * (2 + dim) <= SPLIT_BUFFER_ELEMENTS
}

/// Memory for partial results.
pub(super) struct SplitBuffer([std::mem::MaybeUninit<f32>; SPLIT_BUFFER_ELEMENTS]);

impl SplitBuffer {
    pub(super) fn new() -> SplitBuffer {
        SplitBuffer([std::mem::MaybeUninit::uninit(); SPLIT_BUFFER_ELEMENTS])
    }
}

/// The results of every part of every row: its state, then its sums.
pub(super) struct SplitResults<'a> {
    at: SendPtr<f32>,
    rows: usize,
    parts: usize,
    dim: usize,
    buffer: PhantomData<&'a mut SplitBuffer>,
}

impl<'a> SplitResults<'a> {
    /// As many as that, which must [`fits`].
    pub(super) fn new(
        buffer: &'a mut SplitBuffer,
        rows: usize,
        parts: usize,
        dim: usize,
    ) -> SplitResults<'a> {
        assert!(
            fits(rows, parts, dim),
            "more parts than there is buffer for"
        );
        SplitResults {
            at: SendPtr(buffer.0.as_mut_ptr().cast()),
            rows,
            parts,
            dim,
            buffer: PhantomData,
        }
    }

    /// # Safety
    /// Row and part must be there.
    unsafe fn place(&self, row: usize, part: usize) -> *mut f32 {
        // SAFETY: as the caller guarantees.
        unsafe { self.at.at((row * self.parts + part) * (2 + self.dim)) }
    }

    /// # Safety
    /// No one else may use this part of this row at the same time.
    pub(super) unsafe fn put(
        &self,
        row: usize,
        part: usize,
        state: SoftmaxState,
        weighted: &[f32],
    ) {
        assert!(row < self.rows && part < self.parts && weighted.len() == self.dim);
        // SAFETY: as the caller guarantees, and the place is there.
        unsafe {
            let to = self.place(row, part);
            to.write(state.largest);
            to.add(1).write(state.sum);
            std::ptr::copy_nonoverlapping(weighted.as_ptr(), to.add(2), self.dim);
        }
    }
}

/// Joins the parts of every row.
pub(super) struct MergeSplits<'a> {
    pub(super) results: &'a SplitResults<'a>,
    pub(super) out: SendPtr<f32>,
}

impl Kernel for MergeSplits<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let p = self.results;
        for row in 0..p.rows {
            let mut all = SoftmaxState::NOTHING;
            // SAFETY: every part of every row was put, and the output has a row for each.
            unsafe {
                let out = self.out.at(row * p.dim);
                for part in 0..p.parts {
                    let from = p.place(row, part);
                    let state = SoftmaxState {
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
