//! `TokenizerSource`: the part of a model file that tokenizer and chat template are read from, for every format.

use base::StringTable;
use import::genai::{self, SidecarFiles};
use import::gguf::{Array, Gguf, Metadata, Value};
use import::pt2::{ExtraFiles, Pt2};
use import::{Artifact, Format, ImportError, ModelFile};
use std::path::Path;
use text::{
    ChatTemplate, HuggingFaceFiles, JsonMetadata, TextError, Tokenizer, Vocab, VocabSource,
};

/// The part of a model file, or its sidecar files, that contains vocabulary and chat template.
pub(crate) enum TokenizerSource<'a> {
    Gguf(&'a Metadata),
    Pt2(&'a ExtraFiles),
    Sidecar(&'a SidecarFiles),
    /// A draft head: it has its target's tokenizer.
    None,
}

impl<'a> TokenizerSource<'a> {
    /// The source of an imported file.
    pub(crate) fn from_artifact(artifact: &'a Artifact) -> TokenizerSource<'a> {
        match &artifact.file {
            ModelFile::Gguf(file) => TokenizerSource::Gguf(&file.metadata),
            ModelFile::Pt2(file) => TokenizerSource::Pt2(&file.extra),
            ModelFile::Safetensors { .. } if artifact.draft_head.is_some() => TokenizerSource::None,
            ModelFile::Safetensors { sidecars, .. }
            | ModelFile::Onnx { sidecars, .. }
            | ModelFile::Pte { sidecars, .. } => TokenizerSource::Sidecar(sidecars),
        }
    }

    /// Calls `ask` with the source of a file that is not imported.
    pub(crate) fn with_file<T>(
        path: &Path,
        ask: impl FnOnce(&TokenizerSource<'_>) -> T,
    ) -> Result<T, ImportError> {
        let path = &genai::model_file(path)?;
        Ok(match import::format_of(path)? {
            Format::Safetensors => ask(&TokenizerSource::Sidecar(&SidecarFiles::of_checkpoint(
                path,
            )?)),
            Format::Pt2 => ask(&TokenizerSource::Pt2(&Pt2::open(path)?.extra)),
            Format::Onnx | Format::Pte => {
                ask(&TokenizerSource::Sidecar(&SidecarFiles::find(path)?))
            }
            _ => ask(&TokenizerSource::Gguf(&Gguf::open(path)?.metadata)),
        })
    }

    /// The tokenizer.
    ///
    /// # Errors
    /// Why the file has no usable tokenizer.
    pub(crate) fn tokenizer(&self) -> Result<Tokenizer, TextError> {
        Tokenizer::new(self.vocab()?)
    }

    /// The vocabulary.
    ///
    /// # Errors
    /// Why the file has no usable one.
    pub(crate) fn vocab(&self) -> Result<Vocab, TextError> {
        Ok(match self {
            TokenizerSource::Gguf(metadata) => Vocab::from_source(&GgufSource(metadata))?,
            TokenizerSource::Pt2(extra) => match (&extra.ggml_tokenizer, &extra.tokenizer) {
                (Some(keys), _) => Vocab::from_source(&JsonMetadata::parse(keys)?)?,
                (None, Some(_)) => hugging_face(extra).vocab()?,
                (None, None) => return Err(TextError::MissingKey("tokenizer.json")),
            },
            TokenizerSource::Sidecar(files) if files.tokenizer.is_some() => {
                sidecar_files(files).vocab()?
            }
            TokenizerSource::Sidecar(_) | TokenizerSource::None => {
                return Err(TextError::MissingKey("tokenizer.json"));
            }
        })
    }

    /// The chat template.
    ///
    /// # Errors
    /// Why the file has no usable chat template.
    pub(crate) fn template(
        &self,
        tokenizer: Option<&Tokenizer>,
    ) -> Result<ChatTemplate, TextError> {
        compile_template(
            &self.template_text()?.ok_or(TextError::NoTemplate)?,
            tokenizer,
        )
    }

    /// The text of the chat template, if there is one.
    ///
    /// # Errors
    /// If a file that may have it cannot be read.
    pub(crate) fn template_text(&self) -> Result<Option<String>, TextError> {
        const KEY: &str = "tokenizer.chat_template";
        Ok(match self {
            TokenizerSource::Gguf(metadata) => GgufSource(metadata).string(KEY),
            TokenizerSource::Pt2(extra) => match &extra.ggml_tokenizer {
                Some(keys) => JsonMetadata::parse(keys)?.string(KEY),
                None => hugging_face(extra).chat_template()?,
            },
            TokenizerSource::Sidecar(files) => sidecar_files(files).chat_template()?,
            TokenizerSource::None => None,
        })
    }
}

/// Compiles a chat template that can use the tokenizer's BOS and EOS.
pub(crate) fn compile_template(
    source: &str,
    tokenizer: Option<&Tokenizer>,
) -> Result<ChatTemplate, TextError> {
    let token_text = |id: Option<u32>| {
        let bytes = id.zip(tokenizer).and_then(|(id, t)| t.token_bytes(id));
        bytes.map_or(String::new(), |b| String::from_utf8_lossy(b).into_owned())
    };
    ChatTemplate::new(
        source,
        &token_text(tokenizer.and_then(Tokenizer::bos)),
        &token_text(tokenizer.and_then(Tokenizer::eos)),
    )
}

fn hugging_face(extra: &ExtraFiles) -> HuggingFaceFiles<'_> {
    HuggingFaceFiles {
        tokenizer: extra.tokenizer.as_deref().unwrap_or_default(),
        config: extra.tokenizer_config.as_deref(),
        generation: extra.generation_config.as_deref(),
        template: extra.chat_template.as_deref(),
    }
}

fn sidecar_files(files: &SidecarFiles) -> HuggingFaceFiles<'_> {
    HuggingFaceFiles {
        tokenizer: files.tokenizer.as_deref().unwrap_or_default(),
        config: files.tokenizer_config.as_deref(),
        generation: files.generation_config.as_deref(),
        template: files.chat_template.as_deref(),
    }
}

/// GGUF metadata as a [`VocabSource`].
struct GgufSource<'a>(&'a Metadata);

impl VocabSource for GgufSource<'_> {
    fn string(&self, key: &str) -> Option<String> {
        self.0.str(key).ok()?.map(str::to_owned)
    }

    fn strings(&self, key: &str) -> Option<StringTable> {
        match self.0.get(key)? {
            Value::Array(Array::String(list)) => Some(list.clone()),
            _ => None,
        }
    }

    fn floats(&self, key: &str) -> Option<Vec<f32>> {
        Some(self.0.f32s(key).ok()??.into_owned())
    }

    fn ints(&self, key: &str) -> Option<Vec<i64>> {
        Some(
            self.0
                .i32s(key)
                .ok()??
                .iter()
                .map(|i| i64::from(*i))
                .collect(),
        )
    }

    fn int(&self, key: &str) -> Option<i64> {
        self.0
            .get(key)?
            .as_integer()
            .and_then(|i| i64::try_from(i).ok())
    }

    fn flag(&self, key: &str) -> Option<bool> {
        self.0.bool(key).ok()?
    }
}
