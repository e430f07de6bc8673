//! Attention with and without a cache.

use base::DType;
use graph::ops::{Attention, UnaryFunction, UpdateAndAttend};
use graph::{Dim, TensorId};

use super::call::Call;
use super::context::Pt2Lowering;
use crate::pt2::tensor;
use crate::stored_type::StoredType;

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

/// The soft cap of the scores, which the overload `softcap` has.
fn softcap(call: &Call<'_>) -> Result<Option<f32>, String> {
    if call.get("softcap").is_none() {
        return Ok(None);
    }
    let cap = call.float("softcap", f32::NAN)?;
    match cap.is_finite() && cap > 0.0 {
        true => Ok(Some(cap)),
        false => Err(format!("has the soft cap {cap}, must be positive")),
    }
}

/// The element type that the op was asked for, which is that of its result. Graphs compute in f32, so a result of 16 bits
/// is rounded to what these bits can hold.
fn out_type(lower: &Pt2Lowering<'_>, call: &Call<'_>) -> Result<StoredType, String> {
    let result = lower.result_kind(call, 0)?;
    let asked = call.scalar_type("out_dtype")?.ok_or("has no out_dtype")?;
    let asked = tensor::kind(asked).map_err(|reason| format!("its result {reason}"))?;
    if asked != result {
        let (asked, result) = (asked.name(), result.name());
        return Err(format!(
            "its out_dtype is {asked}, but the file states {result} for its result"
        ));
    }
    match result.is_real() {
        true => Ok(result),
        false => Err(format!(
            "its out_dtype is {}, must be a float type",
            result.name()
        )),
    }
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
        softcap: softcap(call)?,
    };
    let attended = lower.emit(op, &operands)?;
    let attended = match out_type(lower, call)? {
        StoredType::F16 => lower.unary(UnaryFunction::RoundF16, attended)?,
        StoredType::BF16 => lower.unary(UnaryFunction::RoundBF16, attended)?,
        _ => attended,
    };
    let attended = lower.permute(attended, vec![1, 0, 2])?;
    let mut shape = lower.shape(attended);
    shape.insert(0, Dim::from(1));
    Ok(vec![lower.reshape(attended, shape)?])
}
