//! The tables of a tokenizer as plain data, for encoders in other languages.

use super::{Algorithm, Tokenizer};
use crate::encode::automaton::WordAutomata;
use crate::{TextError, TokenKind};

/// The tables of a [`Tokenizer`].
///
/// Strings of pieces are [`Tokenizer::token_bytes`]: SentencePiece's `▁` is a space there. An encoder that looks pieces up replaces
/// `▁` by a space in its text as well.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenizerTables {
    /// The trie of special tokens, by node and byte; the root is node 0.
    pub special: Vec<TrieEdge>,
    /// The tables of the algorithm.
    pub algorithm: AlgorithmTables,
    /// Whether decoding omits a space at the start of a text.
    pub omits_first_space: bool,
    /// Whether decoding also omits a space after special tokens.
    pub omits_space_after_special: bool,
}

/// An edge of the trie of special tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrieEdge {
    /// The node it leaves.
    pub node: u32,
    /// The byte it reads.
    pub byte: u8,
    /// The node it enters.
    pub next: u32,
    /// The token that ends there.
    pub token: Option<u32>,
    /// Whether that token is matched in every text, because it is user-defined; control tokens only if they are wanted.
    pub always: bool,
}

/// Two tokens that merge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MergeRow {
    /// The left token.
    pub left: u32,
    /// The right token.
    pub right: u32,
    /// Lower ranks merge earlier, equal ranks from left to right.
    pub rank: u32,
    /// The result.
    pub id: u32,
}

/// The tables of an algorithm.
#[derive(Debug, Clone, PartialEq)]
pub enum AlgorithmTables {
    /// Byte-level byte-pair encoding.
    Bpe {
        /// The pre-tokenizer: every stage splits the pieces of the one before into matches and the text between them.
        words: WordAutomata,
        /// The token of each byte; bytes without one are dropped.
        bytes: Vec<Option<u32>>,
        /// The merges in rank order.
        merges: Vec<MergeRow>,
        /// The tokens that a word becomes without merging.
        whole: Vec<u32>,
    },
    /// SentencePiece.
    SentencePiece {
        /// Pieces and their ranks, by id. Characters that are no piece are spelled in bytes.
        pieces: Vec<(u32, u32)>,
        /// The merges in rank order; without any, two neighbours merge if their text is a piece, by its rank.
        merges: Vec<MergeRow>,
        /// The token of each byte.
        bytes: Vec<Option<u32>>,
        /// The token of a character that cannot be spelled.
        unknown: Option<u32>,
        /// Whether a space is added before a text.
        space_prefix: bool,
        /// Whether it is added only at the start of the whole text, not also after special tokens.
        space_prefix_once: bool,
        /// Whether it is omitted if there is one.
        space_prefix_if_missing: bool,
        /// Whether spaces are trimmed and runs of them collapsed.
        collapse_spaces: bool,
        /// Whether runs of newlines are words of their own, and tokens where they are pieces.
        newline_runs: bool,
    },
    /// WordPiece.
    WordPiece {
        /// The pattern of a word; text between matches is dropped.
        words: WordAutomata,
        /// The pieces; one that begins a word begins with a space.
        pieces: Vec<u32>,
        /// The token of a word that cannot be divided into pieces.
        unknown: u32,
        /// The most characters of a word; a longer one is unknown.
        max_word_chars: usize,
        /// The first and last character of a range and the text of each of its characters after normalisation.
        characters: Vec<(char, char, String)>,
    },
}

impl Tokenizer {
    /// The tables of this tokenizer.
    ///
    /// # Errors
    /// [`TextError::PatternWithoutAutomaton`] if a pattern of the pre-tokenizer has no automaton;
    /// [`TextError::OrderOfMarks`] if a WordPiece vocabulary depends on the canonical order of combining characters.
    pub fn tables(&self) -> Result<TokenizerTables, TextError> {
        let (algorithm, omits_first_space, omits_space_after_special) = match &self.algorithm {
            Algorithm::Bpe(bpe) => (bpe.tables()?, false, false),
            Algorithm::SentencePiece(spm) => (
                spm.tables(),
                spm.space_prefix(),
                spm.space_prefix_everywhere(),
            ),
            Algorithm::WordPiece(words) => (words.tables()?, true, true),
        };
        Ok(TokenizerTables {
            special: self.special.edges(),
            algorithm,
            omits_first_space,
            omits_space_after_special,
        })
    }

    /// Whether decoding treats token `id` as special: a control, unknown or user-defined token.
    pub fn is_special(&self, id: u32) -> bool {
        let special = |kind: TokenKind| kind.is_hidden() || kind == TokenKind::UserDefined;
        self.kind(id).is_some_and(special)
    }
}
