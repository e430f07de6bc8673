//! KV splits: attention over fixed runs of positions, whose partial results are merged in order.
//!
//! Positions are divided into splits of one size, and a row's result is merged from its splits, one after the other. So
//! splits can be computed by different threads when there are few heads and a long context, and the result is
//! bit-identical to that of one thread.

use super::{KEY_BLOCK, SendPtr};
use crate::kernels::split_vectors;
use crate::simd::{Kernel, LANES, Simd};
use kv::QueryView;
use std::f32::consts::LOG2_E;
use std::marker::PhantomData;
use std::ops::Range;

/// Positions of a KV split.
pub(super) const KV_SPLIT: usize = 8 * KEY_BLOCK;

/// The KV splits that any of these queries sees.
pub(super) fn visible_splits(queries: &[QueryView]) -> Range<usize> {
    let seen = queries
        .iter()
        .filter(|q| q.positions.start < q.positions.end);
    let first = |q: &QueryView| match q.sinks {
        0 => q.positions.start as usize,
        _ => 0,
    };
    let first = seen.clone().map(first).min();
    let end = seen.map(|q| q.positions.end as usize).max();
    match (first, end) {
        (Some(first), Some(end)) => first / KV_SPLIT..end.div_ceil(KV_SPLIT),
        _ => 0..0,
    }
}

/// The running maximum and sum of a row's softmax; scores are exponents of two.
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

/// The score of each query head for one more row, whose value is zero; null without them.
#[derive(Clone, Copy)]
pub(super) struct Sinks {
    pub(super) at: SendPtr<f32>,
    pub(super) heads: usize,
}

impl Sinks {
    /// The softmax of a row of the output, with its sink. A row that saw no key has none.
    ///
    /// # Safety
    /// There must be no sinks or one for every head.
    #[inline(always)]
    pub(super) unsafe fn add(&self, state: SoftmaxState, row: usize) -> SoftmaxState {
        if self.at.0.is_null() || state.sum == 0.0 {
            return state;
        }
        // SAFETY: as the caller guarantees.
        let sink = unsafe { self.at.at(row % self.heads).read() };
        // A sink far above all scores makes the sum infinite, and the row zeros.
        let weight = (sink * LOG2_E - state.largest).exp2();
        SoftmaxState {
            sum: state.sum + weight,
            ..state
        }
    }
}

/// Multiplies a row by a factor.
///
/// # Safety
/// `row` must hold `dim` elements.
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

/// Divides a row by the sum of its weights; a row that saw no key becomes zeros.
///
/// # Safety
/// `dim` elements must be writable at `row`, and initialised if the row saw a key.
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

/// Merges a split's result into the result of the splits before it.
///
/// # Safety
/// Both addresses must hold `dim` elements; `row` may be uninitialised if there is no result before.
#[inline(always)]
pub(super) unsafe fn merge<S: Simd>(
    s: S,
    dim: usize,
    all: &mut SoftmaxState,
    row: *mut f32,
    kv_split: SoftmaxState,
    from: *const f32,
) {
    if kv_split.largest == f32::NEG_INFINITY {
        return;
    }
    // SAFETY: as the caller guarantees.
    unsafe {
        if all.largest == f32::NEG_INFINITY {
            std::ptr::copy_nonoverlapping(from, row, dim);
            *all = kv_split;
            return;
        }
        let largest = all.largest.max(kv_split.largest);
        let before = s.reduce_max(s.exp2_nonpositive(s.splat(all.largest - largest)));
        let factor = s.reduce_max(s.exp2_nonpositive(s.splat(kv_split.largest - largest)));
        for at in (0..dim).step_by(LANES) {
            let count = LANES.min(dim - at);
            let new = s.mul(s.load_part(from.add(at), count), s.splat(factor));
            let sum = s.fma(s.load_part(row.add(at), count), s.splat(before), new);
            s.store_part(row.add(at), sum, count);
        }
        *all = SoftmaxState {
            largest,
            sum: all.sum * before + kv_split.sum * factor,
        };
    }
}

/// Elements of the buffer for partial results.
const SPLIT_BUFFER_ELEMENTS: usize = 1 << 15;

/// Whether the buffer holds the partial results of this many rows and splits.
pub(super) fn fits(rows: usize, kv_splits: usize, dim: usize) -> bool {
    rows * kv_splits * (2 + dim) <= SPLIT_BUFFER_ELEMENTS
}

/// Memory for partial results.
pub(super) struct SplitBuffer([std::mem::MaybeUninit<f32>; SPLIT_BUFFER_ELEMENTS]);

impl SplitBuffer {
    pub(super) fn new() -> SplitBuffer {
        SplitBuffer([std::mem::MaybeUninit::uninit(); SPLIT_BUFFER_ELEMENTS])
    }
}

/// The partial results of every split of every row: the softmax state, then the weighted values.
pub(super) struct SplitResults<'a> {
    at: SendPtr<f32>,
    rows: usize,
    kv_splits: usize,
    dim: usize,
    buffer: PhantomData<&'a mut SplitBuffer>,
}

impl<'a> SplitResults<'a> {
    /// Results in a buffer that must be large enough, see [`fits`].
    ///
    /// # Panics
    /// Panics if the buffer is too small.
    pub(super) fn new(
        buffer: &'a mut SplitBuffer,
        rows: usize,
        kv_splits: usize,
        dim: usize,
    ) -> SplitResults<'a> {
        assert!(
            fits(rows, kv_splits, dim),
            "more KV splits than the buffer holds"
        );
        SplitResults {
            at: SendPtr(buffer.0.as_mut_ptr().cast()),
            rows,
            kv_splits,
            dim,
            buffer: PhantomData,
        }
    }

    /// The address of a partial result.
    ///
    /// # Safety
    /// Row and split must exist.
    unsafe fn result_address(&self, row: usize, kv_split: usize) -> *mut f32 {
        // SAFETY: as the caller guarantees.
        unsafe {
            self.at
                .at((row * self.kv_splits + kv_split) * (2 + self.dim))
        }
    }

    /// Stores a partial result.
    ///
    /// # Safety
    /// No other thread may use this split of this row at the same time.
    pub(super) unsafe fn put(
        &self,
        row: usize,
        kv_split: usize,
        state: SoftmaxState,
        weighted: &[f32],
    ) {
        assert!(row < self.rows && kv_split < self.kv_splits && weighted.len() == self.dim);
        // SAFETY: as the caller guarantees, and the address was checked.
        unsafe {
            let to = self.result_address(row, kv_split);
            to.write(state.largest);
            to.add(1).write(state.sum);
            std::ptr::copy_nonoverlapping(weighted.as_ptr(), to.add(2), self.dim);
        }
    }
}

/// The kernel that merges the splits of every row.
pub(super) struct MergeSplits<'a> {
    pub(super) results: &'a SplitResults<'a>,
    pub(super) sinks: Sinks,
    pub(super) out: SendPtr<f32>,
}

impl Kernel for MergeSplits<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let p = self.results;
        for row in 0..p.rows {
            let mut all = SoftmaxState::NOTHING;
            // SAFETY: every split of every row has been stored, and the output has a row for each.
            unsafe {
                let out = self.out.at(row * p.dim);
                for kv_split in 0..p.kv_splits {
                    let from = p.result_address(row, kv_split);
                    let state = SoftmaxState {
                        largest: from.read(),
                        sum: from.add(1).read(),
                    };
                    merge(s, p.dim, &mut all, out, state, from.add(2));
                }
                finish(s, p.dim, self.sinks.add(all, row), out);
            }
        }
    }
}
