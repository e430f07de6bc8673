//! Models that can be written as GGUF files: GGUF files themselves, and folders of Hugging Face with their tokenizer.

use std::path::Path;

use import::genai::{self, SidecarFiles};
use import::gguf::{Array, Gguf, Value};
use import::safetensors::Safetensors;
use import::{Format, ImportError, checkpoint};
use text::KeyValue;

use crate::error::{RuntimeError, RuntimeErrorKind};
use crate::tokenizer_source::TokenizerSource;

/// A model with all that a GGUF file of it says.
pub struct GgufSource {
    /// Metadata and tensors.
    pub file: Gguf,
    /// Metadata that a folder adds: its tokenizer, its template and its name.
    pub further: Vec<(String, Value)>,
    /// Whether there is a tokenizer.
    pub has_tokenizer: bool,
}

impl GgufSource {
    /// Opens a GGUF file, split or not, or a folder.
    ///
    /// # Errors
    /// If the model has another format, cannot be read, or has a tokenizer that GGUF has no name for.
    pub fn open(path: &Path) -> Result<GgufSource, RuntimeError> {
        let folder = path;
        let path = &genai::model_file(path)?;
        match import::format_of(path)? {
            Format::Gguf => {
                let file = Gguf::open(path).map_err(ImportError::from)?;
                let has_tokenizer = file.metadata.get("tokenizer.ggml.tokens").is_some();
                Ok(GgufSource {
                    file,
                    further: vec![],
                    has_tokenizer,
                })
            }
            Format::Safetensors => of_folder(folder, path),
            other => Err(RuntimeErrorKind::NotGguf(other.name()).into()),
        }
    }
}

fn of_folder(folder: &Path, path: &Path) -> Result<GgufSource, RuntimeError> {
    let checkpoint = checkpoint::translate(&Safetensors::open(path)?)?;
    let file = checkpoint.file;
    let sidecars = SidecarFiles::of_checkpoint(path)?;
    let mut further = vec![];
    let has_tokenizer = sidecars.tokenizer.is_some();
    if has_tokenizer {
        let source = TokenizerSource::Sidecar(&sidecars);
        let rows = file.tensor("token_embd.weight").map(|t| t.shape[0]);
        let keys = source.vocab()?.gguf_keys(rows.unwrap_or(0))?;
        further.extend(
            keys.into_iter()
                .map(|(key, value)| (key.to_owned(), of_key(value))),
        );
        if let Some(template) = source.template_text()? {
            further.push((
                "tokenizer.chat_template".to_owned(),
                Value::String(template),
            ));
        }
    }
    let name = match folder.is_dir() {
        true => folder.file_name(),
        false => folder.parent().and_then(Path::file_name),
    };
    if let Some(name) = name {
        let name = Value::String(name.to_string_lossy().into_owned());
        further.push(("general.name".to_owned(), name));
    }
    Ok(GgufSource {
        file,
        further,
        has_tokenizer,
    })
}

fn of_key(value: KeyValue) -> Value {
    match value {
        KeyValue::Text(text) => Value::String(text),
        KeyValue::Texts(list) => Value::Array(Array::String(list)),
        KeyValue::Ints(list) => Value::Array(Array::I32(list)),
        KeyValue::Token(id) => Value::U32(id),
        KeyValue::Flag(flag) => Value::Bool(flag),
    }
}
