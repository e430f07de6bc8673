//! A model file with everything a conversation needs: graphs, tokenizer, chat template.

use crate::fingerprint::fingerprint;
use crate::vocabulary::{Vocabulary, compile_template};
use crate::{RuntimeError, RuntimeErrorKind, SamplerOptions};
use graph::passes::PassSelection;
use import::{Artifact, ImportOptions, ModelFacts};
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use text::{ChatTemplate, Tokenizer};

/// An imported model. Weights stay mapped; any number of runners can share it.
///
/// A file without a usable tokenizer or chat template still runs on token ids; asking for what is missing is the error.
pub struct Model {
    artifact: Arc<Artifact>,
    words: Later<Words>,
    fingerprint: OnceLock<u64>,
}

/// What a model needs for text.
struct Words {
    tokenizer: Result<Tokenizer, text::Error>,
    template: Result<ChatTemplate, text::Error>,
}

impl Words {
    fn of(artifact: &Artifact) -> Words {
        let vocabulary = Vocabulary::of(artifact);
        let tokenizer = vocabulary.tokenizer();
        let template = vocabulary.template(tokenizer.as_ref().ok());
        Words {
            tokenizer,
            template,
        }
    }
}

/// Something that a thread is making.
struct Later<T> {
    made: OnceLock<T>,
    thread: Mutex<Option<JoinHandle<T>>>,
}

impl<T> Later<T> {
    /// It, once the thread is done; made here where there was no thread to be had.
    fn get(&self, make: impl FnOnce() -> T) -> &T {
        self.made.get_or_init(|| {
            let thread = self.thread.lock();
            let thread = thread.unwrap_or_else(PoisonError::into_inner).take();
            match thread.map(JoinHandle::join) {
                Some(Ok(made)) => made,
                Some(Err(panic)) => resume_unwind(panic),
                None => make(),
            }
        })
    }
}

impl Model {
    /// Opens a model file and optimises its graphs. Models with several sets of rotary frequencies choose by the
    /// context that will be used; `None` is all that the model was made for.
    pub fn open(path: &Path, context: Option<usize>) -> Result<Model, RuntimeError> {
        Model::open_with(path, &OpenOptions::for_context(context))
    }

    /// Opens a model file for a known use, with chosen passes.
    pub fn open_with(path: &Path, options: &OpenOptions) -> Result<Model, RuntimeError> {
        Ok(Model::new(open_artifact_with(path, options)?))
    }

    /// A model from an imported artifact. Its tokenizer is built in the background: a caller that makes a
    /// [`Runner`](crate::Runner) before it asks for the tokenizer does not wait for it.
    pub fn new(artifact: Artifact) -> Model {
        let artifact = Arc::new(artifact);
        let shared = artifact.clone();
        let thread = std::thread::Builder::new().name("kvark-words".to_owned());
        let thread = thread.spawn(move || Words::of(&shared)).ok();
        Model {
            artifact,
            words: Later {
                made: OnceLock::new(),
                thread: Mutex::new(thread),
            },
            fingerprint: OnceLock::new(),
        }
    }

    fn words(&self) -> &Words {
        self.words.get(|| Words::of(&self.artifact))
    }

    /// The imported file.
    pub fn artifact(&self) -> &Artifact {
        &self.artifact
    }

    /// The model's own numbers.
    pub fn facts(&self) -> &ModelFacts {
        &self.artifact.facts
    }

    /// A number that tells the model apart from others, also from one of the same shape.
    pub fn fingerprint(&self) -> u64 {
        let artifact = &self.artifact;
        *self.fingerprint.get_or_init(|| fingerprint(artifact))
    }

    /// How tokens are chosen unless the caller says otherwise: as the model's configuration says, where it has one.
    pub fn sampling(&self) -> SamplerOptions {
        let defaults = SamplerOptions::default();
        let Some(config) = &self.artifact.sidecars.genai else {
            return defaults;
        };
        let search = &config.search;
        SamplerOptions {
            temperature: match search.do_sample {
                Some(false) => 0.0,
                _ => search.temperature.unwrap_or(defaults.temperature),
            },
            top_k: search.top_k.unwrap_or(defaults.top_k),
            top_p: search.top_p.unwrap_or(defaults.top_p),
            repeat_penalty: search.repetition_penalty.unwrap_or(defaults.repeat_penalty),
            ..defaults
        }
    }

    /// The tokenizer, or why the file has none that can be used.
    pub fn tokenizer(&self) -> Result<&Tokenizer, RuntimeError> {
        Ok(self.words().tokenizer.as_ref().map_err(no_tokenizer)?)
    }

    /// The chat template, or why the file has none that can be used.
    pub fn template(&self) -> Result<&ChatTemplate, RuntimeError> {
        Ok(self.words().template.as_ref().map_err(text::Error::clone)?)
    }

    /// Compiles another chat template for this model: it may write the model's BOS and EOS.
    ///
    /// # Errors
    /// When `source` does not parse; the error names the line.
    pub fn compile_template(&self, source: &str) -> Result<ChatTemplate, RuntimeError> {
        let tokenizer = self.words().tokenizer.as_ref().ok();
        Ok(compile_template(source, tokenizer)?)
    }
}

/// How a model file is opened.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// Most positions that will be used; all that the model was made for when `None`.
    pub context: Option<usize>,
    /// The passes that its graphs are optimised with.
    pub passes: PassSelection,
    /// Open decoders for an [`Embedder`](crate::Embedder): without a cache, for their hidden states.
    pub hidden_states: bool,
}

impl OpenOptions {
    fn for_context(context: Option<usize>) -> OpenOptions {
        OpenOptions {
            context,
            ..OpenOptions::default()
        }
    }
}

/// Imports a model file and optimises its graphs, as [`Model::open`] does; leaves the tokenizer alone.
pub fn open_artifact(path: &Path, context: Option<usize>) -> Result<Artifact, RuntimeError> {
    open_artifact_with(path, &OpenOptions::for_context(context))
}

/// As [`open_artifact`], with chosen passes.
pub fn open_artifact_with(path: &Path, options: &OpenOptions) -> Result<Artifact, RuntimeError> {
    let import = ImportOptions {
        context_length: options.context,
        hidden_states: options.hidden_states,
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
    let tokenizer = Vocabulary::with_file(path, |vocabulary| vocabulary.tokenizer())?;
    Ok(tokenizer.map_err(|error| no_tokenizer(&error))?)
}

fn no_tokenizer(error: &text::Error) -> RuntimeErrorKind {
    RuntimeErrorKind::NoTokenizer(error.clone())
}
