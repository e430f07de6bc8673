//! The parameters that `/api/chat` and `/api/generate` share, and `options`.

use super::keep_alive::StatedTime;
use crate::app::App;
use crate::body::{Body, Int};
use crate::chat::set_effort;
use crate::error::ApiError;
use crate::registry::LoadedModel;
use kvark::generate::SAMPLING_OPTIONS;
use kvark::text::{AnswerFormat, ReasoningFormat};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// Parameters that change nothing: a prompt that is too long is refused and never cut.
pub(crate) const IGNORED: &[&str] = &["shift", "truncate"];

/// Options of loading and of speed, which cannot change an answer.
const IGNORED_OPTIONS: &[&str] = &[
    "f16_kv",
    "low_vram",
    "main_gpu",
    "num_batch",
    "num_gpu",
    "num_thread",
    "numa",
    "use_mlock",
    "use_mmap",
];

/// The parameters of a generation of Ollama.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct OllamaRequest {
    /// The model, with or without the tag latest
    pub(super) model: Option<String>,
    /// Answer as lines of JSON [true]
    pub(super) stream: Option<bool>,
    /// num_predict, num_ctx, stop, and every sampling option
    options: Option<Map<String, Value>>,
    /// json, or a JSON schema that the text must follow
    #[schemars(with = "Option<Map<String, Value>>", extend("type" = ["string", "object", "null"]))]
    format: Option<Value>,
    /// How long the model stays loaded: seconds, or a duration such as 5m; 0 unloads it after the answer, -1 keeps it
    #[schemars(with = "Option<f64>", extend("type" = ["number", "string", "null"]))]
    keep_alive: Option<Value>,
    /// Whether the model reasons, or how much: low, medium or high
    #[schemars(with = "Option<bool>", extend("type" = ["boolean", "string", "null"]))]
    think: Option<Value>,
    /// Return log-probabilities
    logprobs: Option<bool>,
    /// How many of the most likely tokens have log-probabilities
    top_logprobs: Option<Int<0, 20>>,
}

/// A request of Ollama in kvark's terms.
pub(super) struct Translated {
    /// The parameters of the generation under kvark's names.
    pub(super) parameters: Body,
    /// Variables of the chat template.
    pub(super) variables: Map<String, Value>,
    pub(super) max_tokens: Option<usize>,
    pub(super) reasoning_budget: Option<usize>,
    pub(super) logprobs: Option<usize>,
    /// The parameters that a lenient server has ignored.
    pub(super) warnings: Vec<String>,
    /// Whether the request asks for reasoning.
    thinks: bool,
    /// The context that the request needs.
    context: Option<usize>,
}

impl OllamaRequest {
    /// The time that the model is to stay loaded.
    pub(super) fn keep_alive(&self) -> Result<Option<StatedTime>, ApiError> {
        self.keep_alive.as_ref().map(StatedTime::read).transpose()
    }

    /// Translates the request, for a model of this name. `extra` are parameters that kvark has too.
    pub(super) fn translate(
        self,
        app: &App,
        model: &str,
        extra: Map<String, Value>,
    ) -> Result<Translated, ApiError> {
        let mut parameters = extra;
        parameters.insert("model".to_owned(), model.into());
        parameters.insert("stream".to_owned(), self.stream.unwrap_or(true).into());
        if let Some(format) = self.format.and_then(response_format).transpose()? {
            parameters.insert("response_format".to_owned(), format);
        }
        let mut translated = Translated {
            parameters: Body::from(Map::new()),
            variables: Map::new(),
            max_tokens: None,
            reasoning_budget: None,
            logprobs: self
                .logprobs
                .unwrap_or(false)
                .then(|| self.top_logprobs.map_or(0, Int::size)),
            warnings: vec![],
            thinks: false,
            context: None,
        };
        match self.think {
            None => {}
            Some(Value::Bool(think)) => {
                translated.thinks = think;
                let name = "enable_thinking".to_owned();
                translated.variables.insert(name, think.into());
                translated.reasoning_budget = (!think).then_some(0);
            }
            Some(Value::String(effort)) if ["low", "medium", "high"].contains(&&*effort) => {
                translated.thinks = true;
                set_effort(&mut translated.variables, Some(effort));
            }
            Some(_) => {
                let values = "must be true, false, \"low\", \"medium\" or \"high\"";
                return Err(ApiError::parameter("think", values));
            }
        }
        for (name, value) in self.options.unwrap_or_default() {
            translated.option(app, &mut parameters, &name, value)?;
        }
        translated.parameters = Body::from(parameters);
        Ok(translated)
    }
}

impl Translated {
    fn option(
        &mut self,
        app: &App,
        parameters: &mut Map<String, Value>,
        name: &str,
        value: Value,
    ) -> Result<(), ApiError> {
        let full = || format!("options.{name}");
        let integer = |value: &Value| {
            let number = value.as_f64().filter(|number| number.fract() == 0.0);
            number.ok_or_else(|| ApiError::parameter(&full(), "must be an integer"))
        };
        match name {
            _ if value.is_null() || IGNORED_OPTIONS.contains(&name) => {}
            "num_predict" => {
                // -1 is no limit, and -2 the rest of the context, where every answer ends.
                let number = integer(&value)?;
                self.max_tokens = (number >= 0.0).then_some(number as usize);
            }
            "num_ctx" => self.context = Some(integer(&value)?.max(0.0) as usize),
            "num_keep" if app.options.context_shift.is_none() => {}
            "stop" => _ = parameters.insert("stop".to_owned(), value),
            _ if SAMPLING_OPTIONS.iter().any(|option| option.name == name) => {
                parameters.insert(name.to_owned(), value);
            }
            _ if app.options.lenient => {
                let warning = format!("the unknown parameter {:?} was ignored", full());
                self.warnings.push(warning);
            }
            _ => return Err(ApiError::unsupported(&full())),
        }
        Ok(())
    }

    /// Refuses what a model cannot do.
    pub(super) fn check(
        &self,
        model: &LoadedModel,
        answer: Option<AnswerFormat>,
    ) -> Result<(), ApiError> {
        let context = model.engine().context();
        if let Some(asked) = self.context.filter(|asked| *asked > context) {
            let wrong = format!(
                "{asked} is more than the {context} tokens of the server's context (kvark serve -c)"
            );
            return Err(ApiError::parameter("options.num_ctx", wrong));
        }
        if self.thinks && !answer.is_some_and(|answer| answer.reasoning != ReasoningFormat::None) {
            let wrong = format!("{:?} does not support thinking", model.name);
            return Err(ApiError::parameter("think", wrong));
        }
        Ok(())
    }
}

/// `format` as chat completions have it.
fn response_format(format: Value) -> Option<Result<Value, ApiError>> {
    match format {
        Value::String(name) if name.is_empty() => None,
        Value::String(name) if name == "json" => Some(Ok(json!({ "type": "json_object" }))),
        Value::Object(schema) => Some(Ok(json!({
            "type": "json_schema",
            "json_schema": { "name": "format", "schema": schema },
        }))),
        _ => {
            let wrong = "must be \"json\" or a JSON schema";
            Some(Err(ApiError::parameter("format", wrong)))
        }
    }
}
