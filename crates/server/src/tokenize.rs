//! `POST /tokenize`, `/detokenize` and `/apply-template`, as llama.cpp's server has them.

use crate::app::App;
use crate::chat_prompt::ChatPrompt;
use crate::error::ApiError;
use crate::fields::Fields;
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use kvark::text::EncodeOptions;
use serde_json::{Value, json};
use std::sync::Arc;

/// `POST /tokenize`
pub(crate) async fn tokenize(
    State(app): State<Arc<App>>,
    body: Bytes,
) -> Result<Json<Value>, ApiError> {
    let mut fields = Fields::parse(&body)?;
    let model = app.model(fields.string("model")?).await?;
    let content = fields.string("content")?;
    let content = content.ok_or_else(|| ApiError::parameter("content", "is required"))?;
    let bos = fields.boolean("add_special")?.unwrap_or(false);
    let special = fields.boolean("parse_special")?.unwrap_or(true);
    let pieces = fields.boolean("with_pieces")?.unwrap_or(false);
    fields.finish(&[], &[], app.options.lenient)?;
    let tokenizer = model.model.tokenizer()?;
    let options = EncodeOptions {
        bos: bos && tokenizer.adds_bos(),
        special,
        ..EncodeOptions::default()
    };
    let ids = tokenizer.encode(&content, options);
    let piece = |id: &u32| json!({ "id": id, "piece": tokenizer.decode(&[*id], true) });
    let tokens: Value = match pieces {
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
    let mut fields = Fields::parse(&body)?;
    let model = app.model(fields.string("model")?).await?;
    let list = fields.list("tokens")?;
    let list = list.ok_or_else(|| ApiError::parameter("tokens", "is required"))?;
    fields.finish(&[], &[], app.options.lenient)?;
    let vocab = model.model.facts().vocab_size as u64;
    let id = |value: &Value| value.as_u64().filter(|id| *id < vocab).map(|id| id as u32);
    let ids: Option<Vec<u32>> = list.iter().map(id).collect();
    let wrong = || ApiError::parameter("tokens", format!("must be token ids below {vocab}"));
    let ids = ids.ok_or_else(wrong)?;
    let text = model.model.tokenizer()?.decode(&ids, true);
    Ok(Json(json!({ "content": text })))
}

/// `POST /apply-template`
pub(crate) async fn apply_template(
    State(app): State<Arc<App>>,
    body: Bytes,
) -> Result<Json<Value>, ApiError> {
    let mut fields = Fields::parse(&body)?;
    let model = app.model(fields.string("model")?).await?;
    let messages = fields.list("messages")?;
    let messages = messages.ok_or_else(|| ApiError::parameter("messages", "is required"))?;
    let tools = fields.list("tools")?.unwrap_or_default();
    let variables = fields.object("chat_template_kwargs")?.unwrap_or_default();
    let answer = fields.boolean("add_generation_prompt")?.unwrap_or(true);
    fields.finish(&[], &[], app.options.lenient)?;
    let prompt = ChatPrompt::new(messages, tools, variables)?;
    let rendered = prompt.render(&model, answer)?;
    Ok(Json(json!({ "prompt": rendered.text() })))
}
