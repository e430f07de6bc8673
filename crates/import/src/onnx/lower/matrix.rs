//! Matrix products.

use base::DType;
use graph::ops::{BinaryFunction as B, Linear, MatMul};
use graph::{Dim, TensorId};

use super::call::Call;
use super::context::{OnnxLowering, Results};
use crate::onnx::mat_mul_nbits::NBitsWeights;

impl OnnxLowering<'_> {
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

pub(super) fn mat_mul(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let (mut a, mut b) = (lower.operand(call, 0)?, lower.operand(call, 1)?);
    if lower.dtype(a) == DType::I64 || lower.dtype(a) == DType::I32 {
        return Err("integer matrix products are not supported".into());
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

pub(super) fn gemm(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let (mut a, mut b) = (lower.real(call, 0)?, lower.real(call, 1)?);
    if lower.rank(a) != 2 || lower.rank(b) != 2 {
        return Err("its first two operands must be matrices".into());
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

/// Lowers ONNX Runtime's product with 4- or 8-bit weights, which stay quantised if kvark has a matching format.
pub(super) fn mat_mul_nbits(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.real(call, 0)?;
    let count = |name: &str| call.count(name)?.ok_or_else(|| format!("has no {name}"));
    if call.name(4).is_some() {
        return Err("reordered weights (g_idx) are not supported".into());
    }
    let file = lower.file;
    let stored = |index: usize| call.name(index).and_then(|name| file.tensors.get(name));
    let weights = NBitsWeights {
        rows: count("N")?,
        depth: count("K")?,
        bits: call.count("bits")?.unwrap_or(4),
        block: count("block_size")?,
        quants: stored(1).ok_or("its weights must be an initialiser")?,
        scales: stored(2).ok_or("its scales must be an initialiser")?,
        zeros: match call.name(3) {
            None => None,
            Some(_) => Some(stored(3).ok_or("its zero points must be an initialiser")?),
        },
    };
    let (dtype, data) = weights.to_kvark_blocks()?;
    let name = lower.fresh_name();
    let shape = [weights.rows, weights.depth];
    let weight = lower.builder.constant(&name, dtype, &shape, data);
    let weight = weight.map_err(|e| e.to_string())?;
    let mut operands = vec![x, weight];
    operands.extend(lower.maybe(call, 5)?);
    Ok(vec![lower.emit(Linear::default(), &operands)?])
}

pub(super) fn einsum(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let equation = call.text("equation")?.ok_or("has no equation")?;
    let operands = (0..call.operands()).map(|index| lower.operand(call, index));
    let operands = operands.collect::<Result<Vec<_>, _>>()?;
    Ok(vec![lower.einsum(equation, &operands)?])
}
