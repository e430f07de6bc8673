//! Lines of 64 bytes, in which packed quants are loaded.

use super::{Generic, LANES, Simd};

/// A tier's operations on lines of quants.
pub(crate) trait ByteLines: Simd {
    /// Sixteen rows of four bytes.
    type Line: Copy;

    /// Activation rows whose sums fit into the registers.
    const ROWS: usize;
    /// The unpacked panels and activation rows whose sums are computed at a time: (1, 2), (1, 4) or (2, 4); zeros if panels
    /// are never unpacked.
    const UNPACKED_TILE: (usize, usize);

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
    fn look_up(self, line: Self::Line, table: &[i8; 16]) -> Self::Line;
}

impl ByteLines for Generic {
    type Line = [u8; 4 * LANES];

    const ROWS: usize = 2;
    /// It would be compiled for nothing on CPUs with better tiers.
    const UNPACKED_TILE: (usize, usize) = (0, 0);

    #[inline(always)]
    unsafe fn load_bytes(self, p: *const u8) -> Self::Line {
        // SAFETY: the caller guarantees 64 bytes.
        unsafe { p.cast::<Self::Line>().read_unaligned() }
    }

    #[inline(never)]
    unsafe fn load_low_nibbles(self, p: *const u8) -> Self::Line {
        // SAFETY: as the caller guarantees.
        unsafe { self.load_bytes(p) }.map(|b| b & 15)
    }

    #[inline(never)]
    unsafe fn load_high_nibbles(self, p: *const u8) -> Self::Line {
        // SAFETY: as the caller guarantees.
        unsafe { self.load_bytes(p) }.map(|b| b >> 4)
    }

    #[inline(never)]
    fn look_up(self, line: Self::Line, table: &[i8; 16]) -> Self::Line {
        line.map(|i| table[i as usize & 15] as u8)
    }
}
