//! `JsonMetadata`: the `tokenizer.*` keys of a GGUF file as one JSON object, the form used in archives.

use base::StringTable;
use serde_json::Value;

use crate::{TextError, VocabSource};

/// Key–value metadata in a JSON object.
#[derive(Debug, Clone)]
pub struct JsonMetadata(Value);

impl JsonMetadata {
    /// Reads a JSON object.
    ///
    /// # Errors
    /// [`TextError::TokenizerFile`] if it is not a JSON object.
    pub fn parse(bytes: &[u8]) -> Result<Self, TextError> {
        match serde_json::from_slice(bytes) {
            Ok(object @ Value::Object(_)) => Ok(Self(object)),
            Ok(_) => Err(TextError::TokenizerFile(
                "the tokenizer metadata is not a JSON object".into(),
            )),
            Err(error) => Err(TextError::TokenizerFile(error.to_string())),
        }
    }

    fn list<'a, T, L: FromIterator<T>>(
        &'a self,
        key: &str,
        item: impl Fn(&'a Value) -> Option<T>,
    ) -> Option<L> {
        self.0.get(key)?.as_array()?.iter().map(item).collect()
    }
}

impl From<Value> for JsonMetadata {
    fn from(object: Value) -> Self {
        Self(object)
    }
}

impl VocabSource for JsonMetadata {
    fn string(&self, key: &str) -> Option<String> {
        Some(self.0.get(key)?.as_str()?.to_owned())
    }

    fn strings(&self, key: &str) -> Option<StringTable> {
        self.list(key, Value::as_str)
    }

    fn floats(&self, key: &str) -> Option<Vec<f32>> {
        self.list(key, |v| v.as_f64().map(|f| f as f32))
    }

    fn ints(&self, key: &str) -> Option<Vec<i64>> {
        self.list(key, Value::as_i64)
    }

    fn int(&self, key: &str) -> Option<i64> {
        self.0.get(key)?.as_i64()
    }

    fn flag(&self, key: &str) -> Option<bool> {
        self.0.get(key)?.as_bool()
    }
}
