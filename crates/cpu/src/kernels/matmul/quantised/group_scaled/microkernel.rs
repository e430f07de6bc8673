//! The vector microkernel: one strip of sixteen weight rows times a few rows of activations.

use super::super::format::{BLOCK, IQ4_TABLE, LINE, PackedFormat, STRIP, SUPER_BLOCK, StripLayout};
use super::super::strip_kernel::StripMicrokernel;
use super::super::{StripTask, write};
use super::activations::{GroupScaledActivations, GroupTerms};
use crate::prefetch::Prefetcher;
use crate::simd::{IntDot, RowScaledDot};
use std::marker::PhantomData;

/// Lines in half a block; a line has the quants of four inputs.
const HALF: usize = BLOCK / 8;

/// How a line of quants is loaded as bytes; chosen at compile time.
pub(super) trait LoadQuants {
    /// Whether a quant is a byte.
    const BYTES: bool;
    /// Line `index < 4` of half `half` of a block.
    ///
    /// # Safety
    /// The quants of a block must be readable at `block`.
    unsafe fn line<S: IntDot>(s: S, block: *const u8, half: usize, index: usize) -> S::Line;
}

pub(super) struct NibbleQuants;
pub(super) struct TableQuants;
pub(super) struct ByteQuants;

impl LoadQuants for NibbleQuants {
    const BYTES: bool = false;

    #[inline(always)]
    unsafe fn line<S: IntDot>(s: S, block: *const u8, half: usize, index: usize) -> S::Line {
        // SAFETY: the caller guarantees the block's four lines.
        unsafe {
            let p = block.add(index * LINE);
            if half == 0 {
                s.load_low_nibbles(p)
            } else {
                s.load_high_nibbles(p)
            }
        }
    }
}

impl LoadQuants for TableQuants {
    const BYTES: bool = false;

    #[inline(always)]
    unsafe fn line<S: IntDot>(s: S, block: *const u8, half: usize, index: usize) -> S::Line {
        // SAFETY: as the caller guarantees.
        s.look_up(
            unsafe { NibbleQuants::line(s, block, half, index) },
            &IQ4_TABLE,
        )
    }
}

impl LoadQuants for ByteQuants {
    const BYTES: bool = true;

    #[inline(always)]
    unsafe fn line<S: IntDot>(s: S, block: *const u8, half: usize, index: usize) -> S::Line {
        // SAFETY: the caller guarantees the block's eight lines.
        unsafe { s.load_bytes(block.add((half * HALF + index) * LINE)) }
    }
}

/// Runs `$body` with `$L` as the loader of `$quant`.
macro_rules! with_quants {
    ($quant:expr, $L:ident => $body:expr) => {
        match $quant {
            Quant::Table => {
                type $L =
                    $crate::kernels::matmul::quantised::group_scaled::microkernel::TableQuants;
                $body
            }
            _ => {
                type $L = $crate::kernels::matmul::quantised::group_scaled::microkernel::ByteQuants;
                $body
            }
        }
    };
}
pub(super) use with_quants;

/// A strip's scales and mins.
#[derive(Clone, Copy)]
pub(super) struct StripScales {
    format: PackedFormat,
    scales: *const u8,
    mins: *const u8,
    /// Byte offset from the outer scales to the inner ones.
    inner: usize,
}

impl StripScales {
    /// # Safety
    /// A packed strip of this format and depth must be at `strip`.
    #[inline(always)]
    pub(super) unsafe fn of(format: PackedFormat, k: usize, strip: *const u8) -> StripScales {
        let StripLayout { scales, mins, .. } = format.strip_layout(k);
        // SAFETY: the caller guarantees the strip.
        unsafe {
            StripScales {
                format,
                scales: strip.add(scales),
                mins: strip.add(mins),
                inner: k / SUPER_BLOCK * 2 * STRIP,
            }
        }
    }

    /// Scales and mins of a group; zeros if the format has no mins.
    ///
    /// # Safety
    /// The group must be one of the strip's.
    #[inline(always)]
    pub(super) unsafe fn get<S: IntDot>(&self, s: S, group: usize) -> (S::V, S::V) {
        // SAFETY: as the caller guarantees.
        unsafe {
            let scale = self.side(s, self.scales, group);
            let min = if self.format.mins {
                self.side(s, self.mins, group)
            } else {
                s.zero()
            };
            (scale, min)
        }
    }

    #[inline(always)]
    unsafe fn side<S: IntDot>(&self, s: S, side: *const u8, group: usize) -> S::V {
        // SAFETY: scales and mins have sixteen f16 and, in two-level formats, sixteen bytes for each group.
        unsafe {
            if self.format.two_level_scales {
                let outer = group * self.format.group / SUPER_BLOCK;
                let inner = s.load_i8(side.add(self.inner + group * STRIP).cast());
                s.mul(s.load_f16(side.cast::<u16>().add(outer * STRIP)), inner)
            } else {
                s.load_f16(side.cast::<u16>().add(group * STRIP))
            }
        }
    }
}

/// The inner loop of the group-scaled scheme.
pub(super) struct GroupScaledMicrokernel<L>(PhantomData<L>);

impl<L: LoadQuants> StripMicrokernel for GroupScaledMicrokernel<L> {
    type Activations = GroupScaledActivations;

    #[inline(always)]
    unsafe fn multiply<S: RowScaledDot, const GROUP: usize, const R: usize>(
        s: S,
        task: &StripTask<'_, GroupScaledActivations>,
        prefetcher: &mut Prefetcher<'_>,
        strip: usize,
        first: usize,
        rows: usize,
    ) {
        let linear = &task.linear;
        let strip_bytes = linear.format.strip_layout(linear.k).bytes;
        let block_bytes = BLOCK * STRIP / if L::BYTES { 1 } else { 2 };
        // SAFETY: as the caller guarantees: a strip has `k / 32` blocks with their scales, and a row of activations has as many.
        unsafe {
            let start = task.operands.weight.add(strip * strip_bytes);
            let scales = StripScales::of(linear.format, linear.k, start);
            let x = task.activations.rows(first);
            let mut out = [s.zero(); R];
            for block in 0..linear.k / BLOCK {
                let quants = start.add(block * block_bytes);
                if first == 0 {
                    prefetcher.consumed(block_bytes);
                }
                let x_block = x.block(block).cast_const();
                let mut sums = [s.zero_sums(); R];
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
                    scale_group::<S, R>(s, &scales, 2 * block, x_group, &mut sums, &mut out);
                }
                half!(1, 0 1 2 3);
                let group = if GROUP < BLOCK { 2 * block + 1 } else { block };
                let x_group = x.group(group).cast_const();
                scale_group::<S, R>(s, &scales, group, x_group, &mut sums, &mut out);
            }
            if first == 0 {
                // The strip's scales, which have been read by now.
                prefetcher.consumed(strip_bytes - linear.k / BLOCK * block_bytes);
            }
            for (r, out) in out.iter().enumerate().take(rows) {
                write(s, task, first + r, strip, *out);
            }
        }
    }
}

/// Scales the sums of a group, adds them to the outputs and clears them.
///
/// # Safety
/// The group must be one of the strip's, and `R` rows' groups be readable at `x`.
#[inline(always)]
unsafe fn scale_group<S: IntDot, const R: usize>(
    s: S,
    scales: &StripScales,
    group: usize,
    x: *const GroupTerms,
    sums: &mut [S::Sums; R],
    out: &mut [S::V; R],
) {
    // SAFETY: as the caller guarantees.
    unsafe {
        let (scale, min) = scales.get(s, group);
        for r in 0..R {
            let x = *x.add(r);
            let total = s.sums_to_f32(sums[r], x.offset);
            out[r] = s.fma(total, s.mul(scale, s.splat(x.scale)), out[r]);
            out[r] = s.fma(min, s.splat(x.sum), out[r]);
            sums[r] = s.zero_sums();
        }
    }
}
