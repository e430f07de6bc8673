//! Byte-level byte-pair encoding.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use crate::encode::byte_level::{ByteTable, bytes_of, char_of};
use crate::encode::merge::{Merge, Symbol, merge_all};
use crate::encode::pretokenize::PreTokenizer;
use crate::{AlgorithmTables, MergeRow, TextError, TokenKind, Vocab};

/// A byte-level BPE encoder: merge ranks over token ids, and the pre-tokenizer.
#[derive(Debug)]
pub(crate) struct Bpe {
    words: PreTokenizer,
    /// The token of each byte. Some vocabularies lack rare bytes; these are dropped, as in the models' own tokenizers.
    bytes: Vec<Option<u32>>,
    merges: Merges,
    /// Tokens by their bytes; filled only if words that are tokens skip merging.
    whole: HashMap<Box<[u8]>, u32>,
}

impl Bpe {
    /// Builds the encoder from a vocabulary.
    ///
    /// # Errors
    /// If the pre-tokenizer is unknown, or a merge is malformed or uses a string that is not a token.
    pub(crate) fn new(vocab: &Vocab) -> Result<Self, TextError> {
        let mut words = match vocab.split_stages.is_empty() {
            true => PreTokenizer::new(&vocab.pre_tokenizer)?,
            false => PreTokenizer::from_splits(&vocab.split_stages, false)?,
        };
        words.ignore_merges = vocab.ignore_merges.unwrap_or(words.ignore_merges);
        let ids = ids(vocab);
        let merges = merges(vocab, &ids)?;
        let mut spelling = [0; 4];
        let bytes =
            (0..=u8::MAX).map(|byte| ids.get(&*char_of(byte).encode_utf8(&mut spelling)).copied());
        Ok(Self {
            bytes: bytes.collect(),
            merges,
            whole: if words.ignore_merges {
                ignore_merges(vocab)
            } else {
                HashMap::new()
            },
            words,
        })
    }

    /// Whether prompts begin with BOS by default.
    pub(crate) fn adds_bos(&self) -> bool {
        self.words.adds_bos
    }

    /// Appends the tokens of `text`.
    pub(crate) fn encode(&self, text: &str, out: &mut Vec<u32>) {
        for word in self.words.split(text) {
            match self.whole.get(word.as_bytes()) {
                Some(&id) => out.push(id),
                None => self.encode_word(word, out),
            }
        }
    }

    /// The tables, with the pre-tokenizer as automata.
    ///
    /// # Errors
    /// If a pattern has no automaton.
    pub(crate) fn tables(&self) -> Result<AlgorithmTables, TextError> {
        let mut whole: Vec<u32> = self.whole.values().copied().collect();
        whole.sort_unstable();
        Ok(AlgorithmTables::Bpe {
            words: self.words.automata()?,
            bytes: self.bytes.clone(),
            merges: merge_rows(&self.merges),
            whole,
        })
    }

    fn encode_word(&self, word: &str, out: &mut Vec<u32>) {
        let symbol = |(start, byte)| {
            let id = self.bytes[usize::from(byte)]?;
            Some(Symbol {
                start,
                end: start + 1,
                id: Some(id),
            })
        };
        let symbols: Vec<_> = word.bytes().enumerate().filter_map(symbol).collect();
        let merged = merge_all(symbols, |left, right| {
            self.merges.get(&(left.id?, right.id?)).copied()
        });
        out.extend(merged.filter_map(|symbol| symbol.id));
    }
}

/// Token ids by text. Uses a fast hash, because all tokens are looked up at every start.
pub(crate) type Ids<'a> = HashMap<&'a str, u32, RandomState>;
/// Merges by the tokens they join.
pub(crate) type Merges = HashMap<(u32, u32), Merge, RandomState>;

/// Token ids by text.
pub(crate) fn ids(vocab: &Vocab) -> Ids<'_> {
    let tokens = (0..).zip(vocab.tokens.iter());
    tokens.map(|(id, token)| (token, id)).collect()
}

/// The merges by the pair they join.
///
/// # Errors
/// If a merge is malformed or uses a string that is not a token.
pub(crate) fn merges(vocab: &Vocab, ids: &Ids<'_>) -> Result<Merges, TextError> {
    let mut merges = Merges::with_capacity_and_hasher(vocab.merges.len(), RandomState::default());
    let unique = ids.len() == vocab.tokens.len();
    let mut joined = String::new();
    let mut next = 0;
    for (index, merge) in vocab.merges.iter().enumerate() {
        let (left, right) = halves(merge).ok_or_else(|| TextError::MalformedMerge {
            index,
            merge: merge.to_owned(),
        })?;
        let id = |part: &str| {
            let outside = || TextError::MergeOutsideVocab {
                index,
                merge: merge.to_owned(),
                part: part.to_owned(),
            };
            ids.get(part).copied().ok_or_else(outside)
        };
        let pair = (id(left)?, id(right)?);
        joined.clear();
        joined.extend([left, right]);
        // Most vocabularies list the results of merges in merge order, so the next id is tried first.
        let guessed = unique && vocab.tokens.get(next as usize) == Some(&*joined);
        let id = if guessed { next } else { id(&joined)? };
        next = id.saturating_add(1);
        let rank = u32::try_from(index).unwrap_or(u32::MAX);
        merges.entry(pair).or_insert(Merge { rank, id });
    }
    Ok(merges)
}

/// The merges in rank order.
pub(crate) fn merge_rows(merges: &Merges) -> Vec<MergeRow> {
    let row = |(&(left, right), &Merge { rank, id }): (&(u32, u32), &Merge)| MergeRow {
        left,
        right,
        rank,
        id,
    };
    let mut rows: Vec<MergeRow> = merges.iter().map(row).collect();
    rows.sort_unstable_by_key(|row| row.rank);
    rows
}

/// Both sides of a merge; a token may begin with a space but not contain one later.
fn halves(merge: &str) -> Option<(&str, &str)> {
    let first = merge.chars().next()?.len_utf8();
    let cut = first + merge[first..].find(' ')?;
    let (left, right) = (&merge[..cut], &merge[cut + 1..]);
    (!right.is_empty()).then_some((left, right))
}

fn ignore_merges(vocab: &Vocab) -> HashMap<Box<[u8]>, u32> {
    let table = ByteTable::new();
    let normal = (0u32..)
        .zip(vocab.tokens.iter())
        .filter(|(id, _)| vocab.kind(*id as usize) == TokenKind::Normal);
    normal
        .filter_map(|(id, token)| Some((bytes_of(token, &table)?.into(), id)))
        .collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// All bytes, then what the merges make, with GPT-2's words.
    pub(crate) fn vocab(merges: &[&str]) -> Vocab {
        let bytes = (0..=u8::MAX).map(|byte| char_of(byte).to_string());
        let made = merges.iter().map(|merge| merge.replacen(' ', "", 1));
        Vocab {
            tokens: bytes.chain(made).collect(),
            merges: merges.iter().collect(),
            pre_tokenizer: "gpt-2".into(),
            ..Vocab::default()
        }
    }

    fn encode(vocab: &Vocab, text: &str) -> Vec<String> {
        let mut ids = Vec::new();
        Bpe::new(vocab).unwrap().encode(text, &mut ids);
        ids.iter()
            .map(|&id| vocab.tokens[id as usize].to_owned())
            .collect()
    }

    #[test]
    fn merges_within_words() {
        let vocab = vocab(&["l o", "lo w", "Ġ low", "e r"]);
        assert_eq!(encode(&vocab, "low lower"), ["low", "Ġlow", "er"]);
        assert_eq!(encode(&vocab, "lo\nw"), ["lo", "Ċ", "w"]);
        assert_eq!(encode(&vocab, "é"), ["Ã", "©"]);
    }

    #[test]
    fn whole_words_skip_merging_only_for_llama() {
        let mut vocab = vocab(&["a b"]);
        vocab.tokens.push("abc");
        assert_eq!(encode(&vocab, "abc"), ["ab", "c"]);
        vocab.pre_tokenizer = "llama-bpe".into();
        assert_eq!(encode(&vocab, "abc"), ["abc"]);
    }

    #[test]
    fn bytes_without_a_token_are_left_out() {
        let mut vocab = vocab(&["a b"]);
        let gone = |token| if token == "x" { "gone" } else { token };
        vocab.tokens = vocab.tokens.iter().map(gone).collect();
        assert_eq!(encode(&vocab, "axb"), ["ab"]);
    }

    #[test]
    fn bad_merges_are_named() {
        for bad in ["", " ", "a", "a ", "ab"] {
            let vocab = Vocab {
                merges: ["a a", bad].iter().collect(),
                ..vocab(&["a a"])
            };
            let want = TextError::MalformedMerge {
                index: 1,
                merge: bad.into(),
            };
            assert_eq!(Bpe::new(&vocab).unwrap_err(), want);
        }
        let vocab = Vocab {
            merges: ["a zz"].iter().collect(),
            ..vocab(&[])
        };
        let want = TextError::MergeOutsideVocab {
            index: 0,
            merge: "a zz".into(),
            part: "zz".into(),
        };
        assert_eq!(Bpe::new(&vocab).unwrap_err(), want);
    }

    #[test]
    fn a_long_word_is_merged_to_its_end() {
        let vocab = vocab(&["a a", "aa aa", "aaaa aaaa", "a b", "b a"]);
        for (unit, repeats, tokens) in [
            ("a", 100_000, vec!["aaaaaaaa"; 12_500]),
            ("ab", 50_000, vec!["ab"; 50_000]),
            ("日", 40_000, ["æ", "Ĺ", "¥"].repeat(40_000)),
        ] {
            assert!(encode(&vocab, &unit.repeat(repeats)) == tokens, "{unit}");
        }
    }
}
