//! `GenerationResult`: a finished generation.

use crate::error::Result;
use crate::options::json_of;
use kvark::engine::TokenLogprobs;
use kvark::generate::{GenerateOutput, Timings};
use kvark::text::tools::ToolCall;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple, PyType};
use serde_json::Value as Json;

/// A finished generation. It pickles.
#[pyclass(frozen, module = "kvark")]
pub struct GenerationResult {
    /// The text, without stop string and end-of-generation token.
    #[pyo3(get)]
    text: String,
    /// The generated tokens.
    #[pyo3(get)]
    tokens: Vec<u32>,
    /// `stop`, `length`, `context`, `interrupted` or `deadline`.
    #[pyo3(get)]
    finish_reason: String,
    timings: TimingsOf,
    logprobs: Option<Vec<(u32, TokenLogprobs)>>,
    tool_calls: Vec<ToolCall>,
}

/// Timings with llama.cpp's names.
#[derive(Clone, Copy)]
struct TimingsOf {
    prompt_n: usize,
    prompt_ms: f64,
    prompt_per_second: Option<f64>,
    predicted_n: usize,
    predicted_ms: f64,
    predicted_per_second: Option<f64>,
}

impl From<Timings> for TimingsOf {
    fn from(t: Timings) -> TimingsOf {
        TimingsOf {
            prompt_n: t.prompt_tokens,
            prompt_ms: t.prompt_time.as_secs_f64() * 1e3,
            prompt_per_second: t.prompt_rate(),
            predicted_n: t.generated_tokens,
            predicted_ms: t.decode_time.as_secs_f64() * 1e3,
            predicted_per_second: t.decode_rate(),
        }
    }
}

impl From<GenerateOutput> for GenerationResult {
    fn from(output: GenerateOutput) -> GenerationResult {
        let logprobs = output.tokens.iter().copied().zip(output.logprobs);
        let logprobs: Vec<_> = logprobs.collect();
        GenerationResult {
            text: output.text,
            finish_reason: output.finish.name().to_owned(),
            timings: output.timings.into(),
            logprobs: (!logprobs.is_empty()).then_some(logprobs),
            tokens: output.tokens,
            tool_calls: vec![],
        }
    }
}

impl GenerationResult {
    /// The same result with the log-probabilities of its tokens.
    pub(crate) fn with_logprobs(self, logprobs: Option<Vec<(u32, TokenLogprobs)>>) -> Self {
        GenerationResult { logprobs, ..self }
    }

    /// The same result with the tool calls that its text has.
    pub(crate) fn with_tool_calls(self, tool_calls: Vec<ToolCall>) -> Self {
        GenerationResult { tool_calls, ..self }
    }

    pub(crate) fn repr(&self) -> String {
        format!(
            "GenerationResult({:?}, {} tokens, {})",
            self.text,
            self.tokens.len(),
            self.finish_reason
        )
    }
}

#[pymethods]
impl GenerationResult {
    /// Tokens and seconds of prompt and generation, with llama.cpp's names.
    #[getter]
    fn timings<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let t = &self.timings;
        let dict = PyDict::new(py);
        dict.set_item("prompt_n", t.prompt_n)?;
        dict.set_item("prompt_ms", t.prompt_ms)?;
        dict.set_item("prompt_per_second", t.prompt_per_second)?;
        dict.set_item("predicted_n", t.predicted_n)?;
        dict.set_item("predicted_ms", t.predicted_ms)?;
        dict.set_item("predicted_per_second", t.predicted_per_second)?;
        Ok(dict)
    }

    /// With `logprobs=k`: for each token `{"id", "logprob", "top": [(id, logprob), …]}`, before the sampler's stages.
    #[getter]
    fn logprobs<'py>(&self, py: Python<'py>) -> PyResult<Option<Vec<Bound<'py, PyDict>>>> {
        let Some(logprobs) = &self.logprobs else {
            return Ok(None);
        };
        let entry = |(id, found): &(u32, TokenLogprobs)| {
            let dict = PyDict::new(py);
            dict.set_item("id", id)?;
            dict.set_item("logprob", found.logprob)?;
            dict.set_item("top", &found.top)?;
            Ok(dict)
        };
        logprobs
            .iter()
            .map(entry)
            .collect::<PyResult<_>>()
            .map(Some)
    }

    /// The calls of `tools` in OpenAI's shape, for the answer's message: `{"id", "type", "function": {"name", "arguments"}}`, with
    /// the arguments as JSON text. `text` has them as the model wrote them.
    #[getter]
    fn tool_calls<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let object = |(index, call): (usize, &ToolCall)| {
            let function = PyDict::new(py);
            function.set_item("name", &call.name)?;
            function.set_item("arguments", &call.arguments)?;
            let dict = PyDict::new(py);
            dict.set_item("id", format!("call-{index}"))?;
            dict.set_item("type", "function")?;
            dict.set_item("function", function)?;
            Ok(dict)
        };
        self.tool_calls.iter().enumerate().map(object).collect()
    }

    fn __str__(&self) -> &str {
        &self.text
    }

    fn __repr__(&self) -> String {
        self.repr()
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<GenerationResult>().is_ok_and(|other| {
            let other = other.get();
            (&self.text, &self.tokens, &self.finish_reason)
                == (&other.text, &other.tokens, &other.finish_reason)
        })
    }

    fn __hash__(&self) -> u64 {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let mut hasher = DefaultHasher::new();
        self.tokens.hash(&mut hasher);
        hasher.finish()
    }

    /// How `pickle` makes the result again.
    fn __reduce__<'py>(this: &Bound<'py, Self>) -> PyResult<Bound<'py, PyTuple>> {
        let (py, result) = (this.py(), this.get());
        let state = PyDict::new(py);
        state.set_item("text", &result.text)?;
        state.set_item("tokens", &result.tokens)?;
        state.set_item("finish_reason", &result.finish_reason)?;
        state.set_item("timings", result.timings(py)?)?;
        state.set_item("logprobs", result.logprobs(py)?)?;
        state.set_item("tool_calls", result.tool_calls(py)?)?;
        let make = this.get_type().getattr("_restore")?;
        (make, (state,)).into_pyobject(py)
    }

    /// Makes a result from what `__reduce__` gave.
    #[classmethod]
    fn _restore(_class: &Bound<'_, PyType>, state: &Bound<'_, PyDict>) -> Result<Self> {
        let Json::Object(state) = json_of(state)? else {
            unreachable!("a dict is an object");
        };
        restore(&Json::Object(state))
            .ok_or_else(|| crate::error::Error::argument("this is no pickled GenerationResult"))
    }
}

fn restore(state: &Json) -> Option<GenerationResult> {
    let text = |name: &str| Some(state[name].as_str()?.to_owned());
    let ids = |list: &Json| -> Option<Vec<u32>> { list.as_array()?.iter().map(id_of).collect() };
    let t = &state["timings"];
    let count = |name: &str| Some(t[name].as_u64()? as usize);
    let logprob = |entry: &Json| {
        let top = entry["top"].as_array()?.iter();
        let top = top.map(|pair| Some((id_of(&pair[0])?, pair[1].as_f64()? as f32)));
        let logprob = entry["logprob"].as_f64()? as f32;
        let top = top.collect::<Option<_>>()?;
        Some((id_of(&entry["id"])?, TokenLogprobs { logprob, top }))
    };
    let logprobs = match &state["logprobs"] {
        Json::Null => None,
        list => Some(
            list.as_array()?
                .iter()
                .map(logprob)
                .collect::<Option<_>>()?,
        ),
    };
    let call = |call: &Json| {
        let text = |name: &str| Some(call["function"][name].as_str()?.to_owned());
        Some(ToolCall {
            name: text("name")?,
            arguments: text("arguments")?,
        })
    };
    let calls = state["tool_calls"].as_array()?.iter().map(call);
    Some(GenerationResult {
        tool_calls: calls.collect::<Option<_>>()?,
        text: text("text")?,
        tokens: ids(&state["tokens"])?,
        finish_reason: text("finish_reason")?,
        timings: TimingsOf {
            prompt_n: count("prompt_n")?,
            prompt_ms: t["prompt_ms"].as_f64()?,
            prompt_per_second: t["prompt_per_second"].as_f64(),
            predicted_n: count("predicted_n")?,
            predicted_ms: t["predicted_ms"].as_f64()?,
            predicted_per_second: t["predicted_per_second"].as_f64(),
        },
        logprobs,
    })
}

fn id_of(value: &Json) -> Option<u32> {
    u32::try_from(value.as_u64()?).ok()
}
