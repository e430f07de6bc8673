//! RMS norm and layer norm of rows.

use crate::kernels::{Context, SendPtr, for_row_ranges, split_vectors};
use crate::simd::{Kernel, LANES, Simd};

/// An RMS norm or a layer norm of rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Norm {
    pub(crate) rows: usize,
    pub(crate) width: usize,
    pub(crate) eps: f32,
    /// Layer norm: subtract the mean and add a bias.
    pub(crate) centred: bool,
}

impl Norm {
    /// # Safety
    /// `x` and `out` must hold `rows · width` elements, `weight` (and `bias` when centred) `width`; `out` may be `x`.
    pub(crate) unsafe fn run(
        &self,
        ctx: &Context<'_>,
        x: *const f32,
        weight: *const f32,
        bias: *const f32,
        out: *mut f32,
    ) {
        let (x, out) = (SendPtr(x.cast_mut()), SendPtr(out));
        let (weight, bias) = (SendPtr(weight.cast_mut()), SendPtr(bias.cast_mut()));
        for_row_ranges(ctx, self.rows, self.width, &|start, end| {
            for row in start..end {
                // SAFETY: the caller guarantees `rows` rows, the weight and the bias.
                unsafe {
                    let (x, out) = (x.at(row * self.width), out.at(row * self.width));
                    self.row(ctx, x, weight.at(0), bias.at(0), out);
                }
            }
        });
    }

    /// Normalises one row.
    ///
    /// # Safety
    /// As for [`run`](Norm::run), for a row.
    pub(crate) unsafe fn row(
        &self,
        ctx: &Context<'_>,
        x: *const f32,
        weight: *const f32,
        bias: *const f32,
        out: *mut f32,
    ) {
        ctx.isa.run(NormRow {
            op: *self,
            x,
            weight,
            bias,
            out,
        });
    }
}

struct NormRow {
    op: Norm,
    x: *const f32,
    weight: *const f32,
    bias: *const f32,
    out: *mut f32,
}

impl Kernel for NormRow {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let width = self.op.width as f32;
        // SAFETY: `Norm::run`'s caller guarantees a row of `x` and `out`, and `weight` and `bias`.
        unsafe {
            let mean = if self.op.centred {
                self.sum::<S, false>(s, s.zero()) / width
            } else {
                0.0
            };
            let shift = s.splat(mean);
            let square = self.sum::<S, true>(s, shift);
            let inverse = s.splat(1.0 / (square / width + self.op.eps).sqrt());
            let (chunks, tail) = split_vectors(self.op.width);
            for chunk in 0..chunks {
                let at = chunk * LANES;
                let scaled = s.mul(
                    s.mul(s.sub(s.load(self.x.add(at)), shift), inverse),
                    s.load(self.weight.add(at)),
                );
                let result = if self.op.centred {
                    s.add(scaled, s.load(self.bias.add(at)))
                } else {
                    scaled
                };
                s.store(self.out.add(at), result);
            }
            let at = chunks * LANES;
            if tail > 0 {
                let x = s.sub(s.load_part(self.x.add(at), tail), shift);
                let scaled = s.mul(s.mul(x, inverse), s.load_part(self.weight.add(at), tail));
                let bias = if self.op.centred {
                    s.load_part(self.bias.add(at), tail)
                } else {
                    s.zero()
                };
                s.store_part(self.out.add(at), s.add(scaled, bias), tail);
            }
        }
    }
}

impl NormRow {
    /// The sum of the row's elements minus `shift`, or of their squares.
    ///
    /// # Safety
    /// A row must be readable at `x`.
    #[inline(always)]
    unsafe fn sum<S: Simd, const SQUARED: bool>(&self, s: S, shift: S::V) -> f32 {
        let (chunks, tail) = split_vectors(self.op.width);
        let mut sum = s.zero();
        // SAFETY: the caller guarantees the row; `lanes` holds sixteen.
        unsafe {
            for chunk in 0..chunks {
                let x = s.sub(s.load(self.x.add(chunk * LANES)), shift);
                sum = s.add(sum, if SQUARED { s.mul(x, x) } else { x });
            }
            if tail > 0 {
                let x = s.sub(s.load_part(self.x.add(chunks * LANES), tail), shift);
                // The lanes past the row's end hold `-shift` now, so zeros replace them.
                let mut lanes = [0.0; LANES];
                s.store_part(
                    lanes.as_mut_ptr(),
                    if SQUARED { s.mul(x, x) } else { x },
                    tail,
                );
                sum = s.add(sum, s.load(lanes.as_ptr()));
            }
        }
        s.reduce_sum(sum)
    }
}
