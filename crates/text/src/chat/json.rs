//! Formats JSON as Python's `json.dumps` does.

use std::fmt::Write;

use serde_json::Value as Json;

use super::private_use::is_private;

/// Formatting options of `json.dumps`.
#[derive(Debug, Default)]
pub(super) struct JsonStyle {
    /// Spaces per level; `None` writes everything on one line.
    pub(super) indent: Option<usize>,
    /// Escape non-ASCII characters as `\uXXXX`.
    pub(super) ascii: bool,
    /// Sort the keys.
    pub(super) sorted: bool,
    /// Separators between items, and between key and value; `None` for Python's defaults.
    pub(super) separators: Option<(String, String)>,
}

impl JsonStyle {
    /// The text of `value`.
    pub(super) fn write(&self, value: &Json) -> String {
        let mut out = String::new();
        self.value(value, 0, &mut out);
        out
    }

    fn value(&self, value: &Json, depth: usize, out: &mut String) {
        match value {
            Json::String(text) => self.string(text, out),
            Json::Array(items) => {
                self.group(['[', ']'], items.iter(), depth, out, |item, out| {
                    self.value(item, depth + 1, out)
                });
            }
            Json::Object(map) => {
                let mut entries: Vec<_> = map.iter().collect();
                if self.sorted {
                    entries.sort_by_key(|(key, _)| *key);
                }
                self.group(
                    ['{', '}'],
                    entries.into_iter(),
                    depth,
                    out,
                    |(key, item), out| {
                        self.string(key, out);
                        out.push_str(self.separators.as_ref().map_or(": ", |(_, colon)| colon));
                        self.value(item, depth + 1, out);
                    },
                );
            }
            plain => out.push_str(&plain.to_string()),
        }
    }

    fn group<T>(
        &self,
        [open, close]: [char; 2],
        items: impl ExactSizeIterator<Item = T>,
        depth: usize,
        out: &mut String,
        write: impl Fn(T, &mut String),
    ) {
        let empty = items.len() == 0;
        let comma = match (&self.separators, self.indent) {
            (Some((comma, _)), _) => comma,
            (None, Some(_)) => ",",
            (None, None) => ", ",
        };
        out.push(open);
        for (at, item) in items.enumerate() {
            if at > 0 {
                out.push_str(comma);
            }
            self.line(depth + 1, out);
            write(item, out);
        }
        if !empty {
            self.line(depth, out);
        }
        out.push(close);
    }

    fn line(&self, depth: usize, out: &mut String) {
        if let Some(indent) = self.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(
                ' ',
                indent.saturating_mul(depth).min(1 << 10),
            ));
        }
    }

    fn string(&self, text: &str, out: &mut String) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{C}' => out.push_str("\\f"),
                // Marks of prompts must stay what they are to be found again.
                c if c < ' ' || self.ascii && !c.is_ascii() && !is_private(c) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn json_as_python_dumps_it() {
        let value = json!({"b": [1, 2.5, null, true], "a": {}, "ü\n": "x\"🦙\u{1}"});
        let plain = JsonStyle::default();
        assert_eq!(
            plain.write(&value),
            "{\"b\": [1, 2.5, null, true], \"a\": {}, \"ü\\n\": \"x\\\"🦙\\u0001\"}"
        );
        let tight = JsonStyle {
            ascii: true,
            sorted: true,
            separators: Some((",".into(), ":".into())),
            indent: None,
        };
        assert_eq!(
            tight.write(&value),
            "{\"a\":{},\"b\":[1,2.5,null,true],\"\\u00fc\\n\":\"x\\\"\\ud83e\\udd99\\u0001\"}"
        );
        let wide = JsonStyle {
            indent: Some(2),
            ..JsonStyle::default()
        };
        assert_eq!(
            wide.write(&json!({"a": [1, {}], "b": []})),
            "{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\": []\n}"
        );
    }
}
