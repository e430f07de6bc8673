//! ONNX Runtime's fused ops of optimised transformers: embeddings, products with epilogues, and quantised products.

use base::DType;
use graph::ops::{
    Activation, BinaryFunction as B, CompareFunction as C, Gather, LayerNorm, MatMul, Reduce,
    ReduceFunction as R, Scalar,
};
use graph::{Dim, TensorId};

use super::call::Call;
use super::context::{OnnxLowering, Results};
use super::integer_products;
use crate::stored_type::StoredType;

/// The norm of the sum of embeddings of tokens, positions and segments.
pub(super) fn embed_layer_norm(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let ids = lower.operand(call, 0)?;
    let [batch, tokens] = lower.shape(ids)[..] else {
        return Err("its ids must have two axes".into());
    };
    let rows = |lower: &mut OnnxLowering<'_>, table: TensorId, ids: TensorId| {
        lower.emit(Gather { axis: 0 }, &[table, ids])
    };
    let words = lower.real(call, 2)?;
    let mut sum = rows(lower, words, ids)?;
    let positions = lower.real(call, 3)?;
    let places = match lower.maybe(call, 8)? {
        Some(places) => places,
        None => lower.count_from(Dim::from(0), tokens)?,
    };
    let positions = rows(lower, positions, places)?;
    sum = lower.binary(B::Add, sum, positions)?;
    if let (Some(segments), Some(_)) = (lower.maybe(call, 1)?, call.name(4)) {
        let table = lower.real(call, 4)?;
        let segments = rows(lower, table, segments)?;
        sum = lower.binary(B::Add, sum, segments)?;
    }
    let (gamma, beta) = (lower.real(call, 5)?, lower.real(call, 6)?);
    let eps = call.float_or("epsilon", 1e-12)?;
    let result = lower.emit(LayerNorm { eps }, &[sum, gamma, beta])?;
    // The number of tokens that the mask shows.
    let counts = match lower.maybe(call, 7)? {
        None => lower.fill(Scalar::I64(0), DType::I32, vec![batch])?,
        Some(mask) => {
            let mask = lower.cast(mask, DType::I32)?;
            let one = lower.scalar(Scalar::I64(1), DType::I32)?;
            let shown = lower.compare(C::Eq, mask, one)?;
            let shown = lower.cast(shown, DType::I32)?;
            let count = Reduce {
                function: R::Sum,
                axes: vec![1],
                keep: false,
            };
            lower.emit(count, &[shown])?
        }
    };
    if let Some(name) = call.result(1) {
        lower.kinds.insert(name.to_owned(), StoredType::I32);
    }
    Ok(vec![result, counts, sum])
}

/// `gelu(x + bias)`.
pub(super) fn bias_gelu(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let (x, bias) = (lower.real(call, 0)?, lower.real(call, 1)?);
    let sum = lower.binary(B::Add, x, bias)?;
    Ok(vec![lower.unary(Activation::GeluErf.into(), sum)?])
}

/// A product of matrices that may be transposed, times a number.
pub(super) fn fused_mat_mul(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let (mut a, mut b) = (lower.real(call, 0)?, lower.real(call, 1)?);
    if call.flag("transBatchA", false)? || call.flag("transBatchB", false)? {
        return Err("transposed batches are not supported".into());
    }
    if lower.rank(a) < 2 || lower.rank(b) < 2 {
        return Err("its operands must be matrices".into());
    }
    if call.flag("transA", false)? {
        a = lower.transposed(a)?;
    }
    if call.flag("transB", false)? {
        b = lower.transposed(b)?;
    }
    let product = MatMul {
        transpose_b: false,
        alpha: call.float_or("alpha", 1.0)?,
    };
    Ok(vec![lower.emit(product, &[a, b])?])
}

/// The exact product of 8-bit integers times both scales, in f32.
pub(super) fn mat_mul_integer_to_float(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let product = integer_products::product(lower, call, (0, 4), (1, 5))?;
    let (left, right) = (lower.real(call, 2)?, lower.real(call, 3)?);
    let scale = lower.binary(B::Mul, left, right)?;
    Ok(vec![scaled(lower, call, product, scale, 6)?])
}

/// Quantises rows to 8 bits as `DynamicQuantizeLinear` does and multiplies them with 8-bit weights.
pub(super) fn dynamic_quantize_mat_mul(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.real(call, 0)?;
    let [quants, scale, zero] = lower.dynamically_quantised(x)?;
    let rows = lower.binary(B::Sub, quants, zero)?;
    let weights = integer_products::weights(lower, call, (1, 3))?;
    let product = lower.exact_product(rows, weights)?;
    let own = lower.real(call, 2)?;
    let scale = lower.binary(B::Mul, scale, own)?;
    Ok(vec![scaled(lower, call, product, scale, 4)?])
}

/// `x · scale + bias`.
fn scaled(
    lower: &mut OnnxLowering<'_>,
    call: &Call<'_>,
    x: TensorId,
    scale: TensorId,
    bias: usize,
) -> Result<TensorId, String> {
    let x = lower.cast(x, DType::F32)?;
    let x = lower.binary(B::Mul, x, scale)?;
    lower.set_kind(call, Some(StoredType::F32));
    match call.name(bias) {
        None => Ok(x),
        Some(_) => {
            let bias = lower.real(call, bias)?;
            lower.binary(B::Add, x, bias)
        }
    }
}
