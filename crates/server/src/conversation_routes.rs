//! The routes of conversations.

use crate::access::Owner;
use crate::app::App;
use crate::body::Body;
use crate::chat_prompt::ChatPrompt;
use crate::conversation::{Conversation, Turn};
use crate::conversations::Conversations;
use crate::error::ApiError;
use crate::registry::LoadedModel;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::{Extension, Json};
use kvark::RuntimeError;
use kvark::engine::{BranchCells, MovedTokens};
use kvark::generate::{Edit, SPLICE_SHARE, common_prefix_len, recomputed};
use kvark::text::Prompt;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// The parameters of a new conversation.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct CreateRequest {
    /// The model; the default one if left out
    model: Option<String>,
    /// The beginning of the conversation
    #[serde(default)]
    #[schemars(with = "Vec<Map<String, Value>>")]
    messages: Vec<Value>,
}

/// The parameters of a cut.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct CutRequest {
    /// Turns (or tokens) that stay; all if left out
    at: Option<Cut>,
}

/// Where a conversation is cut.
#[derive(Deserialize, JsonSchema)]
#[serde(
    untagged,
    deny_unknown_fields,
    expecting = "must be {\"turn\": N} or {\"token\": N}"
)]
#[schemars(inline)]
enum Cut {
    /// After this many turns.
    Turns(usize),
    /// After this many turns.
    Turn { turn: usize },
    /// After this many tokens.
    Token { token: usize },
}

/// The parameters of an edit.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct SpliceRequest {
    /// The first turn that is removed, counted from 0
    from: usize,
    /// The turn after the last one that is removed; the same as from removes none
    to: usize,
    /// The messages in their place; none if left out
    #[serde(default)]
    #[schemars(with = "Vec<Map<String, Value>>")]
    messages: Vec<Value>,
    /// Move the rows of the turns after the edit instead of computing them again: the answers that follow are an approximation
    #[serde(default)]
    approximate: bool,
    /// With approximate: the part of the tokens after the edit that is computed again, its beginning; 0.15 if left out
    #[schemars(range(min = 0.0, max = 1.0))]
    share: Option<f32>,
}

/// The conversation cut at a turn or a token. An answer that is being generated is cut where it is.
fn cut(
    it: &Conversation,
    at: Option<Cut>,
    decode: impl FnOnce(&[u32]) -> String,
) -> Result<Conversation, ApiError> {
    let (turns, tokens) = (it.messages.len(), it.tokens.len());
    match at {
        Some(Cut::Turns(n) | Cut::Turn { turn: n }) if n <= turns => Ok(it.cut_at_turn(n)),
        Some(Cut::Turns(_) | Cut::Turn { .. }) => Err(ApiError::parameter(
            "at",
            format!("there are {turns} turns"),
        )),
        Some(Cut::Token { token: n }) if n > tokens => Err(ApiError::parameter(
            "at",
            format!("there are {tokens} tokens"),
        )),
        Some(Cut::Token { token: n }) => Ok(it.cut_at_token(n, decode)),
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

/// `POST /v1/kvark/conversations`
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    Extension(owner): Extension<Owner>,
    body: Bytes,
) -> Result<Json<Value>, ApiError> {
    let mut body = Body::parse(&body)?;
    let request: CreateRequest = body.read()?;
    let mut prompt = ChatPrompt::new(request.messages, vec![], Map::new())?;
    app.options.volatile.apply(&mut prompt.messages);
    body.finish(&["metadata"], &[], app.options.lenient)?;
    let model = app.model(request.model).await?;
    let rendered = model.clone();
    let (tokens, messages) = app
        .blocking(move |_| given_turns(&rendered, &prompt, &[]))
        .await?;
    let cells = BranchCells::default();
    let path = app.models.path(&model.name)?;
    app.prefill(&model, &tokens, cells.clone(), (false, None));
    Ok(Json(app.conversations.add(Conversation {
        id: Conversations::new_id()?,
        owner,
        parent: None,
        at: 0,
        model: model.name.clone(),
        model_bytes: app.conversations.bytes_of(&model.name, &path),
        tokens: Arc::new(tokens),
        cells,
        messages,
        approximate: false,
        moved: None,
        answering: false,
        created: jiff::Timestamp::now().as_second(),
        response: None,
    })))
}

/// The tokens of a given history, and its turns. The tokens begin with those that are held, if these are the beginning of its text.
fn given_turns(
    model: &LoadedModel,
    prompt: &ChatPrompt,
    held: &[u32],
) -> Result<(Vec<u32>, Vec<Turn>), ApiError> {
    if prompt.messages.is_empty() {
        return Ok((vec![], vec![]));
    }
    let tokenizer = model.model.tokenizer()?;
    prompt.check_length(model)?;
    let encode = |rendered: &Prompt| {
        let exact = (!held.is_empty()).then(|| tokenizer.encode_prompt_after(held, rendered));
        exact
            .flatten()
            .unwrap_or_else(|| tokenizer.encode_prompt(rendered))
    };
    let tokens = encode(&prompt.render(model, false)?);
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
                let part = encode(&rendered);
                common_prefix_len(&part, &tokens)
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
) -> Result<Json<Value>, ApiError> {
    let objects = app.conversations.objects(&owner);
    let data = app.blocking(move |app| with_rungs(app, objects)).await?;
    Ok(Json(json!({ "object": "list", "data": data })))
}

/// The objects of conversations with the rung of the cache on which each lies, as far as its model is loaded.
fn with_rungs(app: &App, objects: Vec<(Value, Arc<Vec<u32>>)>) -> Result<Vec<Value>, ApiError> {
    let mut all: Vec<Value> = objects.iter().map(|(object, _)| object.clone()).collect();
    for model in app.models.loaded() {
        let own = |object: &Value| object["model"] == *model.name;
        let texts = objects.iter().filter(|(object, _)| own(object));
        let texts: Vec<_> = texts.map(|(_, tokens)| tokens.clone()).collect();
        if texts.is_empty() {
            continue;
        }
        let rungs = model.engine().rungs(texts)?;
        let own = all.iter_mut().filter(|object| own(object));
        for (object, (rung, tokens)) in own.zip(rungs) {
            object["cache"] = json!({ "rung": rung, "tokens": tokens });
        }
    }
    Ok(all)
}

/// `GET /v1/kvark/conversations/{id}`
pub(crate) async fn get(
    State(app): State<Arc<App>>,
    Extension(owner): Extension<Owner>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let object = app.conversations.with(&id, &owner, |table, n| {
        (table.object(n), table.current(n).tokens)
    })?;
    let objects = app.blocking(move |app| with_rungs(app, vec![object]));
    Ok(Json(objects.await?.swap_remove(0)))
}

/// `POST /v1/kvark/conversations/{id}/fork`
pub(crate) async fn fork(
    State(app): State<Arc<App>>,
    Extension(owner): Extension<Owner>,
    Path(id): Path<String>,
    body: Bytes,
) -> Result<Json<Value>, ApiError> {
    let CutRequest { at } = Body::read_all(&body, &app.options)?;
    let model = app.conversations.model_of(&id, &owner)?;
    let model = app.model(Some(model)).await?;
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
    let CutRequest { at } = Body::read_all(&body, &app.options)?;
    let model = app.conversations.model_of(&id, &owner)?;
    let model = app.model(Some(model)).await?;
    app.conversations.wait_until_idle(&id, &owner).await?;
    let rewound = app
        .conversations
        .change(&id, &owner, |it| cut(it, at, decoder(&model)));
    Ok(Json(rewound?))
}

/// `POST /v1/kvark/conversations/{id}/splice`: removes turns from the middle and puts others in their place. The turns after them are
/// computed again; with `approximate`, the rows of most of their tokens are moved.
pub(crate) async fn splice(
    State(app): State<Arc<App>>,
    Extension(owner): Extension<Owner>,
    Path(id): Path<String>,
    body: Bytes,
) -> Result<Json<Value>, ApiError> {
    let request: SpliceRequest = Body::read_all(&body, &app.options)?;
    let SpliceRequest {
        from,
        to,
        messages,
        approximate,
        share,
    } = request;
    let share = share.unwrap_or(SPLICE_SHARE);
    if !(0.0..=1.0).contains(&share) {
        return Err(ApiError::parameter("share", "must be between 0 and 1"));
    }
    let mut new = ChatPrompt::new(messages, vec![], Map::new())?.messages;
    app.options.volatile.apply(&mut new);
    let model = app.conversations.model_of(&id, &owner)?;
    let model = app.model(Some(model)).await?;
    app.conversations.wait_until_idle(&id, &owner).await?;
    let (rendered, asked, user) = (model.clone(), id.clone(), owner.clone());
    let splice = move |app: &App| {
        let (mut kept, mut moved) = (0, None);
        let changed = app.conversations.change(&asked, &user, |it| {
            let edited = spliced(&rendered, it, from..to, new)?;
            kept = common_prefix_len(&it.tokens, &edited.tokens);
            moved = approximate
                .then(|| moved_tokens(it, &edited, share))
                .flatten();
            Ok(Conversation {
                approximate: it.approximate || moved.is_some(),
                moved: moved.clone().map(Arc::new),
                ..edited
            })
        })?;
        let edited = app
            .conversations
            .with(&asked, &user, |table, n| table.current(n))?;
        Ok((changed, edited, kept, moved))
    };
    if approximate {
        let engine = model.clone();
        let refused = |error: RuntimeError| ApiError::parameter("approximate", error.to_string());
        let check = move |_: &App| engine.engine().check_splice().map_err(refused);
        app.blocking(check).await?;
    }
    let (mut object, edited, kept, moved) = app.blocking(splice).await?;
    let count = moved
        .as_ref()
        .map_or(0, |moved| moved.text.len() - moved.from);
    object["kept_tokens"] = kept.into();
    object["computed_tokens"] = (edited.tokens.len() - kept - count).into();
    object["approximate_tokens"] = count.into();
    let cells = edited.cells.clone();
    app.prefill(&model, &edited.tokens, cells, (edited.approximate, moved));
    Ok(Json(object))
}

/// The tokens after an edit whose rows are moved: those that both texts have, but for the first `share` of them, which see the most of what
/// was edited, and the last one of the text, which is always computed.
fn moved_tokens(before: &Conversation, after: &Conversation, share: f32) -> Option<MovedTokens> {
    let edit = Edit::between(&before.tokens, &after.tokens);
    let again = recomputed(edit.after, share);
    let (from, at) = (edit.removed.end + again, edit.inserted.end + again);
    let last = after.tokens.len().checked_sub(1)?;
    let count = (edit.after - again).min(last.saturating_sub(at));
    (count > 0).then(|| MovedTokens {
        text: before.tokens[..from + count].to_vec(),
        from,
        at,
    })
}

/// The conversation with other messages in the place of these turns. The turns before them keep their exact tokens.
fn spliced(
    model: &LoadedModel,
    it: &Conversation,
    turns: std::ops::Range<usize>,
    new: Vec<Value>,
) -> Result<Conversation, ApiError> {
    let count = it.messages.len();
    for (name, turn, least) in [("from", turns.start, 0), ("to", turns.end, turns.start)] {
        if turn > count || turn < least {
            let reason = format!("must be {least} to {count}: there are {count} turns");
            return Err(ApiError::parameter(name, reason));
        }
    }
    let mut edited = it.cut_at_turn(turns.start);
    let before = edited.messages.iter().map(|turn| turn.message.clone());
    let after = it.messages[turns.end..]
        .iter()
        .map(|turn| turn.message.clone());
    let prompt = ChatPrompt {
        messages: before.chain(new).chain(after).collect(),
        ..ChatPrompt::default()
    };
    let (tokens, given) = given_turns(model, &prompt, &edited.tokens)?;
    // A template that renders the turns before otherwise than they were generated changes their tokens.
    let same = common_prefix_len(&edited.tokens, &tokens);
    for turn in &mut edited.messages {
        turn.end = turn.end.min(same);
    }
    edited.messages.extend(given.into_iter().skip(turns.start));
    if let Some(last) = edited.messages.last_mut() {
        last.end = tokens.len();
    }
    edited.tokens = Arc::new(tokens);
    Ok(edited)
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
