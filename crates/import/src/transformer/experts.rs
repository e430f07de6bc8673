//! Feed-forward blocks with routed experts, and with an expert that all tokens share.

use graph::TensorId;
use graph::ops::{
    Activation, Binary, BinaryFunction, ExpertGate, Experts, Gated, RouteExperts, Unary,
    UnaryFunction,
};

use super::build::TransformerBuilder;
use super::weights;
use super::{ExpertsSpec, LayerSpec, Weight};
use crate::error::{ImportError, ImportErrorDetail};

impl TransformerBuilder<'_> {
    /// The layer's feed-forward block, routed or dense.
    pub(super) fn feed_forward(
        &mut self,
        prefix: &str,
        layer: &LayerSpec,
        normed: TensorId,
    ) -> Result<TensorId, ImportError> {
        let Some(experts) = &layer.experts else {
            return self.mlp(prefix, layer.mlp_size, normed);
        };
        let routed = self.routed_experts(prefix, experts, normed)?;
        match (experts.shared_size, experts.gate) {
            (None, _) => Ok(routed),
            (Some(size), ExpertGate::Gated(function)) => {
                let shared = self.shared_expert(prefix, size, function, normed)?;
                self.add(&format!("{prefix}ffn_experts.all"), routed, shared)
            }
            (Some(_), gate) => Err(ImportError::unsupported(format!(
                "a shared expert with {gate:?}"
            ))),
        }
    }

    fn routed_experts(
        &mut self,
        prefix: &str,
        experts: &ExpertsSpec,
        normed: TensorId,
    ) -> Result<TensorId, ImportError> {
        let count = experts.count;
        let router = self.projection(&format!("{prefix}ffn_gate_inp"), count)?;
        let mut routing = vec![self.linear(router, normed, false)?];
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
        let weights = self.node(&format!("{prefix}ffn_route"), route, &routing)?;
        let (inner, width) = (experts.size, self.spec.hidden_size);
        let gate = self.stacked(&format!("{prefix}ffn_gate_exps"), [count, inner, width])?;
        let up = self.stacked(&format!("{prefix}ffn_up_exps"), [count, inner, width])?;
        let down = self.stacked(&format!("{prefix}ffn_down_exps"), [count, width, inner])?;
        let op = Experts {
            function: experts.gate,
            used: experts.used,
        };
        let mut operands = vec![normed, weights, gate, up, down];
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

    /// The matrices of all experts, one below the other.
    fn stacked(&mut self, name: &str, shape: [usize; 3]) -> Result<TensorId, ImportError> {
        let name = format!("{name}.weight");
        let weight = self.weights.required(&name)?;
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
        function: Activation,
        normed: TensorId,
    ) -> Result<TensorId, ImportError> {
        let gate = self.projection(&format!("{prefix}ffn_gate_shexp"), size)?;
        let gate = self.linear(gate, normed, false)?;
        let up = self.projection(&format!("{prefix}ffn_up_shexp"), size)?;
        let up = self.linear(up, normed, false)?;
        let name = format!("{prefix}ffn_act_shexp");
        let inner = self.node(&name, Gated { function }, &[gate, up])?;
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
