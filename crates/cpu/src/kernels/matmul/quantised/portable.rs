//! Packed weights for programs outside this crate: the layout as plain numbers, and the packed bytes.

use super::format::{BLOCK, PackedFormat, Quant, STRIP};
use super::weight_source::{PackStrip, WeightSource};
use crate::isa::Isa;
use base::{Bytes, DType};

/// How the quants of a packed weight are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PackedQuant {
    /// Four bits, the value itself; the weight is row-scaled.
    Nibble,
    /// Four bits, an index into the table of the IQ4 formats.
    Table,
    /// A byte.
    Byte,
}

/// The layout of a packed weight `[n, k]`: strips of sixteen rows, whose quants are lines of four inputs of every row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedLayout {
    /// How quants are stored.
    pub quant: PackedQuant,
    /// Inputs that share a scale: 16 or 32.
    pub group: usize,
    /// Whether a scale is an f16 shared by 256 inputs times a small integer.
    pub two_level_scales: bool,
    /// Whether groups have mins.
    pub mins: bool,
    /// The zero point of the quants.
    pub zero: i32,
    /// Bytes from one block of 32 inputs to the next; in row-scaled layouts, the factors of the block's groups included.
    pub block_stride: usize,
    /// Bytes of a block's quants.
    pub block_bytes: usize,
    /// Offset of the scales in a strip: of the groups, or of the rows in a row-scaled layout.
    pub scales: usize,
    /// Offset of the mins in a strip.
    pub mins_at: usize,
    /// Bytes of a strip.
    pub strip_bytes: usize,
}

impl PackedLayout {
    /// Rows of a strip.
    pub const STRIP: usize = STRIP;
    /// Inputs of a block.
    pub const BLOCK: usize = BLOCK;

    /// The layout of a weight of this type and depth; `None` if the type is not quantised.
    pub fn of(dtype: DType, k: usize) -> Option<PackedLayout> {
        let format = PackedFormat::of(dtype)?;
        let strip = format.strip_layout(k);
        Some(PackedLayout {
            quant: match format.quant {
                Quant::Nibble => PackedQuant::Nibble,
                Quant::Table => PackedQuant::Table,
                Quant::Byte => PackedQuant::Byte,
            },
            group: format.group,
            two_level_scales: format.two_level_scales,
            mins: format.mins,
            zero: format.zero,
            block_stride: match format.is_row_scaled() {
                true => format.block_stride(),
                false => format.block_bytes(),
            },
            block_bytes: format.block_bytes(),
            scales: strip.scales,
            mins_at: strip.mins,
            strip_bytes: strip.bytes,
        })
    }

    /// Whether scales and mins are integers in units of one scale per row.
    pub fn is_row_scaled(&self) -> bool {
        self.quant == PackedQuant::Nibble
    }

    /// Bytes of a weight with `n` rows.
    pub fn bytes(&self, n: usize) -> usize {
        n.div_ceil(STRIP) * self.strip_bytes
    }
}

/// Packs the strips of a weight `[n, k]`, in order; `each` receives the bytes of every strip.
///
/// # Panics
/// If the type has no packed layout, or `rows` are not `n` rows of it.
pub fn pack_strips(dtype: DType, rows: &Bytes, n: usize, k: usize, mut each: impl FnMut(&[u8])) {
    let format = PackedFormat::of(dtype).expect("a type with a packed layout");
    assert_eq!(Some(rows.len()), dtype.row_bytes(k).map(|row| row * n));
    let weight = WeightSource {
        dtype,
        format,
        rows,
        n,
        k,
    };
    let mut out = vec![0; format.strip_layout(k).bytes];
    for strip in 0..n.div_ceil(STRIP) {
        out.fill(0);
        Isa::GENERIC.run_integers(PackStrip {
            weight: &weight,
            strip,
            out: &mut out,
        });
        each(&out);
    }
}
