//! Changes of an axis' size by interpolation: each result is a sum of few elements, so an axis is multiplied by a matrix.

use base::{Bytes, DType};
use graph::ops::{Gather, Linear};
use graph::{Dim, TensorId};

use super::{LoweringBuilder, MAX_CONSTANT_ELEMENTS};

/// Where the elements of the result lie on the input's axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Coordinates {
    /// `(i + 0.5) · scale - 0.5`.
    HalfPixel,
    /// As [`HalfPixel`](Coordinates::HalfPixel), but 0 where the result has one element.
    PytorchHalfPixel,
    /// The first and last elements lie on those of the input.
    AlignCorners,
    /// `i · scale`.
    Asymmetric,
    /// As [`HalfPixel`](Coordinates::HalfPixel), with the middles of both axes at one place.
    HalfPixelSymmetric,
    /// As [`AlignCorners`](Coordinates::AlignCorners), of a result of this length before it was rounded down.
    AlignCornersOf(f64),
    /// The first and last elements of a result of this length lie at these shares of the input's axis.
    Crop { start: f64, end: f64, length: f64 },
}

impl Coordinates {
    /// The place of element `i` of `to` on an axis of `from` elements; `scale` is elements of the input per element of the
    /// result.
    pub(crate) fn at(self, i: usize, from: usize, to: usize, scale: f64) -> f64 {
        let i = i as f64;
        match self {
            Coordinates::HalfPixel => (i + 0.5) * scale - 0.5,
            Coordinates::PytorchHalfPixel if to == 1 => 0.0,
            Coordinates::PytorchHalfPixel => (i + 0.5) * scale - 0.5,
            Coordinates::AlignCorners if to == 1 => 0.0,
            Coordinates::AlignCorners => i * (from as f64 - 1.0) / (to as f64 - 1.0),
            Coordinates::Asymmetric => i * scale,
            Coordinates::HalfPixelSymmetric => {
                let shown = to as f64 * scale;
                (from as f64 - shown) / 2.0 + (i + 0.5) * scale - 0.5
            }
            Coordinates::AlignCornersOf(1.0) => 0.0,
            Coordinates::AlignCornersOf(length) => i * (from as f64 - 1.0) / (length - 1.0),
            Coordinates::Crop { start, end, length } => {
                let share = match length {
                    1.0 => (start + end) / 2.0,
                    _ => start + i * (end - start) / (length - 1.0),
                };
                share * (from as f64 - 1.0)
            }
        }
    }
}

/// How elements between those of the input are found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Interpolation {
    /// A straight line between the two neighbours.
    Linear,
    /// A cubic curve of the four neighbours with this coefficient.
    Cubic(f64),
}

impl Interpolation {
    /// The distance from which on elements have no weight.
    fn support(self) -> f64 {
        match self {
            Interpolation::Linear => 1.0,
            Interpolation::Cubic(_) => 2.0,
        }
    }

    /// The weight of an element at a distance.
    fn weight(self, distance: f64) -> f64 {
        let x = distance.abs();
        match self {
            Interpolation::Linear => (1.0 - x).max(0.0),
            Interpolation::Cubic(a) if x <= 1.0 => ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0,
            Interpolation::Cubic(a) if x < 2.0 => ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a,
            Interpolation::Cubic(_) => 0.0,
        }
    }
}

/// How an interpolation treats inputs that are larger than the result, and elements at the border.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Filter {
    /// Whether each result is made of all elements between its neighbours.
    pub(crate) antialias: bool,
    /// Whether elements beyond the border have no weight; else they equal the last ones.
    pub(crate) exclude_outside: bool,
}

/// How the nearest element is found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Nearest {
    /// The element before.
    Floor,
    /// The element after.
    Ceil,
    /// The nearest, the one before of two.
    RoundPreferFloor,
    /// The nearest, the one after of two.
    RoundPreferCeil,
}

impl LoweringBuilder {
    /// Resizes an axis to `to` elements by interpolation.
    pub(crate) fn interpolated(
        &mut self,
        x: TensorId,
        axis: usize,
        to: usize,
        scale: Option<f64>,
        coordinates: Coordinates,
        (interpolation, filter): (Interpolation, Filter),
    ) -> Result<TensorId, String> {
        let from = self.resized(x, axis, to)?;
        let scale = scale.unwrap_or(from as f64 / to as f64);
        let stretch = match filter.antialias {
            true => (1.0 / scale).min(1.0),
            false => 1.0,
        };
        let mut matrix = vec![0.0f32; to * from];
        for (i, row) in matrix.chunks_exact_mut(from).enumerate() {
            let at = coordinates.at(i, from, to, scale);
            let reach = interpolation.support() / stretch;
            let (first, last) = ((at - reach).ceil() as i64, (at + reach).floor() as i64);
            let mut weights = vec![0.0f64; from];
            for place in first..=last {
                let inside = place.clamp(0, from as i64 - 1);
                if inside == place || !filter.exclude_outside {
                    weights[inside as usize] += interpolation.weight((place as f64 - at) * stretch);
                }
            }
            let sum: f64 = weights.iter().sum();
            let divisor = if sum == 0.0 { 1.0 } else { sum };
            for (weight, exact) in row.iter_mut().zip(weights) {
                *weight = (exact / divisor) as f32;
            }
        }
        self.times_along(x, axis, [to, from], &matrix)
    }

    /// Resizes an axis to `to` elements, each a copy of an element.
    pub(crate) fn nearest(
        &mut self,
        x: TensorId,
        axis: usize,
        to: usize,
        scale: Option<f64>,
        coordinates: Coordinates,
        nearest: Nearest,
    ) -> Result<TensorId, String> {
        let from = self.resized(x, axis, to)?;
        let scale = scale.unwrap_or(from as f64 / to as f64);
        let place = |i: usize| {
            let at = coordinates.at(i, from, to, scale);
            let place = match nearest {
                Nearest::Floor => at.floor(),
                Nearest::Ceil => at.ceil(),
                Nearest::RoundPreferFloor => (at - 0.5).ceil(),
                Nearest::RoundPreferCeil => (at + 0.5).floor(),
            };
            (place as i64).clamp(0, from as i64 - 1)
        };
        let places: Vec<i64> = (0..to).map(place).collect();
        let index = self.constant(DType::I64, &[to], Bytes::from_slice(&places))?;
        self.emit(Gather { axis }, &[x, index])
    }

    /// The constant size of an axis that is resized.
    fn resized(&self, x: TensorId, axis: usize, to: usize) -> Result<usize, String> {
        let from = self.shape(x).get(axis).and_then(Dim::as_const);
        let from = from.filter(|n| *n > 0 && n.saturating_mul(to) <= MAX_CONSTANT_ELEMENTS);
        from.ok_or_else(|| "an axis that is resized must have a constant, small size".into())
    }

    /// Multiplies an axis by a constant matrix `[rows, columns]`.
    pub(crate) fn times_along(
        &mut self,
        x: TensorId,
        axis: usize,
        [rows, columns]: [usize; 2],
        matrix: &[f32],
    ) -> Result<TensorId, String> {
        let x = self.cast(x, DType::F32)?;
        let matrix = self.constant(DType::F32, &[rows, columns], Bytes::from_slice(matrix))?;
        let last = self.rank(x) - 1;
        let mut order: Vec<usize> = (0..=last).collect();
        order.swap(axis, last);
        let x = self.permute(x, order.clone())?;
        let product = self.emit(Linear::default(), &[x, matrix])?;
        self.permute(product, order)
    }
}
