//! The vector kernel that multiplies the strips of a task.

use super::format::{BLOCK, LINE};
use super::strip::{RowScaledStrip, StripReader};
use super::task::{QuantisedLinear, StripTask, write};
use crate::prefetch::Prefetcher;
use crate::simd::{IntegerKernel, RowScaledDot};
use std::marker::PhantomData;
use std::ops::Range;

/// The inner loop for a kind of quants.
pub(super) trait StripMicrokernel {
    /// The bits of a quant above the fourth, as [`StripReader::next`] needs them.
    const UPPER_BITS: usize;

    /// Lines of an unpacked block, at most [`MAX_UNPACKED_LINES`].
    const UNPACKED_LINES: usize;

    /// Unpacks a block with the factors of its groups to the form that [`multiply`](Self::multiply) reads.
    ///
    /// # Safety
    /// The block and its factors must be readable, and `UNPACKED_LINES` lines be writable.
    unsafe fn unpack_block<S: RowScaledDot>(
        s: S,
        quants: *const u8,
        factors: *const u8,
        layout: &RowScaledStrip,
        to: *mut u8,
    );

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

    /// As [`multiply`](Self::multiply), for `STRIPS` strips from `strip` on that are unpacked in the task's scratch.
    ///
    /// # Safety
    /// As for [`multiply`](Self::multiply); the strips must exist and be unpacked.
    unsafe fn multiply_unpacked<
        S: RowScaledDot,
        const GROUP: usize,
        const R: usize,
        const STRIPS: usize,
    >(
        s: S,
        task: &StripTask<'_>,
        layout: &RowScaledStrip,
        strip: usize,
        first: usize,
        rows: usize,
    );
}

/// The most lines of an unpacked block: two bytes for each weight.
const MAX_UNPACKED_LINES: usize = 16;
/// Rows from which strips are unpacked: for fewer, unpacking in registers again for every four rows is faster.
const MIN_UNPACK_ROWS: usize = 24;

/// The most strips that are multiplied together: they share the loads of the activations.
const MAX_UNPACKED_STRIPS: usize = 2;

/// Bytes of a thread's scratch for unpacked strips.
pub(super) fn unpacked_bytes(linear: &QuantisedLinear) -> usize {
    match linear.m {
        MIN_UNPACK_ROWS.. => MAX_UNPACKED_STRIPS * linear.k / BLOCK * MAX_UNPACKED_LINES * LINE,
        _ => 0,
    }
}

/// The addresses of the first unpacked strips in the task's scratch.
#[inline(always)]
pub(super) fn unpacked_strips<M: StripMicrokernel, const STRIPS: usize>(
    task: &StripTask<'_>,
) -> [*const u8; STRIPS] {
    let mut strips = [std::ptr::null(); STRIPS];
    for (i, strip) in strips.iter_mut().enumerate() {
        *strip = unpacked_strip::<M>(task, i).cast_const();
    }
    strips
}

/// The address of an unpacked strip in the task's scratch.
#[inline(always)]
fn unpacked_strip<M: StripMicrokernel>(task: &StripTask<'_>, index: usize) -> *mut u8 {
    let bytes = task.linear.k / BLOCK * M::UNPACKED_LINES * LINE;
    task.expanded.wrapping_add(index * bytes)
}

/// Unpacks a strip.
///
/// # Safety
/// As for [`super::QuantisedLinear::run`]; the strip must exist, and `to` have room for its unpacked blocks.
#[inline(always)]
unsafe fn unpack<S: RowScaledDot, M: StripMicrokernel>(
    s: S,
    task: &StripTask<'_>,
    layout: &RowScaledStrip,
    mut prefetcher: Option<&mut Prefetcher<'_>>,
    strip: usize,
    mut to: *mut u8,
) {
    let all = task.linear.k / BLOCK;
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
                M::unpack_block(s, quants, factors, layout, to);
                to = to.add(M::UNPACKED_LINES * LINE);
                quants = quants.add(blocks.quants_stride);
                factors = factors.add(blocks.factors_stride);
            }
        }
    }
}

/// Adds the totals of a chunk, times its scale of every row, to the sums.
///
/// # Safety
/// `R` scales must be readable.
#[inline(always)]
pub(super) unsafe fn add_chunk<S: RowScaledDot, const R: usize, const STRIPS: usize>(
    s: S,
    sums: &mut [[S::V; STRIPS]; R],
    totals: [[S::Totals; STRIPS]; R],
    scales: *const f32,
) {
    for r in 0..R {
        // SAFETY: as the caller guarantees.
        let scale = s.splat(unsafe { *scales.add(r) });
        for i in 0..STRIPS {
            sums[r][i] = s.fma(s.totals_to_f32(totals[r][i]), scale, sums[r][i]);
        }
    }
}

/// Stores the sums of some rows, in units of the strips' scales.
///
/// # Safety
/// As for [`super::QuantisedLinear::run`]; strips and rows (the first and their number) must exist.
#[inline(always)]
pub(super) unsafe fn write_strips<S: RowScaledDot, const R: usize, const STRIPS: usize>(
    s: S,
    task: &StripTask<'_>,
    layout: &RowScaledStrip,
    (first, rows): (usize, usize),
    strip: usize,
    sums: [[S::V; STRIPS]; R],
) {
    for i in 0..STRIPS {
        // SAFETY: as the caller guarantees: a strip begins with the scales of its rows.
        unsafe {
            let scales = s.load(task.operands.weight.add((strip + i) * layout.bytes).cast());
            for (r, sums) in sums.iter().enumerate().take(rows) {
                write(s, task, first + r, strip + i, s.mul(sums[i], scales));
            }
        }
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
            let rows = first..m.min(first + part);
            // SAFETY: `StripKernel::multiply`'s caller guarantees the operands, and the format's groups have been matched.
            unsafe {
                if const { S::UNPACKED_TILE.0 > 0 } && rows.len() >= MIN_UNPACK_ROWS {
                    let prefetcher = (first == 0).then_some(&mut *prefetcher);
                    multiply_many::<S, M, GROUP>(s, task, layout, prefetcher, rows);
                } else {
                    multiply_few::<S, M, GROUP>(s, task, layout, prefetcher, rows);
                }
            }
        }
    }
}

/// Multiplies all strips of a task with some rows, as they are packed.
///
/// # Safety
/// As for [`StripKernel::multiply`]; the rows must exist.
#[inline(always)]
unsafe fn multiply_few<S: RowScaledDot, M: StripMicrokernel, const GROUP: usize>(
    s: S,
    task: &StripTask<'_>,
    layout: &RowScaledStrip,
    prefetcher: &mut Prefetcher<'_>,
    all: Range<usize>,
) {
    for strip in task.strips.clone() {
        for first in all.clone().step_by(S::ROWS) {
            let rows = (all.end - first).min(S::ROWS);
            macro_rules! multiply {
                ($rows:expr) => {
                    M::multiply::<S, GROUP, $rows>(s, task, layout, prefetcher, strip, first, rows)
                };
            }
            // SAFETY: as the caller guarantees; `rows` is at most the constant. Constant conditions: what a tier does not
            // use is not compiled.
            unsafe {
                match rows {
                    1 => multiply!(1),
                    5.. if const { S::ROWS > 4 } => multiply!(8),
                    3.. if const { S::ROWS > 2 } => multiply!(4),
                    _ => multiply!(2),
                }
            }
        }
    }
}

/// Multiplies all strips of a task with some rows, after unpacking them.
///
/// # Safety
/// As for [`StripKernel::multiply`]; the rows must exist, and the task's scratch have [`unpacked_bytes`].
#[inline(always)]
unsafe fn multiply_many<S: RowScaledDot, M: StripMicrokernel, const GROUP: usize>(
    s: S,
    task: &StripTask<'_>,
    layout: &RowScaledStrip,
    mut prefetcher: Option<&mut Prefetcher<'_>>,
    all: Range<usize>,
) {
    let (max_strips, max_rows) = const { S::UNPACKED_TILE };
    for strip in task.strips.clone().step_by(max_strips) {
        let strips = (task.strips.end - strip).min(max_strips);
        for i in 0..strips {
            let (prefetcher, to) = (prefetcher.as_deref_mut(), unpacked_strip::<M>(task, i));
            // SAFETY: as the caller guarantees.
            unsafe { unpack::<S, M>(s, task, layout, prefetcher, strip + i, to) };
        }
        for first in all.clone().step_by(max_rows) {
            let rows = (all.end - first).min(max_rows);
            macro_rules! multiply {
                ($rows:expr, $strips:expr) => {
                    M::multiply_unpacked::<S, GROUP, $rows, $strips>(
                        s, task, layout, strip, first, rows,
                    )
                };
            }
            // SAFETY: as the caller guarantees; `rows` and `strips` are at most the constants. Constant conditions: what a
            // tier does not use is not compiled.
            unsafe {
                if const { S::UNPACKED_TILE.1 == 2 } {
                    multiply!(2, 1)
                } else if const { S::UNPACKED_TILE.0 == 2 } && strips == 2 {
                    multiply!(4, 2)
                } else {
                    multiply!(4, 1)
                }
            }
        }
    }
}
