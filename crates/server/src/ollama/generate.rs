//! `POST /api/generate`

use super::answer::{OllamaAnswer, Shape};
use super::chat::load;
use super::keep_alive::ModelUse;
use super::options::{IGNORED, OllamaRequest, Translated};
use super::{error_response, served_name};
use crate::access::Owner;
use crate::app::App;
use crate::body::Body;
use crate::chat::{ChatInput, PreparedAnswer};
use crate::chat_prompt::plain_tokens;
use crate::constraint::{OutputFormat, ToolChoice};
use crate::error::ApiError;
use crate::generation::GenerationRequest;
use crate::registry::LoadedModel;
use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::Instant;

/// The parameters of a completion, besides those of all generations.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct OllamaGenerate {
    /// The message of a user, or with raw a text that goes on; without it the model is loaded
    prompt: Option<String>,
    /// The system message
    system: Option<String>,
    /// Continue the prompt as it is, without the chat template
    raw: Option<bool>,
    /// The tokens of an earlier answer, which this one follows
    context: Option<Vec<u32>>,
    /// Pictures, which no model takes
    #[schemars(with = "Option<Vec<String>>")]
    images: Option<Value>,
}

/// Parameters that would change the output.
const UNSUPPORTED: &[&str] = &["suffix", "template"];

/// The handler.
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    Extension(owner): Extension<Owner>,
    body: Bytes,
) -> Response {
    let response = respond(app, owner, body).await;
    response.unwrap_or_else(|error| error_response(&error))
}

async fn respond(app: Arc<App>, owner: Owner, body: Bytes) -> Result<Response, ApiError> {
    let started = Instant::now();
    let mut body = Body::parse(&body)?;
    for name in UNSUPPORTED {
        // Clients send empty ones.
        if body.value(name).is_some_and(|value| value != "") {
            return Err(ApiError::unsupported(name));
        }
    }
    let generate: OllamaGenerate = body.read()?;
    let request: OllamaRequest = body.read()?;
    let warnings = body.finish(IGNORED, &[], app.options.lenient)?;
    let has_images = |images: &Value| images.as_array().is_none_or(|images| !images.is_empty());
    if generate.images.as_ref().is_some_and(has_images) {
        let wrong = "the model takes no images";
        return Err(ApiError::parameter("images", wrong));
    }
    let asked = request.model.clone().unwrap_or_default();
    let name = served_name(&app, request.model.as_deref())?;
    let prompt = generate.prompt.clone().unwrap_or_default();
    if prompt.is_empty() {
        return load(&app, &request, asked, name, json!({ "response": "" })).await;
    }
    let model_use = ModelUse::begin(&app, &name, request.keep_alive()?);
    let mut translated = request.translate(&app, &name, Map::new())?;
    let model = app.model(Some(name)).await?;
    let load_time = started.elapsed();
    let raw = generate.raw.unwrap_or(false);
    if raw
        && generate
            .system
            .as_ref()
            .is_some_and(|text| !text.is_empty())
    {
        let wrong = "raw prompts have no system message";
        return Err(ApiError::parameter("system", wrong));
    }
    // A base model continues texts.
    let is_plain = raw || (generate.system.is_none() && model.model.chat_template().is_err());
    let mut prepared = match is_plain {
        true => continue_text(&app, model, prompt, generate.context, &mut translated).await?,
        false => answer_message(&app, &owner, prompt, generate, &mut translated).await?,
    };
    translated.check(&prepared.model, prepared.answer_format)?;
    prepared.warnings = [warnings, translated.warnings].concat();
    let times = (started, load_time);
    let shape = Shape::Text {
        keeps_context: !raw,
    };
    prepared
        .respond(&app, |prepared, report| {
            OllamaAnswer::new(shape, asked, prepared, report, times, model_use)
        })
        .await
}

/// An answer to a message of a user, after the tokens of an earlier answer.
async fn answer_message(
    app: &Arc<App>,
    owner: &Owner,
    prompt: String,
    generate: OllamaGenerate,
    translated: &mut Translated,
) -> Result<PreparedAnswer, ApiError> {
    let system = generate.system.filter(|text| !text.is_empty());
    let system = system.map(|text| json!({ "role": "system", "content": text }));
    let mut messages = Vec::from_iter(system);
    messages.push(json!({ "role": "user", "content": prompt }));
    let generation = translated.parameters.read()?;
    let turn = translated.parameters.read()?;
    let parameters = std::mem::replace(&mut translated.parameters, Body::from(Map::new()));
    let input = ChatInput {
        messages,
        variables: translated.variables.clone(),
        max_tokens: translated.max_tokens,
        logprobs: translated.logprobs,
        reasoning_budget: translated.reasoning_budget,
        ..ChatInput::default()
    };
    let mut prepared =
        PreparedAnswer::new(app, owner, parameters, (generation, turn), input).await?;
    if let Some(context) = generate.context.filter(|tokens| !tokens.is_empty()) {
        prepared.tokens = Arc::new(after(&prepared.model, context, &prepared.tokens)?);
        // The answer follows more than its messages.
        prepared.history = None;
    }
    Ok(prepared)
}

/// A text that goes on.
async fn continue_text(
    app: &Arc<App>,
    model: Arc<LoadedModel>,
    prompt: String,
    context: Option<Vec<u32>>,
    translated: &mut Translated,
) -> Result<PreparedAnswer, ApiError> {
    let mut generation: GenerationRequest = translated.parameters.read()?;
    let mut body = std::mem::replace(&mut translated.parameters, Body::from(Map::new()));
    let format = OutputFormat::read(&mut generation, &ToolChoice::Auto, &[])?;
    let parameters = generation.parameters(
        &mut body,
        (&model.model, &app.options),
        translated.max_tokens,
    )?;
    let warnings = body.finish(&[], &[], app.options.lenient)?;
    let tokens = {
        let model = model.clone();
        let tokenise = move |_: &App| {
            model.check_length(prompt.len())?;
            let tokens = plain_tokens(&model, &prompt)?;
            match context.filter(|tokens| !tokens.is_empty()) {
                Some(context) => after(&model, context, &tokens),
                None => Ok(tokens),
            }
        };
        app.blocking(tokenise).await?
    };
    Ok(PreparedAnswer {
        logprobs: translated.logprobs,
        stream: generation.stream,
        warnings,
        ..PreparedAnswer::of_texts(model, vec![tokens], parameters, format)
    })
}

/// Tokens of a prompt after those of a context.
fn after(model: &LoadedModel, mut context: Vec<u32>, tokens: &[u32]) -> Result<Vec<u32>, ApiError> {
    let tokenizer = model.model.tokenizer()?;
    let begin = tokenizer.bos().filter(|_| tokenizer.adds_bos());
    let tokens = match tokens.split_first() {
        Some((first, rest)) if Some(*first) == begin => rest,
        _ => tokens,
    };
    context.extend(tokens);
    Ok(context)
}
