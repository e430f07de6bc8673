//! A product, and the part of it that one thread computes.

use super::activations::RowScaledActivations;
use super::format::{PANEL, PackedFormat};
use crate::kernels::matmul::LinearOperands;
use crate::kernels::matmul::epilogue::OutputTile;
use crate::prefetch::PrefetchPlan;
use crate::simd::Simd;
use backend::Precision;
use std::ops::Range;

/// `out [m, n] = x [m, k] · weightᵀ [n, k] (+ bias [n])` with a packed weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QuantisedLinear {
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) format: PackedFormat,
    pub(crate) precision: Precision,
}

/// Panels of one product that one thread multiplies.
pub(super) struct PanelTask<'a, A = RowScaledActivations> {
    pub(super) linear: QuantisedLinear,
    pub(super) operands: &'a LinearOperands,
    pub(super) activations: A,
    pub(super) panels: Range<usize>,
    pub(super) output: OutputTile,
    /// The memory that this thread prefetches.
    pub(super) prefetch_plan: &'a PrefetchPlan,
    /// The thread's scratch for expanded panels.
    pub(super) expanded: *mut u8,
}

impl<A> PanelTask<'_, A> {
    /// The address where a panel of a row of the product is stored.
    ///
    /// # Safety
    /// The panel must be one of the task's, the row one of the product's.
    #[inline(always)]
    unsafe fn output_address(&self, row: usize, panel: usize) -> *mut f32 {
        let OutputTile { out, first, stride } = self.output;
        // SAFETY: as the caller guarantees.
        unsafe { out.add(row * stride + panel * PANEL - first) }
    }
}

/// Stores up to sixteen outputs of one row, with bias and residual added.
///
/// # Safety
/// The panel must be one of the task's, the row one of the product's.
#[inline(always)]
pub(super) unsafe fn write<S: Simd, A>(
    s: S,
    task: &PanelTask<'_, A>,
    row: usize,
    panel: usize,
    mut values: S::V,
) {
    let (n, epilogue) = (task.linear.n, &task.operands.epilogue);
    let first = panel * PANEL;
    let count = (n - first).min(PANEL);
    // SAFETY: the caller guarantees the row; no column past the last is touched.
    unsafe {
        let to = task.output_address(row, panel);
        for (from, at) in [
            (epilogue.bias, first),
            (epilogue.stored_residual(), row * n + first),
        ] {
            if !from.is_null() {
                let more = if count == PANEL {
                    s.load(from.add(at))
                } else {
                    s.load_part(from.add(at), count)
                };
                values = s.add(values, more);
            }
        }
        if count == PANEL {
            s.store(to, values);
        } else {
            s.store_part(to, values, count);
        }
    }
}
