//! The routes of conversations.

use crate::app::App;
use crate::chat_prompt::ChatPrompt;
use crate::conversation::{Conversation, Turn};
use crate::error::ApiError;
use crate::fields::Fields;
use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, State};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Reads `at`: a turn (`{"turn": 2}` or a number: that many turns stay), or a token (`{"token": 120}`). Everything if it is
/// left out.
fn read_at(fields: &mut Fields, it: &Conversation) -> Result<usize, ApiError> {
    let turn_end = |n: u64| match usize::try_from(n) {
        Ok(0) => Ok(0),
        Ok(n) if n <= it.messages.len() => Ok(it.messages[n - 1].end),
        _ => Err(ApiError::parameter(
            "at",
            format!("there are {} turns", it.messages.len()),
        )),
    };
    let token = |n: u64| match usize::try_from(n) {
        Ok(n) if n <= it.tokens.len() => Ok(n),
        _ => Err(ApiError::parameter(
            "at",
            format!("there are {} tokens", it.tokens.len()),
        )),
    };
    let wrong = || ApiError::parameter("at", "must be {\"turn\": N} or {\"token\": N}");
    match fields.value("at") {
        None => Ok(it.tokens.len()),
        Some(Value::Number(n)) => turn_end(n.as_u64().ok_or_else(wrong)?),
        Some(Value::Object(map)) if map.len() == 1 => {
            match (
                map.get("turn").map(Value::as_u64),
                map.get("token").map(Value::as_u64),
            ) {
                (Some(Some(n)), None) => turn_end(n),
                (None, Some(Some(n))) => token(n),
                _ => Err(wrong()),
            }
        }
        Some(_) => Err(wrong()),
    }
}

fn body_fields(body: &Bytes) -> Result<Fields, ApiError> {
    match body.is_empty() {
        true => Fields::parse(&Bytes::from_static(b"{}")),
        false => Fields::parse(body),
    }
}

/// `POST /v1/kvark/conversations`
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    body: Bytes,
) -> Result<Json<Value>, ApiError> {
    let mut fields = body_fields(&body)?;
    let name = fields.string("model")?;
    let messages = fields.list("messages")?.unwrap_or_default();
    let prompt = ChatPrompt::new(messages, vec![], Map::new())?;
    fields.finish(&["metadata"], &[], app.options.lenient)?;
    let model = app.model(name).await?;
    let (tokens, end) = match prompt.messages.is_empty() {
        true => (vec![], 0),
        false => {
            let rendered = prompt.render(&model, false)?;
            let tokens = model.model.tokenizer()?.encode_prompt(&rendered);
            let end = tokens.len();
            (tokens, end)
        }
    };
    // Turns of a given history are counted together: only the whole is tokenised.
    let last = prompt.messages.len().saturating_sub(1);
    let turn = |(index, message): (usize, &Value)| Turn {
        message: message.clone(),
        end: if index == last { end } else { 0 },
    };
    let mut messages: Vec<Turn> = prompt.messages.iter().enumerate().map(turn).collect();
    for (index, turn) in messages.iter_mut().enumerate().take(last) {
        let part = ChatPrompt {
            messages: prompt.messages[..=index].to_vec(),
            ..ChatPrompt::default()
        };
        // A template may refuse a beginning that ends with this role; then the turn has no tokens of its own.
        if let Ok(rendered) = part.render(&model, false) {
            let part = model.model.tokenizer()?.encode_prompt(&rendered);
            turn.end = kvark::generate::common_prefix_len(&part, &tokens);
        }
    }
    app.prefill(&model, &tokens);
    let id = app.conversations.add(Conversation {
        parent: None,
        at: 0,
        model: model.name.clone(),
        model_bytes: app.conversations.bytes_of(&model.name),
        tokens,
        messages,
        created: jiff::Timestamp::now().as_second(),
    });
    Ok(Json(app.conversations.object(&id)?))
}

/// `GET /v1/kvark/conversations`
pub(crate) async fn list(State(app): State<Arc<App>>) -> Json<Value> {
    Json(json!({ "object": "list", "data": app.conversations.objects() }))
}

/// `GET /v1/kvark/conversations/{id}`
pub(crate) async fn get(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    Ok(Json(app.conversations.object(&id)?))
}

/// `POST /v1/kvark/conversations/{id}/fork`
pub(crate) async fn fork(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    body: Bytes,
) -> Result<Json<Value>, ApiError> {
    let mut fields = body_fields(&body)?;
    let forked = app.conversations.with(&id, |all, number| {
        let it = &all[&number];
        let at = read_at(&mut fields, it)?;
        Ok::<_, ApiError>(Conversation {
            parent: Some(number),
            at,
            created: jiff::Timestamp::now().as_second(),
            ..it.cut(at)
        })
    })??;
    fields.finish(&[], &[], app.options.lenient)?;
    let id = app.conversations.add(forked);
    Ok(Json(app.conversations.object(&id)?))
}

/// `POST /v1/kvark/conversations/{id}/rewind`
pub(crate) async fn rewind(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    body: Bytes,
) -> Result<Json<Value>, ApiError> {
    let mut fields = body_fields(&body)?;
    app.conversations.with(&id, |all, number| {
        let it = all.get_mut(&number).expect("it is there");
        let at = read_at(&mut fields, it)?;
        fields.finish(&[], &[], app.options.lenient)?;
        *it = it.cut(at);
        app.conversations.stored(all, number);
        Ok::<_, ApiError>(())
    })??;
    Ok(Json(app.conversations.object(&id)?))
}

/// `POST /v1/kvark/conversations/{id}/keep`: removes all other conversations of the same tree.
pub(crate) async fn keep(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    app.conversations.with(&id, |all, number| {
        let root = |all: &BTreeMap<u64, Conversation>, mut id: u64| {
            while let Some(parent) = all.get(&id).and_then(|c| c.parent) {
                id = parent;
            }
            id
        };
        let own = root(all, number);
        let tree: Vec<u64> = all
            .keys()
            .copied()
            .filter(|id| root(all, *id) == own)
            .collect();
        let gone = |id| id != number && tree.contains(&id);
        app.conversations.remove(all, gone);
    })?;
    Ok(Json(app.conversations.object(&id)?))
}

/// `DELETE /v1/kvark/conversations/{id}`: forks of it stay.
pub(crate) async fn delete(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    app.conversations.with(&id, |all, number| {
        app.conversations.remove(all, |id| id == number);
    })?;
    Ok(Json(
        json!({ "id": id, "object": "kvark.conversation", "deleted": true }),
    ))
}
