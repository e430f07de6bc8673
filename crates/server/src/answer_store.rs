//! `AnswerStore`: the exact tokens of answers, found again by the messages that a plain request sends back.

use crate::access::Owner;
use crate::chat_prompt::ChatPrompt;
use crate::registry::lock;
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex};

/// The maximum number of tokens of all entries: 32 MiB.
const MAX_TOKENS: usize = 8 << 20;
/// The maximum number of entries.
const MAX_ENTRIES: usize = 4096;

/// The tokens of answers, by the meaning of all messages up to them.
///
/// A message means the same if the arguments of its calls have another order of keys, other blanks or other spellings of
/// numbers, if calls have other ids, and if it comes without its reasoning. The entries that were not used for longest go first.
#[derive(Default)]
pub(crate) struct AnswerStore {
    hashers: [RandomState; 2],
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    entries: HashMap<HistoryKey, Entry>,
    tokens: usize,
    clock: u64,
}

struct Entry {
    /// The tokens of all messages up to the answer, and its own.
    tokens: Arc<Vec<u32>>,
    /// The reasoning, which a message may repeat.
    reasoning: String,
    used: u64,
}

/// The tokens of all messages up to an answer and its own, and the answer's index.
pub(crate) type KnownAnswer = (Arc<Vec<u32>>, usize);

/// The meaning of a chat's beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct HistoryKey([u64; 2]);

/// The key of a growing list of messages.
#[derive(Clone)]
pub(crate) struct History {
    key: HistoryKey,
    /// The ids of calls in the order of their appearance.
    calls: Vec<Value>,
}

impl AnswerStore {
    /// The history of a chat without messages.
    fn begin(&self, owner: &Owner, model: &str, prompt: &ChatPrompt) -> History {
        let mut history = History {
            key: HistoryKey([0; 2]),
            calls: vec![],
        };
        let beginning = json!([owner, model, prompt.tools, prompt.variables]);
        self.extend(&mut history, &canonical(&beginning));
        history
    }

    fn extend(&self, history: &mut History, value: &Value) {
        let text = value.to_string();
        let HistoryKey(parts) = history.key;
        history.key = HistoryKey([0, 1].map(|i| self.hashers[i].hash_one((parts, &text))));
    }

    fn add(&self, history: &mut History, message: &Value) {
        let meaning = history.meaning(message);
        self.extend(history, &meaning);
    }

    /// The history of a chat, and the tokens of the longest beginning of it that ends with a known answer, with that
    /// answer's index.
    pub(crate) fn find(
        &self,
        owner: &Owner,
        model: &str,
        prompt: &ChatPrompt,
    ) -> (History, Option<KnownAnswer>) {
        let mut history = self.begin(owner, model, prompt);
        let mut found = None;
        let mut changed = false;
        for (index, message) in prompt.messages.iter().enumerate() {
            self.add(&mut history, message);
            if message["role"] != "assistant" || changed {
                continue;
            }
            let mut table = lock(&self.table);
            table.clock += 1;
            let now = table.clock;
            if let Some(entry) = table.entries.get_mut(&history.key) {
                let reasoning = message["reasoning_content"].as_str().map(str::trim);
                // Another reasoning is another answer, from there on.
                changed = reasoning.is_some_and(|text| text != entry.reasoning.trim());
                if !changed {
                    entry.used = now;
                    found = Some((entry.tokens.clone(), index));
                }
            }
        }
        (history, found)
    }

    /// Stores the tokens of a chat with its answer.
    pub(crate) fn insert(&self, history: &History, answer: &Value, tokens: Vec<u32>) {
        if tokens.len() > MAX_TOKENS / 4 {
            return;
        }
        let mut history = history.clone();
        self.add(&mut history, answer);
        let reasoning = answer["reasoning_content"].as_str().unwrap_or_default();
        let mut table = lock(&self.table);
        table.clock += 1;
        let entry = Entry {
            reasoning: reasoning.to_owned(),
            used: table.clock,
            tokens: Arc::new(tokens),
        };
        table.tokens += entry.tokens.len();
        if let Some(old) = table.entries.insert(history.key, entry) {
            table.tokens -= old.tokens.len();
        }
        while table.tokens > MAX_TOKENS || table.entries.len() > MAX_ENTRIES {
            let oldest = table.entries.iter().min_by_key(|(_, entry)| entry.used);
            let Some(key) = oldest.map(|(key, _)| *key) else {
                return;
            };
            if let Some(old) = table.entries.remove(&key) {
                table.tokens -= old.tokens.len();
            }
        }
    }
}

impl History {
    /// What a message means: no ids of calls, no reasoning, and arguments in one form.
    fn meaning(&mut self, message: &Value) -> Value {
        let text = message["content"].as_str().unwrap_or_default();
        let role = message["role"].as_str().unwrap_or_default();
        let mut meaning = json!({ "role": role, "content": text });
        if let Some(name) = message.get("name") {
            meaning["name"] = name.clone();
        }
        match role {
            "assistant" => {
                meaning["content"] = text.trim().into();
                let calls = message["tool_calls"].as_array().into_iter().flatten();
                let calls = calls.map(|call| {
                    self.calls.push(call["id"].clone());
                    let function = call.get("function").unwrap_or(call);
                    let arguments = match &function["arguments"] {
                        Value::String(text) => {
                            serde_json::from_str(text).unwrap_or_else(|_| text.trim().into())
                        }
                        Value::Null => json!({}),
                        value => value.clone(),
                    };
                    json!([function["name"], canonical(&arguments)])
                });
                meaning["calls"] = calls.collect();
            }
            "tool" => {
                let id = &message["tool_call_id"];
                let place = self.calls.iter().rposition(|known| known == id);
                meaning["call"] = match place {
                    Some(place) => place.into(),
                    None => id.clone(),
                };
            }
            _ => {}
        }
        meaning
    }
}

/// A value in the one form of all that mean the same: keys in order, whole numbers as integers.
fn canonical(value: &Value) -> Value {
    match value {
        Value::Array(items) => items.iter().map(canonical).collect(),
        Value::Object(map) => {
            let mut entries: Vec<(&String, Value)> = map
                .iter()
                .map(|(key, item)| (key, canonical(item)))
                .collect();
            entries.sort_by_key(|(key, _)| *key);
            let entries = entries.into_iter();
            Value::Object(Map::from_iter(
                entries.map(|(key, item)| (key.clone(), item)),
            ))
        }
        Value::Number(number) => match number.as_f64() {
            Some(float) if number.is_f64() && float.fract() == 0.0 && float.abs() < 9e15 => {
                (float as i64).into()
            }
            _ => value.clone(),
        },
        plain => plain.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(messages: Value) -> ChatPrompt {
        let messages = messages.as_array().unwrap().clone();
        ChatPrompt::new(messages, vec![], Map::new()).unwrap()
    }

    fn called(id: &str, arguments: Value) -> Value {
        json!({ "role": "assistant", "content": null, "tool_calls": [
            { "id": id, "type": "function", "function": { "name": "f", "arguments": arguments } },
        ]})
    }

    fn stored(store: &AnswerStore, owner: &Owner, messages: Value) -> Option<usize> {
        let found = store.find(owner, "m", &prompt(messages)).1;
        found.map(|(tokens, index)| {
            assert_eq!(*tokens, [1, 2, 3]);
            index
        })
    }

    #[test]
    fn answers_are_found_by_their_meaning() {
        let (store, owner) = (AnswerStore::default(), Owner::default());
        let user = json!({ "role": "user", "content": "u" });
        let (history, found) = store.find(&owner, "m", &prompt(json!([user])));
        assert!(found.is_none());
        let mut answer = called("a", json!("{\"x\": 1, \"y\": [2.5, {\"b\": 1, \"a\": 2}]}"));
        answer["reasoning_content"] = "why".into();
        store.insert(&history, &answer, vec![1, 2, 3]);
        let result = json!({ "role": "tool", "tool_call_id": "a", "content": "r" });
        for (arguments, reasoning, found) in [
            (
                json!("{\"x\": 1, \"y\": [2.5, {\"b\": 1, \"a\": 2}]}"),
                None,
                true,
            ),
            (
                json!("{ \"y\":[2.50,{\"a\":2,\"b\":1.0}],\"x\":1e0 }"),
                None,
                true,
            ),
            (
                json!({ "y": [2.5, { "a": 2, "b": 1 }], "x": 1 }),
                Some(" why\n"),
                true,
            ),
            (
                json!({ "y": [2.5, { "a": 2, "b": 1 }], "x": 1 }),
                Some("else"),
                false,
            ),
            (
                json!({ "y": [2.5, { "a": 2, "b": 1 }], "x": 2 }),
                None,
                false,
            ),
            (json!({ "x": 1 }), None, false),
        ] {
            for id in ["a", "b"] {
                let mut again = called(id, arguments.clone());
                if let Some(reasoning) = reasoning {
                    again["reasoning_content"] = reasoning.into();
                }
                let messages = json!([user, again, result]);
                let known = stored(&store, &owner, messages);
                assert_eq!(known, found.then_some(1), "{arguments}");
            }
        }
        // Of other messages before it, another model or other tools, nothing is known.
        let again = called("a", json!({ "x": 1, "y": [2.5, { "b": 1, "a": 2 }] }));
        let other = json!([{ "role": "user", "content": "v" }, again]);
        assert_eq!(stored(&store, &owner, other), None);
        let mut same = prompt(json!([user, again]));
        assert!(store.find(&owner, "m", &same).1.is_some());
        assert!(store.find(&owner, "n", &same).1.is_none());
        same.tools = vec![json!({ "name": "f" })];
        assert!(store.find(&owner, "m", &same).1.is_none());
    }

    #[test]
    fn the_store_is_bounded() {
        let (store, owner) = (AnswerStore::default(), Owner::default());
        let answer = json!({ "role": "assistant", "content": "a" });
        for i in 0..12 {
            let user = json!([{ "role": "user", "content": i.to_string() }]);
            let (history, _) = store.find(&owner, "m", &prompt(user));
            store.insert(&history, &answer, vec![0; MAX_TOKENS / 8]);
        }
        let table = lock(&store.table);
        assert_eq!((table.entries.len(), table.tokens), (8, MAX_TOKENS));
    }
}
