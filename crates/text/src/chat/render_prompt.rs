//! Renders a conversation to a [`Prompt`], which separates untrusted text (the messages) from the template's own text.
//!
//! A template is a program that receives the messages and writes one text, so the place of a message in the output is
//! known only after the template has run. Therefore every character of a message is replaced by a private-use character
//! that occurs nowhere else (a *mark*), the template runs, and the marks in its output are replaced by the original
//! characters. The number of characters does not change, because templates trim, slice, split and measure contents;
//! white space is not replaced for the same reason.
//!
//! The template runs twice. The *opaque* run marks every character of the contents. The *guarded* run marks only the
//! text of control tokens, so that a template can search the contents (`'</think>' in content`). If both runs give the
//! same text, the template did not inspect the contents, and the opaque run shows exactly which text is untrusted.
//! Otherwise the guarded run is used, unless its control tokens differ from those of the opaque run: then a content has
//! changed the structure of the conversation, and the opaque run is used.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use serde::Serialize;
use serde_json::{Map, Value as Json};

use super::private_use::{MARKS, private};
use super::prompt::Prompt;
use super::{ChatTemplate, Message};
use crate::error::TextError;
use crate::tokenizer::Tokenizer;

impl ChatTemplate {
    /// The prompt of a conversation, ending where the assistant begins to speak if `add_generation_prompt`. Its text is
    /// that of [`render`](Self::render) unless a content spells control tokens of `tokenizer`.
    ///
    /// # Errors
    /// As [`render`](Self::render).
    pub fn prompt(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
        add_generation_prompt: bool,
    ) -> Result<Prompt, TextError> {
        self.prompt_with(tokenizer, messages, add_generation_prompt, &Map::new())
    }

    /// As [`prompt`](Self::prompt), for messages of any shape and with further variables, such as `tools`.
    ///
    /// # Errors
    /// As [`render`](Self::render).
    pub fn prompt_with<M: Serialize>(
        &self,
        tokenizer: &Tokenizer,
        messages: &[M],
        add_generation_prompt: bool,
        variables: &Map<String, Json>,
    ) -> Result<Prompt, TextError> {
        let failed = |message: String| TextError::Template {
            line: None,
            message,
        };
        let messages = serde_json::to_value(messages).map_err(|error| failed(error.to_string()))?;
        let messages = messages.as_array().map_or(&[][..], Vec::as_slice);
        let mut used = self.private.clone();
        messages.iter().for_each(|m| private_of(m, &mut used));
        variables.values().for_each(|v| private_of(v, &mut used));
        let mut marks = Marks::new(used);

        let mut guard = |text: &str| marks.guard(text, &tokenizer.control_spans(text));
        let guarded: Vec<Json> = messages.iter().map(|m| map_text(m, &mut guard)).collect();
        let variables: Map<String, Json> = variables
            .iter()
            .map(|(name, value)| (name.clone(), map_text(value, &mut guard)))
            .collect();
        if marks.exhausted {
            return Err(failed(
                "the conversation uses every private-use character".into(),
            ));
        }
        let pairs = messages.iter().zip(&guarded);
        let opaque: Vec<Json> = pairs
            .map(|(message, guarded)| opaque_message(message, guarded, &mut marks))
            .collect();

        let render =
            |messages: &[Json]| self.render_with(messages, add_generation_prompt, &variables);
        let guarded = marks.unmark(&render(&guarded)?);
        let Ok(opaque) = render(&opaque) else {
            return Ok(guarded);
        };
        let opaque = marks.unmark(&opaque);
        let looked = opaque.text != guarded.text;
        let same =
            looked && tokenizer.control_tokens(&opaque) == tokenizer.control_tokens(&guarded);
        Ok(if same { guarded } else { opaque })
    }
}

/// A copy of `guarded` in which every character of the content is marked. The content is a string or a list of texts.
fn opaque_message(message: &Json, guarded: &Json, marks: &mut Marks) -> Json {
    let mut opaque = guarded.clone();
    let Some(content) = message.get("content") else {
        return opaque;
    };
    match content {
        Json::String(text) => opaque["content"] = marks.hide(text).into(),
        Json::Array(parts) => {
            for (at, part) in parts.iter().enumerate() {
                if let Some(text) = part.get("text").and_then(Json::as_str) {
                    opaque["content"][at]["text"] = marks.hide(text).into();
                }
            }
        }
        _ => {}
    }
    opaque
}

/// A copy of a value with `change` applied to every string, including keys.
fn map_text(value: &Json, change: &mut impl FnMut(&str) -> String) -> Json {
    match value {
        Json::String(text) => change(text).into(),
        Json::Array(items) => items.iter().map(|item| map_text(item, change)).collect(),
        Json::Object(map) => {
            let entries = map.iter();
            let entries = entries.map(|(key, item)| (change(key), map_text(item, change)));
            Json::Object(entries.collect())
        }
        plain => plain.clone(),
    }
}

/// Collects the private-use characters of all strings in a value.
fn private_of(value: &Json, used: &mut HashSet<char>) {
    match value {
        Json::String(text) => used.extend(private(text)),
        Json::Array(items) => items.iter().for_each(|item| private_of(item, used)),
        Json::Object(map) => {
            for (key, item) in map {
                used.extend(private(key));
                private_of(item, used);
            }
        }
        _ => {}
    }
}

/// The map between original characters and their marks.
struct Marks {
    of: HashMap<char, char>,
    back: HashMap<char, char>,
    free: Box<dyn Iterator<Item = char>>,
    exhausted: bool,
}

impl Marks {
    /// Marks that do not occur in `used`.
    fn new(used: HashSet<char>) -> Self {
        let all = MARKS.into_iter().flatten().filter_map(char::from_u32);
        Self {
            of: HashMap::new(),
            back: HashMap::new(),
            free: Box::new(all.filter(move |c| !used.contains(c))),
            exhausted: false,
        }
    }

    /// The mark of a character, or the character itself if all marks are used.
    fn mark(&mut self, c: char) -> char {
        if let Some(mark) = self.of.get(&c) {
            return *mark;
        }
        let Some(mark) = self.free.next() else {
            self.exhausted = true;
            return c;
        };
        self.of.insert(c, mark);
        self.back.insert(mark, c);
        mark
    }

    /// Marks every character except white space.
    fn hide(&mut self, text: &str) -> String {
        let mark = |c: char| if c.is_whitespace() { c } else { self.mark(c) };
        text.chars().map(mark).collect()
    }

    /// Marks the characters of `spans`, which are in order and do not overlap.
    fn guard(&mut self, text: &str, spans: &[Range<usize>]) -> String {
        let mut guarded = String::with_capacity(text.len());
        let mut done = 0;
        for span in spans {
            guarded.push_str(&text[done..span.start]);
            let part = &text[span.clone()];
            match part.trim().is_empty() {
                true => guarded.extend(part.chars().map(|c| self.mark(c))),
                false => guarded.push_str(&self.hide(part)),
            }
            done = span.end;
        }
        guarded + &text[done..]
    }

    /// Replaces marks by the original characters and records their ranges.
    fn unmark(&self, rendered: &str) -> Prompt {
        let mut prompt = Prompt::default();
        for c in rendered.chars() {
            let start = prompt.text.len();
            prompt.text.push(*self.back.get(&c).unwrap_or(&c));
            if self.back.contains_key(&c) {
                let end = prompt.text.len();
                match prompt.untrusted.last_mut() {
                    Some(last) if last.end == start => last.end = end,
                    _ => prompt.untrusted.push(start..end),
                }
            }
        }
        prompt
    }
}
