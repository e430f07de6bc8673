//! Packs strips of group-scaled formats.

use super::super::format::{BLOCK, F16_STRIP_BYTES, STRIP, SUPER_BLOCK, StripSource, put_quants};
use super::super::quant_block::{QuantBlock, parse_block};

/// Packs a strip of a group-scaled format.
#[inline(always)]
pub(in super::super) fn pack_strip(rows: StripSource<'_>, out: &mut [u8]) {
    let StripSource {
        dtype, format, k, ..
    } = rows;
    let scales_at = format.scales_at(k);
    let (len, bytes) = (dtype.block_len(), dtype.block_bytes());
    let groups = len / format.group;
    let inner_at = scales_at + k / SUPER_BLOCK * F16_STRIP_BYTES;
    let mut block_values = QuantBlock::default();
    for (r, row) in rows.bytes.chunks(rows.row_bytes).enumerate() {
        for (i, block) in row.chunks(bytes).enumerate() {
            parse_block(dtype, block, &mut block_values);
            let quants = block_values.quants[..len].as_chunks::<BLOCK>().0;
            for (j, quants) in quants.iter().enumerate() {
                let at = (i * (len / BLOCK) + j) * format.block_bytes();
                put_quants(format, quants, r, &mut out[at..][..format.block_bytes()]);
            }
            let scale = block_values.scale.to_le_bytes();
            out[scales_at + i * F16_STRIP_BYTES + 2 * r..][..2].copy_from_slice(&scale);
            if format.two_level_scales {
                for (g, inner) in block_values.scales[..groups].iter().enumerate() {
                    out[inner_at + (i * groups + g) * STRIP + r] = *inner as u8;
                }
            }
        }
    }
}
