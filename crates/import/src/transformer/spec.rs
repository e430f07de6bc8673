//! Description of a transformer as plain data.

use super::RopeSpec;
use graph::ops::{Activation, ExpertGate, ExpertGroups, ExpertScores, HeadSharing};

/// A stack of layers of any architecture: embedding, layers, final norm and head.
///
/// [`LayerSpec`] has what differs between layers. The head is `output.weight`, or the token embedding if the model has
/// none; a model with an uncached context has no head.
#[derive(Clone, Debug, PartialEq)]
pub struct TransformerSpec {
    /// Rows of the embedding and of the head.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Factor on the token embedding.
    pub embedding_scale: Option<f32>,
    /// Rows of the learned position embedding, for models that add one to the token embedding.
    pub learned_positions: Option<usize>,
    /// Whether embeddings are normalised before the first layer, after token-type embeddings are added if there are any.
    pub embedding_norm: bool,
    /// Whether attention runs over KV caches or only within the step.
    pub context: ContextMode,
    /// Every norm of the model.
    pub norm: Norm,
    /// Where the norms of a layer are.
    pub norm_places: NormPlacement,
    /// How queries and keys are normalised.
    pub qk_norm: QkNorm,
    /// Value heads are RMS-normalised, without a weight.
    pub value_norm: bool,
    /// Width of the per-layer inputs, for models whose layers have an embedding of each token of their own.
    pub per_layer_input: Option<usize>,
    /// Every query head has a sink, which takes a part of its attention.
    pub sinks: bool,
    /// A layer's output is multiplied by `layer_output_scale`, if the file has it.
    pub layer_scales: bool,
    /// Biases that the model must have; others are used if present.
    pub biases: Biases,
    /// The feed-forward block.
    pub mlp: Mlp,
    /// Factor on the output of both blocks of a layer before it is added to the residual stream.
    pub residual_scale: Option<f32>,
    /// The distinct rotary embeddings; layers name theirs by index.
    pub ropes: Vec<RopeSpec>,
    /// Factor on logits.
    pub logit_scale: Option<f32>,
    /// Soft cap on logits.
    pub final_softcap: Option<f32>,
    /// The layers, in order.
    pub layers: Vec<LayerSpec>,
}

impl TransformerSpec {
    /// Whether the model attends over KV caches and returns logits.
    pub fn decodes(&self) -> bool {
        self.context == ContextMode::Cached
    }

    /// The caches of all layers in order: one for each layer with keys and values of its own, one or two for each recurrent one;
    /// none if the context is uncached.
    pub fn caches(&self) -> Vec<kv::LayerConfig> {
        match self.decodes() {
            true => self
                .layers
                .iter()
                .flat_map(|l| self.layer_caches(l))
                .collect(),
            false => vec![],
        }
    }

    /// The caches that a layer adds.
    fn layer_caches(&self, layer: &LayerSpec) -> Vec<kv::LayerConfig> {
        match &layer.mixer {
            Mixer::Attention(attention) if layer.owns_kv() => vec![kv::LayerConfig {
                kv_heads: attention.kv_heads,
                key_dim: attention.key_dim,
                value_dim: attention.value_dim,
                window: attention.window,
                sinks: 0,
            }],
            Mixer::Attention(_) | Mixer::Nothing => vec![],
            Mixer::ShortConv { taps } => vec![conv_state(*taps, self.hidden_size)],
            Mixer::Scan(scan) => scan.states().to_vec(),
        }
    }

    /// The first cache of each layer; that of its source for a layer without keys and values of its own.
    pub(super) fn cache_ids(&self) -> Vec<u32> {
        let mut ids = Vec::with_capacity(self.layers.len());
        let mut next = 0;
        for layer in &self.layers {
            ids.push(match layer.kv {
                KvSource::Layer(source) => ids[source],
                KvSource::Given(cache) => cache as u32,
                _ => next,
            });
            next += self.layer_caches(layer).len() as u32;
        }
        ids
    }
}

/// The state of a causal convolution.
fn conv_state(taps: usize, channels: usize) -> kv::LayerConfig {
    kv::LayerConfig::state(1, taps.saturating_sub(1) * channels)
}

/// Whether attention runs over KV caches or only within the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContextMode {
    /// Causal attention over KV caches; the result is logits.
    Cached,
    /// Attention within each text of the step, without caches; the result is hidden states.
    Uncached {
        /// Whether attention is causal.
        causal: bool,
    },
}

/// Parameters of one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    /// The block that mixes tokens.
    pub mixer: Mixer,
    /// Index into [`TransformerSpec::ropes`], for attention that rotates.
    pub rope: Option<usize>,
    /// Width of the feed-forward block; 0 without one.
    pub mlp_size: usize,
    /// Routed experts in the place of a dense feed-forward block.
    pub experts: Option<ExpertsSpec>,
    /// Where keys and values of attention come from.
    pub kv: KvSource,
}

impl LayerSpec {
    /// Whether attention computes keys and values, and so has a cache.
    pub fn owns_kv(&self) -> bool {
        !matches!(self.kv, KvSource::Layer(_) | KvSource::Given(_))
    }

    /// The attention of the layer, if that is its mixer.
    pub fn attention(&self) -> Option<&AttentionSpec> {
        match &self.mixer {
            Mixer::Attention(attention) => Some(attention),
            _ => None,
        }
    }
}

/// The block of a layer that mixes tokens: attention or a recurrent one.
#[derive(Clone, Debug, PartialEq)]
pub enum Mixer {
    /// Attention over keys and values.
    Attention(AttentionSpec),
    /// A gated causal convolution of this many taps over the width of the residual stream.
    ShortConv {
        /// Tokens that a result depends on.
        taps: usize,
    },
    /// A causal convolution, and a scan over a state.
    Scan(ScanSpec),
    /// Nothing: the layer is a feed-forward block.
    Nothing,
}

/// A causal convolution, and a scan over one matrix a head.
#[derive(Clone, Debug, PartialEq)]
pub struct ScanSpec {
    /// How the state is updated, and what stands around it.
    pub rule: ScanRule,
    /// Tokens that a result of the convolution depends on.
    pub taps: usize,
    /// Heads of keys and queries (the groups of Mamba-2).
    pub groups: usize,
    /// Heads of values.
    pub heads: usize,
    /// Elements of a key and of a query, per head.
    pub key_dim: usize,
    /// Elements of a value, per head.
    pub value_dim: usize,
}

/// The two kinds of scans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanRule {
    /// Mamba-2.
    Mamba2,
    /// The gated delta rule; with which heads of values share keys.
    GatedDelta(HeadSharing),
}

impl ScanSpec {
    /// Width of all queries or keys.
    pub fn keys(&self) -> usize {
        self.groups * self.key_dim
    }

    /// Width of all values.
    pub fn values(&self) -> usize {
        self.heads * self.value_dim
    }

    /// Channels of the convolution: queries, keys and values.
    pub fn channels(&self) -> usize {
        2 * self.keys() + self.values()
    }

    fn states(&self) -> [kv::LayerConfig; 2] {
        [
            conv_state(self.taps, self.channels()),
            kv::LayerConfig::state(self.heads, self.key_dim * self.value_dim),
        ]
    }
}

/// Feed-forward blocks of which each token uses some; see [`RouteExperts`](graph::ops::RouteExperts).
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertsSpec {
    /// Number of experts.
    pub count: usize,
    /// Experts that a token uses.
    pub used: usize,
    /// Width of an expert.
    pub size: usize,
    /// Width of the expert that all tokens use.
    pub shared_size: Option<usize>,
    /// How an expert combines gate and up.
    pub gate: ExpertGate,
    /// How a token's experts are chosen.
    pub scores: ExpertScores,
    /// The weights of a token's experts are divided by their sum.
    pub normalise: bool,
    /// Factor on the weights.
    pub scale: f32,
    /// Groups that experts are chosen in.
    pub groups: Option<ExpertGroups>,
    /// The layer also has a dense feed-forward block. Both have norms of their own, and the router has the residual stream.
    pub beside_dense: bool,
}

/// Where the keys and values of a layer come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvSource {
    /// Projections of the layer's input.
    #[default]
    Projected,
    /// One projection for both: values are the keys before their norm and rotation.
    KeysAsValues,
    /// An earlier layer, whose cache is shared.
    Layer(usize),
    /// Inputs of the graph, for this cache.
    Given(usize),
}

/// The attention of one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionSpec {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Elements of a query or key, per head.
    pub key_dim: usize,
    /// Elements of a value, per head.
    pub value_dim: usize,
    /// A query sees only the last `window` positions, its own included; `None` sees all.
    pub window: Option<u32>,
    /// Factor on the scores.
    pub scale: f32,
    /// Soft cap on scores.
    pub softcap: Option<f32>,
    /// The projection of queries also has a gate for each element of the result.
    pub output_gate: bool,
    /// Keys and values are made from a latent row, which is cached in their place.
    pub latent: Option<LatentSpec>,
}

/// Attention whose keys and values are matrices of each head times one latent row of a token (MLA).
///
/// The matrices are applied to queries and to the result instead, so that all heads attend to one row: its key is the rotated part
/// and the latent row, its value is the latent row. [`AttentionSpec`] has the sizes of that row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatentSpec {
    /// Width of the latent row that queries are made from; `None` if they are projections of the layer's input.
    pub query_rank: Option<usize>,
    /// Elements of a head's query that are not rotated.
    pub plain_dim: usize,
    /// Elements of the rotated part.
    pub rotated_dim: usize,
    /// Elements of a head's value.
    pub head_value_dim: usize,
}

/// A normalisation of rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    /// Kind of the norm.
    pub kind: NormKind,
    /// Epsilon added to the mean square or variance.
    pub eps: f32,
}

/// Kind of a norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// RMS norm with a weight.
    Rms,
    /// Layer norm with a weight and a bias.
    Layer,
    /// Layer norm with a weight and without a bias.
    LayerUnbiased,
}

/// How queries and keys are normalised, before they are rotated if nothing else is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// Not at all.
    None,
    /// RMS norm of each head, with one weight for all heads.
    Head,
    /// RMS norm of each head, if the file has the weights.
    HeadIfPresent,
    /// RMS norm of each head, after the rotation.
    RotatedHead,
    /// RMS norm of all heads as one row.
    Row,
    /// Layer norm of each head, with a weight for each and without a bias, if the file has the weights.
    LayerByHead,
}

/// Where a layer normalises, for both the attention and the feed-forward block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormPlacement {
    /// The block's input.
    Pre,
    /// The block's input, and its output before the residual add.
    Sandwich,
    /// The block's output before the residual add.
    Output,
    /// The residual sum.
    Post,
    /// The layer's input, once for both blocks; both outputs are added to the layer's input. Attention has a norm of its own
    /// if the file has `attn_norm_2`.
    Parallel,
}

/// Structure of the feed-forward block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mlp {
    /// `down(activation(up(x)))`.
    Plain(Activation),
    /// `down(activation(up(x))²)`.
    PlainSquared(Activation),
    /// `down(activation(gate(x)) · up(x))`.
    Gated(Activation),
}

/// Biases that a model must have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Biases {
    /// On queries, keys and values.
    pub qkv: bool,
    /// On the result of attention.
    pub output: bool,
    /// On the feed-forward block's products.
    pub mlp: bool,
}
