//! The routes of conversations.

use crate::access::Owner;
use crate::app::App;
use crate::chat_prompt::ChatPrompt;
use crate::conversation::{Conversation, Turn};
use crate::conversations::Conversations;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::registry::LoadedModel;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::{Extension, Json};
use kvark::engine::BranchCells;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Where a conversation is cut.
enum Cut {
    /// After this many turns.
    Turn(usize),
    /// After this many tokens.
    Token(usize),
}

/// Reads `at`: a turn (`{"turn": 2}` or a number: that many turns stay), or a token (`{"token": 120}`). `None` if it is left
/// out: everything stays.
fn read_at(fields: &mut Fields) -> Result<Option<Cut>, ApiError> {
    let wrong = || ApiError::parameter("at", "must be {\"turn\": N} or {\"token\": N}");
    let number = |value: &Value| usize::try_from(value.as_u64()?).ok();
    let cut = match fields.value("at") {
        None => return Ok(None),
        Some(value @ Value::Number(_)) => number(&value).map(Cut::Turn),
        Some(Value::Object(map)) if map.len() == 1 => match (map.get("turn"), map.get("token")) {
            (Some(turn), None) => number(turn).map(Cut::Turn),
            (None, Some(token)) => number(token).map(Cut::Token),
            _ => None,
        },
        Some(_) => None,
    };
    cut.map(Some).ok_or_else(wrong)
}

/// The conversation cut at a turn or a token. An answer that is being generated is cut where it is.
fn cut(
    it: &Conversation,
    at: Option<Cut>,
    decode: impl FnOnce(&[u32]) -> String,
) -> Result<Conversation, ApiError> {
    let (turns, tokens) = (it.messages.len(), it.tokens.len());
    match at {
        Some(Cut::Turn(n)) if n <= turns => Ok(it.cut_at_turn(n)),
        Some(Cut::Turn(_)) => Err(ApiError::parameter(
            "at",
            format!("there are {turns} turns"),
        )),
        Some(Cut::Token(n)) if n > tokens => Err(ApiError::parameter(
            "at",
            format!("there are {tokens} tokens"),
        )),
        Some(Cut::Token(n)) => Ok(it.cut_at_token(n, decode)),
        None => Ok(it.cut_at_token(tokens, decode)),
    }
}

/// The text of an answer's tokens.
fn decoder(model: &LoadedModel) -> impl FnOnce(&[u32]) -> String {
    |ids| match model.model.tokenizer() {
        Ok(tokenizer) => tokenizer.decode(ids, false),
        Err(_) => String::new(),
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
    Extension(owner): Extension<Owner>,
    body: Bytes,
) -> Result<Json<Value>, ApiError> {
    let mut fields = body_fields(&body)?;
    let name = fields.string("model")?;
    let messages = fields.list("messages")?.unwrap_or_default();
    let prompt = ChatPrompt::new(messages, vec![], Map::new())?;
    fields.finish(&["metadata"], &[], app.options.lenient)?;
    let model = app.model(name).await?;
    let rendered = model.clone();
    let (tokens, messages) = app
        .blocking(move |_| given_turns(&rendered, &prompt))
        .await?;
    let cells = BranchCells::default();
    app.prefill(&model, &tokens, cells.clone());
    Ok(Json(app.conversations.add(Conversation {
        id: Conversations::new_id()?,
        owner,
        parent: None,
        at: 0,
        model: model.name.clone(),
        model_bytes: app.conversations.bytes_of(&model.name),
        tokens: Arc::new(tokens),
        cells,
        messages,
        answering: false,
        created: jiff::Timestamp::now().as_second(),
    })))
}

/// The tokens of a given history, and its turns.
fn given_turns(
    model: &LoadedModel,
    prompt: &ChatPrompt,
) -> Result<(Vec<u32>, Vec<Turn>), ApiError> {
    if prompt.messages.is_empty() {
        return Ok((vec![], vec![]));
    }
    let tokenizer = model.model.tokenizer()?;
    prompt.check_length(model)?;
    let tokens = tokenizer.encode_prompt(&prompt.render(model, false)?);
    let last = prompt.messages.len() - 1;
    let mut before = 0;
    let mut turns = vec![];
    for (index, message) in prompt.messages.iter().enumerate() {
        let part = ChatPrompt {
            messages: prompt.messages[..=index].to_vec(),
            ..ChatPrompt::default()
        };
        let next = prompt.messages.get(index + 1);
        let answered = next.is_some_and(|next| next["role"] == "assistant");
        // Only the whole is tokenised. A template may refuse a beginning that ends with this role; then the turn has no tokens
        // of its own.
        let end = match part.render(model, answered) {
            _ if index == last => tokens.len(),
            Ok(rendered) => {
                let part = tokenizer.encode_prompt(&rendered);
                kvark::generate::common_prefix_len(&part, &tokens)
            }
            Err(_) => before,
        };
        before = end.max(before);
        turns.push(Turn {
            message: message.clone(),
            end: before,
            generated: false,
            partial: false,
        });
    }
    Ok((tokens, turns))
}

/// `GET /v1/kvark/conversations`
pub(crate) async fn list(
    State(app): State<Arc<App>>,
    Extension(owner): Extension<Owner>,
) -> Json<Value> {
    Json(json!({ "object": "list", "data": app.conversations.objects(&owner) }))
}

/// `GET /v1/kvark/conversations/{id}`
pub(crate) async fn get(
    State(app): State<Arc<App>>,
    Extension(owner): Extension<Owner>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let object = app
        .conversations
        .with(&id, &owner, |table, n| table.object(n));
    Ok(Json(object?))
}

/// `POST /v1/kvark/conversations/{id}/fork`
pub(crate) async fn fork(
    State(app): State<Arc<App>>,
    Extension(owner): Extension<Owner>,
    Path(id): Path<String>,
    body: Bytes,
) -> Result<Json<Value>, ApiError> {
    let mut fields = body_fields(&body)?;
    let at = read_at(&mut fields)?;
    fields.finish(&[], &[], app.options.lenient)?;
    let model = app.model(Some(app.conversations.model_of(&id, &owner)?));
    let model = model.await?;
    let forked = app.conversations.with(&id, &owner, |table, number| {
        let cut = cut(&table.current(number), at, decoder(&model))?;
        Ok::<_, ApiError>(Conversation {
            id: Conversations::new_id()?,
            parent: Some(number),
            at: cut.tokens.len(),
            created: jiff::Timestamp::now().as_second(),
            ..cut
        })
    })??;
    Ok(Json(app.conversations.add(forked)))
}

/// `POST /v1/kvark/conversations/{id}/rewind`
pub(crate) async fn rewind(
    State(app): State<Arc<App>>,
    Extension(owner): Extension<Owner>,
    Path(id): Path<String>,
    body: Bytes,
) -> Result<Json<Value>, ApiError> {
    let mut fields = body_fields(&body)?;
    let at = read_at(&mut fields)?;
    fields.finish(&[], &[], app.options.lenient)?;
    let model = app.model(Some(app.conversations.model_of(&id, &owner)?));
    let model = model.await?;
    app.conversations.wait_until_idle(&id, &owner).await?;
    let rewound = app
        .conversations
        .change(&id, &owner, |it| cut(it, at, decoder(&model)));
    Ok(Json(rewound?))
}

/// `POST /v1/kvark/conversations/{id}/keep`: removes all other conversations of the same tree.
pub(crate) async fn keep(
    State(app): State<Arc<App>>,
    Extension(owner): Extension<Owner>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    Ok(Json(app.conversations.keep(&id, &owner)?))
}

/// `DELETE /v1/kvark/conversations/{id}`: forks of it stay.
pub(crate) async fn delete(
    State(app): State<Arc<App>>,
    Extension(owner): Extension<Owner>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    app.conversations.delete(&id, &owner)?;
    Ok(Json(
        json!({ "id": id, "object": "kvark.conversation", "deleted": true }),
    ))
}
