//! Decodes KV storage types to f32 lanes, sixteen at a time: exactly the numbers of `backend::row_codec`.

use crate::simd::{LANES, Simd};
use kv::QuantGroup;

/// The numbers 0 to 15.
const RAMP: [f32; LANES] = [
    0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.,
];

/// Decodes one KV storage type.
pub(crate) trait KvDecoder {
    /// Elements `16 · chunk` to `16 · chunk + 15` of a row of `dim`.
    ///
    /// # Safety
    /// A whole row must be readable at `row`, and those elements must be inside it.
    unsafe fn load<S: Simd>(s: S, row: *const u8, chunk: usize, dim: usize) -> S::V;

    /// The elements after the last whole chunk; lanes past the row's end are finite.
    ///
    /// # Safety
    /// A whole row must be readable at `row`, and `chunk` must be its partial one.
    unsafe fn load_part<S: Simd>(s: S, row: *const u8, chunk: usize, dim: usize) -> S::V;
}

macro_rules! plain {
    ($name:ident, $element:ty, $load:ident) => {
        pub(crate) struct $name;

        impl KvDecoder for $name {
            #[inline(always)]
            unsafe fn load<S: Simd>(s: S, row: *const u8, chunk: usize, _: usize) -> S::V {
                // SAFETY: as the caller guarantees; vector loads need no alignment.
                unsafe { s.$load(row.cast::<$element>().add(chunk * LANES)) }
            }

            #[inline(always)]
            unsafe fn load_part<S: Simd>(s: S, row: *const u8, chunk: usize, dim: usize) -> S::V {
                let mut lanes = [<$element>::default(); LANES];
                let bytes = (dim - chunk * LANES) * size_of::<$element>();
                // SAFETY: the caller guarantees the elements up to `dim`, fewer than sixteen.
                unsafe {
                    let from = row.add(chunk * LANES * size_of::<$element>());
                    std::ptr::copy_nonoverlapping(from, lanes.as_mut_ptr().cast::<u8>(), bytes);
                    s.$load(lanes.as_ptr())
                }
            }
        }
    };
}

plain!(F32, f32, load);
plain!(F16, u16, load_f16);
plain!(Bf16, u16, load_bf16);
plain!(F8E4m3, u8, load_e4m3);

/// A group's size as a type.
pub(crate) trait GroupLen {
    const LEN: usize;
}

pub(crate) struct G32;
pub(crate) struct G64;

impl GroupLen for G32 {
    const LEN: usize = QuantGroup::G32.len();
}

impl GroupLen for G64 {
    const LEN: usize = QuantGroup::G64.len();
}

/// Scale and offset of a chunk's group, and the address of the codes.
///
/// # Safety
/// A whole quantised row must be readable at `row`.
#[inline(always)]
unsafe fn affine<S: Simd, G: GroupLen>(
    s: S,
    row: *const u8,
    chunk: usize,
    dim: usize,
) -> (S::V, S::V, *const u8) {
    // SAFETY: the parameters take four bytes per group, and at least sixteen bytes of codes follow the last of them.
    unsafe {
        let [scale, offset, ..] = s.widen4(row.add(chunk * LANES / G::LEN * 4));
        (
            s.splat(scale),
            s.splat(offset),
            row.add(dim.div_ceil(G::LEN) * 4),
        )
    }
}

pub(crate) struct Q8<G>(std::marker::PhantomData<G>);

impl<G: GroupLen> KvDecoder for Q8<G> {
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, row: *const u8, chunk: usize, dim: usize) -> S::V {
        // SAFETY: as the caller guarantees; codes are padded to whole chunks.
        unsafe {
            let (scale, offset, codes) = affine::<S, G>(s, row, chunk, dim);
            s.add(s.mul(scale, s.load_u8(codes.add(chunk * LANES))), offset)
        }
    }

    #[inline(always)]
    unsafe fn load_part<S: Simd>(s: S, row: *const u8, chunk: usize, dim: usize) -> S::V {
        // SAFETY: padding makes the partial chunk whole.
        unsafe { Self::load(s, row, chunk, dim) }
    }
}

pub(crate) struct Q4<G>(std::marker::PhantomData<G>);

impl<G: GroupLen> KvDecoder for Q4<G> {
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, row: *const u8, chunk: usize, dim: usize) -> S::V {
        // SAFETY: as the caller guarantees; codes are padded to pairs of chunks, which share sixteen bytes.
        unsafe {
            let (scale, offset, codes) = affine::<S, G>(s, row, chunk, dim);
            let values = s.add(s.mul(scale, s.load(RAMP.as_ptr())), offset);
            let [low, high] = s.lookup_nibbles(codes.add(chunk / 2 * LANES), values, values);
            if chunk.is_multiple_of(2) { low } else { high }
        }
    }

    #[inline(always)]
    unsafe fn load_part<S: Simd>(s: S, row: *const u8, chunk: usize, dim: usize) -> S::V {
        // SAFETY: padding makes the partial chunk whole.
        unsafe { Self::load(s, row, chunk, dim) }
    }
}

/// Runs `$body` with `$E` as the decoder of `$storage`.
macro_rules! with_storage {
    ($storage:expr, $E:ident => $body:expr) => {{
        use kv::{KvStorage, QuantGroup};
        use $crate::kernels::decode::kv_rows;
        match $storage {
            KvStorage::F32 => {
                type $E = kv_rows::F32;
                $body
            }
            KvStorage::F16 => {
                type $E = kv_rows::F16;
                $body
            }
            KvStorage::BF16 => {
                type $E = kv_rows::Bf16;
                $body
            }
            KvStorage::F8E4M3 => {
                type $E = kv_rows::F8E4m3;
                $body
            }
            KvStorage::Q8(QuantGroup::G32) => {
                type $E = kv_rows::Q8<kv_rows::G32>;
                $body
            }
            KvStorage::Q8(QuantGroup::G64) => {
                type $E = kv_rows::Q8<kv_rows::G64>;
                $body
            }
            // Rotated rows are read as they are stored; the queries and the output are rotated.
            KvStorage::Q4(QuantGroup::G32) | KvStorage::Q4Rotated => {
                type $E = kv_rows::Q4<kv_rows::G32>;
                $body
            }
            KvStorage::Q4(QuantGroup::G64) => {
                type $E = kv_rows::Q4<kv_rows::G64>;
                $body
            }
        }
    }};
}
pub(crate) use with_storage;
