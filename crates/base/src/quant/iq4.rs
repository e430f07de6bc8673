//! Four-bit formats whose codes index a fixed table of unevenly spaced values.

use super::format::{BlockFormat, Codes, Pack, half_at, nibbles, put_half, put_nibbles};

/// The values of the sixteen codes.
const VALUES: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

/// `d: f16, codes: [u4; 32]` in the order of `q4_0`; the element is `d * value`.
pub const IQ4_NL: BlockFormat = BlockFormat {
    name: "iq4_nl",
    number: 20,
    bytes: 18,
    codes: Codes::Table(&VALUES),
    unpack: |b, out| {
        out.scale = half_at(b, 0);
        nibbles(&b[2..], &mut out.codes);
    },
    pack: Some(Pack {
        scales: [1, 1],
        write: |block, out| {
            put_half(out, 0, block.scale);
            put_nibbles(&block.codes, &mut out[2..]);
        },
    }),
    element: "
    q.scale = half_at(b);
    q.code = b[2 + e % 16] >> (e / 16 * 4) & 15;",
    ..BlockFormat::PLAIN
};

/// `d: f16, scales: [u6; 8], codes: [u4; 256]` in runs of 32; the element is `d * (scale - 32) * value`.
///
/// The scales have two high bits each in a 16-bit word, then four low bits each in the halves of four bytes.
pub const IQ4_XS: BlockFormat = BlockFormat {
    name: "iq4_xs",
    number: 23,
    bytes: 136,
    codes: Codes::Table(&VALUES),
    unpack: |b, out| {
        out.scale = half_at(b, 0);
        let high = u16::from_le_bytes([b[2], b[3]]);
        for run in 0..8 {
            let low = b[4 + run / 2] >> (run % 2 * 4) & 15;
            let high = (high >> (2 * run) & 3) as u8;
            out.scales[run] = (low | high << 4) as i8 - 32;
            nibbles(&b[8 + run * 16..], &mut out.codes[run * 32..]);
        }
    },
    pack: Some(Pack {
        scales: [-32, 31],
        write: |block, out| {
            put_half(out, 0, block.scale);
            out[2..8].fill(0);
            let mut high = 0u16;
            for run in 0..8 {
                let scale = (block.scales[run] + 32) as u8;
                out[4 + run / 2] |= (scale & 15) << (run % 2 * 4);
                high |= u16::from(scale >> 4) << (2 * run);
                put_nibbles(&block.codes[run * 32..], &mut out[8 + run * 16..]);
            }
            out[2..4].copy_from_slice(&high.to_le_bytes());
        },
    }),
    element: "
    int run = e / 32;
    int low = b[4 + run / 2] >> (run % 2 * 4) & 15, high = u16_at(b + 2) >> (2 * run) & 3;
    q.scale = half_at(b) * (float)((low | high << 4) - 32);
    q.code = b[8 + run * 16 + e % 16] >> (e % 32 / 16 * 4) & 15;",
    ..BlockFormat::TWO_LEVEL
};
