//! `Session`: one sequence of tokens on a model, with its cache.

use crate::error::{Error, Result};
use crate::generation::{Event, Generation};
use crate::loaded::{Loaded, Prompt};
use crate::options::GenerationOptions;
use kvark::Runner;
use kvark::generate::{GenerateEvent, GenerateOutput, PromptPrefix, Sampler};
use kvark::snapshot::Snapshot;
use numpy::{PyArray1, PyArray2, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// A frozen beginning that several sessions share. Its keys and values are stored once.
#[pyclass(frozen, module = "kvark")]
pub struct Prefix {
    pub(crate) prefix: PromptPrefix,
}

#[pymethods]
impl Prefix {
    /// Its tokens.
    #[getter]
    fn tokens(&self) -> Vec<u32> {
        self.prefix.tokens().to_vec()
    }

    fn __len__(&self) -> usize {
        self.prefix.len()
    }
}

/// One sequence of tokens with its keys and values.
#[pyclass(frozen, module = "kvark")]
pub struct Session {
    model: Arc<Loaded>,
    /// `None` while a generation has it.
    runner: Arc<Mutex<Option<Runner>>>,
}

impl Session {
    pub(crate) fn new(model: Arc<Loaded>, prefix: Option<&PromptPrefix>) -> Result<Session> {
        let (backend, options) = (&*model.backend, &model.runner);
        let runner = match prefix {
            Some(prefix) => Runner::with_prefix(prefix, &model.model, backend, options)?,
            None => Runner::new(&model.model, backend, options)?,
        };
        Ok(Session {
            runner: Arc::new(Mutex::new(Some(runner))),
            model,
        })
    }

    /// Calls `work` with the runner, without the interpreter's lock.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Runner) -> Result<T> + Send,
    ) -> Result<T> {
        py.detach(|| {
            let mut place = self.runner.lock().unwrap_or_else(PoisonError::into_inner);
            work(place.as_mut().ok_or_else(Error::busy)?)
        })
    }
}

#[pymethods]
impl Session {
    /// Appends tokens or text. Returns the number of tokens. `progress` is called with the number of tokens done.
    #[pyo3(signature = (prompt, *, progress=None))]
    fn feed(&self, py: Python<'_>, prompt: Prompt, progress: Option<Py<PyAny>>) -> Result<usize> {
        let tokens = prompt.tokens(&self.model.model)?;
        let mut raised = None;
        let done = self.with(py, |runner| {
            Ok(runner.feed(&tokens, |done| {
                // One token is one step: the interpreter is asked only where there are several.
                if tokens.len() == 1 {
                    return true;
                }
                let call = Python::attach(|py| {
                    py.check_signals()?;
                    match &progress {
                        Some(progress) => progress.call1(py, (done,)).map(|_| ()),
                        None => Ok(()),
                    }
                });
                raised = call.err();
                raised.is_none()
            })?)
        })?;
        match raised {
            Some(error) => Err(error.into()),
            None => {
                debug_assert!(done);
                Ok(tokens.len())
            }
        }
    }

    /// The logits after the last token, as a copy.
    fn logits<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyArray1<f32>>> {
        let place = self.runner.lock().unwrap_or_else(PoisonError::into_inner);
        let runner = place.as_ref().ok_or_else(Error::busy)?;
        Ok(PyArray1::from_slice(py, runner.logits()))
    }

    /// Appends tokens or text and returns the logits after every token, as rows.
    fn feed_all_logits<'py>(
        &self,
        py: Python<'py>,
        prompt: Prompt,
    ) -> Result<Bound<'py, PyArray2<f32>>> {
        let tokens = prompt.tokens(&self.model.model)?;
        let mut rows = Vec::new();
        self.with(py, |runner| {
            Ok(runner.feed_all_logits(&tokens, |_, logits| {
                rows.extend_from_slice(logits);
                true
            })?)
        })?;
        let vocab = self.model.model.facts().vocab_size;
        let flat = PyArray1::from_vec(py, rows);
        Ok(flat.reshape([tokens.len(), vocab])?)
    }

    /// Appends a prompt, if there is one, and generates. The result is an iterator over pieces of text.
    #[pyo3(signature = (prompt=None, *, progress=None, **options))]
    fn generate(
        &self,
        py: Python<'_>,
        prompt: Option<Prompt>,
        progress: Option<Py<PyAny>>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> Result<Generation> {
        let model = self.model.clone();
        let tokens = match prompt {
            Some(prompt) => prompt.tokens(&model.model)?,
            None => vec![],
        };
        let options = GenerationOptions::read(&model.model, options)?;
        if options.grammar.is_some() {
            return Err(Error::argument(
                "sessions take no grammar; Model.generate and Model.chat do",
            ));
        }
        let place = self.runner.clone();
        let taken = || {
            let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
            place.take().ok_or_else(Error::busy)
        };
        let mut runner = py.detach(taken)?;
        Ok(Generation::start(progress, move |sender| {
            let generated = generate(&model, &mut runner, &tokens, options, &mut |event| {
                sender.send(event)
            });
            *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(runner);
            generated
        }))
    }

    /// Removes all tokens after the first `length`.
    fn rewind(&self, py: Python<'_>, length: usize) -> Result<()> {
        self.with(py, |runner| Ok(runner.rewind(length)?))
    }

    /// Freezes the tokens into a prefix that other sessions can start from. This session continues after it.
    fn freeze(&self, py: Python<'_>) -> Result<Prefix> {
        let model = &self.model.model;
        let prefix = self.with(py, |runner| Ok(runner.freeze(model)?))?;
        Ok(Prefix { prefix })
    }

    /// Writes tokens, keys and values to a file. `notes` are bytes of the caller.
    #[pyo3(signature = (path, *, notes=None))]
    fn save(&self, py: Python<'_>, path: PathBuf, notes: Option<Vec<u8>>) -> Result<()> {
        let notes = notes.unwrap_or_default();
        let model = &self.model.model;
        self.with(py, |runner| Ok(runner.save(model, &path, &notes)?))
    }

    /// Replaces the tokens by those of a file. Returns the notes of the file.
    fn restore(&self, py: Python<'_>, path: PathBuf) -> Result<Vec<u8>> {
        let model = &self.model.model;
        self.with(py, |runner| {
            let snapshot = Snapshot::open(&path).map_err(kvark::RuntimeError::from)?;
            runner.restore(model, &snapshot, snapshot.tokens().len())?;
            Ok(snapshot.notes().to_vec())
        })
    }

    /// The tokens.
    #[getter]
    fn tokens(&self, py: Python<'_>) -> Result<Vec<u32>> {
        self.with(py, |runner| Ok(runner.tokens().to_vec()))
    }

    /// The largest number of tokens.
    #[getter]
    fn capacity(&self, py: Python<'_>) -> Result<usize> {
        self.with(py, |runner| Ok(runner.capacity()?))
    }

    /// Bytes of weights, packed weights, keys and values, and activations now.
    fn memory<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyDict>> {
        let usage = self.with(py, |runner| Ok(runner.memory()?))?;
        let dict = PyDict::new(py);
        dict.set_item("weights_bytes", usage.weights)?;
        dict.set_item("packed_bytes", usage.packed)?;
        dict.set_item("kv_bytes", usage.kv)?;
        dict.set_item("arena_bytes", usage.arena)?;
        Ok(dict)
    }

    fn __len__(&self, py: Python<'_>) -> Result<usize> {
        self.with(py, |runner| Ok(runner.tokens().len()))
    }
}

/// Generates on a runner.
fn generate(
    model: &Loaded,
    runner: &mut Runner,
    prompt: &[u32],
    options: GenerationOptions,
    on: &mut dyn FnMut(Event) -> bool,
) -> Result<GenerateOutput> {
    let mut sampler = Sampler::new(options.sampling);
    let limits = &options.options;
    let event = |event: GenerateEvent| match event {
        GenerateEvent::PromptProgress(done) => on(Event::Progress(done)),
        GenerateEvent::Text(text) => on(Event::Text(text)),
    };
    Ok(runner.generate(&model.model, prompt, &mut sampler, limits, event)?)
}
