//! `ModelRegistry`: the models of a server by name, loaded on first use and unloaded when memory is short.

use crate::embeddings::EmbeddingInput;
use crate::error::ApiError;
use crate::options::ServerOptions;
use kvark::backend::Backend;
use kvark::embed::{EmbedOptions, Embedder};
use kvark::engine::{
    BranchCells, Counters, Engine, EngineHandle, Request, RequestEvent, SchedulerOptions,
};
use kvark::generate::{GenerateOptions, PromptPrefix, common_prefix_len};
use kvark::grammar::GrammarCompiler;
use kvark::memory::MemoryLimit;
use kvark::model::OpenOptions;
use kvark::snapshot::PrefixFile;
use kvark::speculative::{DraftSource, SpecOptions};
use kvark::text::Message;
use kvark::{Model, RunnerOptions, RuntimeError, RuntimeErrorKind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// The models of a server.
pub(crate) struct ModelRegistry {
    /// The default model first. Models are added, and none is removed.
    entries: RwLock<Vec<Arc<Entry>>>,
    backend: Arc<dyn Backend>,
    runner: RunnerOptions,
    scheduler: SchedulerOptions,
    /// A system message that every model computes when it is loaded.
    prefix: Option<String>,
    /// A prefix file that the pool of every model stands on.
    prefix_file: Option<PrefixFile>,
    grace: Duration,
    /// The source of a chat template for all models.
    chat_template: Option<String>,
    /// Held while a model is loaded or unloaded.
    loading: Mutex<()>,
}

struct Entry {
    name: String,
    path: PathBuf,
    /// A draft of the model.
    draft: Option<PathBuf>,
    loaded: Mutex<Option<Arc<LoadedModel>>>,
    /// Counted by all engines of the model, one after the other.
    counters: Arc<Counters>,
    embedder: Mutex<Option<Embedder>>,
}

impl Entry {
    fn new(name: String, path: PathBuf, draft: Option<PathBuf>) -> Arc<Entry> {
        Arc::new(Entry {
            name,
            path,
            draft,
            loaded: Mutex::new(None),
            counters: Arc::default(),
            embedder: Mutex::new(None),
        })
    }

    /// Unloads the model. Its running answers may go on for `grace`. Returns whether it was loaded.
    fn unload(&self, grace: Duration) -> bool {
        let embedder = lock(&self.embedder).take();
        let model = lock(&self.loaded).take();
        if let Some(model) = &model {
            model.stop(grace);
        }
        embedder.is_some() || model.is_some()
    }
}

/// A model in memory.
pub(crate) struct LoadedModel {
    pub(crate) name: String,
    pub(crate) model: Arc<Model>,
    engine: Mutex<Option<Engine>>,
    handle: EngineHandle,
    /// Holds the cells of the system message that chats share.
    _prefix: Option<BranchCells>,
    used: Mutex<Instant>,
    grace: Duration,
    grammars: OnceLock<Result<GrammarCompiler, String>>,
    /// The bytes of the longest token.
    longest_token: OnceLock<usize>,
}

impl LoadedModel {
    /// When it was last asked for.
    pub(crate) fn last_use(&self) -> Instant {
        *lock(&self.used)
    }

    /// The handle of its engine.
    pub(crate) fn engine(&self) -> &EngineHandle {
        &self.handle
    }

    /// The compiler of output constraints, made on first use.
    pub(crate) fn grammars(&self) -> Result<&GrammarCompiler, ApiError> {
        let make = || GrammarCompiler::new(&self.model).map_err(|error| error.to_string());
        let compiler = self.grammars.get_or_init(make).as_ref();
        compiler.map_err(|message| ApiError::invalid(message.clone()))
    }

    /// Refuses a text that has more tokens than a request may have, however it is tokenised.
    pub(crate) fn check_length(&self, bytes: usize) -> Result<(), ApiError> {
        let longest = self.longest_token.get_or_init(|| {
            let Ok(tokenizer) = self.model.tokenizer() else {
                return usize::MAX;
            };
            let bytes = |id| tokenizer.token_bytes(id).map_or(0, <[u8]>::len);
            (0..self.model.facts().vocab_size as u32)
                .map(bytes)
                .max()
                .unwrap_or(0)
        });
        let tokens = bytes / longest.max(&1);
        let context = self.handle.context();
        if tokens < context {
            return Ok(());
        }
        let error = ApiError::invalid(format!(
            "the prompt has {bytes} bytes, at least {tokens} tokens; the context has {context}"
        ));
        Err(error.with_code("context_length_exceeded"))
    }

    /// Stops the engine: running answers may go on for `grace`.
    fn stop(&self, grace: Duration) {
        if let Some(engine) = lock(&self.engine).take() {
            engine.stop(grace);
        }
    }
}

impl Drop for LoadedModel {
    fn drop(&mut self) {
        self.stop(self.grace);
    }
}

impl ModelRegistry {
    pub(crate) fn new(options: &ServerOptions, backend: Box<dyn Backend>) -> ModelRegistry {
        let drafts = options.draft.iter().cloned().map(Some);
        let drafts = drafts.chain(std::iter::repeat(None));
        let entry = |((name, path), draft): (&(String, PathBuf), Option<PathBuf>)| {
            Entry::new(name.clone(), path.clone(), draft)
        };
        let entries = options.models.iter().zip(drafts).map(entry).collect();
        ModelRegistry {
            entries: RwLock::new(entries),
            backend: Arc::from(backend),
            runner: options.runner.clone(),
            scheduler: SchedulerOptions {
                slots: options.slots,
                queue: options.queue,
                disk: options.cache_disk.clone(),
                host: options.cache_ram.clone(),
                context_shift: options.context_shift,
                candidates: SpecOptions::default().max_candidates,
                ..SchedulerOptions::default()
            },
            prefix: options.prefix.clone(),
            prefix_file: options.prefix_file.clone(),
            grace: options.grace,
            chat_template: options.chat_template.clone(),
            loading: Mutex::new(()),
        }
    }

    /// All models, the default one first.
    fn entries(&self) -> Vec<Arc<Entry>> {
        let entries = self.entries.read();
        entries.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The names of all models, with a flag whether each is loaded.
    pub(crate) fn names(&self) -> impl Iterator<Item = (String, bool)> {
        let entries = self.entries().into_iter();
        entries.map(|entry| (entry.name.clone(), lock(&entry.loaded).is_some()))
    }

    /// Adds a model under a name that no model has yet. Returns whether it was added.
    pub(crate) fn add(&self, name: &str, path: PathBuf) -> bool {
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        let is_new = entries.iter().all(|entry| entry.name != name);
        if is_new {
            entries.push(Entry::new(name.to_owned(), path, None));
        }
        is_new
    }

    /// The loaded models.
    pub(crate) fn loaded(&self) -> Vec<Arc<LoadedModel>> {
        let entries = self.entries();
        let loaded = entries.iter().map(|entry| lock(&entry.loaded).clone());
        loaded.flatten().collect()
    }

    /// The model of this name: the default one for `None`, the empty name and `default`. A server with one model answers under every
    /// name: many programs know the names of one provider only.
    fn entry(&self, name: Option<&str>) -> Result<Arc<Entry>, ApiError> {
        let entries = self.entries();
        let name = name.filter(|name| !name.is_empty() && *name != "default");
        let found = match (name, &entries[..]) {
            (None, entries) => entries.first(),
            (Some(_), [only]) => Some(only),
            (Some(name), entries) => entries.iter().find(|entry| entry.name == name),
        };
        found.cloned().ok_or_else(|| {
            let names: Vec<&str> = entries.iter().map(|entry| &*entry.name).collect();
            let name = name.unwrap_or("default");
            let names = names.join(", ");
            let error = format!("there is no model {name:?}; the models are {names}");
            let error = ApiError::not_found(error).of_parameter("model");
            error.with_code("model_not_found")
        })
    }

    /// The full name of a model.
    pub(crate) fn name(&self, name: Option<&str>) -> Result<String, ApiError> {
        Ok(self.entry(name)?.name.clone())
    }

    /// The file of a model.
    pub(crate) fn path(&self, name: &str) -> Result<PathBuf, ApiError> {
        Ok(self.entry(Some(name))?.path.clone())
    }

    /// Unloads a model. Its running answers may go on for the grace time. Returns whether it was loaded.
    pub(crate) fn unload(&self, name: &str) -> Result<bool, ApiError> {
        let entry = self.entry(Some(name))?;
        let _one_at_a_time = lock(&self.loading);
        let unloaded = entry.unload(self.grace);
        if unloaded {
            tracing::info!(model = entry.name, "unloaded");
        }
        Ok(unloaded)
    }

    /// The model of this name. Loads it if it is not loaded, which can take seconds.
    pub(crate) fn get(&self, name: Option<&str>) -> Result<Arc<LoadedModel>, ApiError> {
        let entry = self.entry(name)?;
        let there = lock(&entry.loaded).clone();
        if let Some(model) = there {
            *lock(&model.used) = Instant::now();
            return Ok(model);
        }
        let _one_at_a_time = lock(&self.loading);
        let there = lock(&entry.loaded).clone();
        if let Some(model) = there {
            return Ok(model);
        }
        let model = loop {
            match self.load(&entry) {
                Ok(model) => break Arc::new(model),
                Err(error) if self.could_fit(&error) && self.unload_oldest(&entry.name) => {}
                Err(error) => return Err(error.into()),
            }
        };
        *lock(&entry.loaded) = Some(model.clone());
        Ok(model)
    }

    fn load(&self, entry: &Entry) -> Result<LoadedModel, RuntimeError> {
        let started = Instant::now();
        let draft = entry.draft.as_deref();
        let draft = draft.map(|name| DraftSource::open(name, self.runner.context));
        let draft = draft.transpose()?;
        let layers = draft.as_ref().map(DraftSource::feature_layers);
        let options = OpenOptions {
            context: self.runner.context,
            feature_layers: layers.unwrap_or_default(),
            ..OpenOptions::default()
        };
        let model = Model::open_with(&entry.path, &options)?;
        let model = Arc::new(match &self.chat_template {
            Some(source) => model.with_chat_template(source)?,
            None => model,
        });
        let engine = self.start(&model, draft.as_ref(), &entry.counters)?;
        let prefix = self.prefix.as_deref();
        let prefix = prefix.map(|system| hold_prefix(&model, engine.handle(), system));
        tracing::info!(
            model = entry.name,
            milliseconds = started.elapsed().as_millis() as u64,
            "loaded"
        );
        Ok(LoadedModel {
            name: entry.name.clone(),
            model,
            _prefix: prefix.transpose()?,
            handle: engine.handle().clone(),
            engine: Mutex::new(Some(engine)),
            used: Mutex::new(Instant::now()),
            grace: self.grace,
            grammars: OnceLock::new(),
            longest_token: OnceLock::new(),
        })
    }

    /// Starts an engine whose pool has room for all slots; for fewer if memory is short.
    fn start(
        &self,
        model: &Arc<Model>,
        draft: Option<&DraftSource>,
        counters: &Arc<Counters>,
    ) -> Result<Engine, RuntimeError> {
        let context = self.runner.context_of(model.facts());
        let file = self.prefix_file.as_ref();
        let prefix = file.map(|file| file.shared(model, &*self.backend, &self.runner));
        let prefix = prefix.transpose()?;
        // The cells of the prefix are no memory of the pool.
        let frozen = prefix.as_ref().map_or(0, PromptPrefix::len);
        let mut slots = self.scheduler.slots.max(1);
        loop {
            let runner = RunnerOptions {
                memory: self.remaining_memory(),
                pool_cells: Some(context.saturating_mul(slots).saturating_add(frozen)),
                preallocate: true,
                prefix: prefix.clone(),
                ..self.runner.clone()
            };
            let draft = draft.map(|draft| {
                let sequences = self.scheduler.slots.max(1);
                draft.load(model, &*self.backend, &runner, sequences)
            });
            let scheduler = SchedulerOptions {
                draft: draft.transpose()?.flatten(),
                counters: counters.clone(),
                ..self.scheduler.clone()
            };
            match Engine::start(model.clone(), &*self.backend, &runner, &scheduler) {
                Err(error) if is_shortfall(&error) && slots > 1 => slots /= 2,
                started => return started,
            }
        }
    }

    /// The memory limit of the next model: what the loaded ones leave of the limit of the options.
    fn remaining_memory(&self) -> MemoryLimit {
        match self.runner.memory {
            MemoryLimit::Bytes(limit) => {
                let loaded = self.loaded();
                let taken = loaded.iter().map(|m| m.engine().planned_bytes() as u64);
                // Prefixes in host memory count where the pool is in the same memory.
                let host = match self.backend.has_own_memory() {
                    true => 0,
                    false => self.scheduler.host.limit * (loaded.len() as u64 + 1),
                };
                MemoryLimit::Bytes(limit.saturating_sub(taken.sum::<u64>() + host))
            }
            other => other,
        }
    }

    /// Whether a model that did not fit would fit if all others were unloaded.
    fn could_fit(&self, error: &RuntimeError) -> bool {
        let RuntimeErrorKind::MemoryShortfall(shortfall) = error.kind() else {
            return false;
        };
        let loaded = self.loaded();
        let freed = loaded.iter().map(|m| m.engine().planned_bytes() as u64);
        shortfall.needed <= shortfall.limit.saturating_add(freed.sum())
    }

    /// The model of this name if it is loaded. What only reads must not load a model, and so unload others.
    pub(crate) fn get_loaded(&self, name: Option<&str>) -> Result<Arc<LoadedModel>, ApiError> {
        let entry = self.entry(name)?;
        let loaded = lock(&entry.loaded).clone();
        loaded.ok_or_else(|| {
            let message = format!(
                "the model {:?} is not loaded: a completion loads it",
                entry.name
            );
            ApiError::conflict("model_not_loaded", message)
        })
    }

    /// The names of all models, with what their engines have counted.
    pub(crate) fn counters(&self) -> impl Iterator<Item = (String, Arc<Counters>)> {
        let entries = self.entries().into_iter();
        entries.map(|entry| (entry.name.clone(), entry.counters.clone()))
    }

    /// Unloads the model that was not used for the longest time, except `keep`. Returns whether there was one.
    fn unload_oldest(&self, keep: &str) -> bool {
        let others = self.loaded().into_iter().filter(|model| model.name != keep);
        let Some(oldest) = others.min_by_key(|model| *lock(&model.used)) else {
            return false;
        };
        tracing::info!(model = oldest.name, "unloading, to make room");
        for entry in self.entries() {
            if entry.name == oldest.name {
                entry.unload(self.grace);
            }
        }
        true
    }

    /// Embeds texts with a model. One call at a time runs.
    pub(crate) fn embed(
        &self,
        name: Option<&str>,
        input: EmbeddingInput,
    ) -> Result<(String, Vec<kvark::embed::Embedding>), ApiError> {
        let entry = self.entry(name)?;
        let mut embedder = lock(&entry.embedder);
        if embedder.is_none() {
            let open = OpenOptions {
                hidden_states: true,
                ..OpenOptions::default()
            };
            let model = Model::open_with(&entry.path, &open)?;
            let options = EmbedOptions {
                memory: self.remaining_memory(),
                compile: self.runner.compile.clone(),
                ..EmbedOptions::default()
            };
            *embedder = Some(Embedder::new(model, &*self.backend, &options)?);
        }
        let embedder = embedder.as_mut().expect("it was just made");
        let vectors = match input {
            EmbeddingInput::Text(text) => embedder.embed(&[text], |_| true),
            EmbeddingInput::Texts(texts) => embedder.embed(&texts, |_| true),
            EmbeddingInput::Tokens(ids) => embedder.embed_tokens(&[ids], |_| true),
            EmbeddingInput::Lists(lists) => embedder.embed_tokens(&lists, |_| true),
        };
        let vectors = vectors?.unwrap_or_default();
        Ok((entry.name.clone(), vectors))
    }

    /// Stops all engines.
    pub(crate) fn stop(&self) {
        let loaded = self.loaded();
        std::thread::scope(|scope| {
            for model in &loaded {
                scope.spawn(|| model.stop(self.grace));
            }
        });
    }

    /// Ends the running answers of all engines.
    pub(crate) fn stop_now(&self) {
        for model in self.loaded() {
            model.engine().stop_at(Instant::now());
        }
    }

    /// The backend of all models.
    pub(crate) fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// The memory limit of the options in bytes, if there is one.
    pub(crate) fn memory_limit(&self) -> Option<u64> {
        match self.runner.memory {
            MemoryLimit::Bytes(n) => Some(n),
            _ => self.backend.free_memory(),
        }
    }
}

fn is_shortfall(error: &RuntimeError) -> bool {
    matches!(error.kind(), RuntimeErrorKind::MemoryShortfall(_))
}

/// Computes the beginning of all chats that have this system message. The result holds its cells: memory pressure removes what
/// nobody holds first.
fn hold_prefix(
    model: &Model,
    engine: &EngineHandle,
    system: &str,
) -> Result<BranchCells, RuntimeError> {
    let with = |text: &str| {
        let messages = [Message::new("system", system), Message::new("user", text)];
        let (template, tokenizer) = (model.chat_template()?, model.tokenizer()?);
        let prompt = template.prompt(tokenizer, &messages, true)?;
        Ok::<_, RuntimeError>(tokenizer.encode_prompt(&prompt))
    };
    let mut tokens = with("a")?;
    tokens.truncate(common_prefix_len(&tokens, &with("b")?));
    let cells = BranchCells::default();
    for event in engine.generate(prefill(tokens, cells.clone()))? {
        if let RequestEvent::Failed(error) = event {
            return Err(error);
        }
    }
    Ok(cells)
}

/// A request that only computes tokens, for these cells.
pub(crate) fn prefill(tokens: Vec<u32>, cells: BranchCells) -> Request {
    Request {
        options: GenerateOptions {
            max_tokens: Some(0),
            ..GenerateOptions::default()
        },
        branch: Some(cells),
        ..Request::new(tokens)
    }
}

/// Locks a mutex. A panic while it was held cannot have left its value half changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
