//! `POST /v1/completions`

use crate::app::App;
use crate::body::{Body, Int};
use crate::chat::{IGNORED, PreparedAnswer};
use crate::chat_prompt::{ChatPrompt, plain_tokens};
use crate::constraint::{OutputFormat, ToolChoice};
use crate::error::ApiError;
use crate::generation::{GenerationRequest, StreamOptions};
use crate::openai_answer::{OpenAiAnswer, Shape};
use crate::registry::LoadedModel;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use kvark::engine::CacheReport;
use schemars::JsonSchema;
use serde::Deserialize;
use std::sync::Arc;

/// OpenAI's default length of a completion.
const DEFAULT_TOKENS: usize = 16;

/// The parameters of a completion, besides those of all generations.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct CompletionRequest {
    /// A text or token ids
    prompt: Prompt,
    /// Most tokens of the answer [16]
    max_tokens: Option<Int<0>>,
    /// The same
    n_predict: Option<Int<0>>,
    /// Return the prompt before the text
    #[serde(default)]
    echo: bool,
    /// Log-probabilities of this many tokens
    logprobs: Option<Int<0, 20>>,
    /// llama.cpp's name of `logprobs`; 0 for none
    n_probs: Option<Int<0, 20>>,
    /// include_usage
    stream_options: Option<StreamOptions>,
}

/// One prompt, alone or in a list.
#[derive(Deserialize, JsonSchema)]
#[serde(untagged, expecting = "must be a string or a list of token ids")]
#[schemars(inline)]
enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
    Texts(Vec<String>),
    Lists(Vec<Vec<u32>>),
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
    let most = request.n_predict.or(request.max_tokens);
    let most = Some(most.map_or(DEFAULT_TOKENS, Int::size));
    let parameters = generation.parameters(&mut body, &model.model, most)?;
    let warnings = body.finish(IGNORED, &["best_of", "suffix"], app.options.lenient)?;
    let (prompt, tokens) = {
        let model = model.clone();
        app.blocking(move |_| read_prompt(&model, request.prompt))
            .await?
    };
    let prepared = PreparedAnswer {
        model,
        prompt: ChatPrompt::default(),
        tokens: Arc::new(tokens),
        answer_format: None,
        opened: String::new(),
        history: None,
        parameters,
        logprobs,
        format,
        stream: generation.stream,
        warnings,
        turn: None,
        cells: None,
        approximate: false,
        moved: None,
    };
    let echo = if request.echo { prompt } else { String::new() };
    let include_usage = StreamOptions::include_usage(request.stream_options);
    let format = |prepared: &PreparedAnswer, report: &CacheReport| {
        OpenAiAnswer::new(
            &app,
            prepared,
            report,
            Shape::Text(echo),
            include_usage,
            None,
        )
    };
    prepared.respond(&app, format).await
}

/// The text and the tokens of a prompt.
fn read_prompt(model: &LoadedModel, prompt: Prompt) -> Result<(String, Vec<u32>), ApiError> {
    let one = "must be one prompt";
    match prompt {
        Prompt::Text(text) => {
            model.check_length(text.len())?;
            let tokens = plain_tokens(model, &text)?;
            Ok((text, tokens))
        }
        Prompt::Tokens(ids) => {
            let text = model.model.tokenizer().map(|t| t.decode(&ids, true));
            Ok((text.unwrap_or_default(), ids))
        }
        Prompt::Texts(texts) => match <[String; 1]>::try_from(texts) {
            Ok([text]) => read_prompt(model, Prompt::Text(text)),
            Err(_) => Err(ApiError::parameter("prompt", one)),
        },
        Prompt::Lists(lists) => match <[Vec<u32>; 1]>::try_from(lists) {
            Ok([ids]) => read_prompt(model, Prompt::Tokens(ids)),
            Err(_) => Err(ApiError::parameter("prompt", one)),
        },
    }
}
