//! Packs row-scaled panels: group scales and mins become integers in units of one scale per row.

use super::factors::{FactorEncoding, centre, outer_min, outer_scale};
use super::format::{BLOCK, LINE, PANEL, PackedFormat, PanelSource, SUPER_BLOCK, put_quants};
use super::panel::RowScaledPanel;
use crate::simd::RowScaledDot;
use base::quant::{BlockFormat, Codes, QuantBlock, half_to_f32};

/// The largest integer of a weight; it leaves headroom for the rounding of scales.
const MAX_WEIGHT: f32 = 32_700.0;
/// The magnitude of signed byte quants.
const QUANT_RANGE: f32 = 128.0;
/// The largest outer factor of a super-block.
const MAX_OUTER: f64 = 32_767.0;

/// The largest quant of a format.
fn largest_quant(format: &BlockFormat) -> f32 {
    match format.codes {
        Codes::Unsigned { bits, .. } => ((1 << bits) - 1) as f32,
        Codes::Signed | Codes::Table(_) => QUANT_RANGE,
    }
}

/// Scale and min of a group, so that a weight is `scale · quant + min`.
fn group_factors(rows: &PanelSource<'_>, block: &QuantBlock, group: usize) -> [f32; 2] {
    let [scale, min] = rows.source.factors(block, group);
    with_zero(&rows.format, scale, min)
}

/// Scale and min of quants whose zero is not subtracted.
#[inline(always)]
fn with_zero(format: &PackedFormat, scale: f32, min: f32) -> [f32; 2] {
    match format.mins {
        true => [scale, min],
        false => [scale, -scale * format.zero as f32],
    }
}

/// Packs a panel of up to sixteen rows.
#[inline(always)]
pub(super) fn pack_panel<S: RowScaledDot>(s: S, rows: PanelSource<'_>, out: &mut [u8]) {
    // The fast path needs all sixteen rows, within 2 GiB of each other.
    let len = rows.bytes.len();
    let whole = len == PANEL * rows.row_bytes && i32::try_from(len).is_ok();
    match rows.source.nibbles_at {
        Some(at) if whole => pack_lines(s, rows, at, out),
        _ => pack_rows(rows, out),
    }
}

/// Packs sixteen rows of less than 2 GiB together, line by line. Their blocks must start with the f16 scale and
/// min, and have their quants at `quants_at` in the order of a panel's lines.
#[inline(always)]
fn pack_lines<S: RowScaledDot>(s: S, rows: PanelSource<'_>, quants_at: usize, out: &mut [u8]) {
    let layout = RowScaledPanel::new(&rows.format, rows.k);
    let (bytes, blocks) = (rows.source.bytes, rows.k / BLOCK);
    let most = largest_quant(rows.source);
    let format = rows.format;
    let (rows, row_bytes) = (rows.bytes, rows.row_bytes);
    let factors = |bits: u32| {
        let (scale, min) = (half_to_f32(bits as u16), half_to_f32((bits >> 16) as u16));
        with_zero(&format, scale, min)
    };
    let mut largest = [0; PANEL];
    let mut bits = vec![[0u8; LINE]; blocks];
    assert!(
        i32::try_from(rows.len()).is_ok(),
        "rows lie near each other"
    );
    for (block, bits) in bits.iter_mut().enumerate() {
        let from = &rows[block * bytes..];
        let quants = &mut out[layout.quants(block)..][..layout.block_bytes];
        assert!(
            from.len() >= (PANEL - 1) * row_bytes + bytes
                && quants_at + quants.len() / PANEL <= bytes
        );
        for (i, line) in quants.as_chunks_mut::<LINE>().0.iter_mut().enumerate() {
            // SAFETY: all sixteen rows have the block, as was just checked, and the block has the line.
            unsafe {
                let from = from.as_ptr().add(quants_at + 4 * i);
                s.gather_line(from, row_bytes, line.as_mut_ptr());
            }
        }
        // SAFETY: as above; a block starts with its factors.
        unsafe { s.gather_line(from.as_ptr(), row_bytes, bits.as_mut_ptr()) };
        for (largest, bits) in largest.iter_mut().zip(bits.as_chunks::<4>().0) {
            *largest = max_magnitude_bits(factors(u32::from_le_bytes(*bits)), most).max(*largest);
        }
    }
    let mut inverses = [0.0; PANEL];
    let units = out[..LINE].as_chunks_mut::<4>().0.iter_mut();
    for ((inverse, unit), largest) in inverses.iter_mut().zip(units).zip(largest) {
        let value = row_scale(largest);
        (*inverse, *unit) = (inverse_row_scale(value), value.to_le_bytes());
    }
    for (block, bits) in bits.iter().enumerate() {
        let bits = bits.as_chunks::<4>().0;
        for (r, (bits, inverse)) in bits.iter().zip(inverses).enumerate() {
            let factors = factors(u32::from_le_bytes(*bits));
            put_factors(&layout, factors, (most, 0), inverse, block, r, out);
        }
    }
}

/// Packs rows one after the other.
fn pack_rows(rows: PanelSource<'_>, out: &mut [u8]) {
    let PanelSource {
        source, format, k, ..
    } = rows;
    let layout = RowScaledPanel::new(&format, k);
    let (len, bytes) = (source.len, source.bytes);
    let (row_blocks, count) = (len / BLOCK, len / format.group);
    let limits = (largest_quant(source), centre(&format));
    debug_assert!(
        rows.bytes.len() <= PANEL * rows.row_bytes,
        "at most a panel of rows"
    );
    let mut blocks = vec![QuantBlock::default(); k / len];
    for (r, row) in rows.bytes.chunks(rows.row_bytes).enumerate() {
        let mut largest = 0;
        for (i, (bytes, block)) in row.chunks(bytes).zip(&mut blocks).enumerate() {
            (source.unpack)(bytes, block);
            for group in 0..count {
                let factors = group_factors(&rows, block, group);
                largest = max_magnitude_bits(factors, limits.0).max(largest);
            }
            let quants = block.codes[..len].as_chunks::<BLOCK>().0;
            for (j, quants) in quants.iter().enumerate() {
                let at = layout.quants(i * row_blocks + j);
                put_quants(format, quants, r, &mut out[at..][..layout.block_bytes]);
            }
        }
        let unit = row_scale(largest);
        let unit = match layout.encoding {
            FactorEncoding::TwoLevelPairs | FactorEncoding::TwoLevelScales => {
                widest_unit(unit, layout.encoding, &blocks)
            }
            FactorEncoding::Pairs | FactorEncoding::Scales | FactorEncoding::Multipliers => unit,
        };
        out[4 * r..][..4].copy_from_slice(&unit.to_le_bytes());
        let inverse = inverse_row_scale(unit);
        for (i, block) in blocks.iter().enumerate() {
            match layout.encoding {
                FactorEncoding::TwoLevelPairs | FactorEncoding::TwoLevelScales => {
                    put_two_levels(&layout, block, inverse, i, r, out);
                }
                FactorEncoding::Pairs | FactorEncoding::Scales => {
                    let factors = group_factors(&rows, block, 0);
                    put_factors(&layout, factors, limits, inverse, i, r, out);
                }
                FactorEncoding::Multipliers => {
                    for group in 0..count {
                        let [scale, _] = group_factors(&rows, block, group);
                        let factor = [scale * QUANT_RANGE, 0.0];
                        put_factors(
                            &layout,
                            factor,
                            (0.0, 0),
                            inverse,
                            i * count + group,
                            r,
                            out,
                        );
                    }
                }
            }
        }
    }
}

/// Writes the factors of a block of one group in a format with one level, for row `r`.
#[inline(always)]
fn put_factors(
    layout: &RowScaledPanel,
    [scale, min]: [f32; 2],
    (most, centre): (f32, i32),
    inverse: f64,
    block: usize,
    r: usize,
    out: &mut [u8],
) {
    let header = layout.header(block >> layout.span_shift);
    let pair = to_row_units(scale, min, most, centre, inverse);
    if layout.encoding == FactorEncoding::Pairs {
        out[header + 4 * r..][..4].copy_from_slice(&pair);
    } else {
        let within = block & ((1 << layout.span_shift) - 1);
        out[header + (within * PANEL + r) * 2..][..2].copy_from_slice(&pair[..2]);
    }
}

/// Writes the inner factors of a super-block's groups and its outer factors, for row `r`.
fn put_two_levels(
    layout: &RowScaledPanel,
    block: &QuantBlock,
    inverse: f64,
    number: usize,
    r: usize,
    out: &mut [u8],
) {
    let header = layout.header(number);
    let outer = layout.outer + number * layout.outer_bytes;
    let groups = SUPER_BLOCK / layout.group;
    // A broken value becomes zero, as all integers of its row.
    let integer = |value: f64| (value.round() as i16).to_le_bytes();
    let step = |factor: f32| f64::from(factor) * inverse;
    match layout.encoding {
        FactorEncoding::TwoLevelPairs => {
            for group in 0..groups {
                let to = &mut out[header + (group * PANEL + r) * 2..][..2];
                to.copy_from_slice(&[block.scales[group] as u8, block.mins[group] as u8]);
            }
            let to = &mut out[outer + 4 * r..][..4];
            to[..2].copy_from_slice(&integer(outer_scale(layout.encoding, step(block.scale))));
            to[2..].copy_from_slice(&integer(outer_min(step(block.min))));
        }
        FactorEncoding::TwoLevelScales => {
            for group in 0..groups {
                out[header + group * PANEL + r] = block.scales[group] as u8;
            }
            let factor = integer(outer_scale(layout.encoding, step(block.scale)));
            out[outer + 2 * r..][..2].copy_from_slice(&factor);
        }
        FactorEncoding::Pairs | FactorEncoding::Scales | FactorEncoding::Multipliers => {}
    }
}

/// The row's scale, or a larger one where an outer factor would not fit 16 bits.
fn widest_unit(unit: f32, encoding: FactorEncoding, blocks: &[QuantBlock]) -> f32 {
    let needed = |block: &QuantBlock| {
        let scale = outer_scale(encoding, f64::from(block.scale));
        let min = outer_min(f64::from(block.min));
        (scale.abs().max(min.abs()) / MAX_OUTER) as f32
    };
    let needed = blocks.iter().map(needed);
    // Slightly more than needed, because the quotient was rounded. A NaN stays one.
    let needed = needed.fold(0.0f32, |a, b| if b.is_finite() { a.max(b) } else { a }) * 1.000_001;
    if needed > unit { needed } else { unit }
}

/// The largest magnitude of a group's weights, as bits: without the sign, floats are ordered like their bits, and
/// non-finite values are the largest.
#[inline(always)]
fn max_magnitude_bits([scale, min]: [f32; 2], most: f32) -> u32 {
    let magnitude = |weight: f32| weight.to_bits() & (u32::MAX >> 1);
    magnitude(min).max(magnitude(min + scale * most))
}

/// The scale of a row whose largest weight becomes the largest integer; NaN if a weight is not finite.
fn row_scale(largest: u32) -> f32 {
    let largest = f32::from_bits(largest);
    if largest.is_finite() {
        largest / MAX_WEIGHT
    } else {
        f32::NAN
    }
}

/// The inverse scale; zero if all weights are zero or one is not finite, so that the integers are zero.
fn inverse_row_scale(unit: f32) -> f64 {
    if unit > 0.0 {
        1.0 / f64::from(unit)
    } else {
        0.0
    }
}

/// A group's scale and min as 16-bit integers in units of the row scale `1 / inverse`, the scale first, as bytes. The
/// scale is rounded, and the min compensates for the rounding in the middle of the quant range; it is that of quants
/// minus the centre. Non-finite values become zero.
#[inline(always)]
fn to_row_units(scale: f32, min: f32, most: f32, centre: i32, inverse: f64) -> [u8; 4] {
    // Adding this constant rounds a number to an integer in the lowest bits of the sum.
    const ROUND: f64 = 1.5 * (1u64 << 52) as f64;
    let middle = f64::from(most) / 2.0;
    let (scale, min) = (f64::from(scale) * inverse, f64::from(min) * inverse);
    let rounded = scale + ROUND;
    let rest = min + middle * (scale - (rounded - ROUND)) + ROUND;
    let scale = rounded.to_bits() as u32 & 0xffff;
    let min = (rest.to_bits() as u32).wrapping_add((centre as u32).wrapping_mul(scale));
    let both = scale | min << 16;
    both.to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_and_mins_are_the_nearest_integers() {
        for i in -3000..3000 {
            let (scale, min) = (i as f32 * 0.37, i as f32 * -10.9 + 0.2);
            let [a, b, c, d] = to_row_units(scale, min, 15.0, 0, 1.0);
            let [found, rest] = [i16::from_le_bytes([a, b]), i16::from_le_bytes([c, d])];
            assert!((f64::from(found) - f64::from(scale)).abs() <= 0.5);
            // In the middle of the quant range, scale and min together give the weight.
            let weight = f64::from(min) + 7.5 * f64::from(scale);
            let made = f64::from(rest) + 7.5 * f64::from(found);
            assert!((weight - made).abs() <= 0.5, "{scale} {min}");
        }
        for broken in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert_eq!(to_row_units(broken, broken, 15.0, 0, 0.0), [0; 4]);
            assert!(row_scale(max_magnitude_bits([broken, 0.0], 15.0)).is_nan());
            assert!(row_scale(max_magnitude_bits([1.0, broken], 15.0)).is_nan());
        }
        assert_eq!(
            row_scale(max_magnitude_bits([-2.0, 3.0], 15.0)),
            27.0 / MAX_WEIGHT
        );
        assert_eq!(
            row_scale(max_magnitude_bits([1.0, -40.0], 15.0)),
            40.0 / MAX_WEIGHT
        );
    }
}
