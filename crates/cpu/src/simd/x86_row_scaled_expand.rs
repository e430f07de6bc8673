//! Expansion of row-scaled panels to two planes of bytes, and the numbers of their products, for AMX.

use super::x86_byte_lines::Planes;
use super::x86_row_scaled_dot::ODD;
use super::{Avx512, ByteLines, RowScaledDot};
use std::arch::x86_64::*;

/// `bytes` with the masked bytes replaced by others in a given order.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn shuffled_into(mut bytes: __m512i, mask: u64, others: __m512i, order: __m512i) -> __m512i {
    // SAFETY: only registers are touched. In assembly, because the compiler would expand one instruction into three.
    unsafe {
        std::arch::asm!(
            "vpshufb {bytes}{{{mask}}}, {others}, {order}",
            bytes = inout(zmm_reg) bytes,
            mask = in(kreg) mask,
            others = in(zmm_reg) others,
            order = in(zmm_reg) order,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    bytes
}

/// Further operations for AMX kernels, which run only on this tier.
impl Avx512<true> {
    /// Expands a block's lines of quants to `scale · (quant - centre) + min`: eight lines of high bytes, and eight lines
    /// of low bytes `plane_stride` bytes further. Each half of the block has sixteen pairs of scale and min.
    ///
    /// # Safety
    /// The lines must be writable.
    #[inline(always)]
    pub(crate) unsafe fn expand_block(
        self,
        lines: [__m512i; 8],
        centre: i16,
        factors: [__m512i; 2],
        to: *mut u8,
        plane_stride: usize,
    ) {
        // SAFETY: as the caller guarantees; AVX-512 is proven.
        unsafe {
            let factors = [
                self.scales_and_mins(factors[0], centre),
                self.scales_and_mins(factors[1], centre),
            ];
            let byte = _mm512_set1_epi16(255);
            for line in 0..8 {
                let quants = lines[line];
                let even = _mm512_and_si512(quants, byte);
                let odd = _mm512_srli_epi16::<8>(quants);
                let to = to.add(line * LINE);
                self.write_pair([even, odd], factors[line / 4], to, plane_stride);
            }
        }
    }

    /// Sixteen scales and the sixteen mins of quants that are not centred, each duplicated.
    #[inline(always)]
    fn scales_and_mins(self, factors: __m512i, centre: i16) -> [__m512i; 2] {
        // SAFETY: AVX-512 is proven.
        unsafe {
            let scales = _mm512_mask_blend_epi16(ODD, factors, _mm512_slli_epi32::<16>(factors));
            let mins = _mm512_mask_blend_epi16(!ODD, factors, _mm512_srli_epi32::<16>(factors));
            let offset = _mm512_mullo_epi16(scales, _mm512_set1_epi16(centre));
            [scales, _mm512_sub_epi16(mins, offset)]
        }
    }

    /// Stores a line of high bytes and one of low bytes from the quants at even and at odd positions.
    ///
    /// # Safety
    /// The lines must be writable.
    #[inline(always)]
    unsafe fn write_pair(
        self,
        quants: [__m512i; 2],
        [scales, mins]: [__m512i; 2],
        to: *mut u8,
        plane_stride: usize,
    ) {
        // SAFETY: as the caller guarantees; AVX-512 is proven.
        unsafe {
            let even = _mm512_add_epi16(_mm512_mullo_epi16(quants[0], scales), mins);
            let odd = _mm512_add_epi16(_mm512_mullo_epi16(quants[1], scales), mins);
            self.store_planes_of_words([even, odd], to, plane_stride);
        }
    }

    /// Stores a line of high bytes and one of low bytes of two-byte integers at even and at odd positions.
    ///
    /// # Safety
    /// The lines must be writable.
    #[inline(always)]
    pub(crate) unsafe fn store_planes_of_words(
        self,
        [even, odd]: [__m512i; 2],
        to: *mut u8,
        plane_stride: usize,
    ) {
        // SAFETY: as the caller guarantees; AVX-512 is proven.
        unsafe {
            // Swaps every pair of bytes.
            let other = _mm512_broadcast_i32x4(_mm_setr_epi8(
                1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14,
            ));
            self.store_line(to, shuffled_into(odd, !ODD_BYTES, even, other));
            self.store_line(
                to.add(plane_stride),
                shuffled_into(even, ODD_BYTES, odd, other),
            );
        }
    }

    /// The f32 number whose four products, of high and low bytes of both sides, are in `products`: those with low bytes
    /// of weights 256 integers further, those with low bytes of activations `low` integers further.
    ///
    /// # Safety
    /// Sixteen integers must be readable at each of the four addresses.
    #[inline(always)]
    pub(crate) unsafe fn products_to_f32(self, products: *const i32, low: usize) -> __m512 {
        // SAFETY: the caller guarantees the integers; AVX-512 is proven.
        unsafe {
            let [a, b] = [products, products.add(low)];
            let high = _mm512_slli_epi32::<8>(self.load_bytes(a.cast()));
            let low = _mm512_slli_epi32::<8>(self.load_bytes(b.cast()));
            self.totals_to_f32(Planes(
                _mm512_add_epi32(high, self.load_bytes(a.add(256).cast())),
                _mm512_add_epi32(low, self.load_bytes(b.add(256).cast())),
            ))
        }
    }
}

/// The second of each pair of bytes.
const ODD_BYTES: u64 = 0xaaaa_aaaa_aaaa_aaaa;
/// Bytes of a line.
const LINE: usize = 64;
