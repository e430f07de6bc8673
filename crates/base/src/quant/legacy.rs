//! Blocks of 32 with one scale, and for the `_1` formats one min.
//!
//! The four- and five-bit formats have elements 0 to 15 in the low halves of 16 bytes and 16 to 31 in the high
//! halves; the fifth bits are one 32-bit word, bit `i` for element `i`.

use super::format::{
    BlockFormat, Codes, Pack, QuantBlock, half_at, nibbles, put_half, put_nibbles,
};

/// `d: f16, codes: [u4; 32]`; the element is `d * (code - 8)`.
pub const Q4_0: BlockFormat = BlockFormat {
    name: "q4_0",
    number: 2,
    bytes: 18,
    codes: Codes::Unsigned { bits: 4, zero: 8 },
    nibbles_at: Some(2),
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

/// `d: f16, m: f16, codes: [u4; 32]`; the element is `d * code + m`.
pub const Q4_1: BlockFormat = BlockFormat {
    name: "q4_1",
    number: 3,
    bytes: 20,
    codes: Codes::Unsigned { bits: 4, zero: 0 },
    mins: true,
    nibbles_at: Some(4),
    unpack: |b, out| {
        (out.scale, out.min) = (half_at(b, 0), half_at(b, 2));
        nibbles(&b[4..], &mut out.codes);
    },
    pack: Some(Pack {
        scales: [1, 1],
        write: |block, out| {
            put_half(out, 0, block.scale);
            put_half(out, 2, block.min);
            put_nibbles(&block.codes, &mut out[4..]);
        },
    }),
    element: "
    q.scale = half_at(b);
    q.min = half_at(b + 2);
    q.code = b[4 + e % 16] >> (e / 16 * 4) & 15;",
    ..BlockFormat::PLAIN
};

/// `d: f16, high: u32, low: [u4; 32]`; the element is `d * (code - 16)`.
pub const Q5_0: BlockFormat = BlockFormat {
    name: "q5_0",
    number: 6,
    bytes: 22,
    codes: Codes::Unsigned { bits: 5, zero: 16 },
    unpack: |b, out| {
        out.scale = half_at(b, 0);
        nibbles(&b[6..], &mut out.codes);
        fifth_bits(&b[2..6], &mut out.codes[..32]);
    },
    pack: Some(Pack {
        scales: [1, 1],
        write: |block, out| {
            put_half(out, 0, block.scale);
            put_fifth_bits(&block.codes[..32], &mut out[2..6]);
            put_nibbles(&low(block), &mut out[6..]);
        },
    }),
    element: "
    q.scale = half_at(b);
    q.code = (b[6 + e % 16] >> (e / 16 * 4) & 15) | (b[2 + e / 8] >> (e % 8) & 1) << 4;",
    ..BlockFormat::PLAIN
};

/// `d: f16, m: f16, high: u32, low: [u4; 32]`; the element is `d * code + m`.
pub const Q5_1: BlockFormat = BlockFormat {
    name: "q5_1",
    number: 7,
    bytes: 24,
    codes: Codes::Unsigned { bits: 5, zero: 0 },
    mins: true,
    unpack: |b, out| {
        (out.scale, out.min) = (half_at(b, 0), half_at(b, 2));
        nibbles(&b[8..], &mut out.codes);
        fifth_bits(&b[4..8], &mut out.codes[..32]);
    },
    pack: Some(Pack {
        scales: [1, 1],
        write: |block, out| {
            put_half(out, 0, block.scale);
            put_half(out, 2, block.min);
            put_fifth_bits(&block.codes[..32], &mut out[4..8]);
            put_nibbles(&low(block), &mut out[8..]);
        },
    }),
    element: "
    q.scale = half_at(b);
    q.min = half_at(b + 2);
    q.code = (b[8 + e % 16] >> (e / 16 * 4) & 15) | (b[4 + e / 8] >> (e % 8) & 1) << 4;",
    ..BlockFormat::PLAIN
};

/// `d: f16, codes: [i8; 32]`; the element is `d * code`.
pub const Q8_0: BlockFormat = BlockFormat {
    name: "q8_0",
    number: 8,
    bytes: 34,
    unpack: |b, out| {
        out.scale = half_at(b, 0);
        out.codes[..32].copy_from_slice(&b[2..34]);
    },
    pack: Some(Pack {
        scales: [1, 1],
        write: |block, out| {
            put_half(out, 0, block.scale);
            out[2..].copy_from_slice(&block.codes[..32]);
        },
    }),
    element: "
    q.scale = half_at(b);
    q.code = (signed char)b[2 + e];",
    ..BlockFormat::PLAIN
};

/// Sets bit 4 of element `i` to bit `i`.
#[inline]
fn fifth_bits(bits: &[u8], codes: &mut [u8]) {
    let bits = u32::from_le_bytes(bits.try_into().expect("four bytes"));
    for (i, code) in codes.iter_mut().enumerate() {
        *code |= ((bits >> i & 1) << 4) as u8;
    }
}

/// The inverse of [`fifth_bits`].
fn put_fifth_bits(codes: &[u8], bits: &mut [u8]) {
    let each = codes.iter().enumerate();
    let word = each.fold(0, |word, (i, code)| word | u32::from(code >> 4 & 1) << i);
    bits.copy_from_slice(&word.to_le_bytes());
}

/// The low four bits of the codes of a block of 32.
fn low(block: &QuantBlock) -> [u8; 32] {
    std::array::from_fn(|i| block.codes[i] & 15)
}
