//! `POST /tokenize`, `/detokenize` and `/apply-template`, as llama.cpp's server has them.

use crate::app::App;
use crate::body::Body;
use crate::chat_prompt::ChatPrompt;
use crate::error::ApiError;
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use kvark::text::EncodeOptions;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// The parameters of `/tokenize`.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct TokenizeRequest {
    /// The model
    model: Option<String>,
    /// The text
    content: String,
    /// Add the token that begins a text
    #[serde(default)]
    add_special: bool,
    /// Recognise control tokens in the text
    parse_special: Option<bool>,
    /// Return the texts of the tokens too
    #[serde(default)]
    with_pieces: bool,
}

/// The parameters of `/detokenize`.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct DetokenizeRequest {
    /// The model
    model: Option<String>,
    /// The token ids
    tokens: Vec<u32>,
}

/// The parameters of `/apply-template`.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct TemplateRequest {
    /// The model
    model: Option<String>,
    /// The conversation
    #[schemars(with = "Vec<Map<String, Value>>")]
    messages: Vec<Value>,
    /// Functions that the model may call
    #[serde(default)]
    #[schemars(with = "Vec<Map<String, Value>>")]
    tools: Vec<Value>,
    /// Further variables of the template
    #[serde(default)]
    chat_template_kwargs: Map<String, Value>,
    /// End where the assistant begins
    add_generation_prompt: Option<bool>,
}

/// `POST /tokenize`
pub(crate) async fn tokenize(
    State(app): State<Arc<App>>,
    body: Bytes,
) -> Result<Json<Value>, ApiError> {
    let request: TokenizeRequest = Body::read_all(&body, &app.options)?;
    let model = app.model(request.model).await?;
    let tokenizer = model.model.tokenizer()?;
    let options = EncodeOptions {
        bos: request.add_special && tokenizer.adds_bos(),
        special: request.parse_special.unwrap_or(true),
        ..EncodeOptions::default()
    };
    let ids = tokenizer.encode(&request.content, options);
    let piece = |id: &u32| json!({ "id": id, "piece": tokenizer.decode(&[*id], true) });
    let tokens: Value = match request.with_pieces {
        true => ids.iter().map(piece).collect(),
        false => json!(ids),
    };
    Ok(Json(json!({ "tokens": tokens })))
}

/// `POST /detokenize`
pub(crate) async fn detokenize(
    State(app): State<Arc<App>>,
    body: Bytes,
) -> Result<Json<Value>, ApiError> {
    let request: DetokenizeRequest = Body::read_all(&body, &app.options)?;
    let model = app.model(request.model).await?;
    let (ids, vocab) = (request.tokens, model.model.facts().vocab_size);
    if ids.iter().any(|id| *id as usize >= vocab) {
        let wrong = format!("must be token ids below {vocab}");
        return Err(ApiError::parameter("tokens", wrong));
    }
    let text = model.model.tokenizer()?.decode(&ids, true);
    Ok(Json(json!({ "content": text })))
}

/// `POST /apply-template`
pub(crate) async fn apply_template(
    State(app): State<Arc<App>>,
    body: Bytes,
) -> Result<Json<Value>, ApiError> {
    let request: TemplateRequest = Body::read_all(&body, &app.options)?;
    let model = app.model(request.model).await?;
    let prompt = ChatPrompt::new(
        request.messages,
        request.tools,
        request.chat_template_kwargs,
    )?;
    let rendered = prompt.render(&model, request.add_generation_prompt.unwrap_or(true))?;
    Ok(Json(json!({ "prompt": rendered.text() })))
}
