//! The vector microkernel: one strip of sixteen weight rows times a few rows of activations.

use super::super::format::{BLOCK, LINE, StripLayout};
use super::super::strip_kernel::StripMicrokernel;
use super::super::{StripTask, write};
use super::activations::RowScaledActivations;
use crate::prefetch::Prefetcher;
use crate::simd::RowScaledDot;

/// Loads the lines of half a block.
macro_rules! half {
    ($s:ident, $read:ident, $quants:ident) => {
        [
            $s.$read($quants),
            $s.$read($quants.add(LINE)),
            $s.$read($quants.add(2 * LINE)),
            $s.$read($quants.add(3 * LINE)),
        ]
    };
}

/// Adds the products of lines with activations; each pair is a line and an input index.
macro_rules! dots {
    ($s:ident, $sums:expr, $lines:ident, $x:ident, $($line:literal $input:literal),*) => {{
        let mut sums = $sums;
        $(sums = $s.dot_planes::<$input>(sums, $lines[$line], $x);)*
        sums
    }};
}

/// As `dots!`, for the activations of two rows, alternating between them.
macro_rules! dots_of_both {
    ($s:ident, $sums:expr, $lines:ident, $x:ident, $($line:literal $input:literal),*) => {{
        let [mut first, mut second] = $sums;
        $(
            first = $s.dot_planes::<$input>(first, $lines[$line], $x[0]);
            second = $s.dot_planes::<$input>(second, $lines[$line], $x[1]);
        )*
        [first, second]
    }};
}

/// Unrolls `$body` for every row below `$count`: a loop would keep its variables in memory.
macro_rules! each_row {
    ($r:ident in $($row:literal)*, $count:ident, $body:block) => {$(
        if $row < $count {
            let $r = $row;
            $body
        }
    )*};
}

/// The inner loop of the row-scaled scheme.
pub(super) struct RowScaledMicrokernel;

impl StripMicrokernel for RowScaledMicrokernel {
    type Activations = RowScaledActivations;

    #[inline(always)]
    unsafe fn multiply<S: RowScaledDot, const GROUP: usize, const R: usize>(
        s: S,
        task: &StripTask<'_, RowScaledActivations>,
        prefetcher: &mut Prefetcher<'_>,
        strip: usize,
        first: usize,
        rows: usize,
    ) {
        let linear = &task.linear;
        let x = &task.activations;
        let StripLayout {
            scales: scales_at,
            bytes: strip_bytes,
            ..
        } = linear.format.strip_layout(linear.k);
        const QUANTS: usize = 4 * LINE;
        let stride = QUANTS + BLOCK / GROUP * LINE;
        // SAFETY: as the caller guarantees: a strip has `k / 32` blocks with their factors, and a row of activations has as many.
        unsafe {
            let start = task.operands.weight.add(strip * strip_bytes);
            let mut out = [s.zero(); R];
            for chunk in 0..x.layout.chunks() {
                let inputs = x.layout.chunk(chunk);
                let mut totals = [s.zero_totals(); R];
                for block in inputs.start / BLOCK..inputs.end / BLOCK {
                    let quants = start.add(block * stride);
                    if first == 0 {
                        prefetcher.consumed(stride);
                    }
                    let x_block = x.line(first, block).cast_const();
                    let x_sums = x.sums(first, block * BLOCK / GROUP).cast_const();
                    let later_sums = x.sums(first, (block + 1) * BLOCK / GROUP - 1).cast_const();
                    let factors = quants.add(QUANTS);
                    // Only one or two rows' sums are live at a time, so the totals of eight rows stay in registers beside
                    // the lines.
                    let lines = half!(s, load_low_nibbles, quants);
                    let more = half!(s, load_high_nibbles, quants);
                    if const { GROUP == BLOCK && R >= 4 && S::ROWS > 4 } {
                        // A row's sums form a dependency chain; alternating between two rows hides its latency.
                        each_row!(r in 0 2 4 6, R, {
                            let x = [x_block.add(r * LINE), x_block.add((r + 1) * LINE)];
                            let sums = [s.zero_planes(); 2];
                            let sums = dots_of_both!(s, sums, lines, x, 0 0, 1 1, 2 2, 3 3);
                            let sums = dots_of_both!(s, sums, more, x, 0 4, 1 5, 2 6, 3 7);
                            totals[r] = s.add_scaled(totals[r], sums[0], factors, x_sums.add(r));
                            totals[r + 1] = s.add_scaled(totals[r + 1], sums[1], factors, x_sums.add(r + 1));
                        });
                        continue;
                    }
                    each_row!(r in 0 1 2 3 4 5 6 7, R, {
                        let x = x_block.add(r * LINE);
                        let mut sums = dots!(s, s.zero_planes(), lines, x, 0 0, 1 1, 2 2, 3 3);
                        if GROUP < BLOCK {
                            totals[r] = s.add_scaled(totals[r], sums, factors, x_sums.add(r));
                            sums = s.zero_planes();
                        }
                        if GROUP == BLOCK && R <= 2 {
                            // With few rows, two independent chains per row hide the latency.
                            let later = dots!(s, s.zero_planes(), more, x, 0 4, 1 5, 2 6, 3 7);
                            sums = s.add_planes(sums, later);
                        } else {
                            sums = dots!(s, sums, more, x, 0 4, 1 5, 2 6, 3 7);
                        }
                        let factors = quants.add(stride - LINE);
                        totals[r] = s.add_scaled(totals[r], sums, factors, later_sums.add(r));
                    });
                }
                let scale = x.scale(first, chunk);
                for r in 0..R {
                    out[r] = s.fma(s.totals_to_f32(totals[r]), s.splat(*scale.add(r)), out[r]);
                }
            }
            if first == 0 {
                prefetcher.consumed(LINE);
            }
            let units = s.load(start.add(scales_at).cast());
            for (r, out) in out.iter().enumerate().take(rows) {
                let out = s.mul(*out, units);
                write(s, task, first + r, strip, out);
            }
        }
    }
}
