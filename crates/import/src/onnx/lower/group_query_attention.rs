//! Lowers ONNX Runtime's `GroupQueryAttention`, which rotates queries and keys and appends to its past.

use base::DType;
use graph::ops::{Attention, BinaryFunction as B, CompareFunction as C, Index, Scalar, Size};
use graph::{Dim, TensorId};

use super::attention::QueryOffset;
use super::call::Call;
use super::context::{OnnxLowering, Results};
use super::rotary::{Tables, layout};

impl OnnxLowering<'_> {
    /// Writes the new rows after the first `lengths [B, 1]` rows of each sequence of `past [B, H, P, D]`. The result is
    /// `[B, H, P + S, D]`.
    fn appended(
        &mut self,
        past: TensorId,
        new: TensorId,
        lengths: TensorId,
    ) -> Result<TensorId, String> {
        let both = self.concat(&[past, new], 2)?;
        let [batch, _, rows, _] = self.shape(both)[..] else {
            return Err("the past must have 4 axes".into());
        };
        let kept = self.shape(past)[2];
        let row = self.count_from(Dim::from(0), rows)?;
        let old = self.compare(C::Lt, row, lengths)?;
        let gap = self.emit(Size { value: kept }, &[])?;
        let gap = self.binary(B::Sub, gap, lengths)?;
        let moved = self.binary(B::Add, row, gap)?;
        // Rows after the new ones are masked.
        let last = self.emit(
            Size {
                value: rows - Dim::from(1),
            },
            &[],
        )?;
        let moved = self.binary(B::Min, moved, last)?;
        let source = self.choose(old, row, moved)?;
        let sequence = self.count_from(Dim::from(0), batch)?;
        let sequence = self.reshape(sequence, vec![batch, Dim::from(1)])?;
        let rows_first = self.permute(both, vec![0, 2, 1, 3])?;
        let present = self.emit(Index, &[rows_first, sequence, source])?;
        self.permute(present, vec![0, 2, 1, 3])
    }
}

pub(super) fn attention(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let count = |name: &str| call.count(name)?.ok_or_else(|| format!("has no {name}"));
    let (heads, kv_heads) = (count("num_heads")?, count("kv_num_heads")?);
    if call.flag("smooth_softmax", false)? || call.name(11).is_some() {
        return Err("smooth softmax and attention sinks are not supported".into());
    }
    if call.flag("sliding_window_cache", false)? {
        return Err("a past that holds a window only is not supported".into());
    }
    for name in ["k_quant_type", "v_quant_type"] {
        if !matches!(call.text(name)?, None | Some("NONE")) {
            return Err("a quantised past is not supported".into());
        }
    }
    let q = lower.real(call, 0)?;
    let [batch, tokens, width] = lower.shape(q)[..] else {
        return Err("the query must have 3 axes".into());
    };
    let parts = match (lower.maybe(call, 1)?, lower.maybe(call, 2)?) {
        (Some(k), Some(v)) => [q, k, v],
        // Queries, keys and values are concatenated.
        (None, None) => {
            let all = kv_heads.checked_mul(2).and_then(|n| n.checked_add(heads));
            let dim = all.and_then(|all| width.checked_div(all));
            let dim = dim.ok_or("its number of heads does not divide its width")?;
            let (q_width, kv_width) = (dim * heads, dim * kv_heads);
            [
                lower.slice(q, 2, Dim::from(0), q_width)?,
                lower.slice(q, 2, q_width, kv_width)?,
                lower.slice(q, 2, q_width + kv_width, kv_width)?,
            ]
        }
        _ => return Err("has only one of keys and values".into()),
    };

    // Rows of each sequence before this step: its total length minus the new tokens. A prompt may be padded.
    let after = lower.operand(call, 5)?;
    let after = lower.cast(after, DType::I64)?;
    let after = lower.reshape(after, vec![batch, Dim::from(1)])?;
    let new = lower.emit(
        Size {
            value: tokens - Dim::from(1),
        },
        &[],
    )?;
    let lengths = lower.binary(B::Sub, after, new)?;
    let zero = lower.scalar(Scalar::I64(0), DType::I64)?;
    let lengths = lower.binary(B::Max, lengths, zero)?;

    let [mut q, mut k, v] = parts;
    if call.flag("do_rotary", false)? {
        let positions = match lower.maybe(call, 9)? {
            Some(positions) => positions,
            None => {
                let counted = lower.count_from(Dim::from(0), tokens)?;
                lower.binary(B::Add, counted, lengths)?
            }
        };
        let tables = Tables {
            cos: lower.operand(call, 7)?,
            sin: lower.operand(call, 8)?,
            positions: Some(positions),
        };
        let layout = layout(call.flag("rotary_interleaved", false)?);
        for (x, heads) in [(&mut q, heads), (&mut k, kv_heads)] {
            let shape = lower.shape(*x);
            let dim = shape.get(2).and_then(|width| width.checked_div(heads));
            let dim = dim.ok_or("its number of heads does not divide its width")?;
            let apart = lower.reshape(*x, vec![batch, tokens, Dim::from(heads), dim])?;
            let rotated = lower.rotated(apart, &tables, layout)?;
            *x = lower.reshape(rotated, shape)?;
        }
    }
    let q = lower.split_heads(q, heads)?;
    let mut k = lower.split_heads(k, kv_heads)?;
    let mut v = lower.split_heads(v, kv_heads)?;
    if let (Some(past_key), Some(past_value)) = (lower.maybe(call, 3)?, lower.maybe(call, 4)?) {
        let past_key = lower.cast(past_key, DType::F32)?;
        let past_value = lower.cast(past_value, DType::F32)?;
        k = lower.appended(past_key, k, lengths)?;
        v = lower.appended(past_value, v, lengths)?;
    }

    let one = Dim::from(1);
    let first = lower.reshape(lengths, vec![batch, one, one, one])?;
    let keys = lower.shape(k)[2];
    // A window of N includes the token itself and the N − 1 before it.
    let window = call.int_or("local_window_size", -1)?;
    let before = (window > 0).then(|| window - 1);
    let seen = lower.window_mask(
        [tokens, keys],
        QueryOffset::PerSequence(first),
        Some(0),
        before,
    )?;
    let bias = match lower.maybe(call, 10)? {
        Some(bias) => Some(lower.cast(bias, DType::F32)?),
        None => None,
    };
    let mask = lower.combine_masks(bias, seen)?;
    let dim = lower.shape(q)[3]
        .as_const()
        .ok_or("the head size must be a constant")?;
    let scale = call.float("scale")?.filter(|scale| *scale != 0.0);
    let op = Attention {
        scale: scale.unwrap_or(1.0 / (dim as f32).sqrt()),
        causal: false,
        softcap: call.float("softcap")?.filter(|cap| *cap > 0.0),
        token_major: false,
    };
    let operands: Vec<TensorId> = [q, k, v].into_iter().chain(mask).collect();
    let attended = lower.emit(op, &operands)?;
    Ok(vec![lower.join_heads(attended)?, k, v])
}
