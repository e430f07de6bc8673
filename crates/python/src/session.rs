//! `Session`: one sequence of tokens on a model, with its cache.

use crate::error::{Error, Result};
use crate::generation::{Event, Generation, Source};
use crate::interrupt::{Cancel, interruptible};
use crate::loaded::{Loaded, Prompt, lock};
use crate::options::{self, GenerationOptions};
use crate::speculation::Speculation;
use kvark::backend::Backend;
use kvark::cache::{MigrationOptions, read_policy};
use kvark::generate::{GenerateEvent, Generator, PausedGeneration, PromptPrefix, SPLICE_SHARE};
use kvark::memory::CacheKind;
use kvark::snapshot::Snapshot;
use kvark::speculative::SpecOptions;
use kvark::{BatchRunner, RunnerOptions};
use numpy::{PyArray1, PyArray2, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

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

    fn __repr__(&self) -> String {
        format!("Prefix({} tokens)", self.prefix.len())
    }
}

/// One sequence of tokens with its keys and values. `with` and `close()` free its memory.
#[pyclass(frozen, module = "kvark")]
pub struct Session {
    sequence: Arc<Sequence>,
}

/// The sequence of a session, which its generations share.
struct Sequence {
    model: Arc<Loaded>,
    /// `None` after the session was closed.
    runner: Mutex<Option<BatchRunner>>,
    /// The device that the cache has moved to; `None` for that of the model.
    device: Mutex<Option<Box<dyn Backend>>>,
    speculation: Mutex<Speculation>,
    /// The number of operations that changed the tokens. Each of them ends the generation that ran.
    operation: AtomicU64,
}

impl Sequence {
    /// Calls `work` with the runner.
    fn with<T>(&self, work: impl FnOnce(&mut BatchRunner) -> Result<T>) -> Result<T> {
        let mut place = lock(&self.runner);
        work(place.as_mut().ok_or_else(|| Error::closed("session"))?)
    }

    /// Calls `work`, which changes the tokens, with the runner. A generation that runs ends.
    fn change<T>(&self, work: impl FnOnce(&mut BatchRunner) -> Result<T>) -> Result<T> {
        self.with(|runner| {
            self.operation.fetch_add(1, Ordering::Relaxed);
            work(runner)
        })
    }
}

/// The kind of cache of this name.
fn cache_kind(name: &str) -> Result<CacheKind> {
    match name {
        "contiguous" => Ok(CacheKind::Contiguous),
        "cells" => Ok(CacheKind::Cells { sequences: 1 }),
        "tree" => Ok(CacheKind::Tree),
        other => Err(Error::argument(format!(
            "cache must be \"contiguous\", \"cells\" or \"tree\", not {other:?}"
        ))),
    }
}

impl Session {
    /// A session on a cache of the named kind; after a prefix, if there is one.
    pub(crate) fn new(
        model: Arc<Loaded>,
        prefix: Option<&PromptPrefix>,
        cache: Option<&str>,
    ) -> Result<Session> {
        let (backend, options) = (&*model.backend, &model.runner);
        let kind = match cache {
            None => CacheKind::of_one_sequence(model.model.facts()),
            Some(name) => cache_kind(name)?,
        };
        let candidates = match kind {
            CacheKind::Contiguous => 0,
            _ => SpecOptions::default().max_candidates,
        };
        let options = RunnerOptions {
            prefix: prefix.cloned(),
            ..options.clone()
        };
        let mut runner =
            BatchRunner::with_cache_kind(&model.model, backend, &options, kind, candidates)?;
        runner.begin_with_prefix(0)?;
        Ok(Session {
            sequence: Arc::new(Sequence {
                model,
                runner: Mutex::new(Some(runner)),
                device: Mutex::default(),
                speculation: Mutex::default(),
                operation: AtomicU64::new(0),
            }),
        })
    }

    fn model(&self) -> &kvark::Model {
        &self.sequence.model.model
    }
}

#[pymethods]
impl Session {
    /// Appends tokens or text. Returns the number of tokens. `progress` is called with the number of tokens done.
    #[pyo3(signature = (prompt, *, progress=None))]
    fn feed(&self, py: Python<'_>, prompt: Prompt, progress: Option<Py<PyAny>>) -> Result<usize> {
        let tokens = prompt.tokens(self.model())?;
        let (count, sequence) = (tokens.len(), self.sequence.clone());
        let work = move |cancel: &Cancel| {
            let mut raised = None;
            sequence.change(|runner| {
                Ok(runner.sequence(0).feed(&tokens, |done| {
                    if let Some(progress) = &progress {
                        raised = Python::attach(|py| progress.call1(py, (done,))).err();
                    }
                    raised.is_none() && !cancel.is_set()
                })?)
            })?;
            raised.map_or(Ok(()), |error| Err(error.into()))
        };
        match count {
            // One token is one step, which a thread of its own would only delay.
            0 | 1 => py.detach(|| work(&Cancel::default()))?,
            _ => interruptible(py, work)?,
        }
        Ok(count)
    }

    /// The logits after the last token, as a copy.
    fn logits<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyArray1<f32>>> {
        let sequence = &self.sequence;
        let logits = py.detach(|| {
            sequence.with(|runner| {
                if runner.is_pending(0) {
                    runner.sequence(0).feed(&[], |_| true)?;
                }
                Ok(runner.logits(0).to_vec())
            })
        })?;
        Ok(PyArray1::from_vec(py, logits))
    }

    /// Appends tokens or text and returns the logits after every token, as rows.
    fn feed_all_logits<'py>(
        &self,
        py: Python<'py>,
        prompt: Prompt,
    ) -> Result<Bound<'py, PyArray2<f32>>> {
        let tokens = prompt.tokens(self.model())?;
        let (count, sequence) = (tokens.len(), self.sequence.clone());
        let rows = interruptible(py, move |cancel| {
            let mut rows = Vec::new();
            sequence.change(|runner| {
                Ok(runner.sequence(0).feed_all_logits(&tokens, |_, logits| {
                    rows.extend_from_slice(logits);
                    !cancel.is_set()
                })?)
            })?;
            Ok(rows)
        })?;
        let vocab = self.model().facts().vocab_size;
        Ok(PyArray1::from_vec(py, rows).reshape([count, vocab])?)
    }

    /// Appends a prompt, if there is one, and generates; without a prompt, continues. The result is an iterator over pieces of
    /// text. It computes what is asked for, and ends when another call changes the session.
    ///
    /// Options: max_tokens, stop, ignore_eos, and those of the sampler, which `kvark run --help` lists; json_schema, regex, grammar
    /// (GBNF) or lark; logprobs; speculation, on a cache of cells or a tree.
    #[pyo3(signature = (prompt=None, *, progress=None, **options))]
    fn generate(
        &self,
        py: Python<'_>,
        prompt: Option<Prompt>,
        progress: Option<Py<PyAny>>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> Result<Generation> {
        let sequence = self.sequence.clone();
        let tokens = match prompt {
            Some(prompt) => prompt.tokens(self.model())?,
            None => vec![],
        };
        let options = GenerationOptions::read(self.model(), options)?;
        options.check_no_tools("sessions")?;
        py.detach(|| {
            let paused = sequence.change(|runner| {
                let loaded = &*sequence.model;
                let seed = options.sampling.seed;
                let mut speculation = lock(&sequence.speculation);
                let own =
                    speculation.sequence(loaded, (&mut *runner, 1), 0, tokens, &options, seed)?;
                Ok(Generator::of(runner, &loaded.model, vec![own])?.pause())
            })?;
            let source = SessionSource {
                operation: sequence.operation.load(Ordering::Relaxed),
                run: Arc::new(Mutex::new(Some(paused))),
                cancel: Cancel::default(),
                begun: Mutex::new(false),
                sequence,
            };
            Ok(Generation::new(source, progress))
        })
    }

    /// Removes all tokens after the first `length`. Returns how many were computed again, which a model with recurrent layers may need.
    fn rewind(&self, py: Python<'_>, length: usize) -> Result<usize> {
        py.detach(|| self.sequence.change(|runner| Ok(runner.rewind(0, length)?)))
    }

    /// Freezes the tokens into a prefix that other sessions can start from. This session continues after it.
    fn freeze(&self, py: Python<'_>) -> Result<Prefix> {
        let (model, sequence) = (self.model(), &self.sequence);
        let prefix = py.detach(|| sequence.with(|runner| Ok(runner.freeze(model)?)))?;
        Ok(Prefix { prefix })
    }

    /// Moves the cache with all that it holds to one with other storage types (cache_type for both, or cache_type_k and cache_type_v),
    /// with rules for single layers (kv_policy, as kvark run --kv-policy takes them), of another kind ("contiguous", "cells" or "tree"), or on another device ("cpu" or "cuda"). Returns what it took, and with
    /// measure=True how far apart the outputs after the last tokens are.
    #[pyo3(signature = (*, cache_type=None, cache_type_k=None, cache_type_v=None, kv_policy=None, kind=None, device=None, measure=false))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments")]
    fn migrate<'py>(
        &self,
        py: Python<'py>,
        cache_type: Option<&str>,
        cache_type_k: Option<&str>,
        cache_type_v: Option<&str>,
        kv_policy: Option<&str>,
        kind: Option<&str>,
        device: Option<&str>,
        measure: bool,
    ) -> Result<Bound<'py, PyDict>> {
        let storage = |argument, name: Option<&str>| {
            name.map(|name| options::storage(argument, name))
                .transpose()
        };
        let both = storage("cache_type", cache_type)?;
        let to = MigrationOptions {
            kind: kind.map(cache_kind).transpose()?,
            policy: kv_policy.map(read_policy).transpose()?,
            key_storage: storage("cache_type_k", cache_type_k)?.or(both),
            value_storage: storage("cache_type_v", cache_type_v)?.or(both),
            measure: measure.then_some(0),
        };
        let (model, sequence) = (self.model(), &self.sequence);
        let report = py.detach(|| {
            let other = device.map(options::backend).transpose()?;
            sequence.change(|runner| {
                let mut current = lock(&sequence.device);
                let backend = other.as_deref().or(current.as_deref());
                let backend = backend.unwrap_or(&*sequence.model.backend);
                let report = runner.migrate(model, backend, &to)?;
                if other.is_some() {
                    *current = other;
                }
                Ok(report)
            })
        })?;
        let dict = PyDict::new(py);
        dict.set_item("cells", report.cells)?;
        dict.set_item("bytes_before", report.bytes[0])?;
        dict.set_item("bytes_after", report.bytes[1])?;
        dict.set_item("seconds", report.time.as_secs_f64())?;
        if let Some(distance) = report.distance {
            dict.set_item("measured_tokens", distance.tokens)?;
            dict.set_item("mean_logprob", distance.mean_logprob)?;
            dict.set_item("same_best", distance.same_best)?;
        }
        Ok(dict)
    }

    /// Changes the tokens to these, an edit somewhere in the middle: of those after it the first part, share, is computed again, and the rows
    /// of the others are moved, an approximation. Returns how many tokens were kept, computed and moved.
    #[pyo3(signature = (tokens, *, share=SPLICE_SHARE))]
    fn splice<'py>(
        &self,
        py: Python<'py>,
        tokens: Vec<u32>,
        share: f32,
    ) -> Result<Bound<'py, PyDict>> {
        if !(0.0..=1.0).contains(&share) {
            return Err(Error::argument("share must be between 0 and 1"));
        }
        let sequence = &self.sequence;
        let splice = || sequence.change(|runner| Ok(runner.splice(0, &tokens, share, |_| true)?));
        let report = py.detach(splice)?;
        let dict = PyDict::new(py);
        dict.set_item("kept", report.kept)?;
        dict.set_item("computed", report.computed)?;
        dict.set_item("moved", report.moved)?;
        Ok(dict)
    }

    /// Writes tokens, keys and values to a prefix file, which `Model.prefix` maps: processes share its memory. `notes` are bytes of the
    /// caller.
    #[pyo3(signature = (path, *, notes=None))]
    fn save_prefix(&self, py: Python<'_>, path: PathBuf, notes: Option<Vec<u8>>) -> Result<()> {
        let notes = notes.unwrap_or_default();
        let (model, sequence) = (self.model(), &self.sequence);
        py.detach(|| {
            sequence.with(|runner| {
                // A file has keys and values of all its tokens.
                if runner.is_pending(0) {
                    runner.sequence(0).feed(&[], |_| true)?;
                }
                Ok(runner.save_prefix(model, 0, &path, &notes)?)
            })
        })
    }

    /// Writes tokens, keys and values to a file. `notes` are bytes of the caller.
    #[pyo3(signature = (path, *, notes=None))]
    fn save(&self, py: Python<'_>, path: PathBuf, notes: Option<Vec<u8>>) -> Result<()> {
        let notes = notes.unwrap_or_default();
        let (model, sequence) = (self.model(), &self.sequence);
        py.detach(|| {
            sequence.with(|runner| {
                // A file has keys and values of all its tokens.
                if runner.is_pending(0) {
                    runner.sequence(0).feed(&[], |_| true)?;
                }
                Ok(runner.save(model, 0, &path, &notes)?)
            })
        })
    }

    /// Replaces the tokens by those of a file. Returns the notes of the file.
    fn restore(&self, py: Python<'_>, path: PathBuf) -> Result<Vec<u8>> {
        let (model, sequence) = (self.model(), &self.sequence);
        py.detach(|| {
            sequence.change(|runner| {
                let snapshot = Snapshot::open(&path).map_err(kvark::RuntimeError::from)?;
                runner.restore(model, 0, &snapshot)?;
                Ok(snapshot.notes().to_vec())
            })
        })
    }

    /// The tokens.
    #[getter]
    fn tokens(&self, py: Python<'_>) -> Result<Vec<u32>> {
        let sequence = &self.sequence;
        py.detach(|| sequence.with(|runner| Ok(runner.tokens(0).to_vec())))
    }

    /// The largest number of tokens.
    #[getter]
    fn capacity(&self, py: Python<'_>) -> Result<usize> {
        py.detach(|| self.sequence.with(|runner| Ok(runner.capacity()?)))
    }

    /// Bytes of weights, packed weights, keys and values, and activations now.
    fn memory<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyDict>> {
        let usage = py.detach(|| self.sequence.with(|runner| Ok(runner.memory()?)))?;
        let dict = PyDict::new(py);
        dict.set_item("weights_bytes", usage.weights)?;
        dict.set_item("packed_bytes", usage.packed)?;
        dict.set_item("kv_bytes", usage.kv)?;
        dict.set_item("arena_bytes", usage.arena)?;
        Ok(dict)
    }

    /// Ends a generation that runs and frees the memory. Later calls raise `ClosedError`.
    fn close(&self, py: Python<'_>) {
        py.detach(|| _ = lock(&self.sequence.runner).take());
    }

    fn __enter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) {
        self.close(py);
    }

    fn __len__(&self, py: Python<'_>) -> Result<usize> {
        py.detach(|| self.sequence.with(|runner| Ok(runner.tokens(0).len())))
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let sequence = &self.sequence;
        let name = sequence.model.name();
        py.detach(|| match &*lock(&sequence.runner) {
            Some(runner) => format!(
                "Session({name:?}, {} of {} tokens)",
                runner.tokens(0).len(),
                runner.capacity().unwrap_or_default()
            ),
            None => format!("Session({name:?}, closed)"),
        })
    }
}

/// A generation on the sequence of a session. A step is computed when its event is asked for, so that the session holds what
/// the caller has seen.
struct SessionSource {
    sequence: Arc<Sequence>,
    run: Arc<Mutex<Option<PausedGeneration<'static>>>>,
    /// The operation that started it; a later one ends it.
    operation: u64,
    cancel: Cancel,
    /// Whether the prompt is in the cache.
    begun: Mutex<bool>,
}

impl Source for SessionSource {
    fn next(&self, py: Python<'_>) -> Result<Event> {
        let (sequence, run) = (self.sequence.clone(), self.run.clone());
        let (operation, cancel) = (self.operation, self.cancel.clone());
        let step = move |_: &Cancel| step(&sequence, &run, operation, &cancel);
        let begun = *lock(&self.begun);
        let event = match begun {
            true => py.detach(|| step(&Cancel::default())),
            // Steps of a prompt are long.
            false => interruptible(py, step),
        };
        if matches!(event, Ok(Event::Text(_))) {
            *lock(&self.begun) = true;
        }
        match event.and_then(|event| Ok(py.check_signals().map(|()| event)?)) {
            Ok(event) => Ok(event),
            Err(error) => {
                self.cancel();
                Err(error)
            }
        }
    }

    fn cancel(&self) {
        self.cancel.set();
    }
}

/// Computes the next event of a generation.
fn step(
    sequence: &Sequence,
    run: &Mutex<Option<PausedGeneration<'static>>>,
    operation: u64,
    cancel: &Cancel,
) -> Result<Event> {
    let mut place = lock(&sequence.runner);
    let mut run = lock(run);
    let paused = run.take().ok_or_else(|| Error::closed("generation"))?;
    let current = sequence.operation.load(Ordering::Relaxed) == operation;
    let Some(runner) = place.as_mut().filter(|_| current && !cancel.is_set()) else {
        return Ok(Event::Finished(paused.finish().into()));
    };
    let mut generator = paused.resume(runner, &sequence.model.model);
    let event = generator.next().transpose()?;
    let paused = generator.pause();
    let event = match event {
        None => return Ok(Event::Finished(paused.finish().into())),
        Some(GenerateEvent::PromptProgress(done)) => Event::Progress(done),
        Some(GenerateEvent::Text(text)) => Event::Text(text),
    };
    *run = Some(paused);
    Ok(event)
}
