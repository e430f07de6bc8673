//! Losses of classifiers.

use base::DType;
use graph::ops::{
    BinaryFunction as B, CompareFunction as C, Gather, GatherElements, Reduce, ReduceFunction as R,
    Scalar, Softmax, UnaryFunction as U,
};
use graph::{Dim, TensorId};

use super::call::Call;
use super::context::{OnnxLowering, Results};

pub(super) fn negative_log_likelihood(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.real(call, 0)?;
    Ok(vec![loss(lower, call, x)?])
}

/// The loss of logits, and their logarithmic probabilities.
pub(super) fn softmax_cross_entropy(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.real(call, 0)?;
    if lower.rank(x) < 2 {
        return Err("its scores must have an axis of classes".into());
    }
    let softmax = Softmax { axis: 1, log: true };
    let x = lower.emit(softmax, &[x])?;
    Ok(vec![loss(lower, call, x)?, x])
}

/// `−x[label]` by sample, weighted by class and reduced as the node says; `x` holds logarithmic probabilities.
fn loss(lower: &mut OnnxLowering<'_>, call: &Call<'_>, x: TensorId) -> Result<TensorId, String> {
    let labels = lower.operand(call, 1)?;
    let mut labels = lower.cast(labels, DType::I64)?;
    let shape = lower.shape(labels);
    if shape.is_empty() || shape.len() + 1 != lower.rank(x) {
        let x = lower.shape(x);
        return Err(format!("labels {shape:?} do not match scores {x:?}"));
    }
    // Ignored labels need not be classes: they read class 0, and what they read is dropped.
    let mut counted = None;
    if let Some(ignored) = call.int("ignore_index")? {
        let ignored = lower.scalar(Scalar::I64(ignored), DType::I64)?;
        let zero = lower.scalar(Scalar::I64(0), DType::I64)?;
        let valid = lower.compare(C::Ne, labels, ignored)?;
        labels = lower.choose(valid, labels, zero)?;
        counted = Some(valid);
    }
    let mut column = shape.clone();
    column.insert(1, Dim::from(1));
    let index = lower.reshape(labels, column)?;
    let picked = lower.emit(GatherElements { axis: 1 }, &[x, index])?;
    let picked = lower.reshape(picked, shape)?;
    let mut loss = lower.unary(U::Neg, picked)?;
    let mut weights = None;
    if call.name(2).is_some() {
        let by_class = lower.real(call, 2)?;
        let own = lower.emit(Gather { axis: 0 }, &[by_class, labels])?;
        loss = lower.binary(B::Mul, loss, own)?;
        weights = Some(own);
    }
    if let Some(counted) = counted {
        let zero = lower.scalar(Scalar::F32(0.0), DType::F32)?;
        loss = lower.choose(counted, loss, zero)?;
        weights = Some(match weights {
            Some(own) => lower.choose(counted, own, zero)?,
            None => lower.cast(counted, DType::F32)?,
        });
    }
    let total = |lower: &mut OnnxLowering<'_>, function, x| {
        let axes = (0..lower.rank(x)).collect();
        let reduce = Reduce {
            function,
            axes,
            keep: false,
        };
        lower.emit(reduce, &[x])
    };
    match (call.text("reduction")?.unwrap_or("mean"), weights) {
        ("none", _) => Ok(loss),
        ("sum", _) => total(lower, R::Sum, loss),
        ("mean", None) => total(lower, R::Mean, loss),
        ("mean", Some(weights)) => {
            let sum = total(lower, R::Sum, loss)?;
            let divisor = total(lower, R::Sum, weights)?;
            lower.binary(B::Div, sum, divisor)
        }
        (other, _) => Err(format!("the reduction {other:?} is not supported")),
    }
}
