//! Super-blocks of 256 with half-precision scales over small integer scales.
//!
//! Elements are numbered `e`; `l` is `e % 32` throughout. The two- and three-bit codes and the high bits of
//! `q6_k` are planes: bits `2j` and `2j + 1` of byte `l` of a 32-byte run belong to element `32j + l` of its
//! half of the super-block.

use super::format::{BlockFormat, Codes, Pack, QuantBlock, half_at, put_half};

/// `scales: [(u4, u4); 16], codes: [u2; 256], d: f16, dmin: f16`; the element is `d * scale * code - dmin * min`.
pub const Q2_K: BlockFormat = BlockFormat {
    name: "q2_k",
    number: 10,
    bytes: 84,
    codes: Codes::Unsigned { bits: 2, zero: 0 },
    group: 16,
    mins: true,
    unpack: |b, out| {
        (out.scale, out.min) = (half_at(b, 80), -half_at(b, 82));
        for group in 0..16 {
            out.scales[group] = (b[group] & 15) as i8;
            out.mins[group] = (b[group] >> 4) as i8;
            let (at, shift) = plane(group);
            for i in 0..16 {
                out.codes[group * 16 + i] = b[16 + at + i] >> shift & 3;
            }
        }
    },
    pack: Some(Pack {
        scales: [0, 15],
        write: |block, out| {
            put_half(out, 80, block.scale);
            put_half(out, 82, -block.min);
            out[16..80].fill(0);
            for group in 0..16 {
                out[group] = block.scales[group] as u8 & 15 | (block.mins[group] as u8) << 4;
                let (at, shift) = plane(group);
                for i in 0..16 {
                    out[16 + at + i] |= (block.codes[group * 16 + i] & 3) << shift;
                }
            }
        },
    }),
    element: "
    int group = e / 16;
    q.scale = half_at(b + 80) * (float)(b[group] & 15);
    q.min = -(half_at(b + 82) * (float)(b[group] >> 4));
    q.code = b[16 + group / 8 * 32 + group % 2 * 16 + e % 16] >> (group % 8 / 2 * 2) & 3;",
    ..BlockFormat::TWO_LEVEL
};

/// `high: [u1; 256], low: [u2; 256], scales: [u6; 16], d: f16`; the element is `d * (scale - 32) * (code - 4)`.
///
/// A scale has its four low bits in a half of one of eight bytes, its two high bits in a quarter of one of four. Byte `l` of
/// `high` has the third bits of all eight elements with that `l`.
pub const Q3_K: BlockFormat = BlockFormat {
    name: "q3_k",
    number: 11,
    bytes: 110,
    codes: Codes::Unsigned { bits: 3, zero: 4 },
    group: 16,
    unpack: |b, out| {
        out.scale = half_at(b, 108);
        for group in 0..16 {
            let low = b[96 + group % 8] >> (group / 8 * 4) & 15;
            let high = b[104 + group % 4] >> (group / 4 * 2) & 3;
            out.scales[group] = (low | high << 4) as i8 - 32;
            let (at, shift) = plane(group);
            for i in 0..16 {
                let high = b[group % 2 * 16 + i] >> (group / 2) & 1;
                out.codes[group * 16 + i] = b[32 + at + i] >> shift & 3 | high << 2;
            }
        }
    },
    pack: Some(Pack {
        scales: [-32, 31],
        write: |block, out| {
            put_half(out, 108, block.scale);
            out[..108].fill(0);
            for group in 0..16 {
                let scale = (block.scales[group] + 32) as u8;
                out[96 + group % 8] |= (scale & 15) << (group / 8 * 4);
                out[104 + group % 4] |= (scale >> 4) << (group / 4 * 2);
                let (at, shift) = plane(group);
                for i in 0..16 {
                    let code = block.codes[group * 16 + i];
                    out[group % 2 * 16 + i] |= (code >> 2 & 1) << (group / 2);
                    out[32 + at + i] |= (code & 3) << shift;
                }
            }
        },
    }),
    element: "
    int group = e / 16;
    int low = b[96 + group % 8] >> (group / 8 * 4) & 15, high = b[104 + group % 4] >> (group / 4 * 2) & 3;
    q.scale = half_at(b + 108) * (float)((low | high << 4) - 32);
    low = b[32 + group / 8 * 32 + group % 2 * 16 + e % 16] >> (group % 8 / 2 * 2) & 3;
    high = b[group % 2 * 16 + e % 16] >> (group / 2) & 1;
    q.code = low | high << 2;",
    ..BlockFormat::TWO_LEVEL
};

/// The scale and min of a group of `q4_k` and `q5_k`, in C.
macro_rules! scale_and_min {
    () => {
        "
    int group = e / 32, i = group % 4, scale, min;
    if (group < 4) {
        scale = b[4 + i] & 63;
        min = b[8 + i] & 63;
    } else {
        scale = (b[12 + i] & 15) | b[4 + i] >> 6 << 4;
        min = b[12 + i] >> 4 | b[8 + i] >> 6 << 4;
    }
    q.scale = half_at(b) * (float)scale;
    q.min = -(half_at(b + 2) * (float)min);"
    };
}

/// `d: f16, dmin: f16, scales: [(u6, u6); 8], codes: [u4; 256]`; the element is `d * scale * code - dmin * min`.
pub const Q4_K: BlockFormat = BlockFormat {
    name: "q4_k",
    number: 12,
    bytes: 144,
    codes: Codes::Unsigned { bits: 4, zero: 0 },
    mins: true,
    unpack: |b, out| {
        scales_and_mins(b, out);
        for group in 0..8 {
            let (at, shift) = (16 + group / 2 * 32, group % 2 * 4);
            for i in 0..32 {
                out.codes[group * 32 + i] = b[at + i] >> shift & 15;
            }
        }
    },
    pack: Some(Pack {
        scales: [0, 63],
        write: |block, out| {
            put_scales_and_mins(block, out);
            for group in 0..8 {
                let (at, shift) = (16 + group / 2 * 32, group % 2 * 4);
                for i in 0..32 {
                    let code = block.codes[group * 32 + i] << shift;
                    out[at + i] = if shift == 0 { code } else { out[at + i] | code };
                }
            }
        },
    }),
    element: concat!(
        scale_and_min!(),
        "
    q.code = b[16 + group / 2 * 32 + e % 32] >> (group % 2 * 4) & 15;"
    ),
    ..BlockFormat::TWO_LEVEL
};

/// As `q4_k`, with a fifth bit for each element between the scales and the low bits: bit `e / 32` of byte `l`.
pub const Q5_K: BlockFormat = BlockFormat {
    name: "q5_k",
    number: 13,
    bytes: 176,
    codes: Codes::Unsigned { bits: 5, zero: 0 },
    mins: true,
    unpack: |b, out| {
        scales_and_mins(b, out);
        for group in 0..8 {
            let (at, shift) = (48 + group / 2 * 32, group % 2 * 4);
            for i in 0..32 {
                let high = b[16 + i] >> group & 1;
                out.codes[group * 32 + i] = b[at + i] >> shift & 15 | high << 4;
            }
        }
    },
    pack: Some(Pack {
        scales: [0, 63],
        write: |block, out| {
            put_scales_and_mins(block, out);
            out[16..].fill(0);
            for group in 0..8 {
                let (at, shift) = (48 + group / 2 * 32, group % 2 * 4);
                for i in 0..32 {
                    let code = block.codes[group * 32 + i];
                    out[16 + i] |= (code >> 4 & 1) << group;
                    out[at + i] |= (code & 15) << shift;
                }
            }
        },
    }),
    element: concat!(
        scale_and_min!(),
        "
    q.code = (b[48 + group / 2 * 32 + e % 32] >> (group % 2 * 4) & 15) | (b[16 + e % 32] >> group & 1) << 4;"
    ),
    ..BlockFormat::TWO_LEVEL
};

/// `low: [u4; 256], high: [u2; 256], scales: [i8; 16], d: f16`; the element is `d * scale * (code - 32)`.
///
/// The low bits of a half's elements 0 to 63 are the low halves of 64 bytes, those of 64 to 127 the high halves.
pub const Q6_K: BlockFormat = BlockFormat {
    name: "q6_k",
    number: 14,
    bytes: 210,
    codes: Codes::Unsigned { bits: 6, zero: 32 },
    group: 16,
    unpack: |b, out| {
        out.scale = half_at(b, 208);
        for group in 0..16 {
            out.scales[group] = b[192 + group] as i8;
            let (high_at, high_shift) = plane(group);
            let low_at = group / 8 * 64 + group % 4 * 16;
            let low_shift = group % 8 / 4 * 4;
            for i in 0..16 {
                let high = b[128 + high_at + i] >> high_shift & 3;
                out.codes[group * 16 + i] = b[low_at + i] >> low_shift & 15 | high << 4;
            }
        }
    },
    pack: Some(Pack {
        scales: [-128, 127],
        write: |block, out| {
            put_half(out, 208, block.scale);
            out[..192].fill(0);
            for group in 0..16 {
                out[192 + group] = block.scales[group] as u8;
                let (high_at, high_shift) = plane(group);
                let low_at = group / 8 * 64 + group % 4 * 16;
                let low_shift = group % 8 / 4 * 4;
                for i in 0..16 {
                    let code = block.codes[group * 16 + i];
                    out[128 + high_at + i] |= (code >> 4) << high_shift;
                    out[low_at + i] |= (code & 15) << low_shift;
                }
            }
        },
    }),
    element: "
    int group = e / 16;
    q.scale = half_at(b + 208) * (float)(signed char)b[192 + group];
    int low = b[group / 8 * 64 + group % 4 * 16 + e % 16] >> (group % 8 / 4 * 4) & 15;
    int high = b[128 + group / 8 * 32 + group % 2 * 16 + e % 16] >> (group % 8 / 2 * 2) & 3;
    q.code = low | high << 4;",
    ..BlockFormat::TWO_LEVEL
};

/// The head of a `q4_k` or `q5_k` block: scale and min, then eight six-bit scales and eight six-bit mins.
///
/// The first four of each are the low bits of bytes 0 to 3 and 4 to 7; the last four have their low bits in the
/// halves of bytes 8 to 11 and their high bits on top of the first four's bytes.
#[inline]
fn scales_and_mins(b: &[u8], out: &mut QuantBlock) {
    (out.scale, out.min) = (half_at(b, 0), -half_at(b, 2));
    for i in 0..4 {
        let (scale, min, both) = (b[4 + i], b[8 + i], b[12 + i]);
        out.scales[i] = (scale & 63) as i8;
        out.mins[i] = (min & 63) as i8;
        out.scales[4 + i] = ((both & 15) | (scale >> 6) << 4) as i8;
        out.mins[4 + i] = (both >> 4 | (min >> 6) << 4) as i8;
    }
}

/// The inverse of [`scales_and_mins`].
fn put_scales_and_mins(block: &QuantBlock, b: &mut [u8]) {
    put_half(b, 0, block.scale);
    put_half(b, 2, -block.min);
    for i in 0..4 {
        let [scale, min] = [block.scales[i], block.mins[i]].map(|x| x as u8);
        let [high_scale, high_min] = [block.scales[4 + i], block.mins[4 + i]].map(|x| x as u8);
        b[4 + i] = scale | high_scale >> 4 << 6;
        b[8 + i] = min | high_min >> 4 << 6;
        b[12 + i] = high_scale & 15 | high_min << 4;
    }
}

/// Where a group of 16 has its two-bit plane: first byte and shift.
#[inline]
fn plane(group: usize) -> (usize, usize) {
    (group / 8 * 32 + group % 2 * 16, group % 8 / 2 * 2)
}
