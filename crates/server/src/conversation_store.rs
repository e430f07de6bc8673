//! `ConversationStore`: conversations on disk, so that they survive a restart.
//!
//! Every conversation is a JSON file of its own, `conv-N.json`, with its exact tokens. A thread writes them, each
//! atomically: a server that is killed loses at most the changes of the last moment.

use crate::conversation::Conversation;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// Stores conversations in a folder until it is dropped.
pub(crate) struct ConversationStore {
    sender: Option<Sender<Change>>,
    writer: Option<JoinHandle<()>>,
    /// Locked while the server runs: a second server with the same folder stores nothing.
    _lock: File,
}

enum Change {
    Save(u64, Value),
    Remove(u64),
}

impl ConversationStore {
    /// Opens a folder and reads its conversations, by number. Files that cannot be read are left alone.
    ///
    /// # Errors
    /// If the folder cannot be written, or another server has it open.
    pub(crate) fn open(
        folder: &Path,
    ) -> io::Result<(ConversationStore, BTreeMap<u64, Conversation>)> {
        fs::create_dir_all(folder)?;
        let lock = File::create(folder.join("lock"))?;
        lock.try_lock().map_err(|error| match error {
            fs::TryLockError::WouldBlock => io::Error::other("another server has them open"),
            fs::TryLockError::Error(error) => error,
        })?;
        let mut found = BTreeMap::new();
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            let Some(number) = number_of(&path) else {
                continue;
            };
            match read(&path) {
                Ok(conversation) => _ = found.insert(number, conversation),
                Err(reason) => {
                    tracing::warn!(file = %path.display(), reason, "not a conversation");
                }
            }
        }
        let (sender, changes) = channel();
        let folder = folder.to_owned();
        let writer = std::thread::Builder::new()
            .name("kvark-conversations".into())
            .spawn(move || write_changes(&folder, &changes))?;
        let store = ConversationStore {
            sender: Some(sender),
            writer: Some(writer),
            _lock: lock,
        };
        Ok((store, found))
    }

    /// Writes a conversation soon.
    pub(crate) fn save(&self, number: u64, conversation: &Conversation) {
        self.send(Change::Save(number, to_json(conversation)));
    }

    /// Removes a conversation soon.
    pub(crate) fn remove(&self, number: u64) {
        self.send(Change::Remove(number));
    }

    fn send(&self, change: Change) {
        if let Some(sender) = &self.sender {
            _ = sender.send(change);
        }
    }
}

impl Drop for ConversationStore {
    /// Waits until everything is written.
    fn drop(&mut self) {
        self.sender = None;
        if let Some(writer) = self.writer.take() {
            _ = writer.join();
        }
    }
}

/// Makes changes until the senders are gone. Only the last change of a conversation counts.
fn write_changes(folder: &Path, changes: &Receiver<Change>) {
    while let Ok(first) = changes.recv() {
        let mut latest = BTreeMap::new();
        for change in std::iter::once(first).chain(changes.try_iter()) {
            match change {
                Change::Save(number, json) => latest.insert(number, Some(json)),
                Change::Remove(number) => latest.insert(number, None),
            };
        }
        for (number, json) in latest {
            let path = file_of(folder, number);
            let done = match json {
                Some(json) => write(&path, &json),
                None => match fs::remove_file(&path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                    _ => Ok(()),
                },
            };
            if let Err(error) = done {
                tracing::warn!(file = %path.display(), %error, "a conversation was not stored");
            }
        }
    }
}

/// Replaces a file: either the old content or the new one is there.
fn write(path: &Path, json: &Value) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut file = File::create(&new)?;
    file.write_all(json.to_string().as_bytes())?;
    file.sync_data()?;
    fs::rename(new, path)
}

fn file_of(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("conv-{number}.json"))
}

fn number_of(path: &Path) -> Option<u64> {
    let name = path.file_name()?.to_str()?;
    name.strip_prefix("conv-")?
        .strip_suffix(".json")?
        .parse()
        .ok()
}

/// The version of the files.
const VERSION: u64 = 2;

fn to_json(it: &Conversation) -> Value {
    let mut json = serde_json::to_value(it).expect("all keys are texts");
    json["version"] = VERSION.into();
    json["tokens"] = json!(*it.tokens);
    json
}

/// Reads a file, and checks what is in it.
fn read(path: &Path) -> Result<Conversation, String> {
    let bytes = fs::read(path).map_err(|error| error.to_string())?;
    let mut json: Value = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
    if json["version"] != VERSION {
        return Err(format!("its version is {}, not {VERSION}", json["version"]));
    }
    let wrong = |error: serde_json::Error| error.to_string();
    let tokens: Vec<u32> = serde_json::from_value(json["tokens"].take()).map_err(wrong)?;
    let mut it: Conversation = serde_json::from_value(json).map_err(wrong)?;
    let ends = it.messages.iter().map(|turn| turn.end);
    let are_objects = it.messages.iter().all(|turn| turn.message.is_object());
    if it.id.is_empty() || !are_objects || !ends.is_sorted() || it.turns_end() > tokens.len() {
        return Err("its id is empty, or its turns are not those of its tokens".to_owned());
    }
    it.tokens = Arc::new(tokens);
    Ok(it)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Owner;
    use crate::conversation::Turn;
    use kvark::engine::BranchCells;

    fn conversation(tokens: &[u32]) -> Conversation {
        Conversation {
            id: "conv-abc".into(),
            owner: Owner(Some("somebody".into())),
            parent: Some(3),
            at: 1,
            model: "tiny".into(),
            model_bytes: 77,
            tokens: Arc::new(tokens.to_vec()),
            cells: BranchCells::default(),
            messages: vec![Turn {
                message: json!({ "role": "user", "content": "Hi" }),
                end: tokens.len(),
                generated: false,
                partial: true,
            }],
            approximate: false,
            moved: None,
            answering: false,
            created: 5,
            response: None,
        }
    }

    fn folder(name: &str) -> PathBuf {
        let name = format!("kvark-conversations-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        _ = fs::remove_dir_all(&folder);
        folder
    }

    #[test]
    fn conversations_come_back() {
        let folder = folder("back");
        let (store, found) = ConversationStore::open(&folder).unwrap();
        assert!(found.is_empty());
        assert!(ConversationStore::open(&folder).is_err(), "it is locked");
        store.save(4, &conversation(&[1]));
        store.save(4, &conversation(&[1, 2, 3]));
        store.save(9, &conversation(&[7]));
        store.save(10, &conversation(&[8]));
        store.remove(9);
        store.remove(11);
        drop(store);
        let (_store, found) = ConversationStore::open(&folder).unwrap();
        assert_eq!(found.keys().collect::<Vec<_>>(), [&4, &10]);
        let it = &found[&4];
        assert_eq!(
            (&it.tokens[..], it.parent, it.at),
            (&[1, 2, 3][..], Some(3), 1)
        );
        assert_eq!((it.messages[0].end, it.model_bytes), (3, 77));
        assert_eq!((&*it.id, &it.owner), ("conv-abc", &conversation(&[]).owner));
        assert!(it.messages[0].partial && !it.messages[0].generated);
        assert_eq!(it.messages[0].message["content"], "Hi");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn damaged_files_are_left_alone() {
        let folder = folder("damaged");
        fs::create_dir_all(&folder).unwrap();
        let good = to_json(&conversation(&[1, 2]));
        let mut bad = vec![json!(3), json!({}), json!({ "version": 1 })];
        for (key, value) in [
            ("tokens", json!([1, -2])),
            ("tokens", json!([4_294_967_296u64])),
            ("turns", json!([{ "message": {}, "end": 3 }])),
            (
                "turns",
                json!([{ "message": {}, "end": 2 }, { "message": {}, "end": 1 }]),
            ),
            ("turns", json!([{ "message": "Hi", "end": 2 }])),
            (
                "turns",
                json!([{ "message": {}, "end": 2, "generated": 1 }]),
            ),
            ("id", Value::Null),
            ("model", Value::Null),
            ("at", json!(-1)),
        ] {
            let mut json = good.clone();
            json[key] = value;
            bad.push(json);
        }
        for (number, json) in bad.iter().enumerate() {
            fs::write(file_of(&folder, number as u64), json.to_string()).unwrap();
        }
        fs::write(file_of(&folder, 100), "{").unwrap();
        fs::write(folder.join("conv-x.json"), "{}").unwrap();
        fs::write(file_of(&folder, 200), good.to_string()).unwrap();
        let (_store, found) = ConversationStore::open(&folder).unwrap();
        assert_eq!(found.keys().collect::<Vec<_>>(), [&200]);
        assert!(file_of(&folder, 100).exists());
        fs::remove_dir_all(folder).unwrap();
    }
}
