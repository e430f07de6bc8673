//! Lanes as an array: works on every CPU, and is the reference that other tiers are tested against.

use super::{Kernel, LANES, Simd};
use backend::e4m3;
use half::{bf16, f16};
use std::array::from_fn;

/// The tier without special instructions.
///
/// Its longer operations are calls: inlined into every kernel, they would be a third of the crate's code.
#[derive(Clone, Copy)]
pub(crate) struct Generic;

impl Simd for Generic {
    type V = [f32; LANES];

    const REGISTER_TILE: (usize, usize) = (2, 2);

    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.on_generic()
    }

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        [x; LANES]
    }

    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        from_fn(|i| a[i] + b[i])
    }

    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        from_fn(|i| a[i] - b[i])
    }

    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        from_fn(|i| a[i] * b[i])
    }

    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        from_fn(|i| a[i] / b[i])
    }

    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        from_fn(|i| a[i] * b[i] + c[i])
    }

    #[inline(never)]
    fn transpose(self, rows: [Self::V; LANES]) -> [Self::V; LANES] {
        from_fn(|i| from_fn(|j| rows[j][i]))
    }

    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        from_fn(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }

    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        from_fn(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }

    #[inline(never)]
    fn round(self, a: Self::V) -> Self::V {
        a.map(f32::round_ties_even)
    }

    #[inline(never)]
    fn exp(self, x: Self::V) -> Self::V {
        super::exp(self, x)
    }

    #[inline(never)]
    fn exp2_nonpositive(self, x: Self::V) -> Self::V {
        super::exp2_nonpositive(self, x)
    }

    #[inline(always)]
    fn pow2(self, n: Self::V) -> Self::V {
        n.map(|n| f32::from_bits(((n as i32 + 127) << 23) as u32))
    }

    #[inline(always)]
    fn any_gt(self, a: Self::V, b: Self::V) -> bool {
        a.iter().zip(b).any(|(a, b)| *a > b)
    }

    #[inline(always)]
    fn select_ge_or_zero(self, x: Self::V, limit: Self::V, v: Self::V) -> Self::V {
        from_fn(|i| if x[i] >= limit[i] { v[i] } else { 0.0 })
    }

    #[inline(always)]
    fn reduce_sum(self, mut a: Self::V) -> f32 {
        let mut width = LANES / 2;
        while width > 0 {
            for i in 0..width {
                a[i] += a[i + width];
            }
            width /= 2;
        }
        a[0]
    }

    #[inline(always)]
    fn reduce_max(self, a: Self::V) -> f32 {
        a.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }

    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> Self::V {
        // SAFETY: the caller guarantees sixteen f32 at `p`; no alignment is assumed.
        unsafe { p.cast::<Self::V>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: Self::V) {
        // SAFETY: the caller guarantees sixteen f32 at `p`; no alignment is assumed.
        unsafe { p.cast::<Self::V>().write_unaligned(v) }
    }

    #[inline(never)]
    unsafe fn load_f16(self, p: *const u16) -> Self::V {
        // SAFETY: the caller guarantees sixteen halves at `p`; no alignment is assumed.
        let halves = unsafe { p.cast::<[u16; LANES]>().read_unaligned() };
        halves.map(|h| f16::from_bits(h).to_f32())
    }

    #[inline(never)]
    unsafe fn store_f16(self, p: *mut u16, v: Self::V) {
        let halves = v.map(|x| f16::from_f32(x).to_bits());
        // SAFETY: the caller guarantees sixteen halves at `p`; no alignment is assumed.
        unsafe { p.cast::<[u16; LANES]>().write_unaligned(halves) }
    }

    #[inline(always)]
    unsafe fn widen4(self, p: *const u8) -> [f32; 4] {
        // SAFETY: the caller guarantees eight bytes; no alignment is assumed.
        unsafe { p.cast::<[u16; 4]>().read_unaligned() }.map(|h| f16::from_bits(h).to_f32())
    }

    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> Self::V {
        // SAFETY: the caller guarantees sixteen halves at `p`; no alignment is assumed.
        let halves = unsafe { p.cast::<[u16; LANES]>().read_unaligned() };
        halves.map(|h| bf16::from_bits(h).to_f32())
    }

    #[inline(never)]
    unsafe fn load_e4m3(self, p: *const u8) -> Self::V {
        // SAFETY: the caller guarantees sixteen bytes at `p`.
        unsafe { p.cast::<[u8; LANES]>().read() }.map(e4m3::decode)
    }

    #[inline(always)]
    unsafe fn load_u8(self, p: *const u8) -> Self::V {
        // SAFETY: the caller guarantees sixteen bytes at `p`.
        unsafe { p.cast::<[u8; LANES]>().read() }.map(f32::from)
    }

    #[inline(never)]
    unsafe fn lookup_nibbles(self, p: *const u8, low: Self::V, high: Self::V) -> [Self::V; 2] {
        // SAFETY: the caller guarantees sixteen bytes at `p`.
        let bytes = unsafe { p.cast::<[u8; LANES]>().read() };
        [
            bytes.map(|b| low[(b & 15) as usize]),
            bytes.map(|b| high[(b >> 4) as usize]),
        ]
    }
}
