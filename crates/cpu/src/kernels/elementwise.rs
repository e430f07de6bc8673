//! Elementwise arithmetic and activations. The result may be any operand's own memory.

use super::functions::{Add, Gated, Map, Mul, Scale, SoftCap, activate};
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
            Function::Scale(factor) => self.map(s, Scale(factor)),
            Function::SoftCap(cap) => self.map(s, SoftCap(cap)),
            Function::Unary(activation) => activate!(activation, f => self.map(s, f)),
            Function::Gated(activation) => activate!(activation, f => self.map(s, Gated(f))),
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
