//! The strips of a task on vectors.

use super::strip::RowScaledStrip;
use super::task::{QuantisedLinear, StripTask};
use crate::prefetch::Prefetcher;
use crate::simd::{IntegerKernel, RowScaledDot};
use std::marker::PhantomData;

/// The inner loop for a kind of quants.
pub(super) trait StripMicrokernel {
    /// Multiplies one strip of sixteen weight rows with `rows ≤ R` rows of activations from `first` on. If there are
    /// fewer than `R`, the data after them is multiplied too and not stored.
    ///
    /// # Safety
    /// As for [`super::QuantisedLinear::run`]; strip and rows must exist, and the format's groups have `GROUP` inputs.
    unsafe fn multiply<S: RowScaledDot, const GROUP: usize, const R: usize>(
        s: S,
        task: &StripTask<'_>,
        layout: &RowScaledStrip,
        prefetcher: &mut Prefetcher<'_>,
        strip: usize,
        first: usize,
        rows: usize,
    );
}

/// Bytes of activations, two per input, that all strips of a task are multiplied with before the next ones: they stay in
/// L2 beside the weights.
const PART_BYTES: usize = 256 * 1024;
/// Rows of a part are a multiple of this: as many are stored interleaved.
const PART_ROWS: usize = 16;

/// The vector kernel for the strips of a task and all rows of activations.
pub(super) struct StripKernel<'a, M: StripMicrokernel, const GROUP: usize> {
    task: StripTask<'a>,
    microkernel: PhantomData<M>,
}

impl<M: StripMicrokernel, const GROUP: usize> StripKernel<'_, M, GROUP> {
    /// Multiplies the strips of a task.
    ///
    /// # Safety
    /// As for [`super::QuantisedLinear::run`], within the task's strips; the format's groups must have `GROUP` inputs.
    pub(super) unsafe fn multiply(task: StripTask<'_>, isa: crate::isa::Isa) {
        isa.run_integers(StripKernel::<M, GROUP> {
            task,
            microkernel: PhantomData,
        });
    }
}

impl<M: StripMicrokernel, const GROUP: usize> IntegerKernel for StripKernel<'_, M, GROUP> {
    type Output = ();

    #[inline(always)]
    fn run<S: RowScaledDot>(self, s: S) {
        let task = &self.task;
        let m = task.linear.m;
        let QuantisedLinear { format, k, .. } = task.linear;
        let layout = &RowScaledStrip::new(&format, k);
        let mut prefetcher = task.prefetch_plan.prefetcher();
        let prefetcher = &mut prefetcher;
        // Rows of a part are read again for every strip, from L2.
        let part = (PART_BYTES / (2 * task.linear.k)).next_multiple_of(PART_ROWS);
        for first in (0..m).step_by(part) {
            let end = m.min(first + part);
            for strip in task.strips.clone() {
                let mut row = first;
                while row < end {
                    let rows = (end - row).min(S::ROWS);
                    // SAFETY: `StripKernel::multiply`'s caller guarantees the operands, and the format's groups have
                    // been matched; `rows` is at most the constant.
                    unsafe {
                        match rows {
                            1 => M::multiply::<S, GROUP, 1>(
                                s, task, layout, prefetcher, strip, row, rows,
                            ),
                            2 => M::multiply::<S, GROUP, 2>(
                                s, task, layout, prefetcher, strip, row, rows,
                            ),
                            _ => M::multiply::<S, GROUP, 4>(
                                s, task, layout, prefetcher, strip, row, rows,
                            ),
                        }
                    }
                    row += rows;
                }
            }
        }
    }
}
