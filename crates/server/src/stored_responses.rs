//! Stored responses of OpenAI's API. Each is a conversation: a response that goes on from another one is a fork of its conversation, so
//! that nothing is computed again.

use crate::access::Owner;
use crate::app::App;
use crate::conversation::{Conversation, StoredResponse};
use crate::conversations::{Conversations, Table};
use crate::error::ApiError;
use axum::extract::{Path, Query, State};
use axum::{Extension, Json};
use kvark::engine::BranchCells;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

/// The beginnings of the ids of responses and of their conversations.
const RESPONSE: &str = "resp_";
const CONVERSATION: &str = "conv-";
/// The most items of a page.
const MAX_ITEMS: usize = 100;

/// The id of a response's conversation.
fn conversation_id(response: &str) -> String {
    let hex = response.strip_prefix(RESPONSE).unwrap_or(response);
    format!("{CONVERSATION}{hex}")
}

fn no_response(id: &str) -> ApiError {
    ApiError::not_found(format!("there is no response {id:?}"))
}

/// The conversation of a response.
fn find(app: &App, id: &str, owner: &Owner) -> Result<Conversation, ApiError> {
    let id_of = conversation_id(id);
    let found = app
        .conversations
        .with(&id_of, owner, |table, number| table.current(number));
    let found = found.map_err(|_| no_response(id))?;
    match found.response {
        Some(_) => Ok(found),
        None => Err(no_response(id)),
    }
}

/// The messages of a response and before it, without the system message that it was asked for with.
pub(crate) fn messages(app: &App, id: &str, owner: &Owner) -> Result<Vec<Value>, ApiError> {
    let found = find(app, id, owner)?;
    Ok(found.messages_after_instructions())
}

/// A response that is to be generated in a conversation of its own.
pub(crate) struct ResponseTurn {
    app: Arc<App>,
    owner: Owner,
    pub(crate) conversation: String,
    /// Whether the conversation stays.
    keeps: bool,
    ended: bool,
}

/// The request of a response.
pub(crate) struct ResponseInput {
    pub(crate) model: String,
    pub(crate) previous: Option<String>,
    pub(crate) instructions: Option<String>,
    /// The new items, and the messages that they are.
    pub(crate) items: Vec<Value>,
    pub(crate) messages: Vec<Value>,
    /// Whether the response can be asked for later.
    pub(crate) store: bool,
}

impl ResponseTurn {
    /// Makes the conversation of a response. Returns the messages that come new to it: with a previous response of the same model and the
    /// same instructions it holds the tokens of that one.
    pub(crate) fn begin(
        app: &Arc<App>,
        owner: &Owner,
        input: ResponseInput,
    ) -> Result<(ResponseTurn, Vec<Value>), ApiError> {
        let previous = match &input.previous {
            None => None,
            Some(id) => {
                let of = |error: ApiError| error.of_parameter("previous_response_id");
                let found = find(app, id, owner).map_err(of)?;
                if found.response.as_ref().is_none_or(|it| it.object.is_null()) {
                    let busy = format!("the response {id:?} is still generating");
                    return Err(ApiError::conflict("response_busy", busy));
                }
                Some(found)
            }
        };
        let mut messages = input.messages;
        let system = input.instructions.as_ref();
        let system = system.map(|text| json!({ "role": "system", "content": text }));
        let goes_on = previous.as_ref().is_some_and(|it| {
            let same = |before: &StoredResponse| before.instructions == input.instructions;
            it.model == input.model && it.response.as_ref().is_some_and(same)
        });
        if !goes_on {
            let known = previous.iter();
            let known = known.flat_map(Conversation::messages_after_instructions);
            messages = system.into_iter().chain(known).chain(messages).collect();
        }
        let number = previous.as_ref().and_then(|it| {
            let held = app.conversations.with(&it.id, owner, |_, number| number);
            held.ok()
        });
        let id = Conversations::new_id()?;
        let path = app.models.path(&input.model)?;
        let base = previous.filter(|_| goes_on);
        let conversation = Conversation {
            id: id.clone(),
            owner: owner.clone(),
            parent: number,
            at: base.as_ref().map_or(0, |it| it.tokens.len()),
            model_bytes: app.conversations.bytes_of(&input.model, &path),
            model: input.model,
            approximate: base.as_ref().is_some_and(|it| it.approximate),
            moved: None,
            answering: false,
            // Rows of responses are kept as those of other requests are: nobody says when a response is no longer needed.
            cells: BranchCells::default(),
            created: jiff::Timestamp::now().as_second(),
            response: Some(StoredResponse {
                instructions: input.instructions,
                input: input.items,
                object: Value::Null,
            }),
            tokens: base
                .as_ref()
                .map_or_else(Arc::default, |it| it.tokens.clone()),
            messages: base.map_or(vec![], |it| it.messages),
        };
        app.conversations.add(conversation);
        let turn = ResponseTurn {
            app: app.clone(),
            owner: owner.clone(),
            conversation: id,
            keeps: input.store,
            ended: false,
        };
        Ok((turn, messages))
    }

    /// The id of the response.
    pub(crate) fn id(&self) -> String {
        self.conversation.replacen(CONVERSATION, RESPONSE, 1)
    }

    /// Stores the response.
    pub(crate) fn end(&mut self, object: &Value) {
        let conversations = &self.app.conversations;
        conversations.end_response(&self.conversation, &self.owner, object);
        self.ended = true;
    }
}

impl Drop for ResponseTurn {
    /// A response that was not wanted, or has no end, leaves no conversation.
    fn drop(&mut self) {
        if !(self.keeps && self.ended) {
            let conversations = &self.app.conversations;
            _ = conversations.delete(&self.conversation, &self.owner);
        }
    }
}

/// `GET /v1/responses/{id}`
pub(crate) async fn get(
    State(app): State<Arc<App>>,
    Extension(owner): Extension<Owner>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let found = find(&app, &id, &owner)?;
    let object = found.response.map(|it| it.object);
    match object.filter(|object| !object.is_null()) {
        Some(object) => Ok(Json(object)),
        None => Err(ApiError::conflict(
            "response_busy",
            format!("the response {id:?} is still generating"),
        )),
    }
}

/// `DELETE /v1/responses/{id}`: responses that went on from it stay.
pub(crate) async fn delete(
    State(app): State<Arc<App>>,
    Extension(owner): Extension<Owner>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let found = find(&app, &id, &owner)?;
    app.conversations.delete(&found.id, &owner)?;
    Ok(Json(
        json!({ "id": id, "object": "response", "deleted": true }),
    ))
}

/// A page of items.
#[derive(Deserialize)]
pub(crate) struct Page {
    after: Option<String>,
    limit: Option<usize>,
    order: Option<String>,
}

/// `GET /v1/responses/{id}/input_items`: all items before its output, the last first unless `order=asc`.
pub(crate) async fn input_items(
    State(app): State<Arc<App>>,
    Extension(owner): Extension<Owner>,
    Path(id): Path<String>,
    Query(page): Query<Page>,
) -> Result<Json<Value>, ApiError> {
    let found = find(&app, &id, &owner)?;
    let items = |table: &mut Table, number| table.response_items(number);
    let mut items = app.conversations.with(&found.id, &owner, items)?;
    for (index, item) in items.iter_mut().enumerate() {
        if item["id"].is_null() {
            item["id"] = format!("item-{id}-{index}").into();
        }
        if item["type"].is_null() {
            item["type"] = "message".into();
        }
    }
    match page.order.as_deref() {
        None | Some("desc") => items.reverse(),
        Some("asc") => {}
        Some(_) => return Err(ApiError::parameter("order", "must be \"asc\" or \"desc\"")),
    }
    if let Some(after) = page.after {
        let at = items.iter().position(|item| item["id"] == after.as_str());
        let at = at.ok_or_else(|| ApiError::parameter("after", "names no item"))?;
        items.drain(..=at);
    }
    let limit = page.limit.unwrap_or(20);
    if !(1..=MAX_ITEMS).contains(&limit) {
        let range = format!("must be between 1 and {MAX_ITEMS}");
        return Err(ApiError::parameter("limit", range));
    }
    let has_more = items.len() > limit;
    items.truncate(limit);
    let id_of = |item: Option<&Value>| item.map_or(Value::Null, |item| item["id"].clone());
    Ok(Json(json!({
        "object": "list",
        "first_id": id_of(items.first()),
        "last_id": id_of(items.last()),
        "has_more": has_more,
        "data": items,
    })))
}
