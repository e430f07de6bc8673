//! A conversation: exact token ids and the turns that they are.

use serde_json::Value;

/// A conversation.
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

/// A message.
#[derive(Clone)]
pub(crate) struct Turn {
    pub(crate) message: Value,
    /// The number of tokens up to its end.
    pub(crate) end: usize,
}

impl Conversation {
    /// The conversation cut after its first tokens.
    pub(crate) fn cut(&self, at: usize) -> Conversation {
        let mut cut = self.clone();
        cut.tokens.truncate(at);
        cut.messages.retain(|turn| turn.end <= at);
        cut
    }
}
