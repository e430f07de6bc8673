//! What a model file says about its tokens and its conversations, whatever its format.

use base::Texts;
use import::genai::{self, SidecarFiles};
use import::gguf::{Array, Gguf, Metadata, Value};
use import::pt2::{ExtraFiles, Pt2};
use import::{Artifact, Format, ImportError};
use std::path::Path;
use text::{ChatTemplate, Error, HuggingFace, JsonMetadata, Tokenizer, Vocab, VocabSource};

/// The part of a file that holds its vocabulary and its chat template.
pub(crate) enum Vocabulary<'a> {
    Gguf(&'a Metadata),
    Pt2(&'a ExtraFiles),
    Sidecars(&'a SidecarFiles),
    None,
}

impl<'a> Vocabulary<'a> {
    /// That of an imported file.
    pub(crate) fn of(artifact: &'a Artifact) -> Vocabulary<'a> {
        match (&artifact.gguf, &artifact.pt2) {
            (Some(file), _) => Vocabulary::Gguf(&file.metadata),
            (_, Some(file)) => Vocabulary::Pt2(&file.extra),
            _ if artifact.format == Format::Onnx => Vocabulary::Sidecars(&artifact.sidecars),
            _ => Vocabulary::None,
        }
    }

    /// Asks that of a file which is not imported.
    pub(crate) fn with_file<T>(
        path: &Path,
        ask: impl FnOnce(&Vocabulary<'_>) -> T,
    ) -> Result<T, ImportError> {
        let path = &genai::model_file(path)?;
        Ok(match import::format_of(path)? {
            Format::Pt2 => ask(&Vocabulary::Pt2(&Pt2::open(path)?.extra)),
            Format::Onnx => ask(&Vocabulary::Sidecars(&SidecarFiles::find(path)?)),
            _ => ask(&Vocabulary::Gguf(&Gguf::open(path)?.metadata)),
        })
    }

    /// The tokenizer, or why the file has none that can be used.
    pub(crate) fn tokenizer(&self) -> Result<Tokenizer, Error> {
        Tokenizer::new(match self {
            Vocabulary::Gguf(metadata) => Vocab::from_source(&GgufSource(metadata))?,
            Vocabulary::Pt2(extra) => match (&extra.ggml_tokenizer, &extra.tokenizer) {
                (Some(keys), _) => Vocab::from_source(&JsonMetadata::parse(keys)?)?,
                (None, Some(_)) => hugging_face(extra).vocab()?,
                (None, None) => return Err(Error::MissingKey("tokenizer.json")),
            },
            Vocabulary::Sidecars(files) if files.tokenizer.is_some() => {
                sidecar_files(files).vocab()?
            }
            Vocabulary::Sidecars(_) => return Err(Error::MissingKey("tokenizer.json")),
            Vocabulary::None => return Err(Error::MissingKey("tokenizer.ggml.model")),
        })
    }

    /// The chat template, or why the file has none that can be used.
    pub(crate) fn template(&self, tokenizer: Option<&Tokenizer>) -> Result<ChatTemplate, Error> {
        const KEY: &str = "tokenizer.chat_template";
        let source = match self {
            Vocabulary::Gguf(metadata) => GgufSource(metadata).text(KEY),
            Vocabulary::Pt2(extra) => match &extra.ggml_tokenizer {
                Some(keys) => JsonMetadata::parse(keys)?.text(KEY),
                None => hugging_face(extra).chat_template()?,
            },
            Vocabulary::Sidecars(files) => sidecar_files(files).chat_template()?,
            Vocabulary::None => None,
        };
        compile_template(&source.ok_or(Error::NoTemplate)?, tokenizer)
    }
}

/// Compiles a chat template that may write the tokenizer's BOS and EOS.
pub(crate) fn compile_template(
    source: &str,
    tokenizer: Option<&Tokenizer>,
) -> Result<ChatTemplate, Error> {
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

fn hugging_face(extra: &ExtraFiles) -> HuggingFace<'_> {
    HuggingFace {
        tokenizer: extra.tokenizer.as_deref().unwrap_or_default(),
        config: extra.tokenizer_config.as_deref(),
        generation: extra.generation_config.as_deref(),
        template: extra.chat_template.as_deref(),
    }
}

fn sidecar_files(files: &SidecarFiles) -> HuggingFace<'_> {
    HuggingFace {
        tokenizer: files.tokenizer.as_deref().unwrap_or_default(),
        config: files.tokenizer_config.as_deref(),
        generation: files.generation_config.as_deref(),
        template: files.chat_template.as_deref(),
    }
}

/// GGUF metadata as the tokenizer reads it.
struct GgufSource<'a>(&'a Metadata);

impl VocabSource for GgufSource<'_> {
    fn text(&self, key: &str) -> Option<String> {
        self.0.str(key).ok()?.map(str::to_owned)
    }

    fn texts(&self, key: &str) -> Option<Texts> {
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
