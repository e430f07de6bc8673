//! The vector kernel that multiplies the panels of a task.

use super::format::{BLOCK, LINE};
use super::panel::{PanelReader, RowScaledPanel};
use super::task::{PanelTask, QuantisedLinear, write};
use crate::prefetch::Prefetcher;
use crate::simd::{IntegerKernel, RowScaledDot};
use std::marker::PhantomData;
use std::ops::Range;

/// The inner loop for a kind of quants.
pub(super) trait PanelMicrokernel {
    /// The bits of a quant above the fourth, as [`PanelReader::next`] needs them.
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
        layout: &RowScaledPanel,
        to: *mut u8,
    );

    /// Multiplies one panel of sixteen weight rows with `rows ≤ R` rows of activations from `first` on. If there are
    /// fewer than `R`, the data after them is multiplied too and not stored.
    ///
    /// # Safety
    /// As for [`super::QuantisedLinear::run`]; panel and rows must exist, and the format's groups have `GROUP` inputs.
    unsafe fn multiply<S: RowScaledDot, const GROUP: usize, const R: usize>(
        s: S,
        task: &PanelTask<'_>,
        layout: &RowScaledPanel,
        prefetcher: &mut Prefetcher<'_>,
        panel: usize,
        first: usize,
        rows: usize,
    );

    /// As [`multiply`](Self::multiply), for `PANELS` panels from `panel` on that are unpacked in the task's scratch.
    ///
    /// # Safety
    /// As for [`multiply`](Self::multiply); the panels must exist and be unpacked.
    unsafe fn multiply_unpacked<
        S: RowScaledDot,
        const GROUP: usize,
        const R: usize,
        const PANELS: usize,
    >(
        s: S,
        task: &PanelTask<'_>,
        layout: &RowScaledPanel,
        panel: usize,
        first: usize,
        rows: usize,
    );
}

/// The most lines of an unpacked block: two bytes for each weight.
const MAX_UNPACKED_LINES: usize = 16;
/// Rows from which panels are unpacked: for fewer, unpacking in registers again for every four rows is faster.
const MIN_UNPACK_ROWS: usize = 24;

/// The most panels that are multiplied together: they share the loads of the activations.
const MAX_UNPACKED_PANELS: usize = 2;

/// Bytes of a thread's scratch for unpacked panels.
pub(super) fn unpacked_bytes(linear: &QuantisedLinear) -> usize {
    match linear.m {
        MIN_UNPACK_ROWS.. => MAX_UNPACKED_PANELS * linear.k / BLOCK * MAX_UNPACKED_LINES * LINE,
        _ => 0,
    }
}

/// The addresses of the first unpacked panels in the task's scratch.
#[inline(always)]
pub(super) fn unpacked_panels<M: PanelMicrokernel, const PANELS: usize>(
    task: &PanelTask<'_>,
) -> [*const u8; PANELS] {
    let mut panels = [std::ptr::null(); PANELS];
    for (i, panel) in panels.iter_mut().enumerate() {
        *panel = unpacked_panel::<M>(task, i).cast_const();
    }
    panels
}

/// The address of an unpacked panel in the task's scratch.
#[inline(always)]
fn unpacked_panel<M: PanelMicrokernel>(task: &PanelTask<'_>, index: usize) -> *mut u8 {
    let bytes = task.linear.k / BLOCK * M::UNPACKED_LINES * LINE;
    task.expanded.wrapping_add(index * bytes)
}

/// Unpacks a panel.
///
/// # Safety
/// As for [`super::QuantisedLinear::run`]; the panel must exist, and `to` have room for its unpacked blocks.
#[inline(always)]
unsafe fn unpack<S: RowScaledDot, M: PanelMicrokernel>(
    s: S,
    task: &PanelTask<'_>,
    layout: &RowScaledPanel,
    mut prefetcher: Option<&mut Prefetcher<'_>>,
    panel: usize,
    mut to: *mut u8,
) {
    let all = task.linear.k / BLOCK;
    let mut block = 0;
    // SAFETY: as the caller guarantees: a panel has `k / 32` blocks with their factors, and the scratch holds as many.
    unsafe {
        let start = task.operands.weight.add(panel * layout.bytes);
        let mut reader = PanelReader::new(start, layout, 0);
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
pub(super) unsafe fn add_chunk<S: RowScaledDot, const R: usize, const PANELS: usize>(
    s: S,
    sums: &mut [[S::V; PANELS]; R],
    totals: [[S::Totals; PANELS]; R],
    scales: *const f32,
) {
    for r in 0..R {
        // SAFETY: as the caller guarantees.
        let scale = s.splat(unsafe { *scales.add(r) });
        for i in 0..PANELS {
            sums[r][i] = s.fma(s.totals_to_f32(totals[r][i]), scale, sums[r][i]);
        }
    }
}

/// Stores the sums of some rows, in units of the panels' scales.
///
/// # Safety
/// As for [`super::QuantisedLinear::run`]; panels and rows (the first and their number) must exist.
#[inline(always)]
pub(super) unsafe fn write_panels<S: RowScaledDot, const R: usize, const PANELS: usize>(
    s: S,
    task: &PanelTask<'_>,
    layout: &RowScaledPanel,
    (first, rows): (usize, usize),
    panel: usize,
    sums: [[S::V; PANELS]; R],
) {
    for i in 0..PANELS {
        // SAFETY: as the caller guarantees: a panel begins with the scales of its rows.
        unsafe {
            let scales = s.load(task.operands.weight.add((panel + i) * layout.bytes).cast());
            for (r, sums) in sums.iter().enumerate().take(rows) {
                write(s, task, first + r, panel + i, s.mul(sums[i], scales));
            }
        }
    }
}

/// Bytes of a part of the activations, two per input. All panels of a task are multiplied with one part before the next
/// part, so that it stays in L2 beside the weights.
const PART_BYTES: usize = 512 * 1024;
/// Rows of a part are a multiple of this, the number of rows that are stored interleaved.
const PART_ROWS: usize = 16;

/// The vector kernel for the panels of a task and all rows of activations.
pub(super) struct PanelKernel<'a, M: PanelMicrokernel, const GROUP: usize> {
    task: PanelTask<'a>,
    microkernel: PhantomData<M>,
}

impl<M: PanelMicrokernel, const GROUP: usize> PanelKernel<'_, M, GROUP> {
    /// Multiplies the panels of a task.
    ///
    /// # Safety
    /// As for [`super::QuantisedLinear::run`], within the task's panels; the format's groups must have `GROUP` inputs.
    pub(super) unsafe fn multiply(task: PanelTask<'_>, isa: crate::isa::Isa) {
        isa.run_integers(PanelKernel::<M, GROUP> {
            task,
            microkernel: PhantomData,
        });
    }
}

impl<M: PanelMicrokernel, const GROUP: usize> IntegerKernel for PanelKernel<'_, M, GROUP> {
    type Output = ();

    #[inline(always)]
    fn run<S: RowScaledDot>(self, s: S) {
        let task = &self.task;
        let m = task.linear.m;
        let QuantisedLinear { format, k, .. } = task.linear;
        let layout = &RowScaledPanel::new(&format, k);
        let mut prefetcher = task.prefetch_plan.prefetcher();
        let prefetcher = &mut prefetcher;
        // Rows of a part are read again for every panel, from L2.
        let part = (PART_BYTES / (2 * task.linear.k)).next_multiple_of(PART_ROWS);
        for first in (0..m).step_by(part) {
            let rows = first..m.min(first + part);
            // SAFETY: `PanelKernel::multiply`'s caller guarantees the operands, and the format's groups have been matched.
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

/// Multiplies all panels of a task with some rows, as they are packed.
///
/// # Safety
/// As for [`PanelKernel::multiply`]; the rows must exist.
#[inline(always)]
unsafe fn multiply_few<S: RowScaledDot, M: PanelMicrokernel, const GROUP: usize>(
    s: S,
    task: &PanelTask<'_>,
    layout: &RowScaledPanel,
    prefetcher: &mut Prefetcher<'_>,
    all: Range<usize>,
) {
    for panel in task.panels.clone() {
        for first in all.clone().step_by(S::ROWS) {
            let rows = (all.end - first).min(S::ROWS);
            macro_rules! multiply {
                ($rows:expr) => {
                    M::multiply::<S, GROUP, $rows>(s, task, layout, prefetcher, panel, first, rows)
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

/// Multiplies all panels of a task with some rows, after unpacking them.
///
/// # Safety
/// As for [`PanelKernel::multiply`]; the rows must exist, and the task's scratch have [`unpacked_bytes`].
#[inline(always)]
unsafe fn multiply_many<S: RowScaledDot, M: PanelMicrokernel, const GROUP: usize>(
    s: S,
    task: &PanelTask<'_>,
    layout: &RowScaledPanel,
    mut prefetcher: Option<&mut Prefetcher<'_>>,
    all: Range<usize>,
) {
    let (max_panels, max_rows) = const { S::UNPACKED_TILE };
    for panel in task.panels.clone().step_by(max_panels) {
        let panels = (task.panels.end - panel).min(max_panels);
        for i in 0..panels {
            let (prefetcher, to) = (prefetcher.as_deref_mut(), unpacked_panel::<M>(task, i));
            // SAFETY: as the caller guarantees.
            unsafe { unpack::<S, M>(s, task, layout, prefetcher, panel + i, to) };
        }
        for first in all.clone().step_by(max_rows) {
            let rows = (all.end - first).min(max_rows);
            macro_rules! multiply {
                ($rows:expr, $panels:expr) => {
                    M::multiply_unpacked::<S, GROUP, $rows, $panels>(
                        s, task, layout, panel, first, rows,
                    )
                };
            }
            // SAFETY: as the caller guarantees; `rows` and `panels` are at most the constants. Constant conditions: what a
            // tier does not use is not compiled.
            unsafe {
                if const { S::UNPACKED_TILE.1 == 2 } {
                    multiply!(2, 1)
                } else if const { S::UNPACKED_TILE.0 == 2 } && panels == 2 {
                    multiply!(4, 2)
                } else {
                    multiply!(4, 1)
                }
            }
        }
    }
}
