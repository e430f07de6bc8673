//! Functions of vectors, as types: code that is not inlined into its tier's entry is compiled without the tier's
//! features, and a closure cannot be told to inline.

use crate::simd::Simd;

/// A function of one or two vectors; functions of one ignore `b`.
pub(crate) trait Map: Copy {
    fn apply<S: Simd>(self, s: S, a: S::V, b: S::V) -> S::V;
}

macro_rules! maps {
    ($($name:ident $(($($field:ty),*))?, ($this:pat, $s:ident, $a:pat, $b:pat) => $body:expr;)*) => {$(
        #[derive(Clone, Copy)]
        pub(crate) struct $name $((pub(crate) $($field),*))?;

        impl Map for $name {
            #[inline(always)]
            fn apply<S: Simd>(self, $s: S, $a: S::V, $b: S::V) -> S::V {
                let $this = self;
                $body
            }
        }
    )*};
}

maps! {
    Add, (_, s, a, b) => s.add(a, b);
    Mul, (_, s, a, b) => s.mul(a, b);
    Scale(f32), (Scale(factor), s, a, _) => s.mul(a, s.splat(factor));
    SoftCap(f32), (SoftCap(cap), s, a, _) => s.mul(s.splat(cap), s.tanh(s.div(a, s.splat(cap))));
    Silu, (_, s, a, _) => s.div(a, s.add(s.splat(1.0), s.exp(s.sub(s.zero(), a))));
    GeluTanh, (_, s, a, _) => gelu_tanh(s, a);
    GeluErf, (_, s, a, _) => gelu_erf(s, a);
}

/// An activation times the other operand.
#[derive(Clone, Copy)]
pub(crate) struct Gated<F>(pub(crate) F);

impl<F: Map> Map for Gated<F> {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, a: S::V, b: S::V) -> S::V {
        s.mul(self.0.apply(s, a, b), b)
    }
}

/// Calls `$body` with `$f` as the function of an activation.
macro_rules! activate {
    ($activation:expr, $f:ident => $body:expr) => {{
        use graph::ops::Activation;
        use $crate::kernels::functions;
        match $activation {
            Activation::Silu => {
                let $f = functions::Silu;
                $body
            }
            Activation::GeluTanh => {
                let $f = functions::GeluTanh;
                $body
            }
            Activation::GeluErf => {
                let $f = functions::GeluErf;
                $body
            }
        }
    }};
}
pub(crate) use activate;

#[inline(always)]
fn gelu_tanh<S: Simd>(s: S, x: S::V) -> S::V {
    let cube = s.mul(s.mul(x, x), x);
    let inner = s.mul(s.splat(0.797_884_6), s.fma(s.splat(0.044715), cube, x));
    s.mul(s.mul(s.splat(0.5), x), s.add(s.splat(1.0), s.tanh(inner)))
}

#[inline(always)]
fn gelu_erf<S: Simd>(s: S, x: S::V) -> S::V {
    let half = s.mul(s.splat(0.5), x);
    let erf = erf(s, s.mul(x, s.splat(std::f32::consts::FRAC_1_SQRT_2)));
    s.mul(half, s.add(s.splat(1.0), erf))
}

/// `|x|`.
#[inline(always)]
pub(crate) fn absolute<S: Simd>(s: S, x: S::V) -> S::V {
    s.max(x, s.sub(s.zero(), x))
}

/// `a` where `x ≥ limit`, `b` elsewhere; both must be finite.
#[inline(always)]
pub(crate) fn select_ge<S: Simd>(s: S, x: S::V, limit: S::V, a: S::V, b: S::V) -> S::V {
    s.add(s.keep_ge(x, limit, a), s.sub(b, s.keep_ge(x, limit, b)))
}

/// The error function to about one unit in the last place: an odd polynomial near zero, and one less the exponential of
/// a polynomial beyond.
#[inline(always)]
pub(crate) fn erf<S: Simd>(s: S, x: S::V) -> S::V {
    // Past 4 the result is one, and polynomials stay finite.
    let magnitude = s.min(absolute(s, x), s.splat(4.0));
    let square = s.mul(magnitude, magnitude);
    let near = polynomial(
        s,
        square,
        [
            -5.967_617e-4,
            4.991_194e-3,
            -2.676_813_5e-2,
            1.128_199_25e-1,
            -3.761_253_4e-1,
            1.283_791_7e-1,
        ],
    );
    let near = s.fma(near, magnitude, magnitude);
    let far = polynomial(
        s,
        magnitude,
        [
            -1.728_534_7e-5,
            3.831_971_3e-4,
            -3.883_964_4e-3,
            2.425_462_2e-2,
            -1.067_778_8e-1,
            -6.348_467e-1,
            -1.287_175_1e-1,
        ],
    );
    let far = s.sub(s.fma(far, magnitude, s.zero()), magnitude);
    let far = s.sub(s.splat(1.0), s.exp(far));
    let value = select_ge(s, magnitude, s.splat(0.927_734_4), far, near);
    // The sign of `x`, and a NaN as it is.
    let signed = select_ge(s, x, s.zero(), value, s.sub(s.zero(), value));
    s.fma(x, s.zero(), signed)
}

/// A polynomial by Horner's rule, highest power first.
#[inline(always)]
fn polynomial<S: Simd, const N: usize>(s: S, x: S::V, coefficients: [f32; N]) -> S::V {
    let mut sum = s.splat(coefficients[0]);
    for c in &coefficients[1..] {
        sum = s.fma(sum, x, s.splat(*c));
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::{Isa, Kernel};
    use crate::simd::LANES;

    struct Curve<F>(F, f32);

    impl<F: Map> Kernel for Curve<F> {
        type Output = f32;

        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> f32 {
            let x = s.splat(self.1);
            let mut lanes = [0.0; LANES];
            // SAFETY: `lanes` holds a vector.
            unsafe { s.store(lanes.as_mut_ptr(), self.0.apply(s, x, x)) };
            lanes[0]
        }
    }

    #[test]
    fn activations_are_close_to_their_definitions() {
        for isa in Isa::available() {
            for i in -1000..1000 {
                let x = i as f32 * 0.0123;
                let activation = graph::ops::Activation::GeluErf;
                let (found, expect) = (isa.run(Curve(GeluErf, x)), activation.apply(x));
                let error = (found - expect).abs() / x.abs().max(1e-3);
                assert!(error < 2e-7, "{isa}: gelu({x}) = {found}, not {expect}");
            }
            assert!(isa.run(Curve(GeluErf, f32::NAN)).is_nan());
        }
    }
}
