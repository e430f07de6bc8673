//! Feed-forward blocks with routed experts, and with an expert that all tokens share.

use base::{Bytes, DType};
use graph::TensorId;
use graph::ops::{
    Activation, Binary, BinaryFunction, ExpertGate, Experts, Gated, RmsNorm, RouteExperts, Unary,
    UnaryFunction,
};

use super::build::TransformerBuilder;
use super::weights::{self, floats};
use super::{ExpertsSpec, LayerSpec, Mlp, Weight};
use crate::error::{ImportError, ImportErrorDetail};

impl TransformerBuilder<'_> {
    /// The layer's feed-forward block, routed or dense: `hidden` is the residual stream, `normed` the block's input.
    pub(super) fn feed_forward(
        &mut self,
        prefix: &str,
        layer: &LayerSpec,
        hidden: TensorId,
        normed: TensorId,
    ) -> Result<TensorId, ImportError> {
        let Some(experts) = &layer.experts else {
            return self.mlp(prefix, layer.mlp_size, normed);
        };
        if experts.beside_dense {
            let dense = self.mlp(prefix, layer.mlp_size, normed)?;
            return self.experts_beside(prefix, experts, hidden, dense);
        }
        let routed = self.routed_experts(prefix, experts, [normed; 2])?;
        let Some(size) = experts.shared_size else {
            return Ok(routed);
        };
        let shared = self.shared_expert(prefix, size, experts.gate, normed)?;
        self.add(&format!("{prefix}ffn_experts.all"), routed, shared)
    }

    /// The sum of a dense block's result and that of experts, each normalised.
    fn experts_beside(
        &mut self,
        prefix: &str,
        experts: &ExpertsSpec,
        hidden: TensorId,
        dense: TensorId,
    ) -> Result<TensorId, ImportError> {
        let dense = self.norm(&format!("{prefix}post_ffw_norm_1"), dense)?;
        let width = self.spec.hidden_size;
        let name = format!("{prefix}ffn_gate_inp.scale");
        let mut scale = self.weights.required(&name)?;
        // The router's input is also divided by the root of the width.
        if scale.data.is_some() {
            let root = (width as f32).sqrt();
            let scaled: Vec<f32> = floats(&name, &scale)?.iter().map(|x| x / root).collect();
            scale.dtype = DType::F32;
            scale.data = Some(Bytes::from_slice(&scaled));
        }
        let scale = self.vector(&name, &scale, width)?;
        let eps = self.spec.norm.eps;
        let name = format!("{prefix}ffn_gate_inp.norm");
        let routed_by = self.node(&name, RmsNorm { eps }, &[hidden, scale])?;
        let input = self.norm(&format!("{prefix}pre_ffw_norm_2"), hidden)?;
        let routed = self.routed_experts(prefix, experts, [routed_by, input])?;
        let routed = self.norm(&format!("{prefix}post_ffw_norm_2"), routed)?;
        self.add(&format!("{prefix}ffn_experts.all"), dense, routed)
    }

    /// The result of a row's experts, chosen by the first input and applied to the second.
    fn routed_experts(
        &mut self,
        prefix: &str,
        experts: &ExpertsSpec,
        [routed_by, input]: [TensorId; 2],
    ) -> Result<TensorId, ImportError> {
        let count = experts.count;
        let router = self.projection(&format!("{prefix}ffn_gate_inp"), count)?;
        let mut routing = vec![self.linear(router, routed_by, false)?];
        let bias = format!("{prefix}exp_probs_b.bias");
        if let Some(weight) = self.weights.optional(&bias) {
            routing.push(self.vector(&bias, &weight, count)?);
        }
        let route = RouteExperts {
            used: experts.used,
            scores: experts.scores,
            normalise: experts.normalise,
            scale: experts.scale,
            groups: experts.groups,
        };
        let mut weights = self.node(&format!("{prefix}ffn_route"), route, &routing)?;
        let scale = format!("{prefix}ffn_down_exps.scale");
        if let Some(weight) = self.weights.optional(&scale) {
            let scale = self.vector(&scale, &weight, count)?;
            let function = BinaryFunction::Mul;
            let name = format!("{prefix}ffn_route.scaled");
            weights = self.node(&name, Binary { function }, &[weights, scale])?;
        }
        // Experts may be of another width than the residual stream.
        let latent = format!("{prefix}ffn_latent_down");
        let narrow = self.weights.optional(&format!("{latent}.weight"));
        let narrow = narrow.and_then(|weight| weight.shape.first().copied());
        let (input, width) = match narrow {
            None => (input, self.spec.hidden_size),
            Some(width) => {
                let down = self.projection(&latent, width)?;
                (self.linear(down, input, false)?, width)
            }
        };
        let routed = self.experts(prefix, experts, [input, weights], width)?;
        match narrow {
            None => Ok(routed),
            Some(_) => {
                let name = format!("{prefix}ffn_latent_up");
                let up = self.projection(&name, self.spec.hidden_size)?;
                self.linear(up, routed, false)
            }
        }
    }

    /// The weighted sum of the experts of each row.
    fn experts(
        &mut self,
        prefix: &str,
        experts: &ExpertsSpec,
        [input, weights]: [TensorId; 2],
        width: usize,
    ) -> Result<TensorId, ImportError> {
        let (count, inner) = (experts.count, experts.size);
        let shape = [count, inner, width];
        let [gate, up] = ["gate", "up"].map(|part| format!("{prefix}ffn_{part}_exps"));
        let both = format!("{prefix}ffn_gate_up_exps.weight");
        let mut function = experts.gate;
        let [gate, up] = match self.weights.optional(&both) {
            Some(weight) => {
                let [first, second] = gate_and_up(&both, &weight, shape)?;
                [
                    self.stacked_of(&gate, first, shape)?,
                    self.stacked_of(&up, second, shape)?,
                ]
            }
            None => {
                let up = self.stacked(&up, shape)?;
                match self.ungated(&gate) {
                    // The square of what is not below 0 is that times the number itself.
                    Some(Activation::Relu) => {
                        function = ExpertGate::Gated(Activation::Relu);
                        [up, up]
                    }
                    _ => [self.stacked(&gate, shape)?, up],
                }
            }
        };
        let down = self.stacked(&format!("{prefix}ffn_down_exps"), [count, width, inner])?;
        let op = Experts {
            function,
            used: experts.used,
        };
        let mut operands = vec![input, weights, gate, up, down];
        let biases = [("gate", inner), ("up", inner), ("down", width)];
        let name = |part: &str| format!("{prefix}ffn_{part}_exps.bias");
        if !self.spec.biases.mlp && self.weights.optional(&name("gate")).is_none() {
            return self.node(&format!("{prefix}ffn_experts"), op, &operands);
        }
        for (part, n) in biases {
            let weight = self.weights.required(&name(part))?;
            let shape = [count, n];
            operands.push(weights::f32_matrix(
                &mut self.graph,
                &name(part),
                &weight,
                shape,
            )?);
        }
        self.node(&format!("{prefix}ffn_experts"), op, &operands)
    }

    /// The function whose square experts without a gate apply; `None` if the file has the gate of this name.
    fn ungated(&self, gate: &str) -> Option<Activation> {
        match self.spec.mlp {
            Mlp::PlainSquared(function) => {
                let gate = self.weights.optional(&format!("{gate}.weight"));
                gate.is_none().then_some(function)
            }
            _ => None,
        }
    }

    /// The matrices of all experts, one below the other.
    fn stacked(&mut self, name: &str, shape: [usize; 3]) -> Result<TensorId, ImportError> {
        let weight = self.weights.required(&format!("{name}.weight"))?;
        self.stacked_of(name, weight, shape)
    }

    fn stacked_of(
        &mut self,
        name: &str,
        weight: Weight,
        shape: [usize; 3],
    ) -> Result<TensorId, ImportError> {
        let name = format!("{name}.weight");
        if weight.data.is_some() && weight.shape != shape {
            return Err(ImportErrorDetail::Shape {
                name,
                found: weight.shape,
                wanted: shape.to_vec(),
            }
            .into());
        }
        let [count, rows, columns] = shape;
        let Some(all) = count.checked_mul(rows) else {
            let reason = format!("has {count} experts of {rows} rows");
            return Err(ImportError::value(format!("tensor {name}"), reason));
        };
        let shape = [all, columns];
        let weight = Weight {
            shape: shape.to_vec(),
            ..weight
        };
        weights::matrix(&mut self.graph, &name, weight, shape)
    }

    /// The expert of all tokens; files may have a gate for its output.
    fn shared_expert(
        &mut self,
        prefix: &str,
        size: usize,
        gate: ExpertGate,
        normed: TensorId,
    ) -> Result<TensorId, ImportError> {
        let name = format!("{prefix}ffn_act_shexp");
        let gate_name = format!("{prefix}ffn_gate_shexp");
        let inner = match (self.ungated(&gate_name), gate) {
            (Some(function), _) => {
                let up = self.projection(&format!("{prefix}ffn_up_shexp"), size)?;
                let up = self.linear(up, normed, false)?;
                let function = function.into();
                let inner = self.node(&name, Unary { function }, &[up])?;
                self.squared(&name, inner)?
            }
            (None, ExpertGate::Gated(function)) => {
                let gate = self.projection(&gate_name, size)?;
                let gate = self.linear(gate, normed, false)?;
                let up = self.projection(&format!("{prefix}ffn_up_shexp"), size)?;
                let up = self.linear(up, normed, false)?;
                self.node(&name, Gated { function }, &[gate, up])?
            }
            (None, gate) => {
                let what = format!("a shared expert with {gate:?}");
                return Err(ImportError::unsupported(what));
            }
        };
        let down = self.projection(&format!("{prefix}ffn_down_shexp"), self.spec.hidden_size)?;
        let shared = self.linear(down, inner, false)?;
        let name = format!("{prefix}ffn_gate_inp_shexp");
        if self.weights.optional(&format!("{name}.weight")).is_none() {
            return Ok(shared);
        }
        let mut gate = self.projection(&name, 1)?;
        gate.make_matrix();
        let gate = self.linear(gate, normed, false)?;
        let function = UnaryFunction::Activation(Activation::Sigmoid);
        let gate = self.node(&format!("{name}.open"), Unary { function }, &[gate])?;
        let function = BinaryFunction::Mul;
        let name = format!("{prefix}ffn_shexp.gated");
        self.node(&name, Binary { function }, &[shared, gate])
    }
}

/// The two halves of a tensor that has gate and up of each expert, one below the other. The rows are copied: those of one matrix lie
/// apart.
fn gate_and_up(
    name: &str,
    weight: &Weight,
    [count, inner, width]: [usize; 3],
) -> Result<[Weight; 2], ImportError> {
    let wanted = [count, 2 * inner, width];
    let data = weight.data.as_deref().unwrap_or_default();
    if weight.data.is_some() && weight.shape != wanted {
        return Err(ImportErrorDetail::Shape {
            name: name.to_owned(),
            found: weight.shape.clone(),
            wanted: wanted.to_vec(),
        }
        .into());
    }
    let half = data.len() / (2 * count).max(1);
    let part = |which: usize| {
        let own = || {
            Bytes::filled(count * half, |own| {
                let halves = data.chunks_exact(half.max(1)).skip(which).step_by(2);
                for (to, from) in own.chunks_exact_mut(half.max(1)).zip(halves) {
                    to.copy_from_slice(from);
                }
            })
        };
        Weight {
            dtype: weight.dtype,
            shape: vec![count, inner, width],
            data: weight.data.is_some().then(own),
        }
    };
    Ok([part(0), part(1)])
}
