//! Table of supported GGUF architectures, one row each.

use graph::ops::{Activation, RopeLayout};

use crate::transformer::{Biases, ContextMode, Mlp, NormKind, NormPlacement};

/// Constants of an architecture that its files do not state.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Architecture {
    /// `general.architecture`.
    pub(crate) name: &'static str,
    pub(crate) context: ContextMode,
    pub(crate) norm: NormKind,
    pub(crate) norm_places: NormPlacement,
    /// Embeddings are normalised, and token-type embeddings may be added.
    pub(crate) embedding_norm: bool,
    /// Style of the rotary embedding; `None` for learned position embeddings.
    pub(crate) rope: Option<RopeLayout>,
    pub(crate) mlp: Mlp,
    pub(crate) biases: Biases,
    pub(crate) qk_norm: bool,
    /// Values are normalised, and files may have no projection of them where they are the keys'.
    pub(crate) value_norm: bool,
    /// Files may have a factor on each layer's output.
    pub(crate) layer_scales: bool,
    /// Token embeddings are multiplied by √width.
    pub(crate) scale_embedding: bool,
    /// Attention window of files that state none.
    pub(crate) window: Option<u32>,
    /// Period of layers with global attention among windowed ones; 0 if all layers have the window.
    pub(crate) window_period: usize,
    /// RoPE base of windowed layers, if it differs from that of global layers.
    pub(crate) window_rope_base: Option<f32>,
    /// Layer count of the one model size whose attention scale is 1/√(hidden_size / heads) instead of 1/√key_dim.
    pub(crate) hidden_scale_layers: Option<usize>,
    /// Attention scale of files that state none, if it does not depend on the heads.
    pub(crate) attention_scale: Option<f32>,
    /// Soft caps on scores and logits of files that state none.
    pub(crate) softcaps: Option<(f32, f32)>,
}

const LLAMA: Architecture = Architecture {
    name: "llama",
    context: ContextMode::Cached,
    norm: NormKind::Rms,
    norm_places: NormPlacement::Pre,
    embedding_norm: false,
    // Files of this architecture have the rows of q and k reordered for it.
    rope: Some(RopeLayout::Interleaved),
    mlp: Mlp::Gated(Activation::Silu),
    biases: Biases {
        qkv: false,
        output: false,
        mlp: false,
    },
    qk_norm: false,
    value_norm: false,
    layer_scales: false,
    scale_embedding: false,
    window: None,
    window_period: 0,
    window_rope_base: None,
    hidden_scale_layers: None,
    attention_scale: None,
    softcaps: None,
};

const QWEN2: Architecture = Architecture {
    name: "qwen2",
    rope: Some(RopeLayout::Halves),
    biases: Biases {
        qkv: true,
        output: false,
        mlp: false,
    },
    ..LLAMA
};

// The text decoder of Qwen2-VL: text has equal positions in all sections of a head, so that they rotate as one.
const QWEN2VL: Architecture = Architecture {
    name: "qwen2vl",
    ..QWEN2
};

const QWEN3: Architecture = Architecture {
    name: "qwen3",
    rope: Some(RopeLayout::Halves),
    qk_norm: true,
    ..LLAMA
};

const GEMMA: Architecture = Architecture {
    name: "gemma",
    rope: Some(RopeLayout::Halves),
    mlp: Mlp::Gated(Activation::GeluTanh),
    scale_embedding: true,
    ..LLAMA
};

const GEMMA2: Architecture = Architecture {
    name: "gemma2",
    norm_places: NormPlacement::Sandwich,
    window: Some(4096),
    window_period: 2,
    hidden_scale_layers: Some(46),
    softcaps: Some((50.0, 30.0)),
    ..GEMMA
};

const GEMMA3: Architecture = Architecture {
    name: "gemma3",
    qk_norm: true,
    norm_places: NormPlacement::Sandwich,
    window_period: 6,
    window_rope_base: Some(10000.0),
    hidden_scale_layers: Some(62),
    ..GEMMA
};

const GEMMA4: Architecture = Architecture {
    name: "gemma4",
    value_norm: true,
    layer_scales: true,
    hidden_scale_layers: None,
    attention_scale: Some(1.0),
    ..GEMMA3
};

const PHI3: Architecture = Architecture {
    name: "phi3",
    rope: Some(RopeLayout::Halves),
    ..LLAMA
};

const GPT2: Architecture = Architecture {
    name: "gpt2",
    norm: NormKind::Layer,
    rope: None,
    mlp: Mlp::Plain(Activation::GeluTanh),
    biases: Biases {
        qkv: true,
        output: true,
        mlp: true,
    },
    ..LLAMA
};

const BERT: Architecture = Architecture {
    name: "bert",
    context: ContextMode::Uncached { causal: false },
    norm_places: NormPlacement::Post,
    embedding_norm: true,
    mlp: Mlp::Plain(Activation::GeluErf),
    ..GPT2
};

const NOMIC_BERT: Architecture = Architecture {
    name: "nomic-bert",
    rope: Some(RopeLayout::Halves),
    mlp: Mlp::Gated(Activation::Silu),
    biases: LLAMA.biases,
    ..BERT
};

const ALL: [Architecture; 12] = [
    LLAMA, QWEN2, QWEN2VL, QWEN3, GEMMA, GEMMA2, GEMMA3, GEMMA4, PHI3, GPT2, BERT, NOMIC_BERT,
];

impl Architecture {
    /// The architecture with this name.
    pub(crate) fn find(name: &str) -> Option<Architecture> {
        ALL.into_iter().find(|a| a.name == name)
    }

    /// All names, for messages.
    pub(crate) fn names() -> String {
        ALL.map(|a| a.name).join(", ")
    }
}
