//! Attention with and without a cache.

use base::DType;
use graph::ops::{Attention, UpdateAndAttend};
use graph::{Dim, TensorId};

use super::call::Call;
use super::context::Pt2Lowering;

type Results = Result<Vec<TensorId>, String>;

pub(super) fn scaled_dot_product(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    if call.float("dropout_p", 0.0)? > 0.0 {
        return Err("has dropout: export the model in eval mode".into());
    }
    let q = lower.tensor(call, "query")?;
    let (k, v) = (lower.tensor(call, "key")?, lower.tensor(call, "value")?);
    let mask = lower.maybe_tensor(call, "attn_mask")?;
    let causal = call.flag("is_causal", false)?;
    let dim = lower.shape(q).last().and_then(Dim::as_const);
    let dim = dim.ok_or("the head dimension must be constant")?;
    let scale = call.float("scale", 1.0 / (dim as f32).sqrt())?;
    let attention = Attention {
        scale,
        causal,
        softcap: None,
        token_major: false,
    };
    let operands: Vec<TensorId> = [q, k, v].into_iter().chain(mask).collect();
    let attended = lower.emit(attention, &operands)?;
    let result = lower.result_shape(call, 0)?;
    Ok(vec![lower.reshape(attended, result)?])
}

/// Lowers ExecuTorch's op, which has a batch of 1 and heads before tokens; kvark's op has tokens first.
pub(super) fn update_and_attend(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let cache_id = u32::try_from(call.int("layer_id", -1)?)
        .map_err(|_| "its layer_id must be a constant integer")?;
    let scale = call.float("scale", f32::NAN)?;
    if !scale.is_finite() {
        return Err("has no scale".into());
    }
    let mut operands = vec![];
    for name in ["q", "k", "v"] {
        let x = lower.tensor(call, name)?;
        let x = lower.cast(x, DType::F32)?;
        let shape = lower.shape(x);
        let [batch, heads, tokens, dim] = shape[..] else {
            return Err(format!("{name} must have four axes"));
        };
        if batch != Dim::from(1) {
            return Err(format!(
                "{name} has a batch of {batch:?}: export with a batch of 1"
            ));
        }
        let x = lower.reshape(x, vec![heads, tokens, dim])?;
        operands.push(lower.permute(x, vec![1, 0, 2])?);
    }
    let name = call.tensor("position")?;
    // Positions must be a graph input: the cache plans from them before the graph runs.
    let input = super::op_traits::origin(lower.program, name);
    let position = lower.position.as_ref().filter(|(known, _)| known == input);
    let position = match position {
        Some((_, id)) => *id,
        None => lower.value(name)?,
    };
    operands.push(position);
    let op = UpdateAndAttend {
        cache_id,
        scale,
        softcap: None,
    };
    let attended = lower.emit(op, &operands)?;
    let attended = lower.permute(attended, vec![1, 0, 2])?;
    let mut shape = lower.shape(attended);
    shape.insert(0, Dim::from(1));
    Ok(vec![lower.reshape(attended, shape)?])
}
