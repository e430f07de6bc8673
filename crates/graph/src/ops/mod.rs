//! The closed set of ops. Each file holds one op's whole meaning: attributes, type inference, memory behaviour and the
//! plainest evaluator.

mod activation;
mod binary;
mod gather_rows;
mod layer_norm;
mod linear;
mod reshape;
mod rms_norm;
mod rope;
mod rope_table;
mod soft_cap;
mod update_and_attend;

pub use activation::{Activation, Gated, Unary};
pub use binary::{Binary, BinaryFunction};
pub use gather_rows::GatherRows;
pub use layer_norm::LayerNorm;
pub use linear::Linear;
pub use reshape::Reshape;
pub use rms_norm::RmsNorm;
pub use rope::{Rope, RopeLayout};
pub use rope_table::RopeTable;
pub use soft_cap::{Scale, SoftCap};
pub use update_and_attend::{AttendedRow, UpdateAndAttend, attend_row};

use crate::graph::TensorType;
use crate::{Dim, Value};
use base::DType;

/// How an op's result may share memory with its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// The result needs memory of its own.
    None,
    /// The result is operand 0 under another shape; nothing is computed.
    Alias,
    /// The result may overwrite any of the first `n` operands that has its size and is not needed later.
    InPlace(usize),
}

/// What every op defines. Errors are reasons; the caller adds the node's name.
pub(crate) trait Definition {
    /// Name in text form.
    fn name(&self) -> &'static str;

    /// Attributes in text form, `key: value` each.
    fn attributes(&self) -> Vec<String> {
        Vec::new()
    }

    /// The result's type, or what does not fit.
    fn infer(&self, inputs: &[&TensorType]) -> Result<TensorType, String>;

    /// How the result may share memory.
    fn sharing(&self) -> Sharing {
        Sharing::None
    }

    /// The result by the plainest f32 loops. Operands have the inferred types, quantised ones dequantised.
    fn evaluate(&self, inputs: &[&Value], result_shape: &[usize]) -> Result<Value, String>;
}

macro_rules! ops {
    ($($op:ident),*) => {
        /// An op with its attributes.
        #[derive(Clone, Debug, PartialEq)]
        #[allow(missing_docs, reason = "each variant is documented at its struct")]
        pub enum Op { $($op($op)),* }

        $(impl From<$op> for Op {
            fn from(op: $op) -> Op {
                Op::$op(op)
            }
        })*

        impl Op {
            fn definition(&self) -> &dyn Definition {
                match self { $(Op::$op(op) => op),* }
            }
        }
    };
}

ops!(
    Binary,
    Gated,
    GatherRows,
    LayerNorm,
    Linear,
    Reshape,
    RmsNorm,
    Rope,
    RopeTable,
    Scale,
    SoftCap,
    Unary,
    UpdateAndAttend
);

impl Op {
    /// Name in text form.
    pub fn name(&self) -> &'static str {
        self.definition().name()
    }

    /// Attributes in text form, `key: value` each.
    pub fn attributes(&self) -> Vec<String> {
        self.definition().attributes()
    }

    /// The type of the result for operands of these types, or what does not fit.
    pub fn infer(&self, inputs: &[&TensorType]) -> Result<TensorType, String> {
        self.definition().infer(inputs)
    }

    /// How the result may share memory with the operands.
    pub fn sharing(&self) -> Sharing {
        self.definition().sharing()
    }

    /// The result by the plainest loops; the oracle for every kernel.
    pub fn evaluate(&self, inputs: &[&Value], result_shape: &[usize]) -> Result<Value, String> {
        self.definition().evaluate(inputs, result_shape)
    }
}

/// Exactly `N` operands, or the reason they do not fit.
fn operands<'a, const N: usize>(inputs: &[&'a TensorType]) -> Result<[&'a TensorType; N], String> {
    inputs
        .try_into()
        .map_err(|_| format!("takes {N} operands, has {}", inputs.len()))
}

/// The operand must be f32.
fn want_f32(what: &str, ty: &TensorType) -> Result<(), String> {
    want_dtype(what, ty, DType::F32)
}

fn want_dtype(what: &str, ty: &TensorType, dtype: DType) -> Result<(), String> {
    if ty.dtype == dtype {
        Ok(())
    } else {
        Err(format!("{what} is {}, must be {dtype}", ty.dtype))
    }
}

fn want_shape(what: &str, ty: &TensorType, shape: &[Dim]) -> Result<(), String> {
    if ty.shape == shape {
        Ok(())
    } else {
        Err(format!(
            "{what} has shape {:?}, must be {shape:?}",
            ty.shape
        ))
    }
}

/// The last dimension, which must be there and known.
fn last_dim(what: &str, ty: &TensorType) -> Result<usize, String> {
    ty.shape
        .last()
        .and_then(Dim::as_const)
        .ok_or_else(|| format!("the last dimension of {what} is not a number"))
}

/// The f32 elements of an evaluator's operand.
fn f32s<'a>(value: &&'a Value) -> Result<&'a [f32], String> {
    value
        .as_f32()
        .ok_or_else(|| format!("an operand is {}, must be f32", value.dtype()))
}

fn i32s<'a>(value: &&'a Value) -> Result<&'a [i32], String> {
    value
        .as_i32()
        .ok_or_else(|| format!("an operand is {}, must be i32", value.dtype()))
}

/// Applies `row` to every row of the last dimension.
fn by_row(x: &Value, mut row: impl FnMut(usize, &[f32], &mut [f32])) -> Result<Value, String> {
    let data = f32s(&x)?;
    let (_, width) = x.rows();
    let mut out = vec![0.0; data.len()];
    if width > 0 {
        for (i, (from, to)) in data.chunks(width).zip(out.chunks_mut(width)).enumerate() {
            row(i, from, to);
        }
    }
    Ok(Value::f32(x.shape.clone(), out))
}
