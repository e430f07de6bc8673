//! Literals of Python, and those that Gemma writes, as JSON values.

use serde_json::{Map, Value};

/// The maximum nesting of lists and maps.
pub(super) const MAX_NESTING: usize = 64;
/// Gemma's quotation mark.
pub(super) const QUOTE: &str = "<|\"|>";
/// The characters that end a value without quotation marks.
pub(super) const WORD_ENDS: [char; 4] = [',', '}', ']', ')'];

/// The value of a text that is one literal.
pub(super) fn parse(text: &str) -> Option<Value> {
    let mut literals = Literals::new(text);
    let value = literals.value()?;
    literals.rest().trim().is_empty().then_some(value)
}

/// A call as Python writes it.
pub(super) fn write_call(call: &Value) -> String {
    let name = call["name"].as_str().unwrap_or_default();
    let arguments = call["arguments"].as_object().into_iter().flatten();
    let arguments: Vec<String> = arguments
        .map(|(key, value)| format!("{key}={}", write(value)))
        .collect();
    format!("{name}({})", arguments.join(", "))
}

/// A value as Python writes it; strings as in JSON.
fn write(value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(write).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(map) => {
            let entry = |(key, value): (&String, &Value)| {
                format!("{}: {}", Value::from(key.as_str()), write(value))
            };
            let entries: Vec<String> = map.iter().map(entry).collect();
            format!("{{{}}}", entries.join(", "))
        }
        plain => plain.to_string(),
    }
}

/// Reads literals from the beginning of a text.
pub(super) struct Literals<'t> {
    rest: &'t str,
    depth: usize,
}

impl<'t> Literals<'t> {
    pub(super) fn new(text: &'t str) -> Literals<'t> {
        Literals {
            rest: text,
            depth: 0,
        }
    }

    /// The text that is not read yet.
    pub(super) fn rest(&self) -> &'t str {
        self.rest
    }

    fn take(&mut self, text: &str) -> bool {
        self.rest = self.rest.trim_start();
        let after = self.rest.strip_prefix(text);
        self.rest = after.unwrap_or(self.rest);
        after.is_some()
    }

    /// `KEY=VALUE, …)`.
    pub(super) fn keywords(&mut self) -> Option<Map<String, Value>> {
        let mut map = Map::new();
        while !self.take(")") {
            let (key, after) = self.rest.split_once('=')?;
            let key = key.trim();
            if key.is_empty() || !key.chars().all(|c| c.is_alphanumeric() || c == '_') {
                return None;
            }
            self.rest = after;
            map.insert(key.to_owned(), self.value()?);
            if !self.take(",") && !self.rest.starts_with(')') {
                return None;
            }
        }
        Some(map)
    }

    /// The next value.
    pub(super) fn value(&mut self) -> Option<Value> {
        self.rest = self.rest.trim_start();
        if let Some(text) = self.string() {
            return text.map(Value::from);
        }
        self.depth += 1;
        let value = match self.rest.chars().next()? {
            _ if self.depth > MAX_NESTING => None,
            '[' => self.list("[", "]"),
            '(' => self.list("(", ")"),
            '{' => self.map(),
            _ => Some(self.word()),
        };
        self.depth -= 1;
        value
    }

    fn list(&mut self, open: &str, close: &str) -> Option<Value> {
        self.take(open);
        let mut items = vec![];
        while !self.take(close) {
            items.push(self.value()?);
            if !self.take(",") && !self.rest.starts_with(close) {
                return None;
            }
        }
        Some(items.into())
    }

    fn map(&mut self) -> Option<Value> {
        self.take("{");
        let mut map = Map::new();
        while !self.take("}") {
            let key = match self.string() {
                Some(key) => key?,
                None => {
                    let end = self.rest.find([':', ',', '}'])?;
                    let (key, rest) = self.rest.split_at(end);
                    self.rest = rest;
                    key.trim().to_owned()
                }
            };
            if !self.take(":") {
                return None;
            }
            map.insert(key, self.value()?);
            if !self.take(",") && !self.rest.starts_with('}') {
                return None;
            }
        }
        Some(Value::Object(map))
    }

    /// A quoted text, if one is next; `Some(None)` if it does not end.
    pub(super) fn string(&mut self) -> Option<Option<String>> {
        if let Some(text) = self.rest.strip_prefix(QUOTE) {
            return Some(text.split_once(QUOTE).map(|(text, rest)| {
                self.rest = rest;
                text.to_owned()
            }));
        }
        let quote = self.rest.chars().next().filter(|c| "'\"".contains(*c))?;
        let mut text = String::new();
        let mut chars = self.rest[1..].chars();
        while let Some(c) = chars.next() {
            match c {
                _ if c == quote => {
                    self.rest = chars.as_str();
                    return Some(Some(text));
                }
                '\\' => {
                    let Some((meaning, len)) = unescape(chars.as_str()) else {
                        return Some(None);
                    };
                    text.push_str(&meaning);
                    chars = chars.as_str()[len..].chars();
                }
                c => text.push(c),
            }
        }
        Some(None)
    }

    fn word(&mut self) -> Value {
        let end = self.rest.find(WORD_ENDS);
        let (text, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        self.rest = rest;
        word(text)
    }
}

/// The value of a text without quotation marks: a number, a named constant, or else the text.
pub(super) fn word(text: &str) -> Value {
    match text.trim() {
        "true" | "True" => true.into(),
        "false" | "False" => false.into(),
        "null" | "None" => Value::Null,
        text => match serde_json::from_str(text) {
            Ok(number) => Value::Number(number),
            Err(_) => text.into(),
        },
    }
}

/// The meaning of a backslash before this text, and the length of the text that belongs to it. `None` if the text is cut.
pub(super) fn unescape(text: &str) -> Option<(String, usize)> {
    let c = text.chars().next()?;
    let meaning = match c {
        'n' => '\n',
        't' => '\t',
        'r' => '\r',
        '\\' | '\'' | '"' | '/' => c,
        'u' => {
            let is_hex = |c: char| c.is_ascii_hexdigit();
            let digits = text[1..].split(|c| !is_hex(c)).next().unwrap_or_default();
            if digits.len() < 4 && 1 + digits.len() == text.len() {
                return None;
            }
            let code = digits
                .get(..4)
                .and_then(|code| u32::from_str_radix(code, 16).ok());
            return Some(match code.and_then(char::from_u32) {
                Some(c) => (c.to_string(), 5),
                None => ("\\u".to_owned(), 1),
            });
        }
        c => return Some((String::from_iter(['\\', c]), c.len_utf8())),
    };
    Some((meaning.to_string(), 1))
}
