//! Kernels: code that is compiled once per tier.

#[cfg(target_arch = "x86_64")]
use super::{Avx2, Avx512};
use super::{Generic, RowScaledDot, Simd};

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

    /// The body compiled for AVX-512 with byte dot products.
    ///
    /// # Safety
    /// The CPU must have the features.
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    unsafe fn on_avx512vnni(self) {
        self.run(Avx512::<true>::new());
    }
}
