//! Attention whose memory is one matrix a head: scans and delta rules.

use super::operands::{require_f32, require_index, require_shape};
use super::{DimFormatter, OpDefinition};
use crate::tensor_type::TensorType;
use crate::{Bindings, Value};

/// Attention over the state of a sequence, an `N × P` matrix `S` a head that every token decays, adds to and then reads:
///
/// ```text
/// S ← exp(decay) · S
/// S ← S + k ⊗ update        update = v, or with beta: beta · (v − kᵀS)
/// out = scale · qᵀS
/// ```
///
/// Operands: `q [T, G, N]`, `k [T, G, N]`, `v [T, H, P]`, `decay [T, H]` (all f32, `G` divides `H`), `position [T]` or `[T, n]`, i32 or
/// i64, and optionally `beta [T, H]` f32, which makes it the gated delta rule; without it, this is the scan of Mamba-2. The result is
/// `[T, H, P]`. The state lies in the bound cache.
#[derive(Clone, Debug, PartialEq)]
pub struct LinearAttention {
    /// Index of the cache.
    pub cache_id: u32,
    /// Factor on the result.
    pub scale: f32,
    /// Which heads of values share queries and keys.
    pub sharing: HeadSharing,
}

/// Which of `H` heads share one of `G` others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadSharing {
    /// Neighbours: head `h` has group `h / (H / G)`.
    Blocks,
    /// In turns: head `h` has group `h mod G`.
    Turns,
}

impl HeadSharing {
    /// The group of a head.
    pub fn group(self, head: usize, heads: usize, groups: usize) -> usize {
        match self {
            HeadSharing::Blocks => head / (heads / groups),
            HeadSharing::Turns => head % groups,
        }
    }
}

impl LinearAttention {
    /// Computes one token of one head from the state before it, `[N, P]`, and replaces the state.
    pub fn step(
        &self,
        state: &mut [f32],
        [q, k, v]: [&[f32]; 3],
        decay: f32,
        beta: Option<f32>,
        out: &mut [f32],
    ) {
        let factor = decay.exp();
        let width = v.len();
        for (p, out) in out.iter_mut().enumerate() {
            let mut column: Vec<f32> = (0..k.len())
                .map(|n| state[n * width + p] * factor)
                .collect();
            let dot = |a: &[f32], b: &[f32]| {
                let products = a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b));
                products.sum::<f64>() as f32
            };
            let update = match beta {
                Some(beta) => beta * (v[p] - dot(k, &column)),
                None => v[p],
            };
            for (s, k) in column.iter_mut().zip(k) {
                *s = k.mul_add(update, *s);
            }
            *out = self.scale * dot(q, &column);
            for (n, s) in column.iter().enumerate() {
                state[n * width + p] = *s;
            }
        }
    }
}

impl OpDefinition for LinearAttention {
    fn name(&self) -> &'static str {
        "linear_attention"
    }

    fn attributes(&self, _: DimFormatter<'_>) -> Vec<String> {
        vec![
            format!("cache_id: {}", self.cache_id),
            format!("scale: {}", self.scale),
            format!("sharing: {:?}", self.sharing).to_lowercase(),
        ]
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<TensorType, String> {
        let Some((&[q, k, v, decay, position], beta)) = inputs.split_first_chunk::<5>() else {
            return Err(format!("takes 5 or 6 operands, has {}", inputs.len()));
        };
        for (what, ty) in [("q", q), ("k", k), ("v", v), ("decay", decay)] {
            require_f32(what, ty)?;
        }
        require_index("position", position)?;
        let (&[tokens, groups, _], &[tv, heads, width]) = (&q.shape[..], &v.shape[..]) else {
            return Err("q and v must have three dimensions".into());
        };
        let (&[tp] | &[tp, _]) = &position.shape[..] else {
            return Err("position must have one dimension or two".into());
        };
        if k.shape != q.shape || [tv, tp] != [tokens; 2] {
            return Err(format!(
                "q {:?}, k {:?}, v {:?} and position {:?} do not fit together",
                q.shape, k.shape, v.shape, position.shape
            ));
        }
        match (heads.as_const(), groups.as_const()) {
            (Some(h), Some(g)) if g > 0 && h.is_multiple_of(g) => {}
            _ => {
                return Err(format!(
                    "{groups:?} heads of keys do not divide {heads:?} heads of values"
                ));
            }
        }
        require_shape("decay", decay, &[tokens, heads])?;
        match beta {
            [] => {}
            [beta] => {
                require_f32("beta", beta)?;
                require_shape("beta", beta, &[tokens, heads])?;
            }
            _ => return Err(format!("takes 5 or 6 operands, has {}", inputs.len())),
        }
        Ok(TensorType::f32([tokens, heads, width]))
    }

    fn cache(&self, inputs: &[&TensorType]) -> Option<super::CacheUse> {
        let dim = |operand: usize, axis: usize| inputs.get(operand)?.shape.get(axis)?.as_const();
        let dims = || {
            let (heads, n, p) = (dim(2, 1)?, dim(0, 2)?, dim(2, 2)?);
            Some([heads, 0, n.checked_mul(p)?])
        };
        Some(super::CacheUse {
            id: self.cache_id,
            position: 4,
            dims: dims(),
        })
    }

    fn evaluate(&self, _: &[&Value], _: &[usize], _: &Bindings) -> Result<Value, String> {
        Err("needs a cache".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OP: LinearAttention = LinearAttention {
        cache_id: 0,
        scale: 1.0,
        sharing: HeadSharing::Blocks,
    };

    #[test]
    fn a_delta_rule_replaces_what_a_key_held() {
        let mut state = [0.0; 4];
        let mut step = |k: [f32; 2], v: [f32; 2], beta| {
            let mut out = [0.0; 2];
            OP.step(&mut state, [&k, &k, &v], 0.0, beta, &mut out);
            out
        };
        assert_eq!(step([1.0, 0.0], [3.0, 4.0], Some(1.0)), [3.0, 4.0]);
        assert_eq!(step([0.0, 1.0], [5.0, 6.0], Some(1.0)), [5.0, 6.0]);
        assert_eq!(step([1.0, 0.0], [7.0, 8.0], Some(0.5)), [5.0, 6.0]);
        // Without beta values add up.
        assert_eq!(step([1.0, 0.0], [1.0, 1.0], None), [6.0, 7.0]);
    }

    #[test]
    fn heads_share_keys_in_blocks_or_in_turns() {
        let groups = |sharing: HeadSharing| -> Vec<usize> {
            (0..6).map(|head| sharing.group(head, 6, 2)).collect()
        };
        assert_eq!(groups(HeadSharing::Blocks), [0, 0, 0, 1, 1, 1]);
        assert_eq!(groups(HeadSharing::Turns), [0, 1, 0, 1, 0, 1]);
    }

    #[test]
    fn operands_that_do_not_fit_are_named() {
        let dims = |shape: &[usize]| {
            shape
                .iter()
                .map(|n| crate::Dim::from(*n))
                .collect::<Vec<_>>()
        };
        let ty = |shape: &[usize]| TensorType::f32(dims(shape));
        let position = TensorType {
            dtype: base::DType::I64,
            shape: dims(&[5, 1]),
        };
        let (q, v, gate) = (ty(&[5, 2, 3]), ty(&[5, 4, 6]), ty(&[5, 4]));
        let inferred = OP.infer(&[&q, &q, &v, &gate, &position, &gate]).unwrap();
        assert_eq!(inferred, ty(&[5, 4, 6]));
        let used = OP.cache(&[&q, &q, &v, &gate, &position]).unwrap();
        assert_eq!((used.position, used.dims), (4, Some([4, 0, 18])));
        let three = ty(&[5, 3, 6]);
        let error = OP.infer(&[&q, &q, &three, &gate, &position]).unwrap_err();
        assert!(error.contains("do not divide"), "{error}");
        let error = OP.infer(&[&q, &q, &v, &q, &position]).unwrap_err();
        assert!(error.starts_with("decay has shape"), "{error}");
    }
}
