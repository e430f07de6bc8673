//! Softmax and log-softmax along an axis.

use crate::kernels::axis_view::AxisView;
use crate::kernels::{Context, SendPtr, for_row_ranges, split_vectors};
use crate::simd::{Kernel, LANES, Simd};

/// Softmax or log-softmax along an axis.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Softmax {
    pub(crate) lines: AxisView,
    pub(crate) log: bool,
}

impl Softmax {
    /// # Safety
    /// Both must hold all lines; `out` may be `x`.
    pub(crate) unsafe fn run(&self, ctx: &Context<'_>, x: *const f32, out: *mut f32) {
        let (x, out) = (SendPtr(x.cast_mut()), SendPtr(out));
        for_row_ranges(ctx, self.lines.count(), self.lines.len, &|start, end| {
            ctx.isa.run(SoftmaxLines {
                op: *self,
                x,
                out,
                start,
                end,
            });
        });
    }
}

struct SoftmaxLines {
    op: Softmax,
    x: SendPtr<f32>,
    out: SendPtr<f32>,
    start: usize,
    end: usize,
}

impl Kernel for SoftmaxLines {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let AxisView { len, inner, .. } = self.op.lines;
        for line in self.start..self.end {
            let at = self.op.lines.start(line);
            // SAFETY: `Softmax::run`'s caller guarantees the lines.
            unsafe {
                let (x, out) = (self.x.at(at), self.out.at(at));
                if inner == 1 {
                    softmax_row(s, x, out, len, self.op.log);
                } else {
                    softmax_line(x, out, len, inner, self.op.log);
                }
            }
        }
    }
}

/// The softmax of a contiguous row. A row of negative infinities only, or with a NaN in it, gives NaN.
///
/// # Safety
/// `len` elements must be readable at `x` and writable at `out`, which may be `x`.
#[inline(always)]
unsafe fn softmax_row<S: Simd>(s: S, x: *const f32, out: *mut f32, len: usize, log: bool) {
    let (chunks, tail) = split_vectors(len);
    // SAFETY: the caller guarantees the line; partial loads stay inside it.
    unsafe {
        let largest = largest(s, x, len);
        let shift = s.splat(largest);
        let (mut sums, mut numbers) = (s.zero(), s.zero());
        for chunk in 0..chunks {
            let v = s.load(x.add(chunk * LANES));
            let weight = s.exp(s.sub(v, shift));
            numbers = s.add(numbers, is_number(s, v));
            sums = s.add(sums, weight);
            if !log {
                s.store(out.add(chunk * LANES), weight);
            }
        }
        let mut sum = s.reduce_sum(sums);
        let mut count = s.reduce_sum(numbers);
        let mut last = [0.0f32; LANES];
        if tail > 0 {
            let v = s.load_part(x.add(chunks * LANES), tail);
            s.store(last.as_mut_ptr(), s.exp(s.sub(v, shift)));
            for i in 0..tail {
                sum += last[i];
                let element = *x.add(chunks * LANES + i);
                count += if element.is_nan() { 0.0 } else { 1.0 };
            }
        }
        if count < len as f32 {
            sum = f32::NAN;
        }
        if log {
            let (shift, minus) = (shift, s.splat(sum.ln()));
            for chunk in 0..chunks {
                let v = s.load(x.add(chunk * LANES));
                s.store(out.add(chunk * LANES), s.sub(s.sub(v, shift), minus));
            }
            for i in 0..tail {
                let at = chunks * LANES + i;
                *out.add(at) = *x.add(at) - largest - sum.ln();
            }
        } else {
            let inverse = 1.0 / sum;
            for chunk in 0..chunks {
                let at = out.add(chunk * LANES);
                s.store(at, s.mul(s.load(at), s.splat(inverse)));
            }
            for i in 0..tail {
                *out.add(chunks * LANES + i) = last[i] * inverse;
            }
        }
    }
}

/// One where an element is not NaN, zero elsewhere.
#[inline(always)]
fn is_number<S: Simd>(s: S, x: S::V) -> S::V {
    s.select_ge_or_zero(x, s.splat(f32::NEG_INFINITY), s.splat(1.0))
}

/// The largest of `len` elements; negative infinity if there are none.
///
/// # Safety
/// `len` elements must be readable at `x`.
#[inline(always)]
pub(crate) unsafe fn largest<S: Simd>(s: S, x: *const f32, len: usize) -> f32 {
    let (chunks, tail) = split_vectors(len);
    let mut largest = s.splat(f32::NEG_INFINITY);
    // SAFETY: the caller guarantees the elements.
    unsafe {
        for chunk in 0..chunks {
            largest = s.max(largest, s.load(x.add(chunk * LANES)));
        }
        let mut result = s.reduce_max(largest);
        for i in 0..tail {
            result = result.max(*x.add(chunks * LANES + i));
        }
        result
    }
}

/// The softmax of a strided line.
///
/// # Safety
/// `len` elements `step` apart must be readable from `x` and writable from `out`, which may be `x`.
unsafe fn softmax_line(x: *const f32, out: *mut f32, len: usize, step: usize, log: bool) {
    // SAFETY: the caller guarantees the line.
    unsafe {
        let largest = (0..len).fold(f32::NEG_INFINITY, |m, i| m.max(*x.add(i * step)));
        let sum: f32 = (0..len).map(|i| (*x.add(i * step) - largest).exp()).sum();
        for i in 0..len {
            let shifted = *x.add(i * step) - largest;
            *out.add(i * step) = if log {
                shifted - sum.ln()
            } else {
                shifted.exp() / sum
            };
        }
    }
}
