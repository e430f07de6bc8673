//! Finds special tokens written out in text.

use std::collections::HashMap;

use crate::{TokenKind, Vocab};

/// A piece of text between special tokens, or one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part<'t> {
    /// Text to be cut into tokens; never empty.
    Text(&'t str),
    /// A token found in the text.
    Token(u32),
}

/// A trie over the texts of user-defined, control and unknown tokens.
#[derive(Debug, Default)]
pub(crate) struct SpecialTokens {
    edges: HashMap<(usize, u8), usize>,
    ends: HashMap<usize, End>,
    nodes: usize,
}

#[derive(Debug, Clone, Copy)]
struct End {
    id: u32,
    user_defined: bool,
}

impl SpecialTokens {
    /// Collects the vocabulary's special tokens; `spelling` gives the text each is written as.
    pub(crate) fn new(vocab: &Vocab, spelling: impl Fn(&str) -> String) -> Self {
        let mut trie = Self::default();
        for (id, token) in (0u32..).zip(vocab.tokens.iter()) {
            let kind = vocab.kind(id as usize);
            let user_defined = kind == TokenKind::UserDefined;
            if user_defined || kind.is_hidden() {
                let text = if user_defined {
                    spelling(token)
                } else {
                    token.to_owned()
                };
                trie.insert(text.as_bytes(), End { id, user_defined });
            }
        }
        trie
    }

    /// The special token written exactly as `text`.
    pub(crate) fn get(&self, text: &str) -> Option<u32> {
        let (len, id) = self.longest(text.as_bytes(), true)?;
        (len == text.len()).then_some(id)
    }

    /// Cuts `text` at its special tokens: leftmost first, the longest at each place.
    ///
    /// User-defined tokens are always found, control and unknown tokens only with `all`.
    pub(crate) fn split<'t>(&self, text: &'t str, all: bool) -> Vec<Part<'t>> {
        let mut parts = Vec::new();
        let (mut done, mut at) = (0, 0);
        while at < text.len() {
            // Tokens are whole characters, so a match that begins on a boundary ends on one.
            let found = if text.is_char_boundary(at) {
                self.longest(&text.as_bytes()[at..], all)
            } else {
                None
            };
            let Some((len, id)) = found else {
                at += 1;
                continue;
            };
            if done < at {
                parts.push(Part::Text(&text[done..at]));
            }
            parts.push(Part::Token(id));
            at += len;
            done = at;
        }
        if done < text.len() {
            parts.push(Part::Text(&text[done..]));
        }
        parts
    }

    fn insert(&mut self, text: &[u8], end: End) {
        if text.is_empty() {
            return;
        }
        let mut node = 0;
        for &byte in text {
            let fresh = self.nodes + 1;
            node = *self.edges.entry((node, byte)).or_insert(fresh);
            self.nodes = self.nodes.max(node);
        }
        self.ends.insert(node, end);
    }

    /// Length and id of the longest token that `text` begins with.
    fn longest(&self, text: &[u8], all: bool) -> Option<(usize, u32)> {
        let mut best = None;
        let mut node = 0;
        for (at, &byte) in text.iter().enumerate() {
            let Some(&next) = self.edges.get(&(node, byte)) else {
                break;
            };
            node = next;
            if let Some(end) = self.ends.get(&node).filter(|end| all || end.user_defined) {
                best = Some((at + 1, end.id));
            }
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::Part::{Text, Token};
    use super::*;

    fn tokens() -> SpecialTokens {
        use TokenKind::{Control, Normal, Unknown, UserDefined};
        let rows = [
            ("<s>", Control),
            ("<s><s>", Control),
            ("▁▁", UserDefined),
            ("word", Normal),
            ("<unk>", Unknown),
            ("", Control),
            ("é", UserDefined),
        ];
        let vocab = Vocab {
            tokens: rows.iter().map(|(text, _)| text).collect(),
            kinds: rows.iter().map(|(_, kind)| *kind).collect(),
            ..Vocab::default()
        };
        SpecialTokens::new(&vocab, |text| text.replace('▁', " "))
    }

    #[test]
    fn cuts_at_the_longest_leftmost_token() {
        let cases: [(&str, bool, &[Part]); 6] = [
            ("", true, &[]),
            ("a word", true, &[Text("a word")]),
            (
                "<s><s><s>a<unk>",
                true,
                &[Token(1), Token(0), Text("a"), Token(4)],
            ),
            ("<s>a  b", false, &[Text("<s>a"), Token(2), Text("b")]),
            ("<s", true, &[Text("<s")]),
            ("xéy我", false, &[Text("x"), Token(6), Text("y我")]),
        ];
        for (text, all, want) in cases {
            assert_eq!(tokens().split(text, all), want, "{text}");
        }
    }

    #[test]
    fn finds_a_token_by_its_whole_text() {
        assert_eq!(tokens().get("<s>"), Some(0));
        assert_eq!(tokens().get("<s>x"), None);
        assert_eq!(tokens().get("word"), None);
    }
}
