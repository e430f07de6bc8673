//! A block of a panel in registers, and its products with a plane of a row.

use super::super::byte_quants::quant_lines;
use super::super::factors::CENTRES;
use super::super::format::{BLOCK, LINE};
use super::super::panel::{RowScaledPanel, block_lines};
use crate::simd::{LANES, RowScaledDot};

/// How a format's quants become lines.
pub(super) trait BlockQuants {
    /// Bits of a quant above the fourth.
    const UPPER: usize;
    /// Inputs of a group.
    const GROUP: usize;
    /// Whether quants are signed bytes.
    const SIGNED: bool;

    /// The eight lines of a block.
    ///
    /// # Safety
    /// The block must be readable.
    unsafe fn lines<S: RowScaledDot>(
        s: S,
        quants: *const u8,
        layout: &RowScaledPanel,
    ) -> [S::Line; 8];
}

/// Unsigned quants of `4 + UPPER` bits.
pub(super) struct Bits<const UPPER: usize, const GROUP: usize>;

impl<const UPPER: usize, const GROUP: usize> BlockQuants for Bits<UPPER, GROUP> {
    const UPPER: usize = UPPER;
    const GROUP: usize = GROUP;
    const SIGNED: bool = false;

    #[inline(always)]
    unsafe fn lines<S: RowScaledDot>(s: S, quants: *const u8, _: &RowScaledPanel) -> [S::Line; 8] {
        // SAFETY: as the caller guarantees.
        unsafe { block_lines::<S, UPPER>(s, quants) }
    }
}

/// Signed bytes, or indices into a table of them.
pub(super) struct SignedBytes<const TABLE: bool>;

impl<const TABLE: bool> BlockQuants for SignedBytes<TABLE> {
    const UPPER: usize = 0;
    const GROUP: usize = BLOCK;
    const SIGNED: bool = true;

    #[inline(always)]
    unsafe fn lines<S: RowScaledDot>(
        s: S,
        quants: *const u8,
        layout: &RowScaledPanel,
    ) -> [S::Line; 8] {
        // SAFETY: as the caller guarantees.
        let mut lines = unsafe { quant_lines::<S, TABLE>(s, quants, layout.quant.table()) };
        for line in &mut lines {
            *line = s.signed_line(*line);
        }
        lines
    }
}

/// A block of a panel in registers.
#[derive(Clone, Copy)]
pub(super) struct DecodedBlock<S: RowScaledDot> {
    lines: [S::Line; 8],
    /// The scales and the mins of its groups; the last group is also the first if there is one.
    scales: [S::V; 2],
    mins: [S::V; 2],
}

/// Decodes a block, given its quants and the line of factors of its first group.
///
/// # Safety
/// Both must be readable.
#[inline(always)]
pub(super) unsafe fn decode<S: RowScaledDot, Q: BlockQuants>(
    s: S,
    quants: *const u8,
    factors: *const u8,
    layout: &RowScaledPanel,
) -> DecodedBlock<S> {
    // SAFETY: as the caller guarantees.
    unsafe {
        let lines = Q::lines(s, quants, layout);
        let first = group_factors::<S, Q>(s, factors);
        let last = match Q::GROUP {
            BLOCK => first,
            _ => group_factors::<S, Q>(s, factors.add(LINE)),
        };
        DecodedBlock {
            lines,
            scales: [first[0], last[0]],
            mins: [first[1], last[1]],
        }
    }
}

/// The scales and the mins of a group.
///
/// # Safety
/// The line of factors must be readable.
#[inline(always)]
unsafe fn group_factors<S: RowScaledDot, Q: BlockQuants>(s: S, factors: *const u8) -> [S::V; 2] {
    // SAFETY: as the caller guarantees.
    let [scales, mins] = s.pairs_to_f32(unsafe { s.load_bytes(factors) });
    match (Q::SIGNED, CENTRES[Q::UPPER]) {
        // The factor is in 128ths.
        (true, _) => [s.mul(scales, s.splat(1.0 / 128.0)), s.zero()],
        (false, 0) => [scales, mins],
        // Exact: all are integers of less than 24 bits.
        (false, centre) => [scales, s.fma(scales, s.splat(-centre as f32), mins)],
    }
}

/// Adds the products of a block with a plane of a row.
///
/// # Safety
/// The plane and its numbers must be readable.
#[inline(always)]
pub(super) unsafe fn add_products<S: RowScaledDot, Q: BlockQuants>(
    s: S,
    block: &DecodedBlock<S>,
    plane: *const u8,
    numbers: *const f32,
    sum: S::V,
) -> S::V {
    let [a, b, c, d, e, f, g, h] = block.lines;
    let (first, last) = ([a, b, c, d], [e, f, g, h]);
    // SAFETY: as the caller guarantees.
    unsafe {
        let scale = s.splat(*numbers);
        if Q::SIGNED {
            let offsets: *const i32 = numbers.add(1).cast();
            let ints = s.add_ints(
                s.dot_signed(first, plane, *offsets),
                s.dot_signed(last, plane.add(LANES), *offsets.add(1)),
            );
            return s.fma(s.mul(s.ints_to_f32(ints), scale), block.scales[0], sum);
        }
        macro_rules! dot {
            ($lines:expr, $x:expr) => {
                match Q::UPPER {
                    0 => s.dot_quants::<4>($lines, $x),
                    1 => s.dot_quants::<5>($lines, $x),
                    _ => s.dot_quants::<6>($lines, $x),
                }
            };
        }
        let ints = [dot!(first, plane), dot!(last, plane.add(LANES))];
        macro_rules! add {
            ($sum:expr, $ints:expr, $group:literal) => {{
                let product = s.mul(s.ints_to_f32($ints), scale);
                let sum = s.fma(product, block.scales[$group], $sum);
                s.fma(s.splat(*numbers.add(1 + $group)), block.mins[$group], sum)
            }};
        }
        if Q::GROUP == BLOCK {
            add!(sum, s.add_ints(ints[0], ints[1]), 0)
        } else {
            add!(add!(sum, ints[0], 0), ints[1], 1)
        }
    }
}

/// As [`add_products`], for two panels and the same plane.
///
/// # Safety
/// The plane and its numbers must be readable.
#[inline(always)]
pub(super) unsafe fn add_products_of_two<S: RowScaledDot, Q: BlockQuants>(
    s: S,
    blocks: &[DecodedBlock<S>; 2],
    plane: *const u8,
    numbers: *const f32,
    sums: [S::V; 2],
) -> [S::V; 2] {
    let [a, b, c, d, e, f, g, h] = blocks[0].lines;
    let [i, j, k, l, m, n, o, p] = blocks[1].lines;
    let (first, last) = ([[a, b, c, d], [i, j, k, l]], [[e, f, g, h], [m, n, o, p]]);
    // SAFETY: as the caller guarantees.
    unsafe {
        let scale = s.splat(*numbers);
        if Q::SIGNED {
            let offsets: *const i32 = numbers.add(1).cast();
            let first = s.dot_signed_of_two(first, plane, *offsets);
            let last = s.dot_signed_of_two(last, plane.add(LANES), *offsets.add(1));
            macro_rules! add {
                ($panel:literal) => {{
                    let ints = s.add_ints(first[$panel], last[$panel]);
                    let product = s.mul(s.ints_to_f32(ints), scale);
                    s.fma(product, blocks[$panel].scales[0], sums[$panel])
                }};
            }
            return [add!(0), add!(1)];
        }
        macro_rules! dot {
            ($lines:expr, $x:expr) => {
                match Q::UPPER {
                    0 => s.dot_quants_of_two::<4>($lines, $x),
                    1 => s.dot_quants_of_two::<5>($lines, $x),
                    _ => s.dot_quants_of_two::<6>($lines, $x),
                }
            };
        }
        let (first, last) = (dot!(first, plane), dot!(last, plane.add(LANES)));
        macro_rules! add {
            ($sum:expr, $ints:expr, $panel:literal, $group:literal) => {{
                let product = s.mul(s.ints_to_f32($ints), scale);
                let sum = s.fma(product, blocks[$panel].scales[$group], $sum);
                let activations = s.splat(*numbers.add(1 + $group));
                s.fma(activations, blocks[$panel].mins[$group], sum)
            }};
        }
        if Q::GROUP == BLOCK {
            [
                add!(sums[0], s.add_ints(first[0], last[0]), 0, 0),
                add!(sums[1], s.add_ints(first[1], last[1]), 1, 0),
            ]
        } else {
            [
                add!(add!(sums[0], first[0], 0, 0), last[0], 0, 1),
                add!(add!(sums[1], first[1], 1, 0), last[1], 1, 1),
            ]
        }
    }
}
