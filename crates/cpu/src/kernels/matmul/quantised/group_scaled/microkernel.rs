//! A strip of sixteen weight rows times some rows of activations, in vectors.

use super::super::format::{BLOCK, Form, LINE, Quant, STRIP, SUPER, TABLE};
use super::super::{Task, write};
use super::activations::{Activations, Group};
use crate::isa::IntegerKernel;
use crate::prefetch::Reader;
use crate::simd::{Integers, Whole};

/// Lines of the quants of four inputs each in half a block.
const HALF: usize = BLOCK / 8;

/// How a line of quants is read; fixed at compile time.
pub(super) trait Lines {
    /// Whether a quant is a byte.
    const BYTES: bool;
    /// Line `index < 4` of half `half` of a block.
    ///
    /// # Safety
    /// The quants of a block must be readable at `block`.
    unsafe fn line<S: Integers>(s: S, block: *const u8, half: usize, index: usize) -> S::Line;
}

pub(super) struct Nibbles;
pub(super) struct Looked;
pub(super) struct Plain;

impl Lines for Nibbles {
    const BYTES: bool = false;

    #[inline(always)]
    unsafe fn line<S: Integers>(s: S, block: *const u8, half: usize, index: usize) -> S::Line {
        // SAFETY: the caller vouches for the block's four lines.
        unsafe {
            let p = block.add(index * LINE);
            if half == 0 { s.low(p) } else { s.high(p) }
        }
    }
}

impl Lines for Looked {
    const BYTES: bool = false;

    #[inline(always)]
    unsafe fn line<S: Integers>(s: S, block: *const u8, half: usize, index: usize) -> S::Line {
        // SAFETY: as the caller vouches.
        s.look_up(unsafe { Nibbles::line(s, block, half, index) }, &TABLE)
    }
}

impl Lines for Plain {
    const BYTES: bool = true;

    #[inline(always)]
    unsafe fn line<S: Integers>(s: S, block: *const u8, half: usize, index: usize) -> S::Line {
        // SAFETY: the caller vouches for the block's eight lines.
        unsafe { s.bytes(block.add((half * HALF + index) * LINE)) }
    }
}

/// Calls `$body` with `$L` naming how lines of `$quant` are read.
macro_rules! with_lines {
    ($quant:expr, $L:ident => $body:expr) => {
        match $quant {
            Quant::Table => {
                type $L = $crate::kernels::matmul::quantised::group_scaled::microkernel::Looked;
                $body
            }
            _ => {
                type $L = $crate::kernels::matmul::quantised::group_scaled::microkernel::Plain;
                $body
            }
        }
    };
}
pub(super) use with_lines;

/// A strip's scales and mins.
#[derive(Clone, Copy)]
pub(super) struct Scales {
    form: Form,
    scales: *const u8,
    mins: *const u8,
    /// From the outer scales of a side to its inner ones.
    inner: usize,
}

impl Scales {
    /// # Safety
    /// A packed strip of this form and depth must be at `strip`.
    #[inline(always)]
    pub(super) unsafe fn of(form: Form, k: usize, strip: *const u8) -> Scales {
        let (scales, mins, _) = form.offsets(k);
        // SAFETY: the caller vouches for the strip.
        unsafe {
            Scales {
                form,
                scales: strip.add(scales),
                mins: strip.add(mins),
                inner: k / SUPER * 2 * STRIP,
            }
        }
    }

    /// Scales and mins; zeros where the form has no mins.
    ///
    /// # Safety
    /// The group must be one of the strip's.
    #[inline(always)]
    pub(super) unsafe fn get<S: Integers>(&self, s: S, group: usize) -> (S::V, S::V) {
        // SAFETY: as the caller vouches.
        unsafe {
            let scale = self.side(s, self.scales, group);
            let min = if self.form.mins {
                self.side(s, self.mins, group)
            } else {
                s.zero()
            };
            (scale, min)
        }
    }

    #[inline(always)]
    unsafe fn side<S: Integers>(&self, s: S, side: *const u8, group: usize) -> S::V {
        // SAFETY: a side holds sixteen halves and, when nested, sixteen bytes for each group.
        unsafe {
            if self.form.nested {
                let outer = group * self.form.group / SUPER;
                let inner = s.load_i8(side.add(self.inner + group * STRIP).cast());
                s.mul(s.load_f16(side.cast::<u16>().add(outer * STRIP)), inner)
            } else {
                s.load_f16(side.cast::<u16>().add(group * STRIP))
            }
        }
    }
}

/// The strips of a task, for all rows of activations.
pub(super) struct Strips<'a>(pub(super) Task<'a, Activations>);

impl IntegerKernel for Strips<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Whole>(self, s: S) {
        let task = self.0;
        let form = task.linear.form;
        // SAFETY: `PackedLinear::run`'s caller vouches for the operands; the task stays inside its strips.
        unsafe {
            with_lines!(form.quant, L => if form.group == BLOCK {
                strips::<S, L, BLOCK>(s, &task);
            } else {
                strips::<S, L, { BLOCK / 2 }>(s, &task);
            });
        }
    }
}

/// # Safety
/// As for [`super::PackedLinear::run`], within the task's strips.
#[inline(always)]
unsafe fn strips<S: Integers, L: Lines, const GROUP: usize>(s: S, task: &Task<'_, Activations>) {
    let m = task.linear.m;
    let mut reader = task.course.reader();
    for strip in task.strips.clone() {
        let mut row = 0;
        while row < m {
            let rows = (m - row).min(S::ROWS);
            // SAFETY: as the caller vouches; at most as many rows as the constant are there.
            unsafe {
                match rows {
                    1 => some_rows::<S, L, GROUP, 1>(s, task, &mut reader, strip, row, rows),
                    2 => some_rows::<S, L, GROUP, 2>(s, task, &mut reader, strip, row, rows),
                    _ if const { S::ROWS <= 4 } || rows <= 4 => {
                        some_rows::<S, L, GROUP, 4>(s, task, &mut reader, strip, row, rows);
                    }
                    _ => some_rows::<S, L, GROUP, 8>(s, task, &mut reader, strip, row, rows),
                }
            }
            row += rows;
        }
    }
}

/// `rows ≤ R` rows from `first` on; where there are fewer, what lies behind them is computed too and not written.
///
/// # Safety
/// As for [`super::PackedLinear::run`]; strip and rows must exist.
#[inline(always)]
unsafe fn some_rows<S: Integers, L: Lines, const GROUP: usize, const R: usize>(
    s: S,
    task: &Task<'_, Activations>,
    reader: &mut Reader<'_>,
    strip: usize,
    first: usize,
    rows: usize,
) {
    let linear = &task.linear;
    let (_, _, strip_bytes) = linear.form.offsets(linear.k);
    let block_bytes = BLOCK * STRIP / if L::BYTES { 1 } else { 2 };
    // SAFETY: as the caller vouches: a strip has `k / 32` blocks with their scales, and a row of activations has as many.
    unsafe {
        let start = task.operands.weight.add(strip * strip_bytes);
        let scales = Scales::of(linear.form, linear.k, start);
        let x = task.activations.rows(first);
        let mut out = [s.zero(); R];
        for block in 0..linear.k / BLOCK {
            let quants = start.add(block * block_bytes);
            if first == 0 {
                reader.used(block_bytes);
            }
            let x_block = x.block(block).cast_const();
            let mut sums = [s.no_sums(); R];
            macro_rules! half {
                ($half:literal, $($index:literal)*) => {$(
                    let line = L::line(s, quants, $half, $index);
                    for r in 0..R {
                        let x = x_block.add(r * LINE);
                        sums[r] = s.dot::<{ $half * HALF + $index }>(sums[r], line, x);
                    }
                )*};
            }
            half!(0, 0 1 2 3);
            if GROUP < BLOCK {
                let x_group = x.group(2 * block).cast_const();
                finish::<S, R>(s, &scales, 2 * block, x_group, &mut sums, &mut out);
            }
            half!(1, 0 1 2 3);
            let group = if GROUP < BLOCK { 2 * block + 1 } else { block };
            let x_group = x.group(group).cast_const();
            finish::<S, R>(s, &scales, group, x_group, &mut sums, &mut out);
        }
        if first == 0 {
            // The scales, all of them by now.
            reader.used(strip_bytes - linear.k / BLOCK * block_bytes);
        }
        for (r, out) in out.iter().enumerate().take(rows) {
            write(s, task, first + r, strip, *out);
        }
    }
}

/// Scales the sums of a group, adds them to the outputs and clears them.
///
/// # Safety
/// The group must be one of the strip's, and `R` rows' groups be readable at `x`.
#[inline(always)]
unsafe fn finish<S: Integers, const R: usize>(
    s: S,
    scales: &Scales,
    group: usize,
    x: *const Group,
    sums: &mut [S::Sums; R],
    out: &mut [S::V; R],
) {
    // SAFETY: as the caller vouches.
    unsafe {
        let (scale, min) = scales.get(s, group);
        for r in 0..R {
            let x = *x.add(r);
            let total = s.total(sums[r], x.offset);
            out[r] = s.fma(total, s.mul(scale, s.splat(x.scale)), out[r]);
            out[r] = s.fma(min, s.splat(x.sum), out[r]);
            sums[r] = s.no_sums();
        }
    }
}
