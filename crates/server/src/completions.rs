//! `POST /v1/completions`

use crate::app::App;
use crate::body::{Body, Int};
use crate::chat::{IGNORED, PreparedAnswer, token_limit};
use crate::constraint::{OutputFormat, ToolChoice};
use crate::error::ApiError;
use crate::generation::{GenerationRequest, StreamOptions};
use crate::infill;
use crate::openai_answer::{OpenAiAnswer, Shape};
use crate::prompts::{self, Prompts, TextPrompt};
use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use kvark::engine::CacheReport;
use kvark::text::InfillRequest;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use std::sync::Arc;

/// OpenAI's default length of a completion.
const DEFAULT_TOKENS: usize = 16;

/// The parameters of a completion, besides those of all generations.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct CompletionRequest {
    /// A text or token ids, or a list of prompts, each of which is answered
    #[schemars(with = "Prompts")]
    prompt: Value,
    /// The text behind the answer, for models that were trained to fill in
    suffix: Option<String>,
    /// Most tokens of the answer [16]; -1 for no limit
    max_tokens: Option<Int<-1>>,
    /// The same
    n_predict: Option<Int<-1>>,
    /// Return the prompt before the text; with logprobs those of its tokens too
    #[serde(default)]
    echo: bool,
    /// Generate so many answers and return the n most likely ones
    best_of: Option<Int<1, 128>>,
    /// Log-probabilities of this many tokens
    logprobs: Option<Int<0, 20>>,
    /// llama.cpp's name of `logprobs`; 0 for none
    n_probs: Option<Int<0, 20>>,
    /// include_usage
    stream_options: Option<StreamOptions>,
}

/// The handler.
pub(crate) async fn create(State(app): State<Arc<App>>, body: Bytes) -> Result<Response, ApiError> {
    let mut body = Body::parse(&body)?;
    let request: CompletionRequest = body.read()?;
    let mut generation: GenerationRequest = body.read()?;
    let model = app.model(generation.model.take()).await?;
    let logprobs = request.logprobs.or(request.n_probs.filter(|n| n.0 > 0));
    let logprobs = logprobs.map(Int::size);
    let format = OutputFormat::read(&mut generation, &ToolChoice::Auto, &[])?;
    let most = match (request.n_predict, request.max_tokens) {
        (Some(Int(0)), _) | (None, Some(Int(0))) => Some(0),
        (None, None) => Some(DEFAULT_TOKENS),
        (Some(_), _) => token_limit("n_predict", request.n_predict)?,
        (None, Some(_)) => token_limit("max_tokens", request.max_tokens)?,
    };
    let details = generation.stream_details();
    let mut parameters = generation.parameters(&mut body, (&model.model, &app.options), most)?;
    let wanted = parameters.choices;
    if let Some(best) = request.best_of.map(Int::size) {
        if best < wanted {
            let wrong = format!("must be at least n, which is {wanted}");
            return Err(ApiError::parameter("best_of", wrong));
        }
        if best > wanted && generation.stream {
            return Err(ApiError::parameter("best_of", "has no stream"));
        }
        if best > wanted && (logprobs.is_some() || request.echo) {
            let wrong = "cannot be combined with logprobs or echo";
            return Err(ApiError::parameter("best_of", wrong));
        }
        parameters.choices = best;
    }
    if request.echo && logprobs.is_some() && generation.stream {
        return Err(ApiError::parameter("echo", "with logprobs has no stream"));
    }
    let warnings = body.finish(IGNORED, &[], app.options.lenient)?;
    let prompts = {
        let model = model.clone();
        let (prompt, suffix) = (request.prompt, request.suffix);
        let read = move |_: &App| match suffix.filter(|text| !text.is_empty()) {
            None => prompts::read(&model, prompt),
            Some(suffix) => {
                let Value::String(prefix) = prompt else {
                    return Err(ApiError::parameter("suffix", "needs one text as prompt"));
                };
                let request = InfillRequest {
                    prefix: &prefix,
                    suffix: &suffix,
                    ..InfillRequest::default()
                };
                let tokens = infill::tokens(&model, &request, "suffix")?;
                Ok(vec![TextPrompt {
                    text: prefix,
                    tokens,
                }])
            }
        };
        app.blocking(read).await?
    };
    let (texts, tokens): (Vec<String>, _) = prompts.into_iter().map(|p| (p.text, p.tokens)).unzip();
    let made = parameters.choices;
    let prepared = PreparedAnswer {
        logprobs: logprobs.or((made > wanted).then_some(0)),
        prompt_logprobs: logprobs.filter(|_| request.echo),
        stream: generation.stream,
        warnings,
        ..PreparedAnswer::of_texts(model, tokens, parameters, format)
    };
    let echo = if request.echo { texts } else { vec![] };
    let usage = StreamOptions::include_usage(request.stream_options);
    let format = |prepared: &PreparedAnswer, report: &CacheReport| {
        let shape = Shape::Text(echo);
        let details = details.shown(usage, None);
        OpenAiAnswer::new(&app, prepared, report, shape, details).with_best(wanted)
    };
    prepared.respond(&app, format).await
}
