//! The messages that gpt-oss's answers consist of: each has a header with a channel and perhaps a recipient.

use crate::tools::partial_suffix;

const CHANNEL: &str = "<|channel|>";
const MESSAGE: &str = "<|message|>";
const START: &str = "<|start|>";
const CONSTRAIN: &str = "<|constrain|>";
const ENDS: [&str; 3] = ["<|end|>", "<|call|>", "<|return|>"];

/// The tokens of the format.
pub(crate) const MARKS: [&str; 7] = [
    CHANNEL, MESSAGE, START, CONSTRAIN, ENDS[0], ENDS[1], ENDS[2],
];

/// The longest header, in bytes; more is content.
const MAX_HEADER: usize = 256;

/// What a message of an answer is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum HarmonyPart<'t> {
    Reasoning(&'t str),
    Content(&'t str),
    /// A piece of a call's body, the first one with its recipient.
    Piece(Option<&'t str>, &'t str),
    /// A call's recipient and its whole body.
    Call(&'t str, &'t str),
}

#[derive(Clone, Debug, PartialEq)]
enum State {
    /// In a header, or between messages.
    Header,
    Reasoning,
    Content,
    /// In the body of a call to this recipient.
    Call(String),
}

/// Separates the messages of an answer, a character at a time.
pub(crate) struct HarmonySplitter {
    state: State,
    held: String,
    /// The number of bytes of a call's body, without the blanks before it, that were given as pieces.
    given: usize,
}

impl HarmonySplitter {
    pub(crate) fn new() -> HarmonySplitter {
        HarmonySplitter {
            state: State::Header,
            held: String::new(),
            given: 0,
        }
    }

    pub(crate) fn in_reasoning(&self) -> bool {
        self.state == State::Reasoning
    }

    /// Appends a character.
    pub(crate) fn push(&mut self, c: char, show: &mut impl FnMut(HarmonyPart<'_>)) {
        self.held.push(c);
        if self.state == State::Header {
            return self.header(show);
        }
        let Some(mark) = MARKS.iter().find(|mark| self.held.ends_with(**mark)) else {
            let partial = MARKS.iter().map(|mark| partial_suffix(&self.held, mark));
            let certain = self.held.len() - partial.max().unwrap_or(0);
            if let State::Call(recipient) = &self.state {
                let body = self.held[..certain].trim();
                if let Some(new) = body.get(self.given..).filter(|new| !new.is_empty()) {
                    let name = (self.given == 0).then_some(&**recipient);
                    show(HarmonyPart::Piece(name, new));
                    self.given = body.len();
                }
            } else {
                let text: String = self.held.drain(..certain).collect();
                self.show(&text, show);
            }
            return;
        };
        let held = std::mem::take(&mut self.held);
        self.show(&held[..held.len() - mark.len()], show);
        self.state = State::Header;
        if *mark == CHANNEL {
            self.held.push_str(CHANNEL);
        }
    }

    fn header(&mut self, show: &mut impl FnMut(HarmonyPart<'_>)) {
        if let Some(header) = self.held.strip_suffix(MESSAGE) {
            self.state = state_of(header);
            self.held.clear();
            return;
        }
        let begun = self.held.trim_start();
        let beginnings = [CHANNEL, MESSAGE, START, CONSTRAIN, "assistant", "to="];
        let fits = |begin: &&str| begin.starts_with(begun) || begun.starts_with(*begin);
        if self.held.len() > MAX_HEADER || !beginnings.iter().any(fits) {
            self.state = State::Content;
            let held = std::mem::take(&mut self.held);
            held.chars().for_each(|c| self.push(c, show));
        }
    }

    fn show(&mut self, text: &str, show: &mut impl FnMut(HarmonyPart<'_>)) {
        let given = std::mem::take(&mut self.given);
        match &self.state {
            State::Call(recipient) => {
                let body = text.trim();
                if let Some(new) = body.get(given..).filter(|new| given > 0 && !new.is_empty()) {
                    show(HarmonyPart::Piece(None, new));
                }
                show(HarmonyPart::Call(recipient, body));
            }
            _ if text.is_empty() => {}
            State::Reasoning => show(HarmonyPart::Reasoning(text)),
            State::Content => show(HarmonyPart::Content(text)),
            State::Header => {}
        }
    }

    /// Ends the answer.
    pub(crate) fn finish(mut self, show: &mut impl FnMut(HarmonyPart<'_>)) {
        let held = std::mem::take(&mut self.held);
        let is_header = self.state == State::Header;
        if is_header && !held.trim().is_empty() && !held.contains("<|") {
            self.state = State::Content;
        }
        self.show(&held, show);
    }
}

/// What follows a header such as `<|channel|>commentary to=functions.add <|constrain|>json`.
fn state_of(header: &str) -> State {
    let word = |rest: &str| -> String {
        let end = rest.find(|c: char| c.is_whitespace() || c == '<');
        rest[..end.unwrap_or(rest.len())].to_owned()
    };
    if let Some(at) = header.find("to=") {
        return State::Call(word(&header[at + "to=".len()..]));
    }
    let channel = header.find(CHANNEL);
    let channel = channel.map(|at| word(header[at + CHANNEL.len()..].trim_start()));
    match channel.as_deref() {
        Some("analysis") => State::Reasoning,
        _ => State::Content,
    }
}
