//! Decodes f16 and bf16 weights to f32 lanes. Quantised weights are packed before they are multiplied (`matmul/quantised`).

use crate::simd::{LANES, Simd};

/// Decodes sixteen elements of a type at a time.
pub(crate) trait HalfDecoder {
    /// Elements decoded together.
    const LEN: usize;
    /// Their bytes.
    const BYTES: usize;

    /// Decodes `LEN` elements.
    ///
    /// # Safety
    /// `BYTES` bytes must be readable at `block` and `LEN` f32 writable at `out`.
    unsafe fn decode<S: Simd>(s: S, block: *const u8, out: *mut f32);
}

macro_rules! half {
    ($name:ident, $load:ident) => {
        pub(crate) struct $name;

        impl HalfDecoder for $name {
            const LEN: usize = LANES;
            const BYTES: usize = size_of::<u16>() * LANES;

            #[inline(always)]
            unsafe fn decode<S: Simd>(s: S, block: *const u8, out: *mut f32) {
                // SAFETY: the caller guarantees sixteen elements on both sides.
                unsafe { s.store(out, s.$load(block.cast::<u16>())) }
            }
        }
    };
}

half!(F16, load_f16);
half!(Bf16, load_bf16);
