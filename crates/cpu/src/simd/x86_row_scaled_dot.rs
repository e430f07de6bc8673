//! Dot products for row-scaled weights on x86, with and without VNNI.

use super::x86::Pair;
use super::x86_byte_lines::{Halves, Planes, quad};
use super::x86_row_scaled_line::{avx2_line_operations, avx512_line_operations};
use super::{Avx2, Avx512, RowScaledDot};
use std::arch::x86_64::*;

/// Byte offset of a block's low plane.
const LOW_PLANE: usize = 32;

/// # Safety
/// The CPU must have AVX2.
#[inline(always)]
unsafe fn totals_to_f32_256(high: __m256i, low: __m256i) -> __m256 {
    // SAFETY: as the caller guarantees.
    unsafe {
        let high = _mm256_mul_ps(_mm256_cvtepi32_ps(high), _mm256_set1_ps(128.0));
        _mm256_add_ps(high, _mm256_cvtepi32_ps(low))
    }
}

/// The sum of sixteen signed bytes.
///
/// # Safety
/// The CPU must have AVX2, and sixteen bytes be readable at `bytes`.
#[inline(always)]
unsafe fn sum_of_bytes128(bytes: *const u8) -> i32 {
    // SAFETY: as the caller guarantees.
    unsafe {
        // Flipping the sign bit adds 128 to each byte and makes them unsigned.
        let bytes = _mm_xor_si128(_mm_loadu_si128(bytes.cast()), _mm_set1_epi8(-128));
        let halves = _mm_sad_epu8(bytes, _mm_setzero_si128());
        let sum = _mm_add_epi32(halves, _mm_unpackhi_epi64(halves, halves));
        _mm_cvtsi128_si32(sum) - 16 * 128
    }
}

/// Combines sums in the low halves of 32 bits with another number in the high halves.
///
/// # Safety
/// The CPU must have AVX2, and the number be readable.
#[inline(always)]
unsafe fn combine256(sums: __m256i, other: *const i32) -> __m256i {
    // SAFETY: as the caller guarantees.
    unsafe { _mm256_blend_epi16::<0b1010_1010>(sums, _mm256_set1_epi32(*other)) }
}

/// Adds products of bytes, summed in pairs.
///
/// # Safety
/// The CPU must have AVX2.
#[inline(always)]
unsafe fn add_pairs256(sums: Halves, line: Halves, x: __m256i) -> Halves {
    // SAFETY: as the caller guarantees.
    unsafe {
        Halves(
            _mm256_add_epi16(sums.0, _mm256_maddubs_epi16(line.0, x)),
            _mm256_add_epi16(sums.1, _mm256_maddubs_epi16(line.1, x)),
        )
    }
}

/// Adds pairwise sums times their factors.
///
/// # Safety
/// The CPU must have AVX2.
#[inline(always)]
unsafe fn add_scaled_pairs256<const CENTRED: bool>(
    total: __m256i,
    pairs: __m256i,
    factors: __m256i,
    x: *const i32,
) -> __m256i {
    // SAFETY: as the caller guarantees.
    unsafe {
        let mut sum = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
        if CENTRED {
            sum = _mm256_add_epi32(sum, _mm256_set1_epi32(*x.add(2)));
        }
        _mm256_add_epi32(total, _mm256_madd_epi16(combine256(sum, x), factors))
    }
}

/// Adds the products of pairs of two-byte integers.
///
/// # Safety
/// The CPU must have AVX2.
#[inline(always)]
unsafe fn add_word_products256(sums: __m256i, weights: __m256i, x: __m256i) -> __m256i {
    // SAFETY: as the caller guarantees.
    unsafe { _mm256_add_epi32(sums, _mm256_madd_epi16(weights, x)) }
}

/// Of every four numbers, the first and third as two bytes each, then the second and fourth, in the lower half of 128 bits.
///
/// # Safety
/// The CPU must have AVX2.
#[inline(always)]
unsafe fn pairs256(v: __m256i) -> __m256i {
    // SAFETY: as the caller guarantees.
    unsafe {
        let later = _mm256_slli_epi32::<16>(_mm256_shuffle_epi32::<0b11_10_11_10>(v));
        _mm256_blend_epi16::<0b1010_1010>(v, later)
    }
}

/// Adds sums times their factors.
///
/// # Safety
/// The CPU must have AVX-VNNI.
#[inline(always)]
unsafe fn add_scaled256(total: __m256i, sum: __m256i, factors: __m256i, x: *const i32) -> __m256i {
    // SAFETY: as the caller guarantees.
    unsafe { _mm256_dpwssd_avx_epi32(total, combine256(sum, x), factors) }
}

/// The methods that are the same with and without VNNI, except for the width of a group's sums.
macro_rules! avx2_row_scaled {
    ($add:ident, $dot_words:ident) => {
        avx2_line_operations!();

        type Planes = Planes<Halves>;
        type Totals = Planes<Halves>;

        #[inline(always)]
        fn zero_planes(self) -> Planes<Halves> {
            // SAFETY: AVX2 is proven.
            let zero = unsafe { _mm256_setzero_si256() };
            Planes(Halves(zero, zero), Halves(zero, zero))
        }

        #[inline(always)]
        fn add_planes(self, a: Planes<Halves>, b: Planes<Halves>) -> Planes<Halves> {
            // SAFETY: AVX2 is proven. Sums of a group fit, however wide they are.
            unsafe {
                Planes(
                    Halves($add(a.0.0, b.0.0), $add(a.0.1, b.0.1)),
                    Halves($add(a.1.0, b.1.0), $add(a.1.1, b.1.1)),
                )
            }
        }

        #[inline(always)]
        fn zero_totals(self) -> Planes<Halves> {
            self.zero_planes()
        }

        #[inline(always)]
        fn add_totals(self, a: Planes<Halves>, b: Planes<Halves>) -> Planes<Halves> {
            // SAFETY: AVX2 is proven.
            let add = |a: Halves, b| a.zip(b, |a, b| unsafe { _mm256_add_epi32(a, b) });
            Planes(add(a.0, b.0), add(a.1, b.1))
        }

        #[inline(always)]
        unsafe fn dot_words(
            self,
            Planes(high, low): Planes<Halves>,
            weights: Halves,
            pairs: *const u8,
        ) -> Planes<Halves> {
            // SAFETY: the caller guarantees both pairs; the tier's instruction is proven.
            unsafe {
                let x_high = _mm256_set1_epi32(quad(pairs, 0));
                let x_low = _mm256_set1_epi32(quad(pairs, 1));
                Planes(
                    high.zip(weights, |sums, weights| $dot_words(sums, weights, x_high)),
                    low.zip(weights, |sums, weights| $dot_words(sums, weights, x_low)),
                )
            }
        }

        #[inline(always)]
        unsafe fn store_word_pairs(self, values: Pair, to: *mut u8) {
            // SAFETY: the caller guarantees 64 bytes; AVX2 is proven.
            unsafe {
                let registers = [values.0, values.1];
                for i in 0..2 {
                    let v = _mm256_cvtps_epi32(registers[i]);
                    let top = _mm256_srai_epi32::<7>(_mm256_add_epi32(v, _mm256_set1_epi32(64)));
                    let rest = _mm256_sub_epi32(v, _mm256_slli_epi32::<7>(top));
                    let words = _mm256_unpacklo_epi32(pairs256(top), pairs256(rest));
                    _mm256_storeu_si256(to.add(32 * i).cast(), words);
                }
            }
        }

        #[inline(always)]
        fn totals_to_f32(self, Planes(high, low): Planes<Halves>) -> Pair {
            // SAFETY: AVX2 is proven.
            unsafe {
                Pair(
                    totals_to_f32_256(high.0, low.0),
                    totals_to_f32_256(high.1, low.1),
                )
            }
        }

        #[inline(always)]
        unsafe fn sum_of_bytes(self, bytes: *const u8) -> i32 {
            // SAFETY: the caller guarantees the bytes; AVX2 is proven.
            unsafe { sum_of_bytes128(bytes) }
        }

        #[inline(always)]
        unsafe fn gather_line(self, from: *const u8, stride: usize, to: *mut u8) {
            // SAFETY: the caller guarantees both sides, and that distances fit; AVX2 is proven.
            unsafe {
                let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
                let at = _mm256_mullo_epi32(lanes, _mm256_set1_epi32(stride as i32));
                for half in 0..2 {
                    let from = from.add(8 * half * stride);
                    let line = _mm256_i32gather_epi32::<1>(from.cast(), at);
                    _mm256_storeu_si256(to.add(32 * half).cast(), line);
                }
            }
        }

        #[inline(always)]
        unsafe fn store_planes(self, values: Pair, high: *mut u8, low: *mut u8) {
            // SAFETY: the caller guarantees sixteen bytes on both sides; AVX2 is proven.
            unsafe {
                // Selects the lowest bytes of four numbers.
                let order = _mm256_broadcastsi128_si256(_mm_setr_epi8(
                    0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,
                ));
                let joined = _mm256_setr_epi32(0, 4, 1, 1, 1, 1, 1, 1);
                let registers = [values.0, values.1];
                for i in 0..2 {
                    let v = _mm256_cvtps_epi32(registers[i]);
                    let top = _mm256_srai_epi32::<7>(_mm256_add_epi32(v, _mm256_set1_epi32(64)));
                    let rest = _mm256_sub_epi32(v, _mm256_slli_epi32::<7>(top));
                    for (v, to) in [(top, high), (rest, low)] {
                        let bytes =
                            _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(v, order), joined);
                        _mm_storel_epi64(to.add(8 * i).cast(), _mm256_castsi256_si128(bytes));
                    }
                }
            }
        }
    };
}

impl RowScaledDot for Avx2<false> {
    avx2_row_scaled!(_mm256_add_epi16, add_word_products256);

    #[inline(always)]
    unsafe fn begin_group<const CENTRED: bool>(self, _: *const i32) -> Planes<Halves> {
        self.zero_planes()
    }

    #[inline(always)]
    unsafe fn dot_planes<const INDEX: usize>(
        self,
        Planes(high, low): Planes<Halves>,
        line: Halves,
        block: *const u8,
    ) -> Planes<Halves> {
        // SAFETY: the caller guarantees the block; AVX2 is proven. A group's pairs fit sixteen bits.
        unsafe {
            let x_high = _mm256_set1_epi32(quad(block, INDEX));
            let x_low = _mm256_set1_epi32(quad(block.add(LOW_PLANE), INDEX));
            Planes(
                add_pairs256(high, line, x_high),
                add_pairs256(low, line, x_low),
            )
        }
    }

    #[inline(always)]
    unsafe fn add_scaled<const CENTRED: bool>(
        self,
        Planes(high, low): Planes<Halves>,
        sums: Planes<Halves>,
        factors: Halves,
        activations: *const i32,
    ) -> Planes<Halves> {
        // SAFETY: the caller guarantees the factors; AVX2 is proven.
        unsafe {
            let [x_high, x_low] = [activations, activations.add(1)];
            Planes(
                Halves(
                    add_scaled_pairs256::<CENTRED>(high.0, sums.0.0, factors.0, x_high),
                    add_scaled_pairs256::<CENTRED>(high.1, sums.0.1, factors.1, x_high),
                ),
                Halves(
                    add_scaled_pairs256::<CENTRED>(low.0, sums.1.0, factors.0, x_low),
                    add_scaled_pairs256::<CENTRED>(low.1, sums.1.1, factors.1, x_low),
                ),
            )
        }
    }
}

impl RowScaledDot for Avx2<true> {
    avx2_row_scaled!(_mm256_add_epi32, _mm256_dpwssd_avx_epi32);

    #[inline(always)]
    unsafe fn begin_group<const CENTRED: bool>(self, activations: *const i32) -> Planes<Halves> {
        if !CENTRED {
            return self.zero_planes();
        }
        // SAFETY: the caller guarantees four numbers; AVX2 is proven.
        unsafe {
            let high = _mm256_set1_epi32(*activations.add(2));
            let low = _mm256_set1_epi32(*activations.add(3));
            Planes(Halves(high, high), Halves(low, low))
        }
    }

    #[inline(always)]
    unsafe fn dot_planes<const INDEX: usize>(
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
    unsafe fn add_scaled<const CENTRED: bool>(
        self,
        Planes(high, low): Planes<Halves>,
        sums: Planes<Halves>,
        factors: Halves,
        activations: *const i32,
    ) -> Planes<Halves> {
        // SAFETY: the caller guarantees the factors; AVX-VNNI is proven.
        unsafe {
            let [x_high, x_low] = [activations, activations.add(1)];
            Planes(
                Halves(
                    add_scaled256(high.0, sums.0.0, factors.0, x_high),
                    add_scaled256(high.1, sums.0.1, factors.1, x_high),
                ),
                Halves(
                    add_scaled256(low.0, sums.1.0, factors.0, x_low),
                    add_scaled256(low.1, sums.1.1, factors.1, x_low),
                ),
            )
        }
    }
}

/// Combines sums in the low halves of 32 bits with a number in the high halves, whose low half is zero.
///
/// # Safety
/// The CPU must have AVX-512, and the number be readable.
#[inline(always)]
unsafe fn combine512(sums: __m512i, other: *const i32) -> __m512i {
    // (sums & mask) | other
    const EITHER: i32 = 0b1110_1010;
    // SAFETY: as the caller guarantees.
    unsafe {
        let mask = _mm512_set1_epi32(0xffff);
        _mm512_ternarylogic_epi32::<EITHER>(sums, mask, _mm512_set1_epi32(*other))
    }
}

/// As [`pairs256`].
///
/// # Safety
/// The CPU must have AVX-512.
#[inline(always)]
unsafe fn pairs512(v: __m512i) -> __m512i {
    // SAFETY: as the caller guarantees.
    unsafe {
        let later = _mm512_slli_epi32::<16>(_mm512_shuffle_epi32::<0b11_10_11_10>(v));
        _mm512_mask_blend_epi16(ODD, v, later)
    }
}

/// As `avx2_row_scaled!`, for AVX-512.
macro_rules! avx512_row_scaled {
    ($add:ident) => {
        avx512_line_operations!();

        type Planes = Planes<__m512i>;
        type Totals = Planes<__m512i>;

        #[inline(always)]
        fn zero_planes(self) -> Planes<__m512i> {
            // SAFETY: AVX-512 is proven.
            let zero = unsafe { _mm512_setzero_si512() };
            Planes(zero, zero)
        }

        #[inline(always)]
        fn add_planes(self, a: Planes<__m512i>, b: Planes<__m512i>) -> Planes<__m512i> {
            // SAFETY: AVX-512 is proven. Sums of a group fit, however wide they are.
            unsafe { Planes($add(a.0, b.0), $add(a.1, b.1)) }
        }

        #[inline(always)]
        fn zero_totals(self) -> Planes<__m512i> {
            self.zero_planes()
        }

        #[inline(always)]
        fn add_totals(self, a: Planes<__m512i>, b: Planes<__m512i>) -> Planes<__m512i> {
            // SAFETY: AVX-512 is proven.
            unsafe { Planes(_mm512_add_epi32(a.0, b.0), _mm512_add_epi32(a.1, b.1)) }
        }

        #[inline(always)]
        unsafe fn store_word_pairs(self, values: __m512, to: *mut u8) {
            // SAFETY: the caller guarantees 64 bytes; AVX-512 is proven.
            unsafe {
                let v = _mm512_cvtps_epi32(values);
                let top = _mm512_srai_epi32::<7>(_mm512_add_epi32(v, _mm512_set1_epi32(64)));
                let rest = _mm512_sub_epi32(v, _mm512_slli_epi32::<7>(top));
                let words = _mm512_unpacklo_epi32(pairs512(top), pairs512(rest));
                _mm512_storeu_si512(to.cast(), words);
            }
        }

        #[inline(always)]
        fn totals_to_f32(self, Planes(high, low): Planes<__m512i>) -> __m512 {
            // SAFETY: AVX-512 is proven.
            unsafe {
                let high = _mm512_mul_ps(_mm512_cvtepi32_ps(high), _mm512_set1_ps(128.0));
                _mm512_add_ps(high, _mm512_cvtepi32_ps(low))
            }
        }

        #[inline(always)]
        unsafe fn sum_of_bytes(self, bytes: *const u8) -> i32 {
            // SAFETY: the caller guarantees the bytes; AVX2 is proven.
            unsafe { sum_of_bytes128(bytes) }
        }

        #[inline(always)]
        unsafe fn gather_line(self, from: *const u8, stride: usize, to: *mut u8) {
            // SAFETY: the caller guarantees both sides, and that distances fit; AVX-512 is proven.
            unsafe {
                let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
                let at = _mm512_mullo_epi32(lanes, _mm512_set1_epi32(stride as i32));
                let line = _mm512_i32gather_epi32::<1>(at, from.cast());
                _mm512_storeu_si512(to.cast(), line);
            }
        }

        #[inline(always)]
        unsafe fn store_planes(self, values: __m512, high: *mut u8, low: *mut u8) {
            // SAFETY: the caller guarantees sixteen bytes on both sides; AVX-512 is proven.
            unsafe {
                let v = _mm512_cvtps_epi32(values);
                let top = _mm512_srai_epi32::<7>(_mm512_add_epi32(v, _mm512_set1_epi32(64)));
                let rest = _mm512_sub_epi32(v, _mm512_slli_epi32::<7>(top));
                _mm_storeu_si128(high.cast(), _mm512_cvtepi32_epi8(top));
                _mm_storeu_si128(low.cast(), _mm512_cvtepi32_epi8(rest));
            }
        }
    };
}

impl RowScaledDot for Avx512<false> {
    avx512_row_scaled!(_mm512_add_epi16);

    #[inline(always)]
    unsafe fn dot_words(
        self,
        Planes(high, low): Planes<__m512i>,
        weights: __m512i,
        pairs: *const u8,
    ) -> Planes<__m512i> {
        // SAFETY: the caller guarantees both pairs; AVX-512 is proven.
        unsafe {
            let x_high = _mm512_set1_epi32(quad(pairs, 0));
            let x_low = _mm512_set1_epi32(quad(pairs, 1));
            Planes(
                _mm512_add_epi32(high, _mm512_madd_epi16(weights, x_high)),
                _mm512_add_epi32(low, _mm512_madd_epi16(weights, x_low)),
            )
        }
    }

    #[inline(always)]
    unsafe fn begin_group<const CENTRED: bool>(self, _: *const i32) -> Planes<__m512i> {
        self.zero_planes()
    }

    #[inline(always)]
    unsafe fn dot_planes<const INDEX: usize>(
        self,
        Planes(high, low): Planes<__m512i>,
        line: __m512i,
        block: *const u8,
    ) -> Planes<__m512i> {
        // SAFETY: the caller guarantees the block; AVX-512 is proven. A group's pairs fit sixteen bits.
        unsafe {
            let x_high = _mm512_set1_epi32(quad(block, INDEX));
            let x_low = _mm512_set1_epi32(quad(block.add(LOW_PLANE), INDEX));
            Planes(
                _mm512_add_epi16(high, _mm512_maddubs_epi16(line, x_high)),
                _mm512_add_epi16(low, _mm512_maddubs_epi16(line, x_low)),
            )
        }
    }

    #[inline(always)]
    unsafe fn add_scaled<const CENTRED: bool>(
        self,
        Planes(high, low): Planes<__m512i>,
        sums: Planes<__m512i>,
        factors: __m512i,
        activations: *const i32,
    ) -> Planes<__m512i> {
        // SAFETY: the caller guarantees the factors; AVX-512 is proven.
        unsafe {
            let ones = _mm512_set1_epi16(1);
            let mut sums = Planes(
                _mm512_madd_epi16(sums.0, ones),
                _mm512_madd_epi16(sums.1, ones),
            );
            if CENTRED {
                sums.0 = _mm512_add_epi32(sums.0, _mm512_set1_epi32(*activations.add(2)));
                sums.1 = _mm512_add_epi32(sums.1, _mm512_set1_epi32(*activations.add(3)));
            }
            let x_high = combine512(sums.0, activations);
            let x_low = combine512(sums.1, activations.add(1));
            Planes(
                _mm512_add_epi32(high, _mm512_madd_epi16(x_high, factors)),
                _mm512_add_epi32(low, _mm512_madd_epi16(x_low, factors)),
            )
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

/// # Safety
/// Eight bytes must be readable at `pairs`.
#[target_feature(enable = "avx512f,avx512vnni")]
#[inline]
unsafe fn dot_words(
    Planes(mut high, mut low): Planes<__m512i>,
    weights: __m512i,
    pairs: *const u8,
) -> Planes<__m512i> {
    // SAFETY: as the caller guarantees. In assembly, as in `dot_planes`.
    unsafe {
        std::arch::asm!(
            "vpdpwssd {high}, {weights}, dword ptr [{pairs}]{{1to16}}",
            "vpdpwssd {low}, {weights}, dword ptr [{pairs} + 4]{{1to16}}",
            high = inout(zmm_reg) high,
            low = inout(zmm_reg) low,
            weights = in(zmm_reg) weights,
            pairs = in(reg) pairs,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    Planes(high, low)
}

/// Adds the products of two lines with the same activations: each is broadcast once.
macro_rules! dot_two {
    ($instruction:literal, $sums:expr, $lines:expr, $x:expr, $high:expr, $low:expr) => {{
        let [Planes(mut high, mut low), Planes(mut other_high, mut other_low)] = $sums;
        let _broadcast: __m512i;
        std::arch::asm!(
            "vpbroadcastd {x}, dword ptr [{at} + {high_at}]",
            concat!($instruction, " {high}, {line}, {x}"),
            concat!($instruction, " {other_high}, {other_line}, {x}"),
            "vpbroadcastd {x}, dword ptr [{at} + {low_at}]",
            concat!($instruction, " {low}, {line}, {x}"),
            concat!($instruction, " {other_low}, {other_line}, {x}"),
            high = inout(zmm_reg) high,
            low = inout(zmm_reg) low,
            other_high = inout(zmm_reg) other_high,
            other_low = inout(zmm_reg) other_low,
            line = in(zmm_reg) $lines[0],
            other_line = in(zmm_reg) $lines[1],
            x = out(zmm_reg) _broadcast,
            at = in(reg) $x,
            high_at = const $high,
            low_at = const $low,
            options(pure, readonly, nostack, preserves_flags),
        );
        [Planes(high, low), Planes(other_high, other_low)]
    }};
}

/// # Safety
/// A block must be readable at `block`.
#[target_feature(enable = "avx512f,avx512vnni")]
#[inline]
unsafe fn dot_planes_of_two<const INDEX: usize>(
    sums: [Planes<__m512i>; 2],
    lines: [__m512i; 2],
    block: *const u8,
) -> [Planes<__m512i>; 2] {
    // SAFETY: as the caller guarantees. In assembly, as in `dot_planes`.
    unsafe {
        dot_two!(
            "vpdpbusd",
            sums,
            lines,
            block,
            4 * INDEX,
            LOW_PLANE + 4 * INDEX
        )
    }
}

/// # Safety
/// Eight bytes must be readable at `pairs`.
#[target_feature(enable = "avx512f,avx512vnni")]
#[inline]
unsafe fn dot_words_of_two(
    totals: [Planes<__m512i>; 2],
    weights: [__m512i; 2],
    pairs: *const u8,
) -> [Planes<__m512i>; 2] {
    // SAFETY: as the caller guarantees. In assembly, as in `dot_planes`.
    unsafe { dot_two!("vpdpwssd", totals, weights, pairs, 0, 4) }
}

impl RowScaledDot for Avx512<true> {
    avx512_row_scaled!(_mm512_add_epi32);

    #[inline(always)]
    unsafe fn dot_planes_of_two<const INDEX: usize>(
        self,
        sums: [Planes<__m512i>; 2],
        lines: [__m512i; 2],
        block: *const u8,
    ) -> [Planes<__m512i>; 2] {
        // SAFETY: the caller guarantees the block; AVX512-VNNI is proven.
        unsafe { dot_planes_of_two::<INDEX>(sums, lines, block) }
    }

    #[inline(always)]
    unsafe fn dot_words_of_two(
        self,
        totals: [Planes<__m512i>; 2],
        weights: [__m512i; 2],
        pairs: *const u8,
    ) -> [Planes<__m512i>; 2] {
        // SAFETY: the caller guarantees both pairs; AVX512-VNNI is proven.
        unsafe { dot_words_of_two(totals, weights, pairs) }
    }

    #[inline(always)]
    unsafe fn dot_words(
        self,
        totals: Planes<__m512i>,
        weights: __m512i,
        pairs: *const u8,
    ) -> Planes<__m512i> {
        // SAFETY: the caller guarantees both pairs; AVX512-VNNI is proven.
        unsafe { dot_words(totals, weights, pairs) }
    }

    #[inline(always)]
    unsafe fn begin_group<const CENTRED: bool>(self, activations: *const i32) -> Planes<__m512i> {
        if !CENTRED {
            return self.zero_planes();
        }
        // SAFETY: the caller guarantees four numbers; AVX-512 is proven.
        unsafe {
            let high = _mm512_set1_epi32(*activations.add(2));
            let low = _mm512_set1_epi32(*activations.add(3));
            Planes(high, low)
        }
    }

    #[inline(always)]
    unsafe fn dot_planes<const INDEX: usize>(
        self,
        sums: Planes<__m512i>,
        line: __m512i,
        block: *const u8,
    ) -> Planes<__m512i> {
        // SAFETY: the caller guarantees the block; AVX512-VNNI is proven.
        unsafe { dot_planes::<INDEX>(sums, line, block) }
    }

    #[inline(always)]
    unsafe fn add_scaled<const CENTRED: bool>(
        self,
        Planes(high, low): Planes<__m512i>,
        sums: Planes<__m512i>,
        factors: __m512i,
        activations: *const i32,
    ) -> Planes<__m512i> {
        // SAFETY: the caller guarantees the factors; AVX512-VNNI is proven.
        unsafe {
            Planes(
                _mm512_dpwssd_epi32(high, combine512(sums.0, activations), factors),
                _mm512_dpwssd_epi32(low, combine512(sums.1, activations.add(1)), factors),
            )
        }
    }
}

/// The second of each pair of sixteen-bit numbers.
pub(super) const ODD: u32 = 0xaaaa_aaaa;
