//! Matrix products.

use base::DType;
use graph::ops::{BinaryFunction as B, Linear, MatMul};
use graph::{Dim, TensorId};

use super::call::Call;
use super::context::Pt2Lowering;

type Results = Result<Vec<TensorId>, String>;

/// `alpha · a @ b`, with at least two axes each.
fn product(
    lower: &mut Pt2Lowering<'_>,
    a: TensorId,
    b: TensorId,
    alpha: f32,
) -> Result<TensorId, String> {
    let a = lower.cast(a, DType::F32)?;
    if alpha == 1.0
        && let Some(name) = lower.transposed_halves.get(&b).cloned()
        && let Some(weight) = lower.narrow_matrix(&name)?
    {
        return lower.emit(Linear::default(), &[a, weight]);
    }
    let b = lower.cast(b, DType::F32)?;
    let product = MatMul {
        transpose_b: false,
        alpha,
    };
    lower.emit(product, &[a, b])
}

pub(super) fn linear(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.tensor(call, "input")?;
    let weight = weight(lower, call)?;
    let bias = lower.maybe_tensor(call, "bias")?;
    let result = lower.result_shape(call, 0)?;
    let x = at_least_matrix(lower, x)?;
    // 16-bit and quantised weights are not widened: this op can read them.
    if lower.dtype(weight) != DType::F32 && lower.dtype(weight).is_real() {
        let x = lower.cast(x, DType::F32)?;
        let operands: Vec<_> = [x, weight].into_iter().chain(bias).collect();
        let product = lower.emit(Linear { activation: None }, &operands)?;
        return Ok(vec![lower.reshape(product, result)?]);
    }
    let weight = at_least_matrix(lower, weight)?;
    let weight = lower.transposed(weight)?;
    let mut product = product(lower, x, weight, 1.0)?;
    if let Some(bias) = bias {
        product = lower.binary(B::Add, product, bias)?;
    }
    Ok(vec![lower.reshape(product, result)?])
}

/// The tensor of `weight`, not widened if it is 16 or 8 bits wide.
pub(super) fn weight(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Result<TensorId, String> {
    match lower.narrow_matrix(call.tensor("weight")?)? {
        Some(weight) => Ok(weight),
        None => lower.tensor(call, "weight"),
    }
}

/// Reshapes a vector to a matrix of one row.
fn at_least_matrix(lower: &mut Pt2Lowering<'_>, x: TensorId) -> Result<TensorId, String> {
    let mut shape = lower.shape(x);
    while shape.len() < 2 {
        shape.insert(0, Dim::from(1));
    }
    lower.reshape(x, shape)
}

pub(super) fn matmul(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let a = lower.tensor(call, "self")?;
    let other = ["other", "mat2", "vec", "tensor"];
    let other = other.iter().find(|name| call.get(name).is_some());
    let mut b = lower.tensor(call, other.ok_or("has no second operand")?)?;
    let a = at_least_matrix(lower, a)?;
    if lower.rank(b) == 1 {
        let column = vec![lower.shape(b)[0], Dim::from(1)];
        b = lower.reshape(b, column)?;
    }
    let product = product(lower, a, b, 1.0)?;
    let result = lower.result_shape(call, 0)?;
    Ok(vec![lower.reshape(product, result)?])
}

pub(super) fn addmm(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let bias = lower.tensor(call, "self")?;
    let (first, second) = match call.get("mat1") {
        Some(_) => ("mat1", "mat2"),
        None => ("batch1", "batch2"),
    };
    let (a, b) = (lower.tensor(call, first)?, lower.tensor(call, second)?);
    let product = product(lower, a, b, call.float("alpha", 1.0)?)?;
    Ok(vec![match call.float("beta", 1.0)? {
        0.0 => product,
        1.0 => lower.binary(B::Add, product, bias)?,
        beta => {
            let bias = lower.with_number(B::Mul, bias, beta)?;
            lower.binary(B::Add, product, bias)?
        }
    }])
}

pub(super) fn outer(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let (a, b) = (lower.tensor(call, "self")?, lower.tensor(call, "vec2")?);
    let mut column = lower.shape(a);
    column.push(Dim::from(1));
    let a = lower.reshape(a, column)?;
    Ok(vec![lower.binary(B::Mul, a, b)?])
}

pub(super) fn einsum(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let equation = call.text("equation")?.ok_or("has no equation")?;
    let mut operands = vec![];
    for name in call.tensors("tensors")? {
        let x = lower.value(name.ok_or("one of its operands is missing")?)?;
        operands.push(lower.cast(x, DType::F32)?);
    }
    Ok(vec![lower.einsum(equation, &operands)?])
}
