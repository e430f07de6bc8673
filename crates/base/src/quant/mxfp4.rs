//! Four-bit floats (E2M1) that share a power of two: the OCP microscaling format.

use super::format::{BlockFormat, Codes, nibbles};

/// The values of the sixteen codes in sixteenths: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives. Sixteenths use most of a byte, and
/// so most of the bits of packed weights.
const VALUES: [i8; 16] = [
    0, 8, 16, 24, 32, 48, 64, 96, 0, -8, -16, -24, -32, -48, -64, -96,
];

/// `e: u8, codes: [u4; 32]` in the order of `q4_0`; the element is `2^(e - 127) * value`.
pub const MXFP4: BlockFormat = BlockFormat {
    name: "mxfp4",
    number: 39,
    bytes: 17,
    codes: Codes::Table(&VALUES),
    unpack: |b, out| {
        // 2^(e - 131), which is subnormal for the smallest exponents.
        let e = u32::from(b[0]);
        out.scale = f32::from_bits(if e < 5 { 1 << (18 + e) } else { (e - 4) << 23 });
        nibbles(&b[1..], &mut out.codes);
    },
    element: "
    q.scale = ldexpf(1.0f, b[0] - 131);
    q.code = b[1 + e % 16] >> (e / 16 * 4) & 15;",
    ..BlockFormat::PLAIN
};
