//! Translates llama.cpp's GBNF grammars to Lark.

use crate::GrammarError;
use crate::limits::{MAX_NESTING, MAX_RULES, at_most};
use std::collections::BTreeSet;
use std::fmt::Write;

/// The Lark grammar of a GBNF grammar: `root` becomes `start`, characters become regular expressions.
pub(crate) fn to_lark(source: &str) -> Result<String, GrammarError> {
    let mut parser = Parser {
        rest: source,
        line: 1,
        used: BTreeSet::new(),
        nesting: 0,
    };
    let mut lark = String::new();
    let mut defined = BTreeSet::new();
    loop {
        parser.skip(true);
        if parser.rest.is_empty() {
            break;
        }
        let name = parser.name()?;
        parser.skip(false);
        if !parser.eat("::=") {
            return Err(parser.error(format!("the rule {name:?} is not followed by ::=")));
        }
        parser.skip(true);
        let body = parser.alternatives(false)?;
        if !defined.insert(name.clone()) {
            return Err(parser.error(format!("the rule {name:?} is defined twice")));
        }
        at_most("rules of the grammar", defined.len(), MAX_RULES)?;
        writeln!(lark, "{}: {body}", rule_name(&name)).expect("a string");
    }
    let missing = parser.used.iter().find(|(name, _)| !defined.contains(name));
    if let Some((name, line)) = missing {
        return Err(GrammarError::Gbnf {
            line: *line,
            message: format!("the rule {name:?} is not defined"),
        });
    }
    match defined.contains("root") {
        true => Ok(lark),
        false => Err(GrammarError::Gbnf {
            line: parser.line,
            message: "there is no rule \"root\"".to_owned(),
        }),
    }
}

/// A rule's name in Lark, where dashes are not allowed and capitals mean terminals.
fn rule_name(name: &str) -> String {
    match name {
        "root" => "start".to_owned(),
        _ => {
            let mut lark = "r_".to_owned();
            for c in name.chars() {
                match c {
                    '-' => lark.push_str("_d_"),
                    'A'..='Z' => {
                        lark.push_str("_u_");
                        lark.push(c.to_ascii_lowercase());
                    }
                    _ => lark.push(c),
                }
            }
            lark
        }
    }
}

struct Parser<'a> {
    rest: &'a str,
    line: usize,
    /// The rules that are used, with the line of a use.
    used: BTreeSet<(String, usize)>,
    /// The number of groups that are open.
    nesting: usize,
}

impl Parser<'_> {
    fn error(&self, message: String) -> GrammarError {
        GrammarError::Gbnf {
            line: self.line,
            message,
        }
    }

    fn take(&mut self) -> Option<char> {
        let c = self.rest.chars().next()?;
        self.rest = &self.rest[c.len_utf8()..];
        self.line += usize::from(c == '\n');
        Some(c)
    }

    fn eat(&mut self, text: &str) -> bool {
        let found = self.rest.starts_with(text);
        if found {
            self.rest = &self.rest[text.len()..];
        }
        found
    }

    /// Skips blanks and comments, and line ends if `lines`.
    fn skip(&mut self, lines: bool) {
        while let Some(c) = self.rest.chars().next() {
            match c {
                ' ' | '\t' | '\r' => _ = self.take(),
                '\n' if lines => _ = self.take(),
                '#' => {
                    let end = self.rest.find('\n').unwrap_or(self.rest.len());
                    self.rest = &self.rest[end..];
                }
                _ => return,
            }
        }
    }

    fn name(&mut self) -> Result<String, GrammarError> {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let end = self.rest.find(|c| !is_part(c)).unwrap_or(self.rest.len());
        if end == 0 {
            let found: String = self.rest.chars().take(10).collect();
            return Err(self.error(format!("expected a rule name, found {found:?}")));
        }
        let name = self.rest[..end].to_owned();
        self.rest = &self.rest[end..];
        Ok(name)
    }

    /// Alternatives up to the end of the rule, or up to `)` if `nested`.
    fn alternatives(&mut self, nested: bool) -> Result<String, GrammarError> {
        let mut all = vec![self.sequence(nested)?];
        while self.eat("|") {
            self.skip(true);
            all.push(self.sequence(nested)?);
        }
        Ok(all.join(" | "))
    }

    fn sequence(&mut self, nested: bool) -> Result<String, GrammarError> {
        let mut items: Vec<String> = vec![];
        loop {
            self.skip(nested);
            let item = match self.rest.chars().next() {
                Some('"') => self.literal()?,
                Some('[') => self.class()?,
                Some('.') => {
                    self.take();
                    "/(?s:.)/".to_owned()
                }
                Some('(') => {
                    self.take();
                    self.nesting += 1;
                    at_most("nested groups of the grammar", self.nesting, MAX_NESTING)?;
                    self.skip(true);
                    let inner = self.alternatives(true)?;
                    self.nesting -= 1;
                    self.skip(true);
                    if !self.eat(")") {
                        return Err(self.error("a group is not closed".to_owned()));
                    }
                    format!("({inner})")
                }
                Some(c) if c.is_ascii_alphabetic() => {
                    let line = self.line;
                    let name = self.name()?;
                    let lark = rule_name(&name);
                    self.used.insert((name, line));
                    lark
                }
                _ => break,
            };
            let item = self.repetition(item)?;
            items.push(item);
        }
        let empty = matches!(self.rest.chars().next(), None | Some('\n' | '|' | ')'));
        match (items.is_empty(), empty) {
            (_, false) => {
                let found = self.rest.chars().next().unwrap_or(' ');
                Err(self.error(format!("unexpected {found:?}")))
            }
            (true, true) => Ok("\"\"".to_owned()),
            (false, true) => Ok(items.join(" ")),
        }
    }

    fn repetition(&mut self, item: String) -> Result<String, GrammarError> {
        for mark in ["*", "+", "?"] {
            if self.eat(mark) {
                return Ok(format!("{item}{mark}"));
            }
        }
        if !self.eat("{") {
            return Ok(item);
        }
        let end = self.rest.find('}');
        let end = end.ok_or_else(|| self.error("a repetition is not closed".to_owned()))?;
        let counts = self.rest[..end].to_owned();
        self.rest = &self.rest[end + 1..];
        let wrong = |_| self.error(format!("{{{counts}}} is not a repetition"));
        let number = |text: &str| text.trim().parse::<usize>().map_err(wrong);
        let (low, high) = match counts.split_once(',') {
            None => (number(&counts)?, Some(number(&counts)?)),
            Some((low, high)) if high.trim().is_empty() => (number(low)?, None),
            Some((low, high)) => (number(low)?, Some(number(high)?)),
        };
        if high.is_some_and(|high| high < low || high > 10_000) || low > 10_000 {
            return Err(self.error(format!("{{{counts}}} is not a repetition")));
        }
        let high = high.map_or(String::new(), |high| high.to_string());
        Ok(format!("{item}{{{low},{high}}}"))
    }

    /// A string literal as a JSON string.
    fn literal(&mut self) -> Result<String, GrammarError> {
        self.take();
        let mut text = String::new();
        loop {
            match self.take() {
                None | Some('\n') => return Err(self.error("a string is not closed".to_owned())),
                Some('"') => break,
                Some('\\') => text.push(self.escape()?),
                Some(c) => text.push(c),
            }
        }
        Ok(serde_json::Value::from(text).to_string())
    }

    /// A character class as a regular expression.
    fn class(&mut self) -> Result<String, GrammarError> {
        self.take();
        let mut regex = "/[".to_owned();
        if self.eat("^") {
            regex.push('^');
        }
        loop {
            match self.take() {
                None => return Err(self.error("a character class is not closed".to_owned())),
                Some(']') => break,
                Some('-') => regex.push('-'),
                Some('\\') => {
                    let c = self.escape()?;
                    write!(regex, "\\u{{{:x}}}", u32::from(c)).expect("a string");
                }
                Some(c) => write!(regex, "\\u{{{:x}}}", u32::from(c)).expect("a string"),
            }
        }
        Ok(regex + "]/")
    }

    fn escape(&mut self) -> Result<char, GrammarError> {
        let digits = match self.take() {
            Some('n') => return Ok('\n'),
            Some('r') => return Ok('\r'),
            Some('t') => return Ok('\t'),
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            Some(c) => return Ok(c),
            None => return Err(self.error("the grammar ends after a backslash".to_owned())),
        };
        let number = self.rest.get(..digits);
        let code = number.and_then(|n| u32::from_str_radix(n, 16).ok());
        let c = code.and_then(char::from_u32);
        let c = c.ok_or_else(|| self.error("an escape is not a character".to_owned()))?;
        self.rest = &self.rest[digits..];
        Ok(c)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn translates_rules_classes_and_repetitions() {
        let gbnf = r#"
# a list of moves
root ::= move ("," ws move){1,3} "\n"
move ::= [a-h] [1-8] | "O-O" ("-O")?   # castling
ws ::= [ \t]* | ""
one-Two ::= [^"\\] .{2} x{2,}
x ::= (
  "a" |
  "b"
)
"#;
        let lark = to_lark(gbnf).unwrap();
        let expected = r#"start: r_move ("," r_ws r_move){1,3} "\n"
r_move: /[\u{61}-\u{68}]/ /[\u{31}-\u{38}]/ | "O-O" ("-O")?
r_ws: /[\u{20}\u{9}]/* | ""
r_one_d__u_two: /[^\u{22}\u{5c}]/ /(?s:.)/{2,2} r_x{2,}
r_x: ("a" | "b")
"#;
        assert_eq!(lark, expected);
    }

    #[test]
    fn errors_name_the_line() {
        for (gbnf, line, message) in [
            ("root ::= a", 1, "the rule \"a\" is not defined"),
            ("x ::= \"a\"", 1, "there is no rule \"root\""),
            ("root ::= \"a", 1, "a string is not closed"),
            ("\n\nroot ::= [a", 3, "a character class is not closed"),
            ("root ::= (\"a\"", 1, "a group is not closed"),
            ("root ::= \"a\"{x}", 1, "{x} is not a repetition"),
            (
                "root = \"a\"",
                1,
                "the rule \"root\" is not followed by ::=",
            ),
            (
                "root ::= \"a\"\nroot ::= \"b\"",
                2,
                "the rule \"root\" is defined twice",
            ),
            ("root ::= \"a\" }", 1, "unexpected '}'"),
        ] {
            let error = to_lark(gbnf).unwrap_err();
            let message = message.to_owned();
            assert_eq!(error, GrammarError::Gbnf { line, message }, "{gbnf}");
        }
    }
}
