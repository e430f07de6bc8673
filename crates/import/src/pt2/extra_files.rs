//! Files that kvark's exporter stores in the archive's `extra/kvark/`.

use std::collections::BTreeMap;

use base::Bytes;
use kv::metadata::{Metadata, MetadataValue};

use super::archive::Archive;
use crate::error::ImportError;

/// Limit on the length of a dynamic size's name.
const MAX_SIZE_NAME: usize = 100;

/// Folder of kvark's files among the archive's extra files.
const FOLDER: &str = "extra/kvark/";

/// Metadata and tokenizer files of a decoder. Archives of other exporters have none.
#[derive(Clone, Debug, Default)]
pub struct ExtraFiles {
    /// Cache metadata: `kv_cache.*` keys and the values of ExecuTorch's constant methods.
    pub metadata: Metadata,
    /// Hugging Face's `config.json`.
    pub config: Option<Bytes>,
    /// Hugging Face's `generation_config.json`.
    pub generation_config: Option<Bytes>,
    /// Hugging Face's `tokenizer.json`.
    pub tokenizer: Option<Bytes>,
    /// Hugging Face's `tokenizer_config.json`.
    pub tokenizer_config: Option<Bytes>,
    /// The chat template, if it is a separate file.
    pub chat_template: Option<Bytes>,
    /// A GGUF file's `tokenizer.*` keys, as one JSON object.
    pub ggml_tokenizer: Option<Bytes>,
}

impl ExtraFiles {
    pub(super) fn read(archive: &Archive) -> Result<ExtraFiles, ImportError> {
        let file = |name: &str| archive.get(&format!("{FOLDER}{name}")).cloned();
        let metadata = format!("{FOLDER}metadata.json");
        let metadata = match archive.get(&metadata) {
            Some(_) => read_metadata(archive.json(&metadata)?)?,
            None => Metadata::new(),
        };
        Ok(ExtraFiles {
            metadata,
            config: file("config.json"),
            generation_config: file("generation_config.json"),
            tokenizer: file("tokenizer.json"),
            tokenizer_config: file("tokenizer_config.json"),
            chat_template: file("chat_template.jinja"),
            ggml_tokenizer: file("tokenizer.ggml.json"),
        })
    }

    /// The architecture that `config.json` names.
    pub fn architecture(&self) -> Option<String> {
        let config: serde_json::Value = serde_json::from_slice(self.config.as_ref()?).ok()?;
        let name = config.get("model_type")?.as_str()?;
        Some(name.chars().filter(|c| !c.is_control()).take(60).collect())
    }
}

/// The names of dynamic sizes by the file's own names, for each method; control characters and long names are no names.
pub(super) fn size_names(
    archive: &Archive,
) -> Result<BTreeMap<String, BTreeMap<String, String>>, ImportError> {
    let member = format!("{FOLDER}size_names.json");
    let mut methods: BTreeMap<String, BTreeMap<String, String>> = match archive.get(&member) {
        Some(_) => archive.json(&member)?,
        None => return Ok(BTreeMap::new()),
    };
    for names in methods.values_mut() {
        names.retain(|_, name| name.len() <= MAX_SIZE_NAME && !name.contains(char::is_control));
    }
    Ok(methods)
}

fn read_metadata(
    json: serde_json::Map<String, serde_json::Value>,
) -> Result<Metadata, ImportError> {
    let mut metadata = Metadata::new();
    for (key, value) in json {
        let list = value
            .as_array()
            .map(|list| list.iter().map(|v| v.as_i64()).collect());
        let value = match (value.as_i64(), list) {
            (Some(number), _) => MetadataValue::Int(number),
            (None, Some(Some(list))) => MetadataValue::Ints(list),
            _ => {
                let what = format!("{key:?} in the archive's metadata");
                return Err(ImportError::malformed(
                    what,
                    "is neither a number nor a list of them",
                ));
            }
        };
        metadata.insert(key, value);
    }
    Ok(metadata)
}
