//! Products of matrices.

use base::DType;
use graph::ops::{BinaryFunction as B, MatMul};
use graph::{Dim, TensorId};

use super::call::Call;
use super::{Lower, Results};

impl Lower<'_> {
    /// `alpha · a @ b`, in f32.
    fn product(&mut self, a: TensorId, b: TensorId, alpha: f32) -> Result<TensorId, String> {
        let dtype = self.dtype(a);
        let (a, b) = (self.cast(a, DType::F32)?, self.cast(b, DType::F32)?);
        let product = MatMul {
            transpose_b: false,
            alpha,
        };
        let product = self.emit(product, &[a, b])?;
        self.cast(product, dtype)
    }
}

pub(super) fn mat_mul(lower: &mut Lower<'_>, call: &Call<'_>) -> Results {
    let (mut a, mut b) = (lower.operand(call, 0)?, lower.operand(call, 1)?);
    if lower.dtype(a) == DType::I64 || lower.dtype(a) == DType::I32 {
        return Err("products of integers are not known".into());
    }
    let (row, column) = (lower.rank(a) == 1, lower.rank(b) == 1);
    if row {
        let shape = vec![Dim::from(1), lower.shape(a)[0]];
        a = lower.reshape(a, shape)?;
    }
    if column {
        let shape = vec![lower.shape(b)[0], Dim::from(1)];
        b = lower.reshape(b, shape)?;
    }
    let product = lower.product(a, b, 1.0)?;
    let mut shape = lower.shape(product);
    if column {
        shape.pop();
    }
    if row {
        let at = shape.len() - usize::from(!column) - 1;
        shape.remove(at);
    }
    Ok(vec![lower.reshape(product, shape)?])
}

pub(super) fn gemm(lower: &mut Lower<'_>, call: &Call<'_>) -> Results {
    let (mut a, mut b) = (lower.real(call, 0)?, lower.real(call, 1)?);
    if lower.rank(a) != 2 || lower.rank(b) != 2 {
        return Err("takes two matrices".into());
    }
    if call.flag("transA", false)? {
        a = lower.transposed(a)?;
    }
    if call.flag("transB", false)? {
        b = lower.transposed(b)?;
    }
    let product = lower.product(a, b, call.float_or("alpha", 1.0)?)?;
    let Some(bias) = lower.maybe(call, 2)? else {
        return Ok(vec![product]);
    };
    let bias = match call.float_or("beta", 1.0)? {
        1.0 => bias,
        beta => lower.with_number(B::Mul, bias, beta)?,
    };
    Ok(vec![lower.binary(B::Add, product, bias)?])
}
