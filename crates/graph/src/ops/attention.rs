//! Attention over keys and values that the graph itself computes; nothing is kept.

use super::check::{f32s, want_broadcast, want_dtype, want_f32};
use super::elementwise::Broadcast;
use super::{AttendedRow, Definition, DimText, Scoring, attend_row};
use crate::graph::TensorType;
use crate::{Bindings, Data, Dim, Value};
use base::DType;

/// `softmax(scale · q · kᵀ + mask) · v`.
///
/// Operands `q [.., H, T, D]`, `k [.., Hkv, S, D]`, `v [.., Hkv, S, Dv]` (f32, `Hkv` divides `H`: each key head serves
/// `H / Hkv` query heads in a row) and optionally `mask`, broadcastable to `[.., H, T, S]`: f32 to be added to the scores,
/// or bool, true where a key may be seen. The result is `[.., H, T, Dv]`. A query that sees no key gets zeros.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// Factor on the scores.
    pub scale: f32,
    /// Whether query `t` sees only keys `0..=t`.
    pub causal: bool,
    /// `cap · tanh(score / cap)` before the mask.
    pub softcap: Option<f32>,
}

impl Attention {
    fn scores_shape(q: &TensorType, k: &TensorType) -> Vec<Dim> {
        let mut shape = q.shape.clone();
        let last = shape.len() - 1;
        shape[last] = k.shape[last - 1];
        shape
    }
}

impl Definition for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn attributes(&self, _: DimText<'_>) -> Vec<String> {
        let mut list = vec![format!("scale: {}", self.scale)];
        if self.causal {
            list.push("causal".to_owned());
        }
        list.extend(self.softcap.map(|cap| format!("softcap: {cap}")));
        list
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<TensorType, String> {
        let (q, k, v, mask) = match inputs {
            [q, k, v] => (q, k, v, None),
            [q, k, v, mask] => (q, k, v, Some(mask)),
            _ => return Err(format!("takes 3 or 4 operands, has {}", inputs.len())),
        };
        for (what, ty) in [("q", q), ("k", k), ("v", v)] {
            want_f32(what, ty)?;
        }
        let ([bq @ .., hq, t, dq], [bk @ .., hk, sk, dk], [bv @ .., hv, sv, dv]) =
            (&q.shape[..], &k.shape[..], &v.shape[..])
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
            want_dtype("mask", mask, &[DType::F32, DType::Bool])?;
            want_broadcast("mask", mask, &Attention::scores_shape(q, k))?;
        }
        let mut shape = bq.to_vec();
        shape.extend([*hq, *t, *dv]);
        Ok(TensorType::f32(shape))
    }

    fn evaluate(&self, inputs: &[&Value], shape: &[usize], _: &Bindings) -> Result<Value, String> {
        let [q, k, v] = [f32s(&inputs[0])?, f32s(&inputs[1])?, f32s(&inputs[2])?];
        let &[.., heads, queries, dim] = &inputs[0].shape[..] else {
            return Err("q must have three axes".into());
        };
        let &[.., kv_heads, keys, _] = &inputs[1].shape[..] else {
            return Err("k must have three axes".into());
        };
        let value_dim = shape[shape.len() - 1];
        let mut scores = inputs[0].shape.clone();
        *scores.last_mut().expect("three axes") = keys;
        let count = scores.iter().product();
        // What is added to each score; `None` where a key is hidden.
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
        let scoring = Scoring {
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
        Ok(Value::f32(shape, out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Queries and keys of zeros, so that a query's result is the mean of the values it sees.
    fn means(causal: bool, mask: Option<Value>, heads: usize) -> Vec<f32> {
        let q = Value::f32([1, heads, 2, 1], vec![0.0; heads * 2]);
        let k = Value::f32([1, 1, 3, 1], vec![0.0; 3]);
        let v = Value::f32([1, 1, 3, 1], vec![1.0, 3.0, 8.0]);
        let op = Attention {
            scale: 1.0,
            causal,
            softcap: None,
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
