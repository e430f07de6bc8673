//! A short causal convolution of every channel, whose last inputs are the state of a sequence.

use super::operands::{last_dim, require_f32, require_index, require_shape};
use super::{Activation, DimFormatter, OpDefinition};
use crate::tensor_type::TensorType;
use crate::{Bindings, Value};

/// `activation(Σ weight[c, i] · x[t − K + 1 + i, c] (+ bias[c]))` for each channel `c` and token `t`, over the tokens of its sequence;
/// before the first token there are zeros.
///
/// Operands: `x [T, C]` f32, `weight [C, K]` f32, `position [T]` or `[T, n]`, i32 or i64, and optionally `bias [C]` f32. The result
/// is `[T, C]`. The state in the bound cache is the last `K − 1` rows of `x`, the oldest first.
#[derive(Clone, Debug, PartialEq)]
pub struct CausalConv {
    /// Index of the cache.
    pub cache_id: u32,
    /// Activation applied to the result, if any.
    pub activation: Option<Activation>,
}

impl CausalConv {
    /// Computes one token of a sequence from the state before it, and replaces the state.
    pub fn step(
        &self,
        state: &mut [f32],
        x: &[f32],
        weight: &[f32],
        bias: Option<&[f32]>,
        out: &mut [f32],
    ) {
        let channels = x.len();
        let taps = weight.len() / channels.max(1);
        for (c, out) in out.iter_mut().enumerate() {
            let row = |tap: usize| match tap + 1 == taps {
                true => x[c],
                false => state[tap * channels + c],
            };
            let sum = (0..taps).fold(bias.map_or(0.0, |bias| bias[c]), |sum, tap| {
                weight[c * taps + tap].mul_add(row(tap), sum)
            });
            *out = self.activation.map_or(sum, |a| a.apply(sum));
        }
        if taps > 1 {
            state.copy_within(channels.., 0);
            let last = state.len() - channels;
            state[last..].copy_from_slice(x);
        }
    }
}

impl OpDefinition for CausalConv {
    fn name(&self) -> &'static str {
        "causal_conv"
    }

    fn attributes(&self, _: DimFormatter<'_>) -> Vec<String> {
        let mut list = vec![format!("cache_id: {}", self.cache_id)];
        list.extend(self.activation.map(|a| format!("activation: {}", a.name())));
        list
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<TensorType, String> {
        let (&[x, weight, position], bias) = inputs
            .split_at_checked(3)
            .ok_or("takes x, weight, position and optionally a bias")?
        else {
            return Err("takes x, weight, position and optionally a bias".into());
        };
        require_f32("x", x)?;
        require_f32("weight", weight)?;
        require_index("position", position)?;
        let channels = last_dim("x", x)?;
        let (&[tokens, _], &[rows, taps]) = (&x.shape[..], &weight.shape[..]) else {
            return Err("x and weight must have two dimensions".into());
        };
        let (&[positions] | &[positions, _]) = &position.shape[..] else {
            return Err("position must have one dimension or two".into());
        };
        if positions != tokens || rows.as_const() != Some(channels) {
            return Err(format!(
                "x {:?}, weight {:?} and position {:?} do not fit together",
                x.shape, weight.shape, position.shape
            ));
        }
        if taps.as_const().is_none_or(|taps| taps < 2) {
            return Err(format!("weight has {taps:?} taps, must have at least 2"));
        }
        match bias {
            [] => {}
            [bias] => {
                require_f32("bias", bias)?;
                require_shape("bias", bias, &[rows])?;
            }
            _ => return Err(format!("takes 3 or 4 operands, has {}", inputs.len())),
        }
        Ok(TensorType::f32([tokens, rows]))
    }

    fn cache(&self, inputs: &[&TensorType]) -> Option<super::CacheUse> {
        let dim = |axis: usize| inputs.get(1)?.shape.get(axis)?.as_const();
        Some(super::CacheUse {
            id: self.cache_id,
            position: 2,
            dims: dim(0)
                .zip(dim(1))
                .and_then(|(c, taps)| Some([1, 0, c.checked_mul(taps.checked_sub(1)?)?])),
        })
    }

    fn evaluate(&self, _: &[&Value], _: &[usize], _: &Bindings) -> Result<Value, String> {
        Err("needs a cache".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_holds_the_inputs_that_later_tokens_need() {
        let op = CausalConv {
            cache_id: 0,
            activation: None,
        };
        // Two channels, three taps.
        let weight = [1.0, 10.0, 100.0, 2.0, 20.0, 200.0];
        let mut state = [0.0; 4];
        let mut step = |x: [f32; 2]| {
            let mut out = [0.0; 2];
            op.step(&mut state, &x, &weight, Some(&[0.5, 0.0]), &mut out);
            out
        };
        assert_eq!(step([1.0, 1.0]), [100.5, 200.0]);
        assert_eq!(step([2.0, 3.0]), [210.5, 620.0]);
        assert_eq!(step([4.0, 5.0]), [421.5, 1062.0]);
        assert_eq!(state, [2.0, 3.0, 4.0, 5.0]);
    }

    #[test]
    fn operands_that_do_not_fit_are_named() {
        let op = CausalConv {
            cache_id: 0,
            activation: Some(Activation::Silu),
        };
        let dims = |shape: &[usize]| {
            shape
                .iter()
                .map(|n| crate::Dim::from(*n))
                .collect::<Vec<_>>()
        };
        let ty = |shape: &[usize]| TensorType::f32(dims(shape));
        let position = TensorType {
            dtype: base::DType::I32,
            shape: dims(&[5]),
        };
        let (x, weight, bias) = (ty(&[5, 4]), ty(&[4, 3]), ty(&[4]));
        let inferred = op.infer(&[&x, &weight, &position, &bias]).unwrap();
        assert_eq!(inferred, ty(&[5, 4]));
        let one = ty(&[4, 1]);
        let error = op.infer(&[&x, &one, &position]).unwrap_err();
        assert!(error.contains("taps"), "{error}");
        assert!(op.infer(&[&x, &x, &position]).is_err());
        assert!(op.infer(&[&x, &weight]).is_err());
        let used = op.cache(&[&x, &weight, &position]).unwrap();
        assert_eq!(used.dims, Some([1, 0, 8]));
    }
}
