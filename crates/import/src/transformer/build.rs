//! Builds the graph of a transformer from its spec and weights.

use base::{Bytes, DType};
use graph::ops::{
    Binary, BinaryFunction, Gated, GatherRows, LayerNorm, Linear, Op, Reshape, RmsNorm, Rope,
    RopeTable, Scale, SoftCap, Unary,
};
use graph::{Dim, Graph, GraphBuilder, TensorId};

use super::attention::{AttentionBuilder, TokenMajorQkv};
use super::weights::{self, Weights};
use super::{
    AttentionSpec, KvSource, LayerSpec, Mlp, NormKind, NormPlacement, RopeScaling, TransformerSpec,
    Weight,
};
use crate::error::ImportError;

/// Builds the graph `forward`; `lookup` returns the weight with a name, if the model has it.
///
/// Fused tensors (`attn_qkv`, and `ffn_up` holding gate and up) are split by rows without copying; norm weights and
/// biases become f32, all other weights stay as stored.
pub fn build(
    spec: &TransformerSpec,
    lookup: &dyn Fn(&str) -> Option<Weight>,
) -> Result<Graph, ImportError> {
    build_with_features(spec, &[], lookup)
}

/// Like [`build`]; the graph also returns the input of each of these layers, `f32[T, width]` each, after its other output.
pub fn build_with_features(
    spec: &TransformerSpec,
    features: &[usize],
    lookup: &dyn Fn(&str) -> Option<Weight>,
) -> Result<Graph, ImportError> {
    check(spec)?;
    if let Some(layer) = features.iter().find(|layer| **layer >= spec.layers.len()) {
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
        true => decoder.head(table, hidden, third)?,
        false => decoder.last_norm(hidden)?,
    };
    let features = features.iter().map(|layer| inputs[*layer]);
    let outputs: Vec<TensorId> = std::iter::once(result).chain(features).collect();
    Ok(decoder.graph.finish(&outputs)?)
}

/// Checks the numbers of a spec that the builder indexes with or divides by.
pub(super) fn check(spec: &TransformerSpec) -> Result<(), ImportError> {
    for rope in &spec.ropes {
        let pairs = rope.dim / 2;
        let factors = match &rope.scaling {
            RopeScaling::Divided { factors } | RopeScaling::Stretched { factors } => factors.len(),
            _ => pairs,
        };
        if rope.dim == 0 || !rope.dim.is_multiple_of(2) || factors != pairs {
            let reason = format!(
                "rotates {} elements with {factors} factors; must be even, with one factor a pair",
                rope.dim
            );
            return Err(ImportError::value("the rotary embedding", reason));
        }
    }
    for (i, layer) in spec.layers.iter().enumerate() {
        let what = || format!("layer {i}");
        if layer.rope.is_some_and(|rope| rope >= spec.ropes.len()) {
            return Err(ImportError::value(what(), "has no such rotary embedding"));
        }
        let attention = &layer.attention;
        let dim = attention.key_dim.max(attention.value_dim);
        let (heads, kv_heads) = (attention.heads, attention.kv_heads);
        // Leaves headroom for sums of a few products.
        let countable = |n: usize| n <= isize::MAX as usize / 4;
        let widths = [heads.checked_mul(dim), kv_heads.checked_mul(dim)];
        let fits = widths.iter().all(|width| width.is_some_and(countable));
        if !fits || !countable(layer.mlp_size) {
            let reason = format!(
                "cannot have {heads} and {kv_heads} heads of {dim}, and a width of {}",
                layer.mlp_size
            );
            return Err(ImportError::value(what(), reason));
        }
        if layer.kv == KvSource::KeysAsValues && attention.key_dim != attention.value_dim {
            let reason = format!(
                "has values of {} for keys of {}, and one projection",
                attention.value_dim, attention.key_dim
            );
            return Err(ImportError::value(what(), reason));
        }
        if let KvSource::Layer(source) = layer.kv {
            let owner = spec.layers[..i].get(source).filter(|l| l.owns_kv());
            let sizes = |a: &AttentionSpec| (a.kv_heads, a.key_dim, a.value_dim, a.window);
            if owner.is_none_or(|owner| sizes(&owner.attention) != sizes(attention)) {
                let reason = format!("cannot share the keys and values of layer {source}");
                return Err(ImportError::value(what(), reason));
            }
        }
    }
    let width = spec.per_layer_input.unwrap_or(0);
    if width
        .checked_mul(spec.layers.len().max(1))
        .is_none_or(|all| all > i32::MAX as usize)
    {
        let reason = format!("cannot have a width of {width}");
        return Err(ImportError::value("the per-layer input", reason));
    }
    Ok(())
}

pub(super) struct TransformerBuilder<'a> {
    pub(super) spec: &'a TransformerSpec,
    pub(super) weights: Weights<'a>,
    pub(super) graph: GraphBuilder,
    pub(super) step: Dim,
    position: TensorId,
    attend: AttentionBuilder,
    /// Built on first use, after the weights have confirmed the head size.
    tables: Vec<Option<TensorId>>,
    /// The cache of each layer.
    cache_ids: Vec<u32>,
    /// Keys and values of the layers so far.
    stored: Vec<[TensorId; 2]>,
    /// Vectors of ones, by their length.
    ones: Vec<(usize, TensorId)>,
}

/// Inputs of a step that every graph has.
pub(super) struct StepInputs {
    /// Number of tokens.
    pub(super) step: Dim,
    pub(super) position: TensorId,
    /// Rows whose logits are wanted; with an uncached context, the text of each token.
    pub(super) third: TensorId,
}

/// A matrix with an optional bias, not yet in the graph.
pub(super) struct Projection {
    name: String,
    rows: usize,
    weight: Weight,
    bias: Option<Weight>,
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
            ones: vec![],
        }
    }

    /// The table of a rotary embedding, one for all layers that share it.
    fn rope_table(&mut self, index: usize) -> Result<TensorId, ImportError> {
        if let Some(table) = self.tables[index] {
            return Ok(table);
        }
        let rope = &self.spec.ropes[index];
        let name = match index {
            0 => "rope".to_owned(),
            index => format!("rope.{index}"),
        };
        let frequencies = rope.frequencies();
        if !frequencies.iter().all(|f| f.is_finite()) {
            let reason = "has frequencies that are not finite";
            return Err(ImportError::value("the rotary embedding", reason));
        }
        let frequency = self.graph.constant(
            &format!("{name}.frequency"),
            DType::F32,
            &[frequencies.len()],
            Bytes::from_slice(&frequencies),
        )?;
        let magnitude = rope.magnitude();
        let table = self.node(&name, RopeTable { magnitude }, &[self.position, frequency])?;
        self.tables[index] = Some(table);
        Ok(table)
    }

    /// The embedding table and the tokens' rows, scaled and with position embeddings added if the model has them.
    fn embed(&mut self, tokens: TensorId) -> Result<(TensorId, TensorId), ImportError> {
        let spec = self.spec;
        let name = "token_embd.weight";
        let weight = self.weights.required(name)?;
        let shape = [spec.vocab_size, spec.hidden_size];
        let table = weights::matrix(&mut self.graph, name, weight, shape)?;
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
        let names = ["attn_norm", "post_attention_norm", "attn_output_norm"];
        let hidden = self.residual(&prefix, "attn_residual", names, hidden, |this, x| {
            this.attention(&prefix, index, layer, x)
        })?;
        let names = ["ffn_norm", "post_ffw_norm", "layer_output_norm"];
        self.residual(&prefix, "ffn_residual", names, hidden, |this, x| {
            this.mlp(&prefix, layer.mlp_size, x)
        })
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
            NormPlacement::Post => hidden,
            _ => self.norm(&format!("{prefix}{before}"), hidden)?,
        };
        let mut mixed = block(self, x)?;
        if places == NormPlacement::Sandwich {
            mixed = self.norm(&format!("{prefix}{after}"), mixed)?;
        }
        let sum = self.add(&format!("{prefix}{name}"), hidden, mixed)?;
        match places {
            NormPlacement::Post => self.norm(&format!("{prefix}{behind}"), sum),
            _ => Ok(sum),
        }
    }

    pub(super) fn attention(
        &mut self,
        prefix: &str,
        index: usize,
        layer: &LayerSpec,
        normed: TensorId,
    ) -> Result<TensorId, ImportError> {
        let spec = &layer.attention;
        let (q_rows, k_rows) = (spec.heads * spec.key_dim, spec.kv_heads * spec.key_dim);
        let v_rows = spec.kv_heads * spec.value_dim;
        let parts = [("attn_q", q_rows), ("attn_k", k_rows), ("attn_v", v_rows)];
        let projections: Vec<Projection> = match layer.kv {
            KvSource::Projected => self.projections(prefix, "attn_qkv", parts)?.into(),
            KvSource::KeysAsValues => vec![
                self.projection(&format!("{prefix}attn_q"), q_rows)?,
                self.projection(&format!("{prefix}attn_k"), k_rows)?,
            ],
            KvSource::Layer(_) => vec![self.projection(&format!("{prefix}attn_q"), q_rows)?],
        };

        // Consecutive products of the same rows are fused by the backend.
        let bias = self.spec.biases.qkv;
        let mut projected = Vec::with_capacity(projections.len());
        for projection in projections {
            projected.push(self.linear(projection, normed, bias)?);
        }
        let q = [spec.heads, spec.key_dim];
        let q = self.rotated(prefix, "attn_q", projected[0], q, layer.rope)?;
        let [k, v] = match layer.kv {
            KvSource::Layer(source) => self.stored[source],
            _ => {
                let (k, v) = (projected[1], *projected.last().expect("keys and values"));
                let shape = [spec.kv_heads, spec.key_dim];
                let k = self.rotated(prefix, "attn_k", k, shape, layer.rope)?;
                let mut v = self.heads(prefix, "attn_v", v, [spec.kv_heads, spec.value_dim])?;
                if self.spec.value_norm {
                    let ones = self.ones(spec.value_dim)?;
                    let eps = self.spec.norm.eps;
                    v = self.node(&format!("{prefix}attn_v_norm"), RmsNorm { eps }, &[v, ones])?;
                }
                [k, v]
            }
        };
        self.stored.push([k, v]);

        let heads = TokenMajorQkv { q, k, v };
        let name = format!("{prefix}attn");
        let cache = self.cache_ids[index];
        let attended = self
            .attend
            .node(&mut self.graph, &name, cache, spec, heads)?;
        let width = spec.heads * spec.value_dim;
        let shape = vec![self.step, width.into()];
        let name = format!("{prefix}attn.joined");
        let joined = self.node(&name, Reshape { shape }, &[attended])?;
        let output = self.projection(&format!("{prefix}attn_output"), self.spec.hidden_size)?;
        self.linear(output, joined, self.spec.biases.output)
    }

    /// A vector of ones.
    fn ones(&mut self, len: usize) -> Result<TensorId, ImportError> {
        if let Some((_, ones)) = self.ones.iter().find(|(known, _)| *known == len) {
            return Ok(*ones);
        }
        let data = Bytes::from_slice(&vec![1f32; len]);
        let ones = self
            .graph
            .constant(&format!("ones.{len}"), DType::F32, &[len], data)?;
        self.ones.push((len, ones));
        Ok(ones)
    }

    /// Multiplies a layer's output by the file's number for it, if there is one.
    fn scale_layer(&mut self, index: usize, hidden: TensorId) -> Result<TensorId, ImportError> {
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

    /// Queries or keys by head, normalised and rotated if the model does so.
    fn rotated(
        &mut self,
        prefix: &str,
        name: &str,
        x: TensorId,
        shape: [usize; 2],
        rope: Option<usize>,
    ) -> Result<TensorId, ImportError> {
        let mut x = self.heads(prefix, name, x, shape)?;
        if self.spec.qk_norm {
            let name = format!("{prefix}{name}_norm");
            x = self.rms_norm(&name, x, shape[1])?;
        }
        if let Some(rope) = rope {
            let layout = self.spec.ropes[rope].layout;
            let table = self.rope_table(rope)?;
            x = self.node(
                &format!("{prefix}{name}.rotated"),
                Rope { layout },
                &[x, table],
            )?;
        }
        Ok(x)
    }

    fn heads(
        &mut self,
        prefix: &str,
        name: &str,
        x: TensorId,
        [heads, dim]: [usize; 2],
    ) -> Result<TensorId, ImportError> {
        let shape = vec![self.step, heads.into(), dim.into()];
        self.node(&format!("{prefix}{name}.heads"), Reshape { shape }, &[x])
    }

    pub(super) fn mlp(
        &mut self,
        prefix: &str,
        size: usize,
        normed: TensorId,
    ) -> Result<TensorId, ImportError> {
        let bias = self.spec.biases.mlp;
        let inner = match self.spec.mlp {
            Mlp::Plain(function) => {
                let up = self.projection(&format!("{prefix}ffn_up"), size)?;
                let up = self.linear(up, normed, bias)?;
                let function = function.into();
                self.node(&format!("{prefix}ffn_act"), Unary { function }, &[up])?
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

    /// The final norm; models that normalise residual sums have none.
    fn last_norm(&mut self, hidden: TensorId) -> Result<TensorId, ImportError> {
        match self.spec.norm_places {
            NormPlacement::Post => Ok(hidden),
            _ => self.norm("output_norm", hidden),
        }
    }

    /// Logits of the selected rows; other rows are dropped before the head.
    fn head(
        &mut self,
        table: TensorId,
        hidden: TensorId,
        rows: TensorId,
    ) -> Result<TensorId, ImportError> {
        let wanted = self.node("wanted", GatherRows, &[hidden, rows])?;
        let normed = self.last_norm(wanted)?;
        let name = "output.weight";
        let weight = match self.weights.optional(name) {
            Some(weight) => {
                let shape = [self.spec.vocab_size, self.spec.hidden_size];
                weights::matrix(&mut self.graph, name, weight, shape)?
            }
            None => table,
        };
        let mut operands = vec![normed, weight];
        if let Some(bias) = self.weights.optional("output.bias") {
            operands.push(self.vector("output.bias", &bias, self.spec.vocab_size)?);
        }
        match self.spec.final_softcap {
            None => self.node("logits", Linear::default(), &operands),
            Some(cap) => {
                let logits = self.node("output", Linear::default(), &operands)?;
                self.node("logits", SoftCap { cap }, &[logits])
            }
        }
    }

    /// The named projections: separate tensors, or parts of `fused`, which contains them in this order.
    fn projections<const N: usize>(
        &self,
        prefix: &str,
        fused: &str,
        parts: [(&str, usize); N],
    ) -> Result<[Projection; N], ImportError> {
        let all = parts.iter().map(|(_, rows)| rows).sum();
        let first = format!("{prefix}{}.weight", parts[0].0);
        let name = format!("{prefix}{fused}.weight");
        let own_name = parts.iter().all(|(part, _)| *part != fused);
        let whole = self.weights.optional(&name).filter(|weight| {
            let holds_all = own_name || weight.shape.first() == Some(&all);
            holds_all && self.weights.optional(&first).is_none()
        });
        let bias_name = format!("{prefix}{fused}.bias");
        let bias = whole
            .as_ref()
            .and_then(|_| self.weights.optional(&bias_name));

        let mut start = 0;
        let mut result = Vec::with_capacity(N);
        for (part, rows) in parts {
            let part = format!("{prefix}{part}");
            result.push(match &whole {
                None => self.projection(&part, rows)?,
                Some(weight) => {
                    let cut = |name: &str, whole| Weights::part(name, whole, start, rows, all);
                    Projection {
                        name: part,
                        rows,
                        weight: cut(&name, weight)?,
                        bias: bias.as_ref().map(|b| cut(&bias_name, b)).transpose()?,
                    }
                }
            });
            start += rows;
        }
        let result = result.try_into();
        Ok(result.unwrap_or_else(|_| unreachable!("one projection a part")))
    }

    pub(super) fn projection(&self, name: &str, rows: usize) -> Result<Projection, ImportError> {
        Ok(Projection {
            name: name.to_owned(),
            rows,
            weight: self.weights.required(&format!("{name}.weight"))?,
            bias: self.weights.optional(&format!("{name}.bias")),
        })
    }

    pub(super) fn linear(
        &mut self,
        projection: Projection,
        x: TensorId,
        bias_needed: bool,
    ) -> Result<TensorId, ImportError> {
        let name = projection.name;
        let depth = self.graph.ty(x).shape.last().and_then(Dim::as_const);
        let shape = [
            projection.rows,
            depth.expect("activations have a known width"),
        ];
        let weight = weights::matrix(
            &mut self.graph,
            &format!("{name}.weight"),
            projection.weight,
            shape,
        )?;
        let mut operands = vec![x, weight];
        let bias_name = format!("{name}.bias");
        match projection.bias {
            Some(bias) => operands.push(self.vector(&bias_name, &bias, projection.rows)?),
            None if bias_needed => return Err(ImportError::missing_tensor(&bias_name)),
            None => {}
        }
        self.node(&name, Linear::default(), &operands)
    }

    pub(super) fn norm(&mut self, name: &str, x: TensorId) -> Result<TensorId, ImportError> {
        let width = self.spec.hidden_size;
        let eps = self.spec.norm.eps;
        match self.spec.norm.kind {
            NormKind::Rms => self.rms_norm(name, x, width),
            NormKind::Layer => {
                let weight = self.named_vector(&format!("{name}.weight"), width)?;
                let bias = self.named_vector(&format!("{name}.bias"), width)?;
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

    fn named_vector(&mut self, name: &str, len: usize) -> Result<TensorId, ImportError> {
        let weight = self.weights.required(name)?;
        self.vector(name, &weight, len)
    }

    fn vector(&mut self, name: &str, weight: &Weight, len: usize) -> Result<TensorId, ImportError> {
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
