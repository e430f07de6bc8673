//! A model file with everything a conversation needs: graphs, tokenizer, chat template.

use crate::{RuntimeError, RuntimeErrorKind};
use graph::passes::PassSelection;
use import::gguf::{Array, Gguf, Metadata, Value};
use import::{Artifact, ImportOptions, ModelFacts};
use std::path::Path;
use text::{ChatTemplate, Tokenizer, Vocab, VocabSource};

/// An imported model. Weights stay mapped; any number of runners can share it.
///
/// A file without a usable tokenizer or chat template still runs on token ids; asking for what is missing is the error.
pub struct Model {
    artifact: Artifact,
    tokenizer: Result<Tokenizer, text::Error>,
    template: Result<ChatTemplate, text::Error>,
}

impl Model {
    /// Opens a model file and optimises its graphs. Models with several sets of rotary frequencies choose by the
    /// context that will be used; `None` is all that the model was made for.
    pub fn open(path: &Path, context: Option<usize>) -> Result<Model, RuntimeError> {
        let passes = PassSelection::default();
        Model::open_with(path, &OpenOptions { context, passes })
    }

    /// Opens a model file for a known use, with chosen passes.
    pub fn open_with(path: &Path, options: &OpenOptions) -> Result<Model, RuntimeError> {
        Ok(Model::new(open_artifact_with(path, options)?))
    }

    /// A model from an imported artifact.
    pub fn new(artifact: Artifact) -> Model {
        let gguf = artifact
            .gguf
            .as_ref()
            .expect("GGUF is the only format so far");
        let tokenizer = tokenizer(gguf);
        let template = template(gguf, tokenizer.as_ref().ok());
        Model {
            artifact,
            tokenizer,
            template,
        }
    }

    /// The imported file.
    pub fn artifact(&self) -> &Artifact {
        &self.artifact
    }

    /// The model's own numbers.
    pub fn facts(&self) -> &ModelFacts {
        &self.artifact.facts
    }

    /// The tokenizer, or why the file has none that can be used.
    pub fn tokenizer(&self) -> Result<&Tokenizer, RuntimeError> {
        Ok(self.tokenizer.as_ref().map_err(no_tokenizer)?)
    }

    /// The chat template, ChatML when the file has none, or why the file's cannot be used.
    pub fn template(&self) -> Result<&ChatTemplate, RuntimeError> {
        Ok(self.template.as_ref().map_err(text::Error::clone)?)
    }
}

/// How a model file is opened.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// Most positions that will be used; all that the model was made for when `None`.
    pub context: Option<usize>,
    /// The passes that its graphs are optimised with.
    pub passes: PassSelection,
}

/// Imports a model file and optimises its graphs, as [`Model::open`] does; leaves the tokenizer alone.
pub fn open_artifact(path: &Path, context: Option<usize>) -> Result<Artifact, RuntimeError> {
    let passes = PassSelection::default();
    open_artifact_with(path, &OpenOptions { context, passes })
}

/// As [`open_artifact`], with chosen passes.
pub fn open_artifact_with(path: &Path, options: &OpenOptions) -> Result<Artifact, RuntimeError> {
    let import = ImportOptions {
        context_length: options.context,
        ..ImportOptions::default()
    };
    let mut artifact = import::open_with(path, &import)?;
    for method in &mut artifact.methods {
        graph::passes::optimise_with(&mut method.graph, &options.passes)
            .map_err(backend::BackendError::from)?;
    }
    Ok(artifact)
}

/// The tokenizer of a model file, read without its weights and graphs.
pub fn open_tokenizer(path: &Path) -> Result<Tokenizer, RuntimeError> {
    let gguf = Gguf::open(path).map_err(import::ImportError::from)?;
    Ok(tokenizer(&gguf).map_err(|error| no_tokenizer(&error))?)
}

fn tokenizer(gguf: &Gguf) -> Result<Tokenizer, text::Error> {
    Tokenizer::new(Vocab::from_source(&GgufSource(&gguf.metadata))?)
}

fn no_tokenizer(error: &text::Error) -> RuntimeErrorKind {
    RuntimeErrorKind::NoTokenizer(error.clone())
}

fn template(gguf: &Gguf, tokenizer: Option<&Tokenizer>) -> Result<ChatTemplate, text::Error> {
    let token_text = |id: Option<u32>| {
        let bytes = id.zip(tokenizer).and_then(|(id, t)| t.token_bytes(id));
        bytes.map_or(String::new(), |b| String::from_utf8_lossy(b).into_owned())
    };
    match GgufSource(&gguf.metadata).text("tokenizer.chat_template") {
        Some(source) => ChatTemplate::new(
            &source,
            &token_text(tokenizer.and_then(Tokenizer::bos)),
            &token_text(tokenizer.and_then(Tokenizer::eos)),
        ),
        None => Ok(ChatTemplate::chatml()),
    }
}

/// GGUF metadata as the tokenizer reads it.
struct GgufSource<'a>(&'a Metadata);

impl VocabSource for GgufSource<'_> {
    fn text(&self, key: &str) -> Option<String> {
        self.0.str(key).ok()?.map(str::to_owned)
    }

    fn texts(&self, key: &str) -> Option<Vec<String>> {
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
