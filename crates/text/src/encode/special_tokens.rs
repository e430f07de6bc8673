//! `SpecialTokens`: finds special tokens in text.

use std::collections::HashMap;
use std::ops::Range;

use crate::{TokenKind, TrieEdge, Vocab};

/// A segment of a split text: plain text, or one special token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Segment<'t> {
    /// Text to tokenize; never empty.
    Text(&'t str),
    /// A token found in the text.
    Token(u32),
}

/// A trie over the texts of user-defined, control and unknown tokens.
#[derive(Debug, Default)]
pub(crate) struct SpecialTokens {
    edges: HashMap<(usize, u8), usize>,
    ends: HashMap<usize, TrieEntry>,
    nodes: usize,
}

#[derive(Debug, Clone, Copy)]
struct TrieEntry {
    id: u32,
    user_defined: bool,
}

impl SpecialTokens {
    /// Collects the special tokens of a vocabulary; `spelling` returns the text of each.
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
                trie.insert(text.as_bytes(), TrieEntry { id, user_defined });
            }
        }
        trie
    }

    /// The special token written exactly as `text`.
    pub(crate) fn get(&self, text: &str) -> Option<u32> {
        let (len, id) = self.longest(text.as_bytes(), |_| true)?;
        (len == text.len()).then_some(id)
    }

    /// Splits `text` at its special tokens: leftmost first, the longest at each position.
    ///
    /// User-defined tokens always match; control and unknown tokens match only if `hidden` allows their range.
    pub(crate) fn split<'t>(
        &self,
        text: &'t str,
        hidden: impl Fn(Range<usize>) -> bool,
    ) -> Vec<Segment<'t>> {
        let mut parts = Vec::new();
        let (mut done, mut at) = (0, 0);
        while at < text.len() {
            // Tokens are whole characters, so a match that begins on a boundary ends on one.
            let found = if text.is_char_boundary(at) {
                self.longest(&text.as_bytes()[at..], |len| hidden(at..at + len))
            } else {
                None
            };
            let Some((len, id)) = found else {
                at += 1;
                continue;
            };
            if done < at {
                parts.push(Segment::Text(&text[done..at]));
            }
            parts.push(Segment::Token(id));
            at += len;
            done = at;
        }
        if done < text.len() {
            parts.push(Segment::Text(&text[done..]));
        }
        parts
    }

    fn insert(&mut self, text: &[u8], end: TrieEntry) {
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

    /// The edges of the trie, by node and byte.
    pub(crate) fn edges(&self) -> Vec<TrieEdge> {
        let number = |node: usize| u32::try_from(node).unwrap_or(u32::MAX);
        let edge = |(&(node, byte), &next): (&(usize, u8), &usize)| {
            let end = self.ends.get(&next);
            TrieEdge {
                node: number(node),
                byte,
                next: number(next),
                token: end.map(|end| end.id),
                always: end.is_some_and(|end| end.user_defined),
            }
        };
        let mut edges: Vec<TrieEdge> = self.edges.iter().map(edge).collect();
        edges.sort_unstable_by_key(|edge| (edge.node, edge.byte));
        edges
    }

    /// The ranges of control and unknown tokens in `text`, in order; overlapping ranges are merged.
    pub(crate) fn hidden_spans(&self, text: &str) -> Vec<Range<usize>> {
        let mut spans: Vec<Range<usize>> = Vec::new();
        for (start, _) in text.char_indices() {
            let ends = self.tokens_at(&text.as_bytes()[start..]);
            let Some((len, _)) = ends.filter(|(_, end)| !end.user_defined).last() else {
                continue;
            };
            let end = start + len;
            match spans.last_mut() {
                Some(last) if start < last.end => last.end = last.end.max(end),
                _ => spans.push(start..end),
            }
        }
        spans
    }

    /// Length and id of the longest token that `text` begins with; `hidden` allows control and unknown tokens by
    /// length.
    fn longest(&self, text: &[u8], hidden: impl Fn(usize) -> bool) -> Option<(usize, u32)> {
        let ends = self.tokens_at(text);
        let allowed = ends.filter(|(len, end)| end.user_defined || hidden(*len));
        allowed.last().map(|(len, end)| (len, end.id))
    }

    /// The tokens that `text` begins with and their lengths, shortest first.
    fn tokens_at(&self, text: &[u8]) -> impl Iterator<Item = (usize, TrieEntry)> {
        let mut node = 0;
        let step = move |(at, byte): (usize, &u8)| {
            node = *self.edges.get(&(node, *byte))?;
            Some((at + 1, self.ends.get(&node).copied()))
        };
        let nodes = text.iter().enumerate().map_while(step);
        nodes.filter_map(|(len, end)| Some((len, end?)))
    }
}

#[cfg(test)]
mod tests {
    use super::Segment::{Text, Token};
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
        let cases: [(&str, bool, &[Segment]); 6] = [
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
            assert_eq!(tokens().split(text, |_| all), want, "{text}");
        }
    }

    #[test]
    fn control_tokens_are_found_only_where_they_are_allowed() {
        // Denied beyond the third byte, the longer token gives way to the shorter.
        let parts = tokens().split("<s><s>", |range| range.end <= 3);
        assert_eq!(parts, [Token(0), Text("<s>")]);
        let spans = tokens().hidden_spans("é<s><s>  <s<unk>");
        assert_eq!(spans, [2..8, 12..17]);
    }

    #[test]
    fn finds_a_token_by_its_whole_text() {
        assert_eq!(tokens().get("<s>"), Some(0));
        assert_eq!(tokens().get("<s>x"), None);
        assert_eq!(tokens().get("word"), None);
    }
}
