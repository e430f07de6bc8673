//! Expands blocks of a panel to tiles of bf16 weights.

use super::super::block_scaled::{BlockQuants, group_factors, next_blocks};
use super::super::format::{BLOCK, LINE};
use super::super::panel::{PanelBlocks, PanelReader, RowScaledPanel};
use super::S;
use crate::prefetch::Prefetcher;
use crate::simd::{ByteLines, QuantBits};

/// Reads the blocks of a panel one by one. It must not be moved once it has read a block: the reader keeps decoded factors.
pub(super) struct BlockCursor {
    reader: PanelReader,
    blocks: PanelBlocks,
    /// Blocks of the panel that are not read yet.
    left: usize,
}

impl BlockCursor {
    /// A cursor over `count` blocks of the panel at an address, from a block on.
    #[inline(always)]
    pub(super) fn new(
        panel: *const u8,
        layout: &RowScaledPanel,
        first: usize,
        count: usize,
    ) -> BlockCursor {
        BlockCursor {
            reader: PanelReader::new(panel, layout, first),
            blocks: PanelBlocks::NONE,
            left: count,
        }
    }

    /// Expands the next block to a tile: a row has two inputs of sixteen columns. Prefetches along the prefetcher's plan, if there is
    /// one.
    ///
    /// # Safety
    /// The panel must be readable and have another block, and the tile be writable.
    #[inline(always)]
    pub(super) unsafe fn expand<Q: BlockQuants>(
        &mut self,
        s: S,
        layout: &RowScaledPanel,
        mut prefetcher: Option<&mut Prefetcher<'_>>,
        to: *mut u8,
    ) {
        // SAFETY: as the caller guarantees.
        unsafe {
            if self.blocks.count == 0 {
                self.blocks = next_blocks::<S, Q>(s, &mut self.reader, self.left);
                if let Some(prefetcher) = &mut prefetcher {
                    prefetcher.consumed(self.blocks.header_bytes);
                }
            }
            let blocks = &mut self.blocks;
            if let Some(prefetcher) = &mut prefetcher {
                prefetcher.reads(blocks.quants, layout.block_bytes);
            }
            expand_block::<Q>(s, blocks.quants, blocks.factors, layout, to);
            blocks.quants = blocks.quants.wrapping_add(blocks.quants_stride);
            blocks.factors = blocks.factors.wrapping_add(blocks.factors_stride);
            blocks.count -= 1;
            self.left -= 1;
        }
    }
}

/// Expands a block to a tile.
///
/// # Safety
/// The block and its factors must be readable, and the tile writable.
#[inline(always)]
unsafe fn expand_block<Q: BlockQuants>(
    s: S,
    quants: *const u8,
    factor_lines: *const u8,
    layout: &RowScaledPanel,
    to: *mut u8,
) {
    const HALF: usize = super::TILE / 2;
    // SAFETY: as the caller guarantees.
    unsafe {
        let bits = const {
            match (Q::SIGNED, Q::UPPER) {
                (true, _) => QuantBits::Signed,
                (false, 0) => QuantBits::Nibbles,
                (false, _) => QuantBits::SixBits,
            }
        };
        let first = s.bf16_factors(group_factors::<S, Q>(s, factor_lines), bits);
        let last = match Q::GROUP {
            BLOCK => first,
            _ => s.bf16_factors(group_factors::<S, Q>(s, factor_lines.add(LINE)), bits),
        };
        if bits == QuantBits::Nibbles {
            for line in 0..4 {
                let nibbles = s.load_bytes(quants.add(line * LINE));
                let low = to.add(2 * line * LINE);
                s.expand_nibbles_to_bf16(nibbles, &[first, last], [low, low.add(HALF)]);
            }
            return;
        }
        let lines = Q::lines::<S>(s, quants, layout);
        for (line, quants) in lines.into_iter().enumerate() {
            let factors = if line < 4 { &first } else { &last };
            let to = to.add(2 * line * LINE);
            match Q::SIGNED {
                true => s.expand_bytes_to_bf16(quants, factors, to),
                false => s.expand_bits_to_bf16(quants, factors, to),
            }
        }
    }
}
