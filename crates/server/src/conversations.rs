//! Conversations on the wire: exact token ids, forked, rewound and kept.

use crate::app::App;
use crate::chat_prompt::ChatPrompt;
use crate::conversation_store::ConversationStore;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::options::ServerOptions;
use crate::registry::lock;
use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, State};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// The largest number of conversations that a server holds; the oldest leaf goes when there are more.
const MAX_CONVERSATIONS: usize = 10_000;

/// The conversations of a server.
pub(crate) struct Conversations {
    all: Mutex<BTreeMap<u64, Conversation>>,
    next: AtomicU64,
    /// Keeps them on disk.
    store: Option<ConversationStore>,
    /// The bytes of each model's file, by the model's name.
    model_bytes: HashMap<String, u64>,
}

#[derive(Clone)]
pub(crate) struct Conversation {
    pub(crate) parent: Option<u64>,
    /// The number of tokens that it had when it was forked.
    pub(crate) at: usize,
    pub(crate) model: String,
    /// The bytes of the model's file: tokens mean nothing to another one.
    pub(crate) model_bytes: u64,
    /// The exact tokens so far, those of a running answer included.
    pub(crate) tokens: Vec<u32>,
    pub(crate) messages: Vec<Turn>,
    pub(crate) created: i64,
}

#[derive(Clone)]
pub(crate) struct Turn {
    pub(crate) message: Value,
    /// The number of tokens up to its end.
    pub(crate) end: usize,
}

/// What a completion continues.
pub(crate) struct Continued {
    pub(crate) model: String,
    pub(crate) tokens: Vec<u32>,
    pub(crate) messages: Vec<Value>,
    /// Whether the tokens end inside an answer, which the completion continues.
    pub(crate) partial: bool,
}

impl Conversations {
    /// The conversations of a server: those that were stored beside its prefixes, if it has any on disk.
    pub(crate) fn new(options: &ServerOptions) -> Conversations {
        let bytes = |path: &std::path::Path| std::fs::metadata(path).map_or(0, |file| file.len());
        let models = options.models.iter();
        let model_bytes: HashMap<String, u64> = models
            .map(|(name, path)| (name.clone(), bytes(path)))
            .collect();
        let folder = options.cache_disk.as_ref();
        let folder = folder.map(|(prefixes, _)| prefixes.join("conversations"));
        let opened = folder.map(|folder| (ConversationStore::open(&folder), folder));
        let (store, mut all) = match opened {
            Some((Ok((store, all)), _)) => (Some(store), all),
            Some((Err(error), folder)) => {
                let folder = folder.display();
                tracing::warn!(%folder, %error, "conversations are not stored");
                (None, BTreeMap::new())
            }
            None => (None, BTreeMap::new()),
        };
        let next = all.keys().next_back().copied().unwrap_or(0);
        // Those of other models and of other files stay on disk.
        all.retain(|_, it| model_bytes.get(&it.model) == Some(&it.model_bytes));
        let known: HashSet<u64> = all.keys().copied().collect();
        for it in all.values_mut() {
            it.parent = it.parent.filter(|parent| known.contains(parent));
        }
        if !all.is_empty() {
            tracing::info!(conversations = all.len(), "restored");
        }
        Conversations {
            all: Mutex::new(all),
            next: AtomicU64::new(next),
            store,
            model_bytes,
        }
    }

    /// Stores a conversation as it is now.
    fn stored(&self, all: &BTreeMap<u64, Conversation>, number: u64) {
        if let Some((store, it)) = self.store.as_ref().zip(all.get(&number)) {
            store.save(number, it);
        }
    }

    /// Removes conversations. Forks of them stay.
    fn remove(&self, all: &mut BTreeMap<u64, Conversation>, gone: impl Fn(u64) -> bool) {
        let numbers: Vec<u64> = all.keys().copied().filter(|id| gone(*id)).collect();
        for number in &numbers {
            all.remove(number);
            if let Some(store) = &self.store {
                store.remove(*number);
            }
        }
        let orphan = |c: &Conversation| c.parent.is_some_and(|parent| numbers.contains(&parent));
        let orphans = all.iter_mut().filter(|(_, c)| orphan(c));
        let orphans: Vec<u64> = orphans
            .map(|(id, child)| {
                child.parent = None;
                *id
            })
            .collect();
        orphans.iter().for_each(|id| self.stored(all, *id));
    }

    fn with<T>(
        &self,
        id: &str,
        use_it: impl FnOnce(&mut BTreeMap<u64, Conversation>, u64) -> T,
    ) -> Result<T, ApiError> {
        let mut all = lock(&self.all);
        let number = id.strip_prefix("conv-").and_then(|n| n.parse().ok());
        match number.filter(|number| all.contains_key(number)) {
            Some(number) => Ok(use_it(&mut all, number)),
            None => Err(ApiError::not_found(format!(
                "there is no conversation {id:?}"
            ))),
        }
    }

    fn add(&self, conversation: Conversation) -> String {
        let number = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        let mut all = lock(&self.all);
        if all.len() >= MAX_CONVERSATIONS {
            let is_leaf = |id: &u64| all.values().all(|c| c.parent != Some(*id));
            if let Some(oldest) = all.keys().copied().find(is_leaf) {
                self.remove(&mut all, |id| id == oldest);
            }
        }
        all.insert(number, conversation);
        self.stored(&all, number);
        format!("conv-{number}")
    }

    /// What a completion of this conversation continues.
    pub(crate) fn continued(&self, id: &str) -> Result<Continued, ApiError> {
        self.with(id, |all, number| {
            let it = &all[&number];
            Continued {
                model: it.model.clone(),
                tokens: it.tokens.clone(),
                messages: it
                    .messages
                    .iter()
                    .map(|turn| turn.message.clone())
                    .collect(),
                partial: it.messages.last().map_or(0, |turn| turn.end) < it.tokens.len(),
            }
        })
    }

    /// Sets the tokens and messages that a completion begins with.
    pub(crate) fn begin_turn(&self, id: &str, tokens: &[u32], messages: &[Value]) {
        _ = self.with(id, |all, number| {
            let it = all.get_mut(&number).expect("it is there");
            it.tokens = tokens.to_vec();
            for message in messages.iter().skip(it.messages.len()) {
                it.messages.push(Turn {
                    message: message.clone(),
                    end: tokens.len(),
                });
            }
        });
    }

    /// Appends a token of the running answer.
    pub(crate) fn push_token(&self, id: &str, token: u32) {
        // The conversation may have been deleted meanwhile.
        _ = self.with(id, |all, number| {
            all.get_mut(&number)
                .expect("it is there")
                .tokens
                .push(token);
        });
    }

    /// Ends the running answer.
    pub(crate) fn end_turn(&self, id: &str, message: Value) {
        _ = self.with(id, |all, number| {
            let it = all.get_mut(&number).expect("it is there");
            let end = it.tokens.len();
            // An answer that goes on after a cut is one turn.
            match it.messages.last_mut() {
                Some(last) if last.message["role"] == "assistant" => {
                    let text = |message: &Value| {
                        message["content"].as_str().unwrap_or_default().to_owned()
                    };
                    last.message["content"] = (text(&last.message) + &text(&message)).into();
                    last.end = end;
                }
                _ => it.messages.push(Turn { message, end }),
            }
            self.stored(all, number);
        });
    }

    /// The bytes of a model's file.
    fn bytes_of(&self, model: &str) -> u64 {
        self.model_bytes.get(model).copied().unwrap_or(0)
    }

    fn object(&self, id: &str) -> Result<Value, ApiError> {
        self.with(id, |all, number| object(all, number))
    }
}

/// The conversation object.
fn object(all: &BTreeMap<u64, Conversation>, number: u64) -> Value {
    let it = &all[&number];
    let name = |number: u64| format!("conv-{number}");
    let mut start = 0;
    let turns = it.messages.iter().enumerate().map(|(index, turn)| {
        let tokens = turn.end - start;
        start = turn.end;
        json!({
            "index": index,
            "role": turn.message["role"],
            "content": turn.message["content"],
            "tokens": tokens,
            "end": turn.end,
        })
    });
    let turns: Vec<Value> = turns.collect();
    let children = all.iter().filter(|(_, c)| c.parent == Some(number));
    let children: Vec<Value> = children
        .map(|(id, child)| json!({ "id": name(*id), "at": child.at, "tokens": child.tokens.len() }))
        .collect();
    json!({
        "id": name(number),
        "object": "kvark.conversation",
        "created": it.created,
        "model": it.model,
        "parent": it.parent.map(name),
        "at": it.at,
        "tokens": it.tokens.len(),
        "turns": turns,
        "children": children,
    })
}

/// The conversation cut after its first tokens.
fn cut(conversation: &Conversation, at: usize) -> Conversation {
    let mut cut = conversation.clone();
    cut.tokens.truncate(at);
    cut.messages.retain(|turn| turn.end <= at);
    cut
}

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
    let all = lock(&app.conversations.all);
    let data: Vec<Value> = all.keys().map(|number| object(&all, *number)).collect();
    Json(json!({ "object": "list", "data": data }))
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
            ..cut(it, at)
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
        *it = cut(it, at);
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
