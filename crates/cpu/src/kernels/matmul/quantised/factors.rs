//! Scales and mins of groups in units of the row's scale: how they are stored, and how they become 16-bit integers.
//!
//! A weight is `scale · (quant − centre) + min`, all integers. The centre keeps the sum of a group within 16 bits. All
//! arithmetic is exact or rounded in one defined way, so every tier decodes the same integers.

use super::format::{LINE, PackedFormat, Quant};
use crate::simd::RowScaledDot;

/// How the scales and mins of groups are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FactorEncoding {
    /// Scale and min, 16 bits each.
    Pairs,
    /// The scale, 16 bits; the min follows from it and the zero point.
    Scales,
    /// Scale and min are bytes, times 16-bit outer factors of a super-block.
    TwoLevelPairs,
    /// The scale is a signed byte, times a 16-bit outer factor of a super-block; the min follows from it.
    TwoLevelScales,
    /// A 16-bit factor: a weight is the byte quant times the factor over 128, rounded.
    Multipliers,
}

// A factor with two levels is `inner · 2^shift · outer / 2^15`, rounded to the nearest integer: the instruction
// `vpmulhrsw`. For scales, the outer factor is chosen so that this is the scale times `2^FRACTION`. The bits of the
// fraction are then rounded away, and what they lose in the middle of the quants is added to the min.

/// The shift of inner factors that are unsigned and below 64.
const PAIR_SHIFT: u32 = 9;
/// The shift of inner factors that are signed bytes.
const SCALE_SHIFT: u32 = 8;
const FRACTION: u32 = 3;

/// The number that is subtracted from a quant, by its bits above the fourth: sums of a group's centred quants times
/// bytes from -64 to 63 fit 16 bits.
pub(super) const CENTRES: [i32; 3] = [0, 15, 31];

impl FactorEncoding {
    /// The encoding of a row-scaled format.
    pub(super) fn of(format: &PackedFormat) -> FactorEncoding {
        if format.has_byte_quants() {
            return FactorEncoding::Multipliers;
        }
        match (format.two_level_scales, format.mins) {
            (false, true) => FactorEncoding::Pairs,
            (false, false) => FactorEncoding::Scales,
            (true, true) => FactorEncoding::TwoLevelPairs,
            (true, false) => FactorEncoding::TwoLevelScales,
        }
    }

    /// Bytes of a group's factors for sixteen rows.
    pub(super) fn group_bytes(self) -> usize {
        match self {
            FactorEncoding::Pairs => LINE,
            FactorEncoding::Scales
            | FactorEncoding::TwoLevelPairs
            | FactorEncoding::Multipliers => LINE / 2,
            FactorEncoding::TwoLevelScales => LINE / 4,
        }
    }

    /// Bytes of a super-block's outer factors for sixteen rows.
    pub(super) fn outer_bytes(self) -> usize {
        match self {
            FactorEncoding::Pairs | FactorEncoding::Scales | FactorEncoding::Multipliers => 0,
            FactorEncoding::TwoLevelPairs => LINE,
            FactorEncoding::TwoLevelScales => LINE / 2,
        }
    }

    /// Decodes the factors of `count` groups of a span to lines of sixteen pairs of scale and min, for quants with
    /// `UPPER` bits above the fourth. Those of byte quants become pairs of the factor twice.
    ///
    /// # Safety
    /// The groups' factors must be readable at `groups`, those of the super-block at `outer` if there are two levels, and
    /// `count` lines be writable at `to`.
    #[inline(always)]
    pub(super) unsafe fn decode<S: RowScaledDot, const UPPER: usize>(
        self,
        s: S,
        groups: *const u8,
        outer: *const u8,
        count: usize,
        to: *mut u8,
    ) {
        macro_rules! each_group {
            ($group:ident => $line:expr) => {
                for i in 0..count {
                    let $group = groups.add(i * self.group_bytes());
                    s.store_bytes($line, to.add(i * LINE));
                }
            };
        }
        // SAFETY: as the caller guarantees.
        unsafe {
            match self {
                FactorEncoding::Pairs => each_group!(group => s.load_bytes(group)),
                FactorEncoding::Scales => each_group!(group => {
                    with_derived_min::<S, UPPER>(s, s.widen_u16(group), Q4_0_ZERO_SHIFT)
                }),
                FactorEncoding::Multipliers => each_group!(group => {
                    let factors = s.widen_u16(group);
                    s.select_halves(factors, s.shift_left_32(factors, 16))
                }),
                FactorEncoding::TwoLevelPairs => {
                    let outer = s.load_bytes(outer);
                    each_group!(group => {
                        let inner = s.shift_left_16(s.widen_u8(group), PAIR_SHIFT);
                        let both = s.mul_high_rounded(inner, outer);
                        let scales = drop_fraction(s, both);
                        let lost = if UPPER > 0 {
                            // Twice 2^FRACTION is one more than the centre.
                            s.sub_16(s.add_16(both, both), scales)
                        } else {
                            s.sub_16(both, s.shift_left_16(scales, FRACTION))
                        };
                        let mins = s.add_16(both, s.shift_left_32(lost, 16));
                        s.select_halves(scales, mins)
                    });
                }
                FactorEncoding::TwoLevelScales => {
                    let outer = s.widen_u16(outer);
                    each_group!(group => {
                        let inner = s.shift_left_16(s.widen_i8(group), SCALE_SHIFT);
                        let scales = drop_fraction(s, s.mul_high_rounded(inner, outer));
                        with_derived_min::<S, UPPER>(s, scales, Q3_K_ZERO_SHIFT)
                    });
                }
            }
        }
    }
}

/// Binary logarithms of the zero points of the four-bit formats without mins.
const Q4_0_ZERO_SHIFT: u32 = 3;
const Q3_K_ZERO_SHIFT: u32 = 2;

/// The centre of a format's quants.
pub(super) fn centre(format: &PackedFormat) -> i32 {
    match format.quant {
        Quant::Five => CENTRES[1],
        Quant::Six => CENTRES[2],
        _ => CENTRES[0],
    }
}

/// Pairs of a scale, given in the low half of 32 bits with zeros above, and the min that it implies: minus the scale times
/// the zero point, which is one more than the centre of quants that have one.
#[inline(always)]
fn with_derived_min<S: RowScaledDot, const UPPER: usize>(
    s: S,
    scales: S::Line,
    zero_shift: u32,
) -> S::Line {
    let shift = if UPPER > 0 { 16 } else { 16 + zero_shift };
    s.sub_16(scales, s.shift_left_32(scales, shift))
}

/// Rounds the bits of the fraction away.
#[inline(always)]
fn drop_fraction<S: RowScaledDot>(s: S, values: S::Line) -> S::Line {
    let half = s.splat_16(1 << (FRACTION - 1));
    s.shift_right_16(s.add_16(values, half), FRACTION)
}

/// The outer factor of scales for `step`: the scale that one step of the inner scale stands for, in units of the row's
/// scale.
pub(super) fn outer_scale(encoding: FactorEncoding, step: f64) -> f64 {
    let shift = match encoding {
        FactorEncoding::TwoLevelScales => SCALE_SHIFT,
        _ => PAIR_SHIFT,
    };
    step * f64::from(1u32 << (15 + FRACTION - shift))
}

/// The outer factor of mins.
pub(super) fn outer_min(step: f64) -> f64 {
    step * f64::from(1u32 << (15 - PAIR_SHIFT))
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::DType;

    #[test]
    fn mins_that_follow_from_scales_are_those_of_the_zero_points() {
        for dtype in DType::ALL {
            let Some(format) = PackedFormat::of(dtype) else {
                continue;
            };
            let zero_shift = match FactorEncoding::of(&format) {
                FactorEncoding::Pairs
                | FactorEncoding::TwoLevelPairs
                | FactorEncoding::Multipliers => continue,
                FactorEncoding::Scales => Q4_0_ZERO_SHIFT,
                FactorEncoding::TwoLevelScales => Q3_K_ZERO_SHIFT,
            };
            let implied = match centre(&format) {
                0 => 1 << zero_shift,
                centre => centre + 1,
            };
            assert_eq!(format.zero, implied, "{dtype}");
        }
    }
}
