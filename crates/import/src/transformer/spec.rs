//! A transformer as plain data.

use super::RopeSpec;
use graph::ops::Activation;

/// A stack of layers of any architecture: embedding, layers, final norm and head.
///
/// What depends on the layer is in [`LayerSpec`]; the rest holds for all of them. The head is `output.weight`, or the
/// token embedding where the model has none; a stack with an ephemeral context has none at all.
#[derive(Clone, Debug, PartialEq)]
pub struct TransformerSpec {
    /// Rows of the embedding and of the head.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Factor on the token embedding.
    pub embedding_scale: Option<f32>,
    /// Rows of the learned position embedding that is added to the tokens', for models that have one.
    pub learned_positions: Option<usize>,
    /// Embeddings are normalised before the first layer; those of token types, where the model has them, are added first.
    pub embedding_norm: bool,
    /// What tokens see, and whether it is kept.
    pub context: ContextMode,
    /// Every norm of the model.
    pub norm: Norm,
    /// Where the norms of a layer are.
    pub norm_places: NormPlacement,
    /// TokenMajorQkv of queries and keys are RMS-normalised before they are rotated.
    pub qk_norm: bool,
    /// Biases the model must have; others are used where it has them.
    pub biases: Biases,
    /// The feed-forward block.
    pub mlp: Mlp,
    /// The distinct rotary embeddings; layers name theirs by index.
    pub ropes: Vec<RopeSpec>,
    /// The smooth limit on logits.
    pub final_softcap: Option<f32>,
    /// The layers, in order; layer `i` has cache id `i`.
    pub layers: Vec<LayerSpec>,
}

impl TransformerSpec {
    /// Whether it keeps its context and gives logits.
    pub fn decodes(&self) -> bool {
        self.context == ContextMode::Cached
    }

    /// One cache for each layer; none where nothing is kept.
    pub fn caches(&self) -> Vec<kv::LayerConfig> {
        if !self.decodes() {
            return vec![];
        }
        let cache = |layer: &LayerSpec| kv::LayerConfig {
            kv_heads: layer.attention.kv_heads,
            key_dim: layer.attention.key_dim,
            value_dim: layer.attention.value_dim,
            window: layer.attention.window,
        };
        self.layers.iter().map(cache).collect()
    }
}

/// What tokens see, and whether it is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContextMode {
    /// Each sees itself and all before it, over caches that outlast the step; the result is logits.
    Cached,
    /// Each sees the tokens of its own text in the step, and nothing is kept; the result is hidden states.
    Uncached {
        /// Whether it sees only itself and those before it.
        causal: bool,
    },
}

/// One layer's own numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    /// TokenMajorQkv and how they attend.
    pub attention: AttentionSpec,
    /// Index into [`TransformerSpec::ropes`], for layers that rotate.
    pub rope: Option<usize>,
    /// Width of the feed-forward block.
    pub mlp_size: usize,
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
    /// The smooth limit on scores.
    pub softcap: Option<f32>,
}

/// How rows are normalised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    /// Which norm.
    pub kind: NormKind,
    /// Added under the root.
    pub eps: f32,
}

/// Which norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// By the root mean square, with a weight.
    Rms,
    /// By mean and variance, with a weight and a bias.
    Layer,
}

/// Where a layer normalises, for attention and for the feed-forward block alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormPlacement {
    /// What goes in.
    Pre,
    /// What goes in, and the result before it is added.
    Sandwich,
    /// The sum of what went in and the result.
    Post,
}

/// The shape of the feed-forward block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mlp {
    /// `down(activation(up(x)))`.
    Plain(Activation),
    /// `down(activation(gate(x)) · up(x))`.
    Gated(Activation),
}

/// Biases that must be there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Biases {
    /// On queries, keys and values.
    pub qkv: bool,
    /// On the result of attention.
    pub output: bool,
    /// On the feed-forward block's products.
    pub mlp: bool,
}
