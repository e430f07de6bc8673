//! The weight formats of files: how each is packed, and its blocks as integers.

use super::format::{PackedFormat, Quant, SUPER_BLOCK};
use base::{DType, quant};

impl PackedFormat {
    /// The packed format of this type; `None` for types that are not quantised.
    pub(crate) fn of(dtype: DType) -> Option<PackedFormat> {
        use Quant::{Byte, Five, Nibble, Six, Table};
        let format = |quant, group, two_level_scales, mins, zero| PackedFormat {
            quant,
            group,
            two_level_scales,
            mins,
            zero,
        };
        Some(match dtype {
            DType::Q4_0 => format(Nibble, 32, false, false, 8),
            DType::Q4_1 => format(Nibble, 32, false, true, 0),
            DType::Q5_0 => format(Five, 32, false, false, 16),
            DType::Q5_1 => format(Five, 32, false, true, 0),
            DType::Q8_0 => format(Byte, 32, false, false, 0),
            DType::Q2_K => format(Nibble, 16, true, true, 0),
            DType::Q3_K => format(Nibble, 16, true, false, 4),
            DType::Q4_K => format(Nibble, 32, true, true, 0),
            DType::Q5_K => format(Five, 32, true, true, 0),
            DType::Q6_K => format(Six, 16, true, false, 32),
            DType::IQ4_NL => format(Table, 32, false, false, 0),
            DType::IQ4_XS => format(Table, 32, true, false, 0),
            _ => return None,
        })
    }
}

/// One block of a weight format, up to 256 elements, as integers, scales and mins.
#[derive(Clone)]
pub(super) struct QuantBlock {
    /// Those of Q8_0 are signed.
    pub(super) quants: [u8; SUPER_BLOCK],
    /// f16 bits; the outer scale of a two-level format.
    pub(super) scale: u16,
    pub(super) min: u16,
    /// Inner scales and mins of two-level formats.
    pub(super) scales: [i8; 16],
    pub(super) mins: [i8; 16],
}

impl Default for QuantBlock {
    fn default() -> QuantBlock {
        QuantBlock {
            quants: [0; SUPER_BLOCK],
            scale: 0,
            min: 0,
            scales: [0; 16],
            mins: [0; 16],
        }
    }
}

/// Parses a block.
#[inline(always)]
pub(super) fn parse_block(dtype: DType, block: &[u8], out: &mut QuantBlock) {
    let half = |at: usize| u16::from_le_bytes([block[at], block[at + 1]]);
    // Flipping the sign bit negates an f16.
    let negated = |at: usize| half(at) ^ 0x8000;
    let q = &mut out.quants;
    match dtype {
        DType::Q4_0 | DType::IQ4_NL => {
            out.scale = half(0);
            nibbles(&block[2..18], &mut q[..32]);
        }
        DType::Q4_1 => {
            (out.scale, out.min) = (half(0), half(2));
            nibbles(&block[4..20], &mut q[..32]);
        }
        DType::Q5_0 => {
            out.scale = half(0);
            nibbles(&block[6..22], &mut q[..32]);
            fifth_bits(&block[2..6], &mut q[..32]);
        }
        DType::Q5_1 => {
            (out.scale, out.min) = (half(0), half(2));
            nibbles(&block[8..24], &mut q[..32]);
            fifth_bits(&block[4..8], &mut q[..32]);
        }
        DType::Q8_0 => {
            out.scale = half(0);
            q[..32].copy_from_slice(&block[2..34]);
        }
        DType::Q2_K => {
            (out.scale, out.min) = (half(80), negated(82));
            for group in 0..16 {
                out.scales[group] = (block[group] & 15) as i8;
                out.mins[group] = (block[group] >> 4) as i8;
                let (at, shift) = plane(group);
                for i in 0..16 {
                    q[group * 16 + i] = block[16 + at + i] >> shift & 3;
                }
            }
        }
        DType::Q3_K => {
            out.scale = half(108);
            out.scales = quant::scales_q3(block[96..108].try_into().expect("twelve bytes"));
            for group in 0..16 {
                let (at, shift) = plane(group);
                for i in 0..16 {
                    let high = block[group % 2 * 16 + i] >> (group / 2) & 1;
                    q[group * 16 + i] = block[32 + at + i] >> shift & 3 | high << 2;
                }
            }
        }
        DType::Q4_K | DType::Q5_K => {
            (out.scale, out.min) = (half(0), negated(2));
            let (scales, mins) = quant::scales_mins(block[4..16].try_into().expect("twelve bytes"));
            let five = dtype == DType::Q5_K;
            let low = if five { &block[48..] } else { &block[16..] };
            for group in 0..8 {
                (out.scales[group], out.mins[group]) = (scales[group] as i8, mins[group] as i8);
                let (at, shift) = (group / 2 * 32, group % 2 * 4);
                for i in 0..32 {
                    let high = if five { block[16 + i] >> group & 1 } else { 0 };
                    q[group * 32 + i] = low[at + i] >> shift & 15 | high << 4;
                }
            }
        }
        DType::Q6_K => {
            out.scale = half(208);
            for group in 0..16 {
                out.scales[group] = block[192 + group] as i8;
                let (high_at, high_shift) = plane(group);
                let low_at = group / 8 * 64 + group % 4 * 16;
                let low_shift = group % 8 / 4 * 4;
                for i in 0..16 {
                    let high = block[128 + high_at + i] >> high_shift & 3;
                    q[group * 16 + i] = block[low_at + i] >> low_shift & 15 | high << 4;
                }
            }
        }
        DType::IQ4_XS => {
            out.scale = half(0);
            let scales = quant::scales_iq4(block[2..8].try_into().expect("six bytes"));
            out.scales[..8].copy_from_slice(&scales);
            for (bytes, q) in block[8..].chunks(16).zip(q.chunks_mut(32)) {
                nibbles(bytes, q);
            }
        }
        other => unreachable!("{other} has no packed form"),
    }
}

/// Sixteen low nibbles, then sixteen high nibbles.
#[inline(always)]
fn nibbles(bytes: &[u8], out: &mut [u8]) {
    for (i, byte) in bytes.iter().enumerate() {
        out[i] = byte & 15;
        out[16 + i] = byte >> 4;
    }
}

/// Sets bit 4 of element `i` to bit `i`.
#[inline(always)]
fn fifth_bits(bits: &[u8], out: &mut [u8]) {
    let bits = u32::from_le_bytes(bits.try_into().expect("four bytes"));
    for (i, q) in out.iter_mut().enumerate() {
        *q |= ((bits >> i & 1) << 4) as u8;
    }
}

/// First byte and shift of the two-bit plane of a group of 16.
fn plane(group: usize) -> (usize, usize) {
    (group / 8 * 32 + group % 2 * 16, group % 8 / 2 * 2)
}
