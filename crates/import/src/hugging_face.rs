//! Models built from a Hugging Face `config.json` alone, without weights: they can be planned, not run.

use std::path::Path;

use base::{Bytes, DType};
use graph::Graph;
use serde_json::Value;

use crate::error::{ImportError, ImportErrorDetail};
use crate::gguf::architecture::Architecture;
use crate::model_facts::{ModelFacts, Pooling};
use crate::transformer::{
    self, AttentionSpec, LayerSpec, Norm, RopeScaling, RopeSpec, TransformerSpec, Weight,
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
const TYPES: [(&str, &str, bool); 12] = [
    ("llama", "llama", false),
    ("mistral", "llama", false),
    ("qwen2", "qwen2", false),
    ("qwen3", "qwen3", false),
    ("gemma", "gemma", true),
    ("gemma2", "gemma2", true),
    ("gemma3_text", "gemma3", true),
    ("gemma3", "gemma3", true),
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
        let layer = |window| LayerSpec {
            attention: AttentionSpec {
                heads,
                kv_heads,
                key_dim: head_dim,
                value_dim: head_dim,
                window,
                scale: 1.0,
                softcap: None,
            },
            rope: row.rope.map(|_| 0),
            mlp_size: mlp_size.unwrap_or(4 * hidden_size),
        };
        let rope = row.rope.map(|layout| RopeSpec {
            layout,
            dim: (head_dim / 2 * 2).max(2),
            base: 10000.0,
            scaling: RopeScaling::None,
            attention_factor: 1.0,
        });
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
            embedding_norm: row.embedding_norm,
            context: row.context,
            norm_places: row.norm_places,
            biases: row.biases,
            mlp: row.mlp,
            ropes: rope.into_iter().collect(),
            final_softcap: None,
            layers: self.windows(layers)?.into_iter().map(layer).collect(),
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

    /// The bytes of all weights.
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
