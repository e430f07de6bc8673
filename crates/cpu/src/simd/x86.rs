//! Lanes in one AVX-512 register or in two AVX2 registers.
#![allow(
    clippy::needless_range_loop,
    reason = "iterators over registers are not inlined with the tier's features"
)]

use super::{Kernel, Simd};
use std::arch::x86_64::*;

/// A proof of AVX2, FMA and F16C; with `VNNI` also of AVX-VNNI.
#[derive(Clone, Copy)]
pub(crate) struct Avx2<const VNNI: bool>(());

/// A proof of AVX-512 F, BW, VL and DQ, and of [`Avx2`]'s features; with `VNNI` also of AVX512-VNNI.
#[derive(Clone, Copy)]
pub(crate) struct Avx512<const VNNI: bool>(());

impl Avx2<false> {
    /// The proof; callable only where the features are enabled.
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    pub(crate) fn new() -> Avx2<false> {
        Avx2(())
    }
}

impl Avx2<true> {
    /// The proof; callable only where the features are enabled.
    #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
    #[inline]
    pub(crate) fn new() -> Avx2<true> {
        Avx2(())
    }
}

impl Avx512<false> {
    /// The proof; callable only where the features are enabled.
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
    #[inline]
    pub(crate) fn new() -> Avx512<false> {
        Avx512(())
    }
}

impl Avx512<true> {
    /// The proof; callable only where the features are enabled.
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    #[inline]
    pub(crate) fn new() -> Avx512<true> {
        Avx512(())
    }
}

/// Two registers, elements 0..8 and 8..16.
#[derive(Clone, Copy)]
pub(crate) struct Pair(pub(super) __m256, pub(super) __m256);

// One macro arm per kind of function: the bodies differ in nothing but the intrinsic.
macro_rules! pairwise {
    ($($name:ident($($x:ident),*) = $intrinsic:ident;)*) => {$(
        #[inline(always)]
        fn $name(self, $($x: Pair),*) -> Pair {
            // SAFETY: `self` proves that the CPU has AVX2 and FMA.
            unsafe { Pair($intrinsic($($x.0),*), $intrinsic($($x.1),*)) }
        }
    )*};
}

macro_rules! whole {
    ($($name:ident($($x:ident),*) = $intrinsic:ident;)*) => {$(
        #[inline(always)]
        fn $name(self, $($x: __m512),*) -> __m512 {
            // SAFETY: `self` proves that the CPU has AVX-512.
            unsafe { $intrinsic($($x),*) }
        }
    )*};
}

impl<const VNNI: bool> Simd for Avx2<VNNI> {
    type V = Pair;

    // A 2 × 3 register tile takes twelve of the sixteen registers.
    const REGISTER_TILE: (usize, usize) = (2, 3);

    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) -> K::Output {
        // SAFETY: `self` proves that the CPU has AVX2, FMA and F16C.
        unsafe { kernel.on_avx2() }
    }

    pairwise! {
        add(a, b) = _mm256_add_ps;
        sub(a, b) = _mm256_sub_ps;
        mul(a, b) = _mm256_mul_ps;
        div(a, b) = _mm256_div_ps;
        fma(a, b, c) = _mm256_fmadd_ps;
        max(a, b) = _mm256_max_ps;
        min(a, b) = _mm256_min_ps;
    }

    #[inline(always)]
    fn splat(self, x: f32) -> Pair {
        // SAFETY: `self` proves that the CPU has AVX2.
        let v = unsafe { _mm256_set1_ps(x) };
        Pair(v, v)
    }

    #[inline(always)]
    fn prefetch(self, p: *const u8) {
        // SAFETY: a prefetch of an invalid address does nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }

    #[inline(always)]
    fn round(self, a: Pair) -> Pair {
        const MODE: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        // SAFETY: `self` proves that the CPU has AVX2.
        unsafe { Pair(_mm256_round_ps::<MODE>(a.0), _mm256_round_ps::<MODE>(a.1)) }
    }

    #[inline(always)]
    fn pow2(self, n: Pair) -> Pair {
        // SAFETY: `self` proves that the CPU has AVX2.
        let half = |n| unsafe {
            let biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
        };
        Pair(half(n.0), half(n.1))
    }

    #[inline(always)]
    fn any_gt(self, a: Pair, b: Pair) -> bool {
        // SAFETY: `self` proves that the CPU has AVX2.
        unsafe {
            let (low, high) = (
                _mm256_cmp_ps::<_CMP_GT_OQ>(a.0, b.0),
                _mm256_cmp_ps::<_CMP_GT_OQ>(a.1, b.1),
            );
            _mm256_movemask_ps(_mm256_or_ps(low, high)) != 0
        }
    }

    #[inline(always)]
    fn select_ge_or_zero(self, x: Pair, limit: Pair, v: Pair) -> Pair {
        // SAFETY: `self` proves that the CPU has AVX2.
        let half = |x, limit, v| unsafe { _mm256_and_ps(_mm256_cmp_ps::<_CMP_GE_OQ>(x, limit), v) };
        Pair(half(x.0, limit.0, v.0), half(x.1, limit.1, v.1))
    }

    #[inline(always)]
    fn transpose(self, rows: [Pair; 16]) -> [Pair; 16] {
        let mut out = rows;
        // SAFETY: `self` proves that the CPU has AVX2.
        unsafe {
            let mut quarter = [rows[0].0; 8];
            for upper in 0..2 {
                for i in 0..8 {
                    quarter[i] = rows[8 * upper + i].0;
                }
                let left = transpose8(quarter);
                for i in 0..8 {
                    quarter[i] = rows[8 * upper + i].1;
                }
                let right = transpose8(quarter);
                for i in 0..8 {
                    if upper == 0 {
                        (out[i].0, out[8 + i].0) = (left[i], right[i]);
                    } else {
                        (out[i].1, out[8 + i].1) = (left[i], right[i]);
                    }
                }
            }
        }
        out
    }

    #[inline(always)]
    fn reduce_sum(self, a: Pair) -> f32 {
        // SAFETY: `self` proves that the CPU has AVX2.
        unsafe { sum8(_mm256_add_ps(a.0, a.1)) }
    }

    #[inline(always)]
    fn reduce_max(self, a: Pair) -> f32 {
        // SAFETY: `self` proves that the CPU has AVX2.
        unsafe { max8(_mm256_max_ps(a.0, a.1)) }
    }

    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> Pair {
        // SAFETY: the caller guarantees sixteen f32 at `p`; AVX2 is proven.
        unsafe { Pair(_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))) }
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: Pair) {
        // SAFETY: the caller guarantees sixteen f32 at `p`; AVX2 is proven.
        unsafe {
            _mm256_storeu_ps(p, v.0);
            _mm256_storeu_ps(p.add(8), v.1);
        }
    }

    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> Pair {
        // SAFETY: the caller guarantees sixteen halves at `p`; F16C is proven.
        let half = |p: *const u16| unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) };
        // SAFETY: the second half of the sixteen.
        Pair(half(p), half(unsafe { p.add(8) }))
    }

    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16, v: Pair) {
        // SAFETY: the caller guarantees sixteen halves at `p`; F16C is proven.
        unsafe {
            _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v.0));
            let high = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v.1);
            _mm_storeu_si128(p.add(8).cast(), high);
        }
    }

    #[inline(always)]
    unsafe fn widen4(self, p: *const u8) -> [f32; 4] {
        // SAFETY: the caller guarantees eight bytes; F16C is proven.
        unsafe { std::mem::transmute(_mm_cvtph_ps(_mm_loadl_epi64(p.cast()))) }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> Pair {
        // SAFETY: the caller guarantees sixteen halves at `p`; AVX2 is proven.
        let half = |p: *const u16| unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        };
        // SAFETY: the second half of the sixteen.
        Pair(half(p), half(unsafe { p.add(8) }))
    }

    #[inline(always)]
    unsafe fn load_e4m3(self, p: *const u8) -> Pair {
        // SAFETY: the caller guarantees sixteen bytes at `p`; AVX2 and F16C are proven.
        unsafe {
            let halves = e4m3_to_f16(_mm256_cvtepu8_epi16(_mm_loadu_si128(p.cast())));
            let scale = _mm256_set1_ps(E4M3_OVER_F16);
            let (low, high) = (
                _mm256_castsi256_si128(halves),
                _mm256_extracti128_si256::<1>(halves),
            );
            Pair(
                _mm256_mul_ps(_mm256_cvtph_ps(low), scale),
                _mm256_mul_ps(_mm256_cvtph_ps(high), scale),
            )
        }
    }

    #[inline(always)]
    unsafe fn load_u8(self, p: *const u8) -> Pair {
        // SAFETY: the caller guarantees sixteen bytes at `p`; AVX2 is proven.
        let half = |p: *const u8| unsafe {
            _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast())))
        };
        // SAFETY: the second half of the sixteen.
        Pair(half(p), half(unsafe { p.add(8) }))
    }

    #[inline(always)]
    unsafe fn lookup_nibbles(self, p: *const u8, low: Pair, high: Pair) -> [Pair; 2] {
        // SAFETY: AVX2 is proven. The low three bits choose among eight entries, bit 3 between the halves.
        let lookup = |index: __m256i, table: Pair| unsafe {
            let (first, second) = (
                _mm256_permutevar8x32_ps(table.0, index),
                _mm256_permutevar8x32_ps(table.1, index),
            );
            _mm256_blendv_ps(
                first,
                second,
                _mm256_castsi256_ps(_mm256_slli_epi32::<28>(index)),
            )
        };
        // SAFETY: the caller guarantees sixteen bytes at `p`, eight from each address; AVX2 is proven.
        unsafe {
            let a = _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast()));
            let b = _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.add(8).cast()));
            let (a_high, b_high) = (_mm256_srli_epi32::<4>(a), _mm256_srli_epi32::<4>(b));
            [
                Pair(lookup(a, low), lookup(b, low)),
                Pair(lookup(a_high, high), lookup(b_high, high)),
            ]
        }
    }
}

impl Avx512<true> {
    /// Stores each of 32 numbers as the three bf16 that sum to it, the most significant first, with `part_stride` bytes
    /// between the parts.
    ///
    /// # Safety
    /// 64 bytes must be writable at `p` and at the two addresses after it.
    #[inline(always)]
    pub(crate) unsafe fn store_bf16x3(self, x: [__m512; 2], p: *mut u8, part_stride: usize) {
        // Infinities and NaN.
        const NOT_FINITE: i32 = 0x99;
        // SAFETY: the caller guarantees the bytes; AVX-512 is proven.
        unsafe {
            let top = _mm512_set1_epi32(0xffff_0000u32 as i32);
            let [mut low, mut high] = x;
            let finite_low = !_mm512_fpclass_ps_mask::<NOT_FINITE>(low);
            let finite_high = !_mm512_fpclass_ps_mask::<NOT_FINITE>(high);
            for part in 0..3 {
                let (a, b) = (_mm512_castps_si512(low), _mm512_castps_si512(high));
                let halves = self.upper_halves(a, b);
                _mm512_storeu_si512(p.add(part * part_stride).cast(), halves);
                let (a, b) = (_mm512_and_si512(a, top), _mm512_and_si512(b, top));
                low = _mm512_maskz_sub_ps(finite_low, low, _mm512_castsi512_ps(a));
                high = _mm512_maskz_sub_ps(finite_high, high, _mm512_castsi512_ps(b));
            }
        }
    }
}

impl Avx512<true> {
    /// The upper halves of the 32-bit lanes of two vectors, in order.
    #[inline(always)]
    fn upper_halves(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: AVX-512 is proven; the table has 64 bytes.
        unsafe {
            let odd = _mm512_loadu_si512(ODD_WORDS.as_ptr().cast());
            _mm512_permutex2var_epi16(a, odd, b)
        }
    }

    /// 32 numbers rounded to bf16, in order.
    #[inline(always)]
    pub(crate) fn round_to_bf16(self, x: [__m512; 2]) -> __m512i {
        // SAFETY: AVX-512 is proven.
        unsafe {
            // To the nearest, and to even in the middle of two.
            let round = |x: __m512| {
                let bits = _mm512_castps_si512(x);
                let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
                let below_half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
                _mm512_add_epi32(bits, below_half)
            };
            self.upper_halves(round(x[0]), round(x[1]))
        }
    }

    /// Splits each of 32 numbers into two bf16 whose sum is the number to seventeen bits: 32 higher parts, then 32 lower
    /// ones.
    #[inline(always)]
    pub(crate) fn split_bf16x2(self, x: [__m512; 2]) -> [__m512; 2] {
        // SAFETY: AVX-512 is proven.
        unsafe {
            let top = _mm512_set1_epi32(0xffff_0000u32 as i32);
            let half = _mm512_set1_epi32(0x8000);
            let round = |x: __m512| _mm512_add_epi32(_mm512_castps_si512(x), half);
            let rest = |x: __m512, rounded: __m512i| {
                _mm512_sub_ps(x, _mm512_castsi512_ps(_mm512_and_si512(rounded, top)))
            };
            let (a, b) = (round(x[0]), round(x[1]));
            let high = self.upper_halves(a, b);
            let low = self.upper_halves(round(rest(x[0], a)), round(rest(x[1], b)));
            [_mm512_castsi512_ps(high), _mm512_castsi512_ps(low)]
        }
    }

    /// Splits pairs of numbers, one of `a` and one of `b` in each lane, into two bf16 parts: stores the pairs of the more
    /// significant parts, and those of the rest. If `ROUND`, the sum of the parts is the number to seventeen bits; otherwise
    /// the number must have no more than sixteen.
    ///
    /// # Safety
    /// 64 bytes must be writable at both addresses.
    #[inline(always)]
    pub(crate) unsafe fn store_bf16x2_pairs<const ROUND: bool>(
        self,
        [a, b]: [__m512; 2],
        high: *mut u8,
        low: *mut u8,
    ) {
        // `first | (second & top)`, by its truth table.
        const JOIN: i32 = 0xf8;
        // SAFETY: the caller guarantees the bytes; AVX-512 is proven.
        unsafe {
            let top = _mm512_set1_epi32(0xffff_0000u32 as i32);
            let half = _mm512_set1_epi32(0x8000);
            let bits = |x: __m512| match ROUND {
                true => _mm512_add_epi32(_mm512_castps_si512(x), half),
                false => _mm512_castps_si512(x),
            };
            let join = |a: __m512i, b: __m512i| {
                _mm512_ternarylogic_epi32::<JOIN>(_mm512_srli_epi32::<16>(a), b, top)
            };
            let rest = |x: __m512, bits: __m512i| {
                _mm512_sub_ps(x, _mm512_castsi512_ps(_mm512_and_si512(bits, top)))
            };
            let (first, second) = (bits(a), bits(b));
            _mm512_storeu_si512(high.cast(), join(first, second));
            let (first, second) = (bits(rest(a, first)), bits(rest(b, second)));
            _mm512_storeu_si512(low.cast(), join(first, second));
        }
    }
}

/// The odd numbers below 64: the upper halves of 32-bit lanes.
const ODD_WORDS: [u16; 32] = {
    let mut odd = [0; 32];
    let mut i = 0;
    while i < 32 {
        odd[i] = 2 * i as u16 + 1;
        i += 1;
    }
    odd
};

impl<const VNNI: bool> Simd for Avx512<VNNI> {
    type V = __m512;

    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) -> K::Output {
        // SAFETY: `self` proves that the CPU has AVX-512 with its byte, double-word and length extensions.
        unsafe { kernel.on_avx512() }
    }

    #[inline(always)]
    unsafe fn load_part(self, p: *const f32, n: usize) -> __m512 {
        // SAFETY: only the first `n` elements are touched, which the caller guarantees; AVX-512 is proven.
        unsafe { _mm512_maskz_loadu_ps(first(n), p) }
    }

    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, v: __m512, n: usize) {
        // SAFETY: as for `load_part`.
        unsafe { _mm512_mask_storeu_ps(p, first(n), v) }
    }

    // A 4 × 6 register tile takes twenty-four of the thirty-two registers.
    const REGISTER_TILE: (usize, usize) = (4, 6);

    whole! {
        add(a, b) = _mm512_add_ps;
        sub(a, b) = _mm512_sub_ps;
        mul(a, b) = _mm512_mul_ps;
        div(a, b) = _mm512_div_ps;
        fma(a, b, c) = _mm512_fmadd_ps;
        max(a, b) = _mm512_max_ps;
        min(a, b) = _mm512_min_ps;
    }

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        // SAFETY: `self` proves that the CPU has AVX-512.
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    fn prefetch(self, p: *const u8) {
        // SAFETY: a prefetch of an invalid address does nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }

    #[inline(always)]
    fn round(self, a: __m512) -> __m512 {
        // SAFETY: `self` proves that the CPU has AVX-512.
        unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
    }

    #[inline(always)]
    fn pow2(self, n: __m512) -> __m512 {
        // SAFETY: `self` proves that the CPU has AVX-512.
        unsafe { _mm512_scalef_ps(_mm512_set1_ps(1.0), n) }
    }

    #[inline(always)]
    fn times_pow2(self, v: __m512, n: __m512) -> __m512 {
        // SAFETY: `self` proves that the CPU has AVX-512.
        unsafe { _mm512_scalef_ps(v, n) }
    }

    #[inline(always)]
    fn any_gt(self, a: __m512, b: __m512) -> bool {
        // SAFETY: `self` proves that the CPU has AVX-512.
        unsafe { _mm512_cmp_ps_mask::<_CMP_GT_OQ>(a, b) != 0 }
    }

    #[inline(always)]
    fn select_ge_or_zero(self, x: __m512, limit: __m512, v: __m512) -> __m512 {
        // SAFETY: `self` proves that the CPU has AVX-512.
        unsafe { _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_GE_OQ>(x, limit), v) }
    }

    #[inline(always)]
    fn transpose(self, r: [__m512; 16]) -> [__m512; 16] {
        let (mut pairs, mut fours, mut out) = (r, r, r);
        // SAFETY: `self` proves that the CPU has AVX-512.
        unsafe {
            for i in 0..8 {
                pairs[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
                pairs[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
            }
            for i in 0..4 {
                for half in 0..2 {
                    let a = _mm512_castps_pd(pairs[4 * i + half]);
                    let b = _mm512_castps_pd(pairs[4 * i + half + 2]);
                    fours[4 * i + 2 * half] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
                    fours[4 * i + 2 * half + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
                }
            }
            // Every quarter now has a 4 × 4 transposition; the quarters are distributed.
            for j in 0..4 {
                let even = _mm512_shuffle_f32x4::<0x88>(fours[j], fours[4 + j]);
                let odd = _mm512_shuffle_f32x4::<0xdd>(fours[j], fours[4 + j]);
                let even_below = _mm512_shuffle_f32x4::<0x88>(fours[8 + j], fours[12 + j]);
                let odd_below = _mm512_shuffle_f32x4::<0xdd>(fours[8 + j], fours[12 + j]);
                out[j] = _mm512_shuffle_f32x4::<0x88>(even, even_below);
                out[4 + j] = _mm512_shuffle_f32x4::<0x88>(odd, odd_below);
                out[8 + j] = _mm512_shuffle_f32x4::<0xdd>(even, even_below);
                out[12 + j] = _mm512_shuffle_f32x4::<0xdd>(odd, odd_below);
            }
        }
        out
    }

    #[inline(always)]
    fn reduce_sum(self, a: __m512) -> f32 {
        // SAFETY: `self` proves that the CPU has AVX-512.
        unsafe {
            sum8(_mm256_add_ps(
                _mm512_castps512_ps256(a),
                _mm512_extractf32x8_ps::<1>(a),
            ))
        }
    }

    #[inline(always)]
    fn reduce_max(self, a: __m512) -> f32 {
        // SAFETY: `self` proves that the CPU has AVX-512.
        unsafe {
            max8(_mm256_max_ps(
                _mm512_castps512_ps256(a),
                _mm512_extractf32x8_ps::<1>(a),
            ))
        }
    }

    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> __m512 {
        // SAFETY: the caller guarantees sixteen f32 at `p`; AVX-512 is proven.
        unsafe { _mm512_loadu_ps(p) }
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: __m512) {
        // SAFETY: the caller guarantees sixteen f32 at `p`; AVX-512 is proven.
        unsafe { _mm512_storeu_ps(p, v) }
    }

    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> __m512 {
        // SAFETY: the caller guarantees sixteen halves at `p`; AVX-512 is proven.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }

    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16, v: __m512) {
        // SAFETY: the caller guarantees sixteen halves at `p`; AVX-512 is proven.
        unsafe {
            let halves = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v);
            _mm256_storeu_si256(p.cast(), halves);
        }
    }

    #[inline(always)]
    unsafe fn widen4(self, p: *const u8) -> [f32; 4] {
        // SAFETY: the caller guarantees eight bytes; F16C is proven.
        unsafe { std::mem::transmute(_mm_cvtph_ps(_mm_loadl_epi64(p.cast()))) }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> __m512 {
        // SAFETY: the caller guarantees sixteen halves at `p`; AVX-512 is proven.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }

    #[inline(always)]
    unsafe fn load_e4m3(self, p: *const u8) -> __m512 {
        // SAFETY: the caller guarantees sixteen bytes at `p`; AVX-512 is proven.
        unsafe {
            let halves = e4m3_to_f16(_mm256_cvtepu8_epi16(_mm_loadu_si128(p.cast())));
            _mm512_mul_ps(_mm512_cvtph_ps(halves), _mm512_set1_ps(E4M3_OVER_F16))
        }
    }

    #[inline(always)]
    unsafe fn load_u8(self, p: *const u8) -> __m512 {
        // SAFETY: the caller guarantees sixteen bytes at `p`; AVX-512 is proven.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()))) }
    }

    #[inline(always)]
    unsafe fn lookup_nibbles(self, p: *const u8, low: __m512, high: __m512) -> [__m512; 2] {
        // SAFETY: the caller guarantees sixteen bytes at `p`; AVX-512 is proven. The permutation uses only the low four
        // bits of every index.
        unsafe {
            let bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()));
            let upper = _mm512_srli_epi32::<4>(bytes);
            [
                _mm512_permutexvar_ps(bytes, low),
                _mm512_permutexvar_ps(upper, high),
            ]
        }
    }
}

/// The quotient of an e4m3 number and the f16 with the same bits of exponent and mantissa: two to the difference of the
/// exponents' biases, 15 − 7.
const E4M3_OVER_F16: f32 = 256.0;

/// The sixteen e4m3 numbers in the low bytes as f16 numbers, divided by [`E4M3_OVER_F16`]. Subnormal numbers become
/// subnormal, and NaN becomes NaN.
///
/// # Safety
/// The CPU must have AVX2.
#[inline(always)]
unsafe fn e4m3_to_f16(codes: __m256i) -> __m256i {
    // SAFETY: the caller guarantees AVX2.
    unsafe {
        let sign = _mm256_slli_epi16::<8>(_mm256_and_si256(codes, _mm256_set1_epi16(0x80)));
        let rest = _mm256_and_si256(codes, _mm256_set1_epi16(0x7f));
        // All ones where the number is NaN; without the sign bit they are an f16 NaN.
        let nan = _mm256_cmpeq_epi16(rest, _mm256_set1_epi16(0x7f));
        let rest = _mm256_or_si256(_mm256_slli_epi16::<7>(rest), _mm256_srli_epi16::<1>(nan));
        _mm256_or_si256(sign, rest)
    }
}

/// # Safety
/// The CPU must have AVX2.
#[inline(always)]
unsafe fn transpose8(r: [__m256; 8]) -> [__m256; 8] {
    let (mut pairs, mut fours, mut out) = (r, r, r);
    // SAFETY: the caller guarantees AVX2.
    unsafe {
        for i in 0..4 {
            pairs[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
            pairs[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
        }
        for i in 0..2 {
            for half in 0..2 {
                let a = _mm256_castps_pd(pairs[4 * i + half]);
                let b = _mm256_castps_pd(pairs[4 * i + half + 2]);
                fours[4 * i + 2 * half] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, b));
                fours[4 * i + 2 * half + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, b));
            }
        }
        for j in 0..4 {
            out[j] = _mm256_permute2f128_ps::<0x20>(fours[j], fours[4 + j]);
            out[4 + j] = _mm256_permute2f128_ps::<0x31>(fours[j], fours[4 + j]);
        }
    }
    out
}

/// # Safety
/// The CPU must have AVX2.
#[inline(always)]
unsafe fn sum8(a: __m256) -> f32 {
    // SAFETY: the caller guarantees AVX2.
    unsafe {
        let four = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
    }
}

/// # Safety
/// The CPU must have AVX2.
#[inline(always)]
unsafe fn max8(a: __m256) -> f32 {
    // SAFETY: the caller guarantees AVX2.
    unsafe {
        let four = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
        let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
    }
}

/// A mask of the first `n ≤ 16` lanes.
#[inline(always)]
fn first(n: usize) -> __mmask16 {
    ((1u32 << n) - 1) as __mmask16
}
