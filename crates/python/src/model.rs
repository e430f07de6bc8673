//! `Model`: a language model with its tokenizer, chat template and an engine for many requests at once.

use crate::branches::Branches;
use crate::download;
use crate::error::{Error, Result};
use crate::generation::Generation;
use crate::interrupt::interruptible;
use crate::loaded::{Loaded, Prompt, lock};
use crate::options::{self, GenerationOptions};
use crate::request::submit;
use crate::session::{Prefix, Session};
use kvark::embed::{EmbedOptions, Embedder};
use kvark::memory::{CacheKind, MemoryPlan, PlannedModel};
use kvark::model::OpenOptions;
use kvark::snapshot::PrefixFile;
use kvark::speculative::DraftSource;
use kvark::text::EncodeOptions;
use kvark::text::tools::prompt_with_tools;
use kvark::{Runner, RunnerOptions};
use numpy::{PyArray1, PyArray2, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use serde_json::Value as Json;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

/// A language model. `with` and `close()` free its memory.
#[pyclass(frozen, module = "kvark", subclass)]
pub struct Model {
    /// `None` after it was closed.
    loaded: Mutex<Option<Arc<Loaded>>>,
}

#[pymethods]
impl Model {
    /// Opens a model: a path, a name of the catalogue or the hub, or the default model.
    ///
    /// context: the largest number of tokens of a sequence; threads: of the CPU, one for each core by default; cache_type_k and
    /// cache_type_v: how keys and values are stored; kv_policy: rules for single layers, or a TOML file of them, as kvark run --kv-policy
    /// takes them; state_type: how recurrent layers' states are stored, "f32" or "f16"; device: "cpu" or "cuda"; memory_limit: in bytes; expert_budget: bytes of the experts of a mixture that are held, as many as
    /// memory_limit allows by default; slots: requests that run at
    /// once; run_mode: "none", "piecewise", "full", "full_decode_only" or "full_and_piecewise"; precision: "high" (the default), "balanced" or "fast"; draft: a smaller model or an
    /// Eagle3 head for speculation, or "mtp" for the head that the model itself carries; progress: called with the stage, the bytes done and the bytes in all of a download.
    #[new]
    #[pyo3(signature = (
        path_or_name=None, *, context=None, threads=None, cache_type_k="f16", cache_type_v="f16", kv_policy=None, state_type="f32", device="cpu",
        memory_limit=None, expert_budget=None, slots=8, run_mode=None, precision=None, draft=None, progress=None
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
        kv_policy: Option<&str>,
        state_type: &str,
        device: &str,
        memory_limit: Option<u64>,
        expert_budget: Option<u64>,
        slots: usize,
        run_mode: Option<&str>,
        precision: Option<&str>,
        draft: Option<PathBuf>,
        progress: Option<Py<PyAny>>,
    ) -> Result<Model> {
        let storage = [cache_type_k, cache_type_v, state_type];
        let mut runner = options::runner(
            context,
            threads,
            storage,
            [memory_limit, expert_budget],
            run_mode,
            precision,
        )?;
        if let Some(policy) = kv_policy {
            runner.kv_policy = kvark::cache::read_policy(policy)?;
        }
        let name = path_or_name.map(|name| name.to_string_lossy().into_owned());
        let path = download::path_of(py, name.as_deref(), progress)?;
        let loaded = py.detach(|| {
            let draft = draft.map(|draft| DraftSource::open(&draft, context));
            let draft = draft.transpose()?;
            let layers = draft.as_ref().map(DraftSource::feature_layers);
            let open = OpenOptions {
                context,
                feature_layers: layers.unwrap_or_default(),
                ..OpenOptions::default()
            };
            Ok::<_, Error>(Loaded {
                model: Arc::new(kvark::Model::open_with(&path, &open)?),
                draft,
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
            loaded: Mutex::new(Some(Arc::new(loaded))),
        })
    }

    /// A new sequence; after a frozen prefix, if one is given. `cache` is the kind of its cache: "contiguous", "cells" or "tree".
    #[pyo3(signature = (prefix=None, *, cache=None))]
    fn session(
        &self,
        py: Python<'_>,
        prefix: Option<Py<Prefix>>,
        cache: Option<&str>,
    ) -> Result<Session> {
        let model = self.loaded()?;
        let prefix = prefix.as_ref().map(|prefix| &prefix.get().prefix);
        py.detach(|| Session::new(model, prefix, cache))
    }

    /// A prefix file of `kvark prefix build` or `Session.save_prefix`, mapped: sessions and processes share its memory.
    fn prefix(&self, py: Python<'_>, path: PathBuf) -> Result<Prefix> {
        let model = self.loaded()?;
        py.detach(|| {
            let file = PrefixFile::open(&path).map_err(kvark::RuntimeError::from)?;
            let prefix = file.shared(&model.model, &*model.backend, &model.runner)?;
            Ok(Prefix { prefix })
        })
    }

    /// Several sequences in one pool of cells, which fork and step together. After a frozen prefix, if one is given, every new branch
    /// begins with it.
    #[pyo3(signature = (*, cells=None, sequences=8, prefix=None))]
    fn branches(
        &self,
        py: Python<'_>,
        cells: Option<usize>,
        sequences: usize,
        prefix: Option<Py<Prefix>>,
    ) -> Result<Branches> {
        let model = self.loaded()?;
        let prefix = prefix.as_ref().map(|prefix| &prefix.get().prefix);
        py.detach(|| Branches::new(model, cells, sequences, prefix))
    }

    /// Generates after a prompt. Requests of several threads run together and share prefixes. With `n`, a list of generations
    /// after one prompt, whose seeds are the seed and the numbers after it.
    ///
    /// Options: max_tokens, stop, ignore_eos; those of the sampler, which `kvark run --help` lists; json_schema, regex, grammar (GBNF) or lark; logprobs (the number of most
    /// likely tokens that come with each token); speculation ("ngram", "draft", "eagle3", "mtp", "auto" or True).
    #[pyo3(signature = (prompt, *, n=None, progress=None, **options))]
    fn generate<'py>(
        &self,
        py: Python<'py>,
        prompt: Prompt,
        n: Option<usize>,
        progress: Option<Py<PyAny>>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> Result<Bound<'py, PyAny>> {
        let loaded = self.loaded()?;
        let tokens = prompt.tokens(&loaded.model)?;
        let options = GenerationOptions::read(&loaded.model, options)?;
        options.check_no_tools("prompts")?;
        let all = submit_all(py, &loaded, tokens, progress, &options, n)?;
        Ok(one_or_list(py, all, n)?)
    }

    /// Generates the answer to a chat: a text, or a list of messages with role and content. A content is a text, or a list of
    /// parts {"type": "text", "text": …}. With `stream`, the result is a `Generation`; with `n`, it is a list.
    ///
    /// Options: those of `generate`, and `tools` (a list of functions in OpenAI's shape) with `tool_choice` ("auto", "required" or a
    /// function's name). The calls are in `tool_calls` of the result; the answer of a tool is a message with the role "tool".
    #[pyo3(signature = (messages, *, stream=false, n=None, progress=None, **options))]
    fn chat<'py>(
        &self,
        py: Python<'py>,
        messages: &Bound<'py, PyAny>,
        stream: bool,
        n: Option<usize>,
        progress: Option<Py<PyAny>>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> Result<Bound<'py, PyAny>> {
        let loaded = self.loaded()?;
        let options = GenerationOptions::read(&loaded.model, options)?;
        let tokens = chat_tokens(&loaded.model, messages, &options.tools, true)?;
        let all = submit_all(py, &loaded, tokens, progress, &options, n)?;
        if stream {
            return Ok(one_or_list(py, all, n)?);
        }
        let results = all.iter().map(|generation| generation.result(py));
        Ok(one_or_list(py, results.collect::<Result<Vec<_>>>()?, n)?)
    }

    /// The token ids of a text alone; of its beginning too with `bos`.
    #[pyo3(signature = (text, *, bos=false, special=false))]
    fn tokenize(&self, text: &str, bos: bool, special: bool) -> Result<Vec<u32>> {
        let options = EncodeOptions {
            bos,
            special,
            ..EncodeOptions::default()
        };
        Ok(self.loaded()?.model.tokenizer()?.encode(text, options))
    }

    /// The text of token ids. An id outside the vocabulary is an error that names it.
    #[pyo3(signature = (tokens, *, special=false))]
    fn detokenize(&self, tokens: Vec<u32>, special: bool) -> Result<String> {
        let loaded = self.loaded()?;
        let tokenizer = loaded.model.tokenizer()?;
        let vocab = tokenizer.vocab_size().max(loaded.model.facts().vocab_size);
        if let Some(id) = tokens.iter().find(|id| **id as usize >= vocab) {
            return Err(Error::unknown_token(*id, vocab));
        }
        Ok(tokenizer.decode(&tokens, special))
    }

    /// The token ids of a chat as the model's template writes it.
    #[pyo3(signature = (messages, *, add_generation_prompt=true))]
    fn apply_chat_template(
        &self,
        messages: &Bound<'_, PyAny>,
        add_generation_prompt: bool,
    ) -> Result<Vec<u32>> {
        chat_tokens(&self.loaded()?.model, messages, &[], add_generation_prompt)
    }

    /// Embeddings of texts, one row each. A single text is a list of one.
    #[pyo3(signature = (texts, *, normalize=true))]
    fn embed<'py>(
        &self,
        py: Python<'py>,
        texts: Texts,
        normalize: bool,
    ) -> Result<Bound<'py, PyArray2<f32>>> {
        let loaded = self.loaded()?;
        let texts = match texts {
            Texts::One(text) => vec![text],
            Texts::Many(texts) => texts,
        };
        let rows = interruptible(py, move |cancel| {
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
            embedder.set_normalize(normalize);
            let found = embedder.embed(&texts, |_| !cancel.is_set())?;
            Ok(found.unwrap_or_default())
        })?;
        let width = rows.first().map_or(0, |row| row.values.len());
        let flat: Vec<f32> = rows.iter().flat_map(|row| row.values.clone()).collect();
        Ok(PyArray1::from_vec(py, flat).reshape([rows.len(), width])?)
    }

    /// Teacher-forced log-probabilities of a text or of token ids.
    fn score<'py>(&self, py: Python<'py>, prompt: Prompt) -> Result<Bound<'py, PyDict>> {
        let loaded = self.loaded()?;
        let tokens = prompt.tokens(&loaded.model)?;
        let ids = tokens.clone();
        let score = interruptible(py, move |cancel| {
            let step = loaded.runner.max_step_tokens.min(Runner::MAX_SCORED_STEP);
            let options = RunnerOptions {
                max_step_tokens: step,
                max_logit_rows: step,
                ..loaded.runner.clone()
            };
            let mut runner = Runner::new(&loaded.model, &*loaded.backend, &options)?;
            Ok(runner.score(&tokens, |_| !cancel.is_set())?)
        })?;
        let dict = PyDict::new(py);
        dict.set_item("nll", score.nll())?;
        dict.set_item("perplexity", score.perplexity())?;
        dict.set_item("ids", ids)?;
        dict.set_item("argmax", PyArray1::from_vec(py, score.argmax))?;
        dict.set_item("logprob", PyArray1::from_vec(py, score.logprob))?;
        Ok(dict)
    }

    /// The memory of a session, computed before it is made: bytes by part, and the layers of the cache.
    #[pyo3(signature = (*, sequences=1))]
    fn memory_plan<'py>(&self, py: Python<'py>, sequences: u32) -> Result<Bound<'py, PyDict>> {
        let loaded = self.loaded()?;
        let kind = match sequences {
            0 | 1 => CacheKind::of_one_sequence(loaded.model.facts()),
            n => CacheKind::Cells { sequences: n },
        };
        let planned = PlannedModel::try_from(loaded.model.artifact())?;
        let plan = MemoryPlan::new(&planned, &*loaded.backend, &loaded.runner, kind, None)?;
        let dict = PyDict::new(py);
        dict.set_item("context", plan.cache.capacity)?;
        dict.set_item("weights_bytes", plan.weights_bytes())?;
        dict.set_item("resident_weights_bytes", plan.resident_weights_bytes())?;
        dict.set_item("packed_bytes", plan.packed_bytes())?;
        dict.set_item("expert_bytes", plan.expert_bytes())?;
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
    fn path(&self) -> Result<PathBuf> {
        Ok(self.loaded()?.path.clone())
    }

    #[getter]
    fn architecture(&self) -> Result<String> {
        Ok(self.loaded()?.model.artifact().architecture.clone())
    }

    #[getter]
    fn vocab_size(&self) -> Result<usize> {
        Ok(self.loaded()?.model.facts().vocab_size)
    }

    #[getter]
    fn context_length(&self) -> Result<usize> {
        Ok(self.loaded()?.model.facts().context_length)
    }

    /// Ends the requests that run and frees the memory, except what sessions and branches hold. Later calls raise `ClosedError`.
    fn close(&self, py: Python<'_>) {
        py.detach(|| {
            let loaded = lock(&self.loaded).take();
            if let Some(loaded) = loaded {
                drop(lock(&loaded.engine).take());
                drop(lock(&loaded.embedder).take());
            }
        });
    }

    fn __enter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) {
        self.close(py);
    }

    fn __repr__(&self) -> String {
        match self.loaded() {
            Ok(loaded) => format!(
                "Model({:?}, architecture={:?}, context_length={})",
                loaded.name(),
                loaded.model.artifact().architecture,
                loaded.model.facts().context_length
            ),
            Err(_) => "Model(closed)".to_owned(),
        }
    }
}

/// One text or several.
#[derive(FromPyObject)]
pub(crate) enum Texts {
    One(String),
    Many(Vec<String>),
}

impl Model {
    fn loaded(&self) -> Result<Arc<Loaded>> {
        let loaded = lock(&self.loaded).clone();
        loaded.ok_or_else(|| Error::closed("model"))
    }
}

/// Submits `n` requests with seeds in a row.
fn submit_all(
    py: Python<'_>,
    loaded: &Loaded,
    tokens: Vec<u32>,
    progress: Option<Py<PyAny>>,
    options: &GenerationOptions,
    n: Option<usize>,
) -> Result<Vec<Generation>> {
    if n == Some(0) {
        return Err(Error::argument("n must be at least 1"));
    }
    let seeds = (0..n.unwrap_or(1) as u64).map(|i| options.sampling.seed.wrapping_add(i));
    seeds
        .map(|seed| {
            let progress = progress.as_ref().map(|progress| progress.clone_ref(py));
            submit(py, loaded, tokens.clone(), progress, options, seed)
        })
        .collect()
}

/// The only item, or all of them where a number was asked for.
fn one_or_list<'py, T: IntoPyObject<'py>>(
    py: Python<'py>,
    items: Vec<T>,
    n: Option<usize>,
) -> PyResult<Bound<'py, PyAny>> {
    let list = PyList::empty(py);
    for item in items {
        list.append(item)?;
    }
    match n {
        Some(_) => Ok(list.into_any()),
        None => list.get_item(0),
    }
}

fn chat_tokens(
    model: &kvark::Model,
    messages: &Bound<'_, PyAny>,
    tools: &[Json],
    answer: bool,
) -> Result<Vec<u32>> {
    let mut messages = match messages.extract::<String>() {
        Ok(text) => vec![serde_json::json!({ "role": "user", "content": text })],
        Err(_) => match options::json_of(messages)? {
            Json::Array(list) => list,
            _ => {
                return Err(Error::argument(
                    "messages must be a text or a list of messages",
                ));
            }
        },
    };
    for (index, message) in messages.iter_mut().enumerate() {
        if !message["role"].is_string() {
            return Err(Error::argument(format!("messages[{index}] has no role")));
        }
        if message["content"].is_null() && message["tool_calls"].is_array() {
            message["content"] = "".into();
        }
        let content = content_text(&message["content"], &format!("messages[{index}]"))?;
        message["content"] = content.into();
    }
    let tokenizer = model.tokenizer()?;
    let template = model.chat_template()?;
    let variables = serde_json::Map::new();
    let prompt = prompt_with_tools(template, tokenizer, &messages, tools, answer, &variables);
    let prompt = prompt.map_err(kvark::RuntimeError::from)?;
    Ok(tokenizer.encode_prompt(&prompt))
}

/// The text of a message's content: a text, or a list of parts with texts.
fn content_text(content: &Json, message: &str) -> Result<String> {
    let parts = match content {
        Json::String(text) => return Ok(text.clone()),
        Json::Array(parts) => parts,
        _ => return Err(Error::argument(format!("{message} has no content"))),
    };
    let text = |(index, part): (usize, &Json)| {
        let here = format!("{message}[\"content\"][{index}]");
        match part["type"].as_str() {
            Some("text") => match part["text"].as_str() {
                Some(text) => Ok(text.to_owned()),
                None => Err(Error::argument(format!("{here} has no text"))),
            },
            Some(kind) => Err(Error::argument(format!(
                "{here} has the type {kind:?}; only \"text\" is possible"
            ))),
            None => Err(Error::argument(format!("{here} has no type"))),
        }
    };
    parts.iter().enumerate().map(text).collect()
}
