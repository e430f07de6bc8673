//! Conversations on the wire: exact token ids, forked, rewound and kept. One completion at a time runs in each.

use crate::access::Owner;
use crate::app::App;
use crate::conversation::Conversation;
use crate::conversation_store::ConversationStore;
use crate::error::ApiError;
use crate::options::ServerOptions;
use crate::registry::lock;
use kvark::engine::RequestHandle;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Notify;

/// The largest number of conversations that a server holds; the oldest leaf goes when there are more.
const MAX_CONVERSATIONS: usize = 10_000;

/// The largest number of stored responses; the oldest one goes when there are more. An agent makes many, and each holds all its tokens.
const MAX_RESPONSES: usize = 256;

/// The longest time that a call waits for the end of a completion in its conversation.
const IDLE_TIME: Duration = Duration::from_secs(1);

/// The conversations of a server.
pub(crate) struct Conversations {
    table: Mutex<Table>,
    /// Keeps them on disk.
    store: Option<ConversationStore>,
    /// The bytes of each model's file, by the model's name.
    model_bytes: HashMap<String, u64>,
    /// Notified when a completion ends.
    ended: Notify,
}

/// All conversations by number, in the order of their creation.
#[derive(Default)]
pub(crate) struct Table {
    all: BTreeMap<u64, Conversation>,
    numbers: HashMap<String, u64>,
    last: u64,
    /// The conversations in which a completion runs.
    running: HashMap<u64, RunningAnswer>,
}

/// A completion that runs in a conversation.
#[derive(Default)]
struct RunningAnswer {
    /// Its generations.
    handles: Vec<RequestHandle>,
    /// The tokens of the answer so far. A token takes this lock only.
    tokens: Arc<Mutex<Vec<u32>>>,
}

impl Table {
    /// The conversation as it is now, with the tokens of a running answer.
    pub(crate) fn current(&self, number: u64) -> Conversation {
        let mut it = self.all[&number].clone();
        if let Some(running) = self.running.get(&number).filter(|_| it.answering) {
            it.extend_tokens(&lock(&running.tokens));
        }
        it
    }

    /// The conversation as an object.
    pub(crate) fn object(&self, number: u64) -> Value {
        let it = self.current(number);
        let parent = it.parent.and_then(|parent| self.all.get(&parent));
        let children = self.all.values().filter(|c| c.parent == Some(number));
        it.object(parent.map(|parent| &*parent.id), children)
    }

    /// The conversation that goes when this one is added: the oldest stored response for another one, the oldest leaf for others.
    fn to_make_room_for(&self, new: &Conversation) -> Option<u64> {
        let is_response = |it: &Conversation| it.response.is_some();
        let responses = is_response(new);
        let most = match responses {
            true => MAX_RESPONSES,
            false => MAX_CONVERSATIONS,
        };
        let alike = || {
            self.all
                .iter()
                .filter(|(_, it)| is_response(it) == responses)
        };
        if alike().count() < most {
            return None;
        }
        let is_leaf = |id: &u64| self.all.values().all(|c| c.parent != Some(*id));
        let idle = |id: &u64| !self.running.contains_key(id);
        let mut ids = alike().map(|(id, _)| *id);
        // A response has all its tokens: those that went on from one that is gone stay whole.
        ids.find(|id| idle(id) && (responses || is_leaf(id)))
    }

    /// All items before the output of a stored response, as far as the responses that it went on from are there.
    pub(crate) fn response_items(&self, number: u64) -> Vec<Value> {
        let mut parts: Vec<Vec<Value>> = vec![];
        let mut next = Some(number);
        while let Some(it) = next.and_then(|number| self.all.get(&number)) {
            let Some(response) = &it.response else { break };
            let output = response.object["output"].as_array();
            let output = output.filter(|_| !parts.is_empty()).into_iter().flatten();
            parts.push(response.input.iter().chain(output).cloned().collect());
            next = it.parent;
        }
        parts.into_iter().rev().flatten().collect()
    }

    /// Refuses to change a conversation in which a completion runs.
    fn check_idle(&self, number: u64) -> Result<(), ApiError> {
        match self.running.contains_key(&number) {
            true => Err(ApiError::conflict(
                "conversation_busy",
                "the conversation is generating: wait for its answer, fork it or delete it",
            )),
            false => Ok(()),
        }
    }

    /// The first conversation of a fork's tree.
    fn root(&self, mut number: u64) -> u64 {
        while let Some(parent) = self.all.get(&number).and_then(|c| c.parent) {
            number = parent;
        }
        number
    }
}

impl Conversations {
    /// The conversations of a server: those in its folder, if it has one.
    pub(crate) fn new(options: &ServerOptions) -> Conversations {
        let bytes = |path: &Path| std::fs::metadata(path).map_or(0, |file| file.len());
        let models = options.models.iter();
        let model_bytes: HashMap<String, u64> = models
            .map(|(name, path)| (name.clone(), bytes(path)))
            .collect();
        let folder = options.conversations.as_ref();
        let opened = folder.map(|folder| (ConversationStore::open(folder), folder));
        let (store, mut all) = match opened {
            Some((Ok((store, all)), _)) => (Some(store), all),
            Some((Err(error), folder)) => {
                let folder = folder.display();
                tracing::warn!(%folder, %error, "conversations are not stored");
                (None, BTreeMap::new())
            }
            None => (None, BTreeMap::new()),
        };
        let last = all.keys().next_back().copied().unwrap_or(0);
        // Those of other models and of other files stay on disk.
        all.retain(|_, it| model_bytes.get(&it.model) == Some(&it.model_bytes));
        let known: HashSet<u64> = all.keys().copied().collect();
        for it in all.values_mut() {
            it.parent = it.parent.filter(|parent| known.contains(parent));
        }
        if !all.is_empty() {
            tracing::info!(conversations = all.len(), "restored");
        }
        let numbers = all.iter().map(|(number, it)| (it.id.clone(), *number));
        Conversations {
            table: Mutex::new(Table {
                numbers: numbers.collect(),
                all,
                last,
                running: HashMap::new(),
            }),
            store,
            model_bytes,
            ended: Notify::new(),
        }
    }

    /// An id that nobody can guess.
    pub(crate) fn new_id() -> Result<String, ApiError> {
        let mut bytes = [0; 16];
        getrandom::getrandom(&mut bytes).map_err(|error| {
            let message = format!("the system gives no random numbers: {error}");
            ApiError::status(axum::http::StatusCode::INTERNAL_SERVER_ERROR, message)
        })?;
        Ok(format!("conv-{:032x}", u128::from_le_bytes(bytes)))
    }

    /// The bytes of a model's file, which is at `path`.
    pub(crate) fn bytes_of(&self, model: &str, path: &Path) -> u64 {
        let known = self.model_bytes.get(model).copied();
        known.unwrap_or_else(|| std::fs::metadata(path).map_or(0, |file| file.len()))
    }

    /// Uses the conversation of this id and owner.
    pub(crate) fn with<T>(
        &self,
        id: &str,
        owner: &Owner,
        use_it: impl FnOnce(&mut Table, u64) -> T,
    ) -> Result<T, ApiError> {
        let mut table = lock(&self.table);
        let number = table.numbers.get(id).copied();
        match number.filter(|number| table.all[number].owner == *owner) {
            Some(number) => Ok(use_it(&mut table, number)),
            None => Err(ApiError::not_found(format!(
                "there is no conversation {id:?}"
            ))),
        }
    }

    /// The name of a conversation's model.
    pub(crate) fn model_of(&self, id: &str, owner: &Owner) -> Result<String, ApiError> {
        self.with(id, owner, |table, number| table.all[&number].model.clone())
    }

    /// Adds a conversation, and returns it as an object.
    pub(crate) fn add(&self, conversation: Conversation) -> Value {
        let mut table = lock(&self.table);
        if let Some(oldest) = table.to_make_room_for(&conversation) {
            self.remove(&mut table, &[oldest]);
        }
        table.last += 1;
        let number = table.last;
        let known = |parent: &u64| table.all.contains_key(parent);
        let parent = conversation.parent.filter(known);
        table.numbers.insert(conversation.id.clone(), number);
        let conversation = Conversation {
            parent,
            ..conversation
        };
        table.all.insert(number, conversation);
        self.store(&table, number);
        table.object(number)
    }

    /// Waits until no completion runs in a conversation, for a moment at most: the client of the last one may have gone just
    /// now, which the server notices a little later.
    pub(crate) async fn wait_until_idle(&self, id: &str, owner: &Owner) -> Result<(), ApiError> {
        let idle = async {
            loop {
                let ended = self.ended.notified();
                let mut ended = std::pin::pin!(ended);
                ended.as_mut().enable();
                let busy = |table: &mut Table, n| table.running.contains_key(&n);
                if !self.with(id, owner, busy)? {
                    return Ok(());
                }
                ended.await;
            }
        };
        // After that, whatever needs the conversation is refused.
        let waited = tokio::time::timeout(IDLE_TIME, idle).await;
        waited.unwrap_or(Ok(()))
    }

    /// Replaces a conversation that is not generating, and returns it as an object. `change` sees it as it is now.
    pub(crate) fn change(
        &self,
        id: &str,
        owner: &Owner,
        change: impl FnOnce(&Conversation) -> Result<Conversation, ApiError>,
    ) -> Result<Value, ApiError> {
        self.with(id, owner, |table, number| {
            table.check_idle(number)?;
            let changed = change(&table.all[&number])?;
            table.all.insert(number, changed);
            self.store(table, number);
            Ok(table.object(number))
        })?
    }

    /// Deletes a conversation, and ends its answer if it is generating. Forks of it stay.
    pub(crate) fn delete(&self, id: &str, owner: &Owner) -> Result<(), ApiError> {
        self.with(id, owner, |table, number| self.remove(table, &[number]))
    }

    /// Deletes all other conversations of the tree, and returns the one that stays as an object.
    pub(crate) fn keep(&self, id: &str, owner: &Owner) -> Result<Value, ApiError> {
        self.with(id, owner, |table, number| {
            let root = table.root(number);
            let others = table.all.keys().copied();
            let others: Vec<u64> = others
                .filter(|other| *other != number && table.root(*other) == root)
                .collect();
            self.remove(table, &others);
            table.object(number)
        })
    }

    /// The objects of an owner's conversations, and their tokens, without those of stored responses.
    pub(crate) fn objects(&self, owner: &Owner) -> Vec<(Value, Arc<Vec<u32>>)> {
        let table = lock(&self.table);
        let listed = |it: &Conversation| it.owner == *owner && it.response.is_none();
        let own = table.all.iter().filter(|(_, it)| listed(it));
        let object = |number: &u64| (table.object(*number), table.all[number].tokens.clone());
        own.map(|(number, _)| object(number)).collect()
    }

    /// Ends the response that a conversation was made for.
    pub(crate) fn end_response(&self, id: &str, owner: &Owner, object: &Value) {
        // A conversation that was deleted meanwhile needs no response.
        _ = self.with(id, owner, |table, number| {
            let it = table.all.get_mut(&number);
            if let Some(response) = it.and_then(|it| it.response.as_mut()) {
                response.object = object.clone();
            }
            self.store(table, number);
        });
    }

    /// Stores a conversation as it is now.
    fn store(&self, table: &Table, number: u64) {
        if let Some((store, it)) = self.store.as_ref().zip(table.all.get(&number)) {
            store.save(number, it);
        }
    }

    fn remove(&self, table: &mut Table, numbers: &[u64]) {
        for number in numbers {
            if let Some(it) = table.all.remove(number) {
                table.numbers.remove(&it.id);
            }
            let running = table.running.get(number).into_iter();
            let handles = running.flat_map(|running| &running.handles);
            handles.for_each(RequestHandle::cancel);
            if let Some(store) = &self.store {
                store.remove(*number);
            }
        }
        let orphan = |c: &Conversation| c.parent.is_some_and(|parent| numbers.contains(&parent));
        let orphans = table.all.iter_mut().filter(|(_, c)| orphan(c));
        let orphans: Vec<u64> = orphans
            .map(|(number, child)| {
                child.parent = None;
                *number
            })
            .collect();
        orphans.iter().for_each(|number| self.store(table, *number));
    }
}

/// The right to generate in a conversation. While it lives, others can read, fork and delete the conversation only.
pub(crate) struct ConversationTurn {
    app: Arc<App>,
    number: u64,
    /// The tokens of the answer so far.
    tokens: Arc<Mutex<Vec<u32>>>,
}

impl ConversationTurn {
    /// Takes the right, and a copy of the conversation, which shares its tokens and cells.
    ///
    /// # Errors
    /// 404 if there is no such conversation, 409 if it is generating for longer than a moment.
    pub(crate) async fn begin(
        app: &Arc<App>,
        id: &str,
        owner: &Owner,
    ) -> Result<(ConversationTurn, Conversation), ApiError> {
        app.conversations.wait_until_idle(id, owner).await?;
        app.conversations.with(id, owner, |table, number| {
            table.check_idle(number)?;
            let running = RunningAnswer::default();
            let turn = ConversationTurn {
                app: app.clone(),
                number,
                tokens: running.tokens.clone(),
            };
            table.running.insert(number, running);
            Ok((turn, table.all[&number].clone()))
        })?
    }

    /// Changes the conversation. Does nothing if it was deleted.
    fn change(&self, change: impl FnOnce(&mut Conversation), store: bool) {
        let conversations = &self.app.conversations;
        let mut table = lock(&conversations.table);
        if let Some(it) = table.all.get_mut(&self.number) {
            change(it);
            if store {
                conversations.store(&table, self.number);
            }
        }
    }

    /// Sets the tokens and messages that the completion begins with. `handles` are cancelled when the conversation is deleted.
    pub(crate) fn start(
        &self,
        tokens: &Arc<Vec<u32>>,
        messages: &[Value],
        handles: &[RequestHandle],
    ) {
        self.change(|it| it.begin_turn(tokens.clone(), messages), false);
        let mut table = lock(&self.app.conversations.table);
        if !table.all.contains_key(&self.number) {
            handles.iter().for_each(RequestHandle::cancel);
        }
        if let Some(running) = table.running.get_mut(&self.number) {
            running.handles = handles.to_vec();
        }
    }

    /// Appends a token of the answer.
    pub(crate) fn push_token(&self, token: u32) {
        lock(&self.tokens).push(token);
    }

    /// Ends the answer.
    pub(crate) fn finish(&self, message: Value, partial: bool) {
        let tokens = self.answer_tokens();
        let end = |it: &mut Conversation| {
            it.extend_tokens(&tokens);
            it.end_turn(message, partial);
        };
        self.change(end, true);
    }

    /// The tokens of the answer so far.
    pub(crate) fn answer_tokens(&self) -> Vec<u32> {
        lock(&self.tokens).clone()
    }
}

impl Drop for ConversationTurn {
    fn drop(&mut self) {
        let conversations = &self.app.conversations;
        lock(&conversations.table).running.remove(&self.number);
        conversations.ended.notify_waiters();
    }
}
