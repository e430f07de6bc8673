//! f32 vector functions as types: code that is not inlined into its tier's entry is compiled without the tier's
//! features, and closures cannot be forced to inline.

use crate::simd::{LANES, Simd};
use graph::ops::{BinaryFunction, UnaryFunction};

/// A function of one or two vectors; functions of one ignore `b`.
pub(crate) trait VectorFunction: Copy {
    fn apply<S: Simd>(self, s: S, a: S::V, b: S::V) -> S::V;
}

macro_rules! maps {
    ($($name:ident $(($($field:ty),*))?, ($this:pat, $s:ident, $a:pat, $b:pat) => $body:expr;)*) => {$(
        #[derive(Clone, Copy)]
        pub(crate) struct $name $(($(pub(crate) $field),*))?;

        impl VectorFunction for $name {
            #[inline(always)]
            fn apply<S: Simd>(self, $s: S, $a: S::V, $b: S::V) -> S::V {
                let $this = self;
                $body
            }
        }
    )*};
}

maps! {
    Identity, (_, _s, a, _) => a;
    Add, (_, s, a, b) => s.add(a, b);
    Sub, (_, s, a, b) => s.sub(a, b);
    Mul, (_, s, a, b) => s.mul(a, b);
    Div, (_, s, a, b) => s.div(a, b);
    // The minimum of an unordered pair is the second operand, so only a NaN in the first would be lost.
    Min, (_, s, a, b) => s.add(s.min(a, b), not_a_number(s, a));
    Max, (_, s, a, b) => s.add(s.max(a, b), not_a_number(s, a));
    Scale(f32), (Scale(factor), s, a, _) => s.mul(a, s.splat(factor));
    SoftCap(f32), (SoftCap(cap), s, a, _) => s.mul(s.splat(cap), s.tanh(s.div(a, s.splat(cap))));
    // The exponential of what is far below zero is zero, and of what is far above zero infinite: both give the limits.
    ClampedSwish(f32, f32), (ClampedSwish(alpha, limit), s, a, b) => {
        let gate = s.min(s.splat(limit), a);
        let up = s.max(s.splat(-limit), s.min(s.splat(limit), b));
        let swish = s.div(gate, s.add(s.splat(1.0), s.exp(s.mul(s.splat(-alpha), gate))));
        s.mul(swish, s.add(up, s.splat(1.0)))
    };
    Silu, (_, s, a, _) => s.div(a, s.add(s.splat(1.0), s.exp(s.sub(s.zero(), a))));
    GeluTanh, (_, s, a, _) => gelu_tanh(s, a);
    GeluErf, (_, s, a, _) => gelu_erf(s, a);
    Relu, (_, s, a, _) => s.max(s.zero(), a);
    Tanh, (_, s, a, _) => s.add(tanh(s, a), not_a_number(s, a));
    Sigmoid, (_, s, a, _) => s.add(sigmoid(s, a), not_a_number(s, a));
    HardSwish, (_, s, a, _) => {
        let gate = s.min(s.splat(6.0), s.max(s.zero(), s.add(a, s.splat(3.0))));
        s.mul(s.mul(a, gate), s.splat(1.0 / 6.0))
    };
    Neg, (_, s, a, _) => s.mul(a, s.splat(-1.0));
    Abs, (_, s, a, _) => absolute(s, a);
    Exp, (_, s, a, _) => s.add(exp(s, a), not_a_number(s, a));
    Erf, (_, s, a, _) => erf(s, a);
    Reciprocal, (_, s, a, _) => s.div(s.splat(1.0), a);
    Sqrt, (_, s, a, _) => by_lane(s, a, a, |x, _| x.sqrt());
    Rsqrt, (_, s, a, _) => s.div(s.splat(1.0), by_lane(s, a, a, |x, _| x.sqrt()));
    Floor, (_, s, a, _) => by_lane(s, a, a, |x, _| x.floor());
    Ceil, (_, s, a, _) => by_lane(s, a, a, |x, _| x.ceil());
    Round, (_, s, a, _) => s.round(a);
    // Computed lane by lane with the standard library.
    UnaryByLane(UnaryFunction), (UnaryByLane(f), s, a, _) => by_lane(s, a, a, move |x, _| f.apply(x));
    BinaryByLane(BinaryFunction), (BinaryByLane(f), s, a, b) => by_lane(s, a, b, move |a, b| f.apply(a, b));
}

/// An activation times the other operand.
#[derive(Clone, Copy)]
pub(crate) struct Gated<F>(pub(crate) F);

impl<F: VectorFunction> VectorFunction for Gated<F> {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, a: S::V, b: S::V) -> S::V {
        s.mul(self.0.apply(s, a, b), b)
    }
}

/// Runs `$body` with `$f` as the function that a variant of an enum names.
macro_rules! with_function {
    ($value:expr, $f:ident => $body:expr, $Enum:ident { $($Variant:ident),* } $($rest:tt)*) => {{
        use $crate::kernels::elementwise::functions;
        match $value {
            $($Enum::$Variant => {
                let $f = functions::$Variant;
                $body
            })*
            $($rest)*
        }
    }};
}
pub(crate) use with_function;

/// Runs `$body` with `$f` as the function of an activation.
macro_rules! with_activation {
    ($activation:expr, $f:ident => $body:expr) => {{
        use graph::ops::Activation;
        $crate::kernels::elementwise::functions::with_function!(
            $activation, $f => $body,
            Activation { Silu, GeluTanh, GeluErf, Relu, Tanh, Sigmoid, HardSwish }
        )
    }};
}
pub(crate) use with_activation;

#[inline(always)]
fn by_lane<S: Simd>(s: S, a: S::V, b: S::V, function: impl Fn(f32, f32) -> f32) -> S::V {
    let (mut x, mut y) = ([0.0; LANES], [0.0; LANES]);
    // SAFETY: both arrays hold a vector.
    unsafe {
        s.store(x.as_mut_ptr(), a);
        s.store(y.as_mut_ptr(), b);
        for i in 0..LANES {
            x[i] = function(x[i], y[i]);
        }
        s.load(x.as_ptr())
    }
}

/// Zero for every number, including infinities; NaN for NaN.
#[inline(always)]
fn not_a_number<S: Simd>(s: S, x: S::V) -> S::V {
    let number = s.select_ge_or_zero(x, s.splat(f32::NEG_INFINITY), s.splat(1.0));
    s.div(s.zero(), number)
}

/// `eˣ` over the whole range of f32: [`Simd::exp`] is limited to normal powers of two.
#[inline(always)]
fn exp<S: Simd>(s: S, x: S::V) -> S::V {
    let half = s.exp(s.mul(x, s.splat(0.5)));
    s.mul(half, half)
}

#[inline(always)]
fn sigmoid<S: Simd>(s: S, x: S::V) -> S::V {
    let one = s.splat(1.0);
    s.div(one, s.add(one, s.exp(s.sub(s.zero(), x))))
}

/// `tanh x`, accurate near zero, where [`Simd::tanh`] loses digits to cancellation.
#[inline(always)]
fn tanh<S: Simd>(s: S, x: S::V) -> S::V {
    let square = s.mul(x, x);
    let near = polynomial(
        s,
        square,
        [
            -5.704_988_7e-3,
            2.063_909e-2,
            -5.373_971e-2,
            1.333_144_1e-1,
            -3.333_328e-1,
        ],
    );
    let near = s.fma(s.mul(near, square), x, x);
    let clamped = s.max(s.splat(-1.0), s.min(s.splat(1.0), near));
    select_ge(s, absolute(s, x), s.splat(0.55), s.tanh(x), clamped)
}

#[inline(always)]
fn gelu_tanh<S: Simd>(s: S, x: S::V) -> S::V {
    let cube = s.mul(s.mul(x, x), x);
    let inner = s.mul(s.splat(0.797_884_6), s.fma(s.splat(0.044715), cube, x));
    s.mul(s.mul(s.splat(0.5), x), s.add(s.splat(1.0), s.tanh(inner)))
}

/// `x · erf(x)`, which is even, so no sign is needed. Only the error relative to `x` matters, so `1 - exp(polynomial)`,
/// with the polynomial for `ln(1 - erf)`, is accurate enough from zero on.
#[inline(always)]
fn gelu_erf<S: Simd>(s: S, x: S::V) -> S::V {
    let half = s.mul(s.splat(0.5), x);
    let magnitude = absolute(s, half);
    // Beyond 4 the result is one.
    let a = s.min(
        s.splat(4.0),
        s.mul(magnitude, s.splat(std::f32::consts::SQRT_2)),
    );
    let logarithm = polynomial(
        s,
        a,
        [
            -3.144_013_3e-5,
            3.088_018e-4,
            -1.032_400_1e-3,
            -5.369_364_5e-4,
            1.958_396_3e-2,
            -1.029_196_16e-1,
            -6.365_977_5e-1,
            -1.128_380_3,
        ],
    );
    let erf = s.sub(s.splat(1.0), s.exp(s.mul(logarithm, a)));
    s.fma(magnitude, erf, half)
}

/// `|x|`.
#[inline(always)]
fn absolute<S: Simd>(s: S, x: S::V) -> S::V {
    s.max(s.sub(s.zero(), x), x)
}

/// `a` where `x ≥ limit`, `b` elsewhere; both must be finite.
#[inline(always)]
fn select_ge<S: Simd>(s: S, x: S::V, limit: S::V, a: S::V, b: S::V) -> S::V {
    s.add(
        s.select_ge_or_zero(x, limit, a),
        s.sub(b, s.select_ge_or_zero(x, limit, b)),
    )
}

/// The error function.
#[inline(always)]
fn erf<S: Simd>(s: S, x: S::V) -> S::V {
    let value = erf_of_magnitude(s, absolute(s, x));
    select_ge(s, x, s.zero(), value, s.sub(s.zero(), value))
}

/// The error function for non-negative arguments, to about one unit in the last place: an odd polynomial near zero, `1
/// - exp(polynomial)` beyond.
#[inline(always)]
fn erf_of_magnitude<S: Simd>(s: S, magnitude: S::V) -> S::V {
    // Beyond 4 the result is one, and the polynomials stay finite.
    let magnitude = s.min(s.splat(4.0), magnitude);
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
    let far = s.sub(s.mul(far, magnitude), magnitude);
    let far = s.sub(s.splat(1.0), s.exp(far));
    // The polynomial near zero propagates NaN.
    select_ge(s, magnitude, s.splat(0.927_734_4), far, near)
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
    use crate::isa::Isa;
    use crate::simd::Kernel;
    use graph::ops::Activation;

    struct ApplyAt<F>(F, f32, f32);

    impl<F: VectorFunction> Kernel for ApplyAt<F> {
        type Output = f32;

        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> f32 {
            let mut lanes = [0.0; LANES];
            let value = self.0.apply(s, s.splat(self.1), s.splat(self.2));
            // SAFETY: `lanes` holds a vector.
            unsafe { s.store(lanes.as_mut_ptr(), value) };
            lanes[0]
        }
    }

    fn check<F: VectorFunction>(name: &str, function: F, definition: impl Fn(f32) -> f32) {
        for isa in Isa::available() {
            for i in -3000..3000 {
                let x = i as f32 * 0.0123 * if i % 3 == 0 { 1.0 } else { 0.05 };
                let (found, expect) = (isa.run(ApplyAt(function, x, x)), definition(x));
                let error = (found - expect).abs() / expect.abs().max(x.abs()).max(1e-3);
                assert!(
                    error < 4e-7 || found == expect || (found.is_nan() && expect.is_nan()),
                    "{isa}: {name}({x}) = {found}, not {expect}"
                );
            }
            for x in [f32::NAN, 89.0, -200.0, 1e30] {
                let (found, expect) = (isa.run(ApplyAt(function, x, x)), definition(x));
                assert_eq!(
                    found.is_nan(),
                    expect.is_nan(),
                    "{isa}: {name}({x}) = {found}"
                );
            }
        }
    }

    #[test]
    fn functions_are_close_to_their_definitions() {
        check("gelu", GeluErf, |x| Activation::GeluErf.apply(x));
        check("gelu_tanh", GeluTanh, |x| Activation::GeluTanh.apply(x));
        check("silu", Silu, |x| Activation::Silu.apply(x));
        check("relu", Relu, |x| Activation::Relu.apply(x));
        check("tanh", Tanh, f32::tanh);
        check("hard_swish", HardSwish, |x| Activation::HardSwish.apply(x));
        check("sigmoid", Sigmoid, |x| Activation::Sigmoid.apply(x));
        check("exp", Exp, f32::exp);
        check("erf", Erf, |x| UnaryFunction::Erf.apply(x));
        check("sqrt", Sqrt, f32::sqrt);
        check("rsqrt", Rsqrt, |x| 1.0 / x.sqrt());
        check("abs", Abs, f32::abs);
        check("neg", Neg, |x| -x);
        check("floor", Floor, f32::floor);
    }

    #[test]
    fn min_and_max_propagate_nan() {
        let numbers = [f32::NAN, 1.0, -2.0, f32::INFINITY, f32::NEG_INFINITY];
        for isa in Isa::available() {
            for (a, b) in numbers
                .iter()
                .flat_map(|a| numbers.iter().map(move |b| (*a, *b)))
            {
                let same = |x: f32, y: f32| x == y || (x.is_nan() && y.is_nan());
                assert!(same(
                    isa.run(ApplyAt(Min, a, b)),
                    BinaryFunction::Min.apply(a, b)
                ));
                assert!(same(
                    isa.run(ApplyAt(Max, a, b)),
                    BinaryFunction::Max.apply(a, b)
                ));
            }
        }
    }
}
