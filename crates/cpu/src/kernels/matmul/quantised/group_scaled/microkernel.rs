//! The vector microkernel: one strip of sixteen weight rows times a few rows of activations.

use super::super::format::{BLOCK, IQ4_TABLE, LINE, PackedFormat, STRIP, SUPER_BLOCK};
use super::super::strip_kernel::StripMicrokernel;
use super::super::{QuantisedLinear, StripTask, write};
use super::activations::GroupScaledActivations;
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

/// A strip's scales.
#[derive(Clone, Copy)]
pub(super) struct StripScales {
    two_level: bool,
    scales: *const u8,
    /// Byte offset from the outer scales to the inner ones.
    inner: usize,
}

impl StripScales {
    /// # Safety
    /// A packed strip of this format and depth must be at `strip`.
    #[inline(always)]
    pub(super) unsafe fn of(format: PackedFormat, k: usize, strip: *const u8) -> StripScales {
        StripScales {
            two_level: format.two_level_scales,
            // SAFETY: the caller guarantees the strip.
            scales: unsafe { strip.add(format.scales_at(k)) },
            inner: k / SUPER_BLOCK * 2 * STRIP,
        }
    }

    /// The scales of a group.
    ///
    /// # Safety
    /// The group must be one of the strip's.
    #[inline(always)]
    pub(super) unsafe fn get<S: IntDot>(&self, s: S, group: usize) -> S::V {
        // SAFETY: a strip has sixteen f16 and, in two-level formats, sixteen bytes for each group.
        unsafe {
            if self.two_level {
                let outer = group * BLOCK / SUPER_BLOCK;
                let inner = s.load_i8(self.scales.add(self.inner + group * STRIP).cast());
                s.mul(
                    s.load_f16(self.scales.cast::<u16>().add(outer * STRIP)),
                    inner,
                )
            } else {
                s.load_f16(self.scales.cast::<u16>().add(group * STRIP))
            }
        }
    }
}

/// The inner loop of the group-scaled scheme.
pub(super) struct GroupScaledMicrokernel<L>(PhantomData<L>);

impl<L: LoadQuants> StripMicrokernel for GroupScaledMicrokernel<L> {
    type Activations = GroupScaledActivations;

    /// Bytes of a strip.
    type Layout = usize;

    const ROWS: usize = 8;

    fn layout(linear: &QuantisedLinear) -> usize {
        linear.format.strip_bytes(linear.k)
    }

    #[inline(always)]
    unsafe fn multiply<S: RowScaledDot, const GROUP: usize, const R: usize>(
        s: S,
        task: &StripTask<'_, GroupScaledActivations>,
        strip_bytes: &usize,
        prefetcher: &mut Prefetcher<'_>,
        strip: usize,
        first: usize,
        rows: usize,
    ) {
        let linear = &task.linear;
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
                half!(1, 0 1 2 3);
                let scale = scales.get(s, block);
                let terms = x.group(block).cast_const();
                for r in 0..R {
                    let x = *terms.add(r);
                    let total = s.sums_to_f32(sums[r], x.offset);
                    out[r] = s.fma(total, s.mul(scale, s.splat(x.scale)), out[r]);
                }
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
