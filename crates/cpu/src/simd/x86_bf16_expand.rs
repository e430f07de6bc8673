//! Expansion of quants to bf16 weights, for AMX.
//!
//! A weight is `scale · quant + min`, computed in f16, 32 at a time. An unsigned quant becomes a float without a conversion: its bits
//! are moved into the mantissa of a power of two, so the float is that power plus the quant, and the multiply-add takes the power back.
//! An f16 becomes a bf16 by a shift that drops three bits of the mantissa, with the upper bits of the exponent set to a constant.
//! Weights are a little too large before (`ROUNDING`), so that dropping bits rounds to the nearest but for weights next to the middle
//! of two bf16 numbers.

use super::{Avx512, RowScaledDot, Simd};
use std::arch::x86_64::*;

/// Half a unit of a bf16's last place is 2⁻⁹ to 2⁻⁸ of the number; this is a number between.
const ROUNDING: f32 = 1.0 + 1.4 / 512.0;
/// Weights are divided by this, so that quants times scales are in the range of f16.
const F16_SCALE: f32 = 8.0;
/// The factor from sums of expanded weights to sums of weights: the constant bits of the exponent divide weights by 2¹⁶.
pub(crate) const BF16_WEIGHT_UNIT: f32 = F16_SCALE * 65536.0;
/// Bytes of sixteen pairs of weights: a row of a tile.
const LINE: usize = 64;
/// `(a & b) | c`, by its truth table.
const JOIN: i32 = 0xea;

/// The factors of sixteen columns of a group, each twice: a weight is `scale · float + min`.
#[derive(Clone, Copy)]
pub(crate) struct Bf16Factors {
    scale: __m512h,
    min: __m512h,
}

/// How the quants of a line become floats.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum QuantBits {
    /// The low and the high nibbles of bytes.
    Nibbles,
    /// Bytes of up to six bits.
    SixBits,
    /// Signed bytes.
    Signed,
}

impl QuantBits {
    /// The power of two that is part of the float, and the place of a quant's lowest bit in an f16.
    const fn power(self) -> (u32, u32) {
        match self {
            QuantBits::Nibbles => (4, 6),
            QuantBits::SixBits => (6, 4),
            QuantBits::Signed => (0, 0),
        }
    }
}

/// For `vpmultishiftqb`: words with the field at bit `first` and the one eight bits further of every 32-bit lane, moved to bit `bit`.
const fn fields(first: u32, bit: u32) -> [u8; LINE] {
    let mut control = [0; LINE];
    let mut i = 0;
    while i < LINE {
        let (lane, word) = ((i / 4 % 2) as u32, (i / 2 % 2) as u32);
        let field = 32 * lane + 8 * word + first;
        // The byte of the word that begins `bit` bits before the field, or eight bits later.
        control[i] = ((field + 64 + 8 * (i % 2) as u32 - bit) % 64) as u8;
        i += 1;
    }
    control
}

/// For `vpshufb`: words whose upper bytes are byte `first` and the one after it of every 32-bit lane.
const fn upper_bytes(first: u8) -> [u8; LINE] {
    let mut order = [0x80; LINE];
    let mut i = 0;
    while i < LINE {
        order[i + 1] = (i % 16 / 4 * 4) as u8 + first + (i / 2 % 2) as u8;
        i += 2;
    }
    order
}

#[repr(align(64))]
struct Order([u8; LINE]);

static LOW_NIBBLES: [Order; 2] = [Order(fields(0, 6)), Order(fields(16, 6))];
static HIGH_NIBBLES: [Order; 2] = [Order(fields(4, 6)), Order(fields(20, 6))];
static SIX_BITS: [Order; 2] = [Order(fields(0, 4)), Order(fields(16, 4))];
static SIGNED: [Order; 2] = [Order(upper_bytes(0)), Order(upper_bytes(2))];

impl Avx512<true> {
    /// The factors of a group of quants, given scales and mins of sixteen columns.
    #[inline(always)]
    pub(crate) fn bf16_factors(
        self,
        [scales, mins]: [__m512; 2],
        quants: QuantBits,
    ) -> Bf16Factors {
        let unit = self.splat(ROUNDING / F16_SCALE);
        let (scales, mins) = (self.mul(scales, unit), self.mul(mins, unit));
        // SAFETY: the tier has AVX512-FP16.
        unsafe {
            let twice = |half: __m256h| {
                let words = _mm512_cvtepu16_epi32(_mm256_castph_si256(half));
                _mm512_castsi512_ph(_mm512_or_si512(words, _mm512_slli_epi32::<16>(words)))
            };
            if let QuantBits::Signed = quants {
                // The bytes are upper halves of words.
                let scale = _mm512_cvtxps_ph(self.mul(scales, self.splat(1.0 / 256.0)));
                let scale = twice(scale);
                return Bf16Factors { scale, min: scale };
            }
            let scale = _mm512_cvtxps_ph(scales);
            let power = -((1 << quants.power().0) as f32);
            let min = self.fma(_mm512_cvtxph_ps(scale), self.splat(power), mins);
            Bf16Factors {
                scale: twice(scale),
                min: twice(_mm512_cvtxps_ph(min)),
            }
        }
    }

    /// Expands a line of four-bit quants, two in a byte: the low nibbles become two rows of a tile, the high nibbles two others.
    ///
    /// # Safety
    /// Both pairs of rows must be writable.
    #[inline(always)]
    pub(crate) unsafe fn expand_nibbles_to_bf16(
        self,
        nibbles: __m512i,
        factors: &[Bf16Factors; 2],
        rows: [*mut u8; 2],
    ) {
        // SAFETY: as the caller guarantees; the tier has AVX512-FP16 and VBMI.
        unsafe {
            for row in 0..2 {
                let at = row * LINE;
                let low = mantissas::<{ QuantBits::Nibbles.power().1 }>(&LOW_NIBBLES[row], nibbles);
                self.store_bf16(scaled(low, &factors[0]), rows[0].add(at));
                let high =
                    mantissas::<{ QuantBits::Nibbles.power().1 }>(&HIGH_NIBBLES[row], nibbles);
                self.store_bf16(scaled(high, &factors[1]), rows[1].add(at));
            }
        }
    }

    /// Expands a line of unsigned quants of up to six bits to two rows of a tile.
    ///
    /// # Safety
    /// The rows must be writable.
    #[inline(always)]
    pub(crate) unsafe fn expand_bits_to_bf16(
        self,
        quants: __m512i,
        factors: &Bf16Factors,
        to: *mut u8,
    ) {
        // SAFETY: as the caller guarantees; the tier has AVX512-FP16 and VBMI.
        unsafe {
            for (row, order) in SIX_BITS.iter().enumerate() {
                let floats = mantissas::<{ QuantBits::SixBits.power().1 }>(order, quants);
                self.store_bf16(scaled(floats, factors), to.add(row * LINE));
            }
        }
    }

    /// Expands a line of signed bytes to two rows of a tile.
    ///
    /// # Safety
    /// The rows must be writable.
    #[inline(always)]
    pub(crate) unsafe fn expand_bytes_to_bf16(
        self,
        quants: __m512i,
        factors: &Bf16Factors,
        to: *mut u8,
    ) {
        // SAFETY: as the caller guarantees; the tier has AVX512-FP16.
        unsafe {
            for (row, order) in SIGNED.iter().enumerate() {
                let order = _mm512_load_si512(order.0.as_ptr().cast());
                let words = _mm512_cvtepi16_ph(_mm512_shuffle_epi8(quants, order));
                self.store_bf16(_mm512_mul_ph(words, factors.scale), to.add(row * LINE));
            }
        }
    }

    /// Stores 32 f16 numbers as bf16, divided by 2¹⁶.
    ///
    /// # Safety
    /// 64 bytes must be writable.
    #[inline(always)]
    unsafe fn store_bf16(self, numbers: __m512h, to: *mut u8) {
        /// The sign, and the five lower bits of the exponent before the mantissa.
        const KEPT: i16 = 0x8fff_u16 as i16;
        /// The upper bits of an exponent of 96 and more.
        const EXPONENT: i16 = 0x3000;
        // SAFETY: as the caller guarantees; AVX-512 is proven.
        unsafe {
            let shifted = _mm512_srai_epi16::<3>(_mm512_castph_si512(numbers));
            let (kept, exponent) = (_mm512_set1_epi16(KEPT), _mm512_set1_epi16(EXPONENT));
            self.store_bytes(
                _mm512_ternarylogic_epi32::<JOIN>(shifted, kept, exponent),
                to,
            );
        }
    }
}

/// The floats whose mantissas have the quants that an order picks, their lowest bits being at `BIT`.
#[inline(always)]
fn mantissas<const BIT: u32>(order: &Order, quants: __m512i) -> __m512h {
    // SAFETY: the tier has AVX512-FP16 and VBMI.
    unsafe {
        let order = _mm512_load_si512(order.0.as_ptr().cast());
        let fields = _mm512_multishift_epi64_epi8(order, quants);
        let mask = _mm512_set1_epi16((0x3ff & (0x3ff << BIT)) as i16);
        let power = _mm512_set1_epi16(((15 + 10 - BIT) << 10) as i16);
        _mm512_castsi512_ph(_mm512_ternarylogic_epi32::<JOIN>(fields, mask, power))
    }
}

#[inline(always)]
fn scaled(floats: __m512h, factors: &Bf16Factors) -> __m512h {
    // SAFETY: the tier has AVX512-FP16.
    unsafe { _mm512_fmadd_ph(floats, factors.scale, factors.min) }
}
