//! Interpolation of an image at the points of a grid.

use super::operands::{f32s, operands, require_f32};
use super::{DimFormatter, OpDefinition};
use crate::tensor_type::TensorType;
use crate::{Bindings, Dim, Value};

/// How the value at a point is computed from the elements around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleMode {
    /// Straight lines between the two neighbours along each axis.
    Linear,
    /// The nearest element; halves go to the even one.
    Nearest,
    /// Cubic curves through the four neighbours along each axis.
    Cubic,
}

/// The values of points outside of the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SamplePadding {
    /// Zeros.
    Zeros,
    /// The nearest element of the border.
    Border,
    /// The image, mirrored at its borders again and again.
    Reflection,
}

/// Interpolates `x [N, C, S..]` at the points of `grid [N, P.., rank]`: `[N, C, P..]`. A point has a coordinate for each axis of `S`,
/// the last axis first; −1 and 1 are the ends of the axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GridSample {
    /// How the value at a point is computed.
    pub mode: SampleMode,
    /// The values of points outside of the image.
    pub padding: SamplePadding,
    /// Whether −1 and 1 are the centres of the first and last elements, or their outer edges.
    pub align_corners: bool,
}

/// The most neighbours that a value is computed from along one axis.
pub const MAX_TAPS: usize = 4;

/// The most axes of an image.
pub const MAX_SAMPLE_AXES: usize = 3;

/// The elements of an axis that a value is computed from, each with its weight. Elements outside of the axis are left out.
#[derive(Clone, Copy, Debug)]
pub struct Taps {
    list: [(usize, f32); MAX_TAPS],
    count: usize,
}

impl Taps {
    /// Element and weight of each.
    pub fn iter(&self) -> impl Iterator<Item = (usize, f32)> + '_ {
        self.list[..self.count].iter().copied()
    }

    fn push(&mut self, at: f32, weight: f32, len: usize) {
        // A comparison that fails for NaN as well.
        if at >= 0.0 && at < len as f32 {
            self.list[self.count] = (at as usize, weight);
            self.count += 1;
        }
    }
}

/// Coefficient of cubic interpolation, the one of PyTorch and ONNX.
const CUBIC: f32 = -0.75;

impl GridSample {
    /// The elements of an axis of `len` elements around the coordinate, which is in −1..=1 inside the image.
    pub fn taps(&self, coordinate: f32, len: usize) -> Taps {
        let mut taps = Taps {
            list: [(0, 0.0); MAX_TAPS],
            count: 0,
        };
        let at = match self.align_corners {
            true => (coordinate + 1.0) / 2.0 * (len as f32 - 1.0),
            false => ((coordinate + 1.0) * len as f32 - 1.0) / 2.0,
        };
        match self.mode {
            SampleMode::Nearest => {
                let at = self.inside(at, len).round_ties_even();
                taps.push(at, 1.0, len);
            }
            SampleMode::Linear => {
                let at = self.inside(at, len);
                let (first, part) = (at.floor(), at - at.floor());
                taps.push(first, 1.0 - part, len);
                taps.push(first + 1.0, part, len);
            }
            SampleMode::Cubic => {
                let (first, part) = (at.floor(), at - at.floor());
                for (i, weight) in cubic_weights(part).into_iter().enumerate() {
                    let neighbour = self.inside(first - 1.0 + i as f32, len);
                    taps.push(neighbour, weight, len);
                }
            }
        }
        taps
    }

    /// The place of the axis that stands for `at`, which may lie outside.
    fn inside(&self, at: f32, len: usize) -> f32 {
        let last = len as f32 - 1.0;
        match self.padding {
            SamplePadding::Zeros => at,
            SamplePadding::Border => at.clamp(0.0, last.max(0.0)),
            SamplePadding::Reflection => {
                let (low, span) = match self.align_corners {
                    true => (0.0, last),
                    false => (-0.5, len as f32),
                };
                if span <= 0.0 {
                    return 0.0;
                }
                let distance = (at - low).abs();
                let rest = distance % span;
                let mirrored = (distance / span).floor() % 2.0 != 0.0;
                let at = if mirrored { span - rest } else { rest } + low;
                at.clamp(0.0, last.max(0.0))
            }
        }
    }
}

/// Weights of the four neighbours of a point that lies `t` behind the second.
fn cubic_weights(t: f32) -> [f32; MAX_TAPS] {
    let near = |x: f32| ((CUBIC + 2.0) * x - (CUBIC + 3.0)) * x * x + 1.0;
    let far = |x: f32| ((CUBIC * x - 5.0 * CUBIC) * x + 8.0 * CUBIC) * x - 4.0 * CUBIC;
    [far(t + 1.0), near(t), near(1.0 - t), far(2.0 - t)]
}

impl OpDefinition for GridSample {
    fn name(&self) -> &'static str {
        "grid_sample"
    }

    fn attributes(&self, _: DimFormatter<'_>) -> Vec<String> {
        let mode = match self.mode {
            SampleMode::Linear => "linear",
            SampleMode::Nearest => "nearest",
            SampleMode::Cubic => "cubic",
        };
        let padding = match self.padding {
            SamplePadding::Zeros => "zeros",
            SamplePadding::Border => "border",
            SamplePadding::Reflection => "reflection",
        };
        let mut list = vec![format!("mode: {mode}"), format!("padding: {padding}")];
        if self.align_corners {
            list.push("align_corners: true".into());
        }
        list
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<TensorType, String> {
        let [x, grid] = operands(inputs)?;
        require_f32("x", x)?;
        require_f32("grid", grid)?;
        let rank = x.shape.len().saturating_sub(2);
        if !(1..=MAX_SAMPLE_AXES).contains(&rank) {
            return Err(format!(
                "x has {} axes, must have 3 to {}",
                x.shape.len(),
                2 + MAX_SAMPLE_AXES
            ));
        }
        if self.mode == SampleMode::Cubic && rank != 2 {
            return Err(format!(
                "cubic interpolation is defined for 2 axes, x has {rank}"
            ));
        }
        if x.shape[2..].contains(&Dim::from(0)) {
            return Err("x has an axis without elements".into());
        }
        let fits = grid.shape.len() == rank + 2
            && grid.shape[0] == x.shape[0]
            && grid.shape[rank + 1] == Dim::from(rank);
        if !fits {
            return Err(format!(
                "grid has shape {:?}, must be {:?}, {rank} axes of points and {rank} coordinates",
                grid.shape, x.shape[0]
            ));
        }
        let mut shape = x.shape[..2].to_vec();
        shape.extend_from_slice(&grid.shape[1..=rank]);
        Ok(TensorType::f32(shape))
    }

    fn evaluate(&self, inputs: &[&Value], shape: &[usize], _: &Bindings) -> Result<Value, String> {
        let (x, grid) = (f32s(&inputs[0])?, f32s(&inputs[1])?);
        let sizes = &inputs[0].shape[2..];
        let points: usize = shape[2..].iter().product();
        let plane: usize = sizes.iter().product();
        let mut result = Vec::with_capacity(shape.iter().product());
        for image in 0..shape[0] {
            for channel in 0..shape[1] {
                let x = &x[(image * shape[1] + channel) * plane..][..plane];
                for point in 0..points {
                    let point = &grid[(image * points + point) * sizes.len()..][..sizes.len()];
                    // Elements and weights of the axes so far.
                    let mut places = vec![(0, 1.0f64)];
                    for (size, coordinate) in sizes.iter().zip(point.iter().rev()) {
                        let taps = self.taps(*coordinate, *size);
                        let extended = places.iter().flat_map(|(at, weight)| {
                            taps.iter()
                                .map(move |(i, w)| (at * size + i, weight * f64::from(w)))
                        });
                        places = extended.collect();
                    }
                    let terms = places.iter().map(|(at, w)| f64::from(x[*at]) * w);
                    // A sum of nothing would be −0.
                    result.push(terms.fold(0.0, |sum, term| sum + term) as f32);
                }
            }
        }
        Ok(Value::f32(shape, result))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(op: GridSample, points: &[f32]) -> Vec<f32> {
        let x = Value::f32([1, 1, 4], vec![1.0, 2.0, 4.0, 8.0]);
        let grid = Value::f32([1, points.len(), 1], points.to_vec());
        let shape = [1, 1, points.len()];
        let value = op.evaluate(&[&x, &grid], &shape, &Bindings::default());
        f32s(&&value.expect("a value")).expect("f32").to_vec()
    }

    #[test]
    fn interpolates_along_an_axis() {
        let mut op = GridSample {
            mode: SampleMode::Linear,
            padding: SamplePadding::Zeros,
            align_corners: true,
        };

        let points = [-1.0, 0.0, 1.0, 1.5, f32::NAN, f32::INFINITY];
        assert_eq!(
            sample(op, &points),
            [1.0, 3.0, 8.0, 2.0, 0.0, 0.0],
            "a quarter of the last element and three of the padding"
        );
        op.align_corners = false;
        assert_eq!(sample(op, &[-1.0, -0.75, 0.0]), [0.5, 1.0, 3.0]);
        op.padding = SamplePadding::Border;
        assert_eq!(sample(op, &[-1.0, -7.0, 9.0]), [1.0, 1.0, 8.0]);
        op.padding = SamplePadding::Reflection;
        op.mode = SampleMode::Nearest;
        assert_eq!(
            sample(op, &[-1.25, -1.75, 1.25, 5.25]),
            [1.0, 2.0, 8.0, 8.0]
        );
    }
}
