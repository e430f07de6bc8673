//! Elementwise arithmetic and activations. The result may be any operand's own memory.

use super::{Context, Shared, over_rows, split};
use crate::isa::Kernel;
use crate::simd::{LANES, Simd};
use graph::ops::{Activation, BinaryFunction};

/// One function of one or two elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Function {
    Binary(BinaryFunction),
    Unary(Activation),
    /// `activation(a) · b`.
    Gated(Activation),
    Scale(f32),
    SoftCap(f32),
}

/// `out[i] = function(a[i], b[i % period])` for `rows · width` elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Elementwise {
    pub(crate) function: Function,
    pub(crate) rows: usize,
    pub(crate) width: usize,
    /// Whether `b` is one row for all.
    pub(crate) repeat: bool,
}

impl Elementwise {
    /// # Safety
    /// `a` and `out` must hold `rows · width` elements, `b` as many or one row; `b` is not read by functions of one
    /// element. `out` may be `a` or `b`.
    pub(crate) unsafe fn run(
        &self,
        ctx: &Context<'_>,
        a: *const f32,
        b: *const f32,
        out: *mut f32,
    ) {
        let (a, b, out) = (Shared(a.cast_mut()), Shared(b.cast_mut()), Shared(out));
        over_rows(ctx, self.rows, self.width, &|start, end| {
            let range = Range {
                op: *self,
                a,
                b,
                out,
                start,
                end,
            };
            ctx.isa.run(range);
        });
    }
}

struct Range {
    op: Elementwise,
    a: Shared<f32>,
    b: Shared<f32>,
    out: Shared<f32>,
    start: usize,
    end: usize,
}

impl Kernel for Range {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // The match is outside the loop, so that each function has a loop of its own.
        match self.op.function {
            Function::Binary(BinaryFunction::Add) => self.map(s, Add),
            Function::Binary(BinaryFunction::Mul) => self.map(s, Mul),
            Function::Binary(_) => unreachable!("refused when the call was resolved"),
            Function::Scale(factor) => self.map(s, Scale(factor)),
            Function::SoftCap(cap) => self.map(s, SoftCap(cap)),
            Function::Unary(activation) => match activation {
                Activation::Silu => self.map(s, Silu),
                Activation::GeluTanh => self.map(s, GeluTanh),
                Activation::GeluErf => self.map(s, GeluErf),
                Activation::Relu => self.map(s, Relu),
                Activation::Tanh => self.map(s, Tanh),
                Activation::Sigmoid => self.map(s, Sigmoid),
            },
            Function::Gated(activation) => match activation {
                Activation::Silu => self.map(s, Gated(Silu)),
                Activation::GeluTanh => self.map(s, Gated(GeluTanh)),
                Activation::GeluErf => self.map(s, Gated(GeluErf)),
                Activation::Relu => self.map(s, Gated(Relu)),
                Activation::Tanh => self.map(s, Gated(Tanh)),
                Activation::Sigmoid => self.map(s, Gated(Sigmoid)),
            },
        }
    }
}

impl Range {
    #[inline(always)]
    fn map<S: Simd>(&self, s: S, function: impl Map) {
        let (chunks, tail) = split(self.op.width);
        let reads_b = matches!(self.op.function, Function::Binary(_) | Function::Gated(_));
        for row in self.start..self.end {
            // SAFETY: `Elementwise::run`'s caller vouches for the rows; each element is read before it is written.
            unsafe {
                let a = self.a.at(row * self.op.width);
                let out = self.out.at(row * self.op.width);
                let b = match (reads_b, self.op.repeat) {
                    (false, _) => a,
                    (true, true) => self.b.at(0),
                    (true, false) => self.b.at(row * self.op.width),
                };
                for chunk in 0..chunks {
                    let at = chunk * LANES;
                    s.store(
                        out.add(at),
                        function.apply(s, s.load(a.add(at)), s.load(b.add(at))),
                    );
                }
                if tail > 0 {
                    let at = chunks * LANES;
                    let (a, b) = (s.load_part(a.add(at), tail), s.load_part(b.add(at), tail));
                    s.store_part(out.add(at), function.apply(s, a, b), tail);
                }
            }
        }
    }
}

/// A function of two vectors. Closures would do, if they could be told to inline: code that is not inlined into its
/// tier's entry is compiled without the tier's features.
trait Map: Copy {
    fn apply<S: Simd>(self, s: S, a: S::V, b: S::V) -> S::V;
}

macro_rules! maps {
    ($($name:ident $(($($field:ty),*))?, ($this:pat, $s:ident, $a:pat, $b:pat) => $body:expr;)*) => {$(
        #[derive(Clone, Copy)]
        struct $name $(($($field),*))?;

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
    Silu, (_, s, a, _) => silu(s, a);
    GeluTanh, (_, s, a, _) => gelu_tanh(s, a);
    GeluErf, (_, s, a, _) => gelu_erf(s, a);
    Relu, (_, s, a, _) => s.max(a, s.zero());
    Tanh, (_, s, a, _) => s.tanh(a);
    Sigmoid, (_, s, a, _) => sigmoid(s, a);
}

/// An activation times the other operand.
#[derive(Clone, Copy)]
struct Gated<F>(F);

impl<F: Map> Map for Gated<F> {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, a: S::V, b: S::V) -> S::V {
        s.mul(self.0.apply(s, a, b), b)
    }
}

#[inline(always)]
fn silu<S: Simd>(s: S, x: S::V) -> S::V {
    s.div(x, s.add(s.splat(1.0), s.exp(s.sub(s.zero(), x))))
}

#[inline(always)]
fn sigmoid<S: Simd>(s: S, x: S::V) -> S::V {
    let one = s.splat(1.0);
    s.div(one, s.add(one, s.exp(s.sub(s.zero(), x))))
}

#[inline(always)]
fn gelu_tanh<S: Simd>(s: S, x: S::V) -> S::V {
    let cube = s.mul(s.mul(x, x), x);
    let inner = s.mul(s.splat(0.797_884_6), s.fma(s.splat(0.044715), cube, x));
    s.mul(s.mul(s.splat(0.5), x), s.add(s.splat(1.0), s.tanh(inner)))
}

/// Lane by lane: the error function has no vector form here.
#[inline(always)]
fn gelu_erf<S: Simd>(s: S, x: S::V) -> S::V {
    let mut lanes = [0.0; LANES];
    // SAFETY: `lanes` holds sixteen f32.
    unsafe {
        s.store(lanes.as_mut_ptr(), x);
        lanes = lanes.map(|x| Activation::GeluErf.apply(x));
        s.load(lanes.as_ptr())
    }
}
