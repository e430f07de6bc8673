//! Vectors of sixteen f32 lanes on every instruction set, and kernels: code that is compiled once per tier.
//!
//! All tiers have the same sixteen lanes and the same order of horizontal sums, so a kernel has the same order of
//! operations everywhere; tiers differ only in whether a multiply-add is rounded once or twice.

pub(crate) mod amx;
mod block_scaled_dot;
mod byte_lines;
mod generic;
mod row_scaled_dot;
#[cfg(target_arch = "x86_64")]
mod x86;
#[cfg(target_arch = "x86_64")]
mod x86_bf16_expand;
#[cfg(target_arch = "x86_64")]
mod x86_block_scaled_dot;
#[cfg(target_arch = "x86_64")]
mod x86_byte_lines;
#[cfg(target_arch = "x86_64")]
mod x86_row_scaled_dot;
#[cfg(target_arch = "x86_64")]
mod x86_row_scaled_expand;
#[cfg(target_arch = "x86_64")]
mod x86_row_scaled_line;

pub(crate) use block_scaled_dot::BlockScaledDot;
pub(crate) use byte_lines::ByteLines;
pub(crate) use generic::Generic;
pub(crate) use row_scaled_dot::{MAX_ROW_SCALED, RowScaledDot};
#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2, Avx512};
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_bf16_expand::{BF16_WEIGHT_UNIT, QuantBits};

/// Lanes of a vector.
pub(crate) const LANES: usize = 16;

/// A proof that the CPU has an instruction set, with its vector operations.
pub(crate) trait Simd: Copy {
    /// Sixteen f32.
    type V: Copy;

    /// Weight rows and activation rows of this tier's register tile.
    const REGISTER_TILE: (usize, usize);

    /// Runs a kernel compiled for this tier as a call of its own. The parts of a large kernel are such calls: inlined
    /// into one function, they take the compiler minutes.
    fn call<K: Kernel>(self, kernel: K) -> K::Output;

    fn splat(self, x: f32) -> Self::V;
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a · b + c`.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// Rounds to the nearest integer.
    fn round(self, a: Self::V) -> Self::V;
    /// `2ⁿ` for integral `n` from -126 to 127.
    fn pow2(self, n: Self::V) -> Self::V;
    /// Whether any lane of `a` is larger than the same lane of `b`.
    fn any_gt(self, a: Self::V, b: Self::V) -> bool;
    /// `v` where `x ≥ limit`, zero elsewhere.
    fn select_ge_or_zero(self, x: Self::V, limit: Self::V, v: Self::V) -> Self::V;
    /// The sum of all lanes: adds halves, then quarters, eighths, sixteenths.
    fn reduce_sum(self, a: Self::V) -> f32;
    /// The largest lane.
    fn reduce_max(self, a: Self::V) -> f32;

    /// # Safety
    /// Sixteen f32 must be readable at `p`.
    unsafe fn load(self, p: *const f32) -> Self::V;
    /// # Safety
    /// Sixteen f32 must be writable at `p`.
    unsafe fn store(self, p: *mut f32, v: Self::V);
    /// # Safety
    /// Sixteen half-precision numbers must be readable at `p`.
    unsafe fn load_f16(self, p: *const u16) -> Self::V;
    /// Rounds to half precision, ties to even.
    ///
    /// # Safety
    /// Sixteen half-precision numbers must be writable at `p`.
    unsafe fn store_f16(self, p: *mut u16, v: Self::V);
    /// Converts four f16 to scalars.
    ///
    /// # Safety
    /// Eight bytes must be readable at `p`.
    unsafe fn widen4(self, p: *const u8) -> [f32; 4];
    /// # Safety
    /// Sixteen bfloat16 must be readable at `p`.
    unsafe fn load_bf16(self, p: *const u16) -> Self::V;
    /// Decodes sixteen FP8 numbers (e4m3), as `backend::e4m3` does.
    ///
    /// # Safety
    /// Sixteen bytes must be readable at `p`.
    unsafe fn load_e4m3(self, p: *const u8) -> Self::V;
    /// # Safety
    /// Sixteen bytes must be readable at `p`.
    unsafe fn load_u8(self, p: *const u8) -> Self::V;
    /// Looks up the low and the high nibbles of sixteen bytes in two tables of sixteen entries.
    ///
    /// # Safety
    /// Sixteen bytes must be readable at `p`.
    unsafe fn lookup_nibbles(self, p: *const u8, low: Self::V, high: Self::V) -> [Self::V; 2];

    /// Transposes sixteen vectors: lane `j` of result `i` is lane `i` of vector `j`.
    fn transpose(self, rows: [Self::V; LANES]) -> [Self::V; LANES];

    /// Prefetches the cache line at `p` into L1. Any address is allowed, also an invalid one.
    #[inline(always)]
    fn prefetch(self, _p: *const u8) {}

    #[inline(always)]
    fn zero(self) -> Self::V {
        self.splat(0.0)
    }

    /// The first `n < 16` elements at `p`, followed by zeros.
    ///
    /// # Safety
    /// `n` f32 must be readable at `p`.
    #[inline(always)]
    unsafe fn load_part(self, p: *const f32, n: usize) -> Self::V {
        let mut lanes = [0.0; LANES];
        // SAFETY: the caller guarantees `n` elements, and `n` is less than the sixteen of `lanes`.
        unsafe {
            std::ptr::copy_nonoverlapping(p, lanes.as_mut_ptr(), n.min(LANES));
            self.load(lanes.as_ptr())
        }
    }

    /// Stores the first `n ≤ 16` lanes.
    ///
    /// # Safety
    /// `n` f32 must be writable at `p`.
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, v: Self::V, n: usize) {
        let mut lanes = [0.0; LANES];
        // SAFETY: `lanes` holds sixteen, and the caller guarantees `n` at `p`.
        unsafe {
            self.store(lanes.as_mut_ptr(), v);
            std::ptr::copy_nonoverlapping(lanes.as_ptr(), p, n.min(LANES));
        }
    }

    /// `eˣ` to about one unit in the last place; exactly zero below -87.
    #[inline(always)]
    fn exp(self, x: Self::V) -> Self::V {
        exp(self, x)
    }

    /// `v · 2ⁿ` for integral `n` from -126 to 127.
    #[inline(always)]
    fn times_pow2(self, v: Self::V, n: Self::V) -> Self::V {
        self.mul(v, self.pow2(n))
    }

    /// `2ˣ` for `x ≤ 0` to about one unit in the last place; exactly zero below -125.
    #[inline(always)]
    fn exp2_nonpositive(self, x: Self::V) -> Self::V {
        exp2_nonpositive(self, x)
    }

    /// `tanh x`.
    #[inline(always)]
    fn tanh(self, x: Self::V) -> Self::V {
        let one = self.splat(1.0);
        let e = self.exp(self.mul(x, self.splat(2.0)));
        self.sub(one, self.div(self.splat(2.0), self.add(e, one)))
    }
}

/// Code that is compiled once per tier.
///
/// Implementations of `run` and everything they call that is generic over [`Simd`] must be `#[inline(always)]`: only
/// what is inlined into `on_avx2` and `on_avx512` is compiled with the tier's features. Those are methods of the kernel
/// because the compiler then puts each kernel's code into the codegen unit of its module; as functions of this module
/// they would all be in one unit, and one core would compile it.
pub(crate) trait Kernel: Sized {
    /// What the kernel returns.
    type Output;
    /// The kernel's body.
    fn run<S: Simd>(self, simd: S) -> Self::Output;

    /// The body without special instructions.
    #[inline(never)]
    fn on_generic(self) -> Self::Output {
        self.run(Generic)
    }

    /// The body compiled for AVX2.
    ///
    /// # Safety
    /// The CPU must have the features.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn on_avx2(self) -> Self::Output {
        self.run(Avx2::<false>::new())
    }

    /// The body compiled for AVX-512.
    ///
    /// # Safety
    /// The CPU must have the features.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn on_avx512(self) -> Self::Output {
        self.run(Avx512::<false>::new())
    }
}

/// As [`Kernel`], for kernels with integer dot products, which have more tiers.
pub(crate) trait IntegerKernel: Sized {
    /// What the kernel returns.
    type Output;
    /// The kernel's body.
    fn run<S: RowScaledDot>(self, simd: S) -> Self::Output;

    /// The body without special instructions.
    #[inline(never)]
    fn on_generic(self) -> Self::Output {
        self.run(Generic)
    }

    /// The body compiled for AVX2.
    ///
    /// # Safety
    /// The CPU must have the features.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn on_avx2(self) -> Self::Output {
        self.run(Avx2::<false>::new())
    }

    /// The body compiled for AVX2 with byte dot products.
    ///
    /// # Safety
    /// The CPU must have the features.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
    unsafe fn on_avxvnni(self) -> Self::Output {
        self.run(Avx2::<true>::new())
    }

    /// The body compiled for AVX-512.
    ///
    /// # Safety
    /// The CPU must have the features.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn on_avx512(self) -> Self::Output {
        self.run(Avx512::<false>::new())
    }

    /// The body compiled for AVX-512 with byte dot products.
    ///
    /// # Safety
    /// The CPU must have the features.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    unsafe fn on_avx512vnni(self) -> Self::Output {
        self.run(Avx512::<true>::new())
    }
}

/// As [`Kernel`], for kernels on matrix tiles.
#[cfg(target_arch = "x86_64")]
pub(crate) trait TileKernel: Sized {
    /// The kernel's body.
    fn run(self, simd: Avx512<true>);

    /// The body compiled for the vectors of CPUs with tiles.
    ///
    /// # Safety
    /// The CPU must have the features.
    #[target_feature(
        enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,avx512fp16"
    )]
    unsafe fn on_amx(self) {
        self.run(Avx512::<true>::new());
    }
}

#[inline(always)]
fn exp<S: Simd>(s: S, x: S::V) -> S::V {
    let clamped = s.max(s.min(x, s.splat(88.0)), s.splat(-87.0));
    let n = s.round(s.mul(clamped, s.splat(std::f32::consts::LOG2_E)));
    // ln 2 in two parts, so that the reduced argument keeps all its bits.
    let r = s.fma(n, s.splat(-0.693_359_4), clamped);
    let r = s.fma(n, s.splat(2.121_944_4e-4), r);
    let mut p = s.splat(1.0 / 5040.0);
    for c in [
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
        1.0,
        1.0,
    ] {
        p = s.fma(p, r, s.splat(c));
    }
    s.select_ge_or_zero(x, s.splat(-87.0), s.times_pow2(p, n))
}

#[inline(always)]
fn exp2_nonpositive<S: Simd>(s: S, x: S::V) -> S::V {
    let clamped = s.max(x, s.splat(-125.0));
    let n = s.round(clamped);
    let r = s.sub(clamped, n);
    let mut p = s.splat(1.534_581_2e-4);
    for c in [
        1.339_993_1e-3,
        9.618_489e-3,
        5.550_328_6e-2,
        0.240_226_46,
        std::f32::consts::LN_2,
        1.0,
    ] {
        p = s.fma(p, r, s.splat(c));
    }
    s.select_ge_or_zero(x, s.splat(-125.0), s.times_pow2(p, n))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;

    struct AllOps;

    impl Kernel for AllOps {
        type Output = Vec<f32>;

        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> Vec<f32> {
            let mut out = Vec::new();
            let mut push = |v: S::V| {
                let mut lanes = [0.0; LANES];
                // SAFETY: `lanes` holds sixteen f32.
                unsafe { s.store(lanes.as_mut_ptr(), v) };
                out.extend(lanes);
            };
            let ramp: Vec<f32> = (0..32).map(|i| i as f32 * 1.25 - 20.0).collect();
            let halves: Vec<u16> = (0..16)
                .map(|i| half::f16::from_f32(i as f32 * 0.37 - 2.0).to_bits())
                .collect();
            let brains: Vec<u16> = (0..16)
                .map(|i| half::bf16::from_f32(i as f32 * 0.37 - 2.0).to_bits())
                .collect();
            let bytes: Vec<u8> = (0..16).map(|i| (i * 37 + 5) as u8).collect();
            // SAFETY: every buffer above holds at least the sixteen elements read.
            unsafe {
                let (a, b) = (s.load(ramp.as_ptr()), s.load(ramp.as_ptr().add(16)));
                for v in [
                    s.add(a, b),
                    s.sub(a, b),
                    s.mul(a, b),
                    s.div(a, b),
                    s.max(a, b),
                    s.min(a, b),
                    s.round(a),
                ] {
                    push(v);
                }
                push(s.pow2(s.round(a)));
                push(s.times_pow2(b, s.round(a)));
                push(s.select_ge_or_zero(a, s.splat(-10.0), b));
                for limit in [-30.0, 0.0, 30.0] {
                    let any = s.any_gt(a, s.splat(limit));
                    push(s.splat(f32::from(u8::from(any))));
                }
                push(s.load_f16(halves.as_ptr()));
                push(s.load_bf16(brains.as_ptr()));
                let mut rounded = [0; LANES];
                s.store_f16(rounded.as_mut_ptr(), s.mul(a, s.splat(1e4)));
                push(s.load_f16(rounded.as_ptr()));
                s.store_f16(rounded.as_mut_ptr(), s.mul(a, s.splat(1e-6)));
                push(s.load_f16(rounded.as_ptr()));
                push(s.load_u8(bytes.as_ptr()));
                for v in s.lookup_nibbles(bytes.as_ptr(), a, b) {
                    push(v);
                }
                push(s.load_part(ramp.as_ptr(), 5));
                for x in s.widen4(halves.as_ptr().cast()) {
                    push(s.splat(x));
                }
                let mut square = [a; LANES];
                for (i, row) in square.iter_mut().enumerate() {
                    *row = s.mul(a, s.splat(i as f32 + 0.5));
                }
                for row in s.transpose(square) {
                    push(row);
                }
                push(s.splat(s.reduce_sum(a)));
                push(s.splat(s.reduce_max(a)));
            }
            out
        }
    }

    #[test]
    fn every_tier_has_the_generic_tier_s_lanes() {
        let expect = Isa::GENERIC.run(AllOps);
        for isa in Isa::available() {
            assert_eq!(isa.run(AllOps), expect, "{isa}");
        }
    }

    struct AllE4m3;

    impl Kernel for AllE4m3 {
        type Output = [f32; 256];

        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> [f32; 256] {
            let codes: [u8; 256] = std::array::from_fn(|code| code as u8);
            let mut out = [0.0; 256];
            for from in (0..256).step_by(LANES) {
                // SAFETY: sixteen codes and sixteen numbers begin at `from`.
                unsafe {
                    s.store(
                        out[from..].as_mut_ptr(),
                        s.load_e4m3(codes[from..].as_ptr()),
                    )
                };
            }
            out
        }
    }

    #[test]
    fn every_tier_decodes_all_numbers_of_fp8() {
        for isa in Isa::available() {
            for (code, found) in isa.run(AllE4m3).into_iter().enumerate() {
                let expect = backend::e4m3::decode(code as u8);
                let same = found.to_bits() == expect.to_bits();
                assert!(
                    same || found.is_nan() && expect.is_nan(),
                    "{isa}: {code:#x}"
                );
            }
        }
    }

    struct ErrorSweep(fn(f32) -> f32, bool);

    impl Kernel for ErrorSweep {
        type Output = f32;

        /// The largest relative error over a sweep.
        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> f32 {
            let mut worst = 0.0f32;
            for i in -8600..8800 {
                let x = i as f32 * 0.01 + 0.003;
                let v = if self.1 {
                    s.exp(s.splat(x))
                } else {
                    s.tanh(s.splat(x))
                };
                let (found, expect) = (s.reduce_max(v), (self.0)(x));
                worst = worst.max(
                    (found - expect).abs() / expect.abs().max(if self.1 { 1e-37 } else { 1.0 }),
                );
            }
            for i in 0..12_500 {
                let x = i as f32 * -0.01;
                let (found, expect) = (s.reduce_max(s.exp2_nonpositive(s.splat(x))), x.exp2());
                assert!(
                    (found - expect).abs() <= 2.5e-7 * expect,
                    "2^{x} is not {found:e}"
                );
            }
            assert_eq!(
                s.reduce_max(s.exp2_nonpositive(s.splat(f32::NEG_INFINITY))),
                0.0
            );
            assert_eq!(s.reduce_max(s.exp2_nonpositive(s.splat(0.0))), 1.0);
            assert_eq!(s.reduce_max(s.exp(s.splat(f32::NEG_INFINITY))), 0.0);
            assert_eq!(s.reduce_max(s.exp(s.splat(0.0))), 1.0);
            worst
        }
    }

    #[test]
    fn exp_and_tanh_are_close() {
        for isa in Isa::available() {
            let (exp, tanh) = (
                isa.run(ErrorSweep(f32::exp, true)),
                isa.run(ErrorSweep(f32::tanh, false)),
            );
            assert!(
                exp < 3e-7 && tanh < 3e-7,
                "{isa}: exp {exp:e}, tanh {tanh:e}"
            );
        }
    }
}
