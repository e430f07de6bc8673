//! `Model`: an imported model file with its graphs, tokenizer and chat template.

use crate::fingerprint::fingerprint;
use crate::sampler::{SamplerOptions, random_seed, sequence_breakers};
use crate::tokenizer_source::{TokenizerSource, compile_template};
use crate::{RuntimeError, RuntimeErrorKind};
use graph::passes::PassSelection;
use import::{Artifact, FeatureLayers, ImportOptions, ModelFacts};
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use text::{ChatTemplate, Tokenizer};

/// An imported model. Weights stay mapped; any number of runners can share it.
///
/// A model without a usable tokenizer or chat template still runs on token ids; only [`tokenizer`](Model::tokenizer)
/// and [`chat_template`](Model::chat_template) return an error.
pub struct Model {
    artifact: Arc<Artifact>,
    text_assets: Background<TextAssets>,
    /// The chat template that is used instead of the file's.
    other_template: Option<ChatTemplate>,
    fingerprint: OnceLock<u64>,
}

/// The tokenizer and the chat template of a model, or why each cannot be used.
struct TextAssets {
    tokenizer: Result<Tokenizer, text::TextError>,
    template: Result<ChatTemplate, text::TextError>,
}

impl TextAssets {
    fn from_artifact(artifact: &Artifact) -> TextAssets {
        let source = TokenizerSource::from_artifact(artifact);
        let tokenizer = source.tokenizer();
        let template = source.template(tokenizer.as_ref().ok());
        TextAssets {
            tokenizer,
            template,
        }
    }
}

/// A value that a background thread computes.
struct Background<T> {
    value: OnceLock<T>,
    thread: Mutex<Option<JoinHandle<T>>>,
}

impl<T> Background<T> {
    /// Returns the value. Joins the background thread on first use; calls `make` if the thread could not be started. A
    /// panic of the thread is resumed here.
    fn get(&self, make: impl FnOnce() -> T) -> &T {
        self.value.get_or_init(|| {
            let thread = self.thread.lock();
            let thread = thread.unwrap_or_else(PoisonError::into_inner).take();
            match thread.map(JoinHandle::join) {
                Some(Ok(value)) => value,
                Some(Err(panic)) => resume_unwind(panic),
                None => make(),
            }
        })
    }
}

impl Model {
    /// Opens a model file and optimises its graphs. `context` is the maximum context that will be used, `None` for the
    /// model's own; models with several sets of rotary frequencies choose one by it.
    pub fn open(path: &Path, context: Option<usize>) -> Result<Model, RuntimeError> {
        Model::open_with(path, &OpenOptions::for_context(context))
    }

    /// Opens a model file with these options.
    pub fn open_with(path: &Path, options: &OpenOptions) -> Result<Model, RuntimeError> {
        Ok(Model::new(open_artifact_with(path, options)?))
    }

    /// A model from an imported artifact. Builds the tokenizer in the background, so that a caller who creates a
    /// [`Runner`](crate::Runner) first does not wait for it.
    pub fn new(artifact: Artifact) -> Model {
        let artifact = Arc::new(artifact);
        let shared = artifact.clone();
        let thread = std::thread::Builder::new().name("kvark-tokenizer".to_owned());
        let thread = thread
            .spawn(move || TextAssets::from_artifact(&shared))
            .ok();
        Model {
            artifact,
            text_assets: Background {
                value: OnceLock::new(),
                thread: Mutex::new(thread),
            },
            other_template: None,
            fingerprint: OnceLock::new(),
        }
    }

    /// The MTP head that the model's file carries, as a draft for this model. Its weights are the mapped ones of the model.
    ///
    /// # Errors
    /// `Import` with what is missing if the file carries none.
    pub fn mtp_head(&self) -> Result<Model, RuntimeError> {
        // A head's tokens are those of its model: nobody asks for its tokenizer.
        Ok(Model {
            artifact: Arc::new(mtp_head(&self.artifact)?),
            text_assets: Background {
                value: OnceLock::new(),
                thread: Mutex::new(None),
            },
            other_template: None,
            fingerprint: OnceLock::new(),
        })
    }

    /// Whether the steps of the model return features after their logits.
    pub fn gives_features(&self) -> bool {
        let forward = self.artifact.method("forward");
        self.facts().is_decoder() && forward.is_some_and(|m| m.graph.outputs().len() > 1)
    }

    fn text_assets(&self) -> &TextAssets {
        self.text_assets
            .get(|| TextAssets::from_artifact(&self.artifact))
    }

    /// The imported file.
    pub fn artifact(&self) -> &Artifact {
        &self.artifact
    }

    /// The model's facts: sizes, context length and special properties.
    pub fn facts(&self) -> &ModelFacts {
        &self.artifact.facts
    }

    /// A hash that identifies the model. Models of the same shape with other weights have another fingerprint.
    pub fn fingerprint(&self) -> u64 {
        let artifact = &self.artifact;
        *self.fingerprint.get_or_init(|| fingerprint(artifact))
    }

    /// The default sampler options: those of `genai_config.json` or `generation_config.json` beside the model, if there is one.
    pub fn default_sampling(&self) -> SamplerOptions {
        let defaults = SamplerOptions::default();
        let Some(search) = self.artifact.search() else {
            return defaults;
        };
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

    /// The sampler options of a request: the model's defaults with a random seed, changed by `set`.
    ///
    /// # Errors
    /// That of `set`, and `InvalidOptions` if an option is out of range or does not fit the model.
    pub fn sampling<E: From<RuntimeError>>(
        &self,
        set: impl FnOnce(&mut SamplerOptions) -> Result<(), E>,
    ) -> Result<SamplerOptions, E> {
        let mut options = SamplerOptions {
            seed: random_seed(),
            ..self.default_sampling()
        };
        set(&mut options)?;
        options.check(self.facts().vocab_size)?;
        if options.dry_multiplier > 0.0
            && let Ok(tokenizer) = self.tokenizer()
        {
            options.dry_breaker_tokens =
                sequence_breakers(tokenizer, &options.dry_sequence_breakers);
        }
        Ok(options)
    }

    /// The tokenizer.
    ///
    /// # Errors
    /// `NoTokenizer` if the file has no usable one.
    pub fn tokenizer(&self) -> Result<&Tokenizer, RuntimeError> {
        Ok(self
            .text_assets()
            .tokenizer
            .as_ref()
            .map_err(no_tokenizer)?)
    }

    /// The lengths of a rendered conversation at which messages end; none without a tokenizer.
    pub fn message_ends(&self, ids: &[u32]) -> Vec<usize> {
        let tokenizer = self.text_assets().tokenizer.as_ref();
        tokenizer.map_or(vec![], |tokenizer| tokenizer.message_ends(ids))
    }

    /// The chat template.
    ///
    /// # Errors
    /// `Text` if the file has no usable one.
    pub fn chat_template(&self) -> Result<&ChatTemplate, RuntimeError> {
        if let Some(template) = &self.other_template {
            return Ok(template);
        }
        Ok(self
            .text_assets()
            .template
            .as_ref()
            .map_err(text::TextError::clone)?)
    }

    /// The model with another chat template than that of its file.
    ///
    /// # Errors
    /// Those of [`compile_template`](Model::compile_template).
    pub fn with_chat_template(mut self, source: &str) -> Result<Model, RuntimeError> {
        self.other_template = Some(self.compile_template(source)?);
        Ok(self)
    }

    /// Compiles another chat template for this model. It can use the model's BOS and EOS.
    ///
    /// # Errors
    /// `Text` if `source` does not parse; the message names the line.
    pub fn compile_template(&self, source: &str) -> Result<ChatTemplate, RuntimeError> {
        let tokenizer = self.text_assets().tokenizer.as_ref().ok();
        Ok(compile_template(source, tokenizer)?)
    }
}

/// The options for opening a model file.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// The maximum context that will be used; `None` for the model's own.
    pub context: Option<usize>,
    /// The optimisation passes to run on its graphs.
    pub passes: PassSelection,
    /// Open decoders for an [`Embedder`](crate::Embedder): they have no cache and return hidden states.
    pub hidden_states: bool,
    /// Layers whose inputs the steps of a decoder return as features; those that a draft head asks for.
    pub feature_layers: FeatureLayers,
    /// Accept methods that have no graph for all shapes of their inputs.
    pub by_shape: bool,
    /// Values of dynamic sizes, by name, for which such methods get a graph.
    pub sizes: Vec<(String, usize)>,
}

impl OpenOptions {
    fn for_context(context: Option<usize>) -> OpenOptions {
        OpenOptions {
            context,
            ..OpenOptions::default()
        }
    }
}

/// Imports a model file and optimises its graphs like [`Model::open`], without its tokenizer.
pub fn open_artifact(path: &Path, context: Option<usize>) -> Result<Artifact, RuntimeError> {
    open_artifact_with(path, &OpenOptions::for_context(context))
}

/// Like [`open_artifact`], with options.
pub fn open_artifact_with(path: &Path, options: &OpenOptions) -> Result<Artifact, RuntimeError> {
    let import = ImportOptions {
        context_length: options.context,
        hidden_states: options.hidden_states,
        feature_layers: options.feature_layers.clone(),
        by_shape: options.by_shape,
        ..ImportOptions::default()
    };
    let mut artifact = import::open_with(path, &import)?;
    if !options.sizes.is_empty() {
        artifact.set_sizes(&options.sizes)?;
    }
    optimise(artifact, &options.passes)
}

/// Lowers the MTP head that the file of an opened model carries, and optimises its graph.
///
/// # Errors
/// `Import` with what is missing if the file carries none.
pub fn mtp_head(model: &Artifact) -> Result<Artifact, RuntimeError> {
    let import = ImportOptions {
        context_length: Some(model.facts.context_length),
        mtp_head: true,
        ..ImportOptions::default()
    };
    let head = Artifact::from_file(model.file.clone(), &import)?;
    optimise(head, &PassSelection::default())
}

fn optimise(mut artifact: Artifact, passes: &PassSelection) -> Result<Artifact, RuntimeError> {
    for method in &mut artifact.methods {
        graph::passes::optimise_with(&mut method.graph, passes)
            .map_err(backend::BackendError::from)?;
    }
    Ok(artifact)
}

/// Reads the tokenizer of a model file, without its weights and graphs.
pub fn open_tokenizer(path: &Path) -> Result<Tokenizer, RuntimeError> {
    let tokenizer = TokenizerSource::with_file(path, |source| source.tokenizer())?;
    Ok(tokenizer.map_err(|error| no_tokenizer(&error))?)
}

fn no_tokenizer(error: &text::TextError) -> RuntimeErrorKind {
    RuntimeErrorKind::NoTokenizer(error.clone())
}
