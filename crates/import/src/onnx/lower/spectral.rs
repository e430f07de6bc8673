//! Discrete Fourier transforms as products with constant matrices, and windows of signals.

use std::f64::consts::{PI, TAU};

use base::{Bytes, DType};
use graph::ops::{BinaryFunction as B, Gather};
use graph::{Data, Dim, TensorId};

use super::call::Call;
use super::context::{OnnxLowering, Results};
use crate::lowering::{LoweringBuilder, MAX_CONSTANT_ELEMENTS};
use crate::onnx::tensor;

/// A transform along an axis.
#[derive(Clone, Copy)]
struct Transform {
    /// Elements that are transformed.
    length: usize,
    inverse: bool,
    /// Whether only the first half of the frequencies is given or taken.
    onesided: bool,
}

impl OnnxLowering<'_> {
    /// A number that must be known at import time.
    fn known_number(&mut self, call: &Call<'_>, index: usize) -> Result<Option<f64>, String> {
        let Some(id) = self.maybe(call, index)? else {
            return Ok(None);
        };
        let known = self.known(id);
        let known = known.and_then(|known| known.constant(self.dtype(id)));
        let number = match known {
            Some(Data::F32(list)) if list.len() == 1 => Some(f64::from(list[0])),
            Some(Data::I64(list)) if list.len() == 1 => Some(list[0] as f64),
            Some(Data::I32(list)) if list.len() == 1 => Some(f64::from(list[0])),
            _ => None,
        };
        let number = number.ok_or_else(|| format!("operand {index} must be a constant number"))?;
        Ok(Some(number))
    }

    /// A count that must be known at import time.
    fn known_count(&mut self, call: &Call<'_>, index: usize) -> Result<Option<usize>, String> {
        let Some(number) = self.known_number(call, index)? else {
            return Ok(None);
        };
        match number {
            n if n >= 0.0 && n <= MAX_CONSTANT_ELEMENTS as f64 => Ok(Some(n as usize)),
            n => Err(format!("operand {index} is {n}, which is out of range")),
        }
    }

    /// The real or imaginary parts of `x`, without the last axis.
    fn component(&mut self, x: TensorId, index: usize) -> Result<TensorId, String> {
        let mut shape = self.shape(x);
        let last = shape.len() - 1;
        let part = self.slice(x, last, Dim::from(index), Dim::from(1))?;
        shape.pop();
        self.reshape(part, shape)
    }

    /// Transforms `axis` of numbers whose last axis holds one real or two complex components.
    fn transform(&mut self, x: TensorId, axis: usize, t: Transform) -> Result<TensorId, String> {
        let shape = self.shape(x);
        let components = shape.last().and_then(Dim::as_const);
        let components = components.filter(|n| [1, 2].contains(n) && axis + 1 < shape.len());
        let components = components.ok_or("its last axis must hold 1 or 2 components")?;
        let size = shape[axis].as_const();
        let size = size.ok_or("the transformed axis must have a constant size")?;
        let n = t.length;
        let half = n / 2 + 1;
        if n == 0 || n.saturating_mul(n) > MAX_CONSTANT_ELEMENTS {
            return Err(format!("transforms {n} elements, which is not supported"));
        }
        let from_half = t.inverse && t.onesided;
        let taken = if from_half { half } else { n };
        let pad = [0, taken as i64 - size as i64];
        let x = self.pad_axis(x, axis, pad, graph::ops::Scalar::F32(0.0))?;
        let results = if t.onesided && !t.inverse { half } else { n };
        let scale = if t.inverse { 1.0 / n as f64 } else { 1.0 };
        let sign = if t.inverse { 1.0 } else { -1.0 };
        let matrix = |function: fn(f64) -> f64, factor: f64| -> Vec<f32> {
            let row = |k: usize| {
                (0..taken).map(move |i| {
                    // Frequencies of the other half are conjugates.
                    let twice = from_half && i > 0 && 2 * i < n;
                    let weight = if twice { 2.0 } else { 1.0 };
                    let angle = TAU * ((k * i) % n) as f64 / n as f64;
                    (weight * factor * function(angle)) as f32
                })
            };
            (0..results).flat_map(row).collect()
        };
        let (cos, sin) = (matrix(f64::cos, scale), matrix(f64::sin, sign * scale));
        let sizes = [results, taken];
        let real = self.component(x, 0)?;
        let mut re = self.times_along(real, axis, sizes, &cos)?;
        let mut im = match from_half {
            true => None,
            false => Some(self.times_along(real, axis, sizes, &sin)?),
        };
        if components == 2 {
            let imaginary = self.component(x, 1)?;
            let crossed = self.times_along(imaginary, axis, sizes, &sin)?;
            re = self.binary(B::Sub, re, crossed)?;
            if let Some(own) = im {
                let direct = self.times_along(imaginary, axis, sizes, &cos)?;
                im = Some(self.binary(B::Add, own, direct)?);
            }
        }
        let mut apart = self.shape(re);
        apart.push(Dim::from(1));
        let last = apart.len() - 1;
        let mut parts = vec![self.reshape(re, apart.clone())?];
        if let Some(im) = im {
            parts.push(self.reshape(im, apart)?);
        }
        self.concat(&parts, last)
    }
}

pub(super) fn dft(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.real(call, 0)?;
    let rank = lower.rank(x);
    let axis = match lower.known_number(call, 2)? {
        Some(axis) => axis as i64,
        None => call.int_or("axis", if call.version() < 20 { 1 } else { -2 })?,
    };
    let axis = LoweringBuilder::axis(axis, rank)?;
    let (inverse, onesided) = (call.flag("inverse", false)?, call.flag("onesided", false)?);
    let size = lower.shape(x).get(axis).and_then(Dim::as_const);
    let size = size.ok_or("the transformed axis must have a constant size")?;
    let components = lower.shape(x).last().copied();
    if onesided && !inverse && components != Some(Dim::from(1)) {
        return Err("a onesided transform of complex numbers is not defined".into());
    }
    let length = match lower.known_count(call, 1)? {
        Some(length) => length,
        None if inverse && onesided => 2 * size.saturating_sub(1),
        None => size,
    };
    let transform = Transform {
        length,
        inverse,
        onesided,
    };
    Ok(vec![lower.transform(x, axis, transform)?])
}

pub(super) fn stft(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.real(call, 0)?;
    let [batch, length, components] = lower.shape(x)[..] else {
        return Err("its signal must have three axes".into());
    };
    let length = length
        .as_const()
        .ok_or("its signal must have a constant length")?;
    let step = lower.known_count(call, 1)?.filter(|step| *step > 0);
    let step = step.ok_or("its frame step must be a positive constant")?;
    let window = match call.name(2) {
        Some(_) => Some(lower.real(call, 2)?),
        None => None,
    };
    let own = window.and_then(|window| lower.shape(window).first().and_then(Dim::as_const));
    let frame = lower.known_count(call, 3)?.or(own).unwrap_or(length);
    let frames = length
        .checked_sub(frame)
        .filter(|_| frame > 0)
        .map(|free| free / step + 1);
    let frames = frames.filter(|n| n.saturating_mul(frame) <= MAX_CONSTANT_ELEMENTS);
    let frames =
        frames.ok_or_else(|| format!("frames of {frame} do not fit a signal of {length}"))?;
    let places = (0..frames).flat_map(|at| (0..frame).map(move |i| (at * step + i) as i64));
    let places: Vec<i64> = places.collect();
    let index = lower.constant(DType::I64, &[frames, frame], Bytes::from_slice(&places))?;
    let mut x = lower.emit(Gather { axis: 1 }, &[x, index])?;
    if let Some(window) = window {
        let window = lower.reshape(window, vec![Dim::from(frame), Dim::from(1)])?;
        x = lower.binary(B::Mul, x, window)?;
    }
    let real = components == Dim::from(1);
    let x = lower.reshape(
        x,
        vec![batch, Dim::from(frames), Dim::from(frame), components],
    )?;
    let transform = Transform {
        length: frame,
        inverse: false,
        onesided: call.flag("onesided", true)?,
    };
    if transform.onesided && !real {
        return Err("a onesided transform of complex numbers is not defined".into());
    }
    Ok(vec![lower.transform(x, 2, transform)?])
}

/// A constant of real numbers, in the type that an attribute states.
fn reals(lower: &mut OnnxLowering<'_>, call: &Call<'_>, shape: &[usize], list: &[f32]) -> Results {
    let kind = tensor::kind(call.int_or("output_datatype", 1)?)?;
    if !kind.is_real() {
        return Err(format!("results of type {} are not supported", kind.name()));
    }
    lower.set_kind(call, Some(kind));
    Ok(vec![lower.constant(
        DType::F32,
        shape,
        Bytes::from_slice(list),
    )?])
}

/// A window of cosines.
pub(super) fn window(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let size = lower.known_count(call, 0)?.ok_or("has no size")?;
    let period = match call.flag("periodic", true)? {
        true => size,
        false => size.saturating_sub(1),
    };
    let weights: [f64; 3] = match call.op() {
        "HannWindow" => [0.5, -0.5, 0.0],
        "HammingWindow" => [25.0 / 46.0, -21.0 / 46.0, 0.0],
        _ => [0.42, -0.5, 0.08],
    };
    let element = |n: usize| {
        let angle = 2.0 * PI * n as f64 / period.max(1) as f64;
        (weights[0] + weights[1] * angle.cos() + weights[2] * (2.0 * angle).cos()) as f32
    };
    let list: Vec<f32> = (0..size).map(element).collect();
    reals(lower, call, &[size], &list)
}

/// Triangular filters from frequencies to mels.
pub(super) fn mel_weights(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let count = |lower: &mut OnnxLowering<'_>, index: usize| {
        let count = lower.known_count(call, index)?;
        count.ok_or_else(|| format!("has no operand {index}"))
    };
    let (bins, length, rate) = (count(lower, 0)?, count(lower, 1)?, count(lower, 2)?);
    let edge = |lower: &mut OnnxLowering<'_>, index: usize| {
        let edge = lower
            .known_number(call, index)?
            .filter(|hertz| *hertz >= 0.0);
        edge.ok_or_else(|| "has no valid edges".to_owned())
    };
    let (low, high) = (edge(lower, 3)?, edge(lower, 4)?);
    let spectrum = length / 2 + 1;
    if bins.saturating_mul(spectrum) > MAX_CONSTANT_ELEMENTS || rate == 0 || high < low {
        return Err("its operands are out of range".into());
    }
    let mel = |hertz: f64| 2595.0 * (1.0 + hertz / 700.0).log10();
    let step = (mel(high) - mel(low)) / (bins + 2) as f64;
    let place = |index: usize| {
        let hertz = 700.0 * (10f64.powf((index as f64 * step + mel(low)) / 2595.0) - 1.0);
        ((length + 1) as f64 * hertz / rate as f64).floor() as usize
    };
    let places: Vec<usize> = (0..bins + 2).map(place).collect();
    if places.iter().any(|place| *place > spectrum) {
        return Err("its edges are beyond half the sample rate".into());
    }
    let mut weights = vec![0f32; spectrum * bins];
    for (bin, edges) in places.windows(3).enumerate() {
        let [left, center, right] = [edges[0], edges[1], edges[2]];
        let mut set = |place: usize, weight: f32| {
            if let Some(element) = weights.get_mut(place * bins + bin) {
                *element = weight;
            }
        };
        if left == center {
            set(center, 1.0);
        }
        for place in left..=center {
            if center > left {
                set(place, (place - left) as f32 / (center - left) as f32);
            }
        }
        for place in center..right {
            set(place, (right - place) as f32 / (right - center) as f32);
        }
    }
    reals(lower, call, &[spectrum, bins], &weights)
}
