//! Typed access to `config.json`, which records the keys that were read.

use std::cell::RefCell;
use std::collections::HashSet;

use serde_json::{Map, Value};

use crate::error::ImportError;

/// Upper bound of sizes; a larger number means a damaged file.
const MOST: u64 = 1 << 24;

/// The configuration of a text decoder or encoder.
pub(super) struct Config<'a> {
    json: &'a Map<String, Value>,
    /// Values of keys that the file leaves out.
    defaults: Map<String, Value>,
    read: RefCell<HashSet<&'a str>>,
}

impl<'a> Config<'a> {
    pub(super) fn new(json: &'a Map<String, Value>, defaults: Map<String, Value>) -> Config<'a> {
        Config {
            json,
            defaults,
            read: RefCell::default(),
        }
    }

    /// The value of a key; `None` if it is null, or neither the file nor the model type states it.
    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        let value = match self.json.get_key_value(key) {
            Some((key, value)) => {
                self.read.borrow_mut().insert(key);
                Some(value)
            }
            None => self.defaults.get(key),
        };
        value.filter(|value| !value.is_null())
    }

    /// Whether the file itself states the key.
    pub(super) fn states(&self, key: &str) -> bool {
        self.json.get(key).is_some_and(|value| !value.is_null())
    }

    /// The first of several names of one thing that the file states, or else that has a default.
    fn first(&self, keys: &[&'static str]) -> Option<(&'static str, &Value)> {
        let stated = keys.iter().find(|key| self.states(key));
        let all = stated.into_iter().chain(keys);
        let mut found = all.filter_map(|key| Some((*key, self.get(key)?)));
        let first = found.next();
        // Other names of the same thing are read too.
        found.for_each(drop);
        first
    }

    /// A size of at least 1.
    pub(super) fn size(&self, keys: &[&'static str]) -> Result<usize, ImportError> {
        let size = self.optional_size(keys)?;
        size.ok_or_else(|| ImportError::value(name(keys[0]), "is missing"))
    }

    /// A size of at least 1 that may be absent.
    pub(super) fn optional_size(
        &self,
        keys: &[&'static str],
    ) -> Result<Option<usize>, ImportError> {
        let Some((key, value)) = self.first(keys) else {
            return Ok(None);
        };
        let size = value.as_u64().filter(|n| (1..=MOST).contains(n));
        match size {
            Some(n) => Ok(Some(n as usize)),
            None => Err(wrong(key, value, "a number from 1 to 16777216")),
        }
    }

    /// A size that may be absent or 0, which is the same.
    pub(super) fn count(&self, keys: &[&'static str]) -> Result<usize, ImportError> {
        match self.first(keys) {
            Some((_, value)) if value.as_u64() == Some(0) => Ok(0),
            _ => Ok(self.optional_size(keys)?.unwrap_or(0)),
        }
    }

    /// A finite number.
    pub(super) fn number(&self, keys: &[&'static str]) -> Result<Option<f64>, ImportError> {
        let Some((key, value)) = self.first(keys) else {
            return Ok(None);
        };
        number(key, value).map(Some)
    }

    pub(super) fn flag(&self, key: &'static str) -> Result<Option<bool>, ImportError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let flag = value.as_bool();
        flag.map(Some)
            .ok_or_else(|| wrong(key, value, "true or false"))
    }

    pub(super) fn text(&self, keys: &[&'static str]) -> Result<Option<&str>, ImportError> {
        let Some((key, value)) = self.first(keys) else {
            return Ok(None);
        };
        let text = value.as_str();
        text.map(Some).ok_or_else(|| wrong(key, value, "a text"))
    }

    /// A list with an entry for each layer.
    pub(super) fn list(
        &self,
        key: &'static str,
        layers: usize,
    ) -> Result<Option<&[Value]>, ImportError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        match value.as_array() {
            Some(list) if list.len() == layers => Ok(Some(list)),
            Some(list) => {
                let reason = format!("has {} entries for {layers} layers", list.len());
                Err(ImportError::value(name(key), reason))
            }
            None => Err(wrong(key, value, "a list")),
        }
    }

    /// Refuses the first key that was not read and may change what the model computes.
    pub(super) fn refuse_unknown(&self) -> Result<(), ImportError> {
        let read = self.read.borrow();
        let unknown = |key: &str, value: &Value| {
            !read.contains(key) && !says_nothing(value) && !changes_no_result(key)
        };
        match self.json.iter().find(|(key, value)| unknown(key, value)) {
            Some((key, value)) => {
                let shown: String = value.to_string().chars().take(80).collect();
                let what = format!("{key} = {shown} of config.json");
                Err(ImportError::unsupported(what))
            }
            None => Ok(()),
        }
    }
}

/// The name of a key in messages.
pub(super) fn name(key: &str) -> String {
    format!("{key} of config.json")
}

pub(super) fn wrong(key: &str, value: &Value, must: &str) -> ImportError {
    let shown: String = value.to_string().chars().take(80).collect();
    ImportError::value(name(key), format!("is {shown}, must be {must}"))
}

pub(super) fn number(key: &str, value: &Value) -> Result<f64, ImportError> {
    let number = value
        .as_f64()
        .filter(|x| x.is_finite() && (*x as f32).is_finite());
    number.ok_or_else(|| wrong(key, value, "a finite number"))
}

/// Whether a value turns nothing on.
fn says_nothing(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Bool(true) => false,
    }
}

/// Whether a key is about training, tokens, generation or the library that wrote the file.
fn changes_no_result(key: &str) -> bool {
    const PARTS: [&str; 14] = [
        "dropout",
        "pdrop",
        "version",
        "token_id",
        "token_index",
        "initializer",
        "init_std",
        "unsloth",
        "_coef",
        "dtype",
        "loss",
        "jitter",
        "summary_",
        "router_logits",
    ];
    const KEYS: [&str; 47] = [
        "architectures",
        "attn_implementation",
        "auto_map",
        "bad_words_ids",
        "begin_suppress_tokens",
        "block_auto_adjust_ff_dim",
        "block_ffn_dim_multiplier",
        "block_multiple_of",
        "cache_implementation",
        "chunk_size_feed_forward",
        "custom_pipelines",
        // Which layers have experts is seen from the tensors.
        "decoder_sparse_step",
        "diversity_penalty",
        "do_sample",
        "early_stopping",
        "encoder_no_repeat_ngram_size",
        "finetuning_task",
        "first_k_dense_replace",
        "gradient_checkpointing",
        "id2label",
        "label2id",
        "length_penalty",
        "max_length",
        "mlp_only_layers",
        "model_type",
        "moe_layer_end_index",
        "moe_layer_interval",
        "moe_layer_start_index",
        // The smallest sum that weights are divided by.
        "moe_norm_min",
        "no_repeat_ngram_size",
        "num_beam_groups",
        "num_beams",
        "num_nextn_predict_layers",
        "num_return_sequences",
        "pretraining_tp",
        "problem_type",
        "reorder_and_upcast_attn",
        "repetition_penalty",
        "return_dict",
        "task_specific_params",
        "temperature",
        "tokenizer_class",
        "top_k",
        "top_p",
        "type_vocab_size",
        "typical_p",
        "use_cache",
    ];
    key.starts_with('_') || KEYS.contains(&key) || PARTS.iter().any(|part| key.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(json: &str) -> Map<String, Value> {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn a_null_of_the_file_is_no_default() {
        let (json, defaults) = (
            map(r#"{"a": null, "b": 2}"#),
            map(r#"{"a": 1, "b": 1, "c": 3}"#),
        );
        let config = Config::new(&json, defaults);
        let sizes = ["a", "b", "c", "d"].map(|key| config.optional_size(&[key]).unwrap());
        assert_eq!(sizes, [None, Some(2), Some(3), None]);
        // A value of the file is stronger than a default of another name.
        assert_eq!(config.size(&["c", "b"]).unwrap(), 2);
    }

    #[test]
    fn keys_that_may_change_a_result_are_refused_unless_they_were_read() {
        let table = [
            (
                r#"{"a": 1, "attention_dropout": 0.1, "_x": 1, "off": false}"#,
                None,
            ),
            (
                r#"{"a": 1, "novel_norm": true}"#,
                Some("novel_norm = true of config.json is not supported"),
            ),
            (r#"{"a": 1, "x": "y"}"#, Some("x = \"y\" of config.json")),
        ];
        for (json, refused) in table {
            let json = map(json);
            let config = Config::new(&json, Map::new());
            config.size(&["a"]).unwrap();
            let found = config.refuse_unknown().map_err(|error| error.to_string());
            match refused {
                None => assert_eq!(found, Ok(())),
                Some(part) => assert!(found.unwrap_err().contains(part)),
            }
        }
    }
}
