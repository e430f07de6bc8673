//! Models built from a Hugging Face `config.json` alone, without weights: they can be planned, not run.

use std::path::Path;

use base::{Bytes, DType};
use graph::Graph;
use serde_json::Value;

use crate::error::{ImportError, ImportErrorDetail};
use crate::gguf::architecture::Architecture;
use crate::model_facts::{ModelFacts, Pooling};
use crate::transformer::{
    self, AttentionSpec, KvSource, LayerSpec, Mixer, Norm, RopeScaling, RopeSpec, TransformerSpec,
    Weight,
};

/// A model without its weights.
#[derive(Clone, Debug)]
pub struct Blueprint {
    /// `model_type` of the configuration.
    pub architecture: String,
    /// The graph `forward` (see [`transformer`]), with the weights as inputs after its own three.
    pub graph: Graph,
    /// Facts that caches and runners need.
    pub facts: ModelFacts,
}

/// Number of inputs of the graph `forward` that are not weights.
pub const STEP_INPUTS: usize = 3;

/// Upper bound of layers, heads and tokens; a larger number means a damaged file.
const MOST: u64 = 1 << 24;
const MAX_LAYERS: usize = 4096;

/// A `model_type`, the architecture it is built as, and whether its head is tied to the embedding by default.
const TYPES: [(&str, &str, bool); 14] = [
    ("llama", "llama", false),
    ("mistral", "llama", false),
    ("qwen2", "qwen2", false),
    ("qwen3", "qwen3", false),
    ("gemma", "gemma", true),
    ("gemma2", "gemma2", true),
    ("gemma3_text", "gemma3", true),
    ("gemma3", "gemma3", true),
    ("gemma4_text", "gemma4", true),
    ("gemma4", "gemma4", true),
    ("phi3", "phi3", false),
    ("gpt2", "gpt2", true),
    ("bert", "bert", true),
    ("nomic_bert", "nomic-bert", true),
];

impl Blueprint {
    /// Whether the file at `path` is a configuration and not a model file.
    pub fn is_config(path: &Path) -> bool {
        let json = path.extension().is_some_and(|e| e == "json");
        json && path.is_file()
    }

    /// Reads the configuration at `path`.
    pub fn open(path: &Path) -> Result<Blueprint, ImportError> {
        let read = || Blueprint::parse(&Bytes::map(path)?);
        read().map_err(|error: ImportError| error.in_file(path))
    }

    /// Reads a configuration.
    pub fn parse(json: &[u8]) -> Result<Blueprint, ImportError> {
        let whole: Value = serde_json::from_slice(json).map_err(|e| {
            ImportError::value("the configuration", format!("is not valid JSON: {e}"))
        })?;
        // Multimodal configurations keep the text decoder's parameters in `text_config`.
        let part = whole.get("text_config").unwrap_or(&whole);
        let kind = part.get("model_type").or_else(|| whole.get("model_type"));
        let kind = kind.and_then(Value::as_str).unwrap_or_default();
        let Some((_, row, tied)) = TYPES.into_iter().find(|(name, ..)| *name == kind) else {
            return Err(ImportErrorDetail::UnknownArchitecture {
                name: kind.to_owned(),
                known: TYPES.map(|(name, ..)| name).join(", "),
            }
            .into());
        };
        let config = Config {
            json: part,
            row: Architecture::find(row).expect("every type names a row"),
        };
        let (spec, context_length) = config.spec()?;
        let tied = config.flag("tie_word_embeddings").unwrap_or(tied);
        let dtype = config.dtype(&whole)?;
        let graph = transformer::build(&spec, &|name| {
            let fused = name.ends_with("attn_qkv.weight");
            let optional_bias = name.ends_with(".bias") && !config.has_bias(name);
            let absent = fused || optional_bias || (tied && name == "output.weight");
            (!absent).then(|| Weight::placeholder(dtype))
        })?;
        // Configurations do not state the pooling.
        let embedding = (!spec.decodes()).then_some(Pooling::Mean);
        Ok(Blueprint {
            architecture: kind.to_owned(),
            graph,
            facts: ModelFacts::of(&spec, context_length, embedding),
        })
    }
}

/// Parameters of a configuration.
struct Config<'a> {
    json: &'a Value,
    row: Architecture,
}

impl Config<'_> {
    fn spec(&self) -> Result<(TransformerSpec, usize), ImportError> {
        let row = &self.row;
        let hidden_size = self.size(&["hidden_size", "n_embd"])?;
        let layers = self.size(&["num_hidden_layers", "n_layer"])?;
        if layers > MAX_LAYERS {
            let reason = format!("is {layers}, must be at most {MAX_LAYERS}");
            return Err(ImportError::value("num_hidden_layers", reason));
        }
        let heads = self.size(&["num_attention_heads", "n_head"])?;
        let kv_heads = self.optional(&["num_key_value_heads"])?.unwrap_or(heads);
        if kv_heads > heads || !heads.is_multiple_of(kv_heads) {
            let reason = format!("is {kv_heads}, which does not divide {heads} heads");
            return Err(ImportError::value("num_key_value_heads", reason));
        }
        let head_dim = self.optional(&["head_dim"])?;
        let head_dim = head_dim.unwrap_or(hidden_size / heads).max(1);
        let mlp_size = self.optional(&["intermediate_size", "n_inner"])?;
        let context_length = self.size(&["max_position_embeddings", "n_positions"])?;
        let windows = self.windows(layers)?;
        let shared = self.count("num_kv_shared_layers")?;
        let Some(owners) = layers.checked_sub(shared) else {
            let reason = format!("is {shared}, but there are {layers} layers");
            return Err(ImportError::value("num_kv_shared_layers", reason));
        };
        let double = self.flag("use_double_wide_mlp") == Some(true);
        let one_projection = self.flag("attention_k_eq_v") == Some(true);
        // Layers without a window may have other heads.
        let global_dim = match row.value_norm {
            true => self.optional(&["global_head_dim"])?.unwrap_or(512),
            false => head_dim,
        };
        let global_kv_heads = self.optional(&["num_global_key_value_heads"])?;
        let global_kv_heads = global_kv_heads.filter(|_| one_projection);
        let layer = |(i, window): (usize, Option<u32>)| {
            let dim = if window.is_some() {
                head_dim
            } else {
                global_dim
            };
            let own_kv_heads = global_kv_heads.filter(|_| window.is_none());
            let owner = || windows[..owners].iter().rposition(|w| *w == window);
            let wide = double && i >= owners;
            LayerSpec {
                mixer: Mixer::Attention(AttentionSpec {
                    heads,
                    kv_heads: own_kv_heads.unwrap_or(kv_heads),
                    key_dim: dim,
                    value_dim: dim,
                    window,
                    scale: 1.0,
                    softcap: None,
                    output_gate: false,
                    latent: None,
                }),
                rope: row.rope.map(|_| usize::from(dim != head_dim)),
                mlp_size: mlp_size.unwrap_or(4 * hidden_size) * if wide { 2 } else { 1 },
                experts: None,
                kv: match owner() {
                    // The builder refuses a layer that names itself.
                    owner if i >= owners => KvSource::Layer(owner.unwrap_or(i)),
                    _ if one_projection && window.is_none() => KvSource::KeysAsValues,
                    _ => KvSource::Projected,
                },
            }
        };
        let rope = |dim: usize| {
            row.rope.map(|layout| RopeSpec {
                layout,
                dim: (dim / 2 * 2).max(2),
                base: 10000.0,
                scaling: RopeScaling::None,
                attention_factor: 1.0,
            })
        };
        let ropes = [Some(head_dim), Some(global_dim).filter(|d| *d != head_dim)];
        let spec = TransformerSpec {
            vocab_size: self.size(&["vocab_size"])?,
            hidden_size,
            embedding_scale: row.scale_embedding.then_some(1.0),
            learned_positions: row.rope.is_none().then_some(context_length),
            norm: Norm {
                kind: row.norm,
                eps: 1e-6,
            },
            qk_norm: row.qk_norm,
            value_norm: row.value_norm,
            per_layer_input: match row.value_norm {
                true => Some(self.count("hidden_size_per_layer_input")?).filter(|n| *n > 0),
                false => None,
            },
            layer_scales: row.layer_scales,
            sinks: row.sinks,
            embedding_norm: row.embedding_norm,
            context: row.context,
            norm_places: row.norm_places,
            biases: row.biases,
            mlp: row.mlp,
            ropes: ropes.into_iter().flatten().filter_map(rope).collect(),
            residual_scale: None,
            logit_scale: None,
            final_softcap: None,
            layers: windows.iter().copied().enumerate().map(layer).collect(),
        };
        Ok((spec, context_length))
    }

    /// Each layer's window, by the list of layer types, by a period, or the same for all.
    fn windows(&self, layers: usize) -> Result<Vec<Option<u32>>, ImportError> {
        let window = self.optional(&["sliding_window"])?;
        let window = window.map(|w| w as u32).or(self.row.window);
        let window = window.filter(|_| self.flag("use_sliding_window") != Some(false));
        let Some(window) = window else {
            return Ok(vec![None; layers]);
        };
        if let Some(types) = self.json.get("layer_types").and_then(Value::as_array) {
            if types.len() != layers {
                let reason = format!("has {} entries for {layers} layers", types.len());
                return Err(ImportError::value("layer_types", reason));
            }
            let local = |kind: &Value| kind.as_str() == Some("sliding_attention");
            let windows = types.iter().map(|kind| local(kind).then_some(window));
            return Ok(windows.collect());
        }
        let period = self.optional(&["sliding_window_pattern", "_sliding_window_pattern"])?;
        let period = period.unwrap_or(self.row.window_period);
        let local = |i: usize| !(i + 1).is_multiple_of(period);
        Ok((0..layers).map(|i| local(i).then_some(window)).collect())
    }

    fn has_bias(&self, name: &str) -> bool {
        let biases = self.row.biases;
        let is = |part: &str| name.contains(part);
        (biases.qkv && (is("attn_q.") || is("attn_k.") || is("attn_v.")))
            || (biases.output && is("attn_output."))
            || (biases.mlp && is("ffn_"))
            || (is("norm.") && self.row.norm == transformer::NormKind::Layer)
    }

    fn dtype(&self, whole: &Value) -> Result<DType, ImportError> {
        let named = [self.json, whole]
            .into_iter()
            .flat_map(|part| [part.get("torch_dtype"), part.get("dtype")])
            .flatten()
            .find_map(Value::as_str);
        match named.unwrap_or("float32") {
            "float32" => Ok(DType::F32),
            "float16" => Ok(DType::F16),
            "bfloat16" => Ok(DType::BF16),
            other => Err(ImportError::unsupported(format!(
                "weights of type {other:?}"
            ))),
        }
    }

    /// A number that may be absent or 0.
    fn count(&self, key: &str) -> Result<usize, ImportError> {
        match self.json.get(key).and_then(Value::as_u64) {
            Some(0) => Ok(0),
            _ => Ok(self.optional(&[key])?.unwrap_or(0)),
        }
    }

    fn flag(&self, key: &str) -> Option<bool> {
        self.json.get(key)?.as_bool()
    }

    fn size(&self, keys: &[&str]) -> Result<usize, ImportError> {
        self.optional(keys)?
            .ok_or_else(|| ImportError::value(keys[0], "is missing"))
    }

    fn optional(&self, keys: &[&str]) -> Result<Option<usize>, ImportError> {
        let found = keys
            .iter()
            .find_map(|key| Some((*key, self.json.get(key).filter(|v| !v.is_null())?)));
        let Some((key, value)) = found else {
            return Ok(None);
        };
        let size = value.as_u64().filter(|n| (1..=MOST).contains(n));
        match size {
            Some(n) => Ok(Some(n as usize)),
            None => Err(ImportError::value(
                key,
                format!("is {value}, must be a number from 1 to {MOST}"),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GEMMA: &str = r#"{ "model_type": "gemma3_text", "hidden_size": 640, "num_hidden_layers": 18,
        "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256, "intermediate_size": 2048,
        "vocab_size": 262144, "max_position_embeddings": 32768, "sliding_window": 512, "torch_dtype": "bfloat16" }"#;

    /// The number of elements of all weights.
    fn elements(graph: &Graph) -> usize {
        let weights = graph.inputs()[STEP_INPUTS..].iter();
        weights
            .map(|id| graph.tensor(*id).ty.dims(&Default::default()).unwrap())
            .map(|dims| dims.iter().product::<usize>())
            .sum()
    }

    #[test]
    fn a_blueprint_has_the_sizes_of_its_model() {
        let blueprint = Blueprint::parse(GEMMA.as_bytes()).unwrap();
        // The size of the published model.
        assert_eq!(elements(&blueprint.graph), 268_098_176);
        let windows: Vec<_> = blueprint.facts.caches.iter().map(|c| c.window).collect();
        assert_eq!(windows.iter().filter(|w| w.is_none()).count(), 3);
        assert_eq!((windows[4], windows[5]), (Some(512), None));
    }

    /// Layers with windows of one head size and without of another; the last 20 have no keys and values.
    const GEMMA4: &str = r#"{ "model_type": "gemma4", "text_config": { "model_type": "gemma4_text", "hidden_size": 1536,
        "num_hidden_layers": 35, "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 256,
        "global_head_dim": 512, "intermediate_size": 6144, "use_double_wide_mlp": true, "vocab_size": 262144,
        "max_position_embeddings": 131072, "sliding_window": 512, "_sliding_window_pattern": 5,
        "num_kv_shared_layers": 20, "hidden_size_per_layer_input": 256, "dtype": "bfloat16" } }"#;

    #[test]
    fn layers_that_share_keys_and_values_have_one_cache() {
        let blueprint = Blueprint::parse(GEMMA4.as_bytes()).unwrap();
        let caches = &blueprint.facts.caches;
        assert_eq!(caches.len(), 15);
        let sizes = |i: usize| (caches[i].key_dim, caches[i].window);
        assert_eq!((sizes(13), sizes(14)), ((256, Some(512)), (512, None)));
        let attention = graph_nodes(&blueprint.graph, "update_and_attend");
        assert_eq!(attention, 35);
        let alone = GEMMA4.replacen("layers\": 20", "layers\": 36", 1);
        let error = Blueprint::parse(alone.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("num_kv_shared_layers"), "{error}");
        let alone = GEMMA4.replacen("layers\": 20", "layers\": 35", 1);
        let error = Blueprint::parse(alone.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("layer 0 cannot share"), "{error}");
    }

    fn graph_nodes(graph: &Graph, op: &str) -> usize {
        let nodes = graph.nodes().iter();
        nodes.filter(|node| node.op.name() == op).count()
    }

    #[test]
    fn an_encoder_is_planned_without_caches() {
        let blueprint = Blueprint::parse(
            br#"{ "model_type": "bert", "hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12,
            "intermediate_size": 1536, "vocab_size": 30522, "max_position_embeddings": 512 }"#,
        )
        .unwrap();
        let facts = &blueprint.facts;
        assert!(facts.caches.is_empty() && facts.pooling.is_some());
        // The size of the published model, without its pooler and its second token type.
        assert_eq!(elements(&blueprint.graph), 22_713_216 - 147_840 - 384);
    }

    #[test]
    fn what_cannot_be_planned_is_named() {
        let wrong = |from: &str, to: &str| {
            let text = GEMMA.replacen(from, to, 1);
            assert_ne!(text, GEMMA);
            Blueprint::parse(text.as_bytes()).unwrap_err().to_string()
        };
        let table = [
            (wrong("gemma3_text", "mamba"), "\"mamba\""),
            (wrong("\"head_dim\": 256", "\"head_dim\": 0"), "head_dim"),
            (wrong("18", "1e9"), "num_hidden_layers"),
            (wrong("18", "5000"), "at most 4096"),
            (wrong("\"hidden_size\"", "\"x\""), "hidden_size is missing"),
            (
                wrong("heads\": 1,", "heads\": 3,"),
                "does not divide 4 heads",
            ),
            (wrong("bfloat16", "int7"), "int7"),
            (wrong("{", "["), "is not valid JSON"),
        ];
        for (found, part) in table {
            assert!(found.contains(part), "{found}");
        }
    }
}
