//! `Loaded`: a model with its backend and options; `Prompt`: text or token ids.

use crate::error::Result;
use kvark::RunnerOptions;
use kvark::backend::Backend;
use kvark::embed::Embedder;
use kvark::engine::{Engine, SchedulerOptions};
use kvark::grammar::GrammarCompiler;
use kvark::speculative::{DraftSource, Drafter};
use kvark::text::EncodeOptions;
use pyo3::prelude::*;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// A model with its backend and options. All its sessions and branches share one.
pub(crate) struct Loaded {
    pub(crate) model: Arc<kvark::Model>,
    pub(crate) backend: Box<dyn Backend>,
    pub(crate) runner: RunnerOptions,
    pub(crate) path: PathBuf,
    pub(crate) slots: usize,
    /// A draft for requests that speculate with one.
    pub(crate) draft: Option<DraftSource>,
    /// Started by the first request.
    pub(crate) engine: Mutex<Option<Engine>>,
    pub(crate) grammars: Mutex<Option<Arc<GrammarCompiler>>>,
    pub(crate) embedder: Mutex<Option<Embedder>>,
}

/// A prompt: text or token ids.
#[derive(FromPyObject)]
pub(crate) enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
}

impl Prompt {
    /// The tokens; text is encoded with the model's BOS.
    pub(crate) fn tokens(self, model: &kvark::Model) -> Result<Vec<u32>> {
        match self {
            Prompt::Tokens(tokens) => Ok(tokens),
            Prompt::Text(text) => {
                let tokenizer = model.tokenizer()?;
                let options = EncodeOptions {
                    bos: tokenizer.adds_bos(),
                    special: true,
                    ..EncodeOptions::default()
                };
                Ok(tokenizer.encode(&text, options))
            }
        }
    }
}

impl Loaded {
    /// The name of the file.
    pub(crate) fn name(&self) -> String {
        let name = self.path.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    pub(crate) fn start_engine(&self) -> Result<Engine> {
        let context = self
            .runner
            .context
            .unwrap_or(self.model.facts().context_length);
        let runner = RunnerOptions {
            pool_cells: Some(context.saturating_mul(self.slots.clamp(1, 4))),
            preallocate: true,
            ..self.runner.clone()
        };
        let scheduler = SchedulerOptions {
            slots: self.slots,
            queue: usize::MAX,
            draft: self.drafter(self.slots)?,
            ..SchedulerOptions::default()
        };
        let engine = Engine::start(self.model.clone(), &*self.backend, &runner, &scheduler);
        Ok(engine?)
    }

    /// The draft for up to this many sequences, if the model was opened with one.
    pub(crate) fn drafter(&self, sequences: usize) -> Result<Option<Drafter>> {
        let (target, backend) = (&self.model, &*self.backend);
        let draft = self.draft.as_ref();
        let loaded = draft.map(|draft| draft.load(target, backend, &self.runner, sequences));
        Ok(loaded.transpose()?.flatten())
    }

    /// The compiler of grammars, made on first use.
    pub(crate) fn grammars(&self) -> Result<Arc<GrammarCompiler>> {
        let mut grammars = lock(&self.grammars);
        if grammars.is_none() {
            *grammars = Some(Arc::new(GrammarCompiler::new(&self.model)?));
        }
        Ok(grammars.as_ref().expect("it was just made").clone())
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
