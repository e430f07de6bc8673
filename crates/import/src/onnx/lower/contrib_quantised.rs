//! ONNX Runtime's ops on 8-bit integers with scales and zero points: computed on real numbers, then quantised.

use base::DType;
use graph::TensorId;
use graph::ops::{
    Activation, BinaryFunction as B, Reduce, ReduceFunction as R, Softmax, UnaryFunction as U,
};

use super::call::Call;
use super::context::{OnnxLowering, Results};
use crate::lowering::LoweringBuilder;
use crate::stored_type::StoredType;

impl OnnxLowering<'_> {
    /// The real numbers of three operands from `first` on: integers, scale and zero point.
    fn dequantised(&mut self, call: &Call<'_>, first: usize) -> Result<TensorId, String> {
        let x = self.real(call, first)?;
        let scale = self.single(call, first + 1)?;
        let x = match call.name(first + 2) {
            None => x,
            Some(_) => {
                let zero = self.single(call, first + 2)?;
                self.binary(B::Sub, x, zero)?
            }
        };
        self.binary(B::Mul, x, scale)
    }

    /// A scale or zero point of a whole tensor, in f32.
    fn single(&mut self, call: &Call<'_>, index: usize) -> Result<TensorId, String> {
        let x = self.real(call, index)?;
        self.reshape(x, vec![])
            .map_err(|_| format!("operand {index} must be a single number"))
    }

    /// Quantises by the scale and zero point from `scale` on, to the type of operand `like`.
    fn quantised_as(&mut self, call: &Call<'_>, x: TensorId, scale: usize, like: usize) -> Results {
        let kind = self.operand_kind(call, like);
        let kind = kind.filter(|kind| [StoredType::U8, StoredType::I8].contains(kind));
        let kind = kind.ok_or("its operands must have 8-bit integers")?;
        let (min, max) = kind.range().ok_or("its operands must be integers")?;
        let factor = self.single(call, scale)?;
        let x = self.binary(B::Div, x, factor)?;
        let mut x = self.unary(U::Round, x)?;
        if call.name(scale + 1).is_some() {
            let zero = self.single(call, scale + 1)?;
            x = self.binary(B::Add, x, zero)?;
        }
        let x = self.with_number(B::Max, x, min as f32)?;
        let x = self.with_number(B::Min, x, max as f32)?;
        self.set_kind(call, Some(kind));
        Ok(vec![self.cast(x, DType::I64)?])
    }
}

pub(super) fn binary(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let (a, b) = (lower.dequantised(call, 0)?, lower.dequantised(call, 3)?);
    let function = match call.op() {
        "QLinearAdd" => B::Add,
        _ => B::Mul,
    };
    let result = lower.binary(function, a, b)?;
    lower.quantised_as(call, result, 6, 0)
}

pub(super) fn activation(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.dequantised(call, 0)?;
    let result = match call.op() {
        "QLinearSigmoid" => lower.unary(Activation::Sigmoid.into(), x)?,
        _ => {
            let small = lower.with_number(B::Mul, x, call.float_or("alpha", 0.01)?)?;
            lower.positive_or(x, small)?
        }
    };
    lower.quantised_as(call, result, 3, 0)
}

pub(super) fn softmax(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.dequantised(call, 0)?;
    let rank = lower.rank(x);
    let axis = LoweringBuilder::axis(call.int_or("axis", -1)?, rank)?;
    // Before opset 13, all axes from `axis` on were one row.
    if call.int_or("opset", 13)? < 13 && axis + 1 != rank {
        return Err("several axes as one row are not supported".into());
    }
    let result = lower.emit(Softmax { axis, log: false }, &[x])?;
    lower.quantised_as(call, result, 3, 0)
}

pub(super) fn global_average(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    if call.flag("channels_last", false)? {
        return Err("channels as last axis are not supported".into());
    }
    let x = lower.dequantised(call, 0)?;
    let mean = Reduce {
        function: R::Mean,
        axes: (2..lower.rank(x)).collect(),
        keep: true,
    };
    let result = lower.emit(mean, &[x])?;
    lower.quantised_as(call, result, 3, 0)
}

pub(super) fn concat(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let mut parts = vec![];
    for first in (2..call.operands()).step_by(3) {
        parts.push(lower.dequantised(call, first)?);
    }
    let first = *parts.first().ok_or("has no operands")?;
    let axis = call.int("axis")?.ok_or("has no axis")?;
    let axis = LoweringBuilder::axis(axis, lower.rank(first))?;
    let result = lower.concat(&parts, axis)?;
    lower.quantised_as(call, result, 0, 2)
}
