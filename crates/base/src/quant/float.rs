//! Plain floats, little-endian: blocks of one.

/// One `f32`.
#[inline]
pub fn f32(block: &[u8; 4], out: &mut [f32; 1]) {
    out[0] = f32::from_le_bytes(*block);
}

/// One half-precision number.
#[inline]
pub fn f16(block: &[u8; 2], out: &mut [f32; 1]) {
    out[0] = half::f16::from_le_bytes(*block).to_f32();
}

/// One bfloat16: the upper half of an `f32`.
#[inline]
pub fn bf16(block: &[u8; 2], out: &mut [f32; 1]) {
    out[0] = f32::from_bits(u32::from(u16::from_le_bytes(*block)) << 16);
}
