//! Encodes weights: the block whose values have the least squared error among those that a search tries.
//!
//! A group's scale (and min) is fitted by least squares for many ways to round its elements. A two-level format then rounds the
//! groups' factors to multiples of the block's, tries their neighbours with the elements rounded anew, and fits the block's factors to
//! the result.

use super::format::{BlockFormat, Codes, MAX_LEN, QuantBlock, half_to_f32};
use super::{QuantError, dequantise};
use crate::DType;

/// The scales that are tried on each side of the one that makes the largest element the largest value.
const TRIES: i32 = 9;
/// How often the factors of groups and of the block are fitted to each other.
const ROUNDS: usize = 2;

/// Whether [`quantise`] makes blocks of a type.
pub fn can_quantise(dtype: DType) -> bool {
    match dtype.format() {
        Some(format) => format.pack.is_some(),
        None => dtype.is_real(),
    }
}

/// Encodes numbers as `dtype`, which must be a type of real numbers that [`can_quantise`] accepts.
///
/// # Errors
/// If the type cannot be encoded, or the lengths are not those of whole blocks.
///
/// ```
/// use base::{DType, quant};
/// let values: Vec<f32> = (0..32).map(|i| i as f32 - 16.0).collect();
/// let mut block = [0; 18];
/// quant::quantise(DType::Q4_0, &values, &mut block)?;
/// # Ok::<(), quant::QuantError>(())
/// ```
pub fn quantise(dtype: DType, values: &[f32], out: &mut [u8]) -> Result<(), QuantError> {
    if !can_quantise(dtype) {
        return Err(QuantError::NotReal { dtype });
    }
    if !out.len().is_multiple_of(dtype.block_bytes()) {
        let bytes = out.len();
        return Err(QuantError::PartialBlock { dtype, bytes });
    }
    let elements = out.len() / dtype.block_bytes() * dtype.block_len();
    if elements != values.len() {
        return Err(QuantError::Length {
            dtype,
            bytes: out.len(),
            elements,
            out: values.len(),
        });
    }
    let Some(format) = dtype.format() else {
        match dtype {
            DType::F16 => each(values, out, |x| half::f16::from_f32(x).to_le_bytes()),
            DType::BF16 => each(values, out, |x| half::bf16::from_f32(x).to_le_bytes()),
            _ => each(values, out, f32::to_le_bytes),
        }
        return Ok(());
    };
    let pack = format.pack.as_ref().expect("checked above");
    let mut block = QuantBlock::default();
    let fit = Fit {
        format,
        most: pack.scales,
        table: nearest_values(format.codes),
    };
    let blocks = out.chunks_exact_mut(format.bytes);
    for (values, out) in values.chunks_exact(format.len).zip(blocks) {
        match (format.two_level, format.mins) {
            (false, false) => fit.plain(values, &mut block),
            (false, true) => fit.with_min(values, &mut block),
            (true, false) => fit.two_levels(values, &mut block),
            (true, true) => fit.two_levels_with_mins(values, &mut block),
        }
        (pack.write)(&block, out);
    }
    Ok(())
}

/// Mean of the squared differences between numbers and what their encoded form stands for.
pub fn mean_squared_error(dtype: DType, values: &[f32], encoded: &[u8]) -> Result<f64, QuantError> {
    let mut decoded = vec![0.0; values.len()];
    dequantise(dtype, encoded, &mut decoded)?;
    let each = values.iter().zip(&decoded);
    let sum: f64 = each.map(|(a, b)| f64::from(a - b).powi(2)).sum();
    Ok(sum / values.len().max(1) as f64)
}

fn each<const BYTES: usize>(values: &[f32], out: &mut [u8], to_bytes: impl Fn(f32) -> [u8; BYTES]) {
    for (value, out) in values.iter().zip(out.as_chunks_mut().0) {
        *out = to_bytes(*value);
    }
}

/// Adding and subtracting it rounds to the nearest integer; of two to the even one. For numbers far below 2²².
const MAGIC: f32 = 12_582_912.0;

/// The nearest integer; of two the even one. `x` is far below 2²².
#[inline(always)]
fn nearest(x: f32) -> i32 {
    (x + MAGIC).to_bits() as i32 - MAGIC.to_bits() as i32
}

/// The nearest integer between two.
#[inline(always)]
fn nearest_between(x: f32, low: f32, high: f32) -> f32 {
    let x = if x < low { low } else { x };
    let x = if x > high { high } else { x };
    (x + MAGIC) - MAGIC
}

/// The sums of the numbers that `of` makes of each element: partial sums in lanes, so that they are computed together. The elements are
/// whole eights.
#[inline(always)]
fn sums<const N: usize>(x: &[f32], of: impl Fn(f32) -> [f32; N]) -> [f32; N] {
    let mut lanes = [[0f32; 8]; N];
    for x in x.as_chunks::<8>().0 {
        for i in 0..8 {
            let terms = of(x[i]);
            for n in 0..N {
                lanes[n][i] += terms[n];
            }
        }
    }
    lanes.map(|lanes| lanes.iter().sum())
}

/// A number as an f16 has it; finite.
fn as_half(x: f32) -> f32 {
    let largest = half::f16::MAX.to_f32();
    half_to_f32(half::f16::from_f32(x.clamp(-largest, largest)).to_bits())
}

/// The search for the numbers of a block.
struct Fit<'a> {
    format: &'a BlockFormat,
    /// Smallest and largest factor of a group.
    most: [i32; 2],
    /// The value nearest to each half of an integer from −128 on, for formats whose codes index a table.
    table: Option<[i8; 512]>,
}

/// The values of a table that are nearest to halves of integers.
fn nearest_values(codes: Codes) -> Option<[i8; 512]> {
    let Codes::Table(values) = codes else {
        return None;
    };
    Some(std::array::from_fn(|i| {
        let x = i as f32 / 2.0 - 128.0;
        let distance = |value: &i8| (f32::from(*value) - x).abs();
        let near = values
            .iter()
            .min_by(|a, b| distance(a).total_cmp(&distance(b)));
        *near.expect("there are sixteen values")
    }))
}

impl Fit<'_> {
    /// Smallest and largest value, and the distance of scales that are tried, as a share of a code.
    fn range(&self) -> (i32, i32, f32) {
        match self.format.codes {
            Codes::Unsigned { bits, zero } => (-zero, (1 << bits) - 1 - zero, 0.1),
            Codes::Signed => (-127, 127, 0.1),
            Codes::Table(values) => (i32::from(values[0]), i32::from(values[15]), 1.6),
        }
    }

    /// The value nearest to `x`.
    #[inline(always)]
    fn value(&self, x: f32, (low, high): (i32, i32)) -> f32 {
        match &self.table {
            Some(table) => {
                let at = nearest_between(2.0 * x, -256.0, 255.0) as i32 + 256;
                f32::from(table[(at & 511) as usize])
            }
            None => nearest_between(x, low as f32, high as f32),
        }
    }

    /// The code of a value.
    fn code(&self, value: i32) -> u8 {
        match self.format.codes {
            Codes::Unsigned { zero, .. } => (value + zero) as u8,
            Codes::Signed => value as i8 as u8,
            Codes::Table(values) => {
                let found = values.iter().position(|own| i32::from(*own) == value);
                found.unwrap_or(0) as u8
            }
        }
    }

    /// The scale of a group.
    fn scale(&self, x: &[f32]) -> f32 {
        let (low, high, step) = self.range();
        let largest = x
            .iter()
            .fold(0f32, |a, b| if b.abs() > a.abs() { *b } else { a });
        if largest.abs() < 1e-30 {
            return 0.0;
        }
        let mut best = (0f32, 0f32);
        for extreme in [low, high] {
            for i in -TRIES..=TRIES {
                let inverse = (extreme as f32 + step * i as f32) / largest;
                best = self.better(x, inverse, best);
            }
        }
        match best.1 {
            0.0 => 0.0,
            found => self.better(x, 1.0 / found, best).1,
        }
    }

    /// The better one of a scale and the one that suits the values which `inverse` gives, both with what they take off the sum of
    /// squares.
    #[inline(always)]
    fn better(&self, x: &[f32], inverse: f32, best: (f32, f32)) -> (f32, f32) {
        let (low, high, _) = self.range();
        let terms = |x: f32, value: f32| [x * value, value * value];
        let [along, square] = match self.table {
            Some(_) => sums(x, |x| terms(x, self.value(x * inverse, (low, high)))),
            None => {
                let (low, high) = (low as f32, high as f32);
                sums(x, |x| terms(x, nearest_between(x * inverse, low, high)))
            }
        };
        match square > 0.0 && along * along > best.0 * square {
            true => (along * along / square, along / square),
            false => best,
        }
    }

    /// The scale of a group and its min, which is at most 0 in formats of two levels.
    fn scale_and_min(&self, x: &[f32]) -> [f32; 2] {
        let (_, high, _) = self.range();
        let most = high as f32;
        let mut low = x.iter().copied().fold(f32::INFINITY, f32::min);
        let top = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        if self.format.two_level {
            low = low.min(0.0);
        }
        if top - low < 1e-30 {
            return [0.0, low];
        }
        let n = x.len() as f32;
        let [sum] = sums(x, |x| [x]);
        let (mut best, mut found) = (f32::INFINITY, [(top - low) / most, low]);
        for i in 0..=20 {
            let inverse = (most - 1.0 + 0.1 * i as f32) / (top - low);
            let code = |x: f32| nearest_between((x - low) * inverse, 0.0, most);
            let [codes, squares, along] = sums(x, |x| {
                let code = code(x);
                [code, code * code, x * code]
            });
            let determinant = n * squares - codes * codes;
            if determinant <= 0.0 {
                continue;
            }
            let mut scale = (n * along - sum * codes) / determinant;
            let mut min = (squares * sum - codes * along) / determinant;
            if self.format.two_level && min > 0.0 {
                (scale, min) = (along / squares, 0.0);
            }
            let [error] = sums(x, |x| {
                let miss = scale * code(x) + min - x;
                [miss * miss]
            });
            if error < best {
                (best, found) = (error, [scale, min]);
            }
        }
        found
    }

    /// Rounds a group with these factors to `codes`; returns the squared error.
    #[inline(always)]
    fn round(&self, x: &[f32], [scale, min]: [f32; 2], values: &mut [i32]) -> f32 {
        let (low, high, _) = self.range();
        let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
        let round = |x: f32| (x - min) * inverse;
        let (least, most) = (low as f32, high as f32);
        let mut near = [0f32; 32];
        for (x, near) in x.iter().zip(&mut near) {
            *near = match self.table {
                Some(_) => self.value(round(*x), (low, high)),
                None => nearest_between(round(*x), least, most),
            };
        }
        let mut lanes = [0f32; 8];
        let pairs = x.as_chunks::<8>().0.iter().zip(near.as_chunks::<8>().0);
        for (x, near) in pairs {
            for i in 0..8 {
                let miss = scale * near[i] + min - x[i];
                lanes[i] += miss * miss;
            }
        }
        for (out, near) in values.iter_mut().zip(near) {
            *out = near as i32;
        }
        lanes.iter().sum()
    }

    fn plain(&self, x: &[f32], block: &mut QuantBlock) {
        let mut values = [0; MAX_LEN];
        block.scale = as_half(self.scale(x));
        self.round(x, [block.scale, 0.0], &mut values[..x.len()]);
        self.keep(&values[..x.len()], block);
    }

    fn with_min(&self, x: &[f32], block: &mut QuantBlock) {
        let mut values = [0; MAX_LEN];
        let [scale, min] = self.scale_and_min(x).map(as_half);
        (block.scale, block.min) = (scale, min);
        self.round(x, [scale, min], &mut values[..x.len()]);
        self.keep(&values[..x.len()], block);
    }

    fn two_levels(&self, x: &[f32], block: &mut QuantBlock) {
        let group = self.format.group;
        let [low, high] = self.most;
        let mut scales = [0f32; MAX_LEN / 16];
        for (scale, x) in scales.iter_mut().zip(x.chunks_exact(group)) {
            *scale = self.scale(x);
        }
        let largest = scales
            .iter()
            .fold(0f32, |a, b| if b.abs() > a.abs() { *b } else { a });
        let mut scale = as_half(largest / low as f32);
        let (mut best, mut values) = (f32::INFINITY, [0; MAX_LEN]);
        for _ in 0..=ROUNDS {
            let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
            let (mut factors, mut rounded) = ([0i32; MAX_LEN / 16], [0; MAX_LEN]);
            let mut total = 0f32;
            let groups = x.chunks_exact(group).zip(rounded.chunks_exact_mut(group));
            for (i, (x, out)) in groups.enumerate() {
                let near = nearest(scales[i] * inverse);
                let mut error = f32::INFINITY;
                let mut trial = [0; 32];
                for factor in near - 1..=near + 1 {
                    let factor = factor.clamp(low, high);
                    let found = self.round(x, [scale * factor as f32, 0.0], &mut trial[..group]);
                    if found < error {
                        (error, factors[i]) = (found, factor);
                        out.copy_from_slice(&trial[..group]);
                    }
                }
                total += error;
            }
            if total < best {
                (best, values) = (total, rounded);
                block.scale = scale;
                for (to, factor) in block.scales.iter_mut().zip(factors) {
                    *to = factor as i8;
                }
            }
            // The scale that suits these factors and values best.
            let (mut along, mut square) = (0f32, 0f32);
            for (i, x) in x.iter().enumerate() {
                let value = (factors[i / group] * rounded[i]) as f32;
                along += x * value;
                square += value * value;
            }
            if square == 0.0 {
                break;
            }
            scale = as_half(along / square);
        }
        self.keep(&values[..x.len()], block);
    }

    fn two_levels_with_mins(&self, x: &[f32], block: &mut QuantBlock) {
        let group = self.format.group;
        let [_, high] = self.most;
        let mut fitted = [[0f32; 2]; MAX_LEN / 16];
        for (factors, x) in fitted.iter_mut().zip(x.chunks_exact(group)) {
            let [scale, min] = self.scale_and_min(x);
            *factors = [scale.max(0.0), -min];
        }
        let largest = |which: usize| fitted.iter().fold(0f32, |a, f| a.max(f[which]));
        let mut block_factors = [0, 1].map(|which| as_half(largest(which) / high as f32));
        let (mut best, mut values) = (f32::INFINITY, [0; MAX_LEN]);
        for _ in 0..=ROUNDS {
            let [scale, min] = block_factors;
            let inverse = block_factors.map(|f| if f == 0.0 { 0.0 } else { 1.0 / f });
            let (mut factors, mut rounded) = ([[0i32; 2]; MAX_LEN / 16], [0; MAX_LEN]);
            let mut total = 0f32;
            let groups = x.chunks_exact(group).zip(rounded.chunks_exact_mut(group));
            for (i, (x, out)) in groups.enumerate() {
                let near = [0, 1].map(|which| nearest(fitted[i][which] * inverse[which]));
                let mut error = f32::INFINITY;
                let mut trial = [0; 32];
                for own in near[0] - 1..=near[0] + 1 {
                    for shift in near[1] - 1..=near[1] + 1 {
                        let [own, shift] = [own, shift].map(|f| f.clamp(0, high));
                        let pair = [scale * own as f32, -(min * shift as f32)];
                        let found = self.round(x, pair, &mut trial[..group]);
                        if found < error {
                            (error, factors[i]) = (found, [own, shift]);
                            out.copy_from_slice(&trial[..group]);
                        }
                    }
                }
                total += error;
            }
            if total < best {
                (best, values) = (total, rounded);
                // Formats keep the min with its sign.
                (block.scale, block.min) = (scale, -min);
                for (i, [own, shift]) in factors.into_iter().enumerate() {
                    (block.scales[i], block.mins[i]) = (own as i8, shift as i8);
                }
            }
            match refit(x, &factors, &rounded, group) {
                Some(found) => block_factors = found.map(as_half),
                None => break,
            }
        }
        self.keep(&values[..x.len()], block);
    }

    /// Writes the codes of values.
    fn keep(&self, values: &[i32], block: &mut QuantBlock) {
        for (code, value) in block.codes.iter_mut().zip(values) {
            *code = self.code(*value);
        }
    }
}

/// The block's scale and min by least squares; `None` if they are not determined, or one would be below 0.
fn refit(x: &[f32], factors: &[[i32; 2]], values: &[i32], group: usize) -> Option<[f32; 2]> {
    let (mut aa, mut bb, mut ab, mut ax, mut bx) = (0f64, 0f64, 0f64, 0f64, 0f64);
    for (i, x) in x.iter().enumerate() {
        let [own, shift] = factors[i / group];
        let (a, b, x) = (f64::from(own * values[i]), -f64::from(shift), f64::from(*x));
        aa += a * a;
        bb += b * b;
        ab += a * b;
        ax += a * x;
        bx += b * x;
    }
    if bb == 0.0 {
        return (aa > 0.0 && ax > 0.0).then(|| [(ax / aa) as f32, 0.0]);
    }
    let determinant = aa * bb - ab * ab;
    if determinant <= 1e-9 * aa * bb {
        return None;
    }
    let scale = (ax * bb - bx * ab) / determinant;
    let min = (bx * aa - ax * ab) / determinant;
    (scale > 0.0 && min >= 0.0).then_some([scale as f32, min as f32])
}
