//! Super-blocks of 256 with half-precision scales over small integer scales.
//!
//! Elements are numbered `e`; `l` is `e % 32` throughout. The two- and three-bit quants and the high bits of
//! `q6_k` are planes: bits `2j` and `2j + 1` of byte `l` of a 32-byte run belong to element `32j + l` of its
//! half of the super-block.

use super::half_at;

/// `scales: [(u4, u4); 16], qs: [u2; 256], d: f16, dmin: f16`; the element is `d * scale * q - dmin * min`.
#[inline]
pub fn q2_k(block: &[u8; 84], out: &mut [f32; 256]) {
    let (scales, qs) = (&block[..16], &block[16..80]);
    let (d, dmin) = (half_at(block, 80), half_at(block, 82));
    for (group, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = d * f32::from(scales[group] & 15);
        let min = dmin * f32::from(scales[group] >> 4);
        let (at, shift) = plane(group);
        for (out, &byte) in out.iter_mut().zip(&qs[at..at + 16]) {
            *out = scale * f32::from(byte >> shift & 3) - min;
        }
    }
}

/// `high: [u1; 256], low: [u2; 256], scales: [u6; 16], d: f16`; the element is `d * (scale - 32) * (q - 4)`.
#[inline]
pub fn q3_k(block: &[u8; 110], out: &mut [f32; 256]) {
    let (high, low) = (&block[..32], &block[32..96]);
    let scales = scales_q3(block[96..108].try_into().expect("twelve bytes"));
    let d = half_at(block, 108);
    for (group, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = d * f32::from(scales[group]);
        let (at, shift) = plane(group);
        // Byte `l` holds the high bits of all eight elements with that `l`.
        let (high_at, bit) = (group % 2 * 16, group / 2);
        let bytes = low[at..at + 16].iter().zip(&high[high_at..high_at + 16]);
        for (out, (&low, &high)) in out.iter_mut().zip(bytes) {
            let q = (low >> shift & 3) | (high >> bit & 1) << 2;
            *out = scale * f32::from(q as i8 - 4);
        }
    }
}

/// `d: f16, dmin: f16, scales: [(u6, u6); 8], qs: [u4; 256]`; the element is `d * scale * q - dmin * min`.
#[inline]
pub fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    let (scales, mins) = scales_mins(block[4..16].try_into().expect("twelve bytes"));
    let qs = &block[16..];
    for (group, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let scale = d * f32::from(scales[group]);
        let min = dmin * f32::from(mins[group]);
        let (at, shift) = (group / 2 * 32, group % 2 * 4);
        for (out, &byte) in out.iter_mut().zip(&qs[at..at + 32]) {
            *out = scale * f32::from(byte >> shift & 15) - min;
        }
    }
}

/// As `q4_k`, with a fifth bit for each element between the scales and the low bits: bit `e / 32` of byte `l`.
#[inline]
pub fn q5_k(block: &[u8; 176], out: &mut [f32; 256]) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    let (scales, mins) = scales_mins(block[4..16].try_into().expect("twelve bytes"));
    let (high, low) = (&block[16..48], &block[48..]);
    for (group, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let scale = d * f32::from(scales[group]);
        let min = dmin * f32::from(mins[group]);
        let (at, shift) = (group / 2 * 32, group % 2 * 4);
        let bytes = low[at..at + 32].iter().zip(high);
        for (out, (&low, &high)) in out.iter_mut().zip(bytes) {
            let q = (low >> shift & 15) | (high >> group & 1) << 4;
            *out = scale * f32::from(q) - min;
        }
    }
}

/// `low: [u4; 256], high: [u2; 256], scales: [i8; 16], d: f16`; the element is `d * scale * (q - 32)`.
///
/// The low bits of a half's elements 0 to 63 are the low halves of 64 bytes, those of 64 to 127 the high halves.
#[inline]
pub fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
    let (low, high, scales) = (&block[..128], &block[128..192], &block[192..208]);
    let d = half_at(block, 208);
    for (group, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = d * f32::from(scales[group] as i8);
        let (high_at, high_shift) = plane(group);
        let low_at = group / 8 * 64 + group % 4 * 16;
        let low_shift = group % 8 / 4 * 4;
        let bytes = low[low_at..low_at + 16]
            .iter()
            .zip(&high[high_at..high_at + 16]);
        for (out, (&low, &high)) in out.iter_mut().zip(bytes) {
            let q = (low >> low_shift & 15) | (high >> high_shift & 3) << 4;
            *out = scale * f32::from(q as i8 - 32);
        }
    }
}

/// The sixteen signed scales of a `q3_k` block: four low bits in the halves of eight bytes, two high bits in the
/// quarters of four, less 32.
#[inline]
pub fn scales_q3(packed: &[u8; 12]) -> [i8; 16] {
    std::array::from_fn(|i| {
        let low = packed[i % 8] >> (i / 8 * 4) & 15;
        let high = packed[8 + i % 4] >> (i / 4 * 2) & 3;
        (low | high << 4) as i8 - 32
    })
}

/// The eight six-bit scales and eight six-bit minimums of a `q4_k` or `q5_k` block.
///
/// The first four of each are the low bits of bytes 0 to 3 and 4 to 7; the last four have their low bits in the
/// halves of bytes 8 to 11 and their high bits on top of the first four's bytes.
#[inline]
pub fn scales_mins(packed: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    let (mut scales, mut mins) = ([0; 8], [0; 8]);
    for i in 0..4 {
        let (scale, min, both) = (packed[i], packed[4 + i], packed[8 + i]);
        scales[i] = scale & 63;
        mins[i] = min & 63;
        scales[4 + i] = (both & 15) | (scale >> 6) << 4;
        mins[4 + i] = both >> 4 | (min >> 6) << 4;
    }
    (scales, mins)
}

/// Where a group of 16 has its two-bit plane: first byte and shift.
#[inline]
fn plane(group: usize) -> (usize, usize) {
    (group / 8 * 32 + group % 2 * 16, group % 8 / 2 * 2)
}
