//! `QMoE`: ONNX Runtime's mixture of experts with quantised weights, as `RouteExperts` and `Experts`.

use base::{Bytes, DType};
use graph::ops::{Activation, ExpertGate, ExpertScores, Experts, RouteExperts, Scalar};
use graph::{Dim, TensorId};

use super::call::Call;
use super::context::{OnnxLowering, Results};
use crate::onnx::mat_mul_nbits::NBitsWeights;
use crate::onnx::tensor::OnnxTensor;

/// Operands of one matrix of all experts, and its shape.
struct Projection {
    /// Operands with integers, scales, bias and zero points.
    operands: [usize; 4],
    experts: usize,
    rows: usize,
    depth: usize,
    bits: usize,
}

impl OnnxLowering<'_> {
    fn stored_operand(&self, call: &Call<'_>, index: usize) -> Result<&OnnxTensor, String> {
        let stored = call
            .name(index)
            .and_then(|name| self.file.tensors.get(name));
        stored.ok_or_else(|| format!("operand {index} must be an initialiser"))
    }

    /// The matrices of all experts, one below the other, in the narrowest format that holds them.
    fn expert_matrices(
        &self,
        call: &Call<'_>,
        projection: &Projection,
    ) -> Result<(DType, Bytes), String> {
        let Projection {
            operands,
            experts,
            rows,
            depth,
            bits,
        } = projection;
        let quants = self.stored_operand(call, operands[0])?;
        let mut scales = self.stored_operand(call, operands[1])?.clone();
        let zeros = match call.name(operands[3]) {
            None => None,
            Some(_) => Some(self.stored_operand(call, operands[3])?),
        };
        let rows = experts * rows;
        let block = match call.count("block_size")?.filter(|size| *size > 0) {
            Some(block) => block,
            None if zeros.is_some() => {
                return Err("zero points of whole rows are not supported".into());
            }
            // The scale of a whole row is that of each of its blocks.
            None => {
                let block = [32, 16].into_iter().find(|block| depth % block == 0);
                let block = block.ok_or_else(|| {
                    format!("rows of {depth} weights with one scale are not supported")
                })?;
                let size = scales.data.len() / rows.max(1);
                let list = scales.data.chunks_exact(size.max(1));
                let repeated: Vec<u8> = list.flat_map(|one| one.repeat(depth / block)).collect();
                scales.data = Bytes::from(&repeated[..]);
                scales.shape = vec![rows * (depth / block)];
                block
            }
        };
        let weights = NBitsWeights {
            rows,
            depth: *depth,
            bits: *bits,
            block,
            quants,
            scales: &scales,
            zeros,
        };
        weights.to_kvark_blocks()
    }

    fn expert_constant(
        &mut self,
        (dtype, data): (DType, Bytes),
        shape: [usize; 2],
    ) -> Result<TensorId, String> {
        let name = self.fresh_name();
        let constant = self.builder.constant(&name, dtype, &shape, data);
        constant.map_err(|e| e.to_string())
    }

    /// A bias `[experts, rows]`; zeros if there is none.
    fn expert_bias(
        &mut self,
        call: &Call<'_>,
        projection: &Projection,
    ) -> Result<TensorId, String> {
        let shape = [projection.experts, projection.rows];
        if call.name(projection.operands[2]).is_none() {
            return self.filled(Scalar::F32(0.0), DType::F32, &shape);
        }
        let bias = self.real(call, projection.operands[2])?;
        match self.shape(bias) == shape.map(Dim::from) {
            true => Ok(bias),
            false => Err(format!("a bias must have the shape {shape:?}")),
        }
    }
}

pub(super) fn experts(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    check_attributes(call)?;
    let (x, router) = (lower.real(call, 0)?, lower.real(call, 1)?);
    let own = lower.shape(x);
    let [tokens, experts] = lower.shape(router)[..] else {
        return Err("its router must have two axes".into());
    };
    let experts = experts
        .as_const()
        .ok_or("its number of experts is dynamic")?;
    let depth = own.last().and_then(Dim::as_const);
    let depth = depth.ok_or("the size of its tokens is dynamic")?;
    let [_, both, _] = lower.stored_operand(call, 2)?.shape[..] else {
        return Err("its weights must have three axes".into());
    };
    if both % 2 != 0 {
        return Err("its gate and up rows do not pair".into());
    }
    let inner = both / 2;
    let width = call.count("expert_weight_bits")?.unwrap_or(4);
    let bits = |name: &str| Ok::<_, String>(call.count(name)?.unwrap_or(width));
    let projection = |operands, rows, depth, bits| Projection {
        operands,
        experts,
        rows,
        depth,
        bits,
    };
    let first = projection([2, 3, 4, 11], both, depth, bits("fc1_expert_weight_bits")?);
    let second = projection([5, 6, 7, 12], depth, inner, bits("fc2_expert_weight_bits")?);
    let (dtype, data) = lower.expert_matrices(call, &first)?;
    let down = lower.expert_matrices(call, &second)?;
    let interleaved = call.int_or("swiglu_fusion", 0)? == 1;
    let [gate, up] = halves(&data, experts * both, both, interleaved);
    let shape = [experts * inner, depth];
    let gate = lower.expert_constant((dtype, gate), shape)?;
    let up = lower.expert_constant((dtype, up), shape)?;
    let down = lower.expert_constant(down, [experts * depth, inner])?;
    let bias = lower.expert_bias(call, &first)?;
    let (apart, axis) = match interleaved {
        true => ([experts, inner, 2], 2),
        false => ([experts, 2, inner], 1),
    };
    let bias = lower.reshape(bias, apart.map(Dim::from).to_vec())?;
    let half = |lower: &mut OnnxLowering<'_>, at: usize| {
        let half = lower.slice(bias, axis, Dim::from(at), Dim::from(1))?;
        lower.reshape(half, vec![Dim::from(experts), Dim::from(inner)])
    };
    let (gate_bias, up_bias) = (half(lower, 0)?, half(lower, 1)?);
    let down_bias = lower.expert_bias(call, &second)?;
    let used = call.count("k")?.unwrap_or(1);
    let route = RouteExperts {
        used,
        scores: ExpertScores::Softmax,
        normalise: true,
        scale: 1.0,
        groups: None,
    };
    let weights = lower.emit(route, &[router])?;
    let rows = lower.reshape(x, vec![tokens, Dim::from(depth)])?;
    let function = gate_function(call)?;
    let operands = [rows, weights, gate, up, down, gate_bias, up_bias, down_bias];
    let result = lower.emit(Experts { function, used }, &operands)?;
    Ok(vec![lower.reshape(result, own)?])
}

/// Refuses what is not supported.
fn check_attributes(call: &Call<'_>) -> Result<(), String> {
    let kind = call.text("quant_type")?.unwrap_or("int");
    if kind != "int" {
        return Err(format!("weights of the type {kind} are not supported"));
    }
    let activation = call.text("activation_type")?.unwrap_or("relu");
    if activation != "swiglu" || call.int_or("swiglu_fusion", 0)? == 0 {
        return Err(format!(
            "the activation {activation} is not supported, only swiglu with fused weights"
        ));
    }
    // ONNX Runtime divides the weights by their sum on the CPU even so.
    if !call.flag("normalize_routing_weights", false)? {
        return Err("weights of experts that are not normalised are not supported".into());
    }
    if call.flag("use_sparse_mixer", false)? {
        return Err("the sparse mixer is not supported".into());
    }
    match (14..call.operands()).find(|index| call.name(*index).is_some()) {
        Some(index) => Err(format!("operand {index} is not supported")),
        None => Ok(()),
    }
}

/// `swiglu`: `gate · sigmoid(alpha · gate) · (up + beta)`, of clamped values.
fn gate_function(call: &Call<'_>) -> Result<ExpertGate, String> {
    let alpha = call.float_or("activation_alpha", 1.0)?;
    let beta = call.float_or("activation_beta", 0.0)?;
    match (call.float("swiglu_limit")?, beta) {
        (limit, 1.0) => Ok(ExpertGate::ClampedSwish {
            alpha,
            limit: limit.unwrap_or(f32::INFINITY),
        }),
        (None, 0.0) if alpha == 1.0 => Ok(ExpertGate::Gated(Activation::Silu)),
        (limit, beta) => Err(format!(
            "swiglu with alpha {alpha}, beta {beta} and limit {limit:?} is not supported"
        )),
    }
}

/// The rows of gates and of ups; of `each` rows of an expert, they alternate or are one half each.
fn halves(data: &[u8], rows: usize, each: usize, interleaved: bool) -> [Bytes; 2] {
    let size = data.len() / rows.max(1);
    [0, 1].map(|half| {
        let is_of = |row: usize| match interleaved {
            true => row % 2 == half,
            false => row % each / (each / 2) == half,
        };
        let list = (0..rows).filter(|row| is_of(*row));
        let picked: Vec<u8> = list
            .flat_map(|row| data[row * size..][..size].iter().copied())
            .collect();
        Bytes::from(&picked[..])
    })
}
