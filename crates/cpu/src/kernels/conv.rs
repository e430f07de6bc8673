//! Direct convolutions, for few channels a group: depthwise ones above all.

use super::rearrange::windows::Slide;
use super::{Context, SendPtr, for_row_ranges};
use crate::simd::{Kernel, Simd};

/// A convolution of `x [batch, groups · inner, S..]` with `weight [groups · outer, inner, K..]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Conv {
    pub(crate) batch: usize,
    pub(crate) groups: usize,
    /// Input channels of a group.
    pub(crate) inner: usize,
    /// Output channels of a group.
    pub(crate) outer: usize,
    pub(crate) axes: [Slide; 3],
}

impl Conv {
    /// # Safety
    /// The operands must have the sizes of the call; `bias` may be null; `out` must not overlap them.
    pub(crate) unsafe fn run(
        &self,
        ctx: &Context<'_>,
        x: *const f32,
        weight: *const f32,
        bias: *const f32,
        out: *mut f32,
    ) {
        let [a, b, c] = self.axes;
        let (x, weight) = (SendPtr(x.cast_mut()), SendPtr(weight.cast_mut()));
        let (bias, out) = (SendPtr(bias.cast_mut()), SendPtr(out));
        let rows = a.places * b.places;
        let window = a.size * b.size * c.size;
        let channels = self.groups * self.outer;
        let work = c.places * self.inner * window;
        for_row_ranges(ctx, self.batch * channels * rows, work, &|start, end| {
            for i in start..end {
                let (plane, row) = (i / rows, i % rows);
                let (batch, channel) = (plane / channels, plane % channels);
                let group = channel / self.outer;
                // SAFETY: the caller guarantees the operands; every row is written by one task.
                unsafe {
                    let from = (batch * self.groups + group) * self.inner * a.len * b.len * c.len;
                    ctx.isa.run(ConvRow {
                        op: *self,
                        x: x.at(from),
                        weight: weight.at(channel * self.inner * window),
                        bias: match bias.0.is_null() {
                            true => 0.0,
                            false => *bias.at(channel),
                        },
                        place: [row / b.places, row % b.places],
                        out: out.at(i * c.places),
                    });
                }
            }
        });
    }
}

/// One row of one output channel. Every element is summed in the order of the weights.
struct ConvRow {
    op: Conv,
    x: *const f32,
    weight: *const f32,
    bias: f32,
    place: [usize; 2],
    out: *mut f32,
}

impl Kernel for ConvRow {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let [a, b, c] = self.op.axes;
        // SAFETY: `Conv::run`'s caller guarantees the operands; positions are inside the axes.
        unsafe {
            let out = std::slice::from_raw_parts_mut(self.out, c.places);
            out.fill(self.bias);
            for channel in 0..self.op.inner {
                for i in 0..a.size {
                    for j in 0..b.size {
                        let at = a.at(self.place[0], i).zip(b.at(self.place[1], j));
                        let Some((p, q)) = at else { continue };
                        let line = self.x.add(((channel * a.len + p) * b.len + q) * c.len);
                        let weights = self
                            .weight
                            .add(((channel * a.size + i) * b.size + j) * c.size);
                        for k in 0..c.size {
                            let weight = *weights.add(k);
                            let inside = c.inside(k);
                            let first = inside.start * c.stride + k * c.dilation;
                            if inside.is_empty() {
                                continue;
                            }
                            let x = line.add(first - c.before);
                            let out = &mut out[inside];
                            if c.stride == 1 {
                                let x = std::slice::from_raw_parts(x, out.len());
                                for (out, x) in out.iter_mut().zip(x) {
                                    *out += weight * x;
                                }
                            } else {
                                for (n, out) in out.iter_mut().enumerate() {
                                    *out += weight * *x.add(n * c.stride);
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}
