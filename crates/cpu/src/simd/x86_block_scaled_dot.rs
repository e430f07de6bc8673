//! Dot products for block-scaled activations on x86, with and without VNNI.

use super::x86::Pair;
use super::x86_byte_lines::{Halves, quad};
use super::{Avx2, Avx512, BlockScaledDot};
use std::arch::x86_64::*;

/// The four quads of sixteen bytes, each in all lanes.
macro_rules! quads {
    ($splat:ident, $x:expr) => {{
        let x: *const u8 = $x;
        [
            $splat(quad(x, 0)),
            $splat(quad(x, 1)),
            $splat(quad(x, 2)),
            $splat(quad(x, 3)),
        ]
    }};
}

/// Sums the products of bytes, of which the first are unsigned, in 32 bits. Four sums of two products fit 16 bits if the unsigned bytes
/// have at most 5 bits, two of them if they have 6.
macro_rules! dot_pairs {
    ($bits:expr, [$l0:expr, $l1:expr, $l2:expr, $l3:expr], $x:expr, $maddubs:ident, $add16:ident, $madd:ident, $add32:ident, $ones:expr) => {{
        let first = $add16($maddubs($l0, $x[0]), $maddubs($l1, $x[1]));
        let last = $add16($maddubs($l2, $x[2]), $maddubs($l3, $x[3]));
        if $bits <= 5 {
            $madd($add16(first, last), $ones)
        } else {
            $add32($madd(first, $ones), $madd(last, $ones))
        }
    }};
}

/// Sums the products of signed bytes with the sign of the first moved to the second. Two products of magnitudes up to 128 and 127 fit 16
/// bits.
///
/// # Safety
/// The CPU must have AVX2.
#[inline(always)]
unsafe fn add_signed256(sum: __m256i, line: __m256i, x: __m256i) -> __m256i {
    // SAFETY: as the caller guarantees.
    unsafe {
        let products = _mm256_maddubs_epi16(_mm256_abs_epi8(line), _mm256_sign_epi8(x, line));
        _mm256_add_epi32(sum, _mm256_madd_epi16(products, _mm256_set1_epi16(1)))
    }
}

/// As [`add_signed256`].
///
/// # Safety
/// The CPU must have AVX-512.
#[inline(always)]
unsafe fn add_signed512(sum: __m512i, line: __m512i, x: __m512i) -> __m512i {
    // SAFETY: as the caller guarantees.
    unsafe {
        let negative = _mm512_movepi8_mask(line);
        let x = _mm512_mask_sub_epi8(x, negative, _mm512_setzero_si512(), x);
        let products = _mm512_maddubs_epi16(_mm512_abs_epi8(line), x);
        _mm512_add_epi32(sum, _mm512_madd_epi16(products, _mm512_set1_epi16(1)))
    }
}

/// Sixteen-bit halves of pairs as f32.
///
/// # Safety
/// The CPU must have AVX2.
#[inline(always)]
unsafe fn halves256(pairs: __m256i) -> [__m256; 2] {
    // SAFETY: as the caller guarantees.
    unsafe {
        let low = _mm256_srai_epi32::<16>(_mm256_slli_epi32::<16>(pairs));
        let high = _mm256_srai_epi32::<16>(pairs);
        [_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high)]
    }
}

/// Integral numbers as 16-bit ones.
///
/// # Safety
/// The CPU must have AVX2.
#[inline(always)]
unsafe fn words256(values: __m256) -> __m128i {
    // SAFETY: as the caller guarantees.
    unsafe {
        let v = _mm256_cvtps_epi32(values);
        _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v))
    }
}

macro_rules! avx2_block_scaled {
    () => {
        type Ints = Halves;

        #[inline(always)]
        fn add_ints(self, a: Halves, b: Halves) -> Halves {
            // SAFETY: AVX2 is proven.
            unsafe { Halves(_mm256_add_epi32(a.0, b.0), _mm256_add_epi32(a.1, b.1)) }
        }

        #[inline(always)]
        fn ints_to_f32(self, ints: Halves) -> Pair {
            // SAFETY: AVX2 is proven.
            unsafe { Pair(_mm256_cvtepi32_ps(ints.0), _mm256_cvtepi32_ps(ints.1)) }
        }

        #[inline(always)]
        fn pairs_to_f32(self, pairs: Halves) -> [Pair; 2] {
            // SAFETY: AVX2 is proven.
            unsafe {
                let (first, last) = (halves256(pairs.0), halves256(pairs.1));
                [Pair(first[0], last[0]), Pair(first[1], last[1])]
            }
        }

        #[inline(always)]
        unsafe fn store_i8(self, values: Pair, to: *mut u8) {
            // SAFETY: the caller guarantees sixteen bytes; AVX2 is proven.
            unsafe {
                let bytes = _mm_packs_epi16(words256(values.0), words256(values.1));
                _mm_storeu_si128(to.cast(), bytes);
            }
        }
    };
}

impl BlockScaledDot for Avx2<false> {
    avx2_block_scaled!();

    #[inline(always)]
    unsafe fn dot_quants<const BITS: usize>(self, lines: [Halves; 4], x: *const u8) -> Halves {
        // SAFETY: the caller guarantees sixteen bytes; AVX2 is proven.
        unsafe {
            let x = quads!(_mm256_set1_epi32, x);
            let ones = _mm256_set1_epi16(1);
            macro_rules! half {
                ($half:tt) => {
                    dot_pairs!(
                        BITS,
                        [
                            lines[0].$half,
                            lines[1].$half,
                            lines[2].$half,
                            lines[3].$half
                        ],
                        x,
                        _mm256_maddubs_epi16,
                        _mm256_add_epi16,
                        _mm256_madd_epi16,
                        _mm256_add_epi32,
                        ones
                    )
                };
            }
            Halves(half!(0), half!(1))
        }
    }

    #[inline(always)]
    fn signed_line(self, line: Halves) -> Halves {
        line
    }

    #[inline(always)]
    unsafe fn dot_signed(self, lines: [Halves; 4], x: *const u8, _: i32) -> Halves {
        // SAFETY: the caller guarantees sixteen bytes; AVX2 is proven.
        unsafe {
            let x = quads!(_mm256_set1_epi32, x);
            let zero = _mm256_setzero_si256();
            let mut sums = Halves(zero, zero);
            for i in 0..4 {
                sums.0 = add_signed256(sums.0, lines[i].0, x[i]);
                sums.1 = add_signed256(sums.1, lines[i].1, x[i]);
            }
            sums
        }
    }
}

impl BlockScaledDot for Avx2<true> {
    avx2_block_scaled!();

    #[inline(always)]
    unsafe fn dot_quants<const BITS: usize>(self, lines: [Halves; 4], x: *const u8) -> Halves {
        // SAFETY: as the caller guarantees.
        unsafe { self.dot_signed(lines, x, 0) }
    }

    #[inline(always)]
    fn signed_line(self, line: Halves) -> Halves {
        // SAFETY: AVX2 is proven.
        unsafe {
            let flip = _mm256_set1_epi8(-128);
            Halves(
                _mm256_xor_si256(line.0, flip),
                _mm256_xor_si256(line.1, flip),
            )
        }
    }

    #[inline(always)]
    unsafe fn dot_signed(self, lines: [Halves; 4], x: *const u8, offset: i32) -> Halves {
        // SAFETY: the caller guarantees sixteen bytes; AVX-VNNI is proven.
        unsafe {
            let x = quads!(_mm256_set1_epi32, x);
            let start = _mm256_set1_epi32(offset);
            let mut sums = Halves(start, start);
            for i in 0..4 {
                sums.0 = _mm256_dpbusd_avx_epi32(sums.0, lines[i].0, x[i]);
                sums.1 = _mm256_dpbusd_avx_epi32(sums.1, lines[i].1, x[i]);
            }
            sums
        }
    }
}

macro_rules! avx512_block_scaled {
    () => {
        type Ints = __m512i;

        #[inline(always)]
        fn add_ints(self, a: __m512i, b: __m512i) -> __m512i {
            // SAFETY: AVX-512 is proven.
            unsafe { _mm512_add_epi32(a, b) }
        }

        #[inline(always)]
        fn ints_to_f32(self, ints: __m512i) -> __m512 {
            // SAFETY: AVX-512 is proven.
            unsafe { _mm512_cvtepi32_ps(ints) }
        }

        #[inline(always)]
        fn pairs_to_f32(self, pairs: __m512i) -> [__m512; 2] {
            // SAFETY: AVX-512 is proven.
            unsafe {
                let low = _mm512_srai_epi32::<16>(_mm512_slli_epi32::<16>(pairs));
                let high = _mm512_srai_epi32::<16>(pairs);
                [_mm512_cvtepi32_ps(low), _mm512_cvtepi32_ps(high)]
            }
        }

        #[inline(always)]
        unsafe fn store_i8(self, values: __m512, to: *mut u8) {
            // SAFETY: the caller guarantees sixteen bytes; AVX-512 is proven.
            unsafe {
                let bytes = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(values));
                _mm_storeu_si128(to.cast(), bytes);
            }
        }
    };
}

impl BlockScaledDot for Avx512<false> {
    avx512_block_scaled!();

    #[inline(always)]
    unsafe fn dot_quants<const BITS: usize>(self, lines: [__m512i; 4], x: *const u8) -> __m512i {
        // SAFETY: the caller guarantees sixteen bytes; AVX-512 is proven.
        unsafe {
            let x = quads!(_mm512_set1_epi32, x);
            let ones = _mm512_set1_epi16(1);
            dot_pairs!(
                BITS,
                [lines[0], lines[1], lines[2], lines[3]],
                x,
                _mm512_maddubs_epi16,
                _mm512_add_epi16,
                _mm512_madd_epi16,
                _mm512_add_epi32,
                ones
            )
        }
    }

    #[inline(always)]
    fn signed_line(self, line: __m512i) -> __m512i {
        line
    }

    #[inline(always)]
    unsafe fn dot_signed(self, lines: [__m512i; 4], x: *const u8, _: i32) -> __m512i {
        // SAFETY: the caller guarantees sixteen bytes; AVX-512 is proven.
        unsafe {
            let x = quads!(_mm512_set1_epi32, x);
            let mut sum = _mm512_setzero_si512();
            for i in 0..4 {
                sum = add_signed512(sum, lines[i], x[i]);
            }
            sum
        }
    }
}

/// Adds the products of four lines of two panels with the same sixteen bytes: each four of them are broadcast once. In assembly, because
/// the compiler would load them once for each product.
///
/// # Safety
/// Sixteen bytes must be readable at `x`.
#[target_feature(enable = "avx512f,avx512vnni")]
#[inline]
unsafe fn dot_two(lines: [[__m512i; 4]; 2], x: *const u8, start: __m512i) -> [__m512i; 2] {
    let (mut first, mut second) = (start, start);
    let (_a, _b): (__m512i, __m512i);
    // SAFETY: as the caller guarantees.
    unsafe {
        std::arch::asm!(
            "vpbroadcastd {a}, dword ptr [{x}]",
            "vpbroadcastd {b}, dword ptr [{x} + 4]",
            "vpdpbusd {first}, {f0}, {a}",
            "vpdpbusd {second}, {s0}, {a}",
            "vpbroadcastd {a}, dword ptr [{x} + 8]",
            "vpdpbusd {first}, {f1}, {b}",
            "vpdpbusd {second}, {s1}, {b}",
            "vpbroadcastd {b}, dword ptr [{x} + 12]",
            "vpdpbusd {first}, {f2}, {a}",
            "vpdpbusd {second}, {s2}, {a}",
            "vpdpbusd {first}, {f3}, {b}",
            "vpdpbusd {second}, {s3}, {b}",
            first = inout(zmm_reg) first,
            second = inout(zmm_reg) second,
            f0 = in(zmm_reg) lines[0][0],
            f1 = in(zmm_reg) lines[0][1],
            f2 = in(zmm_reg) lines[0][2],
            f3 = in(zmm_reg) lines[0][3],
            s0 = in(zmm_reg) lines[1][0],
            s1 = in(zmm_reg) lines[1][1],
            s2 = in(zmm_reg) lines[1][2],
            s3 = in(zmm_reg) lines[1][3],
            a = out(zmm_reg) _a,
            b = out(zmm_reg) _b,
            x = in(reg) x,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    [first, second]
}

impl BlockScaledDot for Avx512<true> {
    avx512_block_scaled!();

    #[inline(always)]
    unsafe fn dot_quants_of_two<const BITS: usize>(
        self,
        lines: [[__m512i; 4]; 2],
        x: *const u8,
    ) -> [__m512i; 2] {
        // SAFETY: the caller guarantees sixteen bytes; VNNI is proven.
        unsafe { dot_two(lines, x, _mm512_setzero_si512()) }
    }

    #[inline(always)]
    unsafe fn dot_signed_of_two(
        self,
        lines: [[__m512i; 4]; 2],
        x: *const u8,
        offset: i32,
    ) -> [__m512i; 2] {
        // SAFETY: the caller guarantees sixteen bytes; VNNI is proven.
        unsafe { dot_two(lines, x, _mm512_set1_epi32(offset)) }
    }

    #[inline(always)]
    unsafe fn dot_quants<const BITS: usize>(self, lines: [__m512i; 4], x: *const u8) -> __m512i {
        // SAFETY: as the caller guarantees.
        unsafe { self.dot_signed(lines, x, 0) }
    }

    #[inline(always)]
    fn signed_line(self, line: __m512i) -> __m512i {
        // SAFETY: AVX-512 is proven.
        unsafe { _mm512_xor_si512(line, _mm512_set1_epi8(-128)) }
    }

    #[inline(always)]
    unsafe fn dot_signed(self, lines: [__m512i; 4], x: *const u8, offset: i32) -> __m512i {
        // SAFETY: the caller guarantees sixteen bytes; VNNI is proven.
        unsafe {
            let x = quads!(_mm512_set1_epi32, x);
            let mut sums = _mm512_set1_epi32(offset);
            for i in 0..4 {
                sums = _mm512_dpbusd_epi32(sums, lines[i], x[i]);
            }
            sums
        }
    }
}
