//! `POST /api/chat`

use super::answer::{OllamaAnswer, Shape};
use super::keep_alive::ModelUse;
use super::options::{IGNORED, OllamaRequest};
use super::{error_response, now, served_name};
use crate::access::Owner;
use crate::app::App;
use crate::body::Body;
use crate::chat::{ChatInput, PreparedAnswer};
use crate::error::ApiError;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::Instant;

/// The parameters of a chat, besides those of all generations.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct OllamaChat {
    /// The conversation; without messages the model is loaded
    #[schemars(with = "Option<Vec<Map<String, Value>>>")]
    messages: Option<Vec<Value>>,
    /// Functions that the model may call
    #[schemars(with = "Option<Vec<Map<String, Value>>>")]
    tools: Option<Vec<Value>>,
}

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
    let chat: OllamaChat = body.read()?;
    let request: OllamaRequest = body.read()?;
    let warnings = body.finish(IGNORED, &[], app.options.lenient)?;
    let asked = request.model.clone().unwrap_or_default();
    let name = served_name(&app, request.model.as_deref())?;
    let messages = chat.messages.unwrap_or_default();
    if messages.is_empty() {
        let message = json!({ "message": { "role": "assistant", "content": "" } });
        return load(&app, &request, asked, name, message).await;
    }
    let messages = (0..).zip(messages).map(|(i, m)| chat_message(i, m));
    let messages = messages.collect::<Result<Vec<Value>, ApiError>>()?;
    let model_use = ModelUse::begin(&app, &name, request.keep_alive()?);
    let mut extra = Map::new();
    extra.insert("tools".to_owned(), chat.tools.unwrap_or_default().into());
    let mut translated = request.translate(&app, &name, extra)?;
    app.model(Some(name)).await?;
    let load_time = started.elapsed();
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
    let prepared = PreparedAnswer::new(&app, &owner, parameters, (generation, turn), input);
    let mut prepared = prepared.await?;
    translated.check(&prepared.model, prepared.answer_format)?;
    prepared.warnings = [warnings, translated.warnings].concat();
    let times = (started, load_time);
    prepared
        .respond(&app, |prepared, report| {
            OllamaAnswer::new(Shape::Chat, asked, prepared, report, times, model_use)
        })
        .await
}

/// Answers a request without a prompt: it loads the model, or unloads it with a `keep_alive` of 0.
pub(super) async fn load(
    app: &Arc<App>,
    request: &OllamaRequest,
    asked: String,
    name: String,
    empty: Value,
) -> Result<Response, ApiError> {
    let stated = request.keep_alive()?;
    let reason = match stated.is_some_and(|time| time.is_zero()) {
        true => {
            app.blocking(move |app| app.models.unload(&name)).await?;
            "unload"
        }
        false => {
            let _model_use = ModelUse::begin(app, &name, stated);
            app.model(Some(name)).await?;
            "load"
        }
    };
    let mut answer = json!({ "model": asked, "created_at": now() });
    if let (Value::Object(answer), Value::Object(empty)) = (&mut answer, empty) {
        answer.extend(empty);
    }
    answer["done"] = true.into();
    answer["done_reason"] = reason.into();
    Ok(Json(answer).into_response())
}

/// A message in the shape of chat completions.
fn chat_message(index: usize, mut message: Value) -> Result<Value, ApiError> {
    let wrong = |what: &str| ApiError::parameter("messages", format!("messages[{index}] {what}"));
    if has_images(&message) {
        return Err(wrong("has images, which the model does not take"));
    }
    let Some(fields) = message.as_object_mut() else {
        return Err(wrong("must be an object"));
    };
    fields.remove("images");
    if let Some(name) = fields.remove("tool_name") {
        fields.insert("name".to_owned(), name);
    }
    if let Some(Value::Array(calls)) = fields.get_mut("tool_calls") {
        for call in calls {
            if call.get("function").is_none() {
                return Err(wrong("has a tool call without a function"));
            }
            call["type"] = "function".into();
        }
    }
    Ok(message)
}

/// Whether a message or a prompt has images.
pub(super) fn has_images(of: &Value) -> bool {
    of["images"]
        .as_array()
        .is_some_and(|images| !images.is_empty())
}
