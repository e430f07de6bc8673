//! `LiteralCopy`: arguments in literals of Python and Gemma, written as JSON while their text arrives.

use super::literal::{Literals, MAX_NESTING, QUOTE, WORD_ENDS, unescape, word};
use super::partial_suffix;
use super::stream::escaped;
use serde_json::Value;

/// Reads the arguments of one call, from behind the mark that opens them, and writes them as JSON.
///
/// The JSON is that of [`Literals`], which reads a whole text. A key stated twice is written twice.
pub(super) struct LiteralCopy {
    /// The lists and maps that are open, the arguments first.
    open: Vec<Container>,
    place: Place,
}

struct Container {
    kind: ContainerKind,
    has_entries: bool,
}

#[derive(Clone, Copy)]
enum ContainerKind {
    /// `KEY=VALUE, …)`.
    Keywords,
    /// `KEY: VALUE, …}`.
    Map,
    /// `VALUE, …` and this character.
    List(char),
}

impl ContainerKind {
    fn close(self) -> char {
        match self {
            ContainerKind::Keywords => ')',
            ContainerKind::Map => '}',
            ContainerKind::List(close) => close,
        }
    }

    fn json_close(self) -> char {
        match self {
            ContainerKind::Keywords | ContainerKind::Map => '}',
            ContainerKind::List(_) => ']',
        }
    }
}

#[derive(Clone, Copy)]
enum Place {
    /// Before an entry of the last container, or its end.
    Entry,
    Value,
    /// In a string that ends with this mark.
    Text(&'static str),
    BehindValue,
}

/// How far [`LiteralCopy::read`] came.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Progress {
    /// All that is certain was read.
    Partial,
    /// The arguments ended.
    Ended,
    /// The text is no literal.
    Broken,
}

impl LiteralCopy {
    /// A reader of `KEY:VALUE,…}`.
    pub(super) fn map() -> LiteralCopy {
        LiteralCopy::of(ContainerKind::Map)
    }

    /// A reader of `KEY=VALUE,…)`.
    pub(super) fn keywords() -> LiteralCopy {
        LiteralCopy::of(ContainerKind::Keywords)
    }

    fn of(kind: ContainerKind) -> LiteralCopy {
        let has_entries = false;
        LiteralCopy {
            open: vec![Container { kind, has_entries }],
            place: Place::Entry,
        }
    }

    /// Removes from `text` all that is certain, and appends it to `out` as JSON.
    pub(super) fn read(&mut self, text: &mut String, out: &mut String) -> Progress {
        let mut rest = &text[..];
        let progress = loop {
            let stop = match self.place {
                Place::Entry => self.entry(&mut rest, out),
                Place::Value => self.value(&mut rest, out),
                Place::Text(end) => self.text(end, &mut rest, out),
                Place::BehindValue => self.behind_value(&mut rest),
            };
            if let Some(progress) = stop {
                break progress;
            }
        };
        let read = text.len() - rest.len();
        text.drain(..read);
        progress
    }

    /// Reads a key, the beginning of an item, or the end of the last container. Returns why reading stops.
    fn entry(&mut self, rest: &mut &str, out: &mut String) -> Option<Progress> {
        let begun = rest.trim_start();
        let Some(first) = begun.chars().next() else {
            return Some(Progress::Partial);
        };
        let Some(container) = self.open.last_mut() else {
            return Some(Progress::Ended);
        };
        if first == container.kind.close() {
            *rest = &begun[1..];
            out.push(container.kind.json_close());
            self.open.pop();
            self.place = Place::BehindValue;
            return self.open.is_empty().then_some(Progress::Ended);
        }
        let key = match container.kind {
            ContainerKind::Keywords => keyword(begun),
            ContainerKind::Map => map_key(begun),
            ContainerKind::List(_) => Ok((String::new(), begun)),
        };
        let (key, after) = match key {
            Ok(found) => found,
            Err(progress) => return Some(progress),
        };
        if std::mem::replace(&mut container.has_entries, true) {
            out.push(',');
        }
        if !matches!(container.kind, ContainerKind::List(_)) {
            out.push_str(&format!("{}:", Value::from(key)));
        }
        (*rest, self.place) = (after, Place::Value);
        None
    }

    /// Reads a word, or the beginning of another value.
    fn value(&mut self, rest: &mut &str, out: &mut String) -> Option<Progress> {
        let begun = rest.trim_start();
        if QUOTE.len() > begun.len() && QUOTE.starts_with(begun) {
            return Some(Progress::Partial);
        }
        for mark in [QUOTE, "'", "\""] {
            if let Some(text) = begun.strip_prefix(mark) {
                out.push('"');
                (*rest, self.place) = (text, Place::Text(mark));
                return None;
            }
        }
        let (kind, json_open) = match begun.as_bytes()[0] {
            b'[' => (ContainerKind::List(']'), '['),
            b'(' => (ContainerKind::List(')'), '['),
            b'{' => (ContainerKind::Map, '{'),
            _ => {
                let Some(end) = begun.find(WORD_ENDS) else {
                    return Some(Progress::Partial);
                };
                out.push_str(&word(&begun[..end]).to_string());
                (*rest, self.place) = (&begun[end..], Place::BehindValue);
                return None;
            }
        };
        if self.open.len() == MAX_NESTING {
            return Some(Progress::Broken);
        }
        out.push(json_open);
        let has_entries = false;
        self.open.push(Container { kind, has_entries });
        (*rest, self.place) = (&begun[1..], Place::Entry);
        None
    }

    /// Reads the text of a string.
    fn text(&mut self, end: &str, rest: &mut &str, out: &mut String) -> Option<Progress> {
        let text = *rest;
        let stop = match end {
            QUOTE => text.find(QUOTE),
            "'" => text.find(['\'', '\\']),
            _ => text.find(['"', '\\']),
        };
        let Some(at) = stop else {
            let certain = text.len() - partial_suffix(text, end);
            out.push_str(&escaped(&text[..certain]));
            *rest = &text[certain..];
            return Some(Progress::Partial);
        };
        out.push_str(&escaped(&text[..at]));
        *rest = &text[at..];
        if let Some(after) = rest.strip_prefix(end) {
            out.push('"');
            (*rest, self.place) = (after, Place::BehindValue);
            return None;
        }
        let Some((meaning, len)) = unescape(&rest[1..]) else {
            return Some(Progress::Partial);
        };
        out.push_str(&escaped(&meaning));
        *rest = &rest[1 + len..];
        None
    }

    fn behind_value(&mut self, rest: &mut &str) -> Option<Progress> {
        let begun = rest.trim_start();
        let progress = match (begun.chars().next(), self.open.last()) {
            (None, _) => Some(Progress::Partial),
            (Some(','), _) => {
                *rest = &begun[1..];
                None
            }
            (Some(c), Some(container)) if c == container.kind.close() => None,
            _ => Some(Progress::Broken),
        };
        if progress.is_none() {
            self.place = Place::Entry;
        }
        progress
    }
}

/// A key before `=`, and the text behind.
fn keyword(text: &str) -> Result<(String, &str), Progress> {
    let (key, after) = match text.split_once('=') {
        Some((key, after)) => (key, Some(after)),
        None => (text, None),
    };
    let key = key.trim();
    if key.is_empty() || !key.chars().all(|c| c.is_alphanumeric() || c == '_') {
        return Err(Progress::Broken);
    }
    let after = after.ok_or(Progress::Partial)?;
    Ok((key.to_owned(), after))
}

/// A key before `:`, quoted or not, and the text behind.
fn map_key(text: &str) -> Result<(String, &str), Progress> {
    if QUOTE.len() > text.len() && QUOTE.starts_with(text) {
        return Err(Progress::Partial);
    }
    let mut literals = Literals::new(text);
    let (key, rest) = match literals.string() {
        Some(key) => (key.ok_or(Progress::Partial)?, literals.rest().trim_start()),
        None => {
            let end = text.find([':', ',', '}']).ok_or(Progress::Partial)?;
            (text[..end].trim().to_owned(), &text[end..])
        }
    };
    match rest.strip_prefix(':') {
        Some(after) => Ok((key, after)),
        None if rest.is_empty() => Err(Progress::Partial),
        None => Err(Progress::Broken),
    }
}
