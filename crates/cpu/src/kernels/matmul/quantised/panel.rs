//! The layout of a panel, and a reader of its blocks.
//!
//! A panel is stored in the order in which it is read: a line with the scales of the rows, the outer factors of all
//! super-blocks if scales have two levels, then spans. A span is a header with the factors of its groups, then the
//! quants of its blocks. `factors.rs` has the encodings.

use super::factors::FactorEncoding;
use super::format::{BLOCK, LINE, PANEL, PackedFormat, Quant, SUPER_BLOCK};
use crate::simd::RowScaledDot;
use std::mem::MaybeUninit;

/// The most groups of a span.
const MAX_GROUPS: usize = SUPER_BLOCK / 16;

/// Offsets and sizes of a panel, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowScaledPanel {
    pub(super) encoding: FactorEncoding,
    pub(super) quant: Quant,
    /// Inputs of a group, and groups of a block.
    pub(super) group: usize,
    pub(super) block_groups: usize,
    /// Offset of the outer factors, and their bytes for a super-block.
    pub(super) outer: usize,
    pub(super) outer_bytes: usize,
    /// Offset of the first span.
    pub(super) spans: usize,
    /// Binary logarithm of the blocks of a span.
    pub(super) span_shift: u32,
    pub(super) header_bytes: usize,
    pub(super) block_bytes: usize,
    pub(crate) bytes: usize,
}

impl RowScaledPanel {
    /// The layout of a panel of depth `k`.
    pub(crate) fn new(format: &PackedFormat, k: usize) -> RowScaledPanel {
        let encoding = FactorEncoding::of(format);
        let span_blocks = match encoding {
            FactorEncoding::Pairs => 1,
            FactorEncoding::Scales | FactorEncoding::Multipliers => 4,
            FactorEncoding::TwoLevelPairs | FactorEncoding::TwoLevelScales => SUPER_BLOCK / BLOCK,
        };
        let header_bytes = span_blocks * BLOCK / format.group * encoding.group_bytes();
        let outer_bytes = encoding.outer_bytes();
        let blocks = k / BLOCK;
        let block_bytes = format.block_bytes();
        let spans = LINE + (k / SUPER_BLOCK * outer_bytes).next_multiple_of(LINE);
        RowScaledPanel {
            encoding,
            quant: format.quant,
            group: format.group,
            block_groups: BLOCK / format.group,
            outer: LINE,
            outer_bytes,
            spans,
            span_shift: usize::ilog2(span_blocks),
            header_bytes,
            block_bytes,
            bytes: spans + blocks.div_ceil(span_blocks) * header_bytes + blocks * block_bytes,
        }
    }

    /// Offset of a span's header.
    #[inline(always)]
    pub(super) fn header(&self, span: usize) -> usize {
        self.spans + span * (self.header_bytes + (self.block_bytes << self.span_shift))
    }

    /// Offset of a block's quants.
    #[inline(always)]
    pub(super) fn quants(&self, block: usize) -> usize {
        let span = block >> self.span_shift;
        let within = block - (span << self.span_shift);
        self.header(span) + self.header_bytes + within * self.block_bytes
    }
}

impl PackedFormat {
    /// Bytes of a packed weight `[n, k]`.
    pub(crate) fn packed_bytes(&self, n: usize, k: usize) -> usize {
        n.div_ceil(PANEL) * self.panel_bytes(k)
    }

    /// Bytes of a panel of depth `k`.
    pub(crate) fn panel_bytes(&self, k: usize) -> usize {
        RowScaledPanel::new(self, k).bytes
    }
}

/// Some blocks of a panel, one after the other.
#[derive(Clone, Copy)]
pub(super) struct PanelBlocks {
    pub(super) count: usize,
    /// The first block's quants, and bytes to the next block's.
    pub(super) quants: *const u8,
    pub(super) quants_stride: usize,
    /// A line of sixteen pairs of scale and min for each group of the first block, and bytes to the next block's.
    pub(super) factors: *const u8,
    pub(super) factors_stride: usize,
    /// Bytes of factors that are read before the blocks.
    pub(super) header_bytes: usize,
}

impl PanelBlocks {
    pub(super) const NONE: PanelBlocks = PanelBlocks {
        count: 0,
        quants: std::ptr::null(),
        quants_stride: 0,
        factors: std::ptr::null(),
        factors_stride: 0,
        header_bytes: 0,
    };
}

/// Reads the blocks of a panel in order, and decodes the factors of every span that it enters.
pub(super) struct PanelReader {
    layout: RowScaledPanel,
    panel: *const u8,
    block: usize,
    /// The span whose factors are decoded.
    span: usize,
    decoded: FactorLines,
}

/// Factors of a span: for each group a line of sixteen pairs of scale and min.
#[repr(align(64))]
struct FactorLines(MaybeUninit<[u8; MAX_GROUPS * LINE]>);

impl PanelReader {
    /// A reader of the panel at an address, from a block on.
    #[inline(always)]
    pub(super) fn new(panel: *const u8, layout: &RowScaledPanel, block: usize) -> PanelReader {
        PanelReader {
            layout: *layout,
            panel,
            block,
            span: usize::MAX,
            decoded: FactorLines(MaybeUninit::uninit()),
        }
    }

    /// The panel's layout.
    #[inline(always)]
    pub(super) fn layout(&self) -> RowScaledPanel {
        self.layout
    }

    /// The next blocks, at least one and at most `most`; quants have `UPPER` bits above the fourth.
    ///
    /// # Safety
    /// The panel must be readable and have as many more blocks. The result is valid until the next call.
    #[inline(always)]
    pub(super) unsafe fn next<S: RowScaledDot, const UPPER: usize>(
        &mut self,
        s: S,
        most: usize,
    ) -> PanelBlocks {
        let layout = &self.layout;
        let span = self.block >> layout.span_shift;
        let within = self.block - (span << layout.span_shift);
        // SAFETY: as the caller guarantees.
        unsafe {
            let header = self.panel.add(layout.header(span));
            if layout.encoding == FactorEncoding::Pairs {
                // Every block is a span, and its factors are stored as they are used.
                self.block += most;
                let stride = LINE + layout.block_bytes;
                return PanelBlocks {
                    count: most,
                    quants: header.add(LINE),
                    quants_stride: stride,
                    factors: header,
                    factors_stride: stride,
                    header_bytes: most * LINE,
                };
            }
            let decoded: *mut u8 = self.decoded.0.as_mut_ptr().cast();
            let block_lines = layout.block_groups * LINE;
            let mut header_bytes = 0;
            if span != self.span {
                self.span = span;
                header_bytes = layout.header_bytes;
                let outer = self.panel.add(layout.outer + span * layout.outer_bytes);
                let groups = layout.block_groups << layout.span_shift;
                layout
                    .encoding
                    .decode::<S, UPPER>(s, header, outer, groups, decoded);
            }
            let count = ((1 << layout.span_shift) - within).min(most);
            self.block += count;
            PanelBlocks {
                count,
                quants: header.add(layout.header_bytes + within * layout.block_bytes),
                quants_stride: layout.block_bytes,
                factors: decoded.add(within * block_lines).cast_const(),
                factors_stride: block_lines,
                header_bytes,
            }
        }
    }
}

/// The eight lines of a block's quants.
///
/// # Safety
/// The block must be readable, with `UPPER` bits per quant above the fourth.
#[inline(always)]
pub(super) unsafe fn block_lines<S: RowScaledDot, const UPPER: usize>(
    s: S,
    quants: *const u8,
) -> [S::Line; 8] {
    macro_rules! lines {
        ($($line:literal)*) => {
            [$({
                let at = quants.add($line % 4 * LINE);
                let low = if $line < 4 { s.load_low_nibbles(at) } else { s.load_high_nibbles(at) };
                match UPPER {
                    1 => {
                        let bits = s.load_bytes(quants.add(4 * LINE));
                        s.merge_bits::<{ 4 - $line }, 0x10>(low, bits)
                    }
                    2 => {
                        let bits = s.load_bytes(quants.add((4 + $line / 4) * LINE));
                        s.merge_bits::<{ 4 - 2 * ($line % 4) }, 0x30>(low, bits)
                    }
                    _ => low,
                }
            }),*]
        };
    }
    // SAFETY: as the caller guarantees.
    unsafe { lines!(0 1 2 3 4 5 6 7) }
}
