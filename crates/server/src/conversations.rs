//! Conversations on the wire: exact token ids, forked, rewound and kept.

use crate::conversation::{Conversation, Turn};
use crate::conversation_store::ConversationStore;
use crate::error::ApiError;
use crate::options::ServerOptions;
use crate::registry::lock;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap, HashSet};
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
    pub(crate) fn stored(&self, all: &BTreeMap<u64, Conversation>, number: u64) {
        if let Some((store, it)) = self.store.as_ref().zip(all.get(&number)) {
            store.save(number, it);
        }
    }

    /// Removes conversations. Forks of them stay.
    pub(crate) fn remove(&self, all: &mut BTreeMap<u64, Conversation>, gone: impl Fn(u64) -> bool) {
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

    pub(crate) fn with<T>(
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

    pub(crate) fn add(&self, conversation: Conversation) -> String {
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
    pub(crate) fn bytes_of(&self, model: &str) -> u64 {
        self.model_bytes.get(model).copied().unwrap_or(0)
    }

    /// The objects of all conversations.
    pub(crate) fn objects(&self) -> Vec<Value> {
        let all = lock(&self.all);
        all.keys().map(|number| object(&all, *number)).collect()
    }

    pub(crate) fn object(&self, id: &str) -> Result<Value, ApiError> {
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
