//! Conversations in snapshots: the current branch is saved with notes about its messages, and loaded again.

use super::colours;
use super::conversation::Conversation;
use anyhow::{Result, bail};
use kvark::generate::ContextShift;
use kvark::snapshot::Snapshot;
use kvark::text::Message;
use serde_json::{Value, json};
use std::path::Path;

/// Number of turns of the conversation in a snapshot; `None` if it holds none.
pub(crate) fn saved_turns(snapshot: &Snapshot) -> Option<usize> {
    let notes = Notes::parse(snapshot.notes())?;
    Some((notes.messages.len() - notes.preamble) / 2)
}

/// The notes of a snapshot about its model and conversation.
pub(crate) struct Saved {
    /// The display name of the model; files of older versions have none.
    pub(crate) model: Option<String>,
    /// The name of the branch.
    pub(crate) branch: Option<String>,
    /// Number of turns; `None` if it holds no conversation.
    pub(crate) turns: Option<usize>,
    /// All messages; `None` if it holds no conversation.
    pub(crate) messages: Option<Vec<Message>>,
}

impl Saved {
    pub(crate) fn of(snapshot: &Snapshot) -> Saved {
        let notes: Value = serde_json::from_slice(snapshot.notes()).unwrap_or_default();
        let text = |key: &str| notes[key].as_str().map(str::to_owned);
        Saved {
            model: text("model"),
            branch: text("branch"),
            turns: saved_turns(snapshot),
            messages: Notes::parse(snapshot.notes()).map(|notes| notes.messages),
        }
    }
}

impl Conversation<'_> {
    /// Writes the current branch and the name of its model to a file, and returns the number of its tokens.
    pub(super) fn save(&self, file: &Path, model: &str) -> Result<usize> {
        let branch = &self.branches[self.current];
        let cells = &self.cells;
        let shifts = branch.shifts.iter().map(|s| (s.keep, s.dropped));
        let shifts: Vec<_> = shifts.collect();
        let notes = json!({
            "model": model,
            "branch": branch.name,
            "messages": branch.messages,
            "preamble": branch.preamble,
            "shifts": shifts,
        });
        let model = self.conversations.model;
        cells.save(model, branch.id, file, notes.to_string().as_bytes())?;
        Ok(cells.tokens(branch.id).len())
    }

    /// Does the same, unless the current branch is the one that was saved last, or nothing has been said yet.
    pub(super) fn save_if_changed(&mut self, file: &Path, model: &str) -> Result<()> {
        let branch = &self.branches[self.current];
        let unchanged = match &self.saved {
            Some(saved) => saved.says_the_same(branch),
            None => branch.turns() == 0,
        };
        if !unchanged {
            self.save(file, model)?;
            self.saved = Some(self.branches[self.current].clone());
        }
        Ok(())
    }

    /// Replaces the current branch by a saved one and returns its number of turns. An error changes nothing.
    pub(super) fn load(&mut self, file: &Path) -> Result<usize> {
        let snapshot = Snapshot::open(file)?;
        let Some(notes) = Notes::parse(snapshot.notes()) else {
            bail!(
                "{} holds no conversation: kvark run wrote it",
                file.display()
            );
        };
        let branch = &mut self.branches[self.current];
        let model = self.conversations.model;
        self.cells.restore(model, branch.id, &snapshot)?;
        (branch.messages, branch.shifts) = (notes.messages, notes.shifts);
        branch.preamble = notes.preamble;
        Ok(branch.turns())
    }

    /// Continues the conversation in a file. A system message given by `--system` replaces the file's.
    ///
    /// # Errors
    /// If the file holds no conversation: it would be lost when this one is saved.
    pub(super) fn resume(&mut self, file: &Path) -> Result<()> {
        let snapshot = Snapshot::open(file)?;
        if Notes::parse(snapshot.notes()).is_none() {
            let name = file.display();
            bail!(
                "{name} holds a prompt of kvark run, which kvark chat would overwrite: use it with kvark run --prompt-cache \
                 {name}, or name another file"
            );
        }
        let system = self.branches[self.current].messages.clone();
        self.load(file)?;
        self.saved = Some(self.branches[self.current].clone());
        let branch = &mut self.branches[self.current];
        if system.is_empty() || branch.messages[..branch.preamble] == system {
            return Ok(());
        }
        branch.messages.splice(..branch.preamble, system.clone());
        branch.shifts.clear();
        branch.preamble = system.len();
        colours::note(&format!(
            "[--system replaces the system message of {}]",
            file.display()
        ));
        self.forget()
    }
}

/// The notes that are saved with a branch.
struct Notes {
    messages: Vec<Message>,
    /// Number of messages before the first turn.
    preamble: usize,
    shifts: Vec<ContextShift>,
}

impl Notes {
    fn parse(notes: &[u8]) -> Option<Notes> {
        let notes: Value = serde_json::from_slice(notes).ok()?;
        let text = |message: &Value, key: &str| Some(message[key].as_str()?.to_owned());
        let message = |m: &Value| Some(Message::new(text(m, "role")?, text(m, "content")?));
        let number = |value: &Value| usize::try_from(value.as_u64()?).ok();
        let shift = |shift: &Value| {
            Some(ContextShift {
                keep: number(&shift[0])?,
                dropped: number(&shift[1])?,
            })
        };
        let messages: Vec<Message> = list(&notes["messages"], message)?;
        let preamble = number(&notes["preamble"]).filter(|n| *n <= messages.len())?;
        let shifts = list(&notes["shifts"], shift)?;
        Some(Notes {
            messages,
            preamble,
            shifts,
        })
    }
}

fn list<T>(value: &Value, item: impl Fn(&Value) -> Option<T>) -> Option<Vec<T>> {
    value.as_array()?.iter().map(item).collect()
}
