//! `POST /tokenize`, `/detokenize` and `/apply-template`, as llama.cpp's server has them.

use crate::app::App;
use crate::body::Body;
use crate::chat_prompt::ChatPrompt;
use crate::error::ApiError;
use axum::Json;
use axum::body::Bytes;
use axum::extract::{Query, State};
use kvark::text::EncodeOptions;
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::Error;
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::sync::Arc;

/// The parameters of `/tokenize`.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct TokenizeRequest {
    /// The model
    model: Option<String>,
    /// The text
    content: Option<String>,
    /// vLLM's name of it
    prompt: Option<String>,
    /// Add the token that begins a text
    #[serde(default)]
    add_special: bool,
    /// vLLM's name of it
    add_special_tokens: Option<bool>,
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
    #[schemars(with = "Option<Vec<Map<String, Value>>>")]
    tools: Option<Vec<Value>>,
    /// Further variables of the template
    #[serde(default)]
    chat_template_kwargs: Map<String, Value>,
    /// End where the assistant begins; an assistant's message at the end begins the answer if this is left out
    add_generation_prompt: Option<bool>,
}

/// `POST /tokenize`
pub(crate) async fn tokenize(
    State(app): State<Arc<App>>,
    body: Bytes,
) -> Result<Json<Value>, ApiError> {
    let request: TokenizeRequest = Body::read_all(&body, &app.options)?;
    let Some(text) = request.content.or(request.prompt) else {
        return Err(ApiError::missing_field("content"));
    };
    let adds_special = request.add_special_tokens.unwrap_or(request.add_special);
    let model = app.model(request.model).await?;
    let tokenizer = model.model.tokenizer()?;
    let options = EncodeOptions {
        bos: adds_special && tokenizer.adds_bos(),
        special: request.parse_special.unwrap_or(true),
        ..EncodeOptions::default()
    };
    let ids = tokenizer.encode(&text, options);
    let piece = |id: &u32| json!({ "id": id, "piece": tokenizer.decode(&[*id], true) });
    let tokens: Value = match request.with_pieces {
        true => ids.iter().map(piece).collect(),
        false => json!(ids),
    };
    Ok(Json(json!({ "tokens": tokens, "count": ids.len() })))
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
    // vLLM calls it the prompt.
    Ok(Json(json!({ "content": text, "prompt": text })))
}

/// `GET /tokenizer_info`: what programs need that count tokens themselves, as vLLM has it.
pub(crate) async fn tokenizer_info(
    State(app): State<Arc<App>>,
    Query(query): Query<HashMap<String, String>>,
) -> Result<Json<Value>, ApiError> {
    let model = app.model(query.get("model").cloned()).await?;
    let tokenizer = model.model.tokenizer()?;
    let text = |id: Option<u32>| id.map(|id| tokenizer.decode(&[id], true));
    let template = model.model.chat_template().ok();
    Ok(Json(json!({
        "tokenizer_class": "kvark",
        "bos_token": text(tokenizer.bos()),
        "eos_token": text(tokenizer.eos()),
        "add_bos_token": tokenizer.adds_bos(),
        "vocab_size": tokenizer.vocab_size(),
        "model_max_length": model.engine().context(),
        "chat_template": template.map(|template| template.source_text()),
    })))
}

/// `POST /apply-template`
pub(crate) async fn apply_template(
    State(app): State<Arc<App>>,
    body: Bytes,
) -> Result<Json<Value>, ApiError> {
    let request: TemplateRequest = Body::read_all(&body, &app.options)?;
    let model = app.model(request.model).await?;
    let mut variables = app.options.template_variables.clone();
    variables.extend(request.chat_template_kwargs);
    let mut prompt = ChatPrompt::new(
        request.messages,
        request.tools.unwrap_or_default(),
        variables,
    )?;
    if request.add_generation_prompt.is_none() {
        prompt.take_begun_answer()?;
    }
    let rendered = prompt.render(&model, request.add_generation_prompt.unwrap_or(true))?;
    let text = format!("{}{}", rendered.text(), prompt.begun);
    Ok(Json(json!({ "prompt": text })))
}
