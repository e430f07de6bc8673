//! Builds the graph of a transformer from its spec and weights.

use base::DType;
use graph::ops::{
    Binary, BinaryFunction, Gated, GatherRows, LayerNorm, Linear, Op, Reshape, RmsNorm, Scale,
    SoftCap, Unary,
};
use graph::{Dim, Graph, GraphBuilder, TensorId};

use super::attention::AttentionBuilder;
use super::check::check;
use super::weights::{self, Weights};
use super::{LayerSpec, Mixer, Mlp, NormKind, NormPlacement, TransformerSpec, Weight};
use crate::error::ImportError;

/// Builds the graph `forward`; `lookup` returns the weight with a name, if the model has it.
///
/// Fused tensors (`attn_qkv`, and `ffn_up` holding gate and up) are split by rows without copying; norm weights and
/// biases become f32, all other weights stay as stored.
pub fn build(
    spec: &TransformerSpec,
    lookup: &dyn Fn(&str) -> Option<Weight>,
) -> Result<Graph, ImportError> {
    build_with_features(spec, &[], &[], lookup)
}

/// Like [`build`]; the graph also returns the input of each of these layers, `f32[T, width]` each, after its other output. The layer
/// behind the last one is the head, whose input is the normalised last state. For each entry of `caches`, the new keys and values of the
/// last layer with a window (`true`) or without one follow, `f32[T, heads · dim]` each.
pub fn build_with_features(
    spec: &TransformerSpec,
    features: &[usize],
    caches: &[bool],
    lookup: &dyn Fn(&str) -> Option<Weight>,
) -> Result<Graph, ImportError> {
    check(spec)?;
    let last = spec.layers.len();
    if let Some(layer) = features.iter().find(|layer| **layer > last) {
        let reason = format!("is {layer}, and the model has {} layers", spec.layers.len());
        return Err(ImportError::value("a layer of the features", reason));
    }
    let mut graph = GraphBuilder::new("forward");
    let step = graph.symbol("T");
    let kept = spec.decodes();
    let wanted = if kept { graph.symbol("R") } else { step };
    let tokens = graph.input("tokens", DType::I32, [step]);
    let position = graph.input("position", DType::I32, [step]);
    let third = if kept { "rows" } else { "text" };
    let third = graph.input(third, DType::I32, [wanted]);
    let inputs = StepInputs {
        step,
        position,
        third,
    };
    let mut decoder = TransformerBuilder::new(spec, lookup, graph, inputs);
    let (table, mut hidden) = decoder.embed(tokens)?;
    let extra = match spec.per_layer_input {
        Some(width) => Some((decoder.per_layer_inputs(tokens, hidden, width)?, width)),
        None => None,
    };
    let mut inputs = vec![];
    for (i, layer) in spec.layers.iter().enumerate() {
        inputs.push(hidden);
        hidden = decoder.layer(i, layer, hidden)?;
        if let Some((extra, width)) = extra {
            hidden = decoder.add_per_layer_input(i, extra, width, hidden)?;
        }
        if spec.layer_scales {
            hidden = decoder.scale_layer(i, hidden)?;
        }
    }
    let result = match kept {
        true if features.contains(&last) => {
            let normed = decoder.last_norm(hidden)?;
            inputs.push(normed);
            let wanted = decoder.node("wanted", GatherRows, &[normed, third])?;
            let head = decoder.output_matrix(table)?;
            decoder.logits(head, wanted)?
        }
        true => {
            // Other rows are dropped before the head.
            let wanted = decoder.node("wanted", GatherRows, &[hidden, third])?;
            let normed = decoder.last_norm(wanted)?;
            let head = decoder.output_matrix(table)?;
            decoder.logits(head, normed)?
        }
        false => {
            let normed = decoder.last_norm(hidden)?;
            inputs.push(normed);
            normed
        }
    };
    let features = features.iter().map(|layer| inputs[*layer]);
    let mut outputs: Vec<TensorId> = std::iter::once(result).chain(features).collect();
    for windowed in caches {
        outputs.extend(decoder.last_keys_and_values(*windowed)?);
    }
    Ok(decoder.graph.finish(&outputs)?)
}

pub(super) struct TransformerBuilder<'a> {
    pub(super) spec: &'a TransformerSpec,
    pub(super) weights: Weights<'a>,
    pub(super) graph: GraphBuilder,
    pub(super) step: Dim,
    pub(super) position: TensorId,
    pub(super) attend: AttentionBuilder,
    /// Built on first use, after the weights have confirmed the head size.
    pub(super) tables: Vec<Option<TensorId>>,
    /// The cache of each layer.
    pub(super) cache_ids: Vec<u32>,
    /// Keys and values of the layers so far.
    pub(super) stored: Vec<[TensorId; 2]>,
    /// Keys and values that are inputs of the graph, by cache.
    pub(super) given: Vec<[TensorId; 2]>,
    /// Vectors of one repeated value, by length and value.
    pub(super) filled: Vec<(usize, f32, TensorId)>,
}

/// Inputs of a step that every graph has.
pub(super) struct StepInputs {
    /// Number of tokens.
    pub(super) step: Dim,
    pub(super) position: TensorId,
    /// Rows whose logits are wanted; with an uncached context, the text of each token.
    pub(super) third: TensorId,
}

impl<'a> TransformerBuilder<'a> {
    /// A builder for a checked spec.
    pub(super) fn new(
        spec: &'a TransformerSpec,
        lookup: &'a dyn Fn(&str) -> Option<Weight>,
        graph: GraphBuilder,
        StepInputs {
            step,
            position,
            third,
        }: StepInputs,
    ) -> TransformerBuilder<'a> {
        TransformerBuilder {
            spec,
            weights: Weights::new(lookup),
            graph,
            step,
            position,
            attend: AttentionBuilder::new(spec.context, position, third),
            tables: vec![None; spec.ropes.len()],
            cache_ids: spec.cache_ids(),
            stored: vec![],
            given: vec![],
            filled: vec![],
        }
    }

    /// The keys and the values of the last layer that has some of its own, and a window or none: `[T, heads · dim]` each.
    fn last_keys_and_values(&mut self, windowed: bool) -> Result<[TensorId; 2], ImportError> {
        let wanted = |layer: &LayerSpec| {
            let attention = layer.attention().filter(|_| layer.owns_kv());
            attention.is_some_and(|a| a.window.is_some() == windowed && a.latent.is_none())
        };
        let plain = self.spec.layers.iter().all(|l| l.attention().is_some());
        let last = self.spec.layers.iter().rposition(wanted);
        let Some(last) = last.filter(|_| plain) else {
            let which = if windowed { "with" } else { "without" };
            let reason =
                format!("attends to those of layers {which} a window, and the model has none");
            return Err(ImportError::value("the draft head", reason));
        };
        let [k, v] = self.stored[last];
        let mut flat = |name: &str, x: TensorId| {
            let width = self.graph.ty(x).shape[1..].iter();
            let width: usize = width.filter_map(|dim| dim.as_const()).product();
            let shape = vec![self.step, width.into()];
            self.node(&format!("blk.{last}.{name}.rows"), Reshape { shape }, &[x])
        };
        Ok([flat("attn_k", k)?, flat("attn_v", v)?])
    }

    /// The embedding table and the tokens' rows, scaled and with position embeddings added if the model has them.
    fn embed(&mut self, tokens: TensorId) -> Result<(TensorId, TensorId), ImportError> {
        let spec = self.spec;
        let table = self.embedding_table()?;
        let mut hidden = self.node("token_embd", GatherRows, &[table, tokens])?;
        if let Some(factor) = spec.embedding_scale {
            hidden = self.node("token_embd.scaled", Scale { factor }, &[hidden])?;
        }
        if let Some(count) = spec.learned_positions {
            let name = "position_embd.weight";
            let weight = self.weights.required(name)?;
            let shape = [count, spec.hidden_size];
            let table = weights::matrix(&mut self.graph, name, weight, shape)?;
            let places = self.node("position_embd", GatherRows, &[table, self.position])?;
            hidden = self.add("embedding", hidden, places)?;
        }
        if spec.embedding_norm {
            if let Some(types) = self.weights.optional("token_types.weight") {
                let first = self.first_row("token_types.weight", types)?;
                hidden = self.add("token_types", hidden, first)?;
            }
            hidden = self.norm("token_embd_norm", hidden)?;
        }
        Ok((table, hidden))
    }

    /// The embedding table.
    pub(super) fn embedding_table(&mut self) -> Result<TensorId, ImportError> {
        let name = "token_embd.weight";
        let table = self.optional_vocabulary_matrix(name)?;
        table.ok_or_else(|| ImportError::missing_tensor(name))
    }

    /// A matrix with a row for each token, if the model has one of this name.
    pub(super) fn optional_vocabulary_matrix(
        &mut self,
        name: &str,
    ) -> Result<Option<TensorId>, ImportError> {
        let Some(weight) = self.weights.optional(name) else {
            return Ok(None);
        };
        let shape = [self.spec.vocab_size, self.spec.hidden_size];
        weights::matrix(&mut self.graph, name, weight, shape).map(Some)
    }

    /// The first row of a table; a vector counts as a table of one row.
    fn first_row(&mut self, name: &str, table: Weight) -> Result<TensorId, ImportError> {
        let row = match table.shape[..] {
            [rows, width] => Weight {
                shape: vec![width],
                ..Weights::part(name, &table, 0, 1, rows)?
            },
            _ => table,
        };
        self.vector(name, &row, self.spec.hidden_size)
    }

    fn layer(
        &mut self,
        index: usize,
        layer: &LayerSpec,
        hidden: TensorId,
    ) -> Result<TensorId, ImportError> {
        let prefix = format!("blk.{index}.");
        if self.spec.norm_places == NormPlacement::Parallel {
            return self.parallel_layer(&prefix, index, layer, hidden);
        }
        let hidden = self.mixing_half(&prefix, index, layer, hidden)?;
        self.feed_forward_half(&prefix, layer, hidden)
    }

    /// The part of a layer that mixes tokens, with its residual connection.
    pub(super) fn mixing_half(
        &mut self,
        prefix: &str,
        index: usize,
        layer: &LayerSpec,
        hidden: TensorId,
    ) -> Result<TensorId, ImportError> {
        let names = ["attn_norm", "post_attention_norm", "attn_output_norm"];
        match layer.mixer {
            Mixer::Nothing => Ok(hidden),
            _ => self.residual(prefix, "attn_residual", names, hidden, |this, x| {
                this.mix(prefix, index, layer, x)
            }),
        }
    }

    /// The feed-forward part of a layer, with its residual connection.
    pub(super) fn feed_forward_half(
        &mut self,
        prefix: &str,
        layer: &LayerSpec,
        hidden: TensorId,
    ) -> Result<TensorId, ImportError> {
        if layer.mlp_size == 0 && layer.experts.is_none() {
            return Ok(hidden);
        }
        // Some files name the norm before the feed-forward block by where it stands.
        let has = |name: &str| self.weights.optional(&format!("{prefix}{name}.weight"));
        let named_after = self.spec.norm_places == NormPlacement::Pre
            && has("ffn_norm").is_none()
            && has("post_attention_norm").is_some();
        let ffn_norm = match layer.mixer {
            Mixer::Nothing => "attn_norm",
            _ if named_after => "post_attention_norm",
            _ => "ffn_norm",
        };
        let names = [ffn_norm, "post_ffw_norm", "layer_output_norm"];
        self.residual(prefix, "ffn_residual", names, hidden, |this, x| {
            this.feed_forward(prefix, layer, hidden, x)
        })
    }

    /// The block of a layer that mixes tokens.
    fn mix(
        &mut self,
        prefix: &str,
        index: usize,
        layer: &LayerSpec,
        x: TensorId,
    ) -> Result<TensorId, ImportError> {
        match &layer.mixer {
            Mixer::Attention(attention) => self.attention(prefix, index, (layer, attention), x),
            Mixer::ShortConv { taps } => self.short_conv(prefix, index, *taps, x),
            Mixer::Scan(scan) => self.scan(prefix, index, scan, x),
            Mixer::Nothing => Ok(x),
        }
    }

    /// A layer whose two blocks have the same input.
    fn parallel_layer(
        &mut self,
        prefix: &str,
        index: usize,
        layer: &LayerSpec,
        hidden: TensorId,
    ) -> Result<TensorId, ImportError> {
        let normed = self.norm(&format!("{prefix}attn_norm"), hidden)?;
        let own = format!("{prefix}attn_norm_2");
        let attention_input = match self.weights.optional(&format!("{own}.weight")) {
            Some(_) => self.norm(&own, hidden)?,
            None => normed,
        };
        let attended = self.mix(prefix, index, layer, attention_input)?;
        let attended = self.scale_residual(&format!("{prefix}attn_residual.scaled"), attended)?;
        let sum = self.add(&format!("{prefix}attn_residual"), hidden, attended)?;
        let mixed = self.feed_forward(prefix, layer, hidden, normed)?;
        let mixed = self.scale_residual(&format!("{prefix}ffn_residual.scaled"), mixed)?;
        self.add(&format!("{prefix}ffn_residual"), sum, mixed)
    }

    /// A block's output times the model's factor on it, if there is one.
    fn scale_residual(&mut self, name: &str, x: TensorId) -> Result<TensorId, ImportError> {
        match self.spec.residual_scale {
            Some(factor) => self.node(name, Scale { factor }, &[x]),
            None => Ok(x),
        }
    }

    /// Adds a block's residual connection, with norms before the block, after it or after the sum.
    fn residual(
        &mut self,
        prefix: &str,
        name: &str,
        [before, after, behind]: [&str; 3],
        hidden: TensorId,
        block: impl FnOnce(&mut Self, TensorId) -> Result<TensorId, ImportError>,
    ) -> Result<TensorId, ImportError> {
        let places = self.spec.norm_places;
        let x = match places {
            NormPlacement::Post | NormPlacement::Output => hidden,
            _ => self.norm(&format!("{prefix}{before}"), hidden)?,
        };
        let mut mixed = block(self, x)?;
        if matches!(places, NormPlacement::Sandwich | NormPlacement::Output) {
            mixed = self.norm(&format!("{prefix}{after}"), mixed)?;
        }
        let mixed = self.scale_residual(&format!("{prefix}{name}.scaled"), mixed)?;
        let sum = self.add(&format!("{prefix}{name}"), hidden, mixed)?;
        match places {
            NormPlacement::Post => self.norm(&format!("{prefix}{behind}"), sum),
            _ => Ok(sum),
        }
    }

    /// Multiplies a layer's output by the file's number for it, if there is one.
    pub(super) fn scale_layer(
        &mut self,
        index: usize,
        hidden: TensorId,
    ) -> Result<TensorId, ImportError> {
        let name = format!("blk.{index}.layer_output_scale");
        let weight_name = format!("{name}.weight");
        let Some(weight) = self.weights.optional(&weight_name) else {
            return Ok(hidden);
        };
        match weights::scalar(&weight_name, &weight)? {
            Some(factor) => self.node(&name, Scale { factor }, &[hidden]),
            None => Ok(hidden),
        }
    }

    pub(super) fn mlp(
        &mut self,
        prefix: &str,
        size: usize,
        normed: TensorId,
    ) -> Result<TensorId, ImportError> {
        let bias = self.spec.biases.mlp;
        let inner = match self.spec.mlp {
            Mlp::Plain(function) | Mlp::PlainSquared(function) => {
                let up = self.projection(&format!("{prefix}ffn_up"), size)?;
                let up = self.linear(up, normed, bias)?;
                let function = function.into();
                let inner = self.node(&format!("{prefix}ffn_act"), Unary { function }, &[up])?;
                match self.spec.mlp {
                    Mlp::PlainSquared(_) => self.squared(&format!("{prefix}ffn_act"), inner)?,
                    _ => inner,
                }
            }
            Mlp::Gated(function) => {
                let parts = [("ffn_gate", size), ("ffn_up", size)];
                let [gate, up] = self.projections(prefix, "ffn_up", parts)?;
                let gate = self.linear(gate, normed, bias)?;
                let up = self.linear(up, normed, bias)?;
                self.node(&format!("{prefix}ffn_act"), Gated { function }, &[gate, up])?
            }
        };
        let down = self.projection(&format!("{prefix}ffn_down"), self.spec.hidden_size)?;
        self.linear(down, inner, bias)
    }

    /// The square of each element.
    pub(super) fn squared(&mut self, name: &str, x: TensorId) -> Result<TensorId, ImportError> {
        let function = BinaryFunction::Mul;
        self.node(&format!("{name}.squared"), Binary { function }, &[x, x])
    }

    /// The final norm; models that normalise residual sums have none.
    fn last_norm(&mut self, hidden: TensorId) -> Result<TensorId, ImportError> {
        match self.spec.norm_places {
            NormPlacement::Post => Ok(hidden),
            // LFM2 names it after the embedding.
            _ if self.weights.optional("output_norm.weight").is_none()
                && self.weights.optional("token_embd_norm.weight").is_some() =>
            {
                self.norm("token_embd_norm", hidden)
            }
            _ => self.norm("output_norm", hidden),
        }
    }

    /// The matrix of the head: the embedding table in models without one of its own.
    fn output_matrix(&mut self, table: TensorId) -> Result<TensorId, ImportError> {
        let own = self.optional_vocabulary_matrix("output.weight")?;
        Ok(own.unwrap_or(table))
    }

    /// Logits of normalised rows by the matrix of a head.
    pub(super) fn logits(
        &mut self,
        weight: TensorId,
        normed: TensorId,
    ) -> Result<TensorId, ImportError> {
        let mut operands = vec![normed, weight];
        if let Some(bias) = self.weights.optional("output.bias") {
            operands.push(self.vector("output.bias", &bias, self.spec.vocab_size)?);
        }
        let (scale, cap) = (self.spec.logit_scale, self.spec.final_softcap);
        let plain = scale.is_none() && cap.is_none();
        let name = if plain { "logits" } else { "output" };
        let mut logits = self.node(name, Linear::default(), &operands)?;
        if let Some(factor) = scale {
            let name = if cap.is_none() {
                "logits"
            } else {
                "output.scaled"
            };
            logits = self.node(name, Scale { factor }, &[logits])?;
        }
        match cap {
            Some(cap) => self.node("logits", SoftCap { cap }, &[logits]),
            None => Ok(logits),
        }
    }

    pub(super) fn norm(&mut self, name: &str, x: TensorId) -> Result<TensorId, ImportError> {
        let width = self.spec.hidden_size;
        let eps = self.spec.norm.eps;
        match self.spec.norm.kind {
            NormKind::Rms => self.rms_norm(name, x, width),
            kind => {
                let weight = self.named_vector(&format!("{name}.weight"), width)?;
                let bias = match kind {
                    NormKind::LayerUnbiased => self.filled(width, 0.0)?,
                    _ => self.named_vector(&format!("{name}.bias"), width)?,
                };
                self.node(name, LayerNorm { eps }, &[x, weight, bias])
            }
        }
    }

    pub(super) fn rms_norm(
        &mut self,
        name: &str,
        x: TensorId,
        width: usize,
    ) -> Result<TensorId, ImportError> {
        let eps = self.spec.norm.eps;
        let weight = self.named_vector(&format!("{name}.weight"), width)?;
        self.node(name, RmsNorm { eps }, &[x, weight])
    }

    pub(super) fn add(
        &mut self,
        name: &str,
        a: TensorId,
        b: TensorId,
    ) -> Result<TensorId, ImportError> {
        let function = BinaryFunction::Add;
        self.node(name, Binary { function }, &[a, b])
    }

    pub(super) fn named_vector(&mut self, name: &str, len: usize) -> Result<TensorId, ImportError> {
        let weight = self.weights.required(name)?;
        self.vector(name, &weight, len)
    }

    pub(super) fn vector(
        &mut self,
        name: &str,
        weight: &Weight,
        len: usize,
    ) -> Result<TensorId, ImportError> {
        weights::vector(&mut self.graph, name, weight, len)
    }

    pub(super) fn node(
        &mut self,
        name: &str,
        op: impl Into<Op>,
        inputs: &[TensorId],
    ) -> Result<TensorId, ImportError> {
        Ok(self.graph.node(name, op, inputs)?)
    }
}
