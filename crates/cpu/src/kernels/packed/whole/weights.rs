//! Weights of four bits as integers over their rows.

use super::super::unpack::{Unpacked, unpack};
use super::super::weights::{BLOCK, Form, LINE, STRIP, put_quants};
use base::DType;
use half::f16;

/// The largest integer that a weight becomes. It leaves room for the rounding of scales.
const LARGEST: f32 = 32_750.0;

/// The largest quant of a format.
fn largest_quant(dtype: DType) -> f32 {
    match dtype {
        DType::Q2_K => 3.0,
        DType::Q3_K => 7.0,
        _ => 15.0,
    }
}

/// A row's groups: scale and min, so that a weight is `scale · quant + min`.
fn groups(form: Form, unpacked: &Unpacked, count: usize) -> impl Iterator<Item = [f32; 2]> {
    let half = |bits| f16::from_bits(bits).to_f32();
    let (outer_scale, outer_min) = (half(unpacked.scale), half(unpacked.min));
    (0..count).map(move |group| {
        let (scale, min) = if form.nested {
            (
                outer_scale * f32::from(unpacked.scales[group]),
                outer_min * f32::from(unpacked.mins[group]),
            )
        } else {
            (outer_scale, outer_min)
        };
        if form.mins {
            [scale, min]
        } else {
            [scale, -scale * form.zero as f32]
        }
    })
}

/// The group that a block is, and its quants by line, where they lie in the block as they do in a strip.
#[inline(always)]
fn as_packed(dtype: DType, block: &[u8]) -> Option<([f32; 2], &[[u8; 4]])> {
    let half = |at: usize| f16::from_le_bytes([block[at], block[at + 1]]).to_f32();
    match dtype {
        DType::Q4_0 => {
            let scale = half(0);
            Some(([scale, -scale * 8.0], block[2..].as_chunks().0))
        }
        DType::Q4_1 => Some(([half(0), half(2)], block[4..].as_chunks().0)),
        _ => None,
    }
}

/// Packs some rows, at most a strip of them.
pub(in super::super) fn pack_strip(
    dtype: DType,
    form: Form,
    rows: &[u8],
    row_bytes: usize,
    k: usize,
    out: &mut [u8],
) {
    let (scales_at, _, _) = form.offsets(k);
    let (len, bytes) = (dtype.block_len(), dtype.block_bytes());
    let count = len / form.group;
    let most = largest_quant(dtype);
    let mut unpacked = Unpacked::default();
    let mut row_groups: Vec<[f32; 2]> = Vec::with_capacity(k / form.group);
    for (r, row) in rows.chunks(row_bytes).enumerate() {
        row_groups.clear();
        for (i, block) in row.chunks(bytes).enumerate() {
            if let Some((group, quants)) = as_packed(dtype, block) {
                row_groups.push(group);
                let to = &mut out[i * form.block_stride()..][..form.block_bytes()];
                for (line, four) in to.as_chunks_mut::<LINE>().0.iter_mut().zip(quants) {
                    line[4 * r..][..4].copy_from_slice(four);
                }
                continue;
            }
            unpack(dtype, block, &mut unpacked);
            row_groups.extend(groups(form, &unpacked, count));
            let blocks = unpacked.quants[..len].as_chunks::<BLOCK>().0;
            for (j, quants) in blocks.iter().enumerate() {
                let at = (i * (len / BLOCK) + j) * form.block_stride();
                put_quants(form, quants, r, &mut out[at..][..form.block_bytes()]);
            }
        }
        let unit = unit(&row_groups, most);
        out[scales_at + 4 * r..][..4].copy_from_slice(&unit.to_le_bytes());
        // Where all weights are zero, or one is not a number, the integers are zero.
        let inverse = if unit > 0.0 {
            1.0 / f64::from(unit)
        } else {
            0.0
        };
        let blocks = out[..scales_at].chunks_mut(form.block_stride());
        for (block, groups) in blocks.zip(row_groups.chunks(BLOCK / form.group)) {
            let lines = block[form.block_bytes()..].as_chunks_mut::<LINE>().0;
            for (line, [scale, min]) in lines.iter_mut().zip(groups) {
                let (scale, min) = in_units(*scale, *min, most, inverse);
                let ([a, b], [c, d]) = (scale.to_le_bytes(), min.to_le_bytes());
                line[4 * r..][..4].copy_from_slice(&[a, b, c, d]);
            }
        }
    }
    debug_assert!(rows.len() <= STRIP * row_bytes, "at most a strip of rows");
}

/// What one is worth in a row whose largest weight becomes the largest integer; not a number where a weight is not.
fn unit(groups: &[[f32; 2]], most: f32) -> f32 {
    // Without their signs, numbers are in the order of their bits, and what is not finite is behind all others.
    let magnitude = |weight: f32| weight.to_bits() & (u32::MAX >> 1);
    let largest = groups.iter().fold(0, |largest, [scale, min]| {
        let ends = magnitude(*min).max(magnitude(min + scale * most));
        ends.max(largest)
    });
    let largest = f32::from_bits(largest);
    if largest.is_finite() {
        largest / LARGEST
    } else {
        f32::NAN
    }
}

/// A group's scale and min in units, of which one is worth `1 / inverse`. The scale is rounded, and the min makes up for
/// it in the middle of the quants. What is not a number becomes zero.
#[inline(always)]
fn in_units(scale: f32, min: f32, most: f32, inverse: f64) -> (i16, i16) {
    // Added to this, a number is rounded, and the integer is in the last bits.
    const ROUND: f64 = 1.5 * (1u64 << 52) as f64;
    let middle = f64::from(most) / 2.0;
    let (scale, min) = (f64::from(scale) * inverse, f64::from(min) * inverse);
    let rounded = scale + ROUND;
    let rest = min + middle * (scale - (rounded - ROUND)) + ROUND;
    (rounded.to_bits() as i16, rest.to_bits() as i16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_and_mins_are_the_nearest_integers() {
        for i in -3000..3000 {
            let (scale, min) = (i as f32 * 0.37, i as f32 * -10.9 + 0.2);
            let (found, rest) = in_units(scale, min, 15.0, 1.0);
            assert!((f64::from(found) - f64::from(scale)).abs() <= 0.5);
            // In the middle of the quants both make the weight.
            let weight = f64::from(min) + 7.5 * f64::from(scale);
            let made = f64::from(rest) + 7.5 * f64::from(found);
            assert!((weight - made).abs() <= 0.5, "{scale} {min}");
        }
        for broken in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert_eq!(in_units(broken, broken, 15.0, 0.0), (0, 0));
            assert!(unit(&[[1.0, 0.5], [broken, 0.0]], 15.0).is_nan());
            assert!(unit(&[[1.0, broken]], 15.0).is_nan());
        }
        assert_eq!(unit(&[[-2.0, 3.0], [1.0, -4.0]], 15.0), 27.0 / LARGEST);
    }
}
