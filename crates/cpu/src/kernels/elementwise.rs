//! Elementwise arithmetic and functions of f32. The result may overwrite any operand.

pub(crate) mod functions;
pub(crate) mod generate;
pub(crate) mod scalar;

use super::loop_nest::{LoopNest, NestRange};
use super::{Context, SendPtr, split_vectors};
use crate::simd::{Kernel, LANES, Simd};
use functions::{VectorFunction, with_activation, with_function};
use graph::ops::{Activation, BinaryFunction, UnaryFunction};

/// A function of one or two elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Function {
    Binary(BinaryFunction),
    Unary(UnaryFunction),
    /// `activation(a) · b`.
    Gated(Activation),
    /// An expert's [`ClampedSwish`](graph::ops::ExpertGate): `alpha` and `limit`.
    ClampedSwish(f32, f32),
    Scale(f32),
    SoftCap(f32),
}

/// `out = function(a, b)`; the tensors of the loops are `out`, `a` and `b`. Functions of one element do not read `b`.
#[derive(Clone, Debug)]
pub(crate) struct Elementwise {
    pub(crate) function: Function,
    pub(crate) nest: LoopNest<3>,
}

impl Elementwise {
    /// Computes the function for all elements.
    ///
    /// # Safety
    /// The loops' tensors must lie in their buffers. Along the innermost loop, `out` must advance by one element and
    /// the operands by one or none. If `out` is an operand's memory, both must advance alike.
    pub(crate) unsafe fn run(
        &self,
        ctx: &Context<'_>,
        a: *const f32,
        b: *const f32,
        out: *mut f32,
    ) {
        let reads_b = matches!(
            self.function,
            Function::Binary(_) | Function::Gated(_) | Function::ClampedSwish(..)
        );
        let b = if reads_b { b } else { a };
        let tensors = [SendPtr(out), SendPtr(a.cast_mut()), SendPtr(b.cast_mut())];
        self.nest.run(ctx, &|part| {
            ctx.isa.run(ElementwiseKernel {
                op: self,
                part,
                tensors,
            });
        });
    }
}

struct ElementwiseKernel<'a> {
    op: &'a Elementwise,
    part: NestRange,
    tensors: [SendPtr<f32>; 3],
}

impl Kernel for ElementwiseKernel<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // The match is outside of the loops, so that each function has a loop of its own.
        match self.op.function {
            Function::Scale(factor) => self.map_together(s, functions::Scale(factor)),
            Function::SoftCap(cap) => self.map_together(s, functions::SoftCap(cap)),
            Function::ClampedSwish(alpha, limit) => {
                self.map_together(s, functions::ClampedSwish(alpha, limit));
            }
            Function::Gated(a) => {
                with_activation!(a, f => self.map_together(s, functions::Gated(f)))
            }
            Function::Binary(function) => with_function!(function, f => self.map(s, f),
                BinaryFunction { Add, Sub, Mul, Div, Min, Max }
                _ => self.map(s, functions::BinaryByLane(function))),
            Function::Unary(UnaryFunction::Activation(a)) => {
                with_activation!(a, f => self.map_together(s, f));
            }
            Function::Unary(function) => with_function!(function, f => self.map_together(s, f),
                UnaryFunction { Neg, Abs, Exp, Sqrt, Rsqrt, Reciprocal, Erf, Floor, Ceil, Round }
                _ => self.map_together(s, functions::UnaryByLane(function))),
        }
    }
}

impl ElementwiseKernel<'_> {
    /// For operands of the result's shape.
    #[inline(always)]
    fn map_together<S: Simd>(&self, s: S, function: impl VectorFunction) {
        debug_assert_eq!((self.op.nest.rows(), self.op.nest.steps), (1, [1; 3]));
        let NestRange {
            column, columns, ..
        } = self.part;
        // SAFETY: `Elementwise::run`'s caller guarantees the tensors; each element is read before it is written.
        unsafe {
            let [out, a, b] = self.tensors.map(|t| t.at(column));
            row::<S, true, true>(s, function, out, a, b, columns);
        }
    }

    /// For operands that broadcast.
    #[inline(always)]
    fn map<S: Simd>(&self, s: S, function: impl VectorFunction) {
        let (nest, part) = (&self.op.nest, self.part);
        let [_, a_moves, b_moves] = nest.steps.map(|step| step > 0);
        let mut cursor = nest.cursor(part.row);
        for _ in 0..part.rows {
            let [out, a, b] = nest.start(&cursor, part);
            // SAFETY: `Elementwise::run`'s caller guarantees the tensors; each element is read before it is written.
            unsafe {
                let (out, a, b) = (
                    self.tensors[0].at(out),
                    self.tensors[1].at(a),
                    self.tensors[2].at(b),
                );
                match (a_moves, b_moves) {
                    (true, true) => row::<S, true, true>(s, function, out, a, b, part.columns),
                    (true, false) => row::<S, true, false>(s, function, out, a, b, part.columns),
                    _ => row::<S, false, true>(s, function, out, a, b, part.columns),
                }
            }
            cursor.advance();
        }
    }
}

/// Computes one row; an operand that does not advance is one element for the whole row.
///
/// # Safety
/// `n` elements must be writable at `out` and readable at `a` and `b`, or one element of an operand that does not
/// advance.
#[inline(always)]
pub(super) unsafe fn row<S: Simd, const A: bool, const B: bool>(
    s: S,
    function: impl VectorFunction,
    out: *mut f32,
    a: *const f32,
    b: *const f32,
    n: usize,
) {
    let (chunks, tail) = split_vectors(n);
    // SAFETY: the caller guarantees the elements.
    unsafe {
        let (a_all, b_all) = (s.splat(*a), s.splat(*b));
        for chunk in 0..chunks {
            let at = chunk * LANES;
            let a = if A { s.load(a.add(at)) } else { a_all };
            let b = if B { s.load(b.add(at)) } else { b_all };
            s.store(out.add(at), function.apply(s, a, b));
        }
        if tail > 0 {
            let at = chunks * LANES;
            let a = if A {
                s.load_part(a.add(at), tail)
            } else {
                a_all
            };
            let b = if B {
                s.load_part(b.add(at), tail)
            } else {
                b_all
            };
            s.store_part(out.add(at), function.apply(s, a, b), tail);
        }
    }
}
