//! Per-layer inputs: beside the token embedding, every layer has a small embedding of each token of its own, which gates a
//! residual block at the layer's end.

use graph::TensorId;
use graph::ops::{Gated, GatherRows, Reshape, Scale, Slice};

use super::Mlp;
use super::build::TransformerBuilder;
use super::weights;
use crate::error::ImportError;

impl TransformerBuilder<'_> {
    /// The inputs of all layers, `[T, layers · width]`: each token's row of a table plus a projection of its embedding,
    /// which is normalised for each layer.
    pub(super) fn per_layer_inputs(
        &mut self,
        tokens: TensorId,
        embedded: TensorId,
        width: usize,
    ) -> Result<TensorId, ImportError> {
        let (spec, layers) = (self.spec, self.spec.layers.len());
        let all = layers * width;
        let name = "per_layer_token_embd.weight";
        let weight = self.weights.required(name)?;
        let table = weights::matrix(&mut self.graph, name, weight, [spec.vocab_size, all])?;
        let rows = self.node("per_layer_token_embd", GatherRows, &[table, tokens])?;
        let factor = (width as f64).sqrt() as f32;
        let rows = self.node("per_layer_token_embd.scaled", Scale { factor }, &[rows])?;

        let projection = self.projection("per_layer_model_proj", all)?;
        let projected = self.linear(projection, embedded, false)?;
        let factor = (1.0 / (spec.hidden_size as f64).sqrt()) as f32;
        let name = "per_layer_model_proj.scaled";
        let projected = self.node(name, Scale { factor }, &[projected])?;
        let shape = vec![self.step, layers.into(), width.into()];
        let name = "per_layer_model_proj.layers";
        let projected = self.node(name, Reshape { shape }, &[projected])?;
        let normed = self.rms_norm("per_layer_proj_norm", projected, width)?;
        let shape = vec![self.step, all.into()];
        let normed = self.node("per_layer_proj_norm.joined", Reshape { shape }, &[normed])?;

        let sum = self.add("per_layer_input.sum", normed, rows)?;
        let factor = std::f32::consts::FRAC_1_SQRT_2;
        self.node("per_layer_input", Scale { factor }, &[sum])
    }

    /// Adds the residual block of layer `index` that its part of the per-layer inputs gates.
    pub(super) fn add_per_layer_input(
        &mut self,
        index: usize,
        inputs: TensorId,
        width: usize,
        hidden: TensorId,
    ) -> Result<TensorId, ImportError> {
        let prefix = format!("blk.{index}.");
        let (Mlp::Plain(function) | Mlp::PlainSquared(function) | Mlp::Gated(function)) =
            self.spec.mlp;
        let own = Slice {
            axis: 1,
            start: (index * width).into(),
            len: width.into(),
            step: 1,
        };
        let own = self.node(&format!("{prefix}per_layer_input"), own, &[inputs])?;
        let gate = self.projection(&format!("{prefix}inp_gate"), width)?;
        let gate = self.linear(gate, hidden, false)?;
        let name = format!("{prefix}inp_gate.act");
        let gated = self.node(&name, Gated { function }, &[gate, own])?;
        let projection = self.projection(&format!("{prefix}proj"), self.spec.hidden_size)?;
        let projected = self.linear(projection, gated, false)?;
        let normed = self.norm(&format!("{prefix}post_norm"), projected)?;
        self.add(&format!("{prefix}per_layer_residual"), hidden, normed)
    }
}
