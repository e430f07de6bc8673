//! A conversation whose tokens stay in the cache from turn to turn.

use crate::prompt;
use anyhow::{Error, Result};
use kvark::{Finish, GenerateOptions, Message, Model, Piece, Runner, Sampler, TextError};

/// The messages so far, and the runner that holds most of their tokens.
pub(super) struct Conversation<'a> {
    model: &'a Model,
    runner: Runner,
    sampler: Sampler,
    options: GenerateOptions,
    messages: Vec<Message>,
    /// Messages that come before the first turn.
    preamble: usize,
}

/// What became of a message.
pub(super) enum Reply {
    /// It was answered, to the end or in part; message and answer are part of the conversation.
    Answered(Finish),
    /// The conversation would not fit the context; the message is dropped.
    NoRoom { needed: usize, capacity: usize },
    /// The chat template does not take the conversation; the message is dropped.
    Refused(Error),
    /// The caller stopped it before the answer began; the message is dropped.
    Stopped,
}

impl<'a> Conversation<'a> {
    pub(super) fn new(
        model: &'a Model,
        runner: Runner,
        sampler: Sampler,
        options: GenerateOptions,
        system: Option<String>,
    ) -> Conversation<'a> {
        let messages: Vec<_> = system
            .map(|s| Message::new("system", s))
            .into_iter()
            .collect();
        Conversation {
            model,
            runner,
            sampler,
            options,
            preamble: messages.len(),
            messages,
        }
    }

    /// Most tokens the conversation can have.
    pub(super) fn capacity(&self) -> Result<usize> {
        Ok(self.runner.capacity()?)
    }

    /// Forgets all turns.
    pub(super) fn clear(&mut self) {
        self.messages.truncate(self.preamble);
    }

    /// Forgets the last `n` turns and tells how many are left, or how many there are when they are fewer.
    pub(super) fn rewind(&mut self, n: usize) -> Result<usize, usize> {
        let turns = (self.messages.len() - self.preamble) / 2;
        let left = turns.checked_sub(n).ok_or(turns)?;
        self.messages.truncate(self.preamble + 2 * left);
        Ok(left)
    }

    /// Says `text` and hears the answer. `show` also learns how many tokens are new to the cache.
    pub(super) fn say(
        &mut self,
        text: &str,
        show: impl FnMut(usize, Piece<'_>) -> bool,
    ) -> Result<Reply> {
        self.messages.push(Message::new("user", text));
        let reply = self.answer(show);
        if !matches!(reply, Ok(Reply::Answered(_))) {
            self.messages.pop();
        }
        reply
    }

    fn answer(&mut self, mut show: impl FnMut(usize, Piece<'_>) -> bool) -> Result<Reply> {
        let tokens = match prompt::chat(self.model, &self.messages) {
            Ok(tokens) => tokens,
            Err(error) if error.is::<TextError>() => return Ok(Reply::Refused(error)),
            Err(error) => return Err(error),
        };
        let (needed, capacity) = (tokens.len(), self.capacity()?);
        if needed > capacity {
            return Ok(Reply::NoRoom { needed, capacity });
        }
        // Logits come from feeding, so the last token is fed even if it is in the cache.
        let known = common(self.runner.tokens(), &tokens).min(needed.saturating_sub(1));
        let known = match self.runner.rewind(known) {
            Ok(()) => known,
            // Sliding windows cannot always go back; from the start always works.
            Err(_) => {
                self.runner.rewind(0)?;
                0
            }
        };
        let new = &tokens[known..];
        let generated =
            self.runner
                .generate(self.model, new, &mut self.sampler, &self.options, |piece| {
                    show(new.len(), piece)
                })?;
        if generated.tokens.is_empty() {
            return Ok(Reply::Stopped);
        }
        self.messages
            .push(Message::new("assistant", generated.text));
        Ok(Reply::Answered(generated.finish))
    }
}

/// Length of the common beginning.
fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
