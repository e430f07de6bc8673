//! A prefix file that a run, a chat or a server begins with, and the notes in it.

use anyhow::{Result, bail};
use kvark::snapshot::PrefixFile;
use kvark::text::Message;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// The prompts that begin with the tokens of a prefix file.
pub(crate) enum Beginning {
    /// Plain prompts.
    Text,
    /// Chats with this system message.
    System(String),
}

impl Beginning {
    /// The notes of a file of the named model.
    pub(super) fn notes(&self, model: &str) -> Vec<u8> {
        let system = match self {
            Beginning::Text => None,
            Beginning::System(text) => Some(text),
        };
        let notes = json!({ "model": model, "system": system });
        notes.to_string().into_bytes()
    }
}

/// An open prefix file.
pub(crate) struct GivenPrefix {
    pub(crate) file: PrefixFile,
    /// The display name of the model; files that the command did not write may have none.
    pub(crate) model: Option<String>,
    pub(crate) beginning: Beginning,
    path: PathBuf,
}

impl GivenPrefix {
    /// Opens the file and verifies its checksums.
    pub(crate) fn open(path: &Path) -> Result<GivenPrefix> {
        let file = PrefixFile::open(path)?;
        let notes: Value = serde_json::from_slice(file.notes()).unwrap_or_default();
        let text = |key: &str| notes[key].as_str().map(str::to_owned);
        Ok(GivenPrefix {
            model: text("model"),
            beginning: text("system").map_or(Beginning::Text, Beginning::System),
            file,
            path: path.to_owned(),
        })
    }

    /// Returns an error if the file is not for what it is given to: a conversation or a plain prompt.
    pub(crate) fn check_conversation(&self, is_chat: bool) -> Result<()> {
        let path = self.path.display();
        match (&self.beginning, is_chat) {
            (Beginning::Text, true) => bail!(
                "the prefix {path} is a plain text, not the system message of a chat: kvark prefix build --chat makes one"
            ),
            (Beginning::System(_), false) => {
                bail!("the prefix {path} is the system message of a chat, not a plain text")
            }
            _ => Ok(()),
        }
    }

    /// The system message, if the file has one.
    pub(crate) fn system(&self) -> Option<Message> {
        match &self.beginning {
            Beginning::System(text) => Some(Message::new("system", text)),
            Beginning::Text => None,
        }
    }

    /// Returns an error if a prompt does not begin with the tokens of the file, or ends with them.
    pub(crate) fn check_prompt(&self, prompt: &[u32]) -> Result<()> {
        let own = self.file.tokens();
        if !prompt.starts_with(own) || prompt.len() == own.len() {
            bail!(
                "the conversation does not begin with the tokens of the prefix {}: it was made with another chat template",
                self.path.display()
            );
        }
        Ok(())
    }
}
