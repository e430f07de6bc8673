//! Adds bias and residual to the sums of a convolution and applies its activation.

use crate::kernels::elementwise::functions::{Identity, VectorFunction, with_activation};
use crate::kernels::split_vectors;
use crate::simd::{Kernel, LANES, Simd};
use graph::ops::Activation;

/// `out = activation(out + bias + residual)` on rows with one bias each.
pub(super) struct FinishRows {
    pub(super) out: *mut f32,
    /// Null without a bias.
    pub(super) bias: *const f32,
    /// Null without a residual; it has the output's strides.
    pub(super) residual: *const f32,
    pub(super) activation: Option<Activation>,
    pub(super) rows: usize,
    /// Elements from one row to the next.
    pub(super) stride: usize,
    pub(super) columns: usize,
}

impl Kernel for FinishRows {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.activation {
            None => self.with(s, Identity),
            Some(activation) => with_activation!(activation, f => self.with(s, f)),
        }
    }
}

impl FinishRows {
    #[inline(always)]
    fn with<S: Simd>(&self, s: S, activation: impl VectorFunction) {
        let (vectors, rest) = split_vectors(self.columns);
        for row in 0..self.rows {
            // SAFETY: `Conv::finish` constructs it inside the output and the residual, with a bias for every row.
            unsafe {
                let out = self.out.add(row * self.stride);
                let residual = match self.residual.is_null() {
                    true => self.residual,
                    false => self.residual.add(row * self.stride),
                };
                let bias = match self.bias.is_null() {
                    true => s.zero(),
                    false => s.splat(*self.bias.add(row)),
                };
                for i in 0..vectors {
                    let at = out.add(i * LANES);
                    let mut sum = s.add(s.load(at), bias);
                    if !residual.is_null() {
                        sum = s.add(sum, s.load(residual.add(i * LANES)));
                    }
                    s.store(at, activation.apply(s, sum, sum));
                }
                if rest > 0 {
                    let at = out.add(vectors * LANES);
                    let mut sum = s.add(s.load_part(at, rest), bias);
                    if !residual.is_null() {
                        sum = s.add(sum, s.load_part(residual.add(vectors * LANES), rest));
                    }
                    s.store_part(at, activation.apply(s, sum, sum), rest);
                }
            }
        }
    }
}
