//! The choice of experts by row.

use crate::kernels::{Context, SendPtr, for_row_ranges};
use graph::ops;

/// Weights of the experts that each row chooses.
#[derive(Clone, Debug)]
pub(crate) struct RouteExperts {
    pub(crate) op: ops::RouteExperts,
    pub(crate) rows: usize,
    pub(crate) experts: usize,
}

impl RouteExperts {
    /// # Safety
    /// `logits` and `out` must hold all rows, and `bias` one number for each expert if it is not null. `out` must overlap neither.
    pub(crate) unsafe fn run(
        &self,
        ctx: &Context<'_>,
        logits: *const f32,
        bias: *const f32,
        out: *mut f32,
    ) {
        let (logits, bias) = (SendPtr(logits.cast_mut()), SendPtr(bias.cast_mut()));
        let (out, n) = (SendPtr(out), self.experts);
        // Sorting takes longer than reading.
        for_row_ranges(ctx, self.rows, 8 * n, &|start, end| {
            let mut order = Vec::with_capacity(n);
            for row in start..end {
                // SAFETY: the caller guarantees the rows and the bias.
                unsafe {
                    let logits = std::slice::from_raw_parts(logits.at(row * n), n);
                    let weights = std::slice::from_raw_parts_mut(out.at(row * n), n);
                    let bias = bias.at(0).cast_const();
                    let bias = (!bias.is_null()).then(|| std::slice::from_raw_parts(bias, n));
                    self.op.route_row(logits, bias, weights, &mut order);
                }
            }
        });
    }
}
