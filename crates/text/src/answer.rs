//! `AnswerParser`: separates an answer's reasoning, content and tool calls while its text arrives.

use crate::Tokenizer;
use crate::harmony::{HarmonyPart, HarmonySplitter};
use crate::reasoning::{ReasoningFormat, TagSplitter};
use crate::tools::{CallPiece, ToolCall, ToolFormat, ToolParser, ToolPart};
use serde_json::Value;

/// How a model writes its answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerFormat {
    /// How it marks reasoning.
    pub reasoning: ReasoningFormat,
    /// How it states tool calls.
    pub tools: ToolFormat,
}

impl AnswerFormat {
    /// The format of a model, from the source of its chat template and its special tokens.
    pub fn of_model(source: &str, tokenizer: &Tokenizer) -> AnswerFormat {
        AnswerFormat {
            reasoning: ReasoningFormat::of_model(source, tokenizer),
            tools: ToolFormat::of_model(source, tokenizer),
        }
    }

    /// The control tokens that are marks of the format. The parser needs their text, which is hidden otherwise.
    pub fn control_tokens(&self, tokenizer: &Tokenizer, has_tools: bool) -> Vec<u32> {
        let mut marks = self.reasoning.marks();
        if has_tools {
            marks.extend(self.tools.marks());
        }
        let id = |mark: &&str| tokenizer.special_token(mark);
        let hidden = |id: &u32| tokenizer.kind(*id).is_some_and(crate::TokenKind::is_hidden);
        let ids = marks.iter().filter_map(id).filter(hidden);
        ids.filter(|id| !tokenizer.is_eog(*id)).collect()
    }
}

/// A part of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum AnswerPart {
    /// Reasoning.
    Reasoning(String),
    /// Content: what is said to the user.
    Content(String),
    /// A piece of a tool call that goes on.
    CallPiece(CallPiece),
    /// A complete tool call. Its pieces may have come before, all of them or none.
    Call(ToolCall),
}

/// Separates the parts of an answer. However the text is divided, the parts are the same.
pub struct AnswerParser {
    splitter: Splitter,
    tools: ToolParser,
    has_tools: bool,
    parts: Vec<AnswerPart>,
}

enum Splitter {
    None,
    Tags(TagSplitter),
    Harmony(HarmonySplitter),
}

impl AnswerParser {
    /// A parser of answers to prompts with these tools.
    pub fn new(format: AnswerFormat, tools: &[Value]) -> AnswerParser {
        AnswerParser {
            splitter: match format.reasoning {
                ReasoningFormat::None => Splitter::None,
                ReasoningFormat::Tagged(tags) => Splitter::Tags(TagSplitter::new(tags)),
                ReasoningFormat::Harmony => Splitter::Harmony(HarmonySplitter::new()),
            },
            tools: ToolParser::new(tools),
            has_tools: !tools.is_empty(),
            parts: vec![],
        }
    }

    /// Whether the text stands in reasoning.
    pub fn in_reasoning(&self) -> bool {
        match &self.splitter {
            Splitter::None => false,
            Splitter::Tags(splitter) => splitter.in_reasoning(),
            Splitter::Harmony(splitter) => splitter.in_reasoning(),
        }
    }

    /// Begins after this text of the answer, whose parts nobody needs.
    pub fn begin_after(&mut self, text: &str) {
        self.push(text);
    }

    /// Appends text. Returns the parts that are certain.
    pub fn push(&mut self, text: &str) -> Vec<AnswerPart> {
        let (splitter, tools, parts) = (&mut self.splitter, &mut self.tools, &mut self.parts);
        match splitter {
            Splitter::None => content(tools, text, parts),
            Splitter::Tags(splitter) => {
                for c in text.chars() {
                    splitter.push(c, &mut |text, reasoning| match reasoning {
                        true => add_reasoning(text, parts),
                        false => content(tools, text, parts),
                    });
                }
            }
            Splitter::Harmony(splitter) => {
                let has_tools = self.has_tools;
                for c in text.chars() {
                    splitter.push(c, &mut |part| harmony(part, has_tools, tools, parts));
                }
            }
        }
        std::mem::take(&mut self.parts)
    }

    /// Ends the answer. Returns the remaining parts.
    pub fn finish(self) -> Vec<AnswerPart> {
        let (mut tools, mut parts) = (self.tools, self.parts);
        match self.splitter {
            Splitter::None => {}
            Splitter::Tags(splitter) => splitter.finish(&mut |text, reasoning| match reasoning {
                true => add_reasoning(text, &mut parts),
                false => content(&mut tools, text, &mut parts),
            }),
            Splitter::Harmony(splitter) => {
                let has_tools = self.has_tools;
                splitter.finish(&mut |part| harmony(part, has_tools, &mut tools, &mut parts));
            }
        }
        add_parts(tools.finish(), &mut parts);
        parts
    }
}

fn harmony(
    part: HarmonyPart<'_>,
    has_tools: bool,
    tools: &mut ToolParser,
    parts: &mut Vec<AnswerPart>,
) {
    match part {
        HarmonyPart::Reasoning(text) => add_reasoning(text, parts),
        HarmonyPart::Content(text) => content(tools, text, parts),
        HarmonyPart::Piece(recipient, text) if has_tools => {
            let name = recipient.map(|name| name.strip_prefix("functions.").unwrap_or(name));
            let piece = CallPiece {
                name: name.map(str::to_owned),
                arguments: text.to_owned(),
            };
            add_piece(piece, parts);
        }
        HarmonyPart::Piece(..) => {}
        HarmonyPart::Call(recipient, body) if has_tools => {
            let name = recipient.strip_prefix("functions.").unwrap_or(recipient);
            parts.push(AnswerPart::Call(ToolCall {
                name: name.to_owned(),
                arguments: if body.is_empty() { "{}" } else { body }.to_owned(),
            }));
        }
        HarmonyPart::Call(_, body) => add_content(body, parts),
    }
}

fn content(tools: &mut ToolParser, text: &str, parts: &mut Vec<AnswerPart>) {
    add_parts(tools.push(text), parts);
}

fn add_parts(found: Vec<ToolPart>, parts: &mut Vec<AnswerPart>) {
    for part in found {
        match part {
            ToolPart::Text(text) => add_content(&text, parts),
            ToolPart::Piece(piece) => add_piece(piece, parts),
            ToolPart::Call(call) => parts.push(AnswerPart::Call(call)),
        }
    }
}

/// Adds a piece of a call to the one before it.
fn add_piece(piece: CallPiece, parts: &mut Vec<AnswerPart>) {
    match parts.last_mut() {
        Some(AnswerPart::CallPiece(last)) if piece.name.is_none() => {
            last.arguments.push_str(&piece.arguments);
        }
        _ => parts.push(AnswerPart::CallPiece(piece)),
    }
}

fn add_content(text: &str, parts: &mut Vec<AnswerPart>) {
    match parts.last_mut() {
        _ if text.is_empty() => {}
        Some(AnswerPart::Content(last)) => last.push_str(text),
        _ => parts.push(AnswerPart::Content(text.to_owned())),
    }
}

fn add_reasoning(text: &str, parts: &mut Vec<AnswerPart>) {
    match parts.last_mut() {
        _ if text.is_empty() => {}
        Some(AnswerPart::Reasoning(last)) => last.push_str(text),
        _ => parts.push(AnswerPart::Reasoning(text.to_owned())),
    }
}

#[cfg(test)]
mod tests;
