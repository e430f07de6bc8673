//! Eagle3 heads as yuhuili and SpecForge (`midlayer.*`) and speculators (`layers.0.*`) store them.

use std::cell::RefCell;
use std::collections::HashSet;

use graph::ops::RopeLayout;
use serde_json::{Map, Value};

use super::file::Safetensors;
use crate::eagle3::{self, ARCHITECTURE, HeadParameters};
use crate::error::{ImportError, ImportErrorDetail};
use crate::lowered::{FeatureLayers, LoweredModel};
use crate::transformer::Weight;

/// Prefixes of the one layer's tensors.
const PREFIXES: [&str; 2] = ["midlayer.", "layers.0."];
/// Tensors of the layer: the name that the builder uses, and the file's.
const LAYER: [(&str, &str); 10] = [
    ("attn_norm", "input_layernorm"),
    ("attn_norm_2", "hidden_norm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];
/// Tensors outside the layer, likewise.
const OUTSIDE: [(&str, &str); 3] = [("fc", "fc"), ("output_norm", "norm"), ("output", "lm_head")];
/// Tensors that a head may have and that are not needed: the target's embedding is used, of which the first is a copy, and
/// `t2d` follows from `d2t`.
const NOT_NEEDED: [&str; 3] = ["embed_tokens.weight", "t2d", "d2t"];

/// Upper bound of sizes; a larger number means a damaged file.
const MOST: u64 = 1 << 24;

/// Whether a file is a head.
pub(super) fn is_head(file: &Safetensors) -> bool {
    prefix(file).is_some()
}

fn prefix(file: &Safetensors) -> Option<&'static str> {
    PREFIXES.into_iter().find(|prefix| {
        let norm = format!("{prefix}hidden_norm.weight");
        file.tensor(&norm).is_some()
    })
}

pub(super) fn lower(file: &Safetensors) -> Result<LoweredModel, ImportError> {
    let Some(prefix) = prefix(file) else {
        let what = "a safetensors model that is not an Eagle3 head (no tensor midlayer.hidden_norm.weight or \
                    layers.0.hidden_norm.weight)";
        return Err(ImportError::unsupported(what));
    };
    let head = parameters(file)?;
    check_shapes(file, prefix, &head)?;
    let used = RefCell::new(HashSet::new());
    let lookup = |name: &str| {
        let name = stored_name(name, prefix)?;
        let tensor = file.tensor(&name)?;
        used.borrow_mut().insert(name);
        Some(Weight {
            dtype: tensor.dtype,
            shape: tensor.shape.clone(),
            data: Some(tensor.data.clone()),
        })
    };
    let lowered = eagle3::lower(head, &lookup)?;
    let used = used.into_inner();
    let known = |name: &str| used.contains(name) || NOT_NEEDED.contains(&name);
    let mut names = file.tensors.iter().map(|tensor| &tensor.name);
    if let Some(name) = names.find(|name| !known(name)) {
        let (name, architecture) = (name.clone(), ARCHITECTURE.to_owned());
        return Err(ImportErrorDetail::UnusedTensor { name, architecture }.into());
    }
    Ok(lowered)
}

/// The file's name of a weight or bias of the builder.
fn stored_name(name: &str, prefix: &str) -> Option<String> {
    let (name, kind) = name.rsplit_once('.')?;
    let of = |table: &[(&str, &'static str)], name: &str| {
        let found = table.iter().find(|(builder, _)| *builder == name);
        found.map(|(_, stored)| *stored)
    };
    Some(match name.strip_prefix("blk.0.") {
        Some(name) => format!("{prefix}{}.{kind}", of(&LAYER, name)?),
        None => format!("{}.{kind}", of(&OUTSIDE, name)?),
    })
}

/// Checks that the weights are there in the sizes of the configuration, with the file's own names in messages.
fn check_shapes(
    file: &Safetensors,
    prefix: &str,
    head: &HeadParameters,
) -> Result<(), ImportError> {
    let (width, vocab) = (head.hidden_size, head.target_tokens.len());
    let (queries, keys) = (head.heads * head.key_dim, head.kv_heads * head.key_dim);
    let wanted = |name: &str| match name {
        "fc" => vec![width, head.target_layers.len() * head.target_hidden_size],
        "output" => vec![vocab, width],
        "attn_q" => vec![queries, 2 * width],
        "attn_k" | "attn_v" => vec![keys, 2 * width],
        "attn_output" => vec![width, queries],
        "ffn_gate" | "ffn_up" => vec![head.mlp_size, width],
        "ffn_down" => vec![width, head.mlp_size],
        _ => vec![width],
    };
    let layer = LAYER.map(|(name, stored)| (name, format!("{prefix}{stored}.weight")));
    let outside = OUTSIDE.map(|(name, stored)| (name, format!("{stored}.weight")));
    for (name, stored) in layer.into_iter().chain(outside) {
        let tensor = file.tensor(&stored);
        let tensor = tensor.ok_or_else(|| ImportError::missing_tensor(&stored))?;
        let wanted = wanted(name);
        if tensor.shape != wanted {
            return Err(ImportErrorDetail::Shape {
                name: stored,
                found: tensor.shape.clone(),
                wanted,
            }
            .into());
        }
    }
    Ok(())
}

/// Reads `config.json`: flat, or with the layer's parameters in `transformer_layer_config`.
fn parameters(file: &Safetensors) -> Result<HeadParameters, ImportError> {
    let config = &file.config;
    let layer = config.get("transformer_layer_config");
    let layer = layer.and_then(Value::as_object).unwrap_or(config);
    for key in ["norm_before_fc", "fc_norm"] {
        if flag(config, key)? == Some(true) {
            return Err(ImportError::unsupported(format!("{key} = true")));
        }
    }
    let scaling = layer.get("rope_scaling").filter(|value| !value.is_null());
    let scaling = scaling.map(|scaling| {
        let kind = scaling.get("rope_type").or_else(|| scaling.get("type"));
        kind.and_then(Value::as_str).unwrap_or("unknown")
    });
    if let Some(kind) = scaling.filter(|kind| *kind != "default") {
        return Err(ImportError::unsupported(format!("rope_scaling {kind:?}")));
    }
    let hidden_size = required(layer, "hidden_size")?;
    let heads = required(layer, "num_attention_heads")?;
    let kv_heads = optional(layer, "num_key_value_heads")?.unwrap_or(heads);
    if !heads.is_multiple_of(kv_heads) {
        let reason = format!("is {kv_heads}, which does not divide {heads} heads");
        return Err(ImportError::value("num_key_value_heads", reason));
    }
    let target_hidden_size = optional(config, "target_hidden_size")?.unwrap_or(hidden_size);
    let key_dim = optional(layer, "head_dim")?.unwrap_or(hidden_size / heads);
    let name = config.get("_name_or_path").and_then(Value::as_str);
    Ok(HeadParameters {
        name: name.filter(|name| !name.is_empty()).map(str::to_owned),
        hidden_size,
        mlp_size: required(layer, "intermediate_size")?,
        heads,
        kv_heads,
        key_dim,
        eps: number(layer, "rms_norm_eps")?.unwrap_or(1e-6),
        rope_layout: RopeLayout::Halves,
        rope_base: number(layer, "rope_theta")?.unwrap_or(10000.0),
        context_length: required(layer, "max_position_embeddings")?,
        norm_before_residual: flag(config, "norm_before_residual")?.unwrap_or(false),
        target_layers: target_layers(config)?,
        target_hidden_size,
        target_tokens: target_tokens(file)?,
    })
}

/// The target's layers. The list at the top level (vLLM's form) counts layers by their inputs; the one in `eagle_config`
/// (SGLang's form) by their outputs.
fn target_layers(config: &Map<String, Value>) -> Result<FeatureLayers, ImportError> {
    const KEY: &str = "eagle_aux_hidden_state_layer_ids";
    let nested = config.get("eagle_config").and_then(|part| part.get(KEY));
    let listed = [(config.get(KEY), 0), (nested, 1)].into_iter();
    let mut listed = listed.filter_map(|(list, add)| Some((list.filter(|l| !l.is_null())?, add)));
    let Some((list, add)) = listed.next() else {
        return Ok(FeatureLayers::Standard);
    };
    let layer =
        |id: &Value| Some(usize::try_from(id.as_u64().filter(|id| *id < MOST)?).ok()? + add);
    let layers = list.as_array().filter(|list| !list.is_empty());
    let layers: Option<Vec<usize>> = layers.and_then(|list| list.iter().map(layer).collect());
    let layers = layers.ok_or_else(|| {
        let reason = format!("is {list}, must be a list of layers");
        ImportError::value(KEY, reason)
    })?;
    Ok(FeatureLayers::Listed(layers))
}

/// The tokens of the target: `d2t` has the distance from a token of the head to the target's. Without it the vocabulary
/// is not reduced.
fn target_tokens(file: &Safetensors) -> Result<Vec<u32>, ImportError> {
    let Some(tensor) = file.tensor("d2t") else {
        let name = "lm_head.weight";
        let output = file.tensor(name);
        let output = output.ok_or_else(|| ImportError::missing_tensor(name))?;
        let rows = output.shape.first().copied().unwrap_or(0);
        return Ok((0..u32::try_from(rows).unwrap_or(0)).collect());
    };
    let distances = eagle3::integers(tensor.dtype, &tensor.data)?;
    let ids = (0i64..).zip(distances);
    ids.map(|(own, distance)| eagle3::token(own.saturating_add(distance)))
        .collect()
}

fn required(json: &Map<String, Value>, key: &str) -> Result<usize, ImportError> {
    let found = optional(json, key)?;
    found.ok_or_else(|| ImportError::value(format!("{key} of config.json"), "is missing"))
}

fn optional(json: &Map<String, Value>, key: &str) -> Result<Option<usize>, ImportError> {
    let Some(value) = json.get(key).filter(|value| !value.is_null()) else {
        return Ok(None);
    };
    let size = value.as_u64().filter(|n| (1..=MOST).contains(n));
    match size {
        Some(n) => Ok(Some(n as usize)),
        None => Err(wrong(key, value, "a number from 1 to 16777216")),
    }
}

fn number(json: &Map<String, Value>, key: &str) -> Result<Option<f32>, ImportError> {
    let Some(value) = json.get(key).filter(|value| !value.is_null()) else {
        return Ok(None);
    };
    let found = value.as_f64().map(|x| x as f32);
    let found = found.filter(|x| x.is_finite() && *x > 0.0);
    found.map_or_else(
        || Err(wrong(key, value, "a positive number")),
        |x| Ok(Some(x)),
    )
}

fn flag(json: &Map<String, Value>, key: &str) -> Result<Option<bool>, ImportError> {
    let Some(value) = json.get(key).filter(|value| !value.is_null()) else {
        return Ok(None);
    };
    let found = value.as_bool();
    found.map_or_else(|| Err(wrong(key, value, "true or false")), |x| Ok(Some(x)))
}

fn wrong(key: &str, value: &Value, must: &str) -> ImportError {
    ImportError::value(
        format!("{key} of config.json"),
        format!("is {value}, must be {must}"),
    )
}
