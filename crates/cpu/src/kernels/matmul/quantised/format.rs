//! Packed formats: quantised weights in the order in which the integer kernels read them.
//!
//! Sixteen output rows make a *strip*. Inside a strip, every four consecutive inputs of the sixteen rows are one line
//! of 64 bytes: row `r` has bytes `4r` to `4r + 3`. A line is a vector of sixteen four-byte dot products and also a row
//! of a matrix tile, so one layout serves both. Four-bit quants pack two lines into one: the low nibbles are inputs 0
//! to 15 of a block of 32, the high nibbles inputs 16 to 31.
//!
//! In group-scaled formats, whose quants are bytes or table indices, the scales follow the quants of a strip, sixteen
//! rows side by side. In row-scaled formats, whose quants are four bits, scales and mins become two-byte integers in
//! units of one scale per row: those of a block's groups follow its quants, one line per group, and the scales of the
//! rows are the strip's last line.

use base::DType;
use base::quant::IQ4_VALUES;

/// Rows of a strip.
pub(crate) const STRIP: usize = 16;
/// Inputs of a block.
pub(crate) const BLOCK: usize = 32;
/// Bytes of a line.
pub(crate) const LINE: usize = 64;
/// Bytes of sixteen f16.
pub(crate) const F16_STRIP_BYTES: usize = 2 * STRIP;

/// How a quant is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quant {
    /// Four bits, the value itself; such weights are row-scaled.
    Nibble,
    /// Four bits, an index into [`IQ4_TABLE`].
    Table,
    /// A byte.
    Byte,
}

/// The packed form of a weight format: `weight = scale · (quant - zero) + min`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PackedFormat {
    pub(crate) quant: Quant,
    /// Inputs that share a scale: 16 or 32.
    pub(crate) group: usize,
    /// Whether a scale is an f16 shared by 256 inputs times a small integer.
    pub(crate) two_level_scales: bool,
    pub(crate) mins: bool,
    pub(crate) zero: i32,
}

/// Inputs that share the outer scale of a two-level format (ggml's super-block).
pub(crate) const SUPER_BLOCK: usize = 256;

/// Byte offsets of a strip's scales and mins, and the bytes of the strip.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StripLayout {
    pub(crate) scales: usize,
    pub(crate) mins: usize,
    pub(crate) bytes: usize,
}

impl PackedFormat {
    /// The packed format of this type; `None` for types that are not quantised.
    pub(crate) fn of(dtype: DType) -> Option<PackedFormat> {
        use Quant::{Byte, Nibble, Table};
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
            DType::Q5_0 => format(Byte, 32, false, false, 16),
            DType::Q5_1 => format(Byte, 32, false, true, 0),
            DType::Q8_0 => format(Byte, 32, false, false, 128),
            DType::Q2_K => format(Nibble, 16, true, true, 0),
            DType::Q3_K => format(Nibble, 16, true, false, 4),
            DType::Q4_K => format(Nibble, 32, true, true, 0),
            DType::Q5_K => format(Byte, 32, true, true, 0),
            DType::Q6_K => format(Byte, 16, true, false, 32),
            DType::IQ4_NL => format(Table, 32, false, false, 128),
            DType::IQ4_XS => format(Table, 32, true, false, 128),
            _ => return None,
        })
    }

    /// Bytes of the quants of one block of a strip.
    pub(crate) fn block_bytes(&self) -> usize {
        match self.quant {
            Quant::Byte => BLOCK * STRIP,
            Quant::Nibble | Quant::Table => BLOCK * STRIP / 2,
        }
    }

    /// Bytes of a packed weight `[n, k]`.
    pub(crate) fn packed_bytes(&self, n: usize, k: usize) -> usize {
        let strip_bytes = self.strip_layout(k).bytes;
        n.div_ceil(STRIP) * strip_bytes
    }

    /// Bytes of the scales, or of the mins, of a strip of depth `k`.
    fn side_bytes(&self, k: usize) -> usize {
        if self.two_level_scales {
            k / SUPER_BLOCK * F16_STRIP_BYTES + k / self.group * STRIP
        } else {
            k / self.group * F16_STRIP_BYTES
        }
    }

    /// Whether weights have one scale per row.
    pub(crate) fn is_row_scaled(&self) -> bool {
        self.quant == Quant::Nibble
    }

    /// Bytes from one block to the next in a row-scaled format.
    pub(crate) fn block_stride(&self) -> usize {
        self.block_bytes() + BLOCK / self.group * LINE
    }

    /// The layout of a strip of depth `k`.
    pub(crate) fn strip_layout(&self, k: usize) -> StripLayout {
        if self.is_row_scaled() {
            let scales = k / BLOCK * self.block_stride();
            return StripLayout {
                scales,
                mins: scales,
                bytes: scales + LINE,
            };
        }
        let scales = k / BLOCK * self.block_bytes();
        let mins = scales + self.side_bytes(k);
        let end = mins + if self.mins { self.side_bytes(k) } else { 0 };
        StripLayout {
            scales,
            mins,
            bytes: end.next_multiple_of(LINE),
        }
    }
}

/// The sixteen values of the IQ4 formats plus 128, as unsigned bytes.
pub(crate) const IQ4_TABLE: [u8; 16] = {
    let mut table = [0; 16];
    let mut i = 0;
    while i < 16 {
        table[i] = (IQ4_VALUES[i] as i32 + 128) as u8;
        i += 1;
    }
    table
};

/// Up to sixteen rows of the file, of depth `k`, that become a strip.
#[derive(Clone, Copy)]
pub(super) struct StripSource<'a> {
    pub(super) dtype: DType,
    pub(super) format: PackedFormat,
    pub(super) k: usize,
    pub(super) bytes: &'a [u8],
    /// Bytes of one row.
    pub(super) row_bytes: usize,
}

/// Writes a block's quants of row `r` into the lines of its strip.
#[inline(always)]
pub(super) fn put_quants(format: PackedFormat, quants: &[u8; BLOCK], r: usize, out: &mut [u8]) {
    let four = |i: usize| u32::from_le_bytes(quants[i..i + 4].try_into().expect("four bytes"));
    let lines = out.len() / LINE;
    for line in 0..lines {
        let bits = match format.quant {
            Quant::Byte => four(4 * line),
            Quant::Nibble | Quant::Table => four(4 * line) | four(BLOCK / 2 + 4 * line) << 4,
        };
        out[line * LINE + 4 * r..][..4].copy_from_slice(&bits.to_le_bytes());
    }
}
