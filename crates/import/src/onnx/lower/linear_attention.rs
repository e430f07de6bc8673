//! `LinearAttention`, unrolled over a constant number of tokens, and `CausalConvWithState`.

use base::DType;
use graph::ops::{Activation, BinaryFunction as B, MatMul, Scalar, UnaryFunction as U};
use graph::{Dim, TensorId};

use super::call::Call;
use super::context::{OnnxLowering, Results};
use crate::lowering::ConvSizes;

/// Limit on the tokens that are unrolled.
const MAX_TOKENS: usize = 1024;

/// Sizes of an attention.
struct Heads {
    batch: Dim,
    tokens: usize,
    /// Heads of queries that share one of keys and values.
    queries: usize,
    key_width: usize,
    value_width: usize,
}

impl OnnxLowering<'_> {
    /// The part of `x [batch, tokens, ..]` for one token, as `shape` behind the batch.
    fn token(&mut self, x: TensorId, at: usize, shape: &[usize]) -> Result<TensorId, String> {
        let part = self.slice(x, 1, Dim::from(at), Dim::from(1))?;
        let batch = self.shape(x)[0];
        let shape = shape.iter().map(|n| Dim::from(*n));
        self.reshape(part, [batch].into_iter().chain(shape).collect())
    }
}

pub(super) fn attention(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let (q, k, v) = (
        lower.real(call, 0)?,
        lower.real(call, 1)?,
        lower.real(call, 2)?,
    );
    let count = |name: &str| {
        let count = call.count(name)?.filter(|n| *n > 0);
        count.ok_or_else(|| format!("has no {name}"))
    };
    let (all, shared) = (count("q_num_heads")?, count("kv_num_heads")?);
    let (gated, delta) = match call.text("update_rule")?.unwrap_or("gated_delta") {
        "linear" => (false, false),
        "gated" => (true, false),
        "delta" => (false, true),
        "gated_delta" => (true, true),
        other => return Err(format!("the update rule {other:?} is not supported")),
    };
    let [batch, tokens, width] = lower.shape(q)[..] else {
        return Err("its queries must have three axes".into());
    };
    let tokens = tokens.as_const().filter(|n| (1..=MAX_TOKENS).contains(n));
    let tokens = tokens.ok_or_else(|| {
        format!("its number of tokens must be a constant between 1 and {MAX_TOKENS}")
    })?;
    let value_width = lower.shape(v).last().and_then(Dim::as_const);
    let sizes = width.as_const().zip(value_width);
    let sizes = sizes.filter(|(width, value)| {
        width.is_multiple_of(all) && value.is_multiple_of(shared) && all.is_multiple_of(shared)
    });
    let (width, value_width) = sizes.ok_or("its heads do not divide its sizes")?;
    let heads = Heads {
        batch,
        tokens,
        queries: all / shared,
        key_width: width / all,
        value_width: value_width / shared,
    };
    let scale = match call.float_or("scale", 0.0)? {
        0.0 => 1.0 / (heads.key_width as f32).sqrt(),
        scale => scale,
    };
    let mut state = match call.name(3) {
        Some(_) => lower.real(call, 3)?,
        None => {
            let sizes = [shared, heads.key_width, heads.value_width].map(Dim::from);
            let shape = [batch].into_iter().chain(sizes).collect();
            lower.fill(Scalar::F32(0.0), DType::F32, shape)?
        }
    };
    let gate = |lower: &mut OnnxLowering<'_>, index: usize, wanted: bool, name: &str| match (
        wanted,
        call.name(index),
    ) {
        (false, _) => Ok(None),
        (true, Some(_)) => lower.real(call, index).map(Some),
        (true, None) => Err(format!("has no {name}, which its update rule needs")),
    };
    let decay = gate(lower, 4, gated, "decay")?;
    let beta = gate(lower, 5, delta, "beta")?;
    // The decay of a head, or of each of its keys.
    let decay = match decay {
        None => None,
        Some(decay) => {
            let decay = lower.unary(U::Exp, decay)?;
            let size = lower
                .shape(decay)
                .last()
                .and_then(Dim::as_const)
                .unwrap_or(0);
            match size {
                n if n == shared => Some((decay, 1)),
                n if n == shared * heads.key_width => Some((decay, heads.key_width)),
                n => return Err(format!("its decay has {n} numbers a token")),
            }
        }
    };
    let mut outputs = vec![];
    for at in 0..heads.tokens {
        let key = lower.token(k, at, &[shared, heads.key_width, 1])?;
        let mut value = lower.token(v, at, &[shared, 1, heads.value_width])?;
        if let Some((decay, each)) = decay {
            let decay = lower.token(decay, at, &[shared, each, 1])?;
            state = lower.binary(B::Mul, state, decay)?;
        }
        if let Some(beta) = beta {
            let each = lower
                .shape(beta)
                .last()
                .and_then(Dim::as_const)
                .unwrap_or(0);
            if each != shared && each != 1 {
                return Err(format!("its beta has {each} numbers a token"));
            }
            let beta = lower.token(beta, at, &[each, 1, 1])?;
            let row = lower.transposed(key)?;
            let known = lower.emit(MatMul::default(), &[row, state])?;
            let new = lower.binary(B::Sub, value, known)?;
            value = lower.binary(B::Mul, new, beta)?;
        }
        let added = lower.binary(B::Mul, key, value)?;
        state = lower.binary(B::Add, state, added)?;
        let query = lower.token(q, at, &[shared, heads.queries, heads.key_width])?;
        let product = MatMul {
            transpose_b: false,
            alpha: scale,
        };
        let output = lower.emit(product, &[query, state])?;
        let width = Dim::from(all) * heads.value_width;
        outputs.push(lower.reshape(output, vec![heads.batch, Dim::from(1), width])?);
    }
    let result = lower.concat(&outputs, 1)?;
    Ok(vec![result, state])
}

/// A convolution of each channel with its own past, and the past of the next call.
pub(super) fn causal_conv(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let (x, weight) = (lower.real(call, 0)?, lower.real(call, 1)?);
    let bias = lower.maybe(call, 2)?;
    let [batch, channels, length] = lower.shape(x)[..] else {
        return Err("its input must have three axes".into());
    };
    let kernel = lower.kernel_sizes(weight)?;
    let (&[taps], Some(groups)) = (&kernel[..], channels.as_const()) else {
        return Err("its kernel must have one axis and constant channels".into());
    };
    let past = Dim::from(taps.saturating_sub(1));
    let before = match call.name(3) {
        Some(_) => lower.real(call, 3)?,
        None => lower.fill(Scalar::F32(0.0), DType::F32, vec![batch, channels, past])?,
    };
    if lower.shape(before) != [batch, channels, past] {
        return Err("its past does not match its kernel".into());
    }
    let all = lower.concat(&[before, x], 2)?;
    let sizes = ConvSizes {
        stride: vec![1],
        dilation: vec![1],
        padding: vec![[0; 2]],
        groups,
    };
    let mut result = lower.convolution(all, weight, bias, &sizes)?;
    match call.text("activation")?.unwrap_or("none") {
        "none" | "" => {}
        "silu" | "swish" => result = lower.unary(Activation::Silu.into(), result)?,
        other => return Err(format!("the activation {other:?} is not supported")),
    }
    Ok(vec![result, lower.slice(all, 2, length, past)?])
}
