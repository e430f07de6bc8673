//! Weights whose quants are bytes, or indices into a table of bytes: `quant · factor / 128`, rounded to two bytes.
//!
//! The factors of a row's groups are integers in units of the row's scale. A weight is expanded to two bytes before it is
//! multiplied: on vectors a line at a time, in registers, and on AMX tiles into two planes of bytes.

use super::format::{BLOCK, LINE};
use super::microkernel::{load_lines, unroll};
use super::panel::{PanelReader, RowScaledPanel};
use super::panel_kernel::{PanelMicrokernel, add_chunk, unpacked_panels, write_panels};
use super::task::{PanelTask, write};
use crate::prefetch::Prefetcher;
use crate::simd::RowScaledDot;

/// Lines of a block's quants: bytes, or nibbles of two lines each.
pub(super) const fn stored_lines(table: bool) -> usize {
    if table { 4 } else { 8 }
}

/// The eight lines of a block's quants, as signed bytes; with `TABLE` quants are indices into the table.
///
/// # Safety
/// The block must be readable.
#[inline(always)]
pub(super) unsafe fn quant_lines<S: RowScaledDot, const TABLE: bool>(
    s: S,
    quants: *const u8,
    table: &[i8; 16],
) -> [S::Line; 8] {
    macro_rules! lines {
        ($($line:literal)*) => {
            [$({
                if TABLE {
                    let at = quants.add($line % 4 * LINE);
                    let low = if $line < 4 { s.load_low_nibbles(at) } else { s.load_high_nibbles(at) };
                    s.look_up(low, table)
                } else {
                    s.load_bytes(quants.add($line * LINE))
                }
            }),*]
        };
    }
    // SAFETY: as the caller guarantees.
    unsafe { lines!(0 1 2 3 4 5 6 7) }
}

/// The weights of a line of quants, at even and at odd positions. Each half of a factor's 32 bits is the factor.
#[inline(always)]
pub(super) fn expand_line<S: RowScaledDot>(s: S, line: S::Line, factors: S::Line) -> [S::Line; 2] {
    // Times 256, and divided by 2^15.
    let (even, odd) = (s.shift_left_16(line, 8), s.high_bytes(line));
    [
        s.mul_high_rounded(even, factors),
        s.mul_high_rounded(odd, factors),
    ]
}

/// The vector microkernel for byte quants.
pub(super) struct ByteQuantMicrokernel<const TABLE: bool>;

impl<const TABLE: bool> PanelMicrokernel for ByteQuantMicrokernel<TABLE> {
    const UPPER_BITS: usize = 0;
    /// Two bytes for each weight.
    const UNPACKED_LINES: usize = 16;

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
            let factors = s.load_bytes(factors);
            let lines = quant_lines::<S, TABLE>(s, quants, layout.quant.table());
            for (line, quants) in lines.into_iter().enumerate() {
                let [even, odd] = expand_line(s, quants, factors);
                s.store_bytes(even, to.add(2 * line * LINE));
                s.store_bytes(odd, to.add((2 * line + 1) * LINE));
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
        // Accumulators of a row: with few rows, several independent chains hide the latency.
        const MAX_CHAINS: usize = 4;
        let chains = const { if R > MAX_CHAINS { 1 } else { MAX_CHAINS / R } };
        let x = &task.activations;
        // SAFETY: as the caller guarantees: a panel has `k / 32` blocks with their factors, and a row of activations has as many.
        unsafe {
            let start = task.operands.weight.add(panel * layout.bytes);
            let units = s.load(start.cast());
            let prefetches = first == 0;
            let table = layout.quant.table();
            if prefetches {
                prefetcher.consumed(layout.spans);
            }
            let mut reader = PanelReader::new(start, layout, 0);
            let mut x_half = x.line(first, 0).cast_const();
            // From one half of a block of a row to the next.
            let x_stride = x.layout.interleaved_rows * LINE;
            let mut out = [s.zero(); R];
            for (chunk, inputs) in x.layout.chunk_ranges().enumerate() {
                let mut totals = [[s.zero_totals(); MAX_CHAINS]; R];
                let mut left = inputs.len() / BLOCK;
                while left > 0 {
                    let blocks = reader.next::<S, 0>(s, left);
                    left -= blocks.count;
                    let (mut quants, mut factors) = (blocks.quants, blocks.factors);
                    if prefetches {
                        prefetcher.consumed(blocks.header_bytes);
                    }
                    for _ in 0..blocks.count {
                        if prefetches {
                            prefetcher.reads(quants, const { stored_lines(TABLE) } * LINE);
                        }
                        let pairs = s.load_bytes(factors);
                        let lines = quant_lines::<S, TABLE>(s, quants, table);
                        macro_rules! dots {
                            ($($line:literal)*) => {$(
                                let weights = expand_line(s, lines[$line], pairs);
                                let at = x_half.wrapping_add($line / 4 * x_stride + $line % 4 * 16);
                                for r in 0..R {
                                    for side in 0..2 {
                                        let chain = (2 * ($line % 2) + side) % chains;
                                        let x = at.wrapping_add(r * LINE + 8 * side);
                                        totals[r][chain] = s.dot_words(totals[r][chain], weights[side], x);
                                    }
                                }
                            )*};
                        }
                        dots!(0 1 2 3 4 5 6 7);
                        x_half = x_half.wrapping_add(2 * x_stride);
                        quants = quants.add(blocks.quants_stride);
                        factors = factors.add(blocks.factors_stride);
                    }
                }
                let scale = x.scale(first, chunk);
                for r in 0..R {
                    let mut total = totals[r][0];
                    for chain in 1..chains {
                        total = s.add_totals(total, totals[r][chain]);
                    }
                    out[r] = s.fma(s.totals_to_f32(total), s.splat(*scale.add(r)), out[r]);
                }
            }
            for (r, out) in out.iter().enumerate().take(rows) {
                write(s, task, first + r, panel, s.mul(*out, units));
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
        // SAFETY: as the caller guarantees: an unpacked panel has `k / 32` blocks, and a row of activations has as many.
        unsafe {
            let mut blocks = unpacked_panels::<Self, PANELS>(task);
            let mut x_half = x.line(first, 0).cast_const();
            let x_stride = x.layout.interleaved_rows * LINE;
            let mut out = [[s.zero(); PANELS]; R];
            for (chunk, inputs) in x.layout.chunk_ranges().enumerate() {
                let mut totals = [[s.zero_totals(); PANELS]; R];
                // Half a block: eight lines, of even and of odd positions in turn.
                for _ in 0..inputs.len() / BLOCK * 2 {
                    macro_rules! dots {
                        ($($line:literal)*) => {$(
                            let weights = load_lines(s, &blocks, $line);
                            let at = x_half.wrapping_add($line * 8);
                            unroll!(r in 0 1 2 3 4 5 6 7, R, {
                                totals[r] = dot_panels(s, totals[r], weights, at.wrapping_add(r * LINE));
                            });
                        )*};
                    }
                    dots!(0 1 2 3 4 5 6 7);
                    x_half = x_half.wrapping_add(x_stride);
                    unroll!(i in 0 1, PANELS, {
                        blocks[i] = blocks[i].wrapping_add(8 * LINE);
                    });
                }
                add_chunk(s, &mut out, totals, x.scale(first, chunk));
            }
            write_panels(s, task, layout, (first, rows), panel, out);
        }
    }
}

/// Adds the products of a line of one or two panels with the same activations.
///
/// # Safety
/// As for [`RowScaledDot::dot_words`].
#[inline(always)]
unsafe fn dot_panels<S: RowScaledDot, const PANELS: usize>(
    s: S,
    mut totals: [S::Totals; PANELS],
    weights: [S::Line; PANELS],
    pairs: *const u8,
) -> [S::Totals; PANELS] {
    // SAFETY: as the caller guarantees.
    unsafe {
        if PANELS == 1 {
            totals[0] = s.dot_words(totals[0], weights[0], pairs);
        } else {
            let last = PANELS - 1;
            [totals[0], totals[last]] = s.dot_words_of_two(
                [totals[0], totals[last]],
                [weights[0], weights[last]],
                pairs,
            );
        }
        totals
    }
}
