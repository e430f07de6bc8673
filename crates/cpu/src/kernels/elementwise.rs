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
        match self.op.function {
            Function::Binary(BinaryFunction::Add) => self.map(s, |a, b| s.add(a, b)),
            Function::Binary(BinaryFunction::Mul) => self.map(s, |a, b| s.mul(a, b)),
            Function::Scale(factor) => self.map(s, |a, _| s.mul(a, s.splat(factor))),
            Function::SoftCap(cap) => self.map(s, |a, _| {
                s.mul(s.splat(cap), s.tanh(s.div(a, s.splat(cap))))
            }),
            Function::Unary(Activation::Silu) => self.map(s, |a, _| silu(s, a)),
            Function::Unary(Activation::GeluTanh) => self.map(s, |a, _| gelu_tanh(s, a)),
            Function::Unary(Activation::GeluErf) => self.map(s, |a, _| gelu_erf(s, a)),
            Function::Gated(Activation::Silu) => self.map(s, |a, b| s.mul(silu(s, a), b)),
            Function::Gated(Activation::GeluTanh) => self.map(s, |a, b| s.mul(gelu_tanh(s, a), b)),
            Function::Gated(Activation::GeluErf) => self.map(s, |a, b| s.mul(gelu_erf(s, a), b)),
        }
    }
}

impl Range {
    #[inline(always)]
    fn map<S: Simd>(&self, s: S, function: impl Fn(S::V, S::V) -> S::V) {
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
                    s.store(out.add(at), function(s.load(a.add(at)), s.load(b.add(at))));
                }
                if tail > 0 {
                    let at = chunks * LANES;
                    let result =
                        function(s.load_part(a.add(at), tail), s.load_part(b.add(at), tail));
                    s.store_part(out.add(at), result, tail);
                }
            }
        }
    }
}

#[inline(always)]
fn silu<S: Simd>(s: S, x: S::V) -> S::V {
    let one = s.splat(1.0);
    s.div(x, s.add(one, s.exp(s.sub(s.zero(), x))))
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
