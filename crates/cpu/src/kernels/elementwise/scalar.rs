//! Scalar elementwise loops for integers, bools and mixed types: arithmetic, comparisons, selection and casts. The
//! function is chosen outside of loops that may be long.

use crate::kernels::loop_nest::{LoopNest, NestRange};
use crate::kernels::{Context, SendPtr};
use base::DType;
use graph::ops::{BinaryFunction, CompareFunction, UnaryFunction};

/// Calls `body` with every element's offsets, in the order of the loops' tensors.
fn each<const N: usize>(nest: &LoopNest<N>, part: NestRange, mut body: impl FnMut([usize; N])) {
    let mut cursor = nest.cursor(part.row);
    for _ in 0..part.rows {
        let mut at = nest.start(&cursor, part);
        for _ in 0..part.columns {
            body(at);
            for i in 0..N {
                at[i] += nest.steps[i];
            }
        }
        cursor.advance();
    }
}

/// `out = function(a, b)` of integers or bools; tensors `out`, `a`, `b`.
#[derive(Clone, Debug)]
pub(crate) struct IntegerBinary {
    pub(crate) function: BinaryFunction,
    pub(crate) dtype: DType,
    pub(crate) nest: LoopNest<3>,
}

impl IntegerBinary {
    /// # Safety
    /// The loops' tensors must lie in their buffers.
    pub(crate) unsafe fn run(
        &self,
        a: *const u8,
        b: *const u8,
        out: *mut u8,
    ) -> Result<(), String> {
        let f = self.function;
        // SAFETY: the caller guarantees the tensors, whose type was fixed by inference.
        unsafe {
            match self.dtype {
                DType::I32 => self.integers::<i32>(a, b, out, &|a, b| {
                    f.apply_integer(a.into(), b.into()).map(|x| x as i32)
                }),
                DType::I64 => self.integers::<i64>(a, b, out, &|a, b| f.apply_integer(a, b)),
                _ => self.integers::<bool>(a, b, out, &|a, b| Ok(f.apply_bool(a, b))),
            }
        }
    }

    /// # Safety
    /// As for [`run`](IntegerBinary::run), with elements of type `T`.
    unsafe fn integers<T: Copy>(
        &self,
        a: *const u8,
        b: *const u8,
        out: *mut u8,
        function: &dyn Fn(T, T) -> Result<T, String>,
    ) -> Result<(), String> {
        let (a, b, out) = (a.cast::<T>(), b.cast::<T>(), out.cast::<T>());
        let mut error = None;
        each(&self.nest, self.nest.full_range(), |[o, i, j]| {
            // SAFETY: the caller guarantees the offsets.
            unsafe {
                match function(*a.add(i), *b.add(j)) {
                    Ok(value) => *out.add(o) = value,
                    Err(reason) => error = Some(reason),
                }
            }
        });
        error.map_or(Ok(()), Err)
    }
}

/// `out = function(a, b)`, a bool; tensors `out`, `a`, `b`.
#[derive(Clone, Debug)]
pub(crate) struct Compare {
    pub(crate) function: CompareFunction,
    pub(crate) dtype: DType,
    pub(crate) nest: LoopNest<3>,
}

impl Compare {
    /// # Safety
    /// The loops' tensors must lie in their buffers.
    pub(crate) unsafe fn run(&self, ctx: &Context<'_>, a: *const u8, b: *const u8, out: *mut u8) {
        // SAFETY: the caller guarantees the tensors, whose type was fixed by inference.
        unsafe {
            match self.dtype {
                DType::F32 => self.typed::<f32>(ctx, a, b, out),
                DType::I32 => self.typed::<i32>(ctx, a, b, out),
                DType::I64 => self.typed::<i64>(ctx, a, b, out),
                _ => self.typed::<bool>(ctx, a, b, out),
            }
        }
    }

    /// # Safety
    /// As for [`run`](Compare::run), with elements of type `T`.
    unsafe fn typed<T: Copy + PartialOrd>(
        &self,
        ctx: &Context<'_>,
        a: *const u8,
        b: *const u8,
        out: *mut u8,
    ) {
        let (a, b) = (a.cast::<T>().cast_mut(), b.cast::<T>().cast_mut());
        let (a, b, out) = (SendPtr(a), SendPtr(b), SendPtr(out.cast::<bool>()));
        self.nest.run(ctx, &|part| {
            let write = |at: [usize; 3], holds: fn(&T, &T) -> bool| {
                // SAFETY: the caller guarantees the offsets; parts write different elements.
                unsafe { *out.at(at[0]) = holds(&*a.at(at[1]), &*b.at(at[2])) }
            };
            match self.function {
                CompareFunction::Eq => each(&self.nest, part, |at| write(at, T::eq)),
                CompareFunction::Ne => each(&self.nest, part, |at| write(at, T::ne)),
                CompareFunction::Lt => each(&self.nest, part, |at| write(at, T::lt)),
                CompareFunction::Le => each(&self.nest, part, |at| write(at, T::le)),
                CompareFunction::Gt => each(&self.nest, part, |at| write(at, T::gt)),
                CompareFunction::Ge => each(&self.nest, part, |at| write(at, T::ge)),
            }
        });
    }
}

/// `out = condition ? a : b`; tensors `out`, `condition`, `a`, `b`.
#[derive(Clone, Debug)]
pub(crate) struct Where {
    pub(crate) element_bytes: usize,
    pub(crate) nest: LoopNest<4>,
}

impl Where {
    /// # Safety
    /// The loops' tensors must lie in their buffers.
    pub(crate) unsafe fn run(
        &self,
        ctx: &Context<'_>,
        condition: *const u8,
        a: *const u8,
        b: *const u8,
        out: *mut u8,
    ) {
        // SAFETY: as the caller guarantees; sizes are those of the run types.
        unsafe {
            match self.element_bytes {
                1 => self.typed::<u8>(ctx, condition, a, b, out),
                4 => self.typed::<u32>(ctx, condition, a, b, out),
                _ => self.typed::<u64>(ctx, condition, a, b, out),
            }
        }
    }

    /// # Safety
    /// As for [`run`](Where::run), with elements of type `T`.
    unsafe fn typed<T: Copy>(
        &self,
        ctx: &Context<'_>,
        condition: *const u8,
        a: *const u8,
        b: *const u8,
        out: *mut u8,
    ) {
        let (a, b) = (a.cast::<T>().cast_mut(), b.cast::<T>().cast_mut());
        let (condition, a, b) = (SendPtr(condition.cast_mut()), SendPtr(a), SendPtr(b));
        let out = SendPtr(out.cast::<T>());
        self.nest.run(ctx, &|part| {
            each(&self.nest, part, |[o, c, i, j]| {
                // SAFETY: the caller guarantees the offsets; parts write different elements.
                unsafe {
                    let (a, b) = (*a.at(i), *b.at(j));
                    *out.at(o) = if *condition.at(c) != 0 { a } else { b };
                }
            });
        });
    }
}

/// `out = function(x)` of integers or bools.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IntegerUnary {
    pub(crate) function: UnaryFunction,
    pub(crate) dtype: DType,
    pub(crate) len: usize,
}

impl IntegerUnary {
    /// # Safety
    /// Both must hold `len` elements; `out` may be `x`.
    pub(crate) unsafe fn run(&self, x: *const u8, out: *mut u8) {
        let f = |x: i64| {
            self.function
                .apply_integer(x)
                .expect("inference allows only functions of integers")
        };
        // SAFETY: the caller guarantees the elements, whose type was fixed by inference.
        unsafe {
            match self.dtype {
                DType::I32 => map(x.cast::<i32>(), out.cast::<i32>(), self.len, |x| {
                    f(x.into()) as i32
                }),
                DType::I64 => map(x.cast::<i64>(), out.cast::<i64>(), self.len, f),
                _ => map(x.cast::<bool>(), out.cast::<bool>(), self.len, |x| !x),
            }
        }
    }
}

/// # Safety
/// `len` elements must be readable at `x` and writable at `out`, which may be the same address.
unsafe fn map<A: Copy, B>(x: *const A, out: *mut B, len: usize, function: impl Fn(A) -> B) {
    for i in 0..len {
        // SAFETY: the caller guarantees the elements; each is read before its place is written.
        unsafe { *out.add(i) = function(*x.add(i)) };
    }
}

/// Converts elements to another type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cast {
    pub(crate) from: DType,
    pub(crate) to: DType,
    pub(crate) len: usize,
}

impl Cast {
    /// Converts all elements.
    ///
    /// # Safety
    /// Both buffers must hold `len` elements of their types; they may be the same if the types have the same size.
    pub(crate) unsafe fn run(&self, x: *const u8, out: *mut u8) {
        // SAFETY: as the caller guarantees.
        unsafe {
            match self.from {
                DType::F32 => self.number(
                    x.cast::<f32>(),
                    out,
                    (|x| x, |x| x as i32, |x| x as i64, |x| x != 0.0),
                ),
                DType::I32 => self.number(
                    x.cast::<i32>(),
                    out,
                    (|x| x as f32, |x| x, |x| x.into(), |x| x != 0),
                ),
                DType::I64 => self.number(
                    x.cast::<i64>(),
                    out,
                    (|x| x as f32, |x| x as i32, |x| x, |x| x != 0),
                ),
                _ => self.number(
                    x.cast::<bool>(),
                    out,
                    (|x| x.into(), |x| x.into(), |x| x.into(), |x| x),
                ),
            }
        }
    }

    /// # Safety
    /// As for [`run`](Cast::run), with elements of type `A`.
    #[allow(clippy::type_complexity, reason = "one function for each target type")]
    unsafe fn number<A: Copy>(
        &self,
        x: *const A,
        out: *mut u8,
        to: (fn(A) -> f32, fn(A) -> i32, fn(A) -> i64, fn(A) -> bool),
    ) {
        // SAFETY: as the caller guarantees.
        unsafe {
            match self.to {
                DType::F32 => map(x, out.cast(), self.len, to.0),
                DType::I32 => map(x, out.cast(), self.len, to.1),
                DType::I64 => map(x, out.cast(), self.len, to.2),
                _ => map(x, out.cast(), self.len, to.3),
            }
        }
    }
}
