//! The vector microkernel for quants of four to six bits: one panel of sixteen weight rows times a few rows of activations.

use super::format::{BLOCK, LINE};
use super::panel::{PanelReader, RowScaledPanel, block_lines};
use super::panel_kernel::{PanelMicrokernel, add_chunk, unpacked_panels, write_panels};
use super::task::{PanelTask, write};
use crate::prefetch::Prefetcher;
use crate::simd::RowScaledDot;

/// Adds the products of some lines with the activations of all rows, row by row for each line: a row's sums form a
/// dependency chain, and the chains of several rows hide its latency.
macro_rules! dots {
    ($s:ident, $sums:ident, $lines:ident, $x:ident, $($line:literal)*) => {$(
        unroll!(r in 0 1 2 3 4 5 6 7, R, {
            $sums[r] = $s.dot_planes::<$line>($sums[r], $lines[$line], $x.add(r * LINE));
        });
    )*};
}

/// Unrolls `$body` for every index below `$count`: a loop would keep its variables in memory.
macro_rules! unroll {
    ($i:ident in $($index:literal)*, $count:ident, $body:block) => {$(
        if $index < $count {
            let $i = $index;
            $body
        }
    )*};
}

/// Starts the sums of a group; quants with bits above the fourth are centred.
macro_rules! begin {
    ($s:ident, $x:expr) => {
        match UPPER {
            0 => $s.begin_group::<false>($x),
            _ => $s.begin_group::<true>($x),
        }
    };
}

/// Adds the sums of a group to the totals.
macro_rules! add {
    ($s:ident, $totals:expr, $sums:expr, $factors:tt, $x:expr) => {
        match UPPER {
            0 => $s.add_scaled::<false>($totals, $sums, $factors, $x),
            _ => $s.add_scaled::<true>($totals, $sums, $factors, $x),
        }
    };
}

pub(super) use unroll;

/// The inner loop of the row-scaled scheme, for quants with `UPPER` bits above the fourth.
pub(super) struct RowScaledMicrokernel<const UPPER: usize>;

impl<const UPPER: usize> PanelMicrokernel for RowScaledMicrokernel<UPPER> {
    const UPPER_BITS: usize = UPPER;
    /// Eight lines of quants, and the factors of up to two groups.
    const UNPACKED_LINES: usize = 10;

    #[inline(always)]
    unsafe fn unpack_block<S: RowScaledDot>(
        s: S,
        quants: *const u8,
        factors: *const u8,
        layout: &RowScaledPanel,
        to: *mut u8,
    ) {
        // SAFETY: as the caller guarantees.
        unsafe {
            for (line, quants) in block_lines::<S, UPPER>(s, quants).into_iter().enumerate() {
                s.store_bytes(quants, to.add(line * LINE));
            }
            for group in 0..layout.block_groups {
                let pairs = s.load_bytes(factors.add(group * LINE));
                s.store_bytes(pairs, to.add((8 + group) * LINE));
            }
        }
    }

    #[inline(always)]
    unsafe fn multiply<S: RowScaledDot, const GROUP: usize, const R: usize>(
        s: S,
        task: &PanelTask<'_>,
        layout: &RowScaledPanel,
        prefetcher: &mut Prefetcher<'_>,
        panel: usize,
        first: usize,
        rows: usize,
    ) {
        let x = &task.activations;
        let words = if UPPER == 0 { 2 } else { 4 };
        // SAFETY: as the caller guarantees: a panel has `k / 32` blocks with their factors, and a row of activations has as many.
        unsafe {
            let start = task.operands.weight.add(panel * layout.bytes);
            let units = s.load(start.cast());
            let prefetches = first == 0;
            if prefetches {
                prefetcher.consumed(layout.spans);
            }
            let mut reader = PanelReader::new(start, layout, 0);
            let mut x_block = x.line(first, 0).cast_const();
            let mut x_sums = x.sums(first, 0).cast_const();
            // From one block of a row to the next, and from one group's sums to the next group's.
            let x_stride = x.layout.interleaved_rows * LINE;
            let sums_stride = x.layout.interleaved_rows * words;
            let mut out = [s.zero(); R];
            for (chunk, inputs) in x.layout.chunk_ranges().enumerate() {
                let mut totals = [s.zero_totals(); R];
                let mut left = inputs.len() / BLOCK;
                while left > 0 {
                    let blocks = reader.next::<S, UPPER>(s, left);
                    left -= blocks.count;
                    let (mut quants, mut factors) = (blocks.quants, blocks.factors);
                    if prefetches {
                        prefetcher.consumed(blocks.header_bytes);
                    }
                    for _ in 0..blocks.count {
                        if prefetches {
                            prefetcher.reads(quants, (4 + UPPER) * LINE);
                        }
                        let lines = block_lines::<S, UPPER>(s, quants);
                        let scales = s.load_bytes(factors);
                        let mut sums = [s.zero_planes(); R];
                        unroll!(r in 0 1 2 3 4 5 6 7, R, { sums[r] = begin!(s, x_sums.add(r * words)); });
                        dots!(s, sums, lines, x_block, 0 1 2 3);
                        if GROUP < BLOCK {
                            unroll!(r in 0 1 2 3 4 5 6 7, R, {
                                totals[r] = add!(s, totals[r], sums[r], scales, x_sums.add(r * words));
                            });
                            x_sums = x_sums.add(sums_stride);
                            let scales = s.load_bytes(factors.add(LINE));
                            unroll!(r in 0 1 2 3 4 5 6 7, R, { sums[r] = begin!(s, x_sums.add(r * words)); });
                            dots!(s, sums, lines, x_block, 4 5 6 7);
                            unroll!(r in 0 1 2 3 4 5 6 7, R, {
                                totals[r] = add!(s, totals[r], sums[r], scales, x_sums.add(r * words));
                            });
                        } else {
                            if const { R <= 2 } {
                                // With few rows, two independent chains per row hide the latency.
                                let mut later = [s.zero_planes(); R];
                                dots!(s, later, lines, x_block, 4 5 6 7);
                                unroll!(r in 0 1 2 3 4 5 6 7, R, { sums[r] = s.add_planes(sums[r], later[r]); });
                            } else {
                                dots!(s, sums, lines, x_block, 4 5 6 7);
                            }
                            unroll!(r in 0 1 2 3 4 5 6 7, R, {
                                totals[r] = add!(s, totals[r], sums[r], scales, x_sums.add(r * words));
                            });
                        }
                        x_sums = x_sums.add(sums_stride);
                        x_block = x_block.add(x_stride);
                        quants = quants.add(blocks.quants_stride);
                        factors = factors.add(blocks.factors_stride);
                    }
                }
                let scale = x.scale(first, chunk);
                for r in 0..R {
                    out[r] = s.fma(s.totals_to_f32(totals[r]), s.splat(*scale.add(r)), out[r]);
                }
            }
            for (r, out) in out.iter().enumerate().take(rows) {
                let out = s.mul(*out, units);
                write(s, task, first + r, panel, out);
            }
        }
    }

    #[inline(always)]
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
    ) {
        let x = &task.activations;
        let words = if UPPER == 0 { 2 } else { 4 };
        // SAFETY: as the caller guarantees: an unpacked panel has `k / 32` blocks, and a row of activations has as many.
        unsafe {
            let mut blocks = unpacked_panels::<Self, PANELS>(task);
            let mut x_block = x.line(first, 0).cast_const();
            let mut x_sums = x.sums(first, 0).cast_const();
            let x_stride = x.layout.interleaved_rows * LINE;
            let sums_stride = x.layout.interleaved_rows * words;
            let mut out = [[s.zero(); PANELS]; R];
            for (chunk, inputs) in x.layout.chunk_ranges().enumerate() {
                let mut totals = [[s.zero_totals(); PANELS]; R];
                for _ in 0..inputs.len() / BLOCK {
                    macro_rules! group {
                        ($group:literal, $($line:literal)*) => {
                            let mut sums = [[s.zero_planes(); PANELS]; R];
                            unroll!(r in 0 1 2 3 4 5 6 7, R, { sums[r] = [begin!(s, x_sums.add(r * words)); PANELS]; });
                            $(
                                let lines = load_lines(s, &blocks, $line);
                                unroll!(r in 0 1 2 3 4 5 6 7, R, {
                                    sums[r] = dot_panels::<S, $line, PANELS>(s, sums[r], lines, x_block.add(r * LINE));
                                });
                            )*
                            let scales = load_lines(s, &blocks, 8 + $group);
                            unroll!(r in 0 1 2 3 4 5 6 7, R, {
                                unroll!(i in 0 1, PANELS, {
                                    totals[r][i] = add!(s, totals[r][i], sums[r][i], (scales[i]), x_sums.add(r * words));
                                });
                            });
                            x_sums = x_sums.add(sums_stride);
                        };
                    }
                    if GROUP < BLOCK {
                        group!(0, 0 1 2 3);
                        group!(1, 4 5 6 7);
                    } else {
                        group!(0, 0 1 2 3 4 5 6 7);
                    }
                    x_block = x_block.add(x_stride);
                    unroll!(i in 0 1, PANELS, {
                        blocks[i] = blocks[i].wrapping_add(Self::UNPACKED_LINES * LINE);
                    });
                }
                add_chunk(s, &mut out, totals, x.scale(first, chunk));
            }
            write_panels(s, task, layout, (first, rows), panel, out);
        }
    }
}

/// A line of every panel's block.
///
/// # Safety
/// The line must be readable in every block.
#[inline(always)]
pub(super) unsafe fn load_lines<S: RowScaledDot, const PANELS: usize>(
    s: S,
    blocks: &[*const u8; PANELS],
    line: usize,
) -> [S::Line; PANELS] {
    // SAFETY: as the caller guarantees.
    unsafe {
        let mut lines = [s.load_bytes(blocks[0].add(line * LINE)); PANELS];
        if PANELS > 1 {
            lines[PANELS - 1] = s.load_bytes(blocks[PANELS - 1].add(line * LINE));
        }
        lines
    }
}

/// Adds the products of a line of one or two panels with the same activations.
///
/// # Safety
/// As for [`RowScaledDot::dot_planes`].
#[inline(always)]
unsafe fn dot_panels<S: RowScaledDot, const LINE: usize, const PANELS: usize>(
    s: S,
    mut sums: [S::Planes; PANELS],
    lines: [S::Line; PANELS],
    block: *const u8,
) -> [S::Planes; PANELS] {
    // SAFETY: as the caller guarantees.
    unsafe {
        if PANELS == 1 {
            sums[0] = s.dot_planes::<LINE>(sums[0], lines[0], block);
        } else {
            let last = PANELS - 1;
            [sums[0], sums[last]] =
                s.dot_planes_of_two::<LINE>([sums[0], sums[last]], [lines[0], lines[last]], block);
        }
        sums
    }
}
