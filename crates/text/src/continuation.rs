//! `ChatContinuation`: the tokens of a conversation of which an answer's exact tokens are known.

use crate::tools::prompt_with_tools;
use crate::{ChatTemplate, Prompt, TextError, Tokenizer};
use serde_json::{Map, Value, json};

/// A conversation that goes on after an answer whose tokens are known.
#[derive(Clone, Copy, Debug)]
pub struct ChatContinuation<'c> {
    /// The chat template.
    pub template: &'c ChatTemplate,
    /// The tokenizer.
    pub tokenizer: &'c Tokenizer,
    /// All messages.
    pub messages: &'c [Value],
    /// The tools.
    pub tools: &'c [Value],
    /// Further variables of the template.
    pub variables: &'c Map<String, Value>,
}

impl ChatContinuation<'_> {
    /// The tokens up to the next answer, which begin with `held`: the tokens of all messages up to message `answer`, which
    /// was generated. So an answer keeps its tokens, however the template writes answers, reasoning and tool calls.
    /// The template shows where the answer ends: it is rendered with a mark in the answer's place. `None` if
    /// that place is not found.
    pub fn tokens(&self, held: &[u32], answer: usize) -> Option<Vec<u32>> {
        use std::hash::{BuildHasher, RandomState};
        let mark = format!("kvark-{:016x}", RandomState::new().hash_one(answer));
        let text_end = held.iter().rposition(|id| !self.tokenizer.is_eog(*id))? + 1;
        let message = self.messages.get(answer)?;
        let calls = message.get("tool_calls").and_then(Value::as_array);
        let last_call = calls.and_then(|calls| calls.len().checked_sub(1));
        let rest_of = |prompt: Prompt, at: usize| {
            let tokens = self.tokenizer.encode_rest(&held[..text_end], &prompt, at);
            Some(tokens)
        };
        if let Some(last) = last_call {
            // Templates write results beside calls: the message stays, with the mark in its last call.
            let mut marked = message.clone();
            let call = &mut marked["tool_calls"][last];
            let function = match call.get("function").is_some() {
                true => &mut call["function"],
                false => call,
            };
            function["arguments"] = json!({ "kvark": mark });
            let end = self.render(answer, marked).ok().and_then(|prompt| {
                let after = end_of_mark(&prompt, &mark)?;
                let at = self.tokenizer.first_eog(&prompt, after)?;
                Some((prompt, at))
            });
            if let Some((prompt, at)) = end {
                return rest_of(prompt, at);
            }
            let later = &self.messages[answer + 1..];
            if later.iter().any(|message| message["role"] == "tool") {
                return None;
            }
        }
        let marked = json!({ "role": "assistant", "content": mark });
        let prompt = self.render(answer, marked).ok()?;
        let at = end_of_mark(&prompt, &mark)?;
        rest_of(prompt, at)
    }

    /// The conversation with another message in an answer's place.
    fn render(&self, answer: usize, message: Value) -> Result<Prompt, TextError> {
        let mut messages = self.messages.to_vec();
        messages[answer] = message;
        let (template, tokenizer) = (self.template, self.tokenizer);
        prompt_with_tools(
            template,
            tokenizer,
            &messages,
            self.tools,
            true,
            self.variables,
        )
    }
}

/// The end of the only occurrence of a mark.
fn end_of_mark(prompt: &Prompt, mark: &str) -> Option<usize> {
    let (before, rest) = prompt.text().split_once(mark)?;
    (!rest.contains(mark)).then_some(before.len() + mark.len())
}
