//! Attention over keys and values computed in the same graph, without a cache.

use super::elementwise::Broadcast;
use super::operands::{f32s, require_broadcast, require_dtype, require_f32};
use super::{AttendedRow, DimFormatter, OpDefinition, ScoreParams, attend_row};
use crate::tensor_type::TensorType;
use crate::{Bindings, Data, Value};
use base::DType;
use std::borrow::Cow;

/// `softmax(scale · q · kᵀ + mask) · v`.
///
/// Operands `q [.., H, T, D]`, `k [.., Hkv, S, D]`, `v [.., Hkv, S, Dv]` (f32, `Hkv` divides `H`: each key head serves
/// `H / Hkv` query heads in a row) and optionally `mask`, broadcastable to `[.., H, T, S]`: f32 to be added to the scores,
/// or bool, true where a key may be seen. The result is `[.., H, T, Dv]`. A query that sees no key gets zeros. Token-major
/// operands and results have their tokens before their heads: `[.., T, H, D]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// Factor on the scores.
    pub scale: f32,
    /// Whether query `t` sees only keys `0..=t`.
    pub causal: bool,
    /// `cap · tanh(score / cap)` before the mask.
    pub softcap: Option<f32>,
    /// Whether `q`, `k`, `v` and the result are token-major; the mask layout does not change.
    pub token_major: bool,
}

impl Attention {
    /// Swaps heads and tokens of a shape.
    fn turned<T: Clone>(&self, shape: &[T]) -> Vec<T> {
        let mut shape = shape.to_vec();
        if let (true, Some(heads)) = (self.token_major, shape.len().checked_sub(3)) {
            shape.swap(heads, heads + 1);
        }
        shape
    }

    /// Elements and shape with heads before tokens.
    fn heads_first<'a>(&self, x: &'a [f32], shape: &[usize]) -> (Cow<'a, [f32]>, Vec<usize>) {
        let (&[.., tokens, heads, dim], true) = (shape, self.token_major) else {
            return (x.into(), shape.to_vec());
        };
        (swapped(x, [tokens, heads, dim]).into(), self.turned(shape))
    }
}

/// Transposes blocks `[a, b, dim]` to `[b, a, dim]`.
fn swapped(x: &[f32], [a, b, dim]: [usize; 3]) -> Vec<f32> {
    let mut out = Vec::with_capacity(x.len());
    for block in x.chunks((a * b * dim).max(1)) {
        for i in 0..b {
            for j in 0..a {
                out.extend_from_slice(&block[(j * b + i) * dim..][..dim]);
            }
        }
    }
    out
}

impl OpDefinition for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn attributes(&self, _: DimFormatter<'_>) -> Vec<String> {
        let mut list = vec![format!("scale: {}", self.scale)];
        if self.causal {
            list.push("causal".to_owned());
        }
        list.extend(self.softcap.map(|cap| format!("softcap: {cap}")));
        if self.token_major {
            list.push("token_major".to_owned());
        }
        list
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<TensorType, String> {
        let (q, k, v, mask) = match inputs {
            [q, k, v] => (q, k, v, None),
            [q, k, v, mask] => (q, k, v, Some(mask)),
            _ => return Err(format!("takes 3 or 4 operands, has {}", inputs.len())),
        };
        for (what, ty) in [("q", q), ("k", k), ("v", v)] {
            require_f32(what, ty)?;
        }
        let [qs, ks, vs] = [q, k, v].map(|ty| self.turned(&ty.shape));
        let ([bq @ .., hq, t, dq], [bk @ .., hk, sk, dk], [bv @ .., hv, sv, dv]) =
            (&qs[..], &ks[..], &vs[..])
        else {
            return Err("q, k and v must have at least three axes".into());
        };
        let fit = bq == bk && bk == bv && dq == dk && sk == sv && hk == hv;
        let divides = match (hq.as_const(), hk.as_const()) {
            (Some(h), Some(kv)) => kv > 0 && h.is_multiple_of(kv),
            _ => hq == hk,
        };
        if !fit || !divides {
            return Err(format!(
                "q {:?}, k {:?} and v {:?} do not fit together",
                q.shape, k.shape, v.shape
            ));
        }
        if let Some(mask) = mask {
            require_dtype("mask", mask, &[DType::F32, DType::Bool])?;
            let scores = [bq, &[*hq, *t, *sk]].concat();
            require_broadcast("mask", mask, &scores)?;
        }
        let shape = [bq, &[*hq, *t, *dv]].concat();
        Ok(TensorType::f32(self.turned(&shape)))
    }

    fn evaluate(&self, inputs: &[&Value], shape: &[usize], _: &Bindings) -> Result<Value, String> {
        let operand = |i: usize| Ok::<_, String>((f32s(&inputs[i])?, &inputs[i].shape[..]));
        let heads_first = |(x, shape)| self.heads_first(x, shape);
        let (q, mut scores) = heads_first(operand(0)?);
        let (k, k_shape) = heads_first(operand(1)?);
        let (v, _) = heads_first(operand(2)?);
        let &[.., heads, queries, dim] = &scores[..] else {
            return Err("q must have three axes".into());
        };
        let &[.., kv_heads, keys, _] = &k_shape[..] else {
            return Err("k must have three axes".into());
        };
        let value_dim = shape[shape.len() - 1];
        *scores.last_mut().expect("three axes") = keys;
        let count = scores.iter().product();
        // Bias of each score; `None` if the key is hidden.
        let mask: Vec<Option<f32>> = match inputs.get(3).map(|mask| (mask, &mask.data)) {
            None => vec![Some(0.0); count],
            Some((mask, Data::Bool(seen))) => Broadcast::new(mask, &scores)
                .read(seen)
                .map(|seen| seen.then_some(0.0))
                .collect(),
            Some((mask, _)) => Broadcast::new(mask, &scores)
                .read(f32s(mask)?)
                .map(Some)
                .collect(),
        };
        let scoring = ScoreParams {
            scale: self.scale,
            softcap: self.softcap,
        };
        let mut out = vec![0.0; shape.iter().product()];
        for row in 0..count / keys.max(1) {
            let (head, query) = (row / queries, row % queries);
            let kv_head = head / heads * kv_heads + head % heads / (heads / kv_heads);
            let seen = (0..keys).filter(|key| !self.causal || *key <= query);
            let rows: Vec<AttendedRow<'_>> = seen
                .filter_map(|key| {
                    let at = kv_head * keys + key;
                    Some(AttendedRow {
                        key: &k[at * dim..][..dim],
                        value: &v[at * value_dim..][..value_dim],
                        bias: mask[row * keys + key]?,
                    })
                })
                .collect();
            let out = &mut out[row * value_dim..][..value_dim];
            attend_row(scoring, &q[row * dim..][..dim], &rows, out);
        }
        if self.token_major {
            out = swapped(&out, [heads, queries, value_dim]);
        }
        Ok(Value::f32(shape, out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Dim;

    /// Queries and keys of zeros, so that a query's result is the mean of the values it sees.
    fn means(causal: bool, mask: Option<Value>, heads: usize) -> Vec<f32> {
        let q = Value::f32([1, heads, 2, 1], vec![0.0; heads * 2]);
        let k = Value::f32([1, 1, 3, 1], vec![0.0; 3]);
        let v = Value::f32([1, 1, 3, 1], vec![1.0, 3.0, 8.0]);
        let op = Attention {
            scale: 1.0,
            causal,
            softcap: None,
            token_major: false,
        };
        let mut operands = vec![&q, &k, &v];
        operands.extend(&mask);
        let y = op.evaluate(&operands, &[1, heads, 2, 1], &Bindings::default());
        y.unwrap().as_f32().unwrap().to_vec()
    }

    #[test]
    fn sees_what_it_may() {
        assert_eq!(means(false, None, 1), [4.0, 4.0]);
        assert_eq!(means(true, None, 1), [1.0, 2.0]);
        assert_eq!(means(true, None, 2), [1.0, 2.0, 1.0, 2.0]);
        let mask = Value::bool([1, 3], vec![false, true, true]);
        assert_eq!(means(false, Some(mask.clone()), 1), [5.5, 5.5]);
        assert_eq!(means(true, Some(mask), 1), [0.0, 3.0]);
        let hidden = f32::NEG_INFINITY;
        let mask = Value::f32([2, 3], vec![0.0, hidden, hidden, hidden, hidden, hidden]);
        assert_eq!(means(false, Some(mask), 1), [1.0, 0.0]);
    }

    #[test]
    fn refuses_what_does_not_fit() {
        let ty = |shape: &[usize]| {
            TensorType::f32(shape.iter().map(|d| Dim::from(*d)).collect::<Vec<_>>())
        };
        let op = Attention {
            scale: 1.0,
            causal: false,
            softcap: None,
            token_major: false,
        };
        let infer = |q: &[usize], k: &[usize], mask: Option<&[usize]>| {
            let mut types = vec![ty(q), ty(k), ty(k)];
            types.extend(mask.map(ty));
            op.infer(&types.iter().collect::<Vec<_>>()).is_ok()
        };
        assert!(infer(&[4, 5, 8], &[2, 6, 8], None));
        assert!(!infer(&[4, 5, 8], &[3, 6, 8], None));
        assert!(!infer(&[4, 5, 8], &[4, 6, 9], None));
        assert!(infer(&[2, 4, 5, 8], &[2, 4, 6, 8], Some(&[5, 6])));
        assert!(infer(&[2, 4, 5, 8], &[2, 4, 6, 8], Some(&[2, 1, 1, 6])));
        assert!(!infer(&[2, 4, 5, 8], &[2, 4, 6, 8], Some(&[6, 5])));
    }
}
