//! Interpolation.

use graph::ops::{GridSample, SampleMode, SamplePadding};
use graph::{Dim, TensorId};

use super::call::Call;
use super::context::Pt2Lowering;
use crate::lowering::{Coordinates, Filter, Interpolation, Nearest};

type Results = Result<Vec<TensorId>, String>;

/// PyTorch's coefficient of cubic interpolation.
const CUBIC: f64 = -0.75;

/// Elements of the input per element of the result along each axis, where the file states them.
fn scales(call: &Call<'_>, count: usize) -> Result<Vec<Option<f64>>, String> {
    let stated: Vec<Option<f64>> = match call.get("scale_factors") {
        Some(_) => call
            .floats("scale_factors")?
            .into_iter()
            .map(Some)
            .collect(),
        None => {
            let names: &[&str] = match count {
                1 => &["scales"],
                2 => &["scales_h", "scales_w"],
                _ => &["scales_d", "scales_h", "scales_w"],
            };
            let scale = |name: &&str| match call.get(name) {
                Some(_) => Ok(Some(f64::from(call.float(name, 1.0)?))),
                None => Ok(None),
            };
            names.iter().map(scale).collect::<Result<_, String>>()?
        }
    };
    let usable = |scale: f64| Some(1.0 / scale).filter(|s| s.is_finite() && *s > 0.0);
    match stated.len() == count {
        true => Ok(stated.into_iter().map(|s| s.and_then(usable)).collect()),
        false => Ok(vec![None; count]),
    }
}

pub(super) fn upsample(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let input = if call.get("input").is_some() {
        "input"
    } else {
        "self"
    };
    let mut x = lower.tensor(call, input)?;
    let result = lower.result_shape(call, 0)?;
    let count = lower.rank(x).saturating_sub(2);
    let scales = scales(call, count)?;
    let corners = call.flag("align_corners", false)?;
    let name = call.op.split('.').nth(1).unwrap_or_default();
    for (i, scale) in scales.into_iter().enumerate() {
        let axis = 2 + i;
        let to = result.get(axis).and_then(Dim::as_const);
        let to = to
            .filter(|n| *n > 0)
            .ok_or("its result must have constant sizes")?;
        let smooth = match corners {
            true => Coordinates::AlignCorners,
            false => Coordinates::HalfPixel,
        };
        x = match name {
            _ if lower.shape(x)[axis] == Dim::from(to) && scale.is_none_or(|s| s == 1.0) => x,
            "upsample_nearest1d" | "upsample_nearest2d" | "upsample_nearest3d" => {
                lower.nearest(x, axis, to, scale, Coordinates::Asymmetric, Nearest::Floor)?
            }
            "upsample_linear1d" | "upsample_bilinear2d" | "upsample_trilinear3d" => lower
                .interpolated(
                    x,
                    axis,
                    to,
                    scale,
                    smooth,
                    (Interpolation::Linear, Filter::default()),
                )?,
            "upsample_bicubic2d" => lower.interpolated(
                x,
                axis,
                to,
                scale,
                smooth,
                (Interpolation::Cubic(CUBIC), Filter::default()),
            )?,
            // The exact form of nearest.
            _ => lower.nearest(
                x,
                axis,
                to,
                scale,
                Coordinates::HalfPixel,
                Nearest::RoundPreferCeil,
            )?,
        };
    }
    Ok(vec![x])
}

pub(super) fn grid_sampler(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let (x, grid) = (lower.tensor(call, "input")?, lower.tensor(call, "grid")?);
    let mode = match call.int("interpolation_mode", 0)? {
        0 => SampleMode::Linear,
        1 => SampleMode::Nearest,
        2 => SampleMode::Cubic,
        other => return Err(format!("interpolation_mode {other} is not supported")),
    };
    let padding = match call.int("padding_mode", 0)? {
        0 => SamplePadding::Zeros,
        1 => SamplePadding::Border,
        2 => SamplePadding::Reflection,
        other => return Err(format!("padding_mode {other} is not supported")),
    };
    let op = GridSample {
        mode,
        padding,
        align_corners: call.flag("align_corners", false)?,
    };
    Ok(vec![lower.emit(op, &[x, grid])?])
}
