//! Attention over a KV cache, which the backend binds at run time.

use super::operands::{operands, require_f32, require_index, require_shape};
use super::{DimFormatter, OpDefinition};
use crate::tensor_type::TensorType;
use crate::{Bindings, Value};

/// Stores this step's keys and values in the bound cache and attends over the rows that the cache makes visible to each
/// query.
///
/// Operands `q [T, Hq, D]`, `k [T, Hkv, D]`, `v [T, Hkv, Dv]` (f32, `Hkv` divides `Hq`) and `position [T]` or `[T, n]`, i32
/// or i64; the result is `[T, Hq, Dv]`. With `sinks [Hq]` f32, each head attends to one more row, whose value is zero and whose score
/// is the head's sink. There is no causal flag: visibility is the cache's answer.
#[derive(Clone, Debug, PartialEq)]
pub struct UpdateAndAttend {
    /// Index of the cache, not of the layer: layers that share KV name the same id.
    pub cache_id: u32,
    /// Factor on the scores.
    pub scale: f32,
    /// `cap · tanh(score / cap)` before the softmax.
    pub softcap: Option<f32>,
}

impl OpDefinition for UpdateAndAttend {
    fn name(&self) -> &'static str {
        "update_and_attend"
    }

    fn attributes(&self, _: DimFormatter<'_>) -> Vec<String> {
        let mut list = vec![
            format!("cache_id: {}", self.cache_id),
            format!("scale: {}", self.scale),
        ];
        list.extend(self.softcap.map(|cap| format!("softcap: {cap}")));
        list
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<TensorType, String> {
        let (inputs, sinks) = inputs.split_at(inputs.len().min(4));
        let [q, k, v, position] = operands(inputs)?;
        for (what, ty) in [("q", q), ("k", k), ("v", v)] {
            require_f32(what, ty)?;
        }
        require_index("position", position)?;
        let (&[tokens, heads, dim], &[tk, kv_heads, key_dim], &[tv, value_heads, value_dim]) =
            (&q.shape[..], &k.shape[..], &v.shape[..])
        else {
            return Err("q, k and v must have three dimensions".into());
        };
        let (&[tp] | &[tp, _]) = &position.shape[..] else {
            return Err("position must have one dimension or two".into());
        };
        if [tk, tv, tp] != [tokens; 3] || key_dim != dim || kv_heads != value_heads {
            return Err(format!(
                "q {:?}, k {:?}, v {:?} and position {:?} do not fit together",
                q.shape, k.shape, v.shape, position.shape
            ));
        }
        match (heads.as_const(), kv_heads.as_const()) {
            (Some(h), Some(kv)) if kv > 0 && h.is_multiple_of(kv) => {}
            _ => {
                return Err(format!(
                    "{kv_heads:?} KV heads do not divide {heads:?} query heads"
                ));
            }
        }
        match sinks {
            [] => {}
            [sinks] => {
                require_f32("sinks", sinks)?;
                require_shape("sinks", sinks, &[heads])?;
            }
            _ => return Err(format!("takes 4 or 5 operands, has {}", 4 + sinks.len())),
        }
        Ok(TensorType::f32([tokens, heads, value_dim]))
    }

    fn cache(&self, inputs: &[&TensorType]) -> Option<super::CacheUse> {
        let dim = |operand: usize, axis: usize| inputs.get(operand)?.shape.get(axis)?.as_const();
        let dims = || Some([dim(1, 1)?, dim(1, 2)?, dim(2, 2)?]);
        Some(super::CacheUse {
            id: self.cache_id,
            position: 3,
            dims: dims(),
        })
    }

    fn evaluate(&self, _: &[&Value], _: &[usize], _: &Bindings) -> Result<Value, String> {
        Err("needs a cache".into())
    }
}

impl UpdateAndAttend {
    /// Score parameters.
    pub fn scoring(&self) -> ScoreParams {
        ScoreParams {
            scale: self.scale,
            softcap: self.softcap,
        }
    }
}

/// Scale and soft cap that turn a query-key product into an attention score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScoreParams {
    /// Factor on the product.
    pub scale: f32,
    /// `cap · tanh(score / cap)`, before a bias is added.
    pub softcap: Option<f32>,
}

/// One row that a query sees: its key and its value.
pub struct AttendedRow<'a> {
    /// The key.
    pub key: &'a [f32],
    /// The value.
    pub value: &'a [f32],
    /// Added to the score.
    pub bias: f32,
}

/// Reference attention of one query over its visible rows; every attention kernel is tested against it. A query without
/// visible rows gets zeros.
pub fn attend_row(scoring: ScoreParams, query: &[f32], rows: &[AttendedRow<'_>], out: &mut [f32]) {
    attend_row_with_sink(scoring, query, rows, None, out);
}

/// As [`attend_row`]; a sink is the score of one more row, whose value is zero.
pub fn attend_row_with_sink(
    scoring: ScoreParams,
    query: &[f32],
    rows: &[AttendedRow<'_>],
    sink: Option<f32>,
    out: &mut [f32],
) {
    let score = |row: &AttendedRow<'_>| {
        let dot: f32 = query.iter().zip(row.key).map(|(a, b)| a * b).sum();
        let score = dot * scoring.scale;
        let capped = scoring
            .softcap
            .map_or(score, |cap| cap * (score / cap).tanh());
        capped + row.bias
    };
    let scores: Vec<f32> = rows.iter().map(score).collect();
    let max = scores.iter().fold(f32::NEG_INFINITY, |a, b| a.max(*b));
    out.fill(0.0);
    if max == f32::NEG_INFINITY {
        return;
    }
    let weights: Vec<f32> = scores.iter().map(|s| (s - max).exp()).collect();
    let sunk = sink.map_or(0.0, |sink| (sink - max).exp());
    let sum: f32 = weights.iter().sum::<f32>() + sunk;
    for (weight, row) in weights.iter().zip(rows) {
        for (o, v) in out.iter_mut().zip(row.value) {
            *o += weight / sum * v;
        }
    }
}
