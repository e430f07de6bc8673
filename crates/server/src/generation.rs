//! The parameters that all generating endpoints share.

use crate::answer::GenerationParameters;
use crate::body::{Body, Int, Strings};
use crate::error::ApiError;
use crate::options::ServerOptions;
use crate::sampling;
use kvark::Model;
use kvark::generate::GenerateOptions;
use kvark::speculative::{SpecOptions, SpecType};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::time::Duration;

/// Limits, speculation and output formats of a generation. Sampling options come on top.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct GenerationRequest {
    /// The model; the default one if left out
    pub(crate) model: Option<String>,
    /// Answer as server-sent events
    #[serde(default)]
    pub(crate) stream: bool,
    /// Number of choices
    n: Option<Int<1, 128>>,
    /// Strings that end the answer: at most 16 of at most 1024 bytes
    stop: Option<Strings>,
    /// Go on after the model's end
    #[serde(default)]
    ignore_eos: bool,
    /// No end before so many tokens
    min_tokens: Option<Int<0>>,
    /// Tokens that end the answer
    #[serde(default)]
    stop_token_ids: Vec<u32>,
    /// In a stream, tell how much of the prompt is computed
    #[serde(default)]
    return_progress: bool,
    /// In a stream, every chunk has timings
    #[serde(default)]
    timings_per_token: bool,
    /// Longest time of the answer in seconds
    #[schemars(range(min = 0.001, max = 86400.0))]
    timeout: Option<f32>,
    /// Higher ones are admitted first
    priority: Option<Int<-1000, 1000>>,
    /// Speculative decoding: the same text, sooner
    #[schemars(extend("enum" = ["ngram", "draft", "eagle3", "mtp", "auto", "none", null]))]
    spec_type: Option<String>,
    /// Most candidates of a round
    spec_tree: Option<Int<1, 64>>,
    /// Most candidates that a round can accept
    spec_depth: Option<Int<1, 64>>,
    /// Most children of a candidate
    spec_topk: Option<Int<1, 64>>,
    /// Stream the tree of every round as `kvark.round` of a chunk without choices
    #[serde(default)]
    spec_trace: bool,
    /// Reuse stored prefixes and store this one
    cache_prompt: Option<bool>,
    /// A JSON schema that the text must follow
    #[schemars(with = "Option<Map<String, Value>>")]
    pub(crate) json_schema: Option<Value>,
    /// A GBNF grammar that the text must follow
    pub(crate) grammar: Option<String>,
    /// A regular expression that the text must match
    pub(crate) regex: Option<String>,
    /// text, json_object or json_schema
    pub(crate) response_format: Option<Map<String, Value>>,
}

impl GenerationRequest {
    /// The parameters of the generations, with the sampling options of the body and the model's defaults for the others.
    ///
    /// # Errors
    /// If a parameter is out of range or does not fit the model.
    pub(crate) fn parameters(
        &mut self,
        body: &mut Body,
        (model, options): (&Model, &ServerOptions),
        max_tokens: Option<usize>,
    ) -> Result<GenerationParameters, ApiError> {
        let max_tokens = match (max_tokens, options.max_tokens) {
            (Some(asked), Some(most)) => Some(asked.min(most)),
            (asked, most) => asked.or(most),
        };
        let stop: Vec<String> = self.stop.take().map_or(vec![], Strings::into);
        if stop.len() > 16 || stop.iter().any(|text| text.len() > 1024) {
            let limits = "at most 16 strings of at most 1024 bytes";
            return Err(ApiError::parameter("stop", limits));
        }
        if self
            .timeout
            .is_some_and(|t| !(0.001..=86400.0).contains(&t))
        {
            let range = "must be between 0.001 and 86400";
            return Err(ApiError::parameter("timeout", range));
        }
        Ok(GenerationParameters {
            sampling: model.sampling(|sampler| {
                sampling::set_defaults(&options.sampling, sampler)?;
                sampling::read(body, model, sampler)
            })?,
            options: GenerateOptions {
                max_tokens,
                stop,
                ignore_eos: self.ignore_eos,
                min_tokens: self.min_tokens.map_or(0, Int::size),
                stop_tokens: std::mem::take(&mut self.stop_token_ids),
                ..GenerateOptions::default()
            },
            choices: self.n.map_or(1, Int::size),
            priority: self.priority.map_or(0, |n| n.0 as i32),
            cache_prompt: self.cache_prompt.unwrap_or(true),
            speculation: self.speculation(options.speculation)?,
            timeout: self.timeout.map(Duration::from_secs_f32),
        })
    }

    /// The details that the chunks of a stream have besides the answer.
    pub(crate) fn stream_details(&self) -> StreamDetails {
        StreamDetails {
            progress: self.return_progress,
            timings: self.timings_per_token,
            ..StreamDetails::default()
        }
    }

    /// The speculation that the request asks for, or the server's.
    fn speculation(&self, default: Option<SpecType>) -> Result<Option<SpecOptions>, ApiError> {
        let kind = match (self.spec_type.as_deref(), default) {
            (None, None) | (Some("none"), _) => return Ok(None),
            (None, Some(default)) => default,
            (Some(name), _) => SpecType::from_name(name).ok_or_else(|| {
                let names = SpecType::ALL.map(SpecType::name).join(", ");
                ApiError::parameter("spec_type", format!("must be one of {names}, none"))
            })?,
        };
        let defaults = SpecOptions::default();
        let size = |given: Option<Int<1, 64>>, default| given.map_or(default, Int::size);
        Ok(Some(SpecOptions {
            kind,
            max_candidates: size(self.spec_tree, defaults.max_candidates),
            max_depth: size(self.spec_depth, defaults.max_depth),
            top_k: size(self.spec_topk, defaults.top_k),
            trace: self.spec_trace,
            prediction: vec![],
        }))
    }
}

/// The details of an answer besides its text.
#[derive(Clone, Debug, Default)]
pub(crate) struct StreamDetails {
    /// How much of the prompt is computed.
    pub(crate) progress: bool,
    /// Timings in every chunk.
    pub(crate) timings: bool,
    /// The usage, in a chunk of its own.
    pub(crate) usage: bool,
    /// The conversation that the answer continues.
    pub(crate) conversation: Option<String>,
}

impl StreamDetails {
    /// With these.
    pub(crate) fn shown(self, usage: bool, conversation: Option<String>) -> StreamDetails {
        StreamDetails {
            usage,
            conversation,
            ..self
        }
    }
}

/// `stream_options` of OpenAI.
#[derive(Deserialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct StreamOptions {
    /// Send the usage in a last chunk
    include_usage: Option<bool>,
}

impl StreamOptions {
    /// Whether the usage is wanted at the end of a stream.
    pub(crate) fn include_usage(options: Option<StreamOptions>) -> bool {
        options.and_then(|options| options.include_usage) == Some(true)
    }
}
