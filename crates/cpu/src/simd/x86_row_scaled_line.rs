//! Operations on lines of integers on x86, with which the factors of row-scaled weights are decoded.

/// The line operations of [`RowScaledDot`](super::RowScaledDot) for AVX2.
macro_rules! avx2_line_operations {
    () => {
        #[inline(always)]
        fn merge_bits<const LEFT: i32, const MASK: u8>(self, low: Halves, bits: Halves) -> Halves {
            // SAFETY: AVX2 is proven.
            unsafe {
                let mask = _mm256_set1_epi8(MASK as i8);
                // Bits of a neighbouring byte are masked away.
                let shift = _mm_cvtsi32_si128(LEFT.abs());
                let shifted = |bits| match LEFT >= 0 {
                    true => _mm256_sll_epi16(bits, shift),
                    false => _mm256_srl_epi16(bits, shift),
                };
                low.zip(bits, |low, bits| {
                    _mm256_or_si256(low, _mm256_and_si256(shifted(bits), mask))
                })
            }
        }

        #[inline(always)]
        unsafe fn store_bytes(self, line: Halves, to: *mut u8) {
            // SAFETY: the caller guarantees 64 bytes; AVX2 is proven.
            unsafe {
                _mm256_storeu_si256(to.cast(), line.0);
                _mm256_storeu_si256(to.add(32).cast(), line.1);
            }
        }

        #[inline(always)]
        unsafe fn widen_u8(self, from: *const u8) -> Halves {
            // SAFETY: the caller guarantees 32 bytes; AVX2 is proven.
            unsafe {
                Halves(
                    _mm256_cvtepu8_epi16(_mm_loadu_si128(from.cast())),
                    _mm256_cvtepu8_epi16(_mm_loadu_si128(from.add(16).cast())),
                )
            }
        }

        #[inline(always)]
        unsafe fn widen_i8(self, from: *const u8) -> Halves {
            // SAFETY: the caller guarantees sixteen bytes; AVX2 is proven.
            unsafe {
                Halves(
                    _mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast())),
                    _mm256_cvtepi8_epi32(_mm_loadl_epi64(from.add(8).cast())),
                )
            }
        }

        #[inline(always)]
        unsafe fn widen_u16(self, from: *const u8) -> Halves {
            // SAFETY: the caller guarantees 32 bytes; AVX2 is proven.
            unsafe {
                Halves(
                    _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast())),
                    _mm256_cvtepu16_epi32(_mm_loadu_si128(from.add(16).cast())),
                )
            }
        }

        #[inline(always)]
        fn splat_16(self, value: i16) -> Halves {
            // SAFETY: AVX2 is proven.
            let all = unsafe { _mm256_set1_epi16(value) };
            Halves(all, all)
        }

        #[inline(always)]
        fn add_16(self, a: Halves, b: Halves) -> Halves {
            // SAFETY: AVX2 is proven.
            a.zip(b, |a, b| unsafe { _mm256_add_epi16(a, b) })
        }

        #[inline(always)]
        fn sub_16(self, a: Halves, b: Halves) -> Halves {
            // SAFETY: AVX2 is proven.
            a.zip(b, |a, b| unsafe { _mm256_sub_epi16(a, b) })
        }

        #[inline(always)]
        fn mul_high_rounded(self, a: Halves, b: Halves) -> Halves {
            // SAFETY: AVX2 is proven.
            a.zip(b, |a, b| unsafe { _mm256_mulhrs_epi16(a, b) })
        }

        #[inline(always)]
        fn shift_left_16(self, a: Halves, bits: u32) -> Halves {
            // SAFETY: AVX2 is proven.
            a.zip(a, |a, _| unsafe {
                _mm256_sll_epi16(a, _mm_cvtsi32_si128(bits as i32))
            })
        }

        #[inline(always)]
        fn high_bytes(self, a: Halves) -> Halves {
            // SAFETY: AVX2 is proven.
            a.zip(a, |a, _| unsafe {
                _mm256_and_si256(a, _mm256_set1_epi16(!0xff))
            })
        }

        #[inline(always)]
        fn shift_right_16(self, a: Halves, bits: u32) -> Halves {
            // SAFETY: AVX2 is proven.
            a.zip(a, |a, _| unsafe {
                _mm256_sra_epi16(a, _mm_cvtsi32_si128(bits as i32))
            })
        }

        #[inline(always)]
        fn shift_left_32(self, a: Halves, bits: u32) -> Halves {
            // SAFETY: AVX2 is proven.
            a.zip(a, |a, _| unsafe {
                _mm256_sll_epi32(a, _mm_cvtsi32_si128(bits as i32))
            })
        }

        #[inline(always)]
        fn select_halves(self, low: Halves, high: Halves) -> Halves {
            // SAFETY: AVX2 is proven.
            low.zip(high, |low, high| unsafe {
                _mm256_blend_epi16::<0b1010_1010>(low, high)
            })
        }
    };
}

/// The line operations of [`RowScaledDot`](super::RowScaledDot) for AVX-512.
macro_rules! avx512_line_operations {
    () => {
        #[inline(always)]
        fn merge_bits<const LEFT: i32, const MASK: u8>(
            self,
            low: __m512i,
            bits: __m512i,
        ) -> __m512i {
            // low | bits & mask
            const MERGE: i32 = 0b1111_1000;
            // SAFETY: AVX-512 is proven.
            unsafe {
                // Bits of a neighbouring byte are masked away.
                let shift = _mm_cvtsi32_si128(LEFT.abs());
                let shifted = match LEFT >= 0 {
                    true => _mm512_sll_epi16(bits, shift),
                    false => _mm512_srl_epi16(bits, shift),
                };
                _mm512_ternarylogic_epi32::<MERGE>(low, shifted, _mm512_set1_epi8(MASK as i8))
            }
        }

        #[inline(always)]
        unsafe fn store_bytes(self, line: __m512i, to: *mut u8) {
            // SAFETY: the caller guarantees 64 bytes; AVX-512 is proven.
            unsafe { _mm512_storeu_si512(to.cast(), line) }
        }

        #[inline(always)]
        unsafe fn widen_u8(self, from: *const u8) -> __m512i {
            // SAFETY: the caller guarantees 32 bytes; AVX-512 is proven.
            unsafe { _mm512_cvtepu8_epi16(_mm256_loadu_si256(from.cast())) }
        }

        #[inline(always)]
        unsafe fn widen_i8(self, from: *const u8) -> __m512i {
            // SAFETY: the caller guarantees sixteen bytes; AVX-512 is proven.
            unsafe { _mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast())) }
        }

        #[inline(always)]
        unsafe fn widen_u16(self, from: *const u8) -> __m512i {
            // SAFETY: the caller guarantees 32 bytes; AVX-512 is proven.
            unsafe { _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast())) }
        }

        #[inline(always)]
        fn splat_16(self, value: i16) -> __m512i {
            // SAFETY: AVX-512 is proven.
            unsafe { _mm512_set1_epi16(value) }
        }

        #[inline(always)]
        fn add_16(self, a: __m512i, b: __m512i) -> __m512i {
            // SAFETY: AVX-512 is proven.
            unsafe { _mm512_add_epi16(a, b) }
        }

        #[inline(always)]
        fn sub_16(self, a: __m512i, b: __m512i) -> __m512i {
            // SAFETY: AVX-512 is proven.
            unsafe { _mm512_sub_epi16(a, b) }
        }

        #[inline(always)]
        fn mul_high_rounded(self, a: __m512i, b: __m512i) -> __m512i {
            // SAFETY: AVX-512 is proven.
            unsafe { _mm512_mulhrs_epi16(a, b) }
        }

        #[inline(always)]
        fn shift_left_16(self, a: __m512i, bits: u32) -> __m512i {
            // SAFETY: AVX-512 is proven.
            unsafe { _mm512_sll_epi16(a, _mm_cvtsi32_si128(bits as i32)) }
        }

        #[inline(always)]
        fn high_bytes(self, a: __m512i) -> __m512i {
            // SAFETY: AVX-512 is proven.
            unsafe { _mm512_and_si512(a, _mm512_set1_epi16(!0xff)) }
        }

        #[inline(always)]
        fn shift_right_16(self, a: __m512i, bits: u32) -> __m512i {
            // SAFETY: AVX-512 is proven.
            unsafe { _mm512_sra_epi16(a, _mm_cvtsi32_si128(bits as i32)) }
        }

        #[inline(always)]
        fn shift_left_32(self, a: __m512i, bits: u32) -> __m512i {
            // SAFETY: AVX-512 is proven.
            unsafe { _mm512_sll_epi32(a, _mm_cvtsi32_si128(bits as i32)) }
        }

        #[inline(always)]
        fn select_halves(self, low: __m512i, high: __m512i) -> __m512i {
            // SAFETY: AVX-512 is proven.
            unsafe { _mm512_mask_blend_epi16(ODD, low, high) }
        }
    };
}

pub(super) use {avx2_line_operations, avx512_line_operations};
