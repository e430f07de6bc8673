//! Lowers attention over keys and values that the model passes as tensors.

use base::DType;
use graph::ops::{
    Activation, Attention, BinaryFunction as B, CompareFunction as C, MatMul, Range, Reduce,
    ReduceFunction, Scalar, Softmax,
};
use graph::{Dim, TensorId};

use super::call::Call;
use super::context::{OnnxLowering, Results};

/// Index of the first query among the keys.
#[derive(Clone, Copy)]
pub(super) enum QueryOffset {
    /// The same for the whole batch.
    Shared(Dim),
    /// `[B, 1, 1, 1]`.
    PerSequence(TensorId),
}

/// Queries and keys of one attention, heads before tokens.
pub(super) struct HeadMajorQkv {
    pub(super) q: TensorId,
    pub(super) k: TensorId,
    pub(super) v: TensorId,
}

impl OnnxLowering<'_> {
    /// `[B, S, H · D]` as `[B, H, S, D]`.
    pub(super) fn split_heads(&mut self, x: TensorId, heads: usize) -> Result<TensorId, String> {
        let shape = self.shape(x);
        let [batch, tokens, width] = shape[..] else {
            return Err(format!("an operand has {} axes, must have 3", shape.len()));
        };
        let dim = width.checked_div(heads);
        let dim = dim.ok_or_else(|| format!("{heads} heads do not divide the width {width:?}"))?;
        let x = self.reshape(x, vec![batch, tokens, Dim::from(heads), dim])?;
        self.permute(x, vec![0, 2, 1, 3])
    }

    /// `[B, H, S, D]` as `[B, S, H · D]`.
    pub(super) fn join_heads(&mut self, x: TensorId) -> Result<TensorId, String> {
        let x = self.permute(x, vec![0, 2, 1, 3])?;
        let shape = self.shape(x);
        let width = Dim::product(&shape[2..])
            .ok_or("has a dynamic number of heads, which is not supported")?;
        self.reshape(x, vec![shape[0], shape[1], width])
    }

    /// Consecutive integers from `start`.
    pub(super) fn count_from(&mut self, start: Dim, len: Dim) -> Result<TensorId, String> {
        let range = Range {
            start,
            step: 1,
            len,
            dtype: DType::I64,
        };
        self.emit(range, &[])
    }

    /// Indices of the queries among the keys, `[S, 1]` or `[B, 1, S, 1]`.
    fn query_places(&mut self, queries: Dim, first: QueryOffset) -> Result<TensorId, String> {
        let start = match first {
            QueryOffset::Shared(start) => start,
            QueryOffset::PerSequence(_) => Dim::from(0),
        };
        let places = self.count_from(start, queries)?;
        let column = self.reshape(places, vec![queries, Dim::from(1)])?;
        match first {
            QueryOffset::Shared(_) => Ok(column),
            QueryOffset::PerSequence(first) => self.binary(B::Add, column, first),
        }
    }

    /// The conjunction of two optional conditions.
    pub(super) fn both(
        &mut self,
        a: Option<TensorId>,
        b: TensorId,
    ) -> Result<Option<TensorId>, String> {
        Ok(Some(match a {
            Some(a) => self.binary(B::And, a, b)?,
            None => b,
        }))
    }

    /// True where a query sees a key by position: the key is not after the query and at most `window` before it.
    pub(super) fn window_mask(
        &mut self,
        [queries, keys]: [Dim; 2],
        first: QueryOffset,
        after: Option<i64>,
        before: Option<i64>,
    ) -> Result<Option<TensorId>, String> {
        if after.is_none() && before.is_none() {
            return Ok(None);
        }
        let query = self.query_places(queries, first)?;
        let key = self.count_from(Dim::from(0), keys)?;
        let mut seen = None;
        for (bound, sign, function) in [(after, 1, C::Le), (before, -1, C::Ge)] {
            let Some(bound) = bound else { continue };
            let limit = match bound {
                0 => query,
                bound => {
                    let bound = self.scalar(Scalar::I64(sign * bound), DType::I64)?;
                    self.binary(B::Add, query, bound)?
                }
            };
            let within = self.compare(function, key, limit)?;
            seen = self.both(seen, within)?;
        }
        Ok(seen)
    }

    /// Combines a mask and a bias into one bias: keys outside `seen` are hidden, `bias` is added to the others.
    pub(super) fn combine_masks(
        &mut self,
        bias: Option<TensorId>,
        seen: Option<TensorId>,
    ) -> Result<Option<TensorId>, String> {
        match (bias, seen) {
            (Some(bias), Some(seen)) => {
                let hidden = self.scalar(Scalar::F32(f32::NEG_INFINITY), DType::F32)?;
                Ok(Some(self.choose(seen, bias, hidden)?))
            }
            (bias, seen) => Ok(bias.or(seen)),
        }
    }

    /// Repeats every head of keys or values for the query heads that share it.
    fn repeated_heads(&mut self, x: TensorId, heads: Dim) -> Result<TensorId, String> {
        let shape = self.shape(x);
        let group = heads.as_const().zip(shape[1].as_const());
        let group = group.and_then(|(q, kv)| q.checked_div(kv));
        let group = group.ok_or("its numbers of heads must be constants")?;
        if group == 1 {
            return Ok(x);
        }
        let (mut apart, mut result) = (shape.clone(), shape);
        apart.insert(2, Dim::from(1));
        result[1] = heads;
        let x = self.reshape(x, apart.clone())?;
        apart[2] = Dim::from(group);
        let x = self.expand(x, apart)?;
        self.reshape(x, result)
    }

    /// Attention as separate ops, for models that output its scores. Returns the result and the scores after `stage`.
    fn decomposed_attention(
        &mut self,
        heads: &HeadMajorQkv,
        op: &Attention,
        mask: Option<TensorId>,
        stage: i64,
    ) -> Result<[TensorId; 2], String> {
        let count = self.shape(heads.q)[1];
        let k = self.repeated_heads(heads.k, count)?;
        let v = self.repeated_heads(heads.v, count)?;
        let product = MatMul {
            transpose_b: true,
            alpha: op.scale,
        };
        let raw = self.emit(product, &[heads.q, k])?;
        let capped = match op.softcap {
            None => raw,
            Some(cap) => {
                let small = self.with_number(B::Div, raw, cap)?;
                let tanh = self.unary(Activation::Tanh.into(), small)?;
                self.with_number(B::Mul, tanh, cap)?
            }
        };
        let hidden = self.scalar(Scalar::F32(f32::NEG_INFINITY), DType::F32)?;
        let masked = match mask {
            None => capped,
            Some(mask) if self.dtype(mask) == DType::Bool => self.choose(mask, capped, hidden)?,
            Some(mask) => self.binary(B::Add, capped, mask)?,
        };
        let last = self.rank(masked) - 1;
        let weights = self.emit(
            Softmax {
                axis: last,
                log: false,
            },
            &[masked],
        )?;
        // A query that sees no key gets weights of zero instead of NaN.
        let largest = Reduce {
            function: ReduceFunction::Max,
            axes: vec![last],
            keep: true,
        };
        let largest = self.emit(largest, &[masked])?;
        let blind = self.compare(C::Eq, largest, hidden)?;
        let zero = self.scalar(Scalar::F32(0.0), DType::F32)?;
        let weights = self.choose(blind, zero, weights)?;
        let result = self.emit(MatMul::default(), &[weights, v])?;
        let scores = match stage {
            0 => raw,
            1 => capped,
            2 => masked,
            3 => weights,
            other => return Err(format!("qk_matmul_output_mode {other} is not supported")),
        };
        Ok([result, scores])
    }

    /// Pads the mask to all keys; the added keys are hidden.
    fn whole_mask(&mut self, mask: TensorId, keys: Dim) -> Result<TensorId, String> {
        let mut shape = self.shape(mask);
        let last = shape.last_mut().ok_or("the mask is a scalar")?;
        if *last == keys {
            return Ok(mask);
        }
        *last = keys - *last;
        let (axis, dtype) = (shape.len() - 1, self.dtype(mask));
        let hidden = match dtype {
            DType::Bool => Scalar::Bool(false),
            _ => Scalar::F32(f32::NEG_INFINITY),
        };
        let rest = self.fill(hidden, dtype, shape)?;
        self.concat(&[mask, rest], axis)
    }
}

/// ONNX's `Attention`, opsets 23 to 25.
pub(super) fn attention(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let [mut q, mut k, mut v] = [0, 1, 2].map(|index| lower.real(call, index));
    let flat = lower.rank(q.clone()?) == 3;
    if flat {
        let heads = |name: &str| call.count(name)?.ok_or_else(|| format!("has no {name}"));
        let (q_heads, kv_heads) = (heads("q_num_heads")?, heads("kv_num_heads")?);
        q = lower.split_heads(q?, q_heads);
        k = lower.split_heads(k?, kv_heads);
        v = lower.split_heads(v?, kv_heads);
    }
    let (q, mut k, mut v) = (q?, k?, v?);
    for x in [q, k, v] {
        if lower.rank(x) != 4 {
            return Err(format!(
                "an operand has {} axes, must have 3 or 4",
                lower.rank(x)
            ));
        }
    }
    let (past_key, past_value) = (lower.maybe(call, 4)?, lower.maybe(call, 5)?);
    let nonpad = lower.maybe(call, 6)?;
    let mut first = QueryOffset::Shared(Dim::from(0));
    if past_key.is_some() != past_value.is_some() {
        return Err("has a past for only one of keys and values".into());
    }
    if let (Some(past_key), Some(past_value)) = (past_key, past_value) {
        let past = lower.shape(past_key);
        first = QueryOffset::Shared(*past.get(2).ok_or("past_key must have 4 axes")?);
        k = lower.concat(&[past_key, k], 2)?;
        v = lower.concat(&[past_value, v], 2)?;
    }
    let (queries, keys) = (lower.shape(q)[2], lower.shape(k)[2]);

    let mut seen = None;
    if let Some(nonpad) = nonpad {
        let batch = lower.shape(q)[0];
        let one = Dim::from(1);
        let nonpad = lower.cast(nonpad, DType::I64)?;
        let valid = lower.reshape(nonpad, vec![batch, one, one, one])?;
        let key = lower.count_from(Dim::from(0), keys)?;
        let padding = lower.compare(C::Lt, key, valid)?;
        seen = lower.both(seen, padding)?;
        // Invalid rows may contain NaN, and NaN times a weight of zero is NaN.
        let row = lower.reshape(key, vec![keys, one])?;
        let held = lower.compare(C::Lt, row, valid)?;
        let zero = lower.scalar(Scalar::F32(0.0), DType::F32)?;
        k = lower.choose(held, k, zero)?;
        v = lower.choose(held, v, zero)?;
        if past_key.is_none() {
            let length = lower.emit(graph::ops::Size { value: queries }, &[])?;
            first = QueryOffset::PerSequence(lower.binary(B::Sub, valid, length)?);
        }
    }
    let causal = call.flag("is_causal", false)?;
    let window = |name: &str| -> Result<Option<i64>, String> {
        Ok(call.int(name)?.filter(|size| *size >= 0))
    };
    let (before, mut after) = (window("left_window_size")?, window("right_window_size")?);
    // Without a cache, the graph op itself masks later keys.
    let flag = causal && matches!(first, QueryOffset::Shared(at) if at == Dim::from(0));
    if causal && !flag {
        after = Some(after.unwrap_or(0).min(0));
    }
    let by_place = lower.window_mask([queries, keys], first, after, before)?;
    if let Some(by_place) = by_place {
        seen = lower.both(seen, by_place)?;
    }
    let mut bias = None;
    if let Some(mask) = lower.maybe(call, 3)? {
        let mask = lower.whole_mask(mask, keys)?;
        if lower.dtype(mask) == DType::Bool {
            seen = lower.both(seen, mask)?;
        } else {
            bias = Some(lower.cast(mask, DType::F32)?);
        }
    }

    let dim = lower.shape(q)[3]
        .as_const()
        .ok_or("the head size must be a constant")?;
    let op = Attention {
        scale: call.float_or("scale", 1.0 / (dim as f32).sqrt())?,
        causal: flag,
        softcap: call.float("softcap")?.filter(|cap| *cap > 0.0),
        token_major: false,
    };
    let heads = HeadMajorQkv { q, k, v };
    let (result, scores) = if call.wants(3) {
        if flag {
            let future = lower.window_mask([queries, keys], first, Some(0), None)?;
            if let Some(future) = future {
                seen = lower.both(seen, future)?;
            }
        }
        let mask = lower.combine_masks(bias, seen)?;
        let stage = call.int_or("qk_matmul_output_mode", 0)?;
        let [result, scores] = lower.decomposed_attention(&heads, &op, mask, stage)?;
        (result, Some(scores))
    } else {
        let mask = lower.combine_masks(bias, seen)?;
        let operands: Vec<TensorId> = [q, k, v].into_iter().chain(mask).collect();
        (lower.emit(op, &operands)?, None)
    };
    let result = if flat {
        lower.join_heads(result)?
    } else {
        result
    };
    Ok([result, k, v].into_iter().chain(scores).collect())
}
