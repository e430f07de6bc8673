//! The model and the prompt of `kvark run`.

use super::Run;
use crate::args::ModelArgs;
use crate::positional::Words;
use crate::{output, text_input};
use anyhow::Result;

impl Run {
    /// Whether a model is named at a terminal and nothing to do with it: then the user talks to it.
    pub(crate) fn is_chat_without_prompt(&self) -> Result<bool> {
        let is_one_run = self.json
            || self.token_ids.is_some()
            || self.messages.is_some()
            || self.parallel.is_some()
            || self.ignore_eos
            || self.no_display_prompt
            || self.cache.is_some()
            || self.format.is_given();
        if is_one_run || self.text.flag().is_some() || !output::is_interactive() {
            return Ok(false);
        }
        let (_, prompt) = self.words().split()?;
        Ok(prompt.is_none())
    }

    /// The words after the command, and what the flags give.
    fn words(&self) -> Words<'_> {
        let ids = self.token_ids.is_some().then_some("--token-ids");
        Words {
            first: self.model_or_prompt.as_deref(),
            second: self.prompt.as_deref(),
            model: self.model.clone().or_else(|| self.hub.reference()),
            text_flag: self.text.flag().or(ids),
            noun: "prompt",
        }
    }

    /// The model and the text of the prompt, if there is one. Reads standard input if nothing else gives a prompt and it is
    /// not a terminal.
    pub(super) fn arguments(&self) -> Result<(ModelArgs, Option<String>)> {
        let (model, text) = self.words().split()?;
        let text = match text {
            Some(text) => Some(text_input::argument(&text)?),
            None => match self.text.read()? {
                None if self.token_ids.is_none() && self.messages.is_none() => text_input::piped()?,
                text => text,
            },
        };
        Ok((ModelArgs::named(model), text))
    }
}
