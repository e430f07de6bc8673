//! Activations as 15-bit integers with a scale per block of 32.

use super::super::format::{BLOCK, LINE};
use crate::simd::{IntegerKernel, LANES, MAX_GROUP_SCALED, RowScaledDot};

/// Scale and zero-point offset of a group of activations.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct GroupTerms {
    /// `activation = scale · integer`.
    pub(super) scale: f32,
    /// The contribution of the weights' zero point to the integer sums.
    pub(super) offset: i32,
}

/// A step's quantised activations in scratch.
///
/// Rows are interleaved in sets of sixteen, or all of them if there are fewer: for every block, the data of these rows
/// is contiguous, so the rows of a tile have a constant stride. The last block is followed by padding for rows that a
/// kernel reads but does not use.
#[derive(Clone, Copy)]
pub(crate) struct GroupScaledActivations {
    blocks: *mut u8,
    groups: *mut GroupTerms,
    /// The zero point of the weights' quants.
    zero: i32,
    layout: GroupScaledLayout,
}

/// The sizes of a step's quantised activations.
#[derive(Clone, Copy, Debug)]
pub(super) struct GroupScaledLayout {
    /// Rows that are stored interleaved, block by block.
    pub(super) interleaved_rows: usize,
    rows: usize,
    blocks_per_row: usize,
}

// SAFETY: rows are written by one task each before any task reads them.
unsafe impl Send for GroupScaledActivations {}
// SAFETY: as above.
unsafe impl Sync for GroupScaledActivations {}

/// The most rows that are stored interleaved.
pub(super) const MAX_INTERLEAVED_ROWS: usize = 16;

impl GroupScaledLayout {
    /// The layout of `m` rows of `k` activations, padded to full sets of sixteen if `full`.
    pub(super) fn new(m: usize, k: usize, full: bool) -> GroupScaledLayout {
        let interleaved_rows = if full {
            MAX_INTERLEAVED_ROWS
        } else {
            m.clamp(1, MAX_INTERLEAVED_ROWS)
        };
        GroupScaledLayout {
            interleaved_rows,
            rows: m.next_multiple_of(interleaved_rows),
            blocks_per_row: k / BLOCK,
        }
    }

    /// Bytes of all blocks, and of all group terms.
    fn parts(&self) -> (usize, usize) {
        (
            (self.rows * self.blocks_per_row + MAX_INTERLEAVED_ROWS) * LINE,
            (self.rows * self.blocks_per_row + MAX_INTERLEAVED_ROWS) * size_of::<GroupTerms>(),
        )
    }

    /// Bytes of all activations.
    pub(super) fn bytes(&self) -> usize {
        let (blocks, groups) = self.parts();
        (blocks + groups).next_multiple_of(LINE)
    }
}

impl GroupScaledActivations {
    /// The activations laid out in `scratch`, whose address is a multiple of 64.
    pub(super) fn at(
        scratch: *mut u8,
        zero: i32,
        layout: GroupScaledLayout,
    ) -> GroupScaledActivations {
        let (blocks, _) = layout.parts();
        GroupScaledActivations {
            blocks: scratch,
            groups: scratch.wrapping_add(blocks).cast(),
            zero,
            layout,
        }
    }

    /// A row and the rows interleaved after it.
    ///
    /// # Safety
    /// The row must be laid out.
    #[inline(always)]
    pub(super) unsafe fn rows(&self, row: usize) -> InterleavedRows {
        let GroupScaledLayout {
            interleaved_rows,
            blocks_per_row,
            ..
        } = self.layout;
        let (first, within) = (
            row / interleaved_rows * interleaved_rows,
            row % interleaved_rows,
        );
        // SAFETY: as the caller guarantees.
        unsafe {
            InterleavedRows {
                blocks: self.blocks.add((first * blocks_per_row + within) * LINE),
                groups: self.groups.add(first * blocks_per_row + within),
                interleaved_rows,
            }
        }
    }
}

/// A row and the rows interleaved after it.
#[derive(Clone, Copy)]
pub(super) struct InterleavedRows {
    blocks: *mut u8,
    groups: *mut GroupTerms,
    interleaved_rows: usize,
}

impl InterleavedRows {
    /// A block of the first row; the same block of the next row is one line further.
    ///
    /// # Safety
    /// The row must have the block.
    #[inline(always)]
    pub(super) unsafe fn block(&self, block: usize) -> *mut u8 {
        // SAFETY: as the caller guarantees.
        unsafe { self.blocks.add(block * self.interleaved_rows * LINE) }
    }

    /// A group of the first row; the same group of the next row follows it.
    ///
    /// # Safety
    /// The row must have the group.
    #[inline(always)]
    pub(super) unsafe fn group(&self, group: usize) -> *mut GroupTerms {
        // SAFETY: as the caller guarantees.
        unsafe { self.groups.add(group * self.interleaved_rows) }
    }
}

/// Quantises one row.
pub(super) struct QuantiseGroupScaled {
    pub(super) x: *const f32,
    pub(super) row: usize,
    pub(super) to: GroupScaledActivations,
}

/// Blocks of a smaller magnitude are quantised to zeros: their inverse scale would not be finite.
const MIN_MAGNITUDE: f32 = 1e-30;

impl IntegerKernel for QuantiseGroupScaled {
    type Output = ();

    #[inline(always)]
    fn run<S: RowScaledDot>(self, s: S) {
        let largest = MAX_GROUP_SCALED;
        // SAFETY: the kernel's constructor guarantees a row of `k` activations, a multiple of the block, and that the
        // row is laid out.
        unsafe {
            let to = self.to.rows(self.row);
            for block in 0..self.to.layout.blocks_per_row {
                let at = self.x.add(block * BLOCK);
                let (a, b) = (s.load(at), s.load(at.add(LANES)));
                let magnitudes = s.max(s.max(a, s.sub(s.zero(), a)), s.max(b, s.sub(s.zero(), b)));
                let top = s.reduce_max(magnitudes);
                let (scale, inverse) = if top < MIN_MAGNITUDE {
                    (0.0, 0.0)
                } else {
                    (top / largest, largest / top)
                };
                let (p, q) = (
                    s.round(s.mul(a, s.splat(inverse))),
                    s.round(s.mul(b, s.splat(inverse))),
                );
                s.store_block([p, q], to.block(block));
                // Sums of integers this small are exact.
                let sum = s.reduce_sum(s.add(p, q)) as i32;
                to.group(block).write(GroupTerms {
                    scale,
                    offset: -self.to.zero * sum,
                });
            }
        }
    }
}
