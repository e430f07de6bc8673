//! Packs four-bit strips: group scales and mins become integers in units of one scale per row.

use super::super::format::{BLOCK, LINE, PackedFormat, STRIP, StripSource, put_quants};
use super::super::quant_block::{QuantBlock, parse_block};
use crate::simd::RowScaledDot;
use base::DType;

/// The largest integer of a weight; it leaves headroom for the rounding of scales.
const MAX_WEIGHT: f32 = 32_750.0;

/// The largest quant of a format.
fn largest_quant(dtype: DType) -> f32 {
    match dtype {
        DType::Q2_K => 3.0,
        DType::Q3_K => 7.0,
        _ => 15.0,
    }
}

/// A row's groups: scale and min, so that a weight is `scale · quant + min`.
fn groups(
    format: PackedFormat,
    block_values: &QuantBlock,
    count: usize,
) -> impl Iterator<Item = [f32; 2]> {
    let (outer_scale, outer_min) = (half(block_values.scale), half(block_values.min));
    (0..count).map(move |group| {
        let (scale, min) = if format.two_level_scales {
            (
                outer_scale * f32::from(block_values.scales[group]),
                outer_min * f32::from(block_values.mins[group]),
            )
        } else {
            (outer_scale, outer_min)
        };
        if format.mins {
            [scale, min]
        } else {
            [scale, -scale * format.zero as f32]
        }
    })
}

/// Converts an f16 to f32, without a branch for finite values.
#[inline(always)]
fn half(bits: u16) -> f32 {
    // Corrects the difference of the exponent biases.
    const SCALE: f32 = f32::from_bits((127 + 112) << 23);
    let (sign, rest) = (u32::from(bits & 0x8000) << 16, u32::from(bits & 0x7fff));
    let finite = (f32::from_bits(rest << 13) * SCALE).to_bits();
    let not_finite = 0x7f80_0000 | rest << 13;
    let magnitude = if rest < 0x7c00 { finite } else { not_finite };
    f32::from_bits(sign | magnitude)
}

/// Packs a strip of up to sixteen rows.
#[inline(always)]
pub(in super::super) fn pack_strip<S: RowScaledDot>(s: S, rows: StripSource<'_>, out: &mut [u8]) {
    // The fast path needs all sixteen rows, within 2 GiB of each other.
    let len = rows.bytes.len();
    let whole = len == STRIP * rows.row_bytes && i32::try_from(len).is_ok();
    match rows.dtype {
        DType::Q4_0 if whole => {
            let factors = |bits: u32| {
                let scale = half(bits as u16);
                [scale, -scale * rows.format.zero as f32]
            };
            pack_lines(s, rows, 2, factors, out);
        }
        DType::Q4_1 if whole => {
            let factors = |bits: u32| [half(bits as u16), half((bits >> 16) as u16)];
            pack_lines(s, rows, 4, factors, out);
        }
        _ => pack_rows(rows, out),
    }
}

/// Packs sixteen rows of less than 2 GiB together, line by line. Their blocks must start with the factors and store the
/// quants in the order of a strip's lines.
#[inline(always)]
fn pack_lines<S: RowScaledDot>(
    s: S,
    rows: StripSource<'_>,
    quants_at: usize,
    factors: impl Fn(u32) -> [f32; 2],
    out: &mut [u8],
) {
    let StripSource {
        dtype, format, k, ..
    } = rows;
    let (rows, row_bytes) = (rows.bytes, rows.row_bytes);
    let scales_at = format.strip_layout(k).scales;
    let (stride, quants) = (format.block_stride(), format.block_bytes());
    let bytes = dtype.block_bytes();
    let most = largest_quant(dtype);
    let (blocks, scales) = out.split_at_mut(scales_at);
    let mut largest = [0; STRIP];
    assert!(
        i32::try_from(rows.len()).is_ok(),
        "rows lie near each other"
    );
    for (i, block) in blocks.chunks_exact_mut(stride).enumerate() {
        let from = &rows[i * bytes..];
        assert!(
            from.len() >= (STRIP - 1) * row_bytes + bytes && quants_at + quants / STRIP <= bytes
        );
        for line in 0..quants / LINE {
            // SAFETY: all sixteen rows have the block, as was just checked, and the block has the line.
            unsafe {
                let from = from.as_ptr().add(quants_at + 4 * line);
                s.gather_line(from, row_bytes, block[line * LINE..][..LINE].as_mut_ptr());
            }
        }
        let pairs = block[quants..].as_chunks_mut::<LINE>().0;
        // SAFETY: as above; a block starts with its factors.
        unsafe { s.gather_line(from.as_ptr(), row_bytes, pairs[0].as_mut_ptr()) };
        for (largest, bits) in largest.iter_mut().zip(pairs[0].as_chunks::<4>().0) {
            *largest = max_magnitude_bits(factors(u32::from_le_bytes(*bits)), most).max(*largest);
        }
    }
    let mut inverses = [0.0; STRIP];
    for ((inverse, unit), largest) in inverses
        .iter_mut()
        .zip(scales.as_chunks_mut::<4>().0)
        .zip(largest)
    {
        let value = row_scale(largest);
        (*inverse, *unit) = (inverse_row_scale(value), value.to_le_bytes());
    }
    for block in blocks.chunks_exact_mut(stride) {
        let pairs = block[quants..].as_chunks_mut::<4>().0;
        for (pair, inverse) in pairs.iter_mut().zip(inverses) {
            let [scale, min] = factors(u32::from_le_bytes(*pair));
            *pair = to_row_units(scale, min, most, inverse);
        }
    }
}

/// Packs rows one after the other.
fn pack_rows(rows: StripSource<'_>, out: &mut [u8]) {
    let StripSource {
        dtype, format, k, ..
    } = rows;
    let (rows, row_bytes) = (rows.bytes, rows.row_bytes);
    let scales_at = format.strip_layout(k).scales;
    let (len, bytes) = (dtype.block_len(), dtype.block_bytes());
    let count = len / format.group;
    let most = largest_quant(dtype);
    let mut block_values = QuantBlock::default();
    let mut row_groups: Vec<[f32; 2]> = Vec::with_capacity(k / format.group);
    for (r, row) in rows.chunks(row_bytes).enumerate() {
        row_groups.clear();
        for (i, block) in row.chunks(bytes).enumerate() {
            parse_block(dtype, block, &mut block_values);
            row_groups.extend(groups(format, &block_values, count));
            let blocks = block_values.quants[..len].as_chunks::<BLOCK>().0;
            for (j, quants) in blocks.iter().enumerate() {
                let at = (i * (len / BLOCK) + j) * format.block_stride();
                put_quants(format, quants, r, &mut out[at..][..format.block_bytes()]);
            }
        }
        let extents = row_groups
            .iter()
            .map(|group| max_magnitude_bits(*group, most));
        let unit = row_scale(extents.max().unwrap_or(0));
        out[scales_at + 4 * r..][..4].copy_from_slice(&unit.to_le_bytes());
        let inverse = inverse_row_scale(unit);
        let blocks = out[..scales_at].chunks_mut(format.block_stride());
        for (block, groups) in blocks.zip(row_groups.chunks(BLOCK / format.group)) {
            let lines = block[format.block_bytes()..].as_chunks_mut::<LINE>().0;
            for (line, [scale, min]) in lines.iter_mut().zip(groups) {
                let pair = to_row_units(*scale, *min, most, inverse);
                line[4 * r..][..4].copy_from_slice(&pair);
            }
        }
    }
    debug_assert!(rows.len() <= STRIP * row_bytes, "at most a strip of rows");
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
/// scale is rounded, and the min compensates for the rounding in the middle of the quant range. Non-finite values
/// become zero.
#[inline(always)]
fn to_row_units(scale: f32, min: f32, most: f32, inverse: f64) -> [u8; 4] {
    // Adding this constant rounds a number to an integer in the lowest bits of the sum.
    const ROUND: f64 = 1.5 * (1u64 << 52) as f64;
    let middle = f64::from(most) / 2.0;
    let (scale, min) = (f64::from(scale) * inverse, f64::from(min) * inverse);
    let rounded = scale + ROUND;
    let rest = min + middle * (scale - (rounded - ROUND)) + ROUND;
    let both = rounded.to_bits() as u32 & 0xffff | (rest.to_bits() as u32) << 16;
    both.to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_equals_the_half_crate() {
        for bits in 0..=u16::MAX {
            let (found, expected) = (half(bits), half::f16::from_bits(bits).to_f32());
            let same = found.to_bits() == expected.to_bits();
            assert!(same || found.is_nan() && expected.is_nan(), "{bits:#x}");
        }
    }

    #[test]
    fn scales_and_mins_are_the_nearest_integers() {
        for i in -3000..3000 {
            let (scale, min) = (i as f32 * 0.37, i as f32 * -10.9 + 0.2);
            let [a, b, c, d] = to_row_units(scale, min, 15.0, 1.0);
            let [found, rest] = [i16::from_le_bytes([a, b]), i16::from_le_bytes([c, d])];
            assert!((f64::from(found) - f64::from(scale)).abs() <= 0.5);
            // In the middle of the quant range, scale and min together give the weight.
            let weight = f64::from(min) + 7.5 * f64::from(scale);
            let made = f64::from(rest) + 7.5 * f64::from(found);
            assert!((weight - made).abs() <= 0.5, "{scale} {min}");
        }
        for broken in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert_eq!(to_row_units(broken, broken, 15.0, 0.0), [0; 4]);
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
