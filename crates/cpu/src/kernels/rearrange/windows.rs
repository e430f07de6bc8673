//! Sliding windows (im2col).

use crate::kernels::{Context, SendPtr, for_row_ranges};
use graph::ops::WindowAxis;

/// How a window slides along one axis.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slide {
    /// Elements of the axis.
    pub(crate) len: usize,
    /// Positions of the window.
    pub(crate) places: usize,
    /// Elements of the window.
    pub(crate) size: usize,
    pub(crate) stride: usize,
    pub(crate) dilation: usize,
    /// Padding before the axis.
    pub(crate) before: usize,
}

impl Slide {
    /// An axis of one element.
    pub(crate) const ONE: Slide = Slide {
        len: 1,
        places: 1,
        size: 1,
        stride: 1,
        dilation: 1,
        before: 0,
    };

    /// Windows along the last axes of an operand, as three axes.
    pub(crate) fn three(axes: &[WindowAxis], sizes: &[usize], places: &[usize]) -> [Slide; 3] {
        let mut slides = [Slide::ONE; 3];
        let first = slides.len() - axes.len();
        for (i, axis) in axes.iter().enumerate() {
            slides[first + i] = Slide {
                len: sizes[i],
                places: places[i],
                size: axis.size,
                stride: axis.stride,
                dilation: axis.dilation,
                before: axis.before,
            };
        }
        slides
    }

    /// The element of the axis under element `within` of the window at `place`; `None` in the padding.
    #[inline(always)]
    pub(crate) fn at(&self, place: usize, within: usize) -> Option<usize> {
        let at = place * self.stride + within * self.dilation;
        at.checked_sub(self.before).filter(|at| *at < self.len)
    }
}

/// `x [batch, channels, S..]` to `[batch, P.., channels, K..]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Windows {
    pub(crate) batch: usize,
    pub(crate) channels: usize,
    pub(crate) axes: [Slide; 3],
    pub(crate) padding: f32,
}

impl Windows {
    /// # Safety
    /// `x` must hold all elements and `out` all windows.
    pub(crate) unsafe fn run(&self, ctx: &Context<'_>, x: *const f32, out: *mut f32) {
        let (x, out) = (SendPtr(x.cast_mut()), SendPtr(out));
        let [a, b, c] = self.axes;
        let window = a.size * b.size * c.size;
        let row = c.places * self.channels * window;
        for_row_ranges(ctx, self.batch * a.places * b.places, row, &|start, end| {
            for i in start..end {
                let (batch, rest) = (i / (a.places * b.places), i % (a.places * b.places));
                let place = [rest / b.places, rest % b.places];
                // SAFETY: the caller guarantees the tensors; every row is written by one task.
                unsafe {
                    let from = batch * self.channels * a.len * b.len * c.len;
                    self.row(x.at(from), place, out.at(i * row));
                }
            }
        });
    }

    /// The windows of one row of positions.
    ///
    /// # Safety
    /// `x` must hold a batch's elements and `out` the row's windows.
    unsafe fn row(&self, x: *const f32, place: [usize; 2], out: *mut f32) {
        let [a, b, c] = self.axes;
        let mut out = out;
        for last in 0..c.places {
            // The elements of the window's last axis that are not padding.
            let first = last * c.stride;
            let left = c
                .before
                .saturating_sub(first)
                .div_ceil(c.dilation)
                .min(c.size);
            let right = (c.len + c.before).saturating_sub(first);
            let right = right.div_ceil(c.dilation).clamp(left, c.size);
            for channel in 0..self.channels {
                for (i, j) in (0..a.size).flat_map(|i| (0..b.size).map(move |j| (i, j))) {
                    let at = a.at(place[0], i).zip(b.at(place[1], j));
                    // SAFETY: `at` and the range of `k` are inside the axes, and `out` moves over one row.
                    unsafe {
                        match at {
                            Some((p, q)) => {
                                let line = x.add(((channel * a.len + p) * b.len + q) * c.len);
                                for k in 0..left {
                                    *out.add(k) = self.padding;
                                }
                                for k in left..right {
                                    *out.add(k) = *line.add(first + k * c.dilation - c.before);
                                }
                                for k in right..c.size {
                                    *out.add(k) = self.padding;
                                }
                            }
                            None => {
                                for k in 0..c.size {
                                    *out.add(k) = self.padding;
                                }
                            }
                        }
                        out = out.add(c.size);
                    }
                }
            }
        }
    }
}
