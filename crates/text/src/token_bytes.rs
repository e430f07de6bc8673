//! `TokenBytes`: the decoded bytes of every token.

use crate::encode::byte_level::{ByteTable, push_bytes};
use crate::encode::sentencepiece::{METASPACE, byte_of};
use crate::{TokenKind, Vocab, VocabModel};

/// The decoded bytes of all tokens in one buffer.
#[derive(Debug, Default)]
pub(crate) struct TokenBytes {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl TokenBytes {
    /// Decodes every token from the encoding of its algorithm.
    pub(crate) fn new(vocab: &Vocab) -> Self {
        let table = ByteTable::new();
        let mut pieces = Self::default();
        for (id, token) in vocab.tokens.iter().enumerate() {
            let to = &mut pieces.bytes;
            let written = match (vocab.model, vocab.kind(id)) {
                (_, TokenKind::Control | TokenKind::Unknown) => false,
                (VocabModel::Bpe, TokenKind::UserDefined) => false,
                (VocabModel::Bpe, _) => push_bytes(token, &table, to),
                (_, TokenKind::Byte) => byte_of(token).map(|byte| to.push(byte)).is_some(),
                _ => {
                    for (i, part) in token.split(METASPACE).enumerate() {
                        to.extend((i > 0).then_some(b' '));
                        to.extend(part.as_bytes());
                    }
                    true
                }
            };
            if !written {
                to.extend(token.as_bytes());
            }
            pieces.ends.push(to.len());
        }
        pieces
    }

    /// The bytes of token `id`.
    pub(crate) fn get(&self, id: u32) -> Option<&[u8]> {
        let id = id as usize;
        let end = *self.ends.get(id)?;
        let start = id.checked_sub(1).map_or(0, |before| self.ends[before]);
        Some(&self.bytes[start..end])
    }

    /// The number of tokens.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }
}

/// Replaces SentencePiece's `▁` in a token by spaces.
pub(crate) fn unescape_metaspace(token: &str) -> String {
    token.replace(METASPACE, " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_algorithm_has_its_spelling() {
        use TokenKind::{Byte, Control, Normal, UserDefined};
        let cases: [(VocabModel, &str, TokenKind, &[u8]); 8] = [
            (VocabModel::Bpe, "ĠhÃ©", Normal, b" h\xC3\xA9"),
            (VocabModel::Bpe, "Ã", Normal, b"\xC3"),
            (VocabModel::Bpe, "Ã", UserDefined, "Ã".as_bytes()),
            (VocabModel::Bpe, "not spelled", Normal, b"not spelled"),
            (VocabModel::SentencePiece, "▁a▁", Normal, b" a "),
            (VocabModel::SentencePiece, "<0x0A>", Byte, b"\n"),
            (VocabModel::SentencePiece, "<0x0A>", Control, b"<0x0A>"),
            (VocabModel::WordPiece, "▁un", Normal, b" un"),
        ];
        for (model, token, kind, want) in cases {
            let tokens = ["first", token].iter().collect();
            let pieces = TokenBytes::new(&Vocab {
                model,
                tokens,
                kinds: vec![Normal, kind],
                ..Vocab::default()
            });
            assert_eq!(pieces.get(1), Some(want), "{token}");
            assert_eq!(pieces.get(2), None);
        }
    }
}
