//! Lines of quants on x86.

use super::{Avx2, Avx512, ByteLines};
use std::arch::x86_64::*;

/// A line, elements 0..8 and 8..16.
#[derive(Clone, Copy)]
pub(crate) struct Halves(pub(super) __m256i, pub(super) __m256i);

impl Halves {
    /// Applies a function to the halves of two lines.
    #[inline(always)]
    pub(super) fn zip(self, other: Halves, f: impl Fn(__m256i, __m256i) -> __m256i) -> Halves {
        Halves(f(self.0, other.0), f(self.1, other.1))
    }
}

/// Sums of the high and of the low plane.
#[derive(Clone, Copy)]
pub(crate) struct Planes<T>(pub(super) T, pub(super) T);

/// The four bytes at `index` of a block.
///
/// # Safety
/// A block must be readable at `block`; the CPU must have AVX2.
#[inline(always)]
pub(super) unsafe fn quad(block: *const u8, index: usize) -> i32 {
    // SAFETY: as the caller guarantees.
    unsafe { block.cast::<i32>().add(index).read_unaligned() }
}

macro_rules! avx2_lines {
    () => {
        #[inline(always)]
        unsafe fn load_bytes(self, p: *const u8) -> Halves {
            // SAFETY: the caller guarantees 64 bytes; AVX2 is proven.
            unsafe {
                Halves(
                    _mm256_loadu_si256(p.cast()),
                    _mm256_loadu_si256(p.add(32).cast()),
                )
            }
        }

        #[inline(always)]
        unsafe fn load_low_nibbles(self, p: *const u8) -> Halves {
            // SAFETY: as the caller guarantees; AVX2 is proven.
            unsafe {
                let (line, mask) = (self.load_bytes(p), _mm256_set1_epi8(15));
                Halves(
                    _mm256_and_si256(line.0, mask),
                    _mm256_and_si256(line.1, mask),
                )
            }
        }

        #[inline(always)]
        unsafe fn load_high_nibbles(self, p: *const u8) -> Halves {
            // SAFETY: as the caller guarantees; AVX2 is proven.
            unsafe {
                let (line, mask) = (self.load_bytes(p), _mm256_set1_epi8(15));
                Halves(
                    _mm256_and_si256(_mm256_srli_epi16::<4>(line.0), mask),
                    _mm256_and_si256(_mm256_srli_epi16::<4>(line.1), mask),
                )
            }
        }

        #[inline(always)]
        fn look_up(self, line: Halves, table: &[i8; 16]) -> Halves {
            // SAFETY: AVX2 is proven; the table holds sixteen bytes.
            unsafe {
                let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
                Halves(
                    _mm256_shuffle_epi8(table, line.0),
                    _mm256_shuffle_epi8(table, line.1),
                )
            }
        }
    };
}

impl ByteLines for Avx2<false> {
    type Line = Halves;

    const ROWS: usize = 4;
    const UNPACKED_TILE: (usize, usize) = (1, 2);

    avx2_lines!();
}

impl ByteLines for Avx2<true> {
    type Line = Halves;

    const ROWS: usize = 2;
    const UNPACKED_TILE: (usize, usize) = (1, 2);

    avx2_lines!();
}

macro_rules! avx512_lines {
    () => {
        #[inline(always)]
        unsafe fn load_bytes(self, p: *const u8) -> __m512i {
            // SAFETY: the caller guarantees 64 bytes; AVX-512 is proven.
            unsafe { _mm512_loadu_si512(p.cast()) }
        }

        #[inline(always)]
        unsafe fn load_low_nibbles(self, p: *const u8) -> __m512i {
            // SAFETY: as the caller guarantees; AVX-512 is proven.
            unsafe { _mm512_and_si512(self.load_bytes(p), _mm512_set1_epi8(15)) }
        }

        #[inline(always)]
        unsafe fn load_high_nibbles(self, p: *const u8) -> __m512i {
            // SAFETY: as the caller guarantees; AVX-512 is proven.
            unsafe {
                _mm512_and_si512(
                    _mm512_srli_epi16::<4>(self.load_bytes(p)),
                    _mm512_set1_epi8(15),
                )
            }
        }

        #[inline(always)]
        fn look_up(self, line: __m512i, table: &[i8; 16]) -> __m512i {
            // SAFETY: AVX-512 is proven; the table holds sixteen bytes.
            unsafe {
                let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
                _mm512_shuffle_epi8(table, line)
            }
        }
    };
}

impl ByteLines for Avx512<false> {
    type Line = __m512i;

    const ROWS: usize = 4;
    const UNPACKED_TILE: (usize, usize) = (1, 4);

    avx512_lines!();
}

impl ByteLines for Avx512<true> {
    type Line = __m512i;

    const ROWS: usize = 8;
    const UNPACKED_TILE: (usize, usize) = (2, 4);

    avx512_lines!();
}

/// Further operations for AMX kernels, which run only on this tier.
impl Avx512<true> {
    /// # Safety
    /// 64 bytes must be writable at `p`.
    #[inline(always)]
    pub(crate) unsafe fn store_line(self, p: *mut u8, line: __m512i) {
        // SAFETY: the caller guarantees 64 bytes; AVX-512 is proven.
        unsafe { _mm512_storeu_si512(p.cast(), line) }
    }
}
