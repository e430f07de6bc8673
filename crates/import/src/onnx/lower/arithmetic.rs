//! Elementwise ops.

use base::DType;
use graph::TensorId;
use graph::ops::{
    Activation, BinaryFunction as B, CompareFunction as C, Scalar, UnaryFunction as U,
};

use super::call::Call;
use super::context::{OnnxLowering, Results};
use crate::onnx::tensor;

impl OnnxLowering<'_> {
    /// An operand as f32.
    pub(super) fn real(&mut self, call: &Call<'_>, index: usize) -> Result<TensorId, String> {
        let x = self.operand(call, index)?;
        self.cast(x, DType::F32)
    }

    /// Remainder of a division, with the sign of the dividend.
    fn truncated_mod(&mut self, a: TensorId, b: TensorId) -> Result<TensorId, String> {
        let (size_a, size_b) = (self.unary(U::Abs, a)?, self.unary(U::Abs, b)?);
        let size = self.binary(B::Mod, size_a, size_b)?;
        let sign = self.unary(U::Sign, a)?;
        self.binary(B::Mul, size, sign)
    }
}

pub(super) fn binary(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let (a, b) = (lower.operand(call, 0)?, lower.operand(call, 1)?);
    let result = match call.op() {
        "Add" => lower.binary(B::Add, a, b)?,
        "Sub" => lower.binary(B::Sub, a, b)?,
        "Mul" => lower.binary(B::Mul, a, b)?,
        "Div" => lower.binary(B::Div, a, b)?,
        _ if call.flag("fmod", false)? => lower.truncated_mod(a, b)?,
        _ => lower.binary(B::Mod, a, b)?,
    };
    Ok(vec![result])
}

pub(super) fn pow(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let (a, b) = (lower.operand(call, 0)?, lower.operand(call, 1)?);
    let dtype = lower.dtype(a);
    let power = lower.binary(B::Pow, a, b)?;
    Ok(vec![lower.cast(power, dtype)?])
}

pub(super) fn many(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let function = match call.op() {
        "Max" => B::Max,
        "Min" => B::Min,
        _ => B::Add,
    };
    let mut result = lower.operand(call, 0)?;
    for index in 1..call.operands() {
        let next = lower.operand(call, index)?;
        result = lower.binary(function, result, next)?;
    }
    if call.op() == "Mean" && call.operands() > 1 {
        result = lower.with_number(B::Div, result, call.operands() as f32)?;
    }
    Ok(vec![result])
}

pub(super) fn unary(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.operand(call, 0)?;
    let function = match call.op() {
        "Neg" => U::Neg,
        "Abs" => U::Abs,
        "Sign" => U::Sign,
        "Exp" => U::Exp,
        "Log" => U::Log,
        "Sqrt" => U::Sqrt,
        "Reciprocal" => U::Reciprocal,
        "Sin" => U::Sin,
        "Cos" => U::Cos,
        "Tan" => U::Tan,
        "Asin" => U::Asin,
        "Acos" => U::Acos,
        "Atan" => U::Atan,
        "Sinh" => U::Sinh,
        "Cosh" => U::Cosh,
        "Asinh" => U::Asinh,
        "Acosh" => U::Acosh,
        "Atanh" => U::Atanh,
        "Erf" => U::Erf,
        "Floor" => U::Floor,
        "Ceil" => U::Ceil,
        "Round" => U::Round,
        other => return Err(format!("{other} is not supported")),
    };
    Ok(vec![lower.unary(function, x)?])
}

pub(super) fn not(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.operand(call, 0)?;
    Ok(vec![lower.unary(U::Not, x)?])
}

pub(super) fn activation(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.operand(call, 0)?;
    let activation = match call.op() {
        "Relu" if lower.dtype(x) != DType::F32 => {
            return Ok(vec![lower.with_number(B::Max, x, 0.0)?]);
        }
        "Relu" => Activation::Relu,
        "Tanh" => Activation::Tanh,
        _ => Activation::Sigmoid,
    };
    Ok(vec![lower.unary(activation.into(), x)?])
}

/// `x · sigmoid(alpha · x)`.
pub(super) fn swish(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.operand(call, 0)?;
    let default = if call.op() == "Swish" { 1.0 } else { 1.702 };
    let alpha = call.float_or("alpha", default)?;
    if alpha == 1.0 {
        return Ok(vec![lower.unary(Activation::Silu.into(), x)?]);
    }
    let scaled = lower.with_number(B::Mul, x, alpha)?;
    let gate = lower.unary(Activation::Sigmoid.into(), scaled)?;
    Ok(vec![lower.binary(B::Mul, x, gate)?])
}

/// `swish(a) · b`.
pub(super) fn swi_glu(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let (a, b) = (lower.real(call, 0)?, lower.real(call, 1)?);
    let alpha = call.float_or("alpha", 1.0)?;
    let scaled = match alpha {
        1.0 => a,
        alpha => lower.with_number(B::Mul, a, alpha)?,
    };
    let gate = lower.unary(Activation::Sigmoid.into(), scaled)?;
    let gated = lower.binary(B::Mul, a, gate)?;
    Ok(vec![lower.binary(B::Mul, gated, b)?])
}

/// Moves values beyond `lambd` towards zero by `bias`; smaller ones become zero.
pub(super) fn shrink(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.real(call, 0)?;
    let dtype = lower.operand(call, 0).map(|id| lower.dtype(id))?;
    let (limit, bias) = (call.float_or("lambd", 0.5)?, call.float_or("bias", 0.0)?);
    let zero = lower.scalar(Scalar::F32(0.0), DType::F32)?;
    let (low, high) = (
        lower.scalar(Scalar::F32(-limit), DType::F32)?,
        lower.scalar(Scalar::F32(limit), DType::F32)?,
    );
    let above = lower.compare(C::Gt, x, high)?;
    let below = lower.compare(C::Lt, x, low)?;
    let down = lower.with_number(B::Sub, x, bias)?;
    let up = lower.with_number(B::Add, x, bias)?;
    let result = lower.choose(above, down, zero)?;
    let result = lower.choose(below, up, result)?;
    Ok(vec![lower.cast(result, dtype)?])
}

pub(super) fn gelu(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let mut x = lower.operand(call, 0)?;
    if let Some(bias) = lower.maybe(call, 1)? {
        x = lower.binary(B::Add, x, bias)?;
    }
    let activation = match call.text("approximate")? {
        Some("tanh") => Activation::GeluTanh,
        None if call.op() == "FastGelu" => Activation::GeluTanh,
        None | Some("none") => Activation::GeluErf,
        Some(other) => return Err(format!("the approximation {other:?} is not supported")),
    };
    Ok(vec![lower.unary(activation.into(), x)?])
}

/// Activations composed of other ops.
pub(super) fn composed(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.operand(call, 0)?;
    Ok(vec![match call.op() {
        "LeakyRelu" => {
            let small = lower.with_number(B::Mul, x, call.float_or("alpha", 0.01)?)?;
            lower.positive_or(x, small)?
        }
        "Elu" => {
            let alpha = call.float_or("alpha", 1.0)?;
            lower.elu(x, alpha, 1.0, 1.0)?
        }
        "Selu" => {
            let alpha = call.float_or("alpha", 1.673_263_2)?;
            lower.elu(x, alpha, call.float_or("gamma", 1.050_701)?, 1.0)?
        }
        "Celu" => {
            let alpha = call.float_or("alpha", 1.0)?;
            lower.elu(x, alpha, 1.0, 1.0 / alpha)?
        }
        "Softplus" => lower.unary(U::Softplus, x)?,
        "Mish" => {
            let soft = lower.unary(U::Softplus, x)?;
            let gate = lower.unary(Activation::Tanh.into(), soft)?;
            lower.binary(B::Mul, x, gate)?
        }
        "Softsign" => {
            let size = lower.unary(U::Abs, x)?;
            let size = lower.with_number(B::Add, size, 1.0)?;
            lower.binary(B::Div, x, size)?
        }
        "ThresholdedRelu" => {
            let threshold = lower.scalar(Scalar::F32(call.float_or("alpha", 1.0)?), DType::F32)?;
            let zero = lower.scalar(Scalar::F32(0.0), DType::F32)?;
            let above = lower.compare(C::Gt, x, threshold)?;
            lower.choose(above, x, zero)?
        }
        name => {
            let swish = name == "HardSwish";
            let alpha = if swish {
                1.0 / 6.0
            } else {
                call.float_or("alpha", 0.2)?
            };
            let scaled = lower.with_number(B::Mul, x, alpha)?;
            let beta = if swish {
                0.5
            } else {
                call.float_or("beta", 0.5)?
            };
            let moved = lower.with_number(B::Add, scaled, beta)?;
            let low = lower.with_number(B::Max, moved, 0.0)?;
            let gate = lower.with_number(B::Min, low, 1.0)?;
            if swish {
                lower.binary(B::Mul, x, gate)?
            } else {
                gate
            }
        }
    }])
}

pub(super) fn prelu(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let (x, slope) = (lower.real(call, 0)?, lower.real(call, 1)?);
    let small = lower.binary(B::Mul, x, slope)?;
    Ok(vec![lower.positive_or(x, small)?])
}

pub(super) fn clip(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let mut x = lower.operand(call, 0)?;
    for (index, name, function) in [(1, "min", B::Max), (2, "max", B::Min)] {
        if let Some(bound) = lower.maybe(call, index)? {
            x = lower.binary(function, x, bound)?;
        } else if let Some(bound) = call.float(name)? {
            x = lower.with_number(function, x, bound)?;
        }
    }
    Ok(vec![x])
}

pub(super) fn compare(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let (a, b) = (lower.operand(call, 0)?, lower.operand(call, 1)?);
    let function = match call.op() {
        "Equal" => C::Eq,
        "Less" => C::Lt,
        "LessOrEqual" => C::Le,
        "Greater" => C::Gt,
        _ => C::Ge,
    };
    Ok(vec![lower.compare(function, a, b)?])
}

pub(super) fn logic(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let (a, b) = (lower.operand(call, 0)?, lower.operand(call, 1)?);
    let function = match call.op() {
        "And" => B::And,
        "Or" => B::Or,
        _ => B::Xor,
    };
    Ok(vec![lower.binary(function, a, b)?])
}

pub(super) fn is_special(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.operand(call, 0)?;
    if call.op() == "IsNaN" {
        return Ok(vec![lower.compare(C::Ne, x, x)?]);
    }
    let (above, below) = (
        call.flag("detect_positive", true)?,
        call.flag("detect_negative", true)?,
    );
    let seen = match (above, below) {
        (true, true) => lower.unary(U::Abs, x)?,
        (false, true) => lower.unary(U::Neg, x)?,
        (true, false) => x,
        (false, false) => return Err("detects neither positive nor negative infinity".into()),
    };
    let infinity = lower.scalar(Scalar::F32(f32::INFINITY), DType::F32)?;
    Ok(vec![lower.compare(C::Eq, seen, infinity)?])
}

pub(super) fn choose(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let condition = lower.operand(call, 0)?;
    let (a, b) = (lower.operand(call, 1)?, lower.operand(call, 2)?);
    if let (Some(kind), Some(name)) = (lower.operand_kind(call, 1), call.result(0)) {
        lower.kinds.insert(name.to_owned(), kind);
    }
    Ok(vec![lower.choose(condition, a, b)?])
}

pub(super) fn cast(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.operand(call, 0)?;
    let to = match call.op() {
        "Cast" => tensor::kind(
            call.int("to")?
                .ok_or("does not state the type to cast to")?,
        )?,
        _ => lower
            .operand_kind(call, 1)
            .ok_or("the stored type of its second operand cannot be determined")?,
    };
    if let Some(name) = call.result(0) {
        lower.kinds.insert(name.to_owned(), to);
    }
    let result = lower.cast(x, to.dtype())?;
    if to.is_real() {
        let result = lower.rounded(result, to, call.flag("saturate", true)?)?;
        return Ok(vec![result]);
    }
    Ok(vec![result])
}

pub(super) fn identity(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    Ok(vec![lower.operand(call, 0)?])
}

/// Dropout at inference: the identity.
pub(super) fn dropout(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    if let Some(training) = lower.maybe(call, 2)? {
        let trains = lower
            .known(training)
            .and_then(|known| known.constant(DType::Bool));
        if trains != Some(graph::Data::Bool(vec![false])) {
            return Err("is in training mode: export the model for inference".into());
        }
    }
    let x = lower.operand(call, 0)?;
    if !call.wants(1) {
        return Ok(vec![x]);
    }
    let shape = lower.shape(x);
    Ok(vec![x, lower.fill(Scalar::Bool(true), DType::Bool, shape)?])
}
