//! Packed weights for programs outside this crate, as plain integers.

use super::byte_quants::quant_lines;
use super::factors::centre;
use super::format::{BLOCK, LINE, PANEL, PackedFormat, Quant};
use super::panel::{PanelReader, RowScaledPanel, block_lines};
use super::weight_source::{PackPanel, WeightSource};
use crate::isa::Isa;
use crate::simd::Generic;
use base::{Bytes, DType};

/// The integers that a quantised weight `[n, k]` is multiplied in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PackedWeightKind {
    /// A weight is `scale · (quant - centre) + min` in units of one scale per row.
    RowScaled {
        /// Bits of a quant: four to six.
        bits: u32,
        /// Inputs that share scale and min: 16 or 32.
        group: usize,
        /// The number that is subtracted from quants.
        centre: i32,
    },
    /// A weight is `quant · factor / 128`, rounded to the nearest integer (halves up), in units of one scale per row. A
    /// quant is a signed byte; 32 inputs share a factor.
    ByteQuants {
        /// Whether quants are four bits that index the values of the format.
        is_table: bool,
    },
}

impl PackedWeightKind {
    /// Rows of a panel.
    pub const PANEL: usize = PANEL;

    /// The kind of a weight of this type; `None` if the type is not quantised.
    pub fn of(dtype: DType) -> Option<PackedWeightKind> {
        let format = PackedFormat::of(dtype)?;
        let row_scaled = |bits, centre| PackedWeightKind::RowScaled {
            bits,
            group: format.group,
            centre,
        };
        Some(match format.quant {
            Quant::Nibble => row_scaled(4, centre(&format)),
            Quant::Five => row_scaled(5, centre(&format)),
            Quant::Six => row_scaled(6, centre(&format)),
            Quant::Table(_) | Quant::Byte => PackedWeightKind::ByteQuants {
                is_table: format.quant != Quant::Byte,
            },
        })
    }
}

/// Sixteen rows of a quantised weight. Missing rows are zeros.
#[derive(Clone, Debug, Default)]
pub struct PlainPanel {
    /// The scale of every row.
    pub units: [f32; PANEL],
    /// The quants of every input; indices if they are in a table.
    pub quants: Vec<[u8; PANEL]>,
    /// Scale and min of every group; of byte quants the factor, twice.
    pub factors: Vec<[[i16; 2]; PANEL]>,
}

/// Packs the panels of a quantised weight `[n, k]`, in order; `each` receives every panel.
///
/// # Panics
/// If the type is not quantised, or `rows` are not `n` rows of it.
pub fn plain_panels(
    dtype: DType,
    rows: &Bytes,
    n: usize,
    k: usize,
    mut each: impl FnMut(&PlainPanel),
) {
    let format = PackedFormat::of(dtype).expect("a quantised type");
    assert_eq!(Some(rows.len()), dtype.row_bytes(k).map(|row| row * n));
    let weight = WeightSource {
        dtype,
        format,
        rows,
        n,
        k,
        on_demand: false,
    };
    let mut packed = vec![0; format.panel_bytes(k)];
    let mut plain = PlainPanel::default();
    for panel in 0..n.div_ceil(PANEL) {
        packed.fill(0);
        Isa::GENERIC.run_integers(PackPanel {
            weight: &weight,
            panel,
            out: &mut packed,
        });
        plain_panel(&format, k, &packed, &mut plain);
        each(&plain);
    }
}

/// The integers of a packed panel.
fn plain_panel(format: &PackedFormat, k: usize, packed: &[u8], out: &mut PlainPanel) {
    let layout = RowScaledPanel::new(format, k);
    assert_eq!(packed.len(), layout.bytes, "a panel");
    let units = packed[..LINE].as_chunks::<4>().0;
    out.units = std::array::from_fn(|r| f32::from_le_bytes(units[r]));
    out.quants.clear();
    out.factors.clear();
    let mut reader = PanelReader::new(packed.as_ptr(), &layout, 0);
    for _ in 0..k / BLOCK {
        // SAFETY: the panel has as many blocks, as its size says.
        let (lines, factors) = unsafe {
            match layout.quant {
                Quant::Nibble => plain_block::<0>(&mut reader, block_lines::<Generic, 0>),
                Quant::Five => plain_block::<1>(&mut reader, block_lines::<Generic, 1>),
                Quant::Six => plain_block::<2>(&mut reader, block_lines::<Generic, 2>),
                Quant::Byte => plain_block::<0>(&mut reader, byte_lines),
                // The indices themselves.
                Quant::Table(_) => plain_block::<0>(&mut reader, block_lines::<Generic, 0>),
            }
        };
        let quant = |i: usize, r: usize| lines[i / 4][4 * r + i % 4];
        out.quants
            .extend((0..BLOCK).map(|i| std::array::from_fn(|r| quant(i, r))));
        out.factors.extend(&factors[..layout.block_groups]);
    }
}

/// The lines of a block whose quants are bytes.
///
/// # Safety
/// The block must be readable.
unsafe fn byte_lines(s: Generic, quants: *const u8) -> [[u8; LINE]; 8] {
    // SAFETY: as the caller guarantees.
    unsafe { quant_lines::<Generic, false>(s, quants, Quant::Byte.table()) }
}

/// The lines of the next block's quants, and its factors.
///
/// # Safety
/// As for [`PanelReader::next`].
unsafe fn plain_block<const UPPER: usize>(
    reader: &mut PanelReader,
    lines: unsafe fn(Generic, *const u8) -> [[u8; LINE]; 8],
) -> ([[u8; LINE]; 8], [[[i16; 2]; PANEL]; 2]) {
    // SAFETY: as the caller guarantees.
    unsafe {
        let block = reader.next::<Generic, UPPER>(Generic, 1);
        let lines = lines(Generic, block.quants);
        let factors = |group: usize| {
            let line = block.factors.add(group * LINE);
            line.cast::<[[i16; 2]; PANEL]>().read_unaligned()
        };
        let later = BLOCK / reader.layout().group - 1;
        (lines, [factors(0), factors(later)])
    }
}
