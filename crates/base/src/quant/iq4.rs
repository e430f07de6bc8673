//! Four-bit formats whose integers index a fixed table of unevenly spaced values.

use super::half_at;

/// The values of the sixteen codes.
pub const IQ4_VALUES: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

/// `d: f16, codes: [u4; 32]` in the order of `q4_0`; the element is `d * value`.
#[inline]
pub fn iq4_nl(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = half_at(block, 0);
    expand(d, &block[2..], out);
}

/// `d: f16, scales: [u6; 8], codes: [u4; 256]` in runs of 32; the element is `d * (scale - 32) * value`.
#[inline]
pub fn iq4_xs(block: &[u8; 136], out: &mut [f32; 256]) {
    let d = half_at(block, 0);
    let scales = scales_iq4(block[2..8].try_into().expect("six bytes"));
    let runs = block[8..].as_chunks::<16>().0;
    for ((run, out), scale) in runs.iter().zip(out.as_chunks_mut().0).zip(scales) {
        expand(d * f32::from(scale), run, out);
    }
}

/// The eight signed scales of an `iq4_xs` block: two high bits each in a 16-bit word, then four low bits each in
/// the halves of four bytes, less 32.
#[inline]
pub fn scales_iq4(packed: &[u8; 6]) -> [i8; 8] {
    let high = u16::from_le_bytes([packed[0], packed[1]]);
    std::array::from_fn(|i| {
        let low = packed[2 + i / 2] >> (i % 2 * 4) & 15;
        let high = (high >> (2 * i) & 3) as u8;
        (low | high << 4) as i8 - 32
    })
}

#[inline]
fn expand(scale: f32, codes: &[u8], out: &mut [f32; 32]) {
    for (i, &byte) in codes.iter().enumerate() {
        out[i] = scale * f32::from(IQ4_VALUES[usize::from(byte & 15)]);
        out[i + 16] = scale * f32::from(IQ4_VALUES[usize::from(byte >> 4)]);
    }
}
