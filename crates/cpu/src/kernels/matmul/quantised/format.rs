//! Packed formats: quantised weights in the order in which the integer kernels read them.
//!
//! Sixteen output rows make a *panel*. Inside a panel, every four consecutive inputs of the sixteen rows are one line
//! of 64 bytes: row `r` has bytes `4r` to `4r + 3`. A line is a vector of sixteen four-byte dot products and also a row
//! of a matrix tile, so one layout serves both. Four-bit quants pack two lines into one: the low nibbles are inputs 0
//! to 15 of a block of 32, the high nibbles inputs 16 to 31.
//!
//! Five- and six-bit quants have the upper bits in further lines: bit `i` (or bits `2i` and `2i + 1`) of a byte belongs to
//! line `i` of the block (of half a block).
//!
//! Scales and mins are integers in units of one scale per row; `panel.rs` has their layout.

use base::DType;
use base::quant::{BlockFormat, Codes, MAX_LEN};

/// Rows of a panel.
pub(crate) const PANEL: usize = 16;
/// Inputs of a block.
pub(crate) const BLOCK: usize = 32;
/// Bytes of a line.
pub(crate) const LINE: usize = 64;

/// How a quant is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quant {
    /// Four bits, the value itself.
    Nibble,
    /// Five bits.
    Five,
    /// Six bits.
    Six,
    /// Four bits, an index into a table of signed bytes.
    Table(&'static [i8; 16]),
    /// A signed byte.
    Byte,
}

/// The packed form of a block format: `weight = scale · (quant - zero) + min`.
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
pub(crate) const SUPER_BLOCK: usize = MAX_LEN;

impl PackedFormat {
    /// The packed form of this type; `None` for types that are not quantised.
    pub(crate) fn of(dtype: DType) -> Option<PackedFormat> {
        let BlockFormat {
            codes,
            group,
            two_level,
            mins,
            ..
        } = *dtype.format()?;
        let (quant, zero) = match codes {
            Codes::Unsigned { bits: 6, zero } => (Quant::Six, zero),
            Codes::Unsigned { bits: 5, zero } => (Quant::Five, zero),
            Codes::Unsigned { zero, .. } => (Quant::Nibble, zero),
            Codes::Signed => (Quant::Byte, 0),
            Codes::Table(values) => (Quant::Table(values), 0),
        };
        Some(PackedFormat {
            quant,
            group,
            two_level_scales: two_level,
            mins,
            zero,
        })
    }

    /// Bytes of the quants of one block of a panel.
    pub(crate) fn block_bytes(&self) -> usize {
        match self.quant {
            Quant::Byte => BLOCK * PANEL,
            Quant::Nibble | Quant::Table(_) => 4 * LINE,
            Quant::Five => 5 * LINE,
            Quant::Six => 6 * LINE,
        }
    }

    /// Whether quants are bytes or indices into a table of bytes.
    pub(crate) fn has_byte_quants(&self) -> bool {
        matches!(self.quant, Quant::Byte | Quant::Table(_))
    }
}

impl Quant {
    /// The table that quants index; zeros if they index none.
    #[inline(always)]
    pub(super) fn table(self) -> &'static [i8; 16] {
        match self {
            Quant::Table(values) => values,
            _ => &[0; 16],
        }
    }
}

/// Up to sixteen rows of the file, of depth `k`, that become a panel.
#[derive(Clone, Copy)]
pub(super) struct PanelSource<'a> {
    pub(super) source: &'static BlockFormat,
    pub(super) format: PackedFormat,
    pub(super) k: usize,
    pub(super) bytes: &'a [u8],
    /// Bytes of one row.
    pub(super) row_bytes: usize,
}

/// Writes a block's quants of row `r` into the lines of its panel. The lines must be zero where bits are added.
#[inline(always)]
pub(super) fn put_quants(format: PackedFormat, quants: &[u8; BLOCK], r: usize, out: &mut [u8]) {
    let four = |i: usize| u32::from_le_bytes(quants[i..i + 4].try_into().expect("four bytes"));
    let mut put = |line: usize, bits: u32| {
        out[line * LINE + 4 * r..][..4].copy_from_slice(&bits.to_le_bytes());
    };
    if format.quant == Quant::Byte {
        (0..8).for_each(|line| put(line, four(4 * line)));
        return;
    }
    const NIBBLES: u32 = 0x0f0f_0f0f;
    for line in 0..4 {
        let [low, high] = [four(4 * line), four(BLOCK / 2 + 4 * line)];
        put(line, low & NIBBLES | (high & NIBBLES) << 4);
    }
    // The bits above the fourth of a line, moved to the line's place in every byte.
    let upper = |lines: std::ops::Range<usize>, width: usize| {
        let bits =
            |line: usize| (four(4 * line) >> 4 & 0x0303_0303) << (line % (8 / width) * width);
        lines.fold(0, |all, line| all | bits(line))
    };
    match format.quant {
        Quant::Five => put(4, upper(0..8, 1)),
        Quant::Six => {
            put(4, upper(0..4, 2));
            put(5, upper(4..8, 2));
        }
        _ => {}
    }
}
