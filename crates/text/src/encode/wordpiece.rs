//! BERT's WordPiece: lower-case words, each split greedily into the longest tokens.

use std::borrow::Cow;
use std::collections::HashMap;

use regex::Regex;
use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::canonical_combining_class;

use crate::encode::sentencepiece::METASPACE;
use crate::{AlgorithmTables, TextError, TokenKind, Vocab, WordAutomata};

/// Words longer than this (in characters) are unknown as a whole, as in BERT's own tokenizer.
const MAX_WORD_CHARS: usize = 100;
/// Dropped characters: U+FFFD, and control, format and private-use characters except white space.
const DROPPED: &str = r"[\x00\u{FFFD}]|[\p{Cc}\p{Cf}\p{Co}--[\t\n\r]]";
const ACCENTS: &str = r"\p{Mn}+";
/// A word: one punctuation character, one ideograph, or a run of other characters.
const WORDS: &str = concat!(
    r"[\p{P}!-/:-@\[-`{-~\u{4E00}-\u{9FFF}\u{3400}-\u{4DBF}\u{20000}-\u{2A6DF}\u{2A700}-\u{2CEAF}\u{F900}-\u{FAFF}\u{2F800}-\u{2FA1F}]",
    r"|[^\s\p{P}!-/:-@\[-`{-~\u{4E00}-\u{9FFF}\u{3400}-\u{4DBF}\u{20000}-\u{2A6DF}\u{2A700}-\u{2CEAF}\u{F900}-\u{FAFF}\u{2F800}-\u{2FA1F}]+",
);

/// Tokens by text; those that begin a word are written with a leading `▁`.
#[derive(Debug)]
pub(crate) struct WordPiece {
    tokens: HashMap<Box<str>, u32>,
    /// Length of the longest token in bytes: the limit for matches.
    max_token_bytes: usize,
    unknown: u32,
    cased: bool,
    dropped: Regex,
    accents: Regex,
    words: Regex,
}

impl WordPiece {
    /// Builds the encoder from a vocabulary.
    ///
    /// # Errors
    /// If there is no unknown token.
    pub(crate) fn new(vocab: &Vocab) -> Result<Self, TextError> {
        let spelled = |id: &u32| {
            matches!(
                vocab.kind(*id as usize),
                TokenKind::Normal | TokenKind::UserDefined
            )
        };
        let tokens = (0u32..)
            .zip(vocab.tokens.iter())
            .filter(|(id, _)| spelled(id));
        let tokens: HashMap<Box<str>, u32> = tokens.map(|(id, token)| (token.into(), id)).collect();
        let compile = |pattern| Regex::new(pattern).expect("a pattern of ours");
        Ok(Self {
            max_token_bytes: tokens.keys().map(|token| token.len()).max().unwrap_or(0),
            tokens,
            unknown: vocab.unk.ok_or(TextError::NoUnknownToken)?,
            cased: vocab.cased,
            dropped: compile(DROPPED),
            accents: compile(ACCENTS),
            words: compile(WORDS),
        })
    }

    /// Appends the tokens of `text`.
    pub(crate) fn encode(&self, text: &str, out: &mut Vec<u32>) {
        let plain = self.normalize(text);
        for word in self.words.find_iter(&plain) {
            self.encode_word(word.as_str(), out);
        }
    }

    /// Drops control characters; unless the vocabulary is cased, also accents, and lower-cases.
    fn normalize(&self, text: &str) -> String {
        let kept = self.dropped.replace_all(text, "");
        if self.cased {
            return kept.into_owned();
        }
        let decomposed: Cow<str> = if kept.is_ascii() {
            kept
        } else {
            kept.nfd().collect::<String>().into()
        };
        let plain = self.accents.replace_all(&decomposed, "");
        // Characters are lower-cased one by one, so that a final sigma is treated as any other, as in BERT's tokenizer.
        plain.chars().flat_map(char::to_lowercase).collect()
    }

    /// The tables, with the pattern of words as an automaton.
    ///
    /// # Errors
    /// If tokens depend on the canonical order of combining characters, which a table of single characters does not have.
    pub(crate) fn tables(&self) -> Result<AlgorithmTables, TextError> {
        self.check_order_of_marks()?;
        // A word has no spaces, so a piece with one is never found.
        let tokens = self.tokens.iter().filter(|(token, _)| !token.contains(' '));
        let mut pieces: Vec<u32> = tokens.map(|(_, id)| *id).collect();
        pieces.sort_unstable();
        Ok(AlgorithmTables::WordPiece {
            words: WordAutomata::new([(WORDS, false)])?,
            pieces,
            unknown: self.unknown,
            max_word_chars: MAX_WORD_CHARS,
            characters: self.character_map(),
        })
    }

    /// The characters that normalisation changes, in ranges with the same result.
    fn character_map(&self) -> Vec<(char, char, String)> {
        let mut map: Vec<(char, char, String)> = Vec::new();
        let mut buffer = [0; 4];
        for c in '\0'..=char::MAX {
            let text = &*c.encode_utf8(&mut buffer);
            let plain = self.normalize(text);
            if plain == text {
                continue;
            }
            let before = char::from_u32(u32::from(c).wrapping_sub(1));
            match map.last_mut() {
                Some((_, last, same)) if Some(*last) == before && *same == plain => *last = c,
                _ => map.push((c, c, plain)),
            }
        }
        map
    }

    /// Accents are stripped, so only the other combining characters can be seen to be reordered. A word with one that is in no
    /// token is unknown in any order.
    fn check_order_of_marks(&self) -> Result<(), TextError> {
        let kept = |c: &char| {
            canonical_combining_class(*c) != 0 && !self.accents.is_match(c.encode_utf8(&mut [0; 4]))
        };
        if self.cased {
            return Ok(());
        }
        let mut marks: Vec<char> = self
            .tokens
            .keys()
            .flat_map(|token| token.chars())
            .filter(kept)
            .collect();
        marks.sort_unstable();
        let class = |c: &char| canonical_combining_class(*c);
        match marks.iter().find(|c| class(c) != class(&marks[0])) {
            Some(other) => Err(TextError::OrderOfMarks(marks[0], *other)),
            None => Ok(()),
        }
    }

    fn encode_word(&self, word: &str, out: &mut Vec<u32>) {
        match self.split_word(word) {
            Some(ids) => out.extend(ids),
            None => out.push(self.unknown),
        }
    }

    /// The tokens of a word; `None` if it is too long or a part of it is not a token.
    fn split_word(&self, word: &str) -> Option<Vec<u32>> {
        if word.chars().count() > MAX_WORD_CHARS {
            return None;
        }
        let marked = format!("{METASPACE}{word}");
        let (first, len) = self.longest_match(&marked)?;
        // The leading mark alone is not a token of a word.
        let mut rest = marked.get(len..).filter(|_| len > METASPACE.len_utf8())?;
        let mut ids = vec![first];
        while !rest.is_empty() {
            let (id, len) = self.longest_match(rest)?;
            ids.push(id);
            rest = &rest[len..];
        }
        Some(ids)
    }

    /// The longest token that `text` begins with, and its length in bytes.
    fn longest_match(&self, text: &str) -> Option<(u32, usize)> {
        let ends = (1..=text.len().min(self.max_token_bytes))
            .rev()
            .filter(|&end| text.is_char_boundary(end));
        let mut found = ends.filter_map(|end| Some((*self.tokens.get(&text[..end])?, end)));
        found.next()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// `[UNK]`, `[CLS]`, `[SEP]` and then the tokens given.
    pub(crate) fn vocab(tokens: &[&str]) -> Vocab {
        let special = ["[UNK]", "[CLS]", "[SEP]"];
        let mut kinds = vec![TokenKind::Control; 3];
        kinds.resize(3 + tokens.len(), TokenKind::Normal);
        Vocab {
            model: crate::VocabModel::WordPiece,
            tokens: special.iter().chain(tokens).collect(),
            kinds,
            unk: Some(0),
            cls: Some(1),
            sep: Some(2),
            ..Vocab::default()
        }
    }

    fn encode(text: &str) -> Vec<String> {
        let vocab = vocab(&[
            "▁un",
            "aff",
            "able",
            "▁,",
            "▁cafe",
            "▁我",
            "▁a",
            "x",
            "▁^",
            "▁σασ",
        ]);
        let mut ids = Vec::new();
        WordPiece::new(&vocab).unwrap().encode(text, &mut ids);
        ids.iter()
            .map(|&id| vocab.tokens[id as usize].to_owned())
            .collect()
    }

    #[test]
    fn words_are_cut_into_the_longest_tokens() {
        let cases: [(&str, &[&str]); 10] = [
            ("unaffable", &["▁un", "aff", "able"]),
            ("  UN,  a\n", &["▁un", "▁,", "▁a"]),
            ("Café", &["▁cafe"]),
            ("Cafe\u{301}\u{200B}", &["▁cafe"]),
            ("我我un", &["▁我", "▁我", "▁un"]),
            ("unaffably", &["[UNK]"]),
            ("x", &["[UNK]"]),
            ("a^x", &["▁a", "▁^", "[UNK]"]),
            ("ΣΑΣ", &["▁σασ"]),
            ("", &[]),
        ];
        for (text, want) in cases {
            assert_eq!(encode(text), want, "{text:?}");
        }
    }

    #[test]
    fn a_very_long_word_is_unknown() {
        assert_eq!(encode(&format!("a{}", "x".repeat(99))).len(), 100);
        assert_eq!(encode(&format!("a{}", "x".repeat(100))), ["[UNK]"]);
    }

    #[test]
    fn the_unknown_token_is_needed() {
        let vocab = Vocab {
            unk: None,
            ..vocab(&[])
        };
        assert_eq!(
            WordPiece::new(&vocab).unwrap_err(),
            TextError::NoUnknownToken
        );
    }
}
