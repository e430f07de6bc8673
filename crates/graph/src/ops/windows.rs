//! Sliding windows over the last axes (im2col).

use super::operands::{f32s, operands, require_f32};
use super::strided::strides;
use super::{DimFormatter, OpDefinition};
use crate::tensor_type::TensorType;
use crate::{Bindings, Dim, Value};

/// How a window slides along one axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowAxis {
    /// Elements of a window.
    pub size: usize,
    /// Elements from one window to the next.
    pub stride: usize,
    /// Elements of the axis from one element of a window to the next.
    pub dilation: usize,
    /// Padding before the axis.
    pub before: usize,
    /// Padding after the axis.
    pub after: usize,
}

impl WindowAxis {
    /// The number of windows along an axis of `len` elements.
    ///
    /// # Errors
    /// Returns the reason if no window fits, a number is zero or too large, or the number is not a polynomial in the symbols.
    pub fn windows(&self, len: Dim) -> Result<Dim, String> {
        let WindowAxis {
            size,
            stride,
            dilation,
            before,
            after,
        } = *self;
        let span = size
            .checked_sub(1)
            .and_then(|n| n.checked_mul(dilation))
            .filter(|_| stride > 0 && dilation > 0)
            .filter(|n| [*n, before, after].iter().all(|n| *n < MAX_SPAN))
            .ok_or_else(|| {
                format!("a window of {size} with stride {stride} and dilation {dilation} is empty or too large")
            })?;
        let free = len + Dim::from(before) + Dim::from(after) - Dim::from(span + 1);
        if free.as_number().is_some_and(|free| free < 0) {
            return Err(format!("a window of {} does not fit", span + 1));
        }
        let steps = free.floor_div(stride);
        let steps = steps.ok_or_else(|| format!("stride {stride} does not divide {len:?}"))?;
        Ok(steps + Dim::from(1))
    }

    /// Element of the axis under element `within` of a window; `None` in the padding.
    pub(super) fn place(&self, window: usize, within: usize, len: usize) -> Option<usize> {
        let at = window * self.stride + within * self.dilation;
        at.checked_sub(self.before).filter(|at| *at < len)
    }

    pub(super) fn text(axes: &[WindowAxis]) -> Vec<String> {
        let list = |what: &str, get: &dyn Fn(&WindowAxis) -> usize, default: usize| {
            let numbers: Vec<usize> = axes.iter().map(get).collect();
            let all = numbers.iter().all(|n| *n == default);
            (!all).then(|| format!("{what}: {numbers:?}"))
        };
        [
            list("size", &|a| a.size, 0),
            list("stride", &|a| a.stride, 1),
            list("dilation", &|a| a.dilation, 1),
            list("before", &|a| a.before, 0),
            list("after", &|a| a.after, 0),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

/// Limit on a window's span and padding.
const MAX_SPAN: usize = 1 << 30;

/// The most axes that a window slides along.
pub(super) const MAX_WINDOW_AXES: usize = 3;

/// Axes that windows slide along, as three: the first ones may have one element.
pub(super) struct PaddedAxes {
    axes: [WindowAxis; MAX_WINDOW_AXES],
    sizes: [usize; MAX_WINDOW_AXES],
}

impl PaddedAxes {
    /// The axes of tensors that have `sizes` elements along them.
    pub(super) fn new(axes: &[WindowAxis], sizes: &[usize]) -> PaddedAxes {
        let one = WindowAxis {
            size: 1,
            stride: 1,
            dilation: 1,
            before: 0,
            after: 0,
        };
        let first = MAX_WINDOW_AXES - axes.len();
        let mut padded = PaddedAxes {
            axes: [one; MAX_WINDOW_AXES],
            sizes: [1; MAX_WINDOW_AXES],
        };
        padded.axes[first..].copy_from_slice(axes);
        padded.sizes[first..].copy_from_slice(sizes);
        padded
    }

    /// Elements of the axes.
    pub(super) fn plane(&self) -> usize {
        self.sizes.iter().product()
    }

    /// The windows at `places` positions along the axes, in order: for every element of a window its place in the plane, or
    /// `None` in the padding.
    pub(super) fn windows(
        &self,
        places: &[usize],
    ) -> impl Iterator<Item = impl Iterator<Item = Option<usize>>> {
        let first = MAX_WINDOW_AXES - places.len();
        let mut counts = [1; MAX_WINDOW_AXES];
        counts[first..].copy_from_slice(places);
        cube(counts).map(move |place| {
            cube(self.axes.map(|axis| axis.size)).map(move |within| {
                (0..MAX_WINDOW_AXES).try_fold(0, |at, i| {
                    let along = self.axes[i].place(place[i], within[i], self.sizes[i])?;
                    Some(at * self.sizes[i] + along)
                })
            })
        })
    }
}

/// The number of axes of `x` before those that windows slide along, at least `least`.
pub(super) fn axes_before(
    axes: &[WindowAxis],
    x: &TensorType,
    least: usize,
) -> Result<usize, String> {
    let (count, rank) = (axes.len(), x.shape.len());
    let outer = rank.checked_sub(count).filter(|n| *n >= least);
    let outer = outer.filter(|_| (1..=MAX_WINDOW_AXES).contains(&count));
    outer.ok_or_else(|| format!("cannot slide along {count} axes of {rank} behind {least}"))
}

/// All indices of three axes, in row-major order.
fn cube(sizes: [usize; 3]) -> impl Iterator<Item = [usize; 3]> {
    let [first, second, third] = sizes;
    (0..first).flat_map(move |a| (0..second).flat_map(move |b| (0..third).map(move |c| [a, b, c])))
}

/// Copies of `x` under every position of a window that slides along its last axes. With `x [A.., B.., S..]`, where `A` are
/// `batch_axes` axes, the result is `[A.., P.., B.., K..]`: positions `P` and elements `K` of a window.
#[derive(Clone, Debug, PartialEq)]
pub struct Windows {
    /// How the window slides along each of the last axes of `x`; one to three.
    pub axes: Vec<WindowAxis>,
    /// Axes of `x` before the positions in the result.
    pub batch_axes: usize,
    /// The element that stands for the padding.
    pub padding: f32,
}

impl OpDefinition for Windows {
    fn name(&self) -> &'static str {
        "windows"
    }

    fn attributes(&self, _: DimFormatter<'_>) -> Vec<String> {
        let mut list = WindowAxis::text(&self.axes);
        list.push(format!("batch_axes: {}", self.batch_axes));
        if self.padding != 0.0 {
            list.push(format!("padding: {}", self.padding));
        }
        list
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<TensorType, String> {
        let [x] = operands(inputs)?;
        require_f32("x", x)?;
        let outer = axes_before(&self.axes, x, self.batch_axes)?;
        let mut shape = x.shape[..self.batch_axes].to_vec();
        for (axis, len) in self.axes.iter().zip(&x.shape[outer..]) {
            shape.push(axis.windows(*len)?);
        }
        shape.extend_from_slice(&x.shape[self.batch_axes..outer]);
        shape.extend(self.axes.iter().map(|axis| Dim::from(axis.size)));
        Ok(TensorType::f32(shape))
    }

    fn evaluate(&self, inputs: &[&Value], shape: &[usize], _: &Bindings) -> Result<Value, String> {
        let x = f32s(&inputs[0])?;
        let sizes = &inputs[0].shape;
        let (steps, outer) = (strides(sizes), sizes.len() - self.axes.len());
        let mut out = Vec::with_capacity(shape.iter().product());
        let mut index = vec![0; shape.len()];
        for _ in 0..shape.iter().product() {
            let mut at = Some(0);
            for (axis, step) in steps[..outer].iter().enumerate() {
                let from = match axis < self.batch_axes {
                    true => axis,
                    false => axis + self.axes.len(),
                };
                at = at.map(|at| at + index[from] * step);
            }
            for (i, axis) in self.axes.iter().enumerate() {
                let (window, within) = (
                    index[self.batch_axes + i],
                    index[outer + self.axes.len() + i],
                );
                let place = axis.place(window, within, sizes[outer + i]);
                at = at
                    .zip(place)
                    .map(|(at, place)| at + place * steps[outer + i]);
            }
            out.push(at.map_or(self.padding, |at| x[at]));
            for axis in (0..shape.len()).rev() {
                index[axis] += 1;
                if index[axis] < shape[axis] {
                    break;
                }
                index[axis] = 0;
            }
        }
        Ok(Value::f32(shape, out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(size: usize, stride: usize, before: usize, after: usize) -> WindowAxis {
        WindowAxis {
            size,
            stride,
            dilation: 1,
            before,
            after,
        }
    }

    #[test]
    fn slides() {
        let x = Value::f32([1, 2, 3], vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let op = |batch_axes| Windows {
            axes: vec![axis(2, 2, 1, 0)],
            batch_axes,
            padding: -1.0,
        };
        let run = |batch_axes: usize, shape: &[usize]| {
            let op = op(batch_axes);
            let ty = TensorType::f32([Dim::from(1), 2.into(), 3.into()]);
            let inferred = op.infer(&[&ty]).unwrap().dims(&Bindings::default());
            assert_eq!(inferred.as_deref(), Some(shape));
            let y = op.evaluate(&[&x], shape, &Bindings::default()).unwrap();
            y.as_f32().unwrap().to_vec()
        };
        let channels_outside = [-1.0, 1.0, 2.0, 3.0, -1.0, 4.0, 5.0, 6.0];
        assert_eq!(run(2, &[1, 2, 2, 2]), channels_outside);
        let channels_inside = [-1.0, 1.0, -1.0, 4.0, 2.0, 3.0, 5.0, 6.0];
        assert_eq!(run(1, &[1, 2, 2, 2]), channels_inside);
    }

    #[test]
    fn counts_windows() {
        let s = Dim::from(crate::Symbol(0));
        assert_eq!(axis(3, 1, 1, 1).windows(s), Ok(s));
        assert_eq!(axis(3, 2, 1, 1).windows(s * 2), Ok(s));
        assert_eq!(axis(3, 2, 1, 1).windows(Dim::from(7)), Ok(Dim::from(4)));
        assert!(axis(3, 2, 1, 1).windows(s).is_err());
        assert!(axis(9, 1, 0, 0).windows(Dim::from(8)).is_err());
        assert!(axis(0, 1, 0, 0).windows(Dim::from(8)).is_err());
        assert!(axis(1, 0, 0, 0).windows(Dim::from(8)).is_err());
        assert!(axis(usize::MAX, 1, 0, 0).windows(Dim::from(8)).is_err());
    }
}
