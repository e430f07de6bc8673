//! Folders of ONNX Runtime GenAI: `genai_config.json`, the model that it names, and the sidecar files of the tokenizer.

use std::path::{Component, Path, PathBuf};

use base::Bytes;
use serde_json::{Map, Value};

use crate::error::ImportError;
use crate::safetensors::Safetensors;

/// Name of GenAI's configuration file.
pub const CONFIG: &str = "genai_config.json";

/// Contents of `genai_config.json` for a decoder.
#[derive(Clone, Debug, PartialEq)]
pub struct GenAi {
    /// The architecture, as the file calls it.
    pub model_type: String,
    /// The model's file, inside the folder.
    pub filename: PathBuf,
    /// Context length in positions.
    pub context_length: Option<usize>,
    /// Vocabulary size.
    pub vocab_size: Option<usize>,
    /// The token that begins a text.
    pub bos: Option<u32>,
    /// The tokens that end a text.
    pub eos: Vec<u32>,
    /// Padding token.
    pub pad: Option<u32>,
    /// Elements of a head of keys and values. The builder's files call this size `kv_cache_dim`.
    pub head_size: Option<usize>,
    /// Names of the decoder's inputs and outputs.
    pub names: DecoderNames,
    /// Default sampling options.
    pub search: SearchOptions,
    /// Settings that kvark does not support, such as `search.num_beams: 4`.
    pub not_honoured: Vec<String>,
}

/// Names of a decoder's inputs and outputs. In the names of caches, `%d` stands for the layer number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecoderNames {
    /// The tokens.
    pub input_ids: String,
    /// Their positions.
    pub position_ids: String,
    /// Mask of valid positions, including past ones.
    pub attention_mask: String,
    /// The cached keys.
    pub past_key: String,
    /// The cached values.
    pub past_value: String,
    /// The row that a static cache is written at.
    pub write_indices: String,
    /// The valid rows of a static cache after the step.
    pub nonpad_kv_seqlen: String,
    /// The logits.
    pub logits: String,
    /// The keys after the step.
    pub present_key: String,
    /// The values after the step.
    pub present_value: String,
}

/// Sampling options; `None` where the file states none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SearchOptions {
    /// Whether to sample; otherwise the most likely token is taken.
    pub do_sample: Option<bool>,
    /// Divides the logits.
    pub temperature: Option<f32>,
    /// Number of most likely tokens to sample from.
    pub top_k: Option<usize>,
    /// Cumulative probability of the most likely tokens to sample from.
    pub top_p: Option<f32>,
    /// Repetition penalty.
    pub repetition_penalty: Option<f32>,
    /// Maximum number of tokens, prompt included.
    pub max_length: Option<usize>,
}

impl SearchOptions {
    /// The options of a `generation_config.json`.
    fn of_generation_config(bytes: &[u8]) -> Result<SearchOptions, ImportError> {
        let json: Value = serde_json::from_slice(bytes).map_err(|error| {
            ImportError::malformed(
                "generation_config.json",
                format!("is not valid JSON: {error}"),
            )
        })?;
        SearchOptions::read(&JsonObject::of(Some(&json), "generation_config.json"))
    }

    fn read(search: &JsonObject<'_>) -> Result<SearchOptions, ImportError> {
        Ok(SearchOptions {
            do_sample: search.flag("do_sample")?,
            temperature: search.number("temperature")?,
            top_k: search.size("top_k")?,
            top_p: search.number("top_p")?,
            repetition_penalty: search.number("repetition_penalty")?,
            max_length: search.size("max_length")?,
        })
    }
}

impl Default for DecoderNames {
    /// GenAI's own defaults.
    fn default() -> DecoderNames {
        let name = str::to_owned;
        DecoderNames {
            input_ids: name("input_ids"),
            position_ids: name("position_ids"),
            attention_mask: name("attention_mask"),
            past_key: name("past_key_values.%d.key"),
            past_value: name("past_key_values.%d.value"),
            write_indices: name("write_indices"),
            nonpad_kv_seqlen: name("nonpad_kv_seqlen"),
            logits: name("logits"),
            present_key: name("present.%d.key"),
            present_value: name("present.%d.value"),
        }
    }
}

impl DecoderNames {
    /// Default names of static exports.
    pub fn static_cache() -> DecoderNames {
        let name = str::to_owned;
        DecoderNames {
            past_key: name("key_cache.%d"),
            past_value: name("value_cache.%d"),
            present_key: name("updated_key_cache.%d"),
            present_value: name("updated_value_cache.%d"),
            ..DecoderNames::default()
        }
    }
}

impl GenAi {
    /// Reads a folder's configuration.
    pub fn open(folder: &Path) -> Result<GenAi, ImportError> {
        let path = folder.join(CONFIG);
        let read = || GenAi::parse(&Bytes::map(&path)?);
        read().map_err(|error: ImportError| error.in_file(&path))
    }

    /// Reads a configuration.
    pub fn parse(bytes: &[u8]) -> Result<GenAi, ImportError> {
        let json: Value = serde_json::from_slice(bytes).map_err(|error| {
            ImportError::malformed("the configuration", format!("is not valid JSON: {error}"))
        })?;
        let model = object(&json, "model")?;
        let decoder = JsonObject::of(model.child("decoder"), "model.decoder");
        let defaults = DecoderNames::default();
        let inputs = JsonObject::of(decoder.child("inputs"), "model.decoder.inputs");
        let outputs = JsonObject::of(decoder.child("outputs"), "model.decoder.outputs");
        let names = DecoderNames {
            input_ids: inputs.name("input_ids", defaults.input_ids)?,
            position_ids: inputs.name("position_ids", defaults.position_ids)?,
            attention_mask: inputs.name("attention_mask", defaults.attention_mask)?,
            past_key: inputs.pattern("past_key_names", defaults.past_key)?,
            past_value: inputs.pattern("past_value_names", defaults.past_value)?,
            write_indices: inputs.name("write_indices", defaults.write_indices)?,
            nonpad_kv_seqlen: inputs.name("nonpad_kv_seqlen", defaults.nonpad_kv_seqlen)?,
            logits: outputs.name("logits", defaults.logits)?,
            present_key: outputs.pattern("present_key_names", defaults.present_key)?,
            present_value: outputs.pattern("present_value_names", defaults.present_value)?,
        };
        let filename = PathBuf::from(decoder.name("filename", "model.onnx".into())?);
        if !inside(&filename) {
            let what = format!("model.decoder.filename {filename:?}");
            return Err(ImportError::malformed(
                what,
                "is not a file inside the folder",
            ));
        }
        let search = match json.get("search") {
            Some(_) => object(&json, "search")?,
            None => JsonObject::of(None, "search"),
        };
        let context_length = model.size("context_length")?;
        let mut not_honoured = not_honoured(&search, context_length);
        let parts = ["encoder", "embedding", "vision", "speech"];
        let parts = parts.iter().filter(|part| model.child(part).is_some());
        not_honoured.extend(parts.map(|part| format!("model.{part}")));
        Ok(GenAi {
            model_type: model.name("type", "onnx".into())?,
            filename,
            context_length,
            vocab_size: model.size("vocab_size")?,
            bos: model.ids("bos_token_id")?.first().copied(),
            eos: model.ids("eos_token_id")?,
            pad: model.ids("pad_token_id")?.first().copied(),
            head_size: decoder.size("head_size")?,
            names,
            search: SearchOptions::read(&search)?,
            not_honoured,
        })
    }
}

/// Search settings that would change the text and are not supported. Settings with a neutral value, such as one beam, are
/// omitted, and so are beam settings if there is one beam.
fn not_honoured(search: &JsonObject<'_>, context: Option<usize>) -> Vec<String> {
    const HONOURED: [&str; 5] = [
        "do_sample",
        "temperature",
        "top_k",
        "top_p",
        "repetition_penalty",
    ];
    const OF_BEAMS: [&str; 3] = ["early_stopping", "length_penalty", "diversity_penalty"];
    let number = |key: &str| search.child(key).and_then(Value::as_f64);
    let one_beam = number("num_beams").is_none_or(|n| n <= 1.0);
    let means_nothing = |key: &str| match key {
        key if HONOURED.contains(&key) => true,
        key if OF_BEAMS.contains(&key) => one_beam,
        "num_beams" | "num_return_sequences" => number(key) == Some(1.0),
        "min_length" | "no_repeat_ngram_size" => number(key) == Some(0.0),
        "random_seed" => number(key) == Some(-1.0),
        // The context length limits a text anyway.
        "max_length" => number(key).is_some_and(|n| context.is_some_and(|c| n >= c as f64)),
        // Buffer and batching settings of ONNX Runtime.
        "past_present_share_buffer" | "chunk_size" | "batch_size" => true,
        _ => false,
    };
    let settings = search.map.into_iter().flatten();
    let asked = settings.filter(|(key, value)| !value.is_null() && !means_nothing(key));
    asked
        .map(|(key, value)| format!("{}.{key}: {value}", search.place))
        .collect()
}

/// Whether a relative path stays inside the folder.
fn inside(path: &Path) -> bool {
    let mut parts = path.components();
    path.file_name().is_some() && parts.all(|part| matches!(part, Component::Normal(_)))
}

/// Typed access to a JSON object, with its path for messages.
struct JsonObject<'a> {
    map: Option<&'a Map<String, Value>>,
    place: &'static str,
}

fn object<'a>(json: &'a Value, key: &'static str) -> Result<JsonObject<'a>, ImportError> {
    match json.get(key).and_then(Value::as_object) {
        map @ Some(_) => Ok(JsonObject { map, place: key }),
        None => Err(ImportError::malformed(
            "the configuration",
            format!("has no object {key:?}"),
        )),
    }
}

impl<'a> JsonObject<'a> {
    fn of(map: Option<&'a Value>, place: &'static str) -> JsonObject<'a> {
        let map = map.and_then(Value::as_object);
        JsonObject { map, place }
    }

    fn child(&self, key: &str) -> Option<&'a Value> {
        self.map?.get(key).filter(|value| !value.is_null())
    }

    /// Reads a field with `read`; `None` if it is absent.
    fn get<T>(
        &self,
        key: &str,
        wanted: &str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, ImportError> {
        let Some(value) = self.child(key) else {
            return Ok(None);
        };
        let wrong = || {
            let what = format!("{}.{key}", self.place);
            ImportError::malformed(what, format!("is {value}, not {wanted}"))
        };
        read(value).map(Some).ok_or_else(wrong)
    }

    fn name(&self, key: &str, default: String) -> Result<String, ImportError> {
        let name = self.get(key, "a name", |v| v.as_str().map(str::to_owned))?;
        Ok(name.filter(|name| !name.is_empty()).unwrap_or(default))
    }

    /// A name with one `%d` for a layer's number.
    fn pattern(&self, key: &str, default: String) -> Result<String, ImportError> {
        let name = self.name(key, default)?;
        match name.matches("%d").count() {
            1 => Ok(name),
            n => {
                let what = format!("{}.{key}", self.place);
                let reason = format!("is {name:?} with {n} places for a layer's number, not one");
                Err(ImportError::malformed(what, reason))
            }
        }
    }

    fn size(&self, key: &str) -> Result<Option<usize>, ImportError> {
        let size = |value: &Value| usize::try_from(value.as_u64()?).ok();
        self.get(key, "a size", size)
    }

    fn number(&self, key: &str) -> Result<Option<f32>, ImportError> {
        let number = |value: &Value| Some(value.as_f64()? as f32).filter(|x| x.is_finite());
        self.get(key, "a number", number)
    }

    fn flag(&self, key: &str) -> Result<Option<bool>, ImportError> {
        self.get(key, "true or false", Value::as_bool)
    }

    /// One token id or a list of them.
    fn ids(&self, key: &str) -> Result<Vec<u32>, ImportError> {
        let id = |value: &Value| u32::try_from(value.as_u64()?).ok();
        let ids = |value: &Value| match value {
            Value::Array(list) => list.iter().map(id).collect(),
            one => Some(vec![id(one)?]),
        };
        Ok(self.get(key, "a token id", ids)?.unwrap_or_default())
    }
}

/// Sidecar files of a model: its configuration and its tokenizer.
#[derive(Clone, Debug, Default)]
pub struct SidecarFiles {
    /// `genai_config.json`, when it names the model.
    pub genai: Option<GenAi>,
    /// Hugging Face's `tokenizer.json`.
    pub tokenizer: Option<Bytes>,
    /// Hugging Face's `tokenizer_config.json`.
    pub tokenizer_config: Option<Bytes>,
    /// Hugging Face's `generation_config.json`, or the equivalent made from `genai_config.json`.
    pub generation_config: Option<Bytes>,
    /// The chat template, if it is a separate file.
    pub chat_template: Option<Bytes>,
    /// Default sampling options of `genai_config.json` or `generation_config.json`.
    pub search: Option<SearchOptions>,
}

impl SidecarFiles {
    /// Finds the sidecar files of a model of Hugging Face, whose `config.json` says which tokens end a text if there is no
    /// `generation_config.json`.
    pub fn of_checkpoint(path: &Path) -> Result<SidecarFiles, ImportError> {
        let mut files = SidecarFiles::find(path)?;
        files.search = match &files.generation_config {
            Some(bytes) => Some(SearchOptions::of_generation_config(bytes)?),
            None => None,
        };
        let config = path.with_file_name("config.json");
        if files.generation_config.is_none() && config.is_file() {
            files.generation_config = Some(Bytes::map(&config)?);
        }
        Ok(files)
    }

    /// Finds the sidecar files of the model at `path`.
    pub fn find(path: &Path) -> Result<SidecarFiles, ImportError> {
        let mut folder = path.parent().unwrap_or(Path::new(""));
        let mut genai = None;
        // A configuration may name a file in a subfolder.
        for above in path.ancestors().skip(1).take(2) {
            if genai.is_none() && above.join(CONFIG).is_file() {
                let config = GenAi::open(above)?;
                if above.join(&config.filename) == path {
                    (folder, genai) = (above, Some(config));
                }
            }
        }
        let file = |name: &str| {
            let path = folder.join(name);
            path.is_file().then(|| Bytes::map(&path)).transpose()
        };
        let generation_config = match genai.as_ref().filter(|config| !config.eos.is_empty()) {
            Some(config) => {
                let json = serde_json::json!({ "eos_token_id": config.eos });
                Some(Bytes::from(json.to_string().as_bytes()))
            }
            None => file("generation_config.json")?,
        };
        Ok(SidecarFiles {
            search: genai.as_ref().map(|config| config.search.clone()),
            genai,
            tokenizer: file("tokenizer.json")?,
            tokenizer_config: file("tokenizer_config.json")?,
            generation_config,
            chat_template: file("chat_template.jinja")?,
        })
    }
}

/// Resolves a folder of GenAI or of Hugging Face to its model file, or to the index of its files; other paths are returned
/// unchanged.
pub fn model_file(path: &Path) -> Result<PathBuf, ImportError> {
    if !path.is_dir() {
        return Ok(path.to_owned());
    }
    if !path.join(CONFIG).is_file() {
        if let Some(file) = Safetensors::in_folder(path)? {
            return Ok(file);
        }
        let reason = format!("has no {CONFIG} and no config.json with weights");
        let error = ImportError::malformed("the folder", reason);
        return Err(error.in_file(path));
    }
    Ok(path.join(GenAi::open(path)?.filename))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_configuration() {
        let config = GenAi::parse(
            br#"{"model": {"type": "llama", "context_length": 2048, "vocab_size": 32, "bos_token_id": 1,
                "eos_token_id": [2, 3], "pad_token_id": 0,
                "decoder": {"filename": "onnx/decoder.onnx",
                    "inputs": {"past_key_names": "key_cache.%d", "position_ids": "pos"},
                    "outputs": {"logits": "scores"}}},
                "search": {"do_sample": true, "temperature": 0.5, "top_k": 10, "top_p": 0.9, "max_length": 100}}"#,
        )
        .unwrap();
        assert_eq!(
            (config.bos, config.pad, &config.eos[..]),
            (Some(1), Some(0), &[2, 3][..])
        );
        assert_eq!(config.filename, Path::new("onnx/decoder.onnx"));
        assert_eq!(
            (config.context_length, config.vocab_size),
            (Some(2048), Some(32))
        );
        let names = DecoderNames {
            past_key: "key_cache.%d".into(),
            position_ids: "pos".into(),
            logits: "scores".into(),
            ..DecoderNames::default()
        };
        assert_eq!(config.names, names);
        assert_eq!(
            (config.search.top_k, config.search.temperature),
            (Some(10), Some(0.5))
        );
        assert_eq!(
            (config.search.do_sample, config.search.max_length),
            (Some(true), Some(100))
        );
    }

    #[test]
    fn settings_that_are_not_honoured_are_named() {
        let table = [
            (r#""do_sample": true, "top_k": 4, "num_beams": 1"#, ""),
            (
                r#""min_length": 0, "num_return_sequences": 1, "past_present_share_buffer": true, "length_penalty": 2.0,
                   "max_length": 16, "no_repeat_ngram_size": 0, "random_seed": -1, "early_stopping": true"#,
                "",
            ),
            (
                r#""num_beams": 4, "length_penalty": 2.0, "max_length": 8"#,
                "search.length_penalty: 2.0, search.max_length: 8, search.num_beams: 4",
            ),
            (
                r#""min_length": 3, "mystery": "x""#,
                "search.min_length: 3, search.mystery: \"x\"",
            ),
        ];
        for (search, expect) in table {
            let json =
                format!(r#"{{"model": {{"context_length": 16}}, "search": {{ {search} }} }}"#);
            let config = GenAi::parse(json.as_bytes()).unwrap();
            let mut found = config.not_honoured;
            found.sort();
            assert_eq!(found.join(", "), expect);
        }
        let parts = GenAi::parse(br#"{"model": {"vision": {}}}"#).unwrap();
        assert_eq!(parts.not_honoured, ["model.vision"]);
    }

    #[test]
    fn wrong_fields_are_named() {
        for (json, message) in [
            ("[", "the configuration is not valid JSON"),
            ("{}", "the configuration has no object \"model\""),
            (
                r#"{"model": {"context_length": -1}}"#,
                "model.context_length is -1, not a size",
            ),
            (
                r#"{"model": {"eos_token_id": "x"}}"#,
                "model.eos_token_id is \"x\", not a token id",
            ),
            (
                r#"{"model": {"decoder": {"filename": "../x.onnx"}}}"#,
                "model.decoder.filename \"../x.onnx\" is not a file inside the folder",
            ),
            (
                r#"{"model": {"decoder": {"inputs": {"past_key_names": "key"}}}}"#,
                "model.decoder.inputs.past_key_names is \"key\" with 0 places for a layer's number, not one",
            ),
            (
                r#"{"model": {}, "search": {"top_k": 1.5}}"#,
                "search.top_k is 1.5, not a size",
            ),
        ] {
            let error = GenAi::parse(json.as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with(message), "{error}");
        }
    }
}
