//! Dot products of quants with activations of eight bits, which have a scale for every block of 32 inputs.
//!
//! The products of a group are summed exactly in 32-bit integers and then converted: tiers differ only as their multiply-adds do.

use super::{ByteLines, Generic, LANES};

/// A tier's dot products for block-scaled activations.
pub(crate) trait BlockScaledDot: ByteLines {
    /// Sixteen 32-bit integers.
    type Ints: Copy;
    /// Panels and rows that are multiplied together: as many as registers hold.
    const BLOCK_TILE: (usize, usize) = (1, 1);

    /// The products of four lines of unsigned quants of at most `BITS` bits, up to 6, with sixteen signed bytes, summed.
    ///
    /// # Safety
    /// Sixteen bytes must be readable at `x`.
    unsafe fn dot_quants<const BITS: usize>(
        self,
        lines: [Self::Line; 4],
        x: *const u8,
    ) -> Self::Ints;
    /// Adds the products of four lines of each panel with sixteen signed bytes of each row. Quants are unsigned and have at most
    /// `BITS` bits, or 8 if they are [signed lines](Self::signed_line).
    ///
    /// # Safety
    /// Sixteen bytes must be readable at each of `x`.
    #[inline(always)]
    unsafe fn add_dots<const BITS: usize, const PANELS: usize, const ROWS: usize>(
        self,
        lines: [[Self::Line; 4]; PANELS],
        x: [*const u8; ROWS],
        mut sums: [[Self::Ints; PANELS]; ROWS],
    ) -> [[Self::Ints; PANELS]; ROWS] {
        for row in 0..ROWS {
            for panel in 0..PANELS {
                // SAFETY: as the caller guarantees.
                let dot = unsafe {
                    match BITS {
                        8 => self.dot_signed(lines[panel], x[row]),
                        _ => self.dot_quants::<BITS>(lines[panel], x[row]),
                    }
                };
                sums[row][panel] = self.add_ints(sums[row][panel], dot);
            }
        }
        sums
    }
    /// A line of signed quants in the form that [`dot_signed`](Self::dot_signed) takes.
    fn signed_line(self, line: Self::Line) -> Self::Line;
    /// The products of four [signed lines](Self::signed_line) with sixteen signed bytes, summed.
    ///
    /// # Safety
    /// Sixteen bytes must be readable at `x`.
    unsafe fn dot_signed(self, lines: [Self::Line; 4], x: *const u8) -> Self::Ints;
    /// The start of a sum of signed products. `offset` is minus 128 times the sum of the signed bytes.
    fn signed_start(self, offset: i32) -> Self::Ints;
    fn zero_ints(self) -> Self::Ints;
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
    unsafe fn dot_signed(self, lines: [Self::Line; 4], x: *const u8) -> Self::Ints {
        // SAFETY: as the caller guarantees.
        unsafe { self.dot_quants::<8>(lines, x) }
    }

    #[inline(always)]
    fn signed_start(self, offset: i32) -> Self::Ints {
        [offset; LANES]
    }

    #[inline(always)]
    fn zero_ints(self) -> Self::Ints {
        [0; LANES]
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
