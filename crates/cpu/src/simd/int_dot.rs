//! Dot products of sixteen weight rows of bytes with two-byte activations, for group-scaled weights.
//!
//! An activation is an integer `high · 2^SHIFT + low` of two signed bytes. A block of 32 activations takes 64 bytes,
//! whose order each tier chooses. Sums are exact integers, so all tiers compute the same.

use super::{Generic, LANES, Simd};

/// Activations of a block.
const BLOCK: usize = 32;

/// The bits by which the high byte of an activation is shifted.
pub(super) const SHIFT: u32 = 7;
/// The largest magnitude of a group-scaled activation: after rounding the low part away, the high part must be a signed
/// byte.
pub(crate) const MAX_GROUP_SCALED: f32 = (127 << SHIFT) as f32;

/// A tier's integer dot products for group-scaled weights.
pub(crate) trait IntDot: Simd {
    /// Sixteen rows of four unsigned bytes.
    type Line: Copy;
    /// Sixteen integer sums.
    type Sums: Copy;

    /// Activation rows whose sums fit into the registers.
    const ROWS: usize;

    /// # Safety
    /// 64 bytes must be readable at `p`.
    unsafe fn load_bytes(self, p: *const u8) -> Self::Line;
    /// The low nibbles of 64 bytes.
    ///
    /// # Safety
    /// 64 bytes must be readable at `p`.
    unsafe fn load_low_nibbles(self, p: *const u8) -> Self::Line;
    /// The high nibbles of 64 bytes.
    ///
    /// # Safety
    /// 64 bytes must be readable at `p`.
    unsafe fn load_high_nibbles(self, p: *const u8) -> Self::Line;
    /// Replaces numbers below sixteen by entries of a table.
    fn look_up(self, line: Self::Line, table: &[u8; 16]) -> Self::Line;

    fn zero_sums(self) -> Self::Sums;
    /// Adds the products of a line with activations `4 · INDEX` to `4 · INDEX + 3` of a block.
    ///
    /// # Safety
    /// A block written by [`store_block`](IntDot::store_block) must be readable at `block`, and `INDEX` be below eight.
    unsafe fn dot<const INDEX: usize>(
        self,
        sums: Self::Sums,
        line: Self::Line,
        block: *const u8,
    ) -> Self::Sums;
    /// The sums plus `offset`, as f32.
    fn sums_to_f32(self, sums: Self::Sums, offset: i32) -> Self::V;
    /// Stores integral numbers of magnitude up to [`MAX_GROUP_SCALED`] as a block in the tier's order.
    ///
    /// # Safety
    /// 64 bytes must be writable at `block`.
    unsafe fn store_block(self, values: [Self::V; 2], block: *mut u8);
}

impl IntDot for Generic {
    type Line = [u8; 4 * LANES];
    type Sums = [i32; LANES];

    const ROWS: usize = 2;

    #[inline(always)]
    unsafe fn load_bytes(self, p: *const u8) -> Self::Line {
        // SAFETY: the caller guarantees 64 bytes.
        unsafe { p.cast::<Self::Line>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn load_low_nibbles(self, p: *const u8) -> Self::Line {
        // SAFETY: as the caller guarantees.
        unsafe { self.load_bytes(p) }.map(|b| b & 15)
    }

    #[inline(always)]
    unsafe fn load_high_nibbles(self, p: *const u8) -> Self::Line {
        // SAFETY: as the caller guarantees.
        unsafe { self.load_bytes(p) }.map(|b| b >> 4)
    }

    #[inline(always)]
    fn look_up(self, line: Self::Line, table: &[u8; 16]) -> Self::Line {
        line.map(|i| table[i as usize & 15])
    }

    #[inline(always)]
    fn zero_sums(self) -> Self::Sums {
        [0; LANES]
    }

    #[inline(never)]
    unsafe fn dot<const INDEX: usize>(
        self,
        mut sums: Self::Sums,
        line: Self::Line,
        block: *const u8,
    ) -> Self::Sums {
        // SAFETY: the caller guarantees the block, 32 numbers of two bytes.
        let x: [i16; 4] = unsafe { block.cast::<[i16; 4]>().add(INDEX).read_unaligned() };
        for (sum, w) in sums.iter_mut().zip(line.as_chunks::<4>().0) {
            for (w, x) in w.iter().zip(x) {
                *sum += i32::from(*w) * i32::from(x);
            }
        }
        sums
    }

    #[inline(always)]
    fn sums_to_f32(self, sums: Self::Sums, offset: i32) -> Self::V {
        sums.map(|sum| (sum + offset) as f32)
    }

    #[inline(always)]
    unsafe fn store_block(self, values: [Self::V; 2], block: *mut u8) {
        let [first, second] = values;
        let numbers: [i16; BLOCK] =
            std::array::from_fn(|i| *first.iter().chain(&second).nth(i).unwrap_or(&0.0) as i16);
        // SAFETY: the caller guarantees 64 bytes.
        unsafe { block.cast::<[i16; BLOCK]>().write_unaligned(numbers) }
    }
}
