//! `Resize` and `Upsample`: each axis is multiplied by a matrix, or gathered.

use base::{Bytes, DType};
use graph::ops::Scalar;
use graph::{Data, Dim, TensorId};

use super::call::Call;
use super::context::{OnnxLowering, Results};
use crate::lowering::{Coordinates, Filter, Interpolation, LoweringBuilder, Nearest};

/// Limit on the elements of a resized axis, whose places are listed in a constant.
const MAX_SIZE: usize = 1 << 24;

/// The size and the scale that an axis is resized to.
#[derive(Clone, Copy)]
struct Target {
    /// The result's size.
    to: usize,
    /// Elements of the input per element of the result, if it is not the ratio of the sizes.
    scale: Option<f64>,
}

impl OnnxLowering<'_> {
    /// An optional operand that is a list of real numbers known at import time; an empty list counts as omitted.
    fn known_reals(&mut self, call: &Call<'_>, index: usize) -> Result<Option<Vec<f64>>, String> {
        let Some(id) = self.maybe(call, index)? else {
            return Ok(None);
        };
        if self.shape(id).contains(&Dim::from(0)) {
            return Ok(None);
        }
        let known = self.known(id);
        match known.and_then(|known| known.constant(DType::F32)) {
            Some(Data::F32(list)) => Ok(Some(list.into_iter().map(f64::from).collect())),
            _ => Err(format!(
                "operand {index} must be a constant list of real numbers"
            )),
        }
    }

    /// The sizes that an operand states, which may keep the aspect ratio.
    fn stated_sizes(
        &mut self,
        call: &Call<'_>,
        sizes: TensorId,
        from: &[Dim],
    ) -> Result<Vec<Target>, String> {
        let mut targets = vec![];
        for size in self.numbers(sizes)? {
            let to = usize::try_from(size).map_err(|_| "its sizes are out of range")?;
            targets.push(Target { to, scale: None });
        }
        let policy = call.text("keep_aspect_ratio_policy")?.unwrap_or("stretch");
        if policy == "stretch" {
            return Ok(targets);
        }
        let from = from
            .iter()
            .map(Dim::as_const)
            .collect::<Option<Vec<usize>>>();
        let from = from.ok_or("a resized axis must have a constant size")?;
        let ratios = targets
            .iter()
            .zip(&from)
            .map(|(target, from)| target.to as f64 / *from as f64);
        let scale = match policy {
            "not_larger" => ratios.fold(f64::INFINITY, f64::min),
            "not_smaller" => ratios.fold(0.0, f64::max),
            other => {
                return Err(format!(
                    "the aspect ratio policy {other:?} is not supported"
                ));
            }
        };
        let sizes = from.iter().map(|from| Target {
            to: (scale * *from as f64 + 0.5) as usize,
            scale: Some(1.0 / scale),
        });
        Ok(sizes.collect())
    }

    /// Replaces the elements of an axis that lie beyond the input.
    fn extrapolated(
        &mut self,
        x: TensorId,
        axis: usize,
        (coordinates, from, target): (Coordinates, usize, Target),
        value: f32,
    ) -> Result<TensorId, String> {
        let scale = target.scale.unwrap_or(from as f64 / target.to as f64);
        let outside = |i: usize| {
            let at = coordinates.at(i, from, target.to, scale);
            at < 0.0 || at > from as f64 - 1.0
        };
        let outside: Vec<u8> = (0..target.to).map(|i| outside(i).into()).collect();
        if !outside.contains(&1) {
            return Ok(x);
        }
        let mut column = vec![Dim::from(1); self.rank(x)];
        column[axis] = Dim::from(target.to);
        let outside = self.constant(DType::Bool, &[target.to], Bytes::from_slice(&outside))?;
        let outside = self.reshape(outside, column)?;
        let value = self.scalar(Scalar::F32(value), DType::F32)?;
        self.choose(outside, value, x)
    }
}

pub(super) fn resize(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let mut x = lower.operand(call, 0)?;
    let dtype = lower.dtype(x);
    let old = call.op() == "Upsample" || call.version() < 11;
    let rank = lower.rank(x);
    if rank == 0 {
        return Err("its operand is a scalar; it needs at least one axis".into());
    }
    let axes: Vec<usize> = match call.ints("axes")? {
        Some(list) => {
            let axes = list.iter().map(|axis| LoweringBuilder::axis(*axis, rank));
            axes.collect::<Result<_, _>>()?
        }
        None => (0..rank).collect(),
    };
    let shape = lower.shape(x);
    let from: Vec<Dim> = axes.iter().map(|axis| shape[*axis]).collect();
    let scales = match call.floats("scales")? {
        Some(list) => Some(list.iter().map(|x| f64::from(*x)).collect()),
        None => lower.known_reals(call, if old { 1 } else { 2 })?,
    };
    let sizes = match (old, lower.maybe(call, 3)?) {
        (false, Some(id)) if !lower.shape(id).contains(&Dim::from(0)) => Some(id),
        _ => None,
    };
    let targets = match (sizes, scales) {
        (Some(sizes), _) => lower.stated_sizes(call, sizes, &from)?,
        (None, Some(scales)) => scaled_sizes(&from, &scales)?,
        (None, None) => return Err("has neither sizes nor scales".into()),
    };
    if targets.len() != axes.len() {
        return Err(format!(
            "resizes {} axes with {} sizes",
            axes.len(),
            targets.len()
        ));
    }
    if let Some(target) = targets.iter().find(|target| target.to > MAX_SIZE) {
        let size = target.to;
        return Err(format!(
            "resizes an axis to {size} elements; at most {MAX_SIZE} are supported"
        ));
    }
    let mode = call.text("coordinate_transformation_mode")?;
    let mode = if old {
        "asymmetric"
    } else {
        mode.unwrap_or("half_pixel")
    };
    let region = match mode {
        "tf_crop_and_resize" => lower.known_reals(call, 1)?,
        _ => None,
    };
    for (index, axis) in axes.iter().enumerate() {
        let target = targets[index];
        // The length that the standard computes places from is not rounded.
        let length = match (target.scale, shape[*axis].as_const()) {
            (Some(scale), Some(from)) => from as f64 / scale,
            _ => target.to as f64,
        };
        let coordinates = match mode {
            "half_pixel" => Coordinates::HalfPixel,
            "half_pixel_symmetric" => Coordinates::HalfPixelSymmetric,
            "pytorch_half_pixel" => Coordinates::PytorchHalfPixel,
            "align_corners" => Coordinates::AlignCornersOf(length),
            "asymmetric" => Coordinates::Asymmetric,
            "tf_crop_and_resize" => {
                let region = region.as_ref().filter(|list| list.len() == 2 * axes.len());
                let region = region.ok_or("has no region for each axis")?;
                Coordinates::Crop {
                    start: region[index],
                    end: region[axes.len() + index],
                    length,
                }
            }
            other => return Err(format!("coordinates {other:?} are not supported")),
        };
        let whole = match coordinates {
            Coordinates::Crop { start, end, .. } => (start, end) == (0.0, 1.0),
            _ => true,
        };
        if whole && (shape[*axis] == Dim::from(target.to) || target.scale == Some(1.0)) {
            continue;
        }
        if target.to == 0 {
            return Err("a resized axis must have elements".into());
        }
        x = lower.resized_axis(call, x, *axis, target, coordinates)?;
    }
    if lower.dtype(x) != dtype {
        return Err("interpolates integers, whose rounding is not defined".into());
    }
    Ok(vec![x])
}

impl OnnxLowering<'_> {
    fn resized_axis(
        &mut self,
        call: &Call<'_>,
        x: TensorId,
        axis: usize,
        target: Target,
        coordinates: Coordinates,
    ) -> Result<TensorId, String> {
        let Target { to, scale } = target;
        let old = call.op() == "Upsample" || call.version() < 11;
        let filter = Filter {
            antialias: call.flag("antialias", false)?,
            exclude_outside: call.flag("exclude_outside", false)?,
        };
        let interpolation = match call.text("mode")?.unwrap_or("nearest") {
            "nearest" => None,
            "linear" | "bilinear" => Some(Interpolation::Linear),
            "cubic" => {
                let a = f64::from(call.float_or("cubic_coeff_a", -0.75)?);
                Some(Interpolation::Cubic(a))
            }
            other => return Err(format!("mode {other:?} is not supported")),
        };
        let from = self.shape(x)[axis].as_const();
        let result = match interpolation {
            Some(interpolation) => {
                self.interpolated(x, axis, to, scale, coordinates, (interpolation, filter))?
            }
            None => {
                let nearest = match call.text("nearest_mode")? {
                    _ if old => Nearest::Floor,
                    None | Some("round_prefer_floor") => Nearest::RoundPreferFloor,
                    Some("round_prefer_ceil") => Nearest::RoundPreferCeil,
                    Some("floor") => Nearest::Floor,
                    Some("ceil") => Nearest::Ceil,
                    Some(other) => return Err(format!("nearest_mode {other:?} is not supported")),
                };
                self.nearest(x, axis, to, scale, coordinates, nearest)?
            }
        };
        match coordinates {
            Coordinates::Crop { .. } => {
                let from = from.ok_or("a resized axis must have a constant size")?;
                let value = call.float_or("extrapolation_value", 0.0)?;
                self.extrapolated(result, axis, (coordinates, from, target), value)
            }
            _ => Ok(result),
        }
    }
}

/// The sizes that follow from scales, rounded down.
fn scaled_sizes(from: &[Dim], scales: &[f64]) -> Result<Vec<Target>, String> {
    let target = |(from, scale): (&Dim, &f64)| match from.as_const() {
        Some(from) => Ok(Target {
            to: (from as f64 * scale).floor() as usize,
            scale: Some(1.0 / scale),
        }),
        // An axis that is kept.
        None if *scale == 1.0 => Ok(Target {
            to: 1,
            scale: Some(1.0),
        }),
        None => Err("a resized axis must have a constant size".into()),
    };
    if from.len() != scales.len() {
        return Err(format!(
            "has {} scales for {} axes",
            scales.len(),
            from.len()
        ));
    }
    from.iter().zip(scales).map(target).collect()
}
