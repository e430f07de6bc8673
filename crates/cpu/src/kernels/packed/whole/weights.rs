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
        for (group, [scale, min]) in row_groups.iter().enumerate() {
            let (scale, min) = in_units(*scale, *min, most, inverse);
            let block = group * form.group / BLOCK;
            let line = group % (BLOCK / form.group);
            let at = block * form.block_stride() + form.block_bytes() + line * LINE + 4 * r;
            out[at..][..2].copy_from_slice(&scale.to_le_bytes());
            out[at + 2..][..2].copy_from_slice(&min.to_le_bytes());
        }
    }
    debug_assert!(rows.len() <= STRIP * row_bytes, "at most a strip of rows");
}

/// What one is worth in a row whose largest weight becomes the largest integer; not a number where a weight is not.
fn unit(groups: &[[f32; 2]], most: f32) -> f32 {
    let mut largest = 0.0f32;
    for [scale, min] in groups {
        for weight in [*min, min + scale * most] {
            if !weight.is_finite() {
                return f32::NAN;
            }
            largest = largest.max(weight.abs());
        }
    }
    largest / LARGEST
}

/// A group's scale and min in units, of which one is worth `1 / inverse`. The scale is rounded, and the min makes up for
/// it in the middle of the quants.
fn in_units(scale: f32, min: f32, most: f32, inverse: f64) -> (i16, i16) {
    // Without a call, unlike the method of f64.
    let round = |x: f64| (x + 0.5f64.copysign(x)) as i16;
    let middle = f64::from(most) / 2.0;
    let (scale, min) = (f64::from(scale) * inverse, f64::from(min) * inverse);
    let rounded = round(scale);
    let rest = min + middle * (scale - f64::from(rounded));
    (rounded, round(rest))
}
