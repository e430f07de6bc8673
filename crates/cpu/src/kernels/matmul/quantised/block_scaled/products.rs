//! A block of a panel in registers, and its products with a plane of a row.

use super::super::byte_quants::quant_lines;
use super::super::factors::CENTRES;
use super::super::format::{BLOCK, LINE, PANEL};
use super::super::panel::{RowScaledPanel, block_lines};
use crate::simd::{LANES, RowScaledDot};

/// How a format's quants become lines.
pub(in super::super) trait BlockQuants {
    /// Bits of a quant above the fourth.
    const UPPER: usize;
    /// Inputs of a group.
    const GROUP: usize;
    /// Whether quants are signed bytes.
    const SIGNED: bool;

    /// The eight lines of a block's quants.
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
pub(in super::super) struct Bits<const UPPER: usize, const GROUP: usize>;

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
pub(in super::super) struct SignedBytes<const TABLE: bool>;

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
        unsafe { quant_lines::<S, TABLE>(s, quants, layout.quant.table()) }
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
        let mut lines = Q::lines(s, quants, layout);
        if Q::SIGNED {
            lines = lines.map(|line| s.signed_line(line));
        }
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
pub(in super::super) unsafe fn group_factors<S: RowScaledDot, Q: BlockQuants>(
    s: S,
    factors: *const u8,
) -> [S::V; 2] {
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

/// Adds the products of a block of each panel with a plane of each row. A row's sums are at `to`, those of the next panel behind
/// those of the last.
///
/// # Safety
/// The planes, their numbers and the sums must be readable, the sums writable.
#[inline(always)]
pub(super) unsafe fn add_products<
    S: RowScaledDot,
    Q: BlockQuants,
    const PANELS: usize,
    const ROWS: usize,
>(
    s: S,
    blocks: &[DecodedBlock<S>; PANELS],
    planes: [*const u8; ROWS],
    numbers: [*const f32; ROWS],
    to: [*mut f32; ROWS],
) {
    // SAFETY: as the caller guarantees.
    unsafe {
        let mut halves = [[[blocks[0].lines[0]; 4]; PANELS]; 2];
        for panel in 0..PANELS {
            for line in 0..4 {
                halves[0][panel][line] = blocks[panel].lines[line];
                halves[1][panel][line] = blocks[panel].lines[4 + line];
            }
        }
        let mut last_planes = planes;
        for plane in &mut last_planes {
            *plane = plane.add(LANES);
        }
        let mut ints = [[s.zero_ints(); PANELS]; ROWS];
        if Q::SIGNED {
            for row in 0..ROWS {
                let offset: *const i32 = numbers[row].add(1).cast();
                ints[row] = [s.signed_start(*offset); PANELS];
            }
        }
        macro_rules! dots {
            ($half:literal, $planes:expr, $ints:expr) => {
                match (Q::SIGNED, Q::UPPER) {
                    (true, _) => s.add_dots::<8, PANELS, ROWS>(halves[$half], $planes, $ints),
                    (false, 0) => s.add_dots::<4, PANELS, ROWS>(halves[$half], $planes, $ints),
                    (false, 1) => s.add_dots::<5, PANELS, ROWS>(halves[$half], $planes, $ints),
                    (false, _) => s.add_dots::<6, PANELS, ROWS>(halves[$half], $planes, $ints),
                }
            };
        }
        macro_rules! convert {
            ($ints:expr, $group:literal) => {
                for row in 0..ROWS {
                    let scale = s.splat(*numbers[row]);
                    for panel in 0..PANELS {
                        let block = &blocks[panel];
                        let to = to[row].add(panel * PANEL);
                        let product = s.mul(s.ints_to_f32($ints[row][panel]), block.scales[$group]);
                        let mut sum = s.fma(product, scale, s.load(to));
                        if !Q::SIGNED {
                            let activations = s.splat(*numbers[row].add(1 + $group));
                            sum = s.fma(activations, block.mins[$group], sum);
                        }
                        s.store(to, sum);
                    }
                }
            };
        }
        let first = dots!(0, planes, ints);
        if Q::GROUP == BLOCK {
            let all = if const { PANELS * ROWS <= 2 } {
                // Two independent chains of sums hide the latency of products.
                let last = dots!(1, last_planes, [[s.zero_ints(); PANELS]; ROWS]);
                let mut all = first;
                for row in 0..ROWS {
                    for panel in 0..PANELS {
                        all[row][panel] = s.add_ints(first[row][panel], last[row][panel]);
                    }
                }
                all
            } else {
                dots!(1, last_planes, first)
            };
            convert!(all, 0);
        } else {
            convert!(first, 0);
            let last = dots!(1, last_planes, ints);
            convert!(last, 1);
        }
    }
}
