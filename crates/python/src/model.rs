//! `Model`: a language model with its tokenizer, chat template and an engine for many requests at once.

use crate::branches::Branches;
use crate::download;
use crate::error::{Error, Result};
use crate::generation::{Event, EventSender, Generation};
use crate::loaded::{Loaded, Prompt, lock};
use crate::options::{self, GenerationOptions};
use crate::session::{Prefix, Session};
use kvark::embed::{EmbedOptions, Embedder};
use kvark::engine::{Request, RequestEvent};
use kvark::generate::GenerateOutput;
use kvark::memory::{CacheKind, MemoryPlan, PlannedModel};
use kvark::model::OpenOptions;
use kvark::text::EncodeOptions;
use kvark::{Runner, RunnerOptions};
use numpy::{PyArray1, PyArray2, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

/// A language model.
#[pyclass(frozen, module = "kvark", subclass)]
pub struct Model {
    loaded: Arc<Loaded>,
}

#[pymethods]
impl Model {
    /// Opens a model: a path, a name of the catalogue or the hub, or the default model.
    #[new]
    #[pyo3(signature = (
        path_or_name=None, *, context=None, threads=None, cache_type_k="f16", cache_type_v="f16", device="cpu",
        memory_limit=None, slots=8, progress=None
    ))]
    #[allow(
        clippy::too_many_arguments,
        reason = "keyword arguments of a Python call"
    )]
    fn new(
        py: Python<'_>,
        path_or_name: Option<PathBuf>,
        context: Option<usize>,
        threads: Option<usize>,
        cache_type_k: &str,
        cache_type_v: &str,
        device: &str,
        memory_limit: Option<u64>,
        slots: usize,
        progress: Option<Py<PyAny>>,
    ) -> Result<Model> {
        let runner = options::runner(context, threads, cache_type_k, cache_type_v, memory_limit)?;
        let name = path_or_name.map(|name| name.to_string_lossy().into_owned());
        let path = download::path_of(py, name.as_deref(), progress)?;
        let loaded = py.detach(|| {
            Ok::<_, Error>(Loaded {
                model: Arc::new(kvark::Model::open(&path, context)?),
                backend: options::backend(device)?,
                runner,
                path,
                slots,
                engine: Mutex::new(None),
                grammars: Mutex::new(None),
                embedder: Mutex::new(None),
            })
        })?;
        Ok(Model {
            loaded: Arc::new(loaded),
        })
    }

    /// A new sequence; after a frozen prefix, if one is given.
    #[pyo3(signature = (prefix=None))]
    fn session(&self, py: Python<'_>, prefix: Option<Py<Prefix>>) -> Result<Session> {
        let model = self.loaded.clone();
        py.detach(|| Session::new(model, prefix.as_ref().map(|prefix| &prefix.get().prefix)))
    }

    /// Several sequences in one pool of cells, which fork and step together.
    #[pyo3(signature = (*, cells=None, sequences=8))]
    fn branches(&self, py: Python<'_>, cells: Option<usize>, sequences: usize) -> Result<Branches> {
        let model = self.loaded.clone();
        py.detach(|| Branches::new(model, cells, sequences))
    }

    /// Generates after a prompt. Requests of several threads run together and share prefixes.
    #[pyo3(signature = (prompt, *, progress=None, **options))]
    fn generate(
        &self,
        py: Python<'_>,
        prompt: Prompt,
        progress: Option<Py<PyAny>>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> Result<Generation> {
        let tokens = prompt.tokens(&self.loaded.model)?;
        let options = GenerationOptions::read(&self.loaded.model, options)?;
        self.submit(py, tokens, progress, options)
    }

    /// Generates the answer to a chat: a text, or a list of messages with role and content.
    #[pyo3(signature = (messages, *, stream=false, progress=None, **options))]
    fn chat<'py>(
        &self,
        py: Python<'py>,
        messages: &Bound<'py, PyAny>,
        stream: bool,
        progress: Option<Py<PyAny>>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> Result<Bound<'py, PyAny>> {
        let tokens = self.chat_tokens(messages, true)?;
        let options = GenerationOptions::read(&self.loaded.model, options)?;
        let generation = Bound::new(py, self.submit(py, tokens, progress, options)?)?;
        match stream {
            true => Ok(generation.into_any()),
            false => Ok(generation.call_method0("result")?),
        }
    }

    /// The token ids of a text alone; of its beginning too with `bos`.
    #[pyo3(signature = (text, *, bos=false, special=false))]
    fn tokenize(&self, text: &str, bos: bool, special: bool) -> Result<Vec<u32>> {
        let options = EncodeOptions {
            bos,
            special,
            ..EncodeOptions::default()
        };
        Ok(self.loaded.model.tokenizer()?.encode(text, options))
    }

    /// The text of token ids.
    #[pyo3(signature = (tokens, *, special=false))]
    fn detokenize(&self, tokens: Vec<u32>, special: bool) -> Result<String> {
        Ok(self.loaded.model.tokenizer()?.decode(&tokens, special))
    }

    /// The token ids of a chat as the model's template writes it.
    #[pyo3(signature = (messages, *, add_generation_prompt=true))]
    fn apply_chat_template(
        &self,
        messages: &Bound<'_, PyAny>,
        add_generation_prompt: bool,
    ) -> Result<Vec<u32>> {
        self.chat_tokens(messages, add_generation_prompt)
    }

    /// Embeddings of texts, one row each.
    #[pyo3(signature = (texts, *, normalize=true))]
    fn embed<'py>(
        &self,
        py: Python<'py>,
        texts: Vec<String>,
        normalize: bool,
    ) -> Result<Bound<'py, PyArray2<f32>>> {
        let loaded = &self.loaded;
        let rows = py.detach(|| {
            let mut embedder = lock(&loaded.embedder);
            if embedder.is_none() {
                let open = OpenOptions {
                    hidden_states: true,
                    ..OpenOptions::default()
                };
                let model = kvark::Model::open_with(&loaded.path, &open)?;
                let options = EmbedOptions {
                    normalize,
                    compile: loaded.runner.compile.clone(),
                    ..EmbedOptions::default()
                };
                *embedder = Some(Embedder::new(model, &*loaded.backend, &options)?);
            }
            let embedder = embedder.as_mut().expect("it was just made");
            let mut raised = None;
            let found = embedder.embed(&texts, |_| {
                raised = Python::attach(|py| py.check_signals()).err();
                raised.is_none()
            })?;
            match raised {
                Some(error) => Err(error.into()),
                None => Ok::<_, Error>(found.unwrap_or_default()),
            }
        })?;
        let width = rows.first().map_or(0, |row| row.values.len());
        let flat: Vec<f32> = rows.iter().flat_map(|row| row.values.clone()).collect();
        Ok(PyArray1::from_vec(py, flat).reshape([rows.len(), width])?)
    }

    /// Teacher-forced log-probabilities of a text or of token ids.
    fn score<'py>(&self, py: Python<'py>, prompt: Prompt) -> Result<Bound<'py, PyDict>> {
        let loaded = &self.loaded;
        let tokens = prompt.tokens(&loaded.model)?;
        let score = py.detach(|| {
            let step = loaded.runner.max_step_tokens.min(Runner::MAX_SCORED_STEP);
            let options = RunnerOptions {
                max_step_tokens: step,
                max_logit_rows: step,
                ..loaded.runner.clone()
            };
            let mut runner = Runner::new(&loaded.model, &*loaded.backend, &options)?;
            let mut raised = None;
            let score = runner.score(&tokens, |done| {
                if done % 128 == 0 {
                    raised = Python::attach(|py| py.check_signals()).err();
                }
                raised.is_none()
            })?;
            match raised {
                Some(error) => Err(error.into()),
                None => Ok::<_, Error>(score),
            }
        })?;
        let dict = PyDict::new(py);
        dict.set_item("nll", score.nll())?;
        dict.set_item("perplexity", score.perplexity())?;
        dict.set_item("ids", tokens)?;
        dict.set_item("argmax", PyArray1::from_vec(py, score.argmax))?;
        dict.set_item("logprob", PyArray1::from_vec(py, score.logprob))?;
        Ok(dict)
    }

    /// The memory of a session, computed before it is made: bytes by part, and the layers of the cache.
    #[pyo3(signature = (*, sequences=1))]
    fn memory_plan<'py>(&self, py: Python<'py>, sequences: u32) -> Result<Bound<'py, PyDict>> {
        let loaded = &self.loaded;
        let kind = match sequences {
            0 | 1 => CacheKind::Contiguous,
            n => CacheKind::Cells { sequences: n },
        };
        let planned = PlannedModel::try_from(loaded.model.artifact())?;
        let plan = MemoryPlan::new(&planned, &*loaded.backend, &loaded.runner, kind, None)?;
        let dict = PyDict::new(py);
        dict.set_item("context", plan.cache.capacity)?;
        dict.set_item("weights_bytes", plan.weights_bytes())?;
        dict.set_item("packed_bytes", plan.packed_bytes())?;
        dict.set_item("kv_bytes", plan.kv_bytes())?;
        dict.set_item("arena_bytes", plan.arena.bytes)?;
        dict.set_item("logits_bytes", plan.logits_bytes)?;
        dict.set_item("total_bytes", plan.total_bytes())?;
        let layer = |layer: &kvark::cache::LayerLayout| {
            let dict = PyDict::new(py);
            dict.set_item("window", layer.window)?;
            dict.set_item("heads", layer.keys.heads)?;
            dict.set_item("rows", layer.keys.rows)?;
            dict.set_item("key_dim", layer.keys.dim)?;
            dict.set_item("value_dim", layer.values.dim)?;
            dict.set_item("bytes", layer.bytes())?;
            Ok(dict)
        };
        let layers = plan.kv.layers.iter().map(layer);
        dict.set_item("layers", layers.collect::<PyResult<Vec<_>>>()?)?;
        Ok(dict)
    }

    /// The file.
    #[getter]
    fn path(&self) -> PathBuf {
        self.loaded.path.clone()
    }

    #[getter]
    fn architecture(&self) -> String {
        self.loaded.model.artifact().architecture.clone()
    }

    #[getter]
    fn vocab_size(&self) -> usize {
        self.loaded.model.facts().vocab_size
    }

    #[getter]
    fn context_length(&self) -> usize {
        self.loaded.model.facts().context_length
    }

    fn __repr__(&self) -> String {
        let name = self.loaded.path.file_name().unwrap_or_default();
        format!(
            "Model({:?}, architecture={:?}, context_length={})",
            name.to_string_lossy(),
            self.architecture(),
            self.context_length()
        )
    }
}

impl Model {
    fn chat_tokens(&self, messages: &Bound<'_, PyAny>, answer: bool) -> Result<Vec<u32>> {
        let model = &self.loaded.model;
        let messages = match messages.extract::<String>() {
            Ok(text) => vec![serde_json::json!({ "role": "user", "content": text })],
            Err(_) => match options::json_of(messages)? {
                serde_json::Value::Array(list) => list,
                _ => {
                    return Err(Error::argument(
                        "messages must be a text or a list of messages",
                    ));
                }
            },
        };
        for (index, message) in messages.iter().enumerate() {
            for field in ["role", "content"] {
                if !message[field].is_string() {
                    return Err(Error::argument(format!("messages[{index}] has no {field}")));
                }
            }
        }
        let tokenizer = model.tokenizer()?;
        let template = model.chat_template()?;
        let prompt = template.prompt_with(tokenizer, &messages, answer, &serde_json::Map::new());
        let prompt = prompt.map_err(kvark::RuntimeError::from)?;
        Ok(tokenizer.encode_prompt(&prompt))
    }

    /// Submits a request to the engine.
    fn submit(
        &self,
        py: Python<'_>,
        prompt: Vec<u32>,
        progress: Option<Py<PyAny>>,
        options: GenerationOptions,
    ) -> Result<Generation> {
        let events = py.detach(|| {
            let constraint = match &options.grammar {
                Some(source) => Some(self.loaded.grammars()?.constraint(source)?),
                None => None,
            };
            let request = Request {
                sampling: options.sampling,
                options: options.options,
                constraint,
                ..Request::new(prompt)
            };
            let mut engine = lock(&self.loaded.engine);
            if engine.is_none() {
                *engine = Some(self.loaded.start_engine()?);
            }
            let engine = engine.as_ref().expect("it was just started");
            Ok::<_, Error>(engine.handle().generate(request)?)
        })?;
        Ok(Generation::start(progress, move |sender| {
            forward(events, sender)
        }))
    }
}

/// Passes the events of a request on, and collects its output.
fn forward(
    events: impl Iterator<Item = RequestEvent>,
    sender: &EventSender,
) -> Result<GenerateOutput> {
    let mut text = String::new();
    for event in events {
        let goes_on = match event {
            RequestEvent::Started(_) | RequestEvent::Round(_) => true,
            RequestEvent::PromptProgress(done) => sender.send(Event::Progress(done)),
            RequestEvent::Token(token) => {
                text.push_str(&token.text);
                sender.send(Event::Text(token.text))
            }
            RequestEvent::Failed(error) => return Err(error.into()),
            RequestEvent::Finished(end) => {
                text.push_str(&end.rest);
                sender.send(Event::Text(end.rest));
                return Ok(GenerateOutput {
                    tokens: end.tokens,
                    text,
                    finish: end.finish,
                    timings: end.timings,
                });
            }
        };
        if !goes_on {
            break;
        }
    }
    // Dropping the events cancels the request.
    Ok(GenerateOutput {
        tokens: vec![],
        text,
        finish: kvark::generate::FinishReason::Interrupted,
        timings: Default::default(),
    })
}
