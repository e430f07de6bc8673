//! Pooling: the largest elements and the means of windows.

use base::{Bytes, DType};
use graph::ops::{BinaryFunction, Pool, PoolFunction, Reduce, ReduceFunction, WindowAxis};
use graph::{Dim, TensorId};

use super::{LoweringBuilder, MAX_CONSTANT_ELEMENTS};

/// Windows of a pooling op over the last axes.
#[derive(Clone, Debug)]
pub(crate) struct Pooling {
    pub(crate) axes: Vec<WindowAxis>,
    /// Whether the last window may reach beyond the padding.
    pub(crate) ceil: bool,
}

/// The divisor of an average pooling.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Divisor {
    /// The elements of the window that are not padding.
    Elements,
    /// The elements of the window, padding included.
    ElementsAndPadding,
    /// A number.
    Number(usize),
}

impl LoweringBuilder {
    /// The largest element of each window.
    pub(crate) fn max_pool(&mut self, x: TensorId, pooling: &Pooling) -> Result<TensorId, String> {
        Ok(self.pool(x, pooling, PoolFunction::Max)?.0)
    }

    /// The mean of each window.
    pub(crate) fn average_pool(
        &mut self,
        x: TensorId,
        pooling: &Pooling,
        divisor: Divisor,
    ) -> Result<TensorId, String> {
        let (sum, axes) = self.pool(x, pooling, PoolFunction::Sum)?;
        let count = axes.len();
        if let Divisor::Number(number) = divisor {
            return self.with_number(BinaryFunction::Div, sum, number as f32);
        }
        let whole: usize = axes.iter().map(|axis| axis.size).product();
        let padded = divisor == Divisor::ElementsAndPadding;
        let full = axes
            .iter()
            .zip(&pooling.axes)
            .all(|(axis, stated)| match padded {
                true => axis.after <= stated.after,
                false => (axis.before, axis.after) == (0, 0),
            });
        if full {
            return self.with_number(BinaryFunction::Div, sum, whole as f32);
        }
        // Windows at the borders have fewer elements.
        let shape = self.shape(x);
        let sizes = &shape[shape.len() - count..];
        let mut counts = vec![1.0f32];
        let mut places = vec![];
        for ((axis, stated), size) in axes.iter().zip(&pooling.axes).zip(sizes) {
            let size = size
                .as_const()
                .ok_or("a padded axis must have a constant size")?;
            let windows = axis.windows(Dim::from(size))?.as_const().unwrap_or(0);
            if windows.saturating_mul(axis.size) > MAX_CONSTANT_ELEMENTS {
                return Err("has too many windows".into());
            }
            let inside = match padded {
                true => 0..size + stated.before + stated.after,
                false => axis.before..axis.before + size,
            };
            let own = (0..windows).map(|window| {
                let elements = (0..axis.size).map(|i| window * axis.stride + i * axis.dilation);
                elements.filter(|at| inside.contains(at)).count() as f32
            });
            let own: Vec<f32> = own.collect();
            if counts.len().saturating_mul(own.len()) > MAX_CONSTANT_ELEMENTS {
                return Err("has too many windows".into());
            }
            counts = counts
                .iter()
                .flat_map(|a| own.iter().map(move |b| a * b))
                .collect();
            places.push(windows);
        }
        let counts = self.constant(DType::F32, &places, Bytes::from_slice(&counts))?;
        self.binary(BinaryFunction::Div, sum, counts)
    }

    /// Means of `sizes` parts of each of the last axes.
    pub(crate) fn adaptive_average_pool(
        &mut self,
        x: TensorId,
        sizes: &[Option<usize>],
    ) -> Result<TensorId, String> {
        let mut x = self.cast(x, DType::F32)?;
        for (axis, size) in self.adaptive_axes(x, sizes)? {
            x = match self.parts(x, axis, size)? {
                None => x,
                Some(_) if size == 1 => self.reduce_axis(x, axis, ReduceFunction::Mean)?,
                Some((len, parts)) => {
                    let mut matrix = vec![0.0f32; size * len];
                    for (row, (start, end)) in parts.into_iter().enumerate() {
                        matrix[row * len + start..row * len + end].fill(1.0 / (end - start) as f32);
                    }
                    self.times_along(x, axis, [size, len], &matrix)?
                }
            };
        }
        Ok(x)
    }

    /// Maxima of `sizes` parts of each of the last axes.
    pub(crate) fn adaptive_max_pool(
        &mut self,
        x: TensorId,
        sizes: &[Option<usize>],
    ) -> Result<TensorId, String> {
        let mut x = x;
        for (axis, size) in self.adaptive_axes(x, sizes)? {
            let Some((_, parts)) = self.parts(x, axis, size)? else {
                continue;
            };
            let mut list = vec![];
            for (start, end) in parts {
                let part = match size {
                    1 => x,
                    _ => self.slice(x, axis, Dim::from(start), Dim::from(end - start))?,
                };
                list.push(self.reduce_axis(part, axis, ReduceFunction::Max)?);
            }
            x = self.concat(&list, axis)?;
        }
        Ok(x)
    }

    /// The last axes with the sizes that they get.
    fn adaptive_axes(
        &self,
        x: TensorId,
        sizes: &[Option<usize>],
    ) -> Result<Vec<(usize, usize)>, String> {
        let first = self.rank(x).checked_sub(sizes.len());
        let first = first.ok_or("its operand has too few axes")?;
        let sizes = sizes.iter().enumerate();
        Ok(sizes
            .filter_map(|(i, size)| Some((first + i, (*size)?)))
            .collect())
    }

    /// Length of an axis and starts and ends of its parts; `None` if every element is a part.
    #[allow(clippy::type_complexity, reason = "a pair of a length and ranges")]
    fn parts(
        &self,
        x: TensorId,
        axis: usize,
        size: usize,
    ) -> Result<Option<(usize, Vec<(usize, usize)>)>, String> {
        let len = self.shape(x)[axis];
        if len == Dim::from(size) {
            return Ok(None);
        }
        if size == 1 {
            return Ok(Some((0, vec![(0, 0)])));
        }
        let len = len.as_const().filter(|len| *len > 0 && *len <= MAX_PARTS);
        let len = len.filter(|_| size > 0 && size <= MAX_PARTS);
        let len = len.ok_or("its axes are not constant or too long")?;
        let part = |i: usize| (i * len / size, ((i + 1) * len).div_ceil(size));
        Ok(Some((len, (0..size).map(part).collect())))
    }

    /// A reduction over one axis, which is kept.
    fn reduce_axis(
        &mut self,
        x: TensorId,
        axis: usize,
        function: ReduceFunction,
    ) -> Result<TensorId, String> {
        let reduce = Reduce {
            function,
            axes: vec![axis],
            keep: true,
        };
        self.emit(reduce, &[x])
    }

    /// The pooled windows, and how they slide.
    fn pool(
        &mut self,
        x: TensorId,
        pooling: &Pooling,
        function: PoolFunction,
    ) -> Result<(TensorId, Vec<WindowAxis>), String> {
        let x = self.cast(x, DType::F32)?;
        let shape = self.shape(x);
        let outer = shape.len().checked_sub(pooling.axes.len());
        let outer = outer.ok_or("its operand has too few axes")?;
        let mut axes = pooling.axes.clone();
        for (axis, len) in axes.iter_mut().zip(&shape[outer..]) {
            if pooling.ceil && axis.stride > 1 {
                let len = len.as_const().ok_or("ceil_mode needs constant sizes")?;
                let span = axis.size.saturating_sub(1).saturating_mul(axis.dilation);
                let padded = len + axis.before + axis.after;
                let free = padded.checked_sub(span.saturating_add(1));
                let free = free.ok_or("a window does not fit")?;
                let mut steps = free.div_ceil(axis.stride);
                // The last window starts inside the input or the padding before it.
                if steps > 0 && steps * axis.stride >= len + axis.before {
                    steps -= 1;
                }
                let end = steps * axis.stride + span + 1;
                axis.after += end.saturating_sub(padded);
            }
        }
        let op = Pool {
            axes: axes.clone(),
            function,
        };
        Ok((self.emit(op, &[x])?, axes))
    }
}

/// Limit on the elements of an axis that is divided into parts.
const MAX_PARTS: usize = 4096;
