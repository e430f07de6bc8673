//! Reasoning: where a model's answer is thought and where it is content.

use crate::Tokenizer;
use serde_json::{Map, Value};

/// How a model marks its reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReasoningFormat {
    /// It does not: everything is content.
    None,
    /// Between two marks.
    Tagged(ReasoningTags),
    /// In channels of messages (`<|channel|>analysis<|message|>…<|end|>`), as gpt-oss has them.
    Harmony,
}

/// The marks around reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReasoningTags {
    /// The mark before it.
    pub open: &'static str,
    /// The mark after it.
    pub close: &'static str,
    /// Whether reasoning can begin within the content, not only before it.
    pub anywhere: bool,
    /// Marks around the content that follows; they are not shown.
    pub content: Option<(&'static str, &'static str)>,
}

const fn tags(open: &'static str, close: &'static str) -> ReasoningTags {
    ReasoningTags {
        open,
        close,
        anywhere: false,
        content: None,
    }
}

/// Qwen3, DeepSeek, SmolLM3, Nemotron, LFM2.5 and most others.
const THINK: ReasoningTags = tags("<think>", "</think>");
/// Granite 3.3.
const GRANITE: ReasoningTags = ReasoningTags {
    content: Some(("<response>", "</response>")),
    ..THINK
};
/// Granite 3.2.
const GRANITE_WORDS: ReasoningTags = tags("Here is my thought process:", "Here is my response:");
/// Gemma 4.
const GEMMA: ReasoningTags = ReasoningTags {
    anywhere: true,
    ..tags("<|channel>thought", "<channel|>")
};
/// Magistral and Ministral.
const MISTRAL: ReasoningTags = tags("[THINK]", "[/THINK]");
/// Seed-OSS.
const SEED: ReasoningTags = tags("<seed:think>", "</seed:think>");

/// Variables by which templates keep the reasoning of earlier answers.
const KEEPING_VARIABLES: [(&str, bool); 3] = [
    ("preserve_thinking", true),
    ("clear_thinking", false),
    ("truncate_history_thinking", false),
];

impl ReasoningFormat {
    /// The format of a model, from the source of its chat template; without marks in it, from the special tokens.
    pub fn of_model(source: &str, tokenizer: &Tokenizer) -> ReasoningFormat {
        let special = |text: &str| tokenizer.special_token(text).is_some();
        match ReasoningFormat::of_template(source) {
            ReasoningFormat::None if special(THINK.close) => ReasoningFormat::Tagged(THINK),
            ReasoningFormat::None if special(MISTRAL.close) => ReasoningFormat::Tagged(MISTRAL),
            format => format,
        }
    }

    /// The format that the source of a chat template shows.
    pub fn of_template(source: &str) -> ReasoningFormat {
        let has = |mark: &str| source.contains(mark);
        let tagged = if has("<|channel|>") && has("<|message|>") {
            return ReasoningFormat::Harmony;
        } else if has("<|channel>") {
            GEMMA
        } else if has(SEED.open) {
            SEED
        } else if has(MISTRAL.open) {
            MISTRAL
        } else if has("Here is my thought process") {
            GRANITE_WORDS
        } else if has(THINK.open) && has("<response>") {
            GRANITE
        } else if has(THINK.open) || has(THINK.close) {
            THINK
        } else {
            return ReasoningFormat::None;
        };
        ReasoningFormat::Tagged(tagged)
    }

    /// The part of an answer that the end of its prompt has begun: templates may open the reasoning themselves.
    pub fn opened<'t>(&self, prompt_end: &'t str) -> &'t str {
        const HEADER: &str = "<|start|>assistant";
        match self {
            ReasoningFormat::None => "",
            ReasoningFormat::Tagged(tags) => {
                let end = prompt_end.trim_end();
                match end.ends_with(tags.open) {
                    true => &end[end.len() - tags.open.len()..],
                    false => "",
                }
            }
            ReasoningFormat::Harmony => match prompt_end.rfind(HEADER) {
                Some(at) => &prompt_end[at + HEADER.len()..],
                None => "",
            },
        }
    }

    /// The marks of the format.
    pub(crate) fn marks(&self) -> Vec<&'static str> {
        match self {
            ReasoningFormat::None => vec![],
            // Gemma's mark is a control token and a word.
            ReasoningFormat::Tagged(tags) if *tags == GEMMA => vec!["<|channel>", tags.close],
            ReasoningFormat::Tagged(tags) => vec![tags.open, tags.close],
            ReasoningFormat::Harmony => crate::harmony::MARKS.to_vec(),
        }
    }
}

/// The variables with which a template keeps the reasoning of earlier answers, of those that its source names.
pub fn keeping_variables(source: &str) -> Map<String, Value> {
    let named = KEEPING_VARIABLES
        .into_iter()
        .filter(|(name, _)| source.contains(name));
    named
        .map(|(name, value)| (name.to_owned(), value.into()))
        .collect()
}

/// Puts the reasoning of a message (`reasoning_content`) where the template looks for it; one that looks nowhere gets it in
/// the content, between the model's marks.
pub(crate) fn place_reasoning(message: &mut Value, source: &str) {
    let Some(reasoning) = message.get("reasoning_content").and_then(Value::as_str) else {
        return;
    };
    let reasoning = reasoning.to_owned();
    let thinking = [".thinking", "'thinking'", "\"thinking\""];
    let thinking = thinking.iter().any(|name| source.contains(name));
    if thinking {
        message["thinking"] = reasoning.clone().into();
        let called = message.get("tool_calls").is_some();
        // gpt-oss writes either before a call.
        if called && ReasoningFormat::of_template(source) == ReasoningFormat::Harmony {
            message["content"] = "".into();
        }
    }
    if thinking || source.contains("reasoning_content") {
        return;
    }
    if let ReasoningFormat::Tagged(tags) = ReasoningFormat::of_template(source) {
        let content = message["content"].as_str().unwrap_or_default();
        let (open, close) = (tags.open, tags.close);
        message["content"] = format!("{open}\n{reasoning}\n{close}\n\n{content}").into();
    }
}

/// Separates reasoning between marks from content, a character at a time.
pub(crate) struct TagSplitter {
    tags: ReasoningTags,
    state: State,
    /// Blanks, and what may begin a mark.
    held: String,
    /// Whether nothing of the part was shown: its leading blanks are not.
    fresh: bool,
    /// Whether there was reasoning.
    thought: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    /// Before the content, where reasoning can begin.
    Before,
    Reasoning,
    Content,
}

impl TagSplitter {
    pub(crate) fn new(tags: ReasoningTags) -> TagSplitter {
        TagSplitter {
            tags,
            state: State::Before,
            held: String::new(),
            fresh: false,
            thought: false,
        }
    }

    pub(crate) fn in_reasoning(&self) -> bool {
        self.state == State::Reasoning
    }

    /// Appends a character. `show` gets parts, with whether they are reasoning.
    pub(crate) fn push(&mut self, c: char, show: &mut impl FnMut(&str, bool)) {
        self.held.push(c);
        match self.state {
            State::Before => self.before(show),
            State::Reasoning => self.reasoning(show),
            State::Content => self.content(show),
        }
    }

    fn before(&mut self, show: &mut impl FnMut(&str, bool)) {
        let begun = self.held.trim_start();
        let wrap = self.tags.content.filter(|_| self.thought);
        let opens = [Some(self.tags.open), wrap.map(|(open, _)| open)];
        if begun == self.tags.open {
            (self.state, self.fresh, self.thought) = (State::Reasoning, true, true);
            self.held.clear();
        } else if wrap.is_some_and(|(open, _)| begun == open) {
            (self.state, self.fresh) = (State::Content, true);
            self.held.clear();
        } else if !opens.iter().flatten().any(|open| open.starts_with(begun)) {
            (self.state, self.fresh) = (State::Content, self.thought);
            self.content(show);
        }
    }

    fn reasoning(&mut self, show: &mut impl FnMut(&str, bool)) {
        let close = self.tags.close;
        if let Some(text) = self.held.strip_suffix(close) {
            show_part(text.trim_end(), true, &mut self.fresh, show);
            self.held.clear();
            self.state = State::Before;
            return;
        }
        let certain = self.held.len() - crate::tools::partial_suffix(&self.held, close);
        let certain = self.held[..certain].trim_end().len();
        show_part(&self.held[..certain], true, &mut self.fresh, show);
        self.held.drain(..certain);
    }

    fn content(&mut self, show: &mut impl FnMut(&str, bool)) {
        let end = self.tags.content.filter(|_| self.thought);
        let end = end.map_or("", |(_, end)| end);
        let open = match self.tags.anywhere {
            true => self.tags.open,
            false => "",
        };
        if !open.is_empty() && self.held.ends_with(open) {
            let text = &self.held[..self.held.len() - open.len()];
            show_part(text, false, &mut self.fresh, show);
            (self.state, self.fresh, self.thought) = (State::Reasoning, true, true);
            self.held.clear();
            return;
        }
        if !end.is_empty() && self.held.ends_with(end) {
            let text = &self.held[..self.held.len() - end.len()];
            show_part(text.trim_end(), false, &mut self.fresh, show);
            self.held.clear();
            return;
        }
        let partial = |mark| crate::tools::partial_suffix(&self.held, mark);
        let mut certain = self.held.len() - partial(open).max(partial(end));
        if !end.is_empty() {
            certain = self.held[..certain].trim_end().len();
        }
        show_part(&self.held[..certain], false, &mut self.fresh, show);
        self.held.drain(..certain);
    }

    /// Ends the answer.
    pub(crate) fn finish(mut self, show: &mut impl FnMut(&str, bool)) {
        let reasoning = self.state == State::Reasoning;
        self.fresh |= self.state == State::Before && self.thought;
        let text = match reasoning {
            true => self.held.trim_end(),
            false => &self.held,
        };
        show_part(text, reasoning, &mut self.fresh, show);
    }
}

/// Shows a part without the blanks at its beginning.
fn show_part(text: &str, reasoning: bool, fresh: &mut bool, show: &mut impl FnMut(&str, bool)) {
    let text = match *fresh {
        true => text.trim_start(),
        false => text,
    };
    if !text.is_empty() {
        *fresh = false;
        show(text, reasoning);
    }
}
