//! Table of supported GGUF architectures, one row each.

use graph::ops::{Activation, ExpertGate, ExpertScores, HeadSharing, RopeLayout};

use crate::transformer::{Biases, ContextMode, Mlp, NormKind, NormPlacement, QkNorm, ScanRule};

/// Constants of an architecture that its files do not state.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Architecture {
    /// `general.architecture`.
    pub(crate) name: &'static str,
    pub(crate) context: ContextMode,
    pub(crate) norm: NormKind,
    pub(crate) norm_places: NormPlacement,
    /// Both blocks have the layer's normalised input if the file has no `ffn_norm`.
    pub(crate) parallel_without_ffn_norm: bool,
    /// The kind of the recurrent layers; `None` if all layers attend.
    pub(crate) recurrent: Option<RecurrentRow>,
    /// Queries come with a gate for the result of attention.
    pub(crate) output_gate: bool,
    /// Keys and values are made from latent rows.
    pub(crate) latent: bool,
    /// How experts are weighed in files that have some; `None` if the architecture has none.
    pub(crate) experts: Option<ExpertsRow>,
    /// Embeddings are normalised, and token-type embeddings may be added.
    pub(crate) embedding_norm: bool,
    /// Style of the rotary embedding; `None` for learned position embeddings.
    pub(crate) rope: Option<RopeLayout>,
    pub(crate) rope_layers: RopeLayers,
    pub(crate) mlp: Mlp,
    pub(crate) biases: Biases,
    pub(crate) qk_norm: QkNorm,
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
    /// Windowed layers rotate without the file's RoPE scaling.
    pub(crate) window_rope_unscaled: bool,
    /// Layer count of the one model size whose attention scale is 1/√(hidden_size / heads) instead of 1/√key_dim.
    pub(crate) hidden_scale_layers: Option<usize>,
    /// Attention scale of files that state none, if it does not depend on the heads.
    pub(crate) attention_scale: Option<f32>,
    /// Soft caps on scores and logits of files that state none.
    pub(crate) softcaps: Option<(f32, f32)>,
    /// The meaning of `logit_scale` in a file.
    pub(crate) logit_scale: LogitScale,
    /// Attention heads have sinks.
    pub(crate) sinks: bool,
    /// All layers attend to keys and values of another model.
    pub(crate) given_kv: bool,
    /// Whether the blocks behind the last layer are MTP heads that take the normalised last state.
    pub(crate) mtp: bool,
    /// YaRN's ramp begins and ends at whole pairs.
    pub(crate) yarn_whole_pairs: bool,
}

/// Facts about experts that files of an architecture leave out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpertsRow {
    /// The weights of a token's experts are divided by their sum.
    pub(crate) normalise: bool,
    pub(crate) gate: ExpertGate,
    /// Scores of files that state none.
    pub(crate) scores: ExpertScores,
    /// Scores of files that state none, and whose experts are chosen with biases.
    pub(crate) biased_scores: ExpertScores,
    /// Whether all tokens use one more expert.
    pub(crate) shared: SharedExpert,
    /// The layer also has a dense block; see [`ExpertsSpec`](crate::transformer::ExpertsSpec).
    pub(crate) beside_dense: bool,
}

/// Whether all tokens use one more expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SharedExpert {
    Never,
    /// If the file states its width.
    Stated,
    /// Always; as wide as the dense block would be in files that state no width.
    Always,
    /// One shared expert, whose width is the file's number of shared experts times the width of a routed expert.
    Counted,
}

/// The kind of the recurrent layers, and how the file says which layers they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecurrentRow {
    /// Short convolutions, in layers without heads of keys.
    ShortConv,
    /// Scans, in layers without heads of keys.
    Scan(ScanRule),
    /// Scans in all layers.
    EveryScan(ScanRule),
    /// Scans in the layers that the file lists, or in all but every n-th.
    ListedScan(ScanRule),
}

/// Which layers rotate queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RopeLayers {
    All,
    /// Layers with a window; all layers of a model without windows.
    Windowed,
    /// All but every layer whose number, counted from 1, is a multiple of this.
    AllBut(usize),
    /// All, unless the file says that its positions were not trained with RoPE.
    Finetuned,
}

/// The meaning of `logit_scale` in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogitScale {
    Factor,
    Divisor,
}

/// Normalised softmax routing to gated experts, as Mixtral has it.
const EXPERTS: ExpertsRow = ExpertsRow {
    normalise: true,
    gate: ExpertGate::Gated(Activation::Silu),
    scores: ExpertScores::Softmax,
    biased_scores: ExpertScores::Softmax,
    shared: SharedExpert::Never,
    beside_dense: false,
};

const LLAMA: Architecture = Architecture {
    name: "llama",
    context: ContextMode::Cached,
    norm: NormKind::Rms,
    norm_places: NormPlacement::Pre,
    parallel_without_ffn_norm: false,
    recurrent: None,
    output_gate: false,
    latent: false,
    experts: Some(EXPERTS),
    embedding_norm: false,
    // Files of this architecture have the rows of q and k reordered for it.
    rope: Some(RopeLayout::Interleaved),
    rope_layers: RopeLayers::All,
    mlp: Mlp::Gated(Activation::Silu),
    biases: Biases {
        qkv: false,
        output: false,
        mlp: false,
    },
    qk_norm: QkNorm::None,
    value_norm: false,
    layer_scales: false,
    scale_embedding: false,
    window: None,
    window_period: 0,
    window_rope_base: None,
    window_rope_unscaled: false,
    hidden_scale_layers: None,
    attention_scale: None,
    softcaps: None,
    logit_scale: LogitScale::Factor,
    sinks: false,
    given_kv: false,
    mtp: false,
    yarn_whole_pairs: true,
};

/// A decoder like Llama's without experts.
const DENSE: Architecture = Architecture {
    name: "",
    experts: None,
    ..LLAMA
};

const QWEN2: Architecture = Architecture {
    name: "qwen2",
    rope: Some(RopeLayout::Halves),
    biases: Biases {
        qkv: true,
        output: false,
        mlp: false,
    },
    ..DENSE
};

// The text decoder of Qwen2-VL: text has equal positions in all sections of a head, so that they rotate as one.
const QWEN2VL: Architecture = Architecture {
    name: "qwen2vl",
    ..QWEN2
};

const QWEN3: Architecture = Architecture {
    name: "qwen3",
    rope: Some(RopeLayout::Halves),
    qk_norm: QkNorm::Head,
    ..DENSE
};

const GEMMA: Architecture = Architecture {
    name: "gemma",
    rope: Some(RopeLayout::Halves),
    mlp: Mlp::Gated(Activation::GeluTanh),
    scale_embedding: true,
    ..DENSE
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
    qk_norm: QkNorm::Head,
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
    experts: Some(ExpertsRow {
        gate: ExpertGate::Gated(Activation::GeluTanh),
        beside_dense: true,
        ..EXPERTS
    }),
    ..GEMMA3
};

/// A draft head of Gemma 4, which no model is made of.
pub(super) const GEMMA4_ASSISTANT: Architecture = Architecture {
    name: "gemma4-assistant",
    experts: None,
    given_kv: true,
    ..GEMMA4
};

const PHI3: Architecture = Architecture {
    name: "phi3",
    rope: Some(RopeLayout::Halves),
    ..DENSE
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
    ..DENSE
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

const QWEN2MOE: Architecture = Architecture {
    name: "qwen2moe",
    experts: Some(ExpertsRow {
        normalise: false,
        shared: SharedExpert::Always,
        ..EXPERTS
    }),
    ..QWEN2
};

const QWEN3MOE: Architecture = Architecture {
    name: "qwen3moe",
    experts: LLAMA.experts,
    ..QWEN3
};

const OLMOE: Architecture = Architecture {
    name: "olmoe",
    rope: Some(RopeLayout::Halves),
    qk_norm: QkNorm::Row,
    experts: Some(ExpertsRow {
        normalise: false,
        ..EXPERTS
    }),
    ..DENSE
};

const GPT_OSS: Architecture = Architecture {
    name: "gpt-oss",
    rope: Some(RopeLayout::Halves),
    biases: Biases {
        qkv: true,
        output: true,
        mlp: true,
    },
    window_period: 2,
    sinks: true,
    yarn_whole_pairs: false,
    experts: Some(ExpertsRow {
        gate: ExpertGate::ClampedSwish {
            alpha: 1.702,
            limit: 7.0,
        },
        ..EXPERTS
    }),
    ..DENSE
};

const SMOLLM3: Architecture = Architecture {
    name: "smollm3",
    rope_layers: RopeLayers::AllBut(4),
    ..DENSE
};

// Olmo 2; Olmo 3 is Olmo 2 with windows.
const OLMO2: Architecture = Architecture {
    name: "olmo2",
    rope: Some(RopeLayout::Halves),
    norm_places: NormPlacement::Output,
    qk_norm: QkNorm::Row,
    window_period: 4,
    window_rope_unscaled: true,
    ..DENSE
};

const GRANITE: Architecture = Architecture {
    name: "granite",
    logit_scale: LogitScale::Divisor,
    ..DENSE
};

const GRANITEMOE: Architecture = Architecture {
    name: "granitemoe",
    experts: Some(ExpertsRow {
        shared: SharedExpert::Stated,
        ..EXPERTS
    }),
    ..GRANITE
};

const GLM4: Architecture = Architecture {
    name: "glm4",
    norm_places: NormPlacement::Sandwich,
    ..DENSE
};

const COMMAND_R: Architecture = Architecture {
    name: "command-r",
    norm: NormKind::LayerUnbiased,
    norm_places: NormPlacement::Parallel,
    qk_norm: QkNorm::LayerByHead,
    ..DENSE
};

const COHERE2: Architecture = Architecture {
    name: "cohere2",
    rope_layers: RopeLayers::Windowed,
    qk_norm: QkNorm::None,
    window_period: 4,
    ..COMMAND_R
};

const EXAONE: Architecture = Architecture {
    name: "exaone",
    rope: Some(RopeLayout::Halves),
    ..DENSE
};

const EXAONE4: Architecture = Architecture {
    name: "exaone4",
    rope_layers: RopeLayers::Windowed,
    norm_places: NormPlacement::Output,
    qk_norm: QkNorm::Head,
    window_period: 4,
    ..EXAONE
};

const STARCODER2: Architecture = Architecture {
    name: "starcoder2",
    rope: Some(RopeLayout::Halves),
    ..GPT2
};

const FALCON: Architecture = Architecture {
    name: "falcon",
    norm: NormKind::Layer,
    norm_places: NormPlacement::Parallel,
    rope: Some(RopeLayout::Halves),
    mlp: Mlp::Plain(Activation::GeluErf),
    ..DENSE
};

// Files without `ffn_norm` have parallel blocks.
const STABLELM: Architecture = Architecture {
    name: "stablelm",
    norm: NormKind::Layer,
    rope: Some(RopeLayout::Halves),
    qk_norm: QkNorm::LayerByHead,
    parallel_without_ffn_norm: true,
    ..DENSE
};

const LFM2: Architecture = Architecture {
    name: "lfm2",
    rope: Some(RopeLayout::Halves),
    qk_norm: QkNorm::Head,
    recurrent: Some(RecurrentRow::ShortConv),
    ..DENSE
};

const LFM2MOE: Architecture = Architecture {
    name: "lfm2moe",
    experts: Some(ExpertsRow {
        scores: ExpertScores::Sigmoid,
        biased_scores: ExpertScores::Sigmoid,
        ..EXPERTS
    }),
    ..LFM2
};

const MAMBA2: Architecture = Architecture {
    name: "mamba2",
    recurrent: Some(RecurrentRow::EveryScan(ScanRule::Mamba2)),
    ..DENSE
};

// The files have heads of values in turns.
const QWEN35: Architecture = Architecture {
    name: "qwen35",
    recurrent: Some(RecurrentRow::ListedScan(ScanRule::GatedDelta(
        HeadSharing::Turns,
    ))),
    output_gate: true,
    mtp: true,
    ..QWEN3
};

const QWEN35MOE: Architecture = Architecture {
    name: "qwen35moe",
    experts: Some(ExpertsRow {
        shared: SharedExpert::Stated,
        ..EXPERTS
    }),
    ..QWEN35
};

const QWEN3NEXT: Architecture = Architecture {
    name: "qwen3next",
    recurrent: Some(RecurrentRow::ListedScan(ScanRule::GatedDelta(
        HeadSharing::Blocks,
    ))),
    ..QWEN35MOE
};

// DeepSeek 2 and 3, Kimi, GLM 4.7 Flash. Old files of the last state no scores.
const DEEPSEEK2: Architecture = Architecture {
    name: "deepseek2",
    latent: true,
    experts: Some(ExpertsRow {
        normalise: false,
        biased_scores: ExpertScores::Sigmoid,
        shared: SharedExpert::Counted,
        ..EXPERTS
    }),
    mtp: true,
    ..DENSE
};

const GRANITEHYBRID: Architecture = Architecture {
    name: "granitehybrid",
    rope_layers: RopeLayers::Finetuned,
    recurrent: Some(RecurrentRow::Scan(ScanRule::Mamba2)),
    ..GRANITEMOE
};

const NEMOTRON_H: Architecture = Architecture {
    name: "nemotron_h",
    rope_layers: RopeLayers::Finetuned,
    mlp: Mlp::PlainSquared(Activation::Relu),
    recurrent: Some(RecurrentRow::Scan(ScanRule::Mamba2)),
    ..DENSE
};

const SIGMOID_EXPERTS: ExpertsRow = ExpertsRow {
    scores: ExpertScores::Sigmoid,
    biased_scores: ExpertScores::Sigmoid,
    shared: SharedExpert::Counted,
    ..EXPERTS
};

const GLM4MOE: Architecture = Architecture {
    name: "glm4moe",
    rope: Some(RopeLayout::Halves),
    qk_norm: QkNorm::HeadIfPresent,
    experts: Some(SIGMOID_EXPERTS),
    mtp: true,
    ..DENSE
};

const DOTS1: Architecture = Architecture {
    name: "dots1",
    experts: Some(SIGMOID_EXPERTS),
    ..QWEN3
};

// Ling 2 and Ring 2.
const BAILINGMOE2: Architecture = Architecture {
    name: "bailingmoe2",
    ..DOTS1
};

const MINIMAX_M2: Architecture = Architecture {
    name: "minimax-m2",
    rope: Some(RopeLayout::Halves),
    qk_norm: QkNorm::Row,
    experts: Some(ExpertsRow {
        shared: SharedExpert::Never,
        ..SIGMOID_EXPERTS
    }),
    ..DENSE
};

// The text decoders of Qwen3-VL: text has equal positions in all sections of a head.
const QWEN3VL: Architecture = Architecture {
    name: "qwen3vl",
    ..QWEN3
};

const QWEN3VLMOE: Architecture = Architecture {
    name: "qwen3vlmoe",
    ..QWEN3MOE
};

const ERNIE4_5: Architecture = Architecture {
    name: "ernie4_5",
    ..DENSE
};

const ERNIE4_5_MOE: Architecture = Architecture {
    name: "ernie4_5-moe",
    experts: Some(ExpertsRow {
        shared: SharedExpert::Stated,
        ..EXPERTS
    }),
    ..ERNIE4_5
};

const SEED_OSS: Architecture = Architecture {
    name: "seed_oss",
    rope: Some(RopeLayout::Halves),
    ..DENSE
};

const HUNYUAN_DENSE: Architecture = Architecture {
    name: "hunyuan-dense",
    rope: Some(RopeLayout::Halves),
    qk_norm: QkNorm::RotatedHead,
    ..DENSE
};

const HUNYUAN_MOE: Architecture = Architecture {
    name: "hunyuan-moe",
    experts: ERNIE4_5_MOE.experts,
    ..HUNYUAN_DENSE
};

const ARCEE: Architecture = Architecture {
    name: "arcee",
    mlp: Mlp::PlainSquared(Activation::Relu),
    ..DENSE
};

const EXAONE_MOE: Architecture = Architecture {
    name: "exaone-moe",
    norm_places: NormPlacement::Pre,
    experts: Some(ExpertsRow {
        shared: SharedExpert::Stated,
        ..SIGMOID_EXPERTS
    }),
    ..EXAONE4
};

// Experts have no gate.
const NEMOTRON_H_MOE: Architecture = Architecture {
    name: "nemotron_h_moe",
    experts: EXAONE_MOE.experts,
    ..NEMOTRON_H
};

const ALL: [Architecture; 51] = [
    LLAMA,
    QWEN2,
    QWEN2VL,
    QWEN2MOE,
    QWEN3,
    QWEN3MOE,
    QWEN3VL,
    QWEN3VLMOE,
    QWEN3NEXT,
    QWEN35,
    QWEN35MOE,
    OLMOE,
    GRANITEMOE,
    GRANITEHYBRID,
    GPT_OSS,
    GEMMA,
    GEMMA2,
    GEMMA3,
    GEMMA4,
    PHI3,
    GPT2,
    SMOLLM3,
    OLMO2,
    GRANITE,
    DEEPSEEK2,
    GLM4,
    GLM4MOE,
    DOTS1,
    BAILINGMOE2,
    MINIMAX_M2,
    ERNIE4_5,
    ERNIE4_5_MOE,
    SEED_OSS,
    HUNYUAN_DENSE,
    HUNYUAN_MOE,
    ARCEE,
    COMMAND_R,
    COHERE2,
    EXAONE,
    EXAONE4,
    EXAONE_MOE,
    STARCODER2,
    FALCON,
    STABLELM,
    LFM2,
    LFM2MOE,
    MAMBA2,
    NEMOTRON_H,
    NEMOTRON_H_MOE,
    BERT,
    NOMIC_BERT,
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
