//! Attention whose scores and probabilities pass through bodies of the model.

use base::DType;
use graph::ops::{MatMul, Softmax};
use graph::{Dim, TensorId};

use super::call::Call;
use super::context::OnnxLowering;
use super::control::{Bound, Operand};
use crate::onnx::file::Node;
use crate::stored_type::StoredType;

/// `probabilities(softmax(scores(scale · q kᵀ))) v`.
pub(super) fn attention<'a>(lower: &mut OnnxLowering<'a>, node: &'a Node) -> Result<(), String> {
    let call = Call { node };
    let (q, k, v) = (
        lower.real(&call, 0)?,
        lower.real(&call, 1)?,
        lower.real(&call, 2)?,
    );
    let [batch, heads, queries, width] = lower.shape(q)[..] else {
        return Err("its queries must have four axes".into());
    };
    let [_, shared, keys, _] = lower.shape(k)[..] else {
        return Err("its keys must have four axes".into());
    };
    let value_width = *lower.shape(v).last().ok_or("its values are a scalar")?;
    let (Some(count), Some(own), Some(size)) =
        (heads.as_const(), shared.as_const(), width.as_const())
    else {
        return Err("its heads must have constant sizes".into());
    };
    if own == 0 || !count.is_multiple_of(own) {
        return Err(format!("{own} heads of keys do not divide {count} heads"));
    }
    let scale = call.float_or("scale", 1.0 / (size as f32).sqrt())?;
    // Heads of queries that share keys are an axis of their own.
    let grouped = |rows, columns| vec![batch, shared, Dim::from(count / own), rows, columns];
    let alone = |rows, columns| vec![batch, shared, Dim::from(1), rows, columns];
    let q = lower.reshape(q, grouped(queries, width))?;
    let k = lower.reshape(k, alone(keys, width))?;
    let v = lower.reshape(v, alone(keys, value_width))?;
    let product = MatMul {
        transpose_b: true,
        alpha: scale,
    };
    let scores = lower.emit(product, &[q, k])?;
    let flat = vec![batch, heads, queries, keys];
    let scores = lower.reshape(scores, flat.clone())?;
    let scores = modified(lower, node, "score_mod", scores)?;
    let softmax = Softmax {
        axis: 3,
        log: false,
    };
    let probabilities = lower.emit(softmax, &[scores])?;
    let probabilities = modified(lower, node, "prob_mod", probabilities)?;
    if lower.shape(probabilities) != flat {
        return Err("its prob_mod changes the shape of the probabilities".into());
    }
    let probabilities = lower.reshape(probabilities, grouped(queries, keys))?;
    let result = lower.emit(MatMul::default(), &[probabilities, v])?;
    let result = lower.reshape(result, vec![batch, heads, queries, value_width])?;
    let kind = lower.operand_kind(&call, 0);
    if let Some(name) = node.outputs.first() {
        if lower.take_emitted(result) && lower.loop_depth == 0 {
            lower.builder.rename(result, name);
        }
        let operand = Operand::Tensor(result);
        lower.bind(name, Bound { operand, kind });
    }
    Ok(())
}

/// A tensor after the body with this name, if there is one.
fn modified<'a>(
    lower: &mut OnnxLowering<'a>,
    node: &'a Node,
    name: &str,
    x: TensorId,
) -> Result<TensorId, String> {
    let Some(body) = node.branches.iter().find(|branch| branch.name == name) else {
        return Ok(x);
    };
    let ([input], [output]) = (&body.inputs[..], &body.outputs[..]) else {
        return Err(format!("its {name} must have one operand and one result"));
    };
    let operand = Operand::Tensor(x);
    let kind = Some(StoredType::F32);
    lower.bind(input, Bound { operand, kind });
    lower.body(body)?;
    let result = lower.value(output)?;
    lower.begin_node(&format!("{}/{name}", node.label));
    let result = lower.cast(result, DType::F32)?;
    if lower.shape(result) != lower.shape(x) {
        return Err(format!("its {name} changes the shape of its operand"));
    }
    Ok(result)
}
