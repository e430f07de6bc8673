//! Blocks of 32 with one scale, and for the `_1` formats one offset.
//!
//! The four- and five-bit formats keep elements 0 to 15 in the low halves of 16 bytes and 16 to 31 in the high
//! halves; the fifth bits are one 32-bit word, bit `i` for element `i`.

use super::half_at;

/// `d: f16, qs: [u4; 32]`; the element is `d * (q - 8)`.
#[inline]
pub fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = half_at(block, 0);
    for (i, &byte) in block[2..].iter().enumerate() {
        out[i] = d * (i32::from(byte & 15) - 8) as f32;
        out[i + 16] = d * (i32::from(byte >> 4) - 8) as f32;
    }
}

/// `d: f16, m: f16, qs: [u4; 32]`; the element is `d * q + m`.
#[inline]
pub fn q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    for (i, &byte) in block[4..].iter().enumerate() {
        out[i] = d * f32::from(byte & 15) + m;
        out[i + 16] = d * f32::from(byte >> 4) + m;
    }
}

/// `d: f16, high: u32, low: [u4; 32]`; the element is `d * (q - 16)`.
#[inline]
pub fn q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    let d = half_at(block, 0);
    let high = u32::from_le_bytes([block[2], block[3], block[4], block[5]]);
    for (i, &byte) in block[6..].iter().enumerate() {
        let (first, second) = five_bits(byte, high, i);
        out[i] = d * (i32::from(first) - 16) as f32;
        out[i + 16] = d * (i32::from(second) - 16) as f32;
    }
}

/// `d: f16, m: f16, high: u32, low: [u4; 32]`; the element is `d * q + m`.
#[inline]
pub fn q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    let high = u32::from_le_bytes([block[4], block[5], block[6], block[7]]);
    for (i, &byte) in block[8..].iter().enumerate() {
        let (first, second) = five_bits(byte, high, i);
        out[i] = d * f32::from(first) + m;
        out[i + 16] = d * f32::from(second) + m;
    }
}

/// `d: f16, qs: [i8; 32]`; the element is `d * q`.
#[inline]
pub fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    let d = half_at(block, 0);
    for (out, &byte) in out.iter_mut().zip(&block[2..]) {
        *out = d * f32::from(byte as i8);
    }
}

/// Elements `i` and `i + 16`, whose low bits share `byte`.
#[inline]
fn five_bits(byte: u8, high: u32, i: usize) -> (u8, u8) {
    let bit = |at: usize| ((high >> at & 1) as u8) << 4;
    ((byte & 15) | bit(i), (byte >> 4) | bit(i + 16))
}
