//! Byte dot products for group-scaled weights on x86, with and without VNNI.
//!
//! With `vpdpbusd`, activations are two planes of signed bytes, `high · 2^SHIFT + low`, and every line is multiplied
//! with both. Without it, activations are two-byte integers: a line is split into its even and its odd bytes, and the
//! four activations of a line are stored as the even pair and the odd pair.

#![allow(
    clippy::needless_range_loop,
    reason = "iterators over registers are not inlined with the tier's features"
)]

use super::int_dot::SHIFT;
use super::x86::Pair;
use super::{Avx2, Avx512, IntDot};
use std::arch::x86_64::*;

/// Byte offset of a block's low plane.
const LOW_PLANE: usize = 32;

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

/// # Safety
/// The CPU must have AVX2.
#[inline(always)]
unsafe fn shl256(v: __m256i) -> __m256i {
    // SAFETY: as the caller guarantees.
    unsafe { _mm256_sll_epi32(v, _mm_cvtsi32_si128(SHIFT as i32)) }
}

/// # Safety
/// The CPU must have AVX2.
#[inline(always)]
unsafe fn sra256(v: __m256i) -> __m256i {
    // SAFETY: as the caller guarantees.
    unsafe { _mm256_sra_epi32(v, _mm_cvtsi32_si128(SHIFT as i32)) }
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
        fn look_up(self, line: Halves, table: &[u8; 16]) -> Halves {
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

impl IntDot for Avx2<false> {
    type Line = Halves;
    type Sums = Halves;

    const ROWS: usize = 4;

    avx2_lines!();

    #[inline(always)]
    fn zero_sums(self) -> Halves {
        // SAFETY: AVX2 is proven.
        unsafe { Halves(_mm256_setzero_si256(), _mm256_setzero_si256()) }
    }

    #[inline(always)]
    unsafe fn dot<const INDEX: usize>(
        self,
        sums: Halves,
        line: Halves,
        block: *const u8,
    ) -> Halves {
        // SAFETY: the caller guarantees the block; AVX2 is proven.
        unsafe {
            let even = _mm256_set1_epi32(quad(block, 2 * INDEX));
            let odd = _mm256_set1_epi32(quad(block, 2 * INDEX + 1));
            let mask = _mm256_set1_epi16(255);
            let evens = Halves(
                _mm256_madd_epi16(_mm256_and_si256(line.0, mask), even),
                _mm256_madd_epi16(_mm256_and_si256(line.1, mask), even),
            );
            let odds = Halves(
                _mm256_madd_epi16(_mm256_srli_epi16::<8>(line.0), odd),
                _mm256_madd_epi16(_mm256_srli_epi16::<8>(line.1), odd),
            );
            Halves(
                _mm256_add_epi32(_mm256_add_epi32(sums.0, evens.0), odds.0),
                _mm256_add_epi32(_mm256_add_epi32(sums.1, evens.1), odds.1),
            )
        }
    }

    #[inline(always)]
    fn sums_to_f32(self, sums: Halves, offset: i32) -> Pair {
        // SAFETY: AVX2 is proven.
        unsafe {
            let offset = _mm256_set1_epi32(offset);
            Pair(
                _mm256_cvtepi32_ps(_mm256_add_epi32(sums.0, offset)),
                _mm256_cvtepi32_ps(_mm256_add_epi32(sums.1, offset)),
            )
        }
    }

    #[inline(always)]
    unsafe fn store_block(self, values: [Pair; 2], block: *mut u8) {
        // SAFETY: the caller guarantees 64 bytes, sixteen for each of the four registers; AVX2 is proven.
        unsafe {
            // Reorders every four numbers: first and third, then second and fourth.
            let order = _mm256_broadcastsi128_si256(_mm_setr_epi8(
                0, 1, 8, 9, 4, 5, 12, 13, -1, -1, -1, -1, -1, -1, -1, -1,
            ));
            let registers = [values[0].0, values[0].1, values[1].0, values[1].1];
            for i in 0..4 {
                let v = registers[i];
                let pairs = _mm256_shuffle_epi8(_mm256_cvtps_epi32(v), order);
                let joined = _mm256_permute4x64_epi64::<0b1000>(pairs);
                _mm_storeu_si128(block.add(16 * i).cast(), _mm256_castsi256_si128(joined));
            }
        }
    }
}

impl IntDot for Avx2<true> {
    type Line = Halves;
    type Sums = Planes<Halves>;

    const ROWS: usize = 2;

    avx2_lines!();

    #[inline(always)]
    fn zero_sums(self) -> Planes<Halves> {
        // SAFETY: AVX2 is proven.
        let zero = unsafe { Halves(_mm256_setzero_si256(), _mm256_setzero_si256()) };
        Planes(zero, zero)
    }

    #[inline(always)]
    unsafe fn dot<const INDEX: usize>(
        self,
        sums: Planes<Halves>,
        line: Halves,
        block: *const u8,
    ) -> Planes<Halves> {
        // SAFETY: the caller guarantees the block; AVX-VNNI is proven.
        unsafe {
            let high = _mm256_set1_epi32(quad(block, INDEX));
            let low = _mm256_set1_epi32(quad(block.add(LOW_PLANE), INDEX));
            Planes(
                Halves(
                    _mm256_dpbusd_avx_epi32(sums.0.0, line.0, high),
                    _mm256_dpbusd_avx_epi32(sums.0.1, line.1, high),
                ),
                Halves(
                    _mm256_dpbusd_avx_epi32(sums.1.0, line.0, low),
                    _mm256_dpbusd_avx_epi32(sums.1.1, line.1, low),
                ),
            )
        }
    }

    #[inline(always)]
    fn sums_to_f32(self, sums: Planes<Halves>, offset: i32) -> Pair {
        // SAFETY: AVX2 is proven.
        unsafe {
            let offset = _mm256_set1_epi32(offset);
            let Planes(high, low) = sums;
            let sums = Halves(
                _mm256_add_epi32(shl256(high.0), low.0),
                _mm256_add_epi32(shl256(high.1), low.1),
            );
            Pair(
                _mm256_cvtepi32_ps(_mm256_add_epi32(sums.0, offset)),
                _mm256_cvtepi32_ps(_mm256_add_epi32(sums.1, offset)),
            )
        }
    }

    #[inline(always)]
    unsafe fn store_block(self, values: [Pair; 2], block: *mut u8) {
        // SAFETY: the caller guarantees 64 bytes, eight for each plane of the four registers; AVX2 is proven.
        unsafe {
            // Selects the lowest bytes of four numbers.
            let order = _mm256_broadcastsi128_si256(_mm_setr_epi8(
                0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,
            ));
            let joined = _mm256_setr_epi32(0, 4, 1, 1, 1, 1, 1, 1);
            let registers = [values[0].0, values[0].1, values[1].0, values[1].1];
            for i in 0..4 {
                let v = registers[i];
                let v = _mm256_cvtps_epi32(v);
                let high = sra256(_mm256_add_epi32(v, _mm256_set1_epi32(1 << (SHIFT - 1))));
                let low = _mm256_sub_epi32(v, shl256(high));
                let high = _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(high, order), joined);
                let low = _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(low, order), joined);
                _mm_storel_epi64(block.add(8 * i).cast(), _mm256_castsi256_si128(high));
                let at = block.add(LOW_PLANE + 8 * i);
                _mm_storel_epi64(at.cast(), _mm256_castsi256_si128(low));
            }
        }
    }
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
        fn look_up(self, line: __m512i, table: &[u8; 16]) -> __m512i {
            // SAFETY: AVX-512 is proven; the table holds sixteen bytes.
            unsafe {
                let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
                _mm512_shuffle_epi8(table, line)
            }
        }
    };
}

impl IntDot for Avx512<false> {
    type Line = __m512i;
    type Sums = __m512i;

    const ROWS: usize = 8;

    avx512_lines!();

    #[inline(always)]
    fn zero_sums(self) -> __m512i {
        // SAFETY: AVX-512 is proven.
        unsafe { _mm512_setzero_si512() }
    }

    #[inline(always)]
    unsafe fn dot<const INDEX: usize>(
        self,
        sums: __m512i,
        line: __m512i,
        block: *const u8,
    ) -> __m512i {
        // SAFETY: the caller guarantees the block; AVX-512 is proven.
        unsafe {
            let even = _mm512_set1_epi32(quad(block, 2 * INDEX));
            let odd = _mm512_set1_epi32(quad(block, 2 * INDEX + 1));
            let low_bytes = _mm512_and_si512(line, _mm512_set1_epi16(255));
            let evens = _mm512_madd_epi16(low_bytes, even);
            let odds = _mm512_madd_epi16(_mm512_srli_epi16::<8>(line), odd);
            _mm512_add_epi32(_mm512_add_epi32(sums, evens), odds)
        }
    }

    #[inline(always)]
    fn sums_to_f32(self, sums: __m512i, offset: i32) -> __m512 {
        // SAFETY: AVX-512 is proven.
        unsafe { _mm512_cvtepi32_ps(_mm512_add_epi32(sums, _mm512_set1_epi32(offset))) }
    }

    #[inline(always)]
    unsafe fn store_block(self, values: [__m512; 2], block: *mut u8) {
        // SAFETY: the caller guarantees 64 bytes, 32 for each register; AVX-512 is proven.
        unsafe {
            // Reorders every four numbers: first and third, then second and fourth.
            let order = _mm512_broadcast_i32x4(_mm_setr_epi8(
                0, 1, 8, 9, 4, 5, 12, 13, -1, -1, -1, -1, -1, -1, -1, -1,
            ));
            let joined = _mm512_setr_epi64(0, 2, 4, 6, 1, 1, 1, 1);
            for i in 0..2 {
                let v = values[i];
                let pairs = _mm512_shuffle_epi8(_mm512_cvtps_epi32(v), order);
                let all = _mm512_permutexvar_epi64(joined, pairs);
                _mm256_storeu_si256(block.add(32 * i).cast(), _mm512_castsi512_si256(all));
            }
        }
    }
}

/// # Safety
/// A block must be readable at `block`.
#[target_feature(enable = "avx512f,avx512vnni")]
#[inline]
unsafe fn dot_planes<const INDEX: usize>(
    sums: Planes<__m512i>,
    line: __m512i,
    block: *const u8,
) -> Planes<__m512i> {
    let Planes(mut high, mut low) = sums;
    // SAFETY: as the caller guarantees. In assembly, because the compiler would broadcast into registers first, of
    // which there are too few.
    unsafe {
        std::arch::asm!(
            "vpdpbusd {high}, {line}, dword ptr [{block} + {first}]{{1to16}}",
            "vpdpbusd {low}, {line}, dword ptr [{block} + {second}]{{1to16}}",
            high = inout(zmm_reg) high,
            low = inout(zmm_reg) low,
            line = in(zmm_reg) line,
            block = in(reg) block,
            first = const 4 * INDEX,
            second = const LOW_PLANE + 4 * INDEX,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    Planes(high, low)
}

impl IntDot for Avx512<true> {
    type Line = __m512i;
    type Sums = Planes<__m512i>;

    const ROWS: usize = 8;

    avx512_lines!();

    #[inline(always)]
    fn zero_sums(self) -> Planes<__m512i> {
        // SAFETY: AVX-512 is proven.
        let zero = unsafe { _mm512_setzero_si512() };
        Planes(zero, zero)
    }

    #[inline(always)]
    unsafe fn dot<const INDEX: usize>(
        self,
        sums: Planes<__m512i>,
        line: __m512i,
        block: *const u8,
    ) -> Planes<__m512i> {
        // SAFETY: the caller guarantees the block; AVX512-VNNI is proven.
        unsafe { dot_planes::<INDEX>(sums, line, block) }
    }

    #[inline(always)]
    fn sums_to_f32(self, sums: Planes<__m512i>, offset: i32) -> __m512 {
        // SAFETY: AVX-512 is proven.
        unsafe {
            let sum = _mm512_add_epi32(_mm512_slli_epi32::<SHIFT>(sums.0), sums.1);
            _mm512_cvtepi32_ps(_mm512_add_epi32(sum, _mm512_set1_epi32(offset)))
        }
    }

    #[inline(always)]
    unsafe fn store_block(self, values: [__m512; 2], block: *mut u8) {
        // SAFETY: the caller guarantees 64 bytes, sixteen for each plane of the two registers; AVX-512 is proven.
        unsafe {
            for i in 0..2 {
                let v = values[i];
                let v = _mm512_cvtps_epi32(v);
                let high = _mm512_srai_epi32::<SHIFT>(_mm512_add_epi32(
                    v,
                    _mm512_set1_epi32(1 << (SHIFT - 1)),
                ));
                let low = _mm512_sub_epi32(v, _mm512_slli_epi32::<SHIFT>(high));
                _mm_storeu_si128(block.add(16 * i).cast(), _mm512_cvtepi32_epi8(high));
                _mm_storeu_si128(
                    block.add(LOW_PLANE + 16 * i).cast(),
                    _mm512_cvtepi32_epi8(low),
                );
            }
        }
    }
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

    /// Loads sums whose high and low parts are at two addresses.
    ///
    /// # Safety
    /// Sixteen numbers must be readable at both addresses.
    #[inline(always)]
    pub(crate) unsafe fn load_sums(self, high: *const i32, low: *const i32) -> Planes<__m512i> {
        // SAFETY: the caller guarantees sixteen numbers.
        unsafe { Planes(self.load_bytes(high.cast()), self.load_bytes(low.cast())) }
    }
}
