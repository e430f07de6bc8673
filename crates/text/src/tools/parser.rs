//! `ToolParser`: separates the text of an answer from its tool calls.

use super::calls::{self, OfferedTools};
use super::stream::CallStream;
use super::{CLOSE, GRANITE_OPEN, LFM_CLOSE, LFM_OPEN, OPEN, ToolCall, ToolPart};
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
    /// The arguments of the calls in `held`, of which it knows the first `followed` bytes.
    stream: CallStream,
    followed: usize,
    /// Text that may be a part of a call.
    held: String,
    /// The first line of the fence that the text stands in.
    fence_line: String,
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
    /// In the first line of a fence.
    FenceLine,
    /// In the text of a fence, which may be a call: behind the first line.
    Fence,
}

impl ToolParser {
    /// A parser for these tools. Without tools, everything is text.
    pub fn new(tools: &[Value]) -> ToolParser {
        ToolParser {
            tools: OfferedTools::new(tools),
            state: State::Text,
            stream: CallStream::new(),
            followed: 0,
            held: String::new(),
            fence_line: String::new(),
            shown: false,
            line_ended: true,
            called: false,
        }
    }

    /// Appends text. Returns the text that is certainly not part of a call, the calls that are complete, and pieces of one that is
    /// certainly a call.
    pub fn push(&mut self, text: &str) -> Vec<ToolPart> {
        if self.tools.is_empty() {
            return Vec::from_iter((!text.is_empty()).then(|| ToolPart::Text(text.to_owned())));
        }
        let mut out = vec![];
        text.chars().for_each(|c| self.step(c, &mut out));
        out
    }

    fn step(&mut self, c: char, out: &mut Vec<ToolPart>) {
        self.held.push(c);
        match self.state {
            State::Text => self.text(out),
            State::Marked(index) => {
                let (open, close) = MARKS[index];
                if close.is_empty() || !self.held.ends_with(close) {
                    self.follow(close, out);
                    return;
                }
                let held = std::mem::take(&mut self.held);
                self.state = State::Text;
                let body = &held[..held.len() - close.len()];
                let found = self.marked(open, body);
                // The marks around one function belong to its text.
                let whole = match open == calls::FUNCTION {
                    true => &held,
                    false => body,
                };
                if !self.end_stream(whole, found.as_deref(), out) {
                    match found {
                        Some(found) => out.extend(found.into_iter().map(ToolPart::Call)),
                        None => self.show(&format!("{open}{held}"), out),
                    }
                }
            }
            State::Json => {
                if !self.stream.has_begun() && !calls::may_be_calls(&self.held) {
                    return self.show_held(out);
                }
                self.follow("", out);
            }
            State::FenceLine => self.fence_line(out),
            State::Fence => self.fence(out),
        }
    }

    /// Gives the state's text to the stream, as far as it is certainly no part of the closing mark.
    fn follow(&mut self, close: &str, out: &mut Vec<ToolPart>) {
        let certain = self.held.len() - partial_suffix(&self.held, close);
        let Some(new) = self.held.get(self.followed..certain) else {
            return;
        };
        new.chars()
            .for_each(|c| self.stream.push(c, &self.tools, out));
        self.followed = certain;
    }

    /// Ends the stream of the calls in `body`. If it has begun a call, its calls stand, and of the calls that the whole text has, those
    /// after them follow. Returns false if it has begun none.
    fn end_stream(
        &mut self,
        body: &str,
        found: Option<&[ToolCall]>,
        out: &mut Vec<ToolPart>,
    ) -> bool {
        let mut stream = std::mem::replace(&mut self.stream, CallStream::new());
        let followed = std::mem::take(&mut self.followed);
        let new = body.get(followed..).unwrap_or_default();
        new.chars().for_each(|c| stream.push(c, &self.tools, out));
        if !stream.has_begun() {
            return false;
        }
        let (count, rest) = stream.finish(&self.tools, out);
        match found {
            Some(found) => out.extend(found.iter().skip(count).cloned().map(ToolPart::Call)),
            None => {
                let ends = |c: char| "{}[],; \n\r\t".contains(c);
                let rest = rest.trim_matches(ends);
                if !rest.is_empty() {
                    self.show(rest, out);
                }
            }
        }
        self.called = true;
        true
    }

    /// The calls between marks.
    fn marked(&self, open: &str, body: &str) -> Option<Vec<ToolCall>> {
        match open == calls::FUNCTION {
            true => self.tools.parse(&format!("{open}{body}")),
            false => self.tools.parse(body),
        }
    }

    fn text(&mut self, out: &mut Vec<ToolPart>) {
        let begun = self.held.trim_start();
        if begun.is_empty() {
            return;
        }
        if let Some(index) = MARKS.iter().position(|(open, _)| *open == begun) {
            // Blanks before a mark are not shown.
            self.held.clear();
            (self.state, self.called) = (State::Marked(index), true);
            self.follow_new();
            if MARKS[index].0 == calls::FUNCTION {
                let mark = calls::FUNCTION.chars();
                mark.for_each(|c| self.stream.push(c, &self.tools, out));
            }
            return;
        }
        if !self.shown && begun.starts_with(['{', '[']) {
            self.state = State::Json;
            self.follow_new();
            return;
        }
        let blanks = &self.held[..self.held.len() - begun.len()];
        let begins_line = self.line_ended || blanks.contains('\n');
        if begins_line && begun == FENCE {
            self.state = State::FenceLine;
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
        self.show(&text, out);
        let rest = std::mem::take(&mut self.held);
        for c in rest.chars() {
            self.step(c, out);
        }
    }

    /// Begins to follow calls.
    fn follow_new(&mut self) {
        (self.stream, self.followed) = (CallStream::new(), 0);
    }

    /// `held` begins with a fence.
    fn fence_line(&mut self, out: &mut Vec<ToolPart>) {
        let name = self.held.trim_start()[FENCE.len()..].trim_start_matches([' ', '\t']);
        let known = match name.strip_suffix('\n') {
            Some(name) => FENCE_NAMES.contains(&name.trim()),
            None => FENCE_NAMES
                .iter()
                .any(|known| known.starts_with(name.trim())),
        };
        if !known {
            return self.show_held(out);
        }
        if name.ends_with('\n') {
            self.fence_line = std::mem::take(&mut self.held);
            self.state = State::Fence;
            self.follow_new();
        }
    }

    /// `held` is the text of a fence.
    fn fence(&mut self, out: &mut Vec<ToolPart>) {
        if !self.stream.has_begun() && !calls::may_be_calls(&self.held) {
            return self.show_held(out);
        }
        if !self.held.ends_with(FENCE) || self.stream.in_json_string() {
            return self.follow(FENCE, out);
        }
        let body = self.held[..self.held.len() - FENCE.len()].to_owned();
        let found = self.tools.parse_known(&body);
        if !self.end_stream(&body, found.as_deref(), out) {
            match found {
                Some(found) => out.extend(found.into_iter().map(ToolPart::Call)),
                None => return self.show_held(out),
            }
        }
        (self.state, self.called) = (State::Text, true);
        self.held.clear();
        self.fence_line.clear();
    }

    fn show_held(&mut self, out: &mut Vec<ToolPart>) {
        self.state = State::Text;
        let held = std::mem::take(&mut self.fence_line) + &std::mem::take(&mut self.held);
        self.show(&held, out);
    }

    fn show(&mut self, text: &str, out: &mut Vec<ToolPart>) {
        if text.is_empty() {
            return;
        }
        self.shown |= !text.trim().is_empty();
        self.line_ended = text.ends_with('\n');
        match out.last_mut() {
            Some(ToolPart::Text(last)) => last.push_str(text),
            _ => out.push(ToolPart::Text(text.to_owned())),
        }
    }

    /// Ends the answer. Returns the remaining text and calls.
    pub fn finish(mut self) -> Vec<ToolPart> {
        let mut out = vec![];
        let held = std::mem::take(&mut self.held);
        let blank = held.trim().is_empty();
        let found = match self.state {
            State::Text if blank && self.called => return out,
            State::Text => None,
            // An answer may end without the closing mark, for example where its first token ends the generation.
            State::Marked(index) => {
                let calls = self.marked(MARKS[index].0, &held);
                calls.filter(|calls| self.tools.know(calls))
            }
            State::FenceLine => None,
            State::Json | State::Fence => self.tools.parse_known(&held),
        };
        let streams = matches!(self.state, State::Marked(_) | State::Json | State::Fence);
        if streams && self.end_stream(&held, found.as_deref(), &mut out) {
            return out;
        }
        match (found, self.state) {
            (Some(calls), _) => out.extend(calls.into_iter().map(ToolPart::Call)),
            (None, State::Marked(index)) => {
                self.show(&format!("{}{held}", MARKS[index].0), &mut out);
            }
            (None, _) => {
                self.held = held;
                self.show_held(&mut out);
            }
        }
        out
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
