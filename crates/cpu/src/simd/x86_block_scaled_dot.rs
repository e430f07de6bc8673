//! Dot products for block-scaled activations on x86, with and without VNNI.
#![allow(
    clippy::needless_range_loop,
    reason = "iterators over registers are not inlined with the tier's features"
)]

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
        fn zero_ints(self) -> Halves {
            // SAFETY: AVX2 is proven.
            unsafe { Halves(_mm256_setzero_si256(), _mm256_setzero_si256()) }
        }

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

    const BLOCK_TILE: (usize, usize) = (1, 2);

    #[inline(always)]
    unsafe fn add_dots<const BITS: usize, const PANELS: usize, const ROWS: usize>(
        self,
        lines: [[Halves; 4]; PANELS],
        x: [*const u8; ROWS],
        mut sums: [[Halves; PANELS]; ROWS],
    ) -> [[Halves; PANELS]; ROWS] {
        // SAFETY: the caller guarantees sixteen bytes of each row; AVX2 is proven.
        unsafe {
            if BITS > 6 || ROWS != 2 {
                for row in 0..ROWS {
                    for panel in 0..PANELS {
                        let dot = match BITS {
                            8 => self.dot_signed(lines[panel], x[row]),
                            _ => self.dot_quants::<BITS>(lines[panel], x[row]),
                        };
                        sums[row][panel] = self.add_ints(sums[row][panel], dot);
                    }
                }
                return sums;
            }
            // The activations of both rows are in registers: a line is loaded once for both.
            let last = ROWS - 1;
            let (a, b) = (
                quads!(_mm256_set1_epi32, x[0]),
                quads!(_mm256_set1_epi32, x[last]),
            );
            let ones = _mm256_set1_epi16(1);
            for panel in 0..PANELS {
                macro_rules! half {
                    ($half:tt) => {{
                        let lines = [
                            lines[panel][0].$half,
                            lines[panel][1].$half,
                            lines[panel][2].$half,
                            lines[panel][3].$half,
                        ];
                        macro_rules! pair {
                            ($x:ident, $i:literal, $j:literal) => {
                                _mm256_add_epi16(
                                    _mm256_maddubs_epi16(lines[$i], $x[$i]),
                                    _mm256_maddubs_epi16(lines[$j], $x[$j]),
                                )
                            };
                        }
                        let (a_first, b_first) = (pair!(a, 0, 1), pair!(b, 0, 1));
                        let (a_last, b_last) = (pair!(a, 2, 3), pair!(b, 2, 3));
                        macro_rules! widen {
                            ($first:ident, $last:ident) => {
                                if BITS <= 5 {
                                    _mm256_madd_epi16(_mm256_add_epi16($first, $last), ones)
                                } else {
                                    _mm256_add_epi32(
                                        _mm256_madd_epi16($first, ones),
                                        _mm256_madd_epi16($last, ones),
                                    )
                                }
                            };
                        }
                        let to = &mut sums[0][panel];
                        to.$half = _mm256_add_epi32(to.$half, widen!(a_first, a_last));
                        let to = &mut sums[last][panel];
                        to.$half = _mm256_add_epi32(to.$half, widen!(b_first, b_last));
                    }};
                }
                half!(0);
                half!(1);
            }
        }
        sums
    }

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
    fn signed_start(self, _: i32) -> Halves {
        self.zero_ints()
    }

    #[inline(always)]
    unsafe fn dot_signed(self, lines: [Halves; 4], x: *const u8) -> Halves {
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
        unsafe { self.dot_signed(lines, x) }
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
    fn signed_start(self, offset: i32) -> Halves {
        // SAFETY: AVX2 is proven.
        unsafe { Halves(_mm256_set1_epi32(offset), _mm256_set1_epi32(offset)) }
    }

    #[inline(always)]
    unsafe fn dot_signed(self, lines: [Halves; 4], x: *const u8) -> Halves {
        // SAFETY: the caller guarantees sixteen bytes; AVX-VNNI is proven.
        unsafe {
            let x = quads!(_mm256_set1_epi32, x);
            let mut sums = self.zero_ints();
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
        fn zero_ints(self) -> __m512i {
            // SAFETY: AVX-512 is proven.
            unsafe { _mm512_setzero_si512() }
        }

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
    fn signed_start(self, _: i32) -> __m512i {
        self.zero_ints()
    }

    #[inline(always)]
    unsafe fn dot_signed(self, lines: [__m512i; 4], x: *const u8) -> __m512i {
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

/// Adds the products of four lines of two panels with sixteen bytes of four rows. Each four bytes are broadcast once, and one product
/// waits for none of the last seven. In assembly, because the compiler would broadcast for every product, or so early that
/// the registers do not suffice.
///
/// # Safety
/// Sixteen bytes must be readable at each of `x`.
#[target_feature(enable = "avx512f,avx512vnni")]
#[inline]
unsafe fn add_dots_of_tile(
    lines: [[__m512i; 4]; 2],
    x: [*const u8; 4],
    mut sums: [[__m512i; 2]; 4],
) -> [[__m512i; 2]; 4] {
    let (_a, _b): (__m512i, __m512i);
    // SAFETY: as the caller guarantees.
    unsafe {
        std::arch::asm!(
            "vpbroadcastd {a}, dword ptr [{x0} + 0]",
            "vpdpbusd {f0}, {v0}, {a}",
            "vpdpbusd {s0}, {w0}, {a}",
            "vpbroadcastd {b}, dword ptr [{x1} + 0]",
            "vpdpbusd {f1}, {v0}, {b}",
            "vpdpbusd {s1}, {w0}, {b}",
            "vpbroadcastd {a}, dword ptr [{x2} + 0]",
            "vpdpbusd {f2}, {v0}, {a}",
            "vpdpbusd {s2}, {w0}, {a}",
            "vpbroadcastd {b}, dword ptr [{x3} + 0]",
            "vpdpbusd {f3}, {v0}, {b}",
            "vpdpbusd {s3}, {w0}, {b}",
            "vpbroadcastd {a}, dword ptr [{x0} + 4]",
            "vpdpbusd {f0}, {v1}, {a}",
            "vpdpbusd {s0}, {w1}, {a}",
            "vpbroadcastd {b}, dword ptr [{x1} + 4]",
            "vpdpbusd {f1}, {v1}, {b}",
            "vpdpbusd {s1}, {w1}, {b}",
            "vpbroadcastd {a}, dword ptr [{x2} + 4]",
            "vpdpbusd {f2}, {v1}, {a}",
            "vpdpbusd {s2}, {w1}, {a}",
            "vpbroadcastd {b}, dword ptr [{x3} + 4]",
            "vpdpbusd {f3}, {v1}, {b}",
            "vpdpbusd {s3}, {w1}, {b}",
            "vpbroadcastd {a}, dword ptr [{x0} + 8]",
            "vpdpbusd {f0}, {v2}, {a}",
            "vpdpbusd {s0}, {w2}, {a}",
            "vpbroadcastd {b}, dword ptr [{x1} + 8]",
            "vpdpbusd {f1}, {v2}, {b}",
            "vpdpbusd {s1}, {w2}, {b}",
            "vpbroadcastd {a}, dword ptr [{x2} + 8]",
            "vpdpbusd {f2}, {v2}, {a}",
            "vpdpbusd {s2}, {w2}, {a}",
            "vpbroadcastd {b}, dword ptr [{x3} + 8]",
            "vpdpbusd {f3}, {v2}, {b}",
            "vpdpbusd {s3}, {w2}, {b}",
            "vpbroadcastd {a}, dword ptr [{x0} + 12]",
            "vpdpbusd {f0}, {v3}, {a}",
            "vpdpbusd {s0}, {w3}, {a}",
            "vpbroadcastd {b}, dword ptr [{x1} + 12]",
            "vpdpbusd {f1}, {v3}, {b}",
            "vpdpbusd {s1}, {w3}, {b}",
            "vpbroadcastd {a}, dword ptr [{x2} + 12]",
            "vpdpbusd {f2}, {v3}, {a}",
            "vpdpbusd {s2}, {w3}, {a}",
            "vpbroadcastd {b}, dword ptr [{x3} + 12]",
            "vpdpbusd {f3}, {v3}, {b}",
            "vpdpbusd {s3}, {w3}, {b}",
            f0 = inout(zmm_reg) sums[0][0],
            f1 = inout(zmm_reg) sums[1][0],
            f2 = inout(zmm_reg) sums[2][0],
            f3 = inout(zmm_reg) sums[3][0],
            s0 = inout(zmm_reg) sums[0][1],
            s1 = inout(zmm_reg) sums[1][1],
            s2 = inout(zmm_reg) sums[2][1],
            s3 = inout(zmm_reg) sums[3][1],
            v0 = in(zmm_reg) lines[0][0],
            v1 = in(zmm_reg) lines[0][1],
            v2 = in(zmm_reg) lines[0][2],
            v3 = in(zmm_reg) lines[0][3],
            w0 = in(zmm_reg) lines[1][0],
            w1 = in(zmm_reg) lines[1][1],
            w2 = in(zmm_reg) lines[1][2],
            w3 = in(zmm_reg) lines[1][3],
            x0 = in(reg) x[0],
            x1 = in(reg) x[1],
            x2 = in(reg) x[2],
            x3 = in(reg) x[3],
            a = out(zmm_reg) _a,
            b = out(zmm_reg) _b,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    sums
}

impl BlockScaledDot for Avx512<true> {
    avx512_block_scaled!();

    const BLOCK_TILE: (usize, usize) = (2, 4);

    #[inline(always)]
    unsafe fn add_dots<const BITS: usize, const PANELS: usize, const ROWS: usize>(
        self,
        lines: [[__m512i; 4]; PANELS],
        x: [*const u8; ROWS],
        mut sums: [[__m512i; PANELS]; ROWS],
    ) -> [[__m512i; PANELS]; ROWS] {
        // SAFETY: the caller guarantees sixteen bytes of each row; VNNI is proven.
        unsafe {
            if PANELS == 2 && ROWS == 4 {
                let lines = [lines[0], lines[PANELS - 1]];
                let mut tile = [[self.zero_ints(); 2]; 4];
                let mut rows = [x[0]; 4];
                for row in 0..4 {
                    tile[row] = [sums[row][0], sums[row][PANELS - 1]];
                    rows[row] = x[row];
                }
                let tile = add_dots_of_tile(lines, rows, tile);
                for row in 0..ROWS {
                    for panel in 0..PANELS {
                        sums[row][panel] = tile[row][panel];
                    }
                }
                return sums;
            }
            for line in 0..4 {
                for row in 0..ROWS {
                    let x = _mm512_set1_epi32(quad(x[row], line));
                    for panel in 0..PANELS {
                        let sum = &mut sums[row][panel];
                        *sum = _mm512_dpbusd_epi32(*sum, lines[panel][line], x);
                    }
                }
            }
        }
        sums
    }

    #[inline(always)]
    unsafe fn dot_quants<const BITS: usize>(self, lines: [__m512i; 4], x: *const u8) -> __m512i {
        // SAFETY: as the caller guarantees.
        unsafe { self.dot_signed(lines, x) }
    }

    #[inline(always)]
    fn signed_line(self, line: __m512i) -> __m512i {
        // SAFETY: AVX-512 is proven.
        unsafe { _mm512_xor_si512(line, _mm512_set1_epi8(-128)) }
    }

    #[inline(always)]
    fn signed_start(self, offset: i32) -> __m512i {
        // SAFETY: AVX-512 is proven.
        unsafe { _mm512_set1_epi32(offset) }
    }

    #[inline(always)]
    unsafe fn dot_signed(self, lines: [__m512i; 4], x: *const u8) -> __m512i {
        // SAFETY: as the caller guarantees.
        let [[sum]] = unsafe { self.add_dots::<8, 1, 1>([lines], [x], [[self.zero_ints()]]) };
        sum
    }
}
