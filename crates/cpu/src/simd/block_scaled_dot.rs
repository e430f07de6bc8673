//! Dot products of quants with activations of eight bits, which have a scale for every block of 32 inputs.
//!
//! The products of a group are summed exactly in 32-bit integers and then converted: tiers differ only as their multiply-adds do.

use super::{ByteLines, Generic, LANES};

/// A tier's dot products for block-scaled activations.
pub(crate) trait BlockScaledDot: ByteLines {
    /// Sixteen 32-bit integers.
    type Ints: Copy;

    /// The products of four lines of unsigned quants of at most `BITS` bits, up to 6, with sixteen signed bytes, summed.
    ///
    /// # Safety
    /// Sixteen bytes must be readable at `x`.
    unsafe fn dot_quants<const BITS: usize>(
        self,
        lines: [Self::Line; 4],
        x: *const u8,
    ) -> Self::Ints;
    /// As [`dot_quants`](Self::dot_quants), for two panels and the same activations.
    ///
    /// # Safety
    /// As for [`dot_quants`](Self::dot_quants).
    #[inline(always)]
    unsafe fn dot_quants_of_two<const BITS: usize>(
        self,
        lines: [[Self::Line; 4]; 2],
        x: *const u8,
    ) -> [Self::Ints; 2] {
        // SAFETY: as the caller guarantees.
        unsafe {
            [
                self.dot_quants::<BITS>(lines[0], x),
                self.dot_quants::<BITS>(lines[1], x),
            ]
        }
    }
    /// A line of signed quants in the form that [`dot_signed`](Self::dot_signed) takes.
    fn signed_line(self, line: Self::Line) -> Self::Line;
    /// The products of four lines of signed quants with sixteen signed bytes, summed. `offset` is minus 128 times the sum of
    /// the bytes.
    ///
    /// # Safety
    /// Sixteen bytes must be readable at `x`.
    unsafe fn dot_signed(self, lines: [Self::Line; 4], x: *const u8, offset: i32) -> Self::Ints;
    /// As [`dot_signed`](Self::dot_signed), for two panels and the same activations.
    ///
    /// # Safety
    /// As for [`dot_signed`](Self::dot_signed).
    #[inline(always)]
    unsafe fn dot_signed_of_two(
        self,
        lines: [[Self::Line; 4]; 2],
        x: *const u8,
        offset: i32,
    ) -> [Self::Ints; 2] {
        // SAFETY: as the caller guarantees.
        unsafe {
            [
                self.dot_signed(lines[0], x, offset),
                self.dot_signed(lines[1], x, offset),
            ]
        }
    }
    fn add_ints(self, a: Self::Ints, b: Self::Ints) -> Self::Ints;
    fn ints_to_f32(self, ints: Self::Ints) -> Self::V;
    /// The low and the high halves of sixteen pairs of signed 16-bit numbers.
    fn pairs_to_f32(self, pairs: Self::Line) -> [Self::V; 2];
    /// Stores integral numbers from -127 to 127 as bytes.
    ///
    /// # Safety
    /// Sixteen bytes must be writable.
    unsafe fn store_i8(self, values: Self::V, to: *mut u8);
}

impl BlockScaledDot for Generic {
    type Ints = [i32; LANES];

    #[inline(never)]
    unsafe fn dot_quants<const BITS: usize>(
        self,
        lines: [Self::Line; 4],
        x: *const u8,
    ) -> Self::Ints {
        // SAFETY: the caller guarantees sixteen bytes.
        let x = unsafe { x.cast::<[[i8; 4]; 4]>().read_unaligned() };
        let mut sums = [0; LANES];
        for (line, x) in lines.iter().zip(x) {
            for (sum, w) in sums.iter_mut().zip(line.as_chunks::<4>().0) {
                for (w, x) in w.iter().zip(x) {
                    *sum += i32::from(*w) * i32::from(x);
                }
            }
        }
        sums
    }

    #[inline(always)]
    fn signed_line(self, line: Self::Line) -> Self::Line {
        // As unsigned bytes, 128 more.
        line.map(|byte| byte ^ 0x80)
    }

    #[inline(always)]
    unsafe fn dot_signed(self, lines: [Self::Line; 4], x: *const u8, offset: i32) -> Self::Ints {
        // SAFETY: as the caller guarantees.
        unsafe { self.dot_quants::<8>(lines, x) }.map(|sum| sum + offset)
    }

    #[inline(always)]
    fn add_ints(self, a: Self::Ints, b: Self::Ints) -> Self::Ints {
        std::array::from_fn(|i| a[i] + b[i])
    }

    #[inline(always)]
    fn ints_to_f32(self, ints: Self::Ints) -> Self::V {
        ints.map(|int| int as f32)
    }

    #[inline(never)]
    fn pairs_to_f32(self, pairs: Self::Line) -> [Self::V; 2] {
        let halves: &[[u8; 2]] = pairs.as_chunks::<2>().0;
        [0, 1].map(|side| {
            std::array::from_fn(|i| f32::from(i16::from_le_bytes(halves[2 * i + side])))
        })
    }

    #[inline(never)]
    unsafe fn store_i8(self, values: Self::V, to: *mut u8) {
        // SAFETY: the caller guarantees sixteen bytes.
        unsafe {
            to.cast::<[i8; LANES]>()
                .write_unaligned(values.map(|x| x as i8))
        }
    }
}
