//! The keys of `config.json` as metadata of a GGUF file.

use graph::ops::Activation;
use serde_json::Value as Json;

use super::config::{Config, name, wrong};
use super::model_type::{ModelType, Windows};
use super::rope::{Rope, Scaling};
use crate::error::ImportError;
use crate::gguf::architecture::{Architecture, RopeLayers};
use crate::gguf::{Array, Metadata, Value};
use crate::safetensors::Modules;
use crate::transformer::{Mlp, NormKind};

const MAX_LAYERS: usize = 4096;

/// Shape of a tensor by its name in GGUF files.
pub(super) type ShapeOf<'a> = &'a dyn Fn(&str) -> Option<&'a [usize]>;

/// The number of layers.
pub(super) fn layer_count(config: &Config<'_>) -> Result<usize, ImportError> {
    let key = "num_hidden_layers";
    let layers = config.size(&[key, "n_layer"])?;
    if layers > MAX_LAYERS {
        let reason = format!("is {layers}, must be at most {MAX_LAYERS}");
        return Err(ImportError::value(name(key), reason));
    }
    Ok(layers)
}

/// Metadata with the keys of one architecture.
struct Writer {
    prefix: &'static str,
    metadata: Metadata,
}

impl Writer {
    fn push(&mut self, key: &str, value: Value) -> Result<(), ImportError> {
        let key = match key.starts_with("general.") {
            true => key.to_owned(),
            false => format!("{}.{key}", self.prefix),
        };
        Ok(self.metadata.insert(key, value)?)
    }

    fn size(&mut self, key: &str, value: usize) -> Result<(), ImportError> {
        self.push(key, Value::U32(u32::try_from(value).unwrap_or(u32::MAX)))
    }

    fn number(&mut self, key: &str, value: f64) -> Result<(), ImportError> {
        self.push(key, Value::F32(value as f32))
    }

    fn optional(&mut self, key: &str, value: Option<f64>) -> Result<(), ImportError> {
        value.map_or(Ok(()), |value| self.number(key, value))
    }
}

/// The metadata of a folder.
pub(super) fn metadata(
    config: &Config<'_>,
    row: &ModelType,
    rope: &Rope,
    shape: ShapeOf<'_>,
    modules: Option<&Modules>,
) -> Result<Metadata, ImportError> {
    let architecture = Architecture::find(row.architecture);
    let architecture = architecture.expect("every row names an architecture");
    let mut out = Writer {
        prefix: row.architecture,
        metadata: Metadata::default(),
    };
    out.push(
        "general.architecture",
        Value::String(row.architecture.to_owned()),
    )?;
    let layers = layer_count(config)?;
    let width = config.size(&["hidden_size", "n_embd"])?;
    let context = config.size(&["max_position_embeddings", "n_positions"])?;
    let heads = config.size(&["num_attention_heads", "n_head"])?;
    out.size("block_count", layers)?;
    out.size("embedding_length", width)?;
    out.size("context_length", context)?;
    out.size("attention.head_count", heads)?;
    let kv_heads = config.optional_size(&["num_key_value_heads"])?;
    let kv_heads = kv_heads.unwrap_or(heads);
    let mut inner = config.optional_size(&["intermediate_size", "n_inner"])?;
    match architecture.recurrent {
        None => out.size("attention.head_count_kv", kv_heads)?,
        Some(_) => {
            let types = config.list("layer_types", layers)?;
            let types = types
                .ok_or_else(|| ImportError::value(name("layer_types"), "is missing"))?
                .iter();
            let of = |kind: &Json| match kind.as_str() {
                Some("full_attention") => Ok(kv_heads as u32),
                Some("conv") => Ok(0),
                _ => Err(unsupported_layer(kind)),
            };
            let counts = types.map(of).collect::<Result<Vec<u32>, ImportError>>()?;
            out.push("attention.head_count_kv", Value::Array(Array::U32(counts)))?;
            out.size("shortconv.l_cache", config.size(&["conv_L_cache"])?)?;
            // The stated width is adjusted by several keys.
            let rows = shape("blk.0.ffn_gate.weight").and_then(|shape| shape.first());
            inner = rows.copied().or(inner);
        }
    }
    if let Some(dim) = config.optional_size(&["head_dim"])? {
        out.size("attention.key_length", dim)?;
        out.size("attention.value_length", dim)?;
    } else if !width.is_multiple_of(heads) {
        let reason = format!("is {heads}, which does not divide the width {width}");
        return Err(ImportError::value(name("num_attention_heads"), reason));
    }
    out.size("feed_forward_length", inner.unwrap_or(4 * width))?;
    check_vocabulary(config, shape)?;
    check_activation(config, &architecture)?;
    check_biases(config, shape)?;
    check_rotated_layers(config, &architecture, layers)?;
    check_fixed(config)?;

    let (keys, own): (&[&'static str], _) = match architecture.norm {
        NormKind::Rms => (&["rms_norm_eps", "norm_eps"], "layer_norm_rms_epsilon"),
        _ => (
            &[
                "layer_norm_eps",
                "layer_norm_epsilon",
                "norm_epsilon",
                "norm_eps",
            ],
            "layer_norm_epsilon",
        ),
    };
    let eps = config.number(keys)?;
    let eps = eps.ok_or_else(|| ImportError::value(name(keys[0]), "is missing"))?;
    out.number(&format!("attention.{own}"), eps)?;

    write_factors(config, &mut out)?;
    if architecture.recurrent.is_none() {
        write_windows(config, row, layers, &mut out)?;
    }
    if architecture.rope.is_some() {
        write_rope(rope, &mut out)?;
    }
    if architecture.experts.is_some() {
        write_experts(config, shape, layers, &mut out)?;
    }
    if row.architecture == "stablelm"
        && let Some(parallel) = config.flag("use_parallel_residual")?
    {
        out.push("use_parallel_residual", Value::Bool(parallel))?;
    }
    if let Some(modules) = modules
        && let Some(pooling) = modules.pooling_type()?
    {
        out.push("pooling_type", Value::U32(pooling))?;
    }
    Ok(out.metadata)
}

/// Factors and caps of embedding, scores, residual stream and logits.
fn write_factors(config: &Config<'_>, out: &mut Writer) -> Result<(), ImportError> {
    let scalar = config.number(&["query_pre_attn_scalar"])?;
    if let Some(bad) = scalar.filter(|scalar| *scalar <= 0.0) {
        let reason = format!("is {bad}, must be above 0");
        return Err(ImportError::value(name("query_pre_attn_scalar"), reason));
    }
    let multiplier = config.number(&["attention_multiplier"])?;
    let scale = scalar.map(|scalar| 1.0 / scalar.sqrt()).or(multiplier);
    out.optional("attention.scale", scale)?;
    out.optional("embedding_scale", config.number(&["embedding_multiplier"])?)?;
    out.optional("residual_scale", config.number(&["residual_multiplier"])?)?;
    out.optional(
        "logit_scale",
        config.number(&["logit_scale", "logits_scaling"])?,
    )?;
    for key in ["attn_logit_softcapping", "final_logit_softcapping"] {
        // 0 turns the architecture's own cap off.
        let cap = config.number(&[key])?;
        out.number(key, cap.unwrap_or(0.0))?;
    }
    Ok(())
}

/// The window, and the layers that have it.
fn write_windows(
    config: &Config<'_>,
    row: &ModelType,
    layers: usize,
    out: &mut Writer,
) -> Result<(), ImportError> {
    let window = config.count(&["sliding_window"])?;
    let used = config.flag("use_sliding_window")?;
    let from = config.count(&["max_window_layers"])?;
    let period = match config.get("sliding_window_pattern") {
        // Exaone's files may write it in letters, the last one for a layer without a window.
        Some(Json::String(letters)) => Some(letters.len()),
        _ => {
            let keys = ["sliding_window_pattern", "_sliding_window_pattern"];
            Some(config.count(&keys)?).filter(|period| *period > 0)
        }
    };
    let local: Vec<bool> = match config.list("layer_types", layers)? {
        Some(types) => {
            let kinds = types.iter().map(|kind| match kind.as_str() {
                Some("sliding_attention") => Ok(true),
                Some("full_attention") => Ok(false),
                _ => Err(unsupported_layer(kind)),
            });
            kinds.collect::<Result<_, _>>()?
        }
        None => {
            let local = |i: usize| match row.windows {
                Windows::All => used != Some(false),
                Windows::AllBut(n) => !(i + 1).is_multiple_of(period.unwrap_or(n)),
                Windows::From => used == Some(true) && i >= from,
            };
            (0..layers).map(local).collect()
        }
    };
    let any = window > 0 && local.contains(&true);
    // 0 turns the architecture's own window off.
    out.size("attention.sliding_window", if any { window } else { 0 })?;
    if any {
        let pattern = Value::Array(Array::Bool(local));
        out.push("attention.sliding_window_pattern", pattern)?;
    }
    Ok(())
}

fn unsupported_layer(kind: &Json) -> ImportError {
    ImportError::unsupported(format!("{kind} in layer_types of config.json"))
}

fn write_rope(rope: &Rope, out: &mut Writer) -> Result<(), ImportError> {
    out.number("rope.freq_base", rope.base)?;
    out.optional("rope.freq_base_swa", rope.window_base)?;
    if let Some(dim) = rope.dim {
        out.size("rope.dimension_count", dim)?;
    }
    let kind = |out: &mut Writer, kind: &str| {
        out.push("rope.scaling.type", Value::String(kind.to_owned()))
    };
    match &rope.scaling {
        Scaling::None | Scaling::Divided { .. } => Ok(()),
        Scaling::Linear { factor } => {
            kind(out, "linear")?;
            out.number("rope.scaling.factor", *factor)
        }
        Scaling::Yarn {
            factor,
            original,
            beta_fast,
            beta_slow,
            attention,
        } => {
            kind(out, "yarn")?;
            out.number("rope.scaling.factor", *factor)?;
            out.size("rope.scaling.original_context_length", *original)?;
            out.number("rope.scaling.yarn_beta_fast", *beta_fast)?;
            out.number("rope.scaling.yarn_beta_slow", *beta_slow)?;
            out.number("rope.scaling.attn_factor", *attention)
        }
        Scaling::Stretched {
            original,
            attention,
            ..
        } => {
            out.size("rope.scaling.original_context_length", *original)?;
            out.optional("rope.scaling.attn_factor", *attention)
        }
    }
}

/// How experts are chosen. Which layers have some, and how wide the shared one is, is seen from the tensors.
fn write_experts(
    config: &Config<'_>,
    shape: ShapeOf<'_>,
    layers: usize,
    out: &mut Writer,
) -> Result<(), ImportError> {
    let all = [
        "num_local_experts",
        "num_experts",
        "n_routed_experts",
        "moe_num_experts",
    ];
    let count = config.count(&all)?;
    let used = config.count(&["num_experts_per_tok", "moe_topk", "moe_k"])?;
    let size = config.count(&["moe_intermediate_size"])?;
    let scale = config.number(&["routed_scaling_factor"])?;
    let normalise = config.flag("norm_topk_prob")?;
    let groups = config.count(&["n_group"])?;
    let used_groups = config.count(&["topk_group"])?;
    // The tensors say how wide the shared experts are as one.
    for key in [
        "shared_expert_intermediate_size",
        "shared_intermediate_size",
        "n_shared_experts",
        "moe_num_shared_experts",
        "num_shared_expert",
    ] {
        config.get(key);
    }
    if count == 0 {
        return Ok(());
    }
    let of_layer = |name: &str| (0..layers).find_map(|i| shape(&format!("blk.{i}.{name}.weight")));
    if of_layer("ffn_gate_inp").is_none() {
        return Ok(());
    }
    let inner = config.optional_size(&["intermediate_size"])?;
    let size = if size > 0 { size } else { inner.unwrap_or(0) };
    out.size("expert_count", count)?;
    out.size("expert_used_count", used)?;
    out.size("expert_feed_forward_length", size)?;
    out.optional("expert_weights_scale", scale)?;
    if let Some(normalise) = normalise {
        out.push("expert_weights_norm", Value::Bool(normalise))?;
    }
    if groups > 1 {
        out.size("expert_group_count", groups)?;
        out.size("expert_group_used_count", used_groups)?;
    }
    if let Some([rows, _]) = of_layer("ffn_up_shexp") {
        out.size("expert_shared_feed_forward_length", *rows)?;
        let shared = rows.checked_div(size).filter(|n| n * size == *rows);
        out.size("expert_shared_count", shared.unwrap_or(0))?;
    }
    Ok(())
}

fn check_vocabulary(config: &Config<'_>, shape: ShapeOf<'_>) -> Result<(), ImportError> {
    let stated = config.optional_size(&["vocab_size"])?;
    let rows = shape("token_embd.weight").and_then(|shape| shape.first());
    match (stated, rows) {
        (Some(stated), Some(rows)) if stated != *rows => {
            let reason = format!("is {stated}, but the embedding has {rows} rows");
            Err(ImportError::value(name("vocab_size"), reason))
        }
        _ => Ok(()),
    }
}

/// Checks that the activation is that of the architecture.
fn check_activation(config: &Config<'_>, architecture: &Architecture) -> Result<(), ImportError> {
    let keys = ["hidden_activation", "hidden_act", "activation_function"];
    let Some(stated) = config.text(&keys)? else {
        return Ok(());
    };
    let (own, squared) = match architecture.mlp {
        Mlp::Plain(own) | Mlp::Gated(own) => (own, false),
        Mlp::PlainSquared(own) => (own, true),
    };
    let function = match stated {
        "silu" | "swish" => (Activation::Silu, false),
        "gelu" => (Activation::GeluErf, false),
        "gelu_pytorch_tanh" | "gelu_new" | "gelu_fast" => (Activation::GeluTanh, false),
        "relu2" => (Activation::Relu, true),
        "relu" => (Activation::Relu, false),
        other => {
            let what = format!("the activation {other:?} of config.json");
            return Err(ImportError::unsupported(what));
        }
    };
    if function != (own, squared) {
        let what = format!(
            "the activation {stated:?} in the architecture {}",
            architecture.name
        );
        return Err(ImportError::unsupported(what));
    }
    Ok(())
}

/// Checks that tensors are there if a key says so, and not there if it denies them.
fn check_biases(config: &Config<'_>, shape: ShapeOf<'_>) -> Result<(), ImportError> {
    let table: [(&'static str, &[&str]); 9] = [
        ("attention_bias", &["attn_q.bias", "attn_qkv.bias"]),
        ("attention_out_bias", &["attn_output.bias"]),
        ("use_qkv_bias", &["attn_q.bias"]),
        ("qkv_bias", &["attn_q.bias"]),
        ("use_bias", &["attn_q.bias"]),
        ("mlp_bias", &["ffn_down.bias"]),
        ("use_qk_norm", &["attn_q_norm.weight"]),
        ("qk_layernorm", &["attn_q_norm.weight"]),
        ("use_mlp_bias", &["ffn_down.bias"]),
    ];
    for (key, tensors) in table {
        let Some(wanted) = config.flag(key)? else {
            continue;
        };
        let mut found = tensors.iter().map(|name| shape(&format!("blk.0.{name}")));
        if found.any(|shape| shape.is_some()) != wanted {
            let reason = match wanted {
                true => "is true, but the first layer has no such tensor",
                false => "is false, but the first layer has such a tensor",
            };
            return Err(ImportError::value(name(key), reason));
        }
    }
    Ok(())
}

/// Checks that the layers that rotate are those of the architecture.
fn check_rotated_layers(
    config: &Config<'_>,
    architecture: &Architecture,
    layers: usize,
) -> Result<(), ImportError> {
    let interval = config.count(&["no_rope_layer_interval"])?;
    let list = config.list("no_rope_layers", layers)?;
    let period = match architecture.rope_layers {
        RopeLayers::AllBut(period) => period,
        _ => 0,
    };
    let rotates = |i: usize| period == 0 || !(i + 1).is_multiple_of(period);
    let agrees = match list {
        // The list has a 1 for a layer that rotates.
        Some(list) => {
            let stated = list.iter().map(|one| one.as_u64() == Some(1));
            stated.enumerate().all(|(i, stated)| stated == rotates(i))
        }
        None => interval == period,
    };
    if agrees {
        return Ok(());
    }
    let what = "no_rope_layers of config.json in other layers than every fourth";
    Err(ImportError::unsupported(what))
}

/// Checks keys that may have one value only.
fn check_fixed(config: &Config<'_>) -> Result<(), ImportError> {
    for (key, only) in [("scale_attn_weights", true), ("is_causal", true)] {
        if config.flag(key)?.is_some_and(|value| value != only) {
            let what = format!("{key} = {} of config.json", !only);
            return Err(ImportError::unsupported(what));
        }
    }
    if let Some(other) = config.text(&["position_embedding_type"])?
        && !["absolute", "rope"].contains(&other)
    {
        let what = format!("position_embedding_type {other:?} of config.json");
        return Err(ImportError::unsupported(what));
    }
    for (key, only) in [("swiglu_alpha", 1.702), ("swiglu_limit", 7.0)] {
        let other = config.number(&[key])?.filter(|x| (x - only).abs() > 1e-6);
        if let Some(other) = other {
            return Err(wrong(key, &other.into(), &only.to_string()));
        }
    }
    Ok(())
}
