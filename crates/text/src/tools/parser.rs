//! `ToolParser`: separates the text of an answer from its tool calls.

use super::calls::{self, OfferedTools};
use super::{CLOSE, GRANITE_OPEN, LFM_CLOSE, LFM_OPEN, OPEN, ToolCall};
use serde_json::Value;

/// The marks around calls. Models are tolerant of each other's: all are looked for. A call without a closing mark goes to
/// the end of the answer.
const MARKS: [(&str, &str); 6] = [
    (OPEN, CLOSE),
    ("<TOOLCALL>", "</TOOLCALL>"),
    ("<|tool_call>", "<tool_call|>"),
    (LFM_OPEN, LFM_CLOSE),
    (GRANITE_OPEN, ""),
    (calls::FUNCTION, calls::FUNCTION_END),
];
const FENCE: &str = "```";
/// What can stand behind the opening of a fence with a call.
const FENCE_NAMES: [&str; 3] = ["json", "tool_call", ""];

/// Separates the text of an answer from its tool calls, as the text arrives.
pub struct ToolParser {
    tools: OfferedTools,
    state: State,
    /// Text that may be a part of a call.
    held: String,
    /// Whether text was shown.
    shown: bool,
    /// Whether the last shown character ended a line.
    line_ended: bool,
    /// Whether there was a call or its mark.
    called: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    /// In text: `held` is blanks and what may begin a mark.
    Text,
    /// After the opening mark of this index.
    Marked(usize),
    /// In JSON at the beginning of the answer, which may be a call.
    Json,
    /// In a fence, whose content may be a call.
    Fence,
}

impl ToolParser {
    /// A parser for these tools. Without tools, everything is text.
    pub fn new(tools: &[Value]) -> ToolParser {
        ToolParser {
            tools: OfferedTools::new(tools),
            state: State::Text,
            held: String::new(),
            shown: false,
            line_ended: true,
            called: false,
        }
    }

    /// Appends text. Returns what is certainly not part of a call, and the calls that are complete.
    pub fn push(&mut self, text: &str) -> (String, Vec<ToolCall>) {
        let (mut shown, mut calls) = (String::new(), vec![]);
        if self.tools.is_empty() {
            return (text.to_owned(), calls);
        }
        text.chars()
            .for_each(|c| self.step(c, &mut shown, &mut calls));
        (shown, calls)
    }

    fn step(&mut self, c: char, shown: &mut String, calls: &mut Vec<ToolCall>) {
        self.held.push(c);
        match self.state {
            State::Text => self.text(shown, calls),
            State::Marked(index) => {
                let (open, close) = MARKS[index];
                if close.is_empty() || !self.held.ends_with(close) {
                    return;
                }
                let held = std::mem::take(&mut self.held);
                self.state = State::Text;
                match self.marked(open, &held[..held.len() - close.len()]) {
                    Some(found) => calls.extend(found),
                    None => self.show(&format!("{open}{held}"), shown),
                }
            }
            State::Json => {
                if !calls::may_be_calls(&self.held) {
                    self.show_held(shown);
                }
            }
            State::Fence => self.fence(shown, calls),
        }
    }

    /// The calls between marks.
    fn marked(&self, open: &str, body: &str) -> Option<Vec<ToolCall>> {
        match open == calls::FUNCTION {
            true => self.tools.parse(&format!("{open}{body}")),
            false => self.tools.parse(body),
        }
    }

    fn text(&mut self, shown: &mut String, calls: &mut Vec<ToolCall>) {
        let begun = self.held.trim_start();
        if begun.is_empty() {
            return;
        }
        if let Some(index) = MARKS.iter().position(|(open, _)| *open == begun) {
            // Blanks before a mark are not shown.
            self.held.clear();
            (self.state, self.called) = (State::Marked(index), true);
            return;
        }
        if !self.shown && begun.starts_with(['{', '[']) {
            self.state = State::Json;
            return;
        }
        let blanks = &self.held[..self.held.len() - begun.len()];
        let begins_line = self.line_ended || blanks.contains('\n');
        if begins_line && begun == FENCE {
            self.state = State::Fence;
            return;
        }
        let opens = MARKS.iter().any(|(open, _)| open.starts_with(begun));
        if opens || begins_line && FENCE.starts_with(begun) {
            return;
        }
        // The first character begins no mark; those after it may.
        let first = begun.chars().next().map_or(0, char::len_utf8);
        let end = blanks.len() + first;
        let text: String = self.held.drain(..end).collect();
        self.show(&text, shown);
        let rest = std::mem::take(&mut self.held);
        for c in rest.chars() {
            self.step(c, shown, calls);
        }
    }

    /// `held` begins with a fence.
    fn fence(&mut self, shown: &mut String, calls: &mut Vec<ToolCall>) {
        let begun = self.held.trim_start();
        let rest = &begun[FENCE.len()..];
        let Some((name, body)) = rest.split_once('\n') else {
            let name = rest.trim();
            if !FENCE_NAMES.iter().any(|known| known.starts_with(name)) {
                self.show_held(shown);
            }
            return;
        };
        if !FENCE_NAMES.contains(&name.trim()) || !calls::may_be_calls(body) {
            return self.show_held(shown);
        }
        let Some(body) = body.strip_suffix(FENCE) else {
            return;
        };
        match self.tools.parse_known(body) {
            Some(found) => {
                calls.extend(found);
                (self.state, self.called) = (State::Text, true);
                self.held.clear();
            }
            None => self.show_held(shown),
        }
    }

    fn show_held(&mut self, shown: &mut String) {
        self.state = State::Text;
        let held = std::mem::take(&mut self.held);
        self.show(&held, shown);
    }

    fn show(&mut self, text: &str, shown: &mut String) {
        self.shown |= !text.trim().is_empty();
        self.line_ended = text.ends_with('\n');
        shown.push_str(text);
    }

    /// Ends the answer. Returns the remaining text and calls.
    pub fn finish(mut self) -> (String, Vec<ToolCall>) {
        let held = std::mem::take(&mut self.held);
        let blank = held.trim().is_empty();
        let found = match self.state {
            State::Text if blank && self.called => return (String::new(), vec![]),
            State::Text => None,
            // An answer may end without the closing mark, for example where its first token ends the generation.
            State::Marked(index) => {
                let calls = self.marked(MARKS[index].0, &held);
                calls.filter(|calls| self.tools.know(calls))
            }
            State::Json => self.tools.parse_known(&held),
            State::Fence => {
                let body = held.trim_start()[FENCE.len()..].split_once('\n');
                body.and_then(|(_, body)| self.tools.parse_known(body))
            }
        };
        match (found, self.state) {
            (Some(calls), _) => (String::new(), calls),
            (None, State::Marked(index)) => (format!("{}{held}", MARKS[index].0), vec![]),
            (None, _) => (held, vec![]),
        }
    }
}

/// The number of bytes at the end of `text` that may be the beginning of `mark`.
pub(crate) fn partial_suffix(text: &str, mark: &str) -> usize {
    let longest = mark.len().min(text.len());
    let begins = |n: &usize| {
        text.is_char_boundary(text.len() - n) && mark.starts_with(&text[text.len() - n..])
    };
    (1..=longest).rev().find(begins).unwrap_or(0)
}
