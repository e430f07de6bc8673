//! SentencePiece's BPE: neighbours merge in the order of the merged piece's score; unknown characters become byte
//! tokens.

use std::hash::BuildHasher;

use base::StringTable;
use foldhash::fast::RandomState;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use crate::encode::bpe::{self, Merges};
use crate::encode::merge::{Merge, Symbol, merge_all};
use crate::{AlgorithmTables, TextError, TokenKind, Vocab};

/// The character that SentencePiece uses for a space.
pub(crate) const METASPACE: char = '▁';

/// A SentencePiece BPE encoder: pieces by text, with their merge order.
#[derive(Debug)]
pub(crate) struct SentencePiece {
    pieces: PieceIndex,
    /// The merges, if the file lists them; otherwise the scores of the pieces determine the order.
    merges: Merges,
    bytes: Vec<Option<u32>>,
    unknown: Option<u32>,
    space_prefix: bool,
    space_prefix_once: bool,
    space_prefix_if_missing: bool,
    collapse_spaces: bool,
    newline_runs: bool,
}

impl SentencePiece {
    /// Builds the encoder from a vocabulary.
    ///
    /// # Errors
    /// If there are no scores, or neither an unknown token nor a token for each byte.
    pub(crate) fn new(vocab: &Vocab) -> Result<Self, TextError> {
        if vocab.scores.len() != vocab.tokens.len() {
            return Err(TextError::NoScores);
        }
        let mut pieces = PieceIndex::new(vocab);
        let mut bytes = vec![None; 256];
        for (id, token) in (0u32..).zip(vocab.tokens.iter()) {
            match vocab.kind(id as usize) {
                TokenKind::Normal | TokenKind::UserDefined => pieces.insert(id),
                TokenKind::Byte => {
                    if let Some(byte) = byte_of(token) {
                        bytes[usize::from(byte)] = Some(id);
                    }
                }
                // Text must not produce these tokens.
                TokenKind::Control | TokenKind::Unknown | TokenKind::Unused => {}
            }
        }
        if vocab.unk.is_none() && bytes.contains(&None) {
            return Err(TextError::NoUnknownToken);
        }
        let merges = if vocab.merges.is_empty() {
            Merges::default()
        } else {
            bpe::merges(vocab, &bpe::ids(vocab))?
        };
        Ok(Self {
            merges,
            pieces,
            bytes,
            unknown: vocab.unk,
            space_prefix: vocab.add_space_prefix.unwrap_or(true),
            space_prefix_once: vocab.space_prefix_once,
            space_prefix_if_missing: vocab.space_prefix_if_missing,
            collapse_spaces: vocab.remove_extra_whitespaces.unwrap_or(false),
            newline_runs: vocab.newline_runs,
        })
    }

    /// The tables.
    pub(crate) fn tables(&self) -> AlgorithmTables {
        let index = &self.pieces;
        // Text has no spaces when pieces are looked up, so a piece with one is never found.
        let found = |id: &&u32| !index.tokens[**id as usize].contains(' ');
        let ids = index.ids.iter().filter(found);
        let mut pieces: Vec<(u32, u32)> = ids.map(|id| (*id, index.ranks[*id as usize])).collect();
        pieces.sort_unstable();
        AlgorithmTables::SentencePiece {
            pieces,
            merges: bpe::merge_rows(&self.merges),
            bytes: self.bytes.clone(),
            unknown: self.unknown,
            space_prefix: self.space_prefix,
            space_prefix_once: self.space_prefix_once,
            space_prefix_if_missing: self.space_prefix_if_missing,
            collapse_spaces: self.collapse_spaces,
            newline_runs: self.newline_runs,
        }
    }

    /// Whether a space is added at the start of a text.
    pub(crate) fn space_prefix(&self) -> bool {
        self.space_prefix
    }

    /// Whether a space is also added after special tokens.
    pub(crate) fn space_prefix_everywhere(&self) -> bool {
        !self.space_prefix_once
    }

    /// Appends the tokens of `text`, which is at the start of the whole text (`first`) or follows a special token.
    pub(crate) fn encode(&self, text: &str, first: bool, out: &mut Vec<u32>) {
        if text.is_empty() {
            return;
        }
        let prefixed = self.space_prefix
            && (first || !self.space_prefix_once)
            && !(self.space_prefix_if_missing && text.starts_with(' '));
        let escaped = self.escape(text, prefixed);
        if !self.newline_runs {
            return self.merge(&escaped, out);
        }
        let is_newline = |c: char| c == '\n';
        let same_kind = |a: &char, b: &char| is_newline(*a) == is_newline(*b);
        let mut rest = &*escaped;
        while let Some(first) = rest.chars().next() {
            let end = rest.find(|c| !same_kind(&c, &first));
            let (run, others) = rest.split_at(end.unwrap_or(rest.len()));
            match self.pieces.get(run).filter(|_| is_newline(first)) {
                Some(piece) => out.push(piece.id),
                None => self.merge(run, out),
            }
            rest = others;
        }
    }

    /// Appends the tokens of a text without spaces.
    fn merge(&self, escaped: &str, out: &mut Vec<u32>) {
        let symbol = |(start, c): (usize, char)| {
            let end = start + c.len_utf8();
            Symbol {
                start,
                end,
                id: self.pieces.get(&escaped[start..end]).map(|piece| piece.id),
            }
        };
        let symbols = escaped.char_indices().map(symbol).collect();
        let merged = merge_all(symbols, |left, right| {
            if self.merges.is_empty() {
                return self.pieces.get(&escaped[left.start..right.end]);
            }
            self.merges.get(&(left.id?, right.id?)).copied()
        });
        for Symbol { start, end, id } in merged {
            match id {
                Some(id) => out.push(id),
                None => self.spell(&escaped[start..end], out),
            }
        }
    }

    fn escape(&self, text: &str, prefixed: bool) -> String {
        let mut escaped = String::with_capacity(text.len() + text.len() / 2 + METASPACE.len_utf8());
        if prefixed {
            escaped.push(METASPACE);
        }
        if self.collapse_spaces {
            for (at, word) in text.split(' ').filter(|word| !word.is_empty()).enumerate() {
                escaped.extend((at > 0).then_some(METASPACE));
                escaped.push_str(word);
            }
        } else {
            escaped.extend(text.chars().map(|c| if c == ' ' { METASPACE } else { c }));
        }
        escaped
    }

    /// Appends a character that is not a piece: its byte tokens if all exist, else the unknown token.
    fn spell(&self, character: &str, out: &mut Vec<u32>) {
        let bytes: Option<Vec<u32>> = character
            .bytes()
            .map(|byte| self.bytes[usize::from(byte)])
            .collect();
        match bytes {
            Some(ids) => out.extend(ids),
            None => out.extend(self.unknown),
        }
    }
}

/// The pieces, indexed by their text.
#[derive(Debug)]
struct PieceIndex {
    tokens: StringTable,
    /// The rank of each token's score.
    ranks: Vec<u32>,
    /// Ids, by the text of their token.
    ids: HashTable<u32>,
    hasher: RandomState,
}

impl PieceIndex {
    /// An empty index over a vocabulary.
    fn new(vocab: &Vocab) -> PieceIndex {
        PieceIndex {
            tokens: vocab.tokens.clone(),
            ranks: ranks(&vocab.scores),
            ids: HashTable::with_capacity(vocab.tokens.len()),
            hasher: RandomState::default(),
        }
    }

    /// Adds a token and replaces an earlier one with the same text.
    fn insert(&mut self, id: u32) {
        let text = |id: &u32| &self.tokens[*id as usize];
        let hash = |id: &u32| self.hasher.hash_one(text(id));
        let same = |other: &u32| text(other) == text(&id);
        match self.ids.entry(hash(&id), same, hash) {
            Entry::Occupied(mut there) => *there.get_mut() = id,
            Entry::Vacant(place) => {
                place.insert(id);
            }
        }
    }

    /// The piece with this text, and its rank.
    fn get(&self, text: &str) -> Option<Merge> {
        let same = |id: &u32| &self.tokens[*id as usize] == text;
        let id = *self.ids.find(self.hasher.hash_one(text), same)?;
        let rank = self.ranks[id as usize];
        Some(Merge { rank, id })
    }
}

/// The byte that a token such as `<0x0A>` stands for.
pub(crate) fn byte_of(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    let plain = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    u8::from_str_radix(digits, 16).ok().filter(|_| plain)
}

/// The rank of each score in descending order; equal scores share a rank.
fn ranks(scores: &[f32]) -> Vec<u32> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    let mut ranks = vec![0; scores.len()];
    let mut rank = 0;
    for pair in order.windows(2) {
        if scores[pair[0]] != scores[pair[1]] {
            rank += 1;
        }
        ranks[pair[1]] = rank;
    }
    ranks
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// `<unk>`, `<s>`, `</s>`, then pieces in score order; bytes after them if asked for.
    pub(crate) fn vocab(pieces: &[&str], with_bytes: bool) -> Vocab {
        let mut tokens = vec!["<unk>".to_owned(), "<s>".into(), "</s>".into()];
        let mut kinds = vec![TokenKind::Unknown, TokenKind::Control, TokenKind::Control];
        tokens.extend(pieces.iter().map(|piece| (*piece).to_owned()));
        kinds.resize(tokens.len(), TokenKind::Normal);
        if with_bytes {
            tokens.extend((0..=u8::MAX).map(|byte| format!("<0x{byte:02X}>")));
            kinds.resize(tokens.len(), TokenKind::Byte);
        }
        Vocab {
            model: crate::VocabModel::SentencePiece,
            scores: (0..tokens.len()).map(|at| -(at as f32)).collect(),
            tokens: tokens.iter().collect(),
            kinds,
            bos: Some(1),
            eos: Some(2),
            unk: Some(0),
            ..Vocab::default()
        }
    }

    fn encode(vocab: &Vocab, text: &str) -> Vec<String> {
        let mut ids = Vec::new();
        SentencePiece::new(vocab)
            .unwrap()
            .encode(text, true, &mut ids);
        ids.iter()
            .map(|&id| vocab.tokens[id as usize].to_owned())
            .collect()
    }

    #[test]
    fn scores_order_the_merges() {
        let vocab = vocab(&["bc", "▁a", "ab", "▁", "a", "b", "c"], true);
        assert_eq!(encode(&vocab, "abc"), ["▁a", "bc"]);
        assert_eq!(encode(&vocab, "bab"), ["▁", "b", "ab"]);
        assert_eq!(encode(&vocab, " a\n"), ["▁", "▁a", "<0x0A>"]);
        assert_eq!(encode(&vocab, ""), [""; 0]);
    }

    #[test]
    fn what_is_no_piece_is_spelled_or_unknown() {
        assert_eq!(encode(&vocab(&["▁"], true), "é"), ["▁", "<0xC3>", "<0xA9>"]);
        assert_eq!(encode(&vocab(&["▁"], false), "é"), ["▁", "<unk>"]);
        let lost = Vocab {
            unk: None,
            ..vocab(&["▁"], false)
        };
        assert_eq!(
            SentencePiece::new(&lost).unwrap_err(),
            TextError::NoUnknownToken
        );
        let unscored = Vocab {
            scores: Vec::new(),
            ..vocab(&["▁"], true)
        };
        assert_eq!(
            SentencePiece::new(&unscored).unwrap_err(),
            TextError::NoScores
        );
    }

    #[test]
    fn text_cannot_spell_control_or_byte_tokens() {
        let vocab = vocab(&["<s", "<", "s", ">", "0", "x", "A", "▁"], true);
        assert_eq!(encode(&vocab, "<s>"), ["▁", "<s", ">"]);
        assert_eq!(
            encode(&vocab, "<0x0A>"),
            ["▁", "<", "0", "x", "0", "A", ">"]
        );
    }

    #[test]
    fn prefix_and_squeezing_follow_the_file() {
        let bare = Vocab {
            add_space_prefix: Some(false),
            ..vocab(&["▁", "a"], true)
        };
        assert_eq!(encode(&bare, "a  a"), ["a", "▁", "▁", "a"]);
        let squeezed = Vocab {
            remove_extra_whitespaces: Some(true),
            ..bare
        };
        assert_eq!(encode(&squeezed, "  a  a "), ["a", "▁", "a"]);
    }

    #[test]
    fn runs_of_newlines_are_words_of_their_own() {
        let vocab = Vocab {
            add_space_prefix: Some(false),
            newline_runs: true,
            merges: ["a \n", "\n \n", "▁ a"].iter().collect(),
            ..vocab(&["a", "\n", "▁", "a\n", "\n\n", "▁a", "\n\n\n"], true)
        };
        let cases: [(&str, &[&str]); 4] = [
            ("a\na", &["a", "\n", "a"]),
            ("a a\n\n\na", &["a", "▁a", "\n\n\n", "a"]),
            // No token: merged like other text.
            ("\n\n\n\n\n", &["\n\n", "\n\n", "\n"]),
            ("é\n", &["<0xC3>", "<0xA9>", "\n"]),
        ];
        for (text, want) in cases {
            assert_eq!(encode(&vocab, text), want, "{text:?}");
        }
    }

    #[test]
    fn bytes_are_two_hex_digits() {
        assert_eq!(byte_of("<0xaF>"), Some(0xAF));
        for bad in ["<0x1>", "<0x+1>", "<0x123>", "0x12", "<0xZZ>"] {
            assert_eq!(byte_of(bad), None, "{bad}");
        }
    }

    #[test]
    fn scores_need_not_be_numbers() {
        assert_eq!(ranks(&[f32::NEG_INFINITY, 1.0, 1.0, 5.0]), [2, 1, 1, 0]);
        assert_eq!(ranks(&[f32::NAN, f32::NAN]).len(), 2);
    }
}
