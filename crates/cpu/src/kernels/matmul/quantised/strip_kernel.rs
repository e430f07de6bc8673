//! The vector kernel that multiplies the strips of a task.

use super::format::{BLOCK, LINE};
use super::strip::{RowScaledStrip, StripBlocks, StripReader};
use super::task::{QuantisedLinear, StripTask};
use crate::prefetch::Prefetcher;
use crate::simd::{IntegerKernel, RowScaledDot};
use std::marker::PhantomData;

/// The inner loop for a kind of quants.
pub(super) trait StripMicrokernel {
    /// The bits of a quant above the fourth, as [`StripReader::next`] needs them.
    const UPPER_BITS: usize;

    /// Lines of an unpacked block, at most [`MAX_UNPACKED_LINES`].
    const UNPACKED_LINES: usize;

    /// Unpacks a block with the factors of its groups, `groups` lines, to the form that [`multiply`](Self::multiply) reads.
    ///
    /// # Safety
    /// The block and its factors must be readable, and `UNPACKED_LINES` lines be writable.
    unsafe fn unpack_block<S: RowScaledDot>(
        s: S,
        quants: *const u8,
        factors: *const u8,
        groups: usize,
        to: *mut u8,
    );

    /// Multiplies one strip of sixteen weight rows with `rows ≤ R` rows of activations from `first` on. If there are
    /// fewer than `R`, the data after them is multiplied too and not stored. The strip is read from the weight, or from the
    /// scratch if it is `UNPACKED`.
    ///
    /// # Safety
    /// As for [`super::QuantisedLinear::run`]; strip and rows must exist, and the format's groups have `GROUP` inputs.
    unsafe fn multiply<S: RowScaledDot, const GROUP: usize, const R: usize, const UNPACKED: bool>(
        s: S,
        task: &StripTask<'_>,
        layout: &RowScaledStrip,
        prefetcher: &mut Prefetcher<'_>,
        strip: usize,
        first: usize,
        rows: usize,
    );
}

/// The most lines of an unpacked block: two bytes for each weight.
const MAX_UNPACKED_LINES: usize = 16;
/// Rows from which strips are unpacked: for fewer, unpacking in registers again for every four rows is faster.
const MIN_UNPACK_ROWS: usize = 24;

/// Bytes of a thread's scratch for an unpacked strip.
pub(super) fn unpacked_bytes(linear: &QuantisedLinear) -> usize {
    match linear.m {
        MIN_UNPACK_ROWS.. => linear.k / BLOCK * MAX_UNPACKED_LINES * LINE,
        _ => 0,
    }
}

/// Unpacks a strip to the task's scratch.
///
/// # Safety
/// As for [`super::QuantisedLinear::run`]; the strip must exist, and the scratch have [`unpacked_bytes`].
#[inline(always)]
unsafe fn unpack<S: RowScaledDot, M: StripMicrokernel>(
    s: S,
    task: &StripTask<'_>,
    layout: &RowScaledStrip,
    mut prefetcher: Option<&mut Prefetcher<'_>>,
    strip: usize,
) {
    let all = task.linear.k / BLOCK;
    let mut to = task.expanded;
    let mut block = 0;
    // SAFETY: as the caller guarantees: a strip has `k / 32` blocks with their factors, and the scratch holds as many.
    unsafe {
        let start = task.operands.weight.add(strip * layout.bytes);
        let mut reader = StripReader::new(start, layout, 0);
        while block < all {
            let blocks = match M::UPPER_BITS {
                0 => reader.next::<S, 0>(s, all - block),
                1 => reader.next::<S, 1>(s, all - block),
                _ => reader.next::<S, 2>(s, all - block),
            };
            block += blocks.count;
            if let Some(prefetcher) = &mut prefetcher {
                prefetcher.consumed(blocks.header_bytes);
            }
            let (mut quants, mut factors) = (blocks.quants, blocks.factors);
            for _ in 0..blocks.count {
                if let Some(prefetcher) = &mut prefetcher {
                    prefetcher.reads(quants, layout.block_bytes);
                }
                M::unpack_block(s, quants, factors, layout.block_groups, to);
                to = to.add(M::UNPACKED_LINES * LINE);
                quants = quants.add(blocks.quants_stride);
                factors = factors.add(blocks.factors_stride);
            }
        }
    }
}

/// `count` blocks of an unpacked strip from block `first` on. A block begins with eight lines of quants, then its
/// factors; two-byte weights take all lines, and `factors` is not used.
#[inline(always)]
pub(super) fn unpacked_blocks<M: StripMicrokernel>(
    task: &StripTask<'_>,
    first: usize,
    count: usize,
) -> StripBlocks {
    let stride = M::UNPACKED_LINES * LINE;
    let quants = task.expanded.cast_const().wrapping_add(first * stride);
    StripBlocks {
        count,
        quants,
        quants_stride: stride,
        factors: quants.wrapping_add(8 * LINE),
        factors_stride: stride,
        header_bytes: 0,
    }
}

/// Bytes of a part of the activations, two per input. All strips of a task are multiplied with one part before the next
/// part, so that it stays in L2 beside the weights.
const PART_BYTES: usize = 512 * 1024;
/// Rows of a part are a multiple of this, the number of rows that are stored interleaved.
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
            let unpacks = const { S::UNPACKS } && end - first >= MIN_UNPACK_ROWS;
            for strip in task.strips.clone() {
                if unpacks {
                    let prefetcher = (first == 0).then_some(&mut *prefetcher);
                    // SAFETY: as below; the scratch has `unpacked_bytes`.
                    unsafe { unpack::<S, M>(s, task, layout, prefetcher, strip) };
                }
                let mut row = first;
                while row < end {
                    let rows = (end - row).min(S::ROWS);
                    macro_rules! multiply {
                        ($rows:expr, $unpacked:expr) => {
                            M::multiply::<S, GROUP, $rows, $unpacked>(
                                s, task, layout, prefetcher, strip, row, rows,
                            )
                        };
                    }
                    // SAFETY: `StripKernel::multiply`'s caller guarantees the operands, and the format's groups have
                    // been matched; `rows` is at most the constant. Constant conditions: what a tier does not use is not
                    // compiled.
                    unsafe {
                        match rows {
                            _ if unpacks => {
                                if const { !S::UNPACKS } {
                                } else if const { S::ROWS > 2 } {
                                    multiply!(4, true)
                                } else {
                                    multiply!(2, true)
                                }
                            }
                            1 => multiply!(1, false),
                            3.. if const { S::ROWS > 2 } => multiply!(4, false),
                            _ => multiply!(2, false),
                        }
                    }
                    row += rows;
                }
            }
        }
    }
}
