//! A strip of sixteen weight rows times some rows of activations, in vectors.

use super::super::weights::{BLOCK, LINE};
use super::super::{Task, write};
use super::activations::Activations;
use crate::isa::IntegerKernel;
use crate::simd::Whole;

/// How far ahead of their use weights are asked for at most, in bytes; else it is the same place of the next strip.
const AHEAD: usize = 8192;

/// The strips of a task, for all rows of activations.
pub(super) struct Strips<'a>(pub(super) Task<'a, Activations>);

impl IntegerKernel for Strips<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Whole>(self, s: S) {
        // SAFETY: `PackedLinear::run`'s caller vouches for the operands; the task stays inside its strips.
        unsafe {
            if self.0.linear.form.group == BLOCK {
                strips::<S, BLOCK>(s, &self.0);
            } else {
                strips::<S, { BLOCK / 2 }>(s, &self.0);
            }
        }
    }
}

/// # Safety
/// As for [`super::super::PackedLinear::run`], within the task's strips.
#[inline(always)]
unsafe fn strips<S: Whole, const GROUP: usize>(s: S, task: &Task<'_, Activations>) {
    let m = task.linear.m;
    for strip in task.strips.clone() {
        let mut row = 0;
        while row < m {
            let rows = (m - row).min(S::ROWS);
            // SAFETY: as the caller vouches; at most as many rows as the constant are there.
            unsafe {
                match rows {
                    1 => some_rows::<S, GROUP, 1>(s, task, strip, row, rows),
                    2 => some_rows::<S, GROUP, 2>(s, task, strip, row, rows),
                    _ if const { S::ROWS <= 4 } || rows <= 4 => {
                        some_rows::<S, GROUP, 4>(s, task, strip, row, rows);
                    }
                    _ => some_rows::<S, GROUP, 8>(s, task, strip, row, rows),
                }
            }
            row += rows;
        }
    }
}

/// `rows ≤ R` rows from `first` on; where there are fewer, what lies behind them is computed too and not written.
///
/// # Safety
/// As for [`super::super::PackedLinear::run`]; strip and rows must exist.
#[inline(always)]
unsafe fn some_rows<S: Whole, const GROUP: usize, const R: usize>(
    s: S,
    task: &Task<'_, Activations>,
    strip: usize,
    first: usize,
    rows: usize,
) {
    let linear = &task.linear;
    let x = &task.activations;
    let (scales_at, _, strip_bytes) = linear.form.offsets(linear.k);
    const QUANTS: usize = 4 * LINE;
    let stride = QUANTS + BLOCK / GROUP * LINE;
    // SAFETY: as the caller vouches: a strip has `k / 32` blocks with their factors, and a row of activations has as many.
    unsafe {
        let start = task.operands.weight.add(strip * strip_bytes);
        let ahead = strip_bytes.min(AHEAD);
        let mut out = [s.zero(); R];
        for chunk in 0..x.layout.chunks() {
            let inputs = x.layout.chunk(chunk);
            let mut totals = [s.no_totals(); R];
            for block in inputs.start / BLOCK..inputs.end / BLOCK {
                let quants = start.add(block * stride);
                for line in 0..stride / LINE {
                    s.prefetch(quants.wrapping_add(ahead + line * LINE));
                }
                let x_block = x.line(first, block).cast_const();
                let x_sums = x.sums(first, block * BLOCK / GROUP).cast_const();
                let mut sums = [s.no_planes(); R];
                macro_rules! half {
                    ($read:ident, $from:literal, $($index:literal)*) => {$(
                        let line = s.$read(quants.add($index * LINE));
                        for r in 0..R {
                            let x = x_block.add(r * LINE);
                            sums[r] = s.dot_planes::<{ $from + $index }>(sums[r], line, x);
                        }
                    )*};
                }
                half!(low, 0, 0 1 2 3);
                if GROUP < BLOCK {
                    for r in 0..R {
                        let factors = quants.add(QUANTS);
                        totals[r] = s.weigh(totals[r], sums[r], factors, *x_sums.add(r));
                        sums[r] = s.no_planes();
                    }
                }
                half!(high, 4, 0 1 2 3);
                let factors = quants.add(stride - LINE);
                let x_sums = if GROUP < BLOCK {
                    x.sums(first, 2 * block + 1).cast_const()
                } else {
                    x_sums
                };
                for r in 0..R {
                    totals[r] = s.weigh(totals[r], sums[r], factors, *x_sums.add(r));
                }
            }
            let scale = x.scale(first, chunk);
            for r in 0..R {
                out[r] = s.fma(s.number(totals[r]), s.splat(*scale.add(r)), out[r]);
            }
        }
        let units = s.load(start.add(scales_at).cast());
        for (r, out) in out.iter().enumerate().take(rows) {
            let out = s.mul(*out, units);
            write(s, task, first + r, strip, out);
        }
    }
}
