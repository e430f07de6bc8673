//! Rotary embedding.

use base::DType;
use graph::ops::{BinaryFunction as B, Gather, Rope, RopeLayout, Slice};
use graph::{Dim, TensorId};

use super::call::Call;
use super::context::{OnnxLowering, Results};

/// Limit on the head size, above that of any model.
const MAX_ROTATED: usize = 1 << 24;

/// Cosine and sine tables of a rotation.
pub(in crate::onnx) struct Tables {
    /// `[rows, R / 2]`, or `[B, S, R / 2]` without positions.
    pub(in crate::onnx) cos: TensorId,
    pub(in crate::onnx) sin: TensorId,
    /// `[B, S]`.
    pub(in crate::onnx) positions: Option<TensorId>,
}

impl OnnxLowering<'_> {
    /// Rotates the first elements of the heads of `x [B, S, H, D]`.
    pub(in crate::onnx) fn rotated(
        &mut self,
        x: TensorId,
        tables: &Tables,
        layout: RopeLayout,
    ) -> Result<TensorId, String> {
        let shape = self.shape(x);
        let [batch, tokens, heads, dim] = shape[..] else {
            return Err(format!("x has {} axes, must have 4", shape.len()));
        };
        let mut waves = [tables.cos, tables.sin];
        for wave in &mut waves {
            *wave = self.cast(*wave, DType::F32)?;
            if let Some(positions) = tables.positions {
                *wave = self.emit(Gather { axis: 0 }, &[*wave, positions])?;
            }
        }
        let wave = self.shape(waves[0]);
        let half = wave.last().and_then(Dim::as_const);
        let half = half.filter(|half| *half <= MAX_ROTATED);
        let half = half.ok_or("the width of its tables must be a constant of at most 2^24")?;
        let wanted = [batch, tokens, Dim::from(half)];
        if wave != wanted || self.shape(waves[1]) != wanted {
            return Err(format!("tables {wave:?} do not fit {shape:?}"));
        }
        if dim.as_const().is_none_or(|dim| 2 * half > dim) {
            return Err(format!("rotates {} elements of {dim:?}", 2 * half));
        }
        let rotated = match batch.checked_mul(&tokens) {
            Some(all) => {
                let table = self.concat(&waves, 2)?;
                let table = self.reshape(table, vec![all, Dim::from(2 * half)])?;
                let x = self.reshape(x, vec![all, heads, dim])?;
                self.emit(Rope { layout }, &[x, table])?
            }
            None => self.rotated_by_parts(x, waves, half, layout)?,
        };
        self.reshape(rotated, shape)
    }

    /// The same if the product of batch and token count has a term of three dynamic sizes.
    fn rotated_by_parts(
        &mut self,
        x: TensorId,
        waves: [TensorId; 2],
        half: usize,
        layout: RopeLayout,
    ) -> Result<TensorId, String> {
        let shape = self.shape(x);
        let mut wave = shape.clone();
        (wave[2], wave[3]) = (Dim::from(1), Dim::from(half));
        let cos = self.reshape(waves[0], wave.clone())?;
        let sin = self.reshape(waves[1], wave)?;
        let part = |lower: &mut Self, start: usize, step: usize| {
            let slice = Slice {
                axis: 3,
                start: Dim::from(start),
                len: Dim::from(half),
                step,
            };
            lower.emit(slice, &[x])
        };
        let (a, b) = match layout {
            RopeLayout::Halves => (part(self, 0, 1)?, part(self, half, 1)?),
            RopeLayout::Interleaved => (part(self, 0, 2)?, part(self, 1, 2)?),
        };
        let (a_cos, b_sin) = (self.binary(B::Mul, a, cos)?, self.binary(B::Mul, b, sin)?);
        let (b_cos, a_sin) = (self.binary(B::Mul, b, cos)?, self.binary(B::Mul, a, sin)?);
        let real = self.binary(B::Sub, a_cos, b_sin)?;
        let imaginary = self.binary(B::Add, b_cos, a_sin)?;
        let turned = match layout {
            RopeLayout::Halves => self.concat(&[real, imaginary], 3)?,
            RopeLayout::Interleaved => {
                let mut column = self.shape(real);
                column.push(Dim::from(1));
                let real = self.reshape(real, column.clone())?;
                let imaginary = self.reshape(imaginary, column)?;
                let pairs = self.concat(&[real, imaginary], 4)?;
                let mut joined = shape.clone();
                joined[3] = Dim::from(2 * half);
                self.reshape(pairs, joined)?
            }
        };
        let rest = shape[3] - Dim::from(2 * half);
        if rest == Dim::from(0) {
            return Ok(turned);
        }
        let kept = self.slice(x, 3, Dim::from(2 * half), rest)?;
        self.concat(&[turned, kept], 3)
    }
}

/// The pairing of elements that are rotated together.
pub(in crate::onnx) fn layout(interleaved: bool) -> RopeLayout {
    match interleaved {
        true => RopeLayout::Interleaved,
        false => RopeLayout::Halves,
    }
}

/// Rotates `[B, H, S, D]` or `[B, S, H · D]` and returns the same layout.
fn in_form(
    lower: &mut OnnxLowering<'_>,
    call: &Call<'_>,
    x: TensorId,
    tables: &Tables,
    heads: Option<usize>,
) -> Results {
    let shape = lower.shape(x);
    let layout = layout(call.flag("interleaved", false)?);
    if let Some(rotated) = call.count("rotary_embedding_dim")?.filter(|n| *n > 0) {
        let half = lower.shape(tables.cos).last().and_then(Dim::as_const);
        if half.is_some_and(|half| half != rotated / 2) {
            return Err(format!(
                "rotates {rotated} elements with tables of {half:?}"
            ));
        }
    }
    if shape.len() == 4 {
        let x = lower.permute(x, vec![0, 2, 1, 3])?;
        let x = lower.rotated(x, tables, layout)?;
        return Ok(vec![lower.permute(x, vec![0, 2, 1, 3])?]);
    }
    let [batch, tokens, width] = shape[..] else {
        return Err(format!("x has {} axes, must have 3 or 4", shape.len()));
    };
    let heads = heads.ok_or("has no num_heads")?;
    let dim = width.checked_div(heads);
    let dim = dim.ok_or_else(|| format!("{heads} heads do not divide the width {width:?}"))?;
    let x = lower.reshape(x, vec![batch, tokens, Dim::from(heads), dim])?;
    let x = lower.rotated(x, tables, layout)?;
    Ok(vec![lower.reshape(x, shape)?])
}

pub(super) fn rotary(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.real(call, 0)?;
    let tables = Tables {
        cos: lower.operand(call, 1)?,
        sin: lower.operand(call, 2)?,
        positions: lower.maybe(call, 3)?,
    };
    let heads = call.count("num_heads")?.filter(|n| *n > 0);
    in_form(lower, call, x, &tables, heads)
}

/// ONNX Runtime's op: positions are the second operand, and a single position is that of the first token.
pub(super) fn rotary_contrib(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.real(call, 0)?;
    let positions = lower.operand(call, 1)?;
    let (cos, sin) = (lower.operand(call, 2)?, lower.operand(call, 3)?);
    let shape = lower.shape(x);
    let (batch, tokens) = match shape[..] {
        [batch, _, tokens, _] | [batch, tokens, _] => (batch, tokens),
        _ => return Err(format!("x has {} axes, must have 3 or 4", shape.len())),
    };
    if call.float_or("scale", 1.0)? != 1.0 {
        return Err("a scale other than 1 is not supported".into());
    }
    let positions = lower.cast(positions, DType::I64)?;
    let positions = match lower.rank(positions) {
        2 => positions,
        _ => {
            let counted = lower.count_from(Dim::from(0), tokens)?;
            let all = lower.binary(B::Add, counted, positions)?;
            let row = lower.reshape(all, vec![Dim::from(1), tokens])?;
            lower.expand(row, vec![batch, tokens])?
        }
    };
    let half = lower.shape(cos).last().and_then(Dim::as_const);
    let half = half.filter(|half| *half <= MAX_ROTATED);
    let half = half.ok_or("the width of its tables must be a constant of at most 2^24")?;
    let heads = match call.count("num_heads")?.filter(|n| *n > 0) {
        Some(heads) => Some(heads),
        // Without `num_heads` the whole head is rotated, so its size follows from the tables.
        None => shape
            .last()
            .and_then(|w| w.checked_div(2 * half.max(1))?.as_const()),
    };
    let tables = Tables {
        cos,
        sin,
        positions: Some(positions),
    };
    in_form(lower, call, x, &tables, heads)
}
