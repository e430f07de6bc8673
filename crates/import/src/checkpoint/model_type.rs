//! Table of the values of `model_type` that run, one row each.

use graph::ops::RopeLayout;
use serde_json::{Map, Value};

use super::names::Names;
use super::names::Stored::{InTurns, Is, NotNeeded, OneBelowOther, Transposed};

/// A `model_type` of `config.json`.
#[derive(Clone, Copy, Debug)]
pub(super) struct ModelType {
    pub(super) name: &'static str,
    /// The GGUF architecture that it is.
    pub(super) architecture: &'static str,
    /// Which elements of a head rotate together, if GGUF files of the architecture have the rows of queries and keys in another order.
    pub(super) rope: Option<RopeLayout>,
    /// Weights of RMS norms are stored without the 1 that is added to them.
    pub(super) norms_offset: bool,
    /// Which layers have the window if no list says it.
    pub(super) windows: Windows,
    /// Names of tensors that differ from the common ones.
    pub(super) names: Names,
    /// Values of keys that a file may leave out: those of the class in transformers.
    pub(super) defaults: &'static str,
}

/// Which layers have the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Windows {
    /// All of them.
    All,
    /// All but every n-th.
    AllBut(usize),
    /// Those from `max_window_layers` on, if `use_sliding_window` is true.
    From,
}

const LLAMA: ModelType = ModelType {
    name: "llama",
    architecture: "llama",
    rope: Some(RopeLayout::Halves),
    norms_offset: false,
    windows: Windows::All,
    names: &[],
    defaults: r#"{"rms_norm_eps": 1e-6, "hidden_act": "silu", "rope_theta": 10000.0, "max_position_embeddings": 2048}"#,
};

const MISTRAL: ModelType = ModelType {
    name: "mistral",
    defaults: r#"{"num_key_value_heads": 8, "rms_norm_eps": 1e-6, "hidden_act": "silu", "rope_theta": 10000.0, "sliding_window": 4096,
        "max_position_embeddings": 131072}"#,
    ..LLAMA
};

const MIXTRAL: ModelType = ModelType {
    name: "mixtral",
    defaults: r#"{"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "hidden_act": "silu", "rope_theta": 1000000.0,
        "max_position_embeddings": 131072, "num_experts_per_tok": 2, "num_local_experts": 8}"#,
    ..LLAMA
};

const QWEN2: ModelType = ModelType {
    name: "qwen2",
    architecture: "qwen2",
    rope: None,
    windows: Windows::From,
    defaults: r#"{"num_key_value_heads": 32, "rms_norm_eps": 1e-6, "hidden_act": "silu", "rope_theta": 10000.0,
        "sliding_window": 4096, "max_window_layers": 28, "max_position_embeddings": 32768}"#,
    ..LLAMA
};

const QWEN2_MOE: ModelType = ModelType {
    name: "qwen2_moe",
    architecture: "qwen2moe",
    defaults: r#"{"num_key_value_heads": 16, "rms_norm_eps": 1e-6, "hidden_act": "silu", "rope_theta": 10000.0,
        "sliding_window": 4096, "max_window_layers": 28, "max_position_embeddings": 32768, "moe_intermediate_size": 1408,
        "num_experts_per_tok": 4, "num_experts": 60, "norm_topk_prob": false}"#,
    ..QWEN2
};

const QWEN3: ModelType = ModelType {
    name: "qwen3",
    architecture: "qwen3",
    defaults: r#"{"num_key_value_heads": 32, "head_dim": 128, "rms_norm_eps": 1e-6, "hidden_act": "silu", "rope_theta": 10000.0,
        "sliding_window": 4096, "max_window_layers": 28, "max_position_embeddings": 32768}"#,
    ..QWEN2
};

const QWEN3_MOE: ModelType = ModelType {
    name: "qwen3_moe",
    architecture: "qwen3moe",
    windows: Windows::All,
    defaults: r#"{"num_key_value_heads": 4, "rms_norm_eps": 1e-6, "hidden_act": "silu", "rope_theta": 10000.0,
        "sliding_window": 4096, "max_position_embeddings": 32768, "moe_intermediate_size": 768, "num_experts_per_tok": 8,
        "num_experts": 128, "norm_topk_prob": false}"#,
    ..QWEN3
};

const GEMMA: ModelType = ModelType {
    name: "gemma",
    architecture: "gemma",
    rope: None,
    norms_offset: true,
    defaults: r#"{"num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 256, "hidden_act": "gelu_pytorch_tanh",
        "max_position_embeddings": 8192, "rms_norm_eps": 1e-6, "tie_word_embeddings": true, "rope_theta": 10000.0}"#,
    ..LLAMA
};

/// Names of norms before and after both blocks.
const SANDWICH: Names = &[
    ("post_attention_layernorm", Is("post_attention_norm")),
    ("pre_feedforward_layernorm", Is("ffn_norm")),
    ("post_feedforward_layernorm", Is("post_ffw_norm")),
];

const GEMMA2: ModelType = ModelType {
    name: "gemma2",
    architecture: "gemma2",
    windows: Windows::AllBut(2),
    names: SANDWICH,
    defaults: r#"{"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 8192, "rms_norm_eps": 1e-6, "tie_word_embeddings": true, "rope_theta": 10000.0,
        "query_pre_attn_scalar": 256, "sliding_window": 4096, "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0}"#,
    ..GEMMA
};

const GEMMA3_TEXT: ModelType = ModelType {
    name: "gemma3_text",
    architecture: "gemma3",
    windows: Windows::AllBut(6),
    names: SANDWICH,
    defaults: r#"{"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 131072, "rms_norm_eps": 1e-6, "tie_word_embeddings": true, "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0, "query_pre_attn_scalar": 256, "sliding_window": 4096, "vocab_size": 262208}"#,
    ..GEMMA
};

const PHI3: ModelType = ModelType {
    name: "phi3",
    architecture: "phi3",
    rope: None,
    names: &[
        ("self_attn.qkv_proj", Is("attn_qkv")),
        ("mlp.gate_up_proj", Is("ffn_up")),
    ],
    defaults: r#"{"rms_norm_eps": 1e-5, "hidden_act": "silu", "rope_theta": 10000.0, "max_position_embeddings": 4096,
        "original_max_position_embeddings": 4096}"#,
    ..LLAMA
};

const GPT2: ModelType = ModelType {
    name: "gpt2",
    architecture: "gpt2",
    rope: None,
    // Linear layers have their inputs as rows.
    names: &[
        ("ln_1", Is("attn_norm")),
        ("ln_2", Is("ffn_norm")),
        ("attn.c_attn", Transposed("attn_qkv")),
        ("attn.c_proj", Transposed("attn_output")),
        ("mlp.c_fc", Transposed("ffn_up")),
        ("mlp.c_proj", Transposed("ffn_down")),
        ("attn.masked_bias", NotNeeded),
        ("attn", NotNeeded),
    ],
    defaults: r#"{"n_positions": 1024, "n_head": 12, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": true}"#,
    ..LLAMA
};

const SMOLLM3: ModelType = ModelType {
    name: "smollm3",
    architecture: "smollm3",
    windows: Windows::From,
    defaults: r#"{"num_key_value_heads": 4, "rms_norm_eps": 1e-6, "hidden_act": "silu", "rope_theta": 2000000.0,
        "max_position_embeddings": 32768, "tie_word_embeddings": true, "no_rope_layer_interval": 4}"#,
    ..LLAMA
};

/// Names of norms of a block's output.
const OUTPUT: Names = &[
    ("post_attention_layernorm", Is("post_attention_norm")),
    ("post_feedforward_layernorm", Is("post_ffw_norm")),
];

const OLMO2: ModelType = ModelType {
    name: "olmo2",
    architecture: "olmo2",
    rope: None,
    names: OUTPUT,
    defaults: r#"{"rms_norm_eps": 1e-5, "hidden_act": "silu", "rope_theta": 10000.0, "max_position_embeddings": 2048}"#,
    ..LLAMA
};

const OLMO3: ModelType = ModelType {
    name: "olmo3",
    windows: Windows::AllBut(4),
    defaults: r#"{"rms_norm_eps": 1e-5, "hidden_act": "silu", "rope_theta": 500000.0, "max_position_embeddings": 2048,
        "sliding_window": 4096}"#,
    ..OLMO2
};

const OLMOE: ModelType = ModelType {
    name: "olmoe",
    architecture: "olmoe",
    rope: None,
    defaults: r#"{"rms_norm_eps": 1e-5, "hidden_act": "silu", "rope_theta": 10000.0, "max_position_embeddings": 4096,
        "num_experts_per_tok": 8, "num_experts": 64, "norm_topk_prob": false}"#,
    ..LLAMA
};

const GRANITE: ModelType = ModelType {
    name: "granite",
    architecture: "granite",
    defaults: r#"{"rms_norm_eps": 1e-6, "hidden_act": "silu", "rope_theta": 10000.0, "max_position_embeddings": 2048,
        "attention_multiplier": 1.0}"#,
    ..LLAMA
};

const GRANITEMOE: ModelType = ModelType {
    name: "granitemoe",
    architecture: "granitemoe",
    names: &[
        ("block_sparse_moe.input_linear", Is("ffn_gate_up_exps")),
        ("block_sparse_moe.output_linear", Is("ffn_down_exps")),
        ("block_sparse_moe.router.layer", Is("ffn_gate_inp")),
        (
            "shared_mlp.input_linear",
            OneBelowOther(["ffn_gate_shexp", "ffn_up_shexp"]),
        ),
        ("shared_mlp.output_linear", Is("ffn_down_shexp")),
    ],
    defaults: r#"{"rms_norm_eps": 1e-6, "hidden_act": "silu", "rope_theta": 10000.0, "max_position_embeddings": 2048,
        "attention_multiplier": 1.0, "num_local_experts": 8, "num_experts_per_tok": 2}"#,
    ..GRANITE
};

const GRANITEMOESHARED: ModelType = ModelType {
    name: "granitemoeshared",
    ..GRANITEMOE
};

const GLM4: ModelType = ModelType {
    name: "glm4",
    architecture: "glm4",
    rope: None,
    names: &[
        ("post_self_attn_layernorm", Is("post_attention_norm")),
        ("post_attention_layernorm", Is("ffn_norm")),
        ("post_mlp_layernorm", Is("post_ffw_norm")),
        ("mlp.gate_up_proj", Is("ffn_up")),
    ],
    defaults: r#"{"num_key_value_heads": 2, "head_dim": 128, "hidden_act": "silu", "max_position_embeddings": 131072,
        "rms_norm_eps": 1.5625e-07, "rope_theta": 10000.0, "partial_rotary_factor": 0.5}"#,
    ..LLAMA
};

const GLM4_MOE: ModelType = ModelType {
    name: "glm4_moe",
    architecture: "glm4moe",
    rope: None,
    defaults: r#"{"num_key_value_heads": 8, "hidden_act": "silu", "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "moe_intermediate_size": 1408, "num_experts_per_tok": 8,
        "n_routed_experts": 128, "norm_topk_prob": true}"#,
    ..LLAMA
};

const COHERE: ModelType = ModelType {
    name: "cohere",
    architecture: "command-r",
    rope: None,
    defaults: r#"{"logit_scale": 0.0625, "hidden_act": "silu", "max_position_embeddings": 8192, "layer_norm_eps": 1e-5,
        "tie_word_embeddings": true, "rope_theta": 500000.0}"#,
    ..LLAMA
};

const COHERE2: ModelType = ModelType {
    name: "cohere2",
    architecture: "cohere2",
    windows: Windows::AllBut(4),
    defaults: r#"{"logit_scale": 0.0625, "hidden_act": "silu", "max_position_embeddings": 8192, "layer_norm_eps": 1e-5,
        "tie_word_embeddings": true, "rope_theta": 10000.0, "sliding_window": 4096}"#,
    ..COHERE
};

const EXAONE4: ModelType = ModelType {
    name: "exaone4",
    architecture: "exaone4",
    rope: None,
    windows: Windows::AllBut(4),
    names: OUTPUT,
    defaults: r#"{"rms_norm_eps": 1e-5, "hidden_act": "silu", "rope_theta": 10000.0, "max_position_embeddings": 2048,
        "sliding_window": 4096}"#,
    ..LLAMA
};

const STARCODER2: ModelType = ModelType {
    name: "starcoder2",
    architecture: "starcoder2",
    rope: None,
    names: &[("mlp.c_fc", Is("ffn_up")), ("mlp.c_proj", Is("ffn_down"))],
    defaults: r#"{"num_key_value_heads": 2, "hidden_act": "gelu_pytorch_tanh", "max_position_embeddings": 4096,
        "norm_epsilon": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": true}"#,
    ..LLAMA
};

const STABLELM: ModelType = ModelType {
    name: "stablelm",
    architecture: "stablelm",
    rope: None,
    names: &[
        ("self_attn.q_layernorm.norms.{}", Is("attn_q_norm")),
        ("self_attn.k_layernorm.norms.{}", Is("attn_k_norm")),
    ],
    defaults: r#"{"hidden_act": "silu", "max_position_embeddings": 4096, "layer_norm_eps": 1e-5, "rope_theta": 10000.0,
        "partial_rotary_factor": 0.25}"#,
    ..LLAMA
};

const GPT_OSS: ModelType = ModelType {
    name: "gpt_oss",
    architecture: "gpt-oss",
    rope: None,
    windows: Windows::AllBut(2),
    names: &[
        ("post_attention_layernorm", Is("post_attention_norm")),
        ("mlp.router", Is("ffn_gate_inp")),
        (
            "mlp.experts.gate_up_proj",
            InTurns(["ffn_gate_exps.weight", "ffn_up_exps.weight"], true),
        ),
        (
            "mlp.experts.gate_up_proj_bias",
            InTurns(["ffn_gate_exps.bias", "ffn_up_exps.bias"], false),
        ),
        ("mlp.experts.down_proj", Transposed("ffn_down_exps.weight")),
        ("mlp.experts.down_proj_bias", Is("ffn_down_exps.bias")),
    ],
    defaults: r#"{"head_dim": 64, "num_key_value_heads": 8, "sliding_window": 128, "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5, "rope_theta": 150000.0, "num_experts_per_tok": 4, "num_local_experts": 128}"#,
    ..LLAMA
};

const ERNIE4_5: ModelType = ModelType {
    name: "ernie4_5",
    architecture: "ernie4_5",
    rope: None,
    defaults: r#"{"num_key_value_heads": 2, "head_dim": 128, "hidden_act": "silu", "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5, "tie_word_embeddings": true, "rope_theta": 500000.0}"#,
    ..LLAMA
};

const ERNIE4_5_MOE: ModelType = ModelType {
    name: "ernie4_5_moe",
    architecture: "ernie4_5-moe",
    defaults: r#"{"num_key_value_heads": 4, "hidden_act": "silu", "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": true, "rope_theta": 500000.0, "moe_intermediate_size": 1536, "moe_k": 6, "moe_num_experts": 64}"#,
    ..ERNIE4_5
};

const SEED_OSS: ModelType = ModelType {
    name: "seed_oss",
    architecture: "seed_oss",
    rope: None,
    names: &[("post_attention_layernorm", Is("post_attention_norm"))],
    defaults: r#"{"num_key_value_heads": 8, "head_dim": 128, "hidden_act": "silu", "max_position_embeddings": 524288,
        "rms_norm_eps": 1e-6, "rope_theta": 10000.0}"#,
    ..LLAMA
};

/// Names of norms of queries and keys, and of the shared expert.
const HUNYUAN: Names = &[
    ("self_attn.query_layernorm", Is("attn_q_norm")),
    ("self_attn.key_layernorm", Is("attn_k_norm")),
    ("mlp.gate.wg", Is("ffn_gate_inp")),
    ("mlp.shared_mlp.gate_proj", Is("ffn_gate_shexp")),
    ("mlp.shared_mlp.up_proj", Is("ffn_up_shexp")),
    ("mlp.shared_mlp.down_proj", Is("ffn_down_shexp")),
];

const HUNYUAN_V1_DENSE: ModelType = ModelType {
    name: "hunyuan_v1_dense",
    architecture: "hunyuan-dense",
    rope: None,
    names: HUNYUAN,
    defaults: r#"{"hidden_act": "silu", "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0}"#,
    ..LLAMA
};

const HUNYUAN_V1_MOE: ModelType = ModelType {
    name: "hunyuan_v1_moe",
    architecture: "hunyuan-moe",
    ..HUNYUAN_V1_DENSE
};

const ARCEE: ModelType = ModelType {
    name: "arcee",
    architecture: "arcee",
    defaults: r#"{"hidden_act": "relu2", "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0}"#,
    ..LLAMA
};

const DOTS1: ModelType = ModelType {
    name: "dots1",
    architecture: "dots1",
    rope: None,
    windows: Windows::From,
    defaults: r#"{"hidden_act": "silu", "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "norm_topk_prob": false}"#,
    ..LLAMA
};

const MINIMAX_M2: ModelType = ModelType {
    name: "minimax_m2",
    architecture: "minimax-m2",
    rope: None,
    defaults: r#"{"num_key_value_heads": 8, "head_dim": 128, "hidden_act": "silu", "max_position_embeddings": 196608,
        "rms_norm_eps": 1e-6, "num_experts_per_tok": 8, "num_local_experts": 256, "rope_theta": 5000000.0}"#,
    ..LLAMA
};

const LFM2: ModelType = ModelType {
    name: "lfm2",
    architecture: "lfm2",
    rope: None,
    names: &[
        ("operator_norm", Is("attn_norm")),
        ("ffn_norm", Is("ffn_norm")),
        ("feed_forward.w1", Is("ffn_gate")),
        ("feed_forward.w2", Is("ffn_down")),
        ("feed_forward.w3", Is("ffn_up")),
        ("self_attn.out_proj", Is("attn_output")),
        ("self_attn.q_layernorm", Is("attn_q_norm")),
        ("self_attn.k_layernorm", Is("attn_k_norm")),
        ("conv.conv", Is("shortconv.conv")),
        ("conv.in_proj", Is("shortconv.in_proj")),
        ("conv.out_proj", Is("shortconv.out_proj")),
    ],
    defaults: r#"{"num_key_value_heads": 8, "max_position_embeddings": 128000, "norm_eps": 1e-5, "tie_word_embeddings": true,
        "rope_theta": 1000000.0, "conv_L_cache": 3}"#,
    ..LLAMA
};

const BERT: ModelType = ModelType {
    name: "bert",
    architecture: "bert",
    rope: None,
    names: &[
        ("attention.self.query", Is("attn_q")),
        ("attention.self.key", Is("attn_k")),
        ("attention.self.value", Is("attn_v")),
        ("attention.output.dense", Is("attn_output")),
        ("attention.output.LayerNorm", Is("attn_output_norm")),
        ("intermediate.dense", Is("ffn_up")),
        ("output.dense", Is("ffn_down")),
        ("output.LayerNorm", Is("layer_output_norm")),
    ],
    defaults: r#"{"num_attention_heads": 12, "hidden_act": "gelu", "max_position_embeddings": 512, "layer_norm_eps": 1e-12,
        "tie_word_embeddings": true}"#,
    ..LLAMA
};

const ALL: [ModelType; 38] = [
    LLAMA,
    MISTRAL,
    MIXTRAL,
    QWEN2,
    QWEN2_MOE,
    QWEN3,
    QWEN3_MOE,
    GEMMA,
    GEMMA2,
    GEMMA3_TEXT,
    // The text decoder of a model for images, whose tensors are left out.
    ModelType {
        name: "gemma3",
        ..GEMMA3_TEXT
    },
    PHI3,
    GPT2,
    SMOLLM3,
    OLMO2,
    OLMO3,
    OLMOE,
    GRANITE,
    GRANITEMOE,
    GRANITEMOESHARED,
    GLM4,
    GLM4_MOE,
    COHERE,
    COHERE2,
    EXAONE4,
    STARCODER2,
    STABLELM,
    GPT_OSS,
    ERNIE4_5,
    ERNIE4_5_MOE,
    SEED_OSS,
    HUNYUAN_V1_DENSE,
    HUNYUAN_V1_MOE,
    ARCEE,
    DOTS1,
    MINIMAX_M2,
    LFM2,
    BERT,
];

impl ModelType {
    /// The row with this name.
    pub(super) fn find(name: &str) -> Option<ModelType> {
        ALL.into_iter().find(|row| row.name == name)
    }

    /// All names, for messages.
    pub(super) fn names() -> String {
        ALL.map(|row| row.name).join(", ")
    }

    /// The defaults as an object.
    pub(super) fn defaults(&self) -> Map<String, Value> {
        serde_json::from_str(self.defaults).expect("every row has an object")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::architecture::Architecture;

    #[test]
    fn every_row_names_an_architecture_and_has_defaults() {
        for row in ALL {
            assert!(
                Architecture::find(row.architecture).is_some(),
                "{}",
                row.name
            );
            assert!(!row.defaults().is_empty());
        }
    }
}
