//! Decodes weight formats to f32 lanes: exactly the numbers of `base::quant`, with vector instructions where they pay.

use crate::simd::{LANES, Simd};
use base::quant;

/// Decodes one weight format.
pub(crate) trait WeightDecoder {
    /// Elements in a block, a multiple of sixteen.
    const LEN: usize;
    /// Bytes in a block.
    const BYTES: usize;

    /// Decodes one block.
    ///
    /// # Safety
    /// `BYTES` bytes must be readable at `block` and `LEN` f32 writable at `out`.
    unsafe fn decode<S: Simd>(s: S, block: *const u8, out: *mut f32);
}

/// The f16 at `p` as f32.
///
/// # Safety
/// Two bytes must be readable at `p`.
#[inline(always)]
unsafe fn half_at<S: Simd>(s: S, p: *const u8) -> f32 {
    // SAFETY: the caller guarantees two bytes.
    s.widen(u16::from_le(unsafe { p.cast::<u16>().read_unaligned() }))
}

/// The numbers 0 to 15.
pub(super) const RAMP: [f32; LANES] = [
    0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.,
];

#[inline(always)]
fn table<S: Simd>(s: S, values: &[f32; LANES]) -> S::V {
    // SAFETY: the array holds sixteen f32.
    unsafe { s.load(values.as_ptr()) }
}

macro_rules! plain {
    ($name:ident, $bytes:expr, $load:ident, $element:ty) => {
        pub(crate) struct $name;

        impl WeightDecoder for $name {
            const LEN: usize = LANES;
            const BYTES: usize = $bytes * LANES;

            #[inline(always)]
            unsafe fn decode<S: Simd>(s: S, block: *const u8, out: *mut f32) {
                // SAFETY: the caller guarantees sixteen elements on both sides.
                unsafe { s.store(out, s.$load(block.cast::<$element>())) }
            }
        }
    };
}

plain!(F32, 4, load, f32);
plain!(F16, 2, load_f16, u16);
plain!(Bf16, 2, load_bf16, u16);

/// Formats without a vector decoder: the scalar one of `base`.
macro_rules! scalar {
    ($($name:ident: $len:expr, $bytes:expr, $decode:path;)*) => {$(
        pub(crate) struct $name;

        impl WeightDecoder for $name {
            const LEN: usize = $len;
            const BYTES: usize = $bytes;

            #[inline(always)]
            unsafe fn decode<S: Simd>(_: S, block: *const u8, out: *mut f32) {
                // SAFETY: the caller guarantees one block and one block's elements; bytes have no alignment, and
                // `out` is an f32 buffer.
                unsafe { $decode(&*block.cast::<[u8; $bytes]>(), &mut *out.cast::<[f32; $len]>()) }
            }
        }
    )*};
}

scalar! {
    Q5_0: 32, 22, quant::q5_0;
    Q5_1: 32, 24, quant::q5_1;
    Q2K: 256, 84, quant::q2_k;
    Q3K: 256, 110, quant::q3_k;
    Q5K: 256, 176, quant::q5_k;
    Iq4Xs: 256, 136, quant::iq4_xs;
}

pub(crate) struct Q4_0;

impl WeightDecoder for Q4_0 {
    const LEN: usize = 32;
    const BYTES: usize = 18;

    #[inline(always)]
    unsafe fn decode<S: Simd>(s: S, block: *const u8, out: *mut f32) {
        // SAFETY: the caller guarantees the block and the output.
        unsafe {
            let centred = s.sub(table(s, &RAMP), s.splat(8.0));
            let values = s.scaled(block, centred);
            let [low, high] = s.lookup_nibbles(block.add(2), values, values);
            s.store(out, low);
            s.store(out.add(LANES), high);
        }
    }
}

pub(crate) struct Q4_1;

impl WeightDecoder for Q4_1 {
    const LEN: usize = 32;
    const BYTES: usize = 20;

    #[inline(always)]
    unsafe fn decode<S: Simd>(s: S, block: *const u8, out: *mut f32) {
        // SAFETY: the caller guarantees the block and the output.
        unsafe {
            let values = s.affine(block, table(s, &RAMP));
            let [low, high] = s.lookup_nibbles(block.add(4), values, values);
            s.store(out, low);
            s.store(out.add(LANES), high);
        }
    }
}

pub(crate) struct Iq4Nl;

impl WeightDecoder for Iq4Nl {
    const LEN: usize = 32;
    const BYTES: usize = 18;

    #[inline(always)]
    unsafe fn decode<S: Simd>(s: S, block: *const u8, out: *mut f32) {
        // SAFETY: the caller guarantees the block and the output; the value table holds sixteen bytes.
        unsafe {
            let values = s.scaled(block, s.load_i8(quant::IQ4_VALUES.as_ptr()));
            let [low, high] = s.lookup_nibbles(block.add(2), values, values);
            s.store(out, low);
            s.store(out.add(LANES), high);
        }
    }
}

pub(crate) struct Q8_0;

impl WeightDecoder for Q8_0 {
    const LEN: usize = 32;
    const BYTES: usize = 34;

    #[inline(always)]
    unsafe fn decode<S: Simd>(s: S, block: *const u8, out: *mut f32) {
        // SAFETY: the caller guarantees the block and the output.
        unsafe {
            let [scale, ..] = s.widen4(block);
            let scale = s.splat(scale);
            let quants = block.add(2).cast::<i8>();
            s.store(out, s.mul(scale, s.load_i8(quants)));
            s.store(out.add(LANES), s.mul(scale, s.load_i8(quants.add(LANES))));
        }
    }
}

pub(crate) struct Q4K;

impl WeightDecoder for Q4K {
    const LEN: usize = 256;
    const BYTES: usize = 144;

    #[inline(always)]
    unsafe fn decode<S: Simd>(s: S, block: *const u8, out: *mut f32) {
        // SAFETY: the caller guarantees the block and the output: four groups of 32 bytes and 64 elements follow the
        // 16 bytes of scales.
        unsafe {
            let [scale, min, ..] = s.widen4(block);
            let (scales, mins) = quant::scales_mins(&*block.add(4).cast::<[u8; 12]>());
            let values = |i: usize| {
                let scaled = s.mul(s.splat(scale * scales[i] as f32), table(s, &RAMP));
                s.sub(scaled, s.splat(min * mins[i] as f32))
            };
            for group in 0..4 {
                let (first, second) = (values(2 * group), values(2 * group + 1));
                for half in 0..2 {
                    let quants = block.add(16 + 32 * group + LANES * half);
                    let [low, high] = s.lookup_nibbles(quants, first, second);
                    s.store(out.add(64 * group + LANES * half), low);
                    s.store(out.add(64 * group + 32 + LANES * half), high);
                }
            }
        }
    }
}

pub(crate) struct Q6K;

impl WeightDecoder for Q6K {
    const LEN: usize = 256;
    const BYTES: usize = 210;

    #[inline(always)]
    unsafe fn decode<S: Simd>(s: S, block: *const u8, out: *mut f32) {
        // SAFETY: the caller guarantees the block (128 bytes of low bits, 64 of high bits, 16 scales, one f16) and 256
        // outputs.
        unsafe {
            let scale = half_at(s, block.add(208));
            let scales = block.add(192).cast::<i8>();
            let mut quants = [0i8; 256];
            for half in 0..2 {
                let (low, high) = (block.add(64 * half), block.add(128 + 32 * half));
                for i in 0..32 {
                    let (a, b, h) = (*low.add(i), *low.add(32 + i), *high.add(i));
                    let q = quants.as_mut_ptr().add(128 * half + i);
                    *q = ((a & 15) | (h & 3) << 4) as i8 - 32;
                    *q.add(32) = ((b & 15) | (h >> 2 & 3) << 4) as i8 - 32;
                    *q.add(64) = ((a >> 4) | (h >> 4 & 3) << 4) as i8 - 32;
                    *q.add(96) = ((b >> 4) | (h >> 6) << 4) as i8 - 32;
                }
            }
            for i in 0..16 {
                let factor = s.splat(scale * *scales.add(i) as f32);
                s.store(
                    out.add(LANES * i),
                    s.mul(factor, s.load_i8(quants.as_ptr().add(LANES * i))),
                );
            }
        }
    }
}

/// Runs `$body` with `$F` as the decoder of `$dtype`.
macro_rules! with_format {
    ($dtype:expr, $F:ident => $body:expr) => {{
        use $crate::kernels::decode::weights as formats;
        match $dtype {
            base::DType::F32 => {
                type $F = formats::F32;
                $body
            }
            base::DType::F16 => {
                type $F = formats::F16;
                $body
            }
            base::DType::BF16 => {
                type $F = formats::Bf16;
                $body
            }
            base::DType::Q4_0 => {
                type $F = formats::Q4_0;
                $body
            }
            base::DType::Q4_1 => {
                type $F = formats::Q4_1;
                $body
            }
            base::DType::Q5_0 => {
                type $F = formats::Q5_0;
                $body
            }
            base::DType::Q5_1 => {
                type $F = formats::Q5_1;
                $body
            }
            base::DType::Q8_0 => {
                type $F = formats::Q8_0;
                $body
            }
            base::DType::Q2_K => {
                type $F = formats::Q2K;
                $body
            }
            base::DType::Q3_K => {
                type $F = formats::Q3K;
                $body
            }
            base::DType::Q4_K => {
                type $F = formats::Q4K;
                $body
            }
            base::DType::Q5_K => {
                type $F = formats::Q5K;
                $body
            }
            base::DType::Q6_K => {
                type $F = formats::Q6K;
                $body
            }
            base::DType::IQ4_NL => {
                type $F = formats::Iq4Nl;
                $body
            }
            base::DType::IQ4_XS => {
                type $F = formats::Iq4Xs;
                $body
            }
            other => unreachable!("{other} weights are refused by type inference"),
        }
    }};
}
pub(crate) use with_format;
