//! ONNX Runtime's `MultiHeadAttention` and `Attention` of optimised transformers.

use base::DType;
use graph::ops::{Attention, BinaryFunction as B, CompareFunction as C, Linear, Scalar};
use graph::{Dim, TensorId};

use super::attention::QueryOffset;
use super::call::Call;
use super::context::{OnnxLowering, Results};

/// Queries `[B, H, S, D]` with keys and values of this call, and those of earlier ones.
struct Heads {
    q: TensorId,
    k: TensorId,
    v: TensorId,
    past: Option<[TensorId; 2]>,
}

impl OnnxLowering<'_> {
    /// Zero for keys that a mask shows and a large negative number for others, so that it broadcasts to the scores.
    fn padding_bias(
        &mut self,
        call: &Call<'_>,
        mask: TensorId,
        keys: Dim,
    ) -> Result<TensorId, String> {
        let shape = self.shape(mask);
        let one = Dim::from(1);
        let zero = self.scalar(Scalar::I64(0), DType::I64)?;
        let mask = self.cast(mask, DType::I64)?;
        let shown = match shape[..] {
            // The number of keys of each sequence, which are its first.
            [batch] => {
                let key = self.count_from(Dim::from(0), keys)?;
                let lengths = self.reshape(mask, vec![batch, one, one, one])?;
                self.compare(C::Lt, key, lengths)?
            }
            [batch, own] if own == keys => {
                let mask = self.reshape(mask, vec![batch, one, one, own])?;
                self.compare(C::Ne, mask, zero)?
            }
            [batch, queries, own] if own == keys => {
                let mask = self.reshape(mask, vec![batch, one, queries, own])?;
                self.compare(C::Ne, mask, zero)?
            }
            _ => return Err(format!("a mask of shape {shape:?} is not supported")),
        };
        let filter = call.float_or("mask_filter_value", -10000.0)?;
        let hidden = self.scalar(Scalar::F32(filter), DType::F32)?;
        let zero = self.scalar(Scalar::F32(0.0), DType::F32)?;
        self.choose(shown, zero, hidden)
    }

    /// The attended values `[B, S, H · D]`, with all keys and values.
    fn contrib_attention(
        &mut self,
        call: &Call<'_>,
        heads: Heads,
        mask: Option<TensorId>,
        bias: Option<TensorId>,
    ) -> Result<[TensorId; 3], String> {
        let Heads {
            q,
            mut k,
            mut v,
            past,
        } = heads;
        let mut first = Dim::from(0);
        if let Some([key, value]) = past {
            first = *self.shape(key).get(2).ok_or("its past must have 4 axes")?;
            k = self.concat(&[key, k], 2)?;
            v = self.concat(&[value, v], 2)?;
        }
        let (queries, keys) = (self.shape(q)[2], self.shape(k)[2]);
        let mut bias = bias;
        if let Some(mask) = mask {
            let padding = self.padding_bias(call, mask, keys)?;
            bias = Some(match bias {
                Some(bias) => self.binary(B::Add, bias, padding)?,
                None => padding,
            });
        }
        let causal = call.flag("unidirectional", false)?;
        let after = causal.then_some(0);
        let seen = self.window_mask([queries, keys], QueryOffset::Shared(first), after, None)?;
        let mask = self.combine_masks(bias, seen)?;
        let dim = self.shape(q)[3].as_const();
        let dim = dim.ok_or("the head size must be a constant")?;
        let scale = call.float("scale")?.filter(|scale| *scale != 0.0);
        let op = Attention {
            scale: scale.unwrap_or(1.0 / (dim as f32).sqrt()),
            causal: false,
            softcap: None,
            token_major: false,
        };
        let operands: Vec<TensorId> = [q, k, v].into_iter().chain(mask).collect();
        let attended = self.emit(op, &operands)?;
        Ok([self.join_heads(attended)?, k, v])
    }

    /// Part of a bias that is added to rows.
    fn biased(
        &mut self,
        x: TensorId,
        bias: Option<TensorId>,
        start: Dim,
    ) -> Result<TensorId, String> {
        let Some(bias) = bias else {
            return Ok(x);
        };
        let width = *self.shape(x).last().ok_or("its rows are scalars")?;
        let part = self.slice(bias, 0, start, width)?;
        self.binary(B::Add, x, part)
    }

    /// An optional operand in f32.
    fn maybe_real(&mut self, call: &Call<'_>, index: usize) -> Result<Option<TensorId>, String> {
        let id = self.maybe(call, index)?;
        id.map(|id| self.cast(id, DType::F32)).transpose()
    }
}

pub(super) fn multi_head(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let count = call
        .count("num_heads")?
        .filter(|n| *n > 0)
        .ok_or("has no num_heads")?;
    let q = lower.real(call, 0)?;
    let (Some(k), Some(v)) = (lower.maybe_real(call, 1)?, lower.maybe_real(call, 2)?) else {
        return Err("packed keys and values are not supported".into());
    };
    let bias = lower.maybe_real(call, 3)?;
    let width =
        |lower: &OnnxLowering<'_>, x| lower.shape(x).last().copied().unwrap_or(Dim::from(0));
    if lower.rank(q) != 3 {
        return Err("packed queries, keys and values are not supported".into());
    }
    let at_keys = width(lower, q);
    let q = lower.biased(q, bias, Dim::from(0))?;
    let mut sides = [k, v];
    let mut start = at_keys;
    for side in &mut sides {
        *side = match lower.rank(*side) {
            3 => {
                let rows = lower.biased(*side, bias, start)?;
                start = start + width(lower, rows);
                lower.split_heads(rows, count)?
            }
            // Keys of another sequence, projected before.
            4 if bias.is_none() => *side,
            _ => return Err("packed keys and values are not supported".into()),
        };
    }
    let past = lower.maybe_real(call, 6)?.zip(lower.maybe_real(call, 7)?);
    if call.name(8).is_some() || call.name(9).is_some() {
        return Err("buffers that past and present share are not supported".into());
    }
    let heads = Heads {
        q: lower.split_heads(q, count)?,
        k: sides[0],
        v: sides[1],
        past: past.map(|(key, value)| [key, value]),
    };
    let (mask, scores) = (lower.maybe(call, 4)?, lower.maybe_real(call, 5)?);
    let [result, k, v] = lower.contrib_attention(call, heads, mask, scores)?;
    Ok(vec![result, k, v])
}

pub(super) fn packed(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let count = call
        .count("num_heads")?
        .filter(|n| *n > 0)
        .ok_or("has no num_heads")?;
    if call
        .ints("qkv_hidden_sizes")?
        .is_some_and(|list| !list.is_empty())
    {
        return Err("qkv_hidden_sizes are not supported".into());
    }
    if call.flag("do_rotary", false)? || call.flag("past_present_share_buffer", false)? {
        return Err("rotary embedding and shared buffers are not supported".into());
    }
    let (x, weight) = (lower.real(call, 0)?, lower.real(call, 1)?);
    let weight = lower.transposed(weight)?;
    let bias = lower.maybe_real(call, 2)?;
    let operands: Vec<TensorId> = [x, weight].into_iter().chain(bias).collect();
    let all = lower.emit(Linear::default(), &operands)?;
    let width = lower
        .shape(all)
        .last()
        .and_then(|width| width.checked_div(3));
    let width = width.ok_or("its weights do not have queries, keys and values of one size")?;
    let mut parts = vec![];
    for index in 0..3 {
        let part = lower.slice(all, 2, width * index, width)?;
        parts.push(lower.split_heads(part, count)?);
    }
    let mut past = None;
    if let Some(both) = lower.maybe_real(call, 4)? {
        let shape = lower.shape(both).get(1..).unwrap_or_default().to_vec();
        let mut side = |at: usize| -> Result<TensorId, String> {
            let side = lower.slice(both, 0, Dim::from(at), Dim::from(1))?;
            lower.reshape(side, shape.clone())
        };
        past = Some([side(0)?, side(1)?]);
    }
    let heads = Heads {
        q: parts[0],
        k: parts[1],
        v: parts[2],
        past,
    };
    let (mask, scores) = (lower.maybe(call, 3)?, lower.maybe_real(call, 5)?);
    let [result, k, v] = lower.contrib_attention(call, heads, mask, scores)?;
    if !call.wants(1) {
        return Ok(vec![result]);
    }
    let mut sides = [k, v];
    for side in &mut sides {
        let mut shape = lower.shape(*side);
        shape.insert(0, Dim::from(1));
        *side = lower.reshape(*side, shape)?;
    }
    Ok(vec![result, lower.concat(&sides, 0)?])
}
