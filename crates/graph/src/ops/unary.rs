//! Elementwise functions of one tensor.

use super::activation::erf;
use super::elementwise::map_f32;
use super::operands::{operands, require_dtype};
use super::{Activation, BufferReuse, Dependence, DimFormatter, OpDefinition};
use crate::tensor_type::TensorType;
use crate::{Bindings, Data, Value};
use base::DType;

/// A function of one element. All take f32; [`Neg`](UnaryFunction::Neg), [`Abs`](UnaryFunction::Abs) and
/// [`Sign`](UnaryFunction::Sign) also take integers, and [`Not`](UnaryFunction::Not) takes only bool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is the function of that name")]
pub enum UnaryFunction {
    Activation(Activation),
    Neg,
    Abs,
    Exp,
    Log,
    Sqrt,
    Rsqrt,
    Reciprocal,
    Sin,
    Cos,
    Tan,
    Asin,
    Acos,
    Atan,
    Sinh,
    Cosh,
    Asinh,
    Acosh,
    Atanh,
    Erf,
    /// `ln(1 + x)`, exact near zero.
    Log1p,
    /// `eˣ − 1`, exact near zero.
    Expm1,
    /// `ln(1 + eˣ)`.
    Softplus,
    Floor,
    Ceil,
    /// Round to the nearest integer, ties to even.
    Round,
    /// Round to the nearest f16, ties to even; beyond its range, to infinity.
    RoundF16,
    /// Round to the nearest bf16, ties to even.
    RoundBF16,
    Sign,
    Not,
}

impl UnaryFunction {
    /// Every function except the activations.
    pub const PLAIN: [UnaryFunction; 29] = [
        UnaryFunction::Neg,
        UnaryFunction::Abs,
        UnaryFunction::Exp,
        UnaryFunction::Log,
        UnaryFunction::Sqrt,
        UnaryFunction::Rsqrt,
        UnaryFunction::Reciprocal,
        UnaryFunction::Sin,
        UnaryFunction::Cos,
        UnaryFunction::Tan,
        UnaryFunction::Asin,
        UnaryFunction::Acos,
        UnaryFunction::Atan,
        UnaryFunction::Sinh,
        UnaryFunction::Cosh,
        UnaryFunction::Asinh,
        UnaryFunction::Acosh,
        UnaryFunction::Atanh,
        UnaryFunction::Erf,
        UnaryFunction::Log1p,
        UnaryFunction::Expm1,
        UnaryFunction::Softplus,
        UnaryFunction::Floor,
        UnaryFunction::Ceil,
        UnaryFunction::Round,
        UnaryFunction::RoundF16,
        UnaryFunction::RoundBF16,
        UnaryFunction::Sign,
        UnaryFunction::Not,
    ];

    /// Name in text form.
    pub fn name(self) -> &'static str {
        match self {
            UnaryFunction::Activation(activation) => activation.name(),
            UnaryFunction::Neg => "neg",
            UnaryFunction::Abs => "abs",
            UnaryFunction::Exp => "exp",
            UnaryFunction::Log => "log",
            UnaryFunction::Sqrt => "sqrt",
            UnaryFunction::Rsqrt => "rsqrt",
            UnaryFunction::Reciprocal => "reciprocal",
            UnaryFunction::Sin => "sin",
            UnaryFunction::Cos => "cos",
            UnaryFunction::Tan => "tan",
            UnaryFunction::Asin => "asin",
            UnaryFunction::Acos => "acos",
            UnaryFunction::Atan => "atan",
            UnaryFunction::Sinh => "sinh",
            UnaryFunction::Cosh => "cosh",
            UnaryFunction::Asinh => "asinh",
            UnaryFunction::Acosh => "acosh",
            UnaryFunction::Atanh => "atanh",
            UnaryFunction::Erf => "erf",
            UnaryFunction::Log1p => "log1p",
            UnaryFunction::Expm1 => "expm1",
            UnaryFunction::Softplus => "softplus",
            UnaryFunction::Floor => "floor",
            UnaryFunction::Ceil => "ceil",
            UnaryFunction::Round => "round",
            UnaryFunction::RoundF16 => "round_f16",
            UnaryFunction::RoundBF16 => "round_bf16",
            UnaryFunction::Sign => "sign",
            UnaryFunction::Not => "not",
        }
    }

    /// The function of one number; `Not` treats zero as false.
    pub fn apply(self, x: f32) -> f32 {
        match self {
            UnaryFunction::Activation(activation) => activation.apply(x),
            UnaryFunction::Neg => -x,
            UnaryFunction::Abs => x.abs(),
            UnaryFunction::Exp => x.exp(),
            UnaryFunction::Log => x.ln(),
            UnaryFunction::Sqrt => x.sqrt(),
            UnaryFunction::Rsqrt => 1.0 / x.sqrt(),
            UnaryFunction::Reciprocal => 1.0 / x,
            UnaryFunction::Sin => x.sin(),
            UnaryFunction::Cos => x.cos(),
            UnaryFunction::Tan => x.tan(),
            UnaryFunction::Asin => x.asin(),
            UnaryFunction::Acos => x.acos(),
            UnaryFunction::Atan => x.atan(),
            UnaryFunction::Sinh => x.sinh(),
            UnaryFunction::Cosh => x.cosh(),
            // The standard library's inverses of hyperbolic functions cancel near their zeros in f32.
            UnaryFunction::Asinh => f64::from(x).asinh() as f32,
            UnaryFunction::Acosh => f64::from(x).acosh() as f32,
            UnaryFunction::Atanh => f64::from(x).atanh() as f32,
            UnaryFunction::Erf => erf(x.into()) as f32,
            UnaryFunction::Log1p => x.ln_1p(),
            UnaryFunction::Expm1 => x.exp_m1(),
            UnaryFunction::Softplus => x.max(0.0) + (-x.abs()).exp().ln_1p(),
            UnaryFunction::Floor => x.floor(),
            UnaryFunction::Ceil => x.ceil(),
            UnaryFunction::Round => x.round_ties_even(),
            UnaryFunction::RoundF16 => half::f16::from_f32(x).to_f32(),
            UnaryFunction::RoundBF16 => half::bf16::from_f32(x).to_f32(),
            UnaryFunction::Sign if x == 0.0 || x.is_nan() => x,
            UnaryFunction::Sign => x.signum(),
            UnaryFunction::Not => (x == 0.0).into(),
        }
    }

    /// The function of an integer; `None` if it does not take integers.
    pub fn apply_integer(self, x: i64) -> Option<i64> {
        match self {
            UnaryFunction::Neg => Some(x.wrapping_neg()),
            UnaryFunction::Abs => Some(x.wrapping_abs()),
            UnaryFunction::Sign => Some(x.signum()),
            _ => None,
        }
    }

    fn takes(self) -> &'static [DType] {
        match self {
            UnaryFunction::Not => &[DType::Bool],
            _ if self.apply_integer(0).is_some() => &[DType::F32, DType::I32, DType::I64],
            _ => &[DType::F32],
        }
    }
}

impl From<Activation> for UnaryFunction {
    fn from(activation: Activation) -> UnaryFunction {
        UnaryFunction::Activation(activation)
    }
}

/// `function(x)`, elementwise.
#[derive(Clone, Debug, PartialEq)]
pub struct Unary {
    /// The function.
    pub function: UnaryFunction,
}

impl OpDefinition for Unary {
    fn name(&self) -> &'static str {
        "unary"
    }

    fn attributes(&self, _: DimFormatter<'_>) -> Vec<String> {
        vec![format!("function: {}", self.function.name())]
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<TensorType, String> {
        let [x] = operands(inputs)?;
        require_dtype("x", x, self.function.takes())?;
        Ok(x.clone())
    }

    fn sharing(&self, _: &[&TensorType], _: &Bindings) -> Result<BufferReuse, String> {
        Ok(BufferReuse::InPlace(1))
    }

    fn dependence(&self) -> Dependence {
        Dependence::Element
    }

    fn evaluate(&self, inputs: &[&Value], shape: &[usize], _: &Bindings) -> Result<Value, String> {
        let integer = |x: i64| {
            self.function
                .apply_integer(x)
                .ok_or_else(|| format!("{} does not support integers", self.function.name()))
        };
        let data = match &inputs[0].data {
            Data::F32(_) => return map_f32(inputs, |x| self.function.apply(x)),
            Data::I32(x) => {
                let results = x.iter().map(|x| integer((*x).into()).map(|x| x as i32));
                Data::I32(results.collect::<Result<_, _>>()?)
            }
            Data::I64(x) => Data::I64(x.iter().map(|x| integer(*x)).collect::<Result<_, _>>()?),
            Data::Bool(x) => Data::Bool(x.iter().map(|x| !x).collect()),
        };
        let shape = shape.to_vec();
        Ok(Value { shape, data })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_points() {
        use UnaryFunction::*;
        for (function, x, expect) in [
            (Neg, 2.5, -2.5),
            (Abs, -2.5, 2.5),
            (Exp, 1.0, std::f32::consts::E),
            (Log, 1.0, 0.0),
            (Sqrt, 9.0, 3.0),
            (Rsqrt, 4.0, 0.5),
            (Reciprocal, 4.0, 0.25),
            (Sin, 0.0, 0.0),
            (Cos, 0.0, 1.0),
            (Erf, 0.5, 0.520_499_9),
            (Log1p, 1e-20, 1e-20),
            (Expm1, -1e-20, -1e-20),
            (Softplus, -40.0, 4.248_354e-18),
            (Floor, -1.5, -2.0),
            (Ceil, -1.5, -1.0),
            (Round, 2.5, 2.0),
            (Round, 3.5, 4.0),
            (RoundF16, 1.0 + 2f32.powi(-11), 1.0),
            (RoundF16, 1.0 + 3.0 * 2f32.powi(-11), 1.0 + 2f32.powi(-9)),
            (RoundF16, 65_519.0, 65_504.0),
            (RoundF16, -65_520.0, f32::NEG_INFINITY),
            (RoundF16, 2f32.powi(-24), 2f32.powi(-24)),
            (RoundBF16, 1.0 + 2f32.powi(-8), 1.0),
            (RoundBF16, -1.0 - 3.0 * 2f32.powi(-8), -1.0 - 2f32.powi(-6)),
            (Sign, -7.0, -1.0),
            (Sign, 0.0, 0.0),
            (Activation(super::Activation::Relu), -1.0, 0.0),
        ] {
            assert_eq!(function.apply(x), expect, "{}({x})", function.name());
        }
    }

    #[test]
    fn integers_and_truths() {
        let run = |function, x: Value| {
            let shape = x.shape.clone();
            Unary { function }.evaluate(&[&x], &shape, &Bindings::default())
        };
        let x = Value::i64([3], vec![-4, 0, 4]);
        assert_eq!(
            run(UnaryFunction::Sign, x.clone()).unwrap(),
            Value::i64([3], vec![-1, 0, 1])
        );
        assert!(run(UnaryFunction::Exp, x).is_err());
        let not = run(UnaryFunction::Not, Value::bool([2], vec![true, false]));
        assert_eq!(not.unwrap(), Value::bool([2], vec![false, true]));
    }
}
