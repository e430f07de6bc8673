//! Reductions: sums, means and extremes over axes.

pub(crate) mod arg_sort;
pub(crate) mod cumsum;
pub(crate) mod route_experts;

use super::loop_nest::LoopNest;
use super::{Context, SendPtr, for_row_ranges};
use base::DType;
use graph::ops::ReduceFunction;

/// `out[i] = function(group i)`.
#[derive(Clone, Debug)]
pub(crate) struct Reduce {
    pub(crate) function: ReduceFunction,
    pub(crate) dtype: DType,
    /// The loops over the results: the result, and the first element of its group.
    pub(crate) results: LoopNest<2>,
    /// The loops over the elements of a group.
    pub(crate) group: LoopNest<1>,
}

impl Reduce {
    /// # Safety
    /// The loops' tensors must lie in their buffers, which must not overlap.
    pub(crate) unsafe fn run(
        &self,
        ctx: &Context<'_>,
        x: *const u8,
        out: *mut u8,
    ) -> Result<(), String> {
        let len = self.group.rows() * self.group.width;
        let needs_one = !matches!(
            self.function,
            ReduceFunction::Sum | ReduceFunction::Prod | ReduceFunction::Mean
        );
        let results = self.results.rows() * self.results.width;
        if needs_one && len == 0 && results > 0 {
            return Err(format!("has no {} of nothing", self.function.name()));
        }
        // SAFETY: the caller guarantees the tensors, whose type was fixed by inference.
        unsafe {
            match self.dtype {
                DType::F32 => self.typed::<f32>(ctx, x, out),
                DType::I32 => self.typed::<i32>(ctx, x, out),
                DType::I64 => self.typed::<i64>(ctx, x, out),
                _ => self.typed::<bool>(ctx, x, out),
            }
        }
        Ok(())
    }

    /// # Safety
    /// As for [`run`](Reduce::run), with elements of type `T`.
    unsafe fn typed<T: Number>(&self, ctx: &Context<'_>, x: *const u8, out: *mut u8) {
        let (x, out) = (SendPtr(x.cast::<T>().cast_mut()), SendPtr(out));
        let len = self.group.rows() * self.group.width;
        let (rows, width) = (self.results.rows(), self.results.width);
        for_row_ranges(ctx, rows * width, len, &|start, end| {
            for i in start..end {
                let (row, column) = (i / width, i % width);
                let at = self.results.cursor(row).at;
                let [to, from] = [0, 1].map(|t| at[t] + column * self.results.steps[t]);
                // SAFETY: the caller guarantees the loops; every result is written by one task.
                unsafe {
                    let x = x.at(from).cast_const();
                    let (out, index) = (out.at(0).cast::<T>().add(to), out.at(0).cast::<i64>());
                    match self.function {
                        ReduceFunction::Sum => *out = T::sum(self.total(x)),
                        ReduceFunction::Mean => *out = T::mean(self.total(x), len),
                        ReduceFunction::Prod => {
                            *out = T::product(self.fold(x, T::ONE, |a, _, x| T::multiply(a, x)));
                        }
                        ReduceFunction::Max => *out = *x.add(self.best(x, T::gt).0),
                        ReduceFunction::Min => *out = *x.add(self.best(x, T::lt).0),
                        ReduceFunction::ArgMax => *index.add(to) = self.best(x, T::gt).1,
                        ReduceFunction::ArgMin => *index.add(to) = self.best(x, T::lt).1,
                    }
                }
            }
        });
    }

    /// The sum of a group.
    ///
    /// # Safety
    /// The group must be readable from `x` on.
    unsafe fn total<T: Number>(&self, x: *const T) -> T::Total {
        if self.group.steps != [1] {
            // SAFETY: as the caller guarantees.
            return unsafe { self.fold(x, T::Total::default(), |a, _, x| T::add(a, x)) };
        }
        let mut lanes = [T::Total::default(); 8];
        let mut cursor = self.group.cursor(0);
        for _ in 0..self.group.rows() {
            // SAFETY: the caller guarantees the group, whose rows are contiguous.
            let row = unsafe { std::slice::from_raw_parts(x.add(cursor.at[0]), self.group.width) };
            let (chunks, rest) = row.as_chunks::<8>();
            for chunk in chunks {
                for i in 0..8 {
                    lanes[i] = T::add(lanes[i], chunk[i]);
                }
            }
            for (i, x) in rest.iter().enumerate() {
                lanes[i] = T::add(lanes[i], *x);
            }
            cursor.advance();
        }
        lanes.into_iter().fold(T::Total::default(), T::join)
    }

    /// Folds a group's elements with their offsets.
    ///
    /// # Safety
    /// The group must be readable from `x` on.
    unsafe fn fold<T: Copy, A>(&self, x: *const T, start: A, step: impl Fn(A, usize, T) -> A) -> A {
        let mut cursor = self.group.cursor(0);
        let mut result = start;
        for _ in 0..self.group.rows() {
            for i in 0..self.group.width {
                let at = cursor.at[0] + i * self.group.steps[0];
                // SAFETY: the caller guarantees the group.
                result = step(result, at, unsafe { *x.add(at) });
            }
            cursor.advance();
        }
        result
    }

    /// Offset and index of the extreme element; NaN beats every number.
    ///
    /// # Safety
    /// The group must be readable from `x` on and have an element.
    unsafe fn best<T: Number>(&self, x: *const T, beats: fn(&T, &T) -> bool) -> (usize, i64) {
        // SAFETY: as the caller guarantees.
        unsafe {
            let (at, index, ..) = self.fold(
                x,
                (0, 0i64, 0i64, *x),
                |(at, index, i, old), new_at, new| {
                    let ordered = old.partial_cmp(&old).is_some();
                    let wins = beats(&new, &old) || new.partial_cmp(&new).is_none();
                    if ordered && wins {
                        (new_at, i, i + 1, new)
                    } else {
                        (at, index, i + 1, old)
                    }
                },
            );
            (at, index)
        }
    }
}

/// An element type with the arithmetic of reductions.
trait Number: Copy + PartialOrd + 'static {
    /// The type in which sums and products are accumulated.
    type Total: Copy + Default;
    const ONE: Self::Total;
    fn add(a: Self::Total, x: Self) -> Self::Total;
    fn join(a: Self::Total, b: Self::Total) -> Self::Total;
    fn multiply(a: Self::Total, x: Self) -> Self::Total;
    fn sum(total: Self::Total) -> Self;
    fn mean(total: Self::Total, len: usize) -> Self;
    fn product(total: Self::Total) -> Self;
}

impl Number for f32 {
    type Total = f64;
    const ONE: f64 = 1.0;

    fn add(a: f64, x: f32) -> f64 {
        a + f64::from(x)
    }

    fn join(a: f64, b: f64) -> f64 {
        a + b
    }

    fn multiply(a: f64, x: f32) -> f64 {
        a * f64::from(x)
    }

    fn sum(total: f64) -> f32 {
        total as f32
    }

    fn mean(total: f64, len: usize) -> f32 {
        (total / len as f64) as f32
    }

    fn product(total: f64) -> f32 {
        total as f32
    }
}

macro_rules! integers {
    ($($type:ty),*) => {$(
        impl Number for $type {
            type Total = i64;
            const ONE: i64 = 1;

            fn add(a: i64, x: $type) -> i64 {
                a.wrapping_add(i64::from(x))
            }

            fn join(a: i64, b: i64) -> i64 {
                a.wrapping_add(b)
            }

            fn multiply(a: i64, x: $type) -> i64 {
                a.wrapping_mul(i64::from(x))
            }

            fn sum(total: i64) -> $type {
                Self::product(total)
            }

            fn mean(total: i64, _: usize) -> $type {
                Self::product(total)
            }

            fn product(total: i64) -> $type {
                Integer::from_total(total)
            }
        }
    )*};
}

integers!(i32, i64, bool);

/// The truncation of a total to an integer type.
trait Integer {
    fn from_total(total: i64) -> Self;
}

impl Integer for i32 {
    fn from_total(total: i64) -> i32 {
        total as i32
    }
}

impl Integer for i64 {
    fn from_total(total: i64) -> i64 {
        total
    }
}

impl Integer for bool {
    fn from_total(total: i64) -> bool {
        total != 0
    }
}
