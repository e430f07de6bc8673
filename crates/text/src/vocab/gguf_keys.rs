//! Writes a vocabulary as GGUF's `tokenizer.ggml.*` keys.

use base::StringTable;

use super::{TokenKind, Vocab, VocabModel};
use crate::encode::pretokenize;
use crate::error::TextError;

/// A value of a key.
#[derive(Clone, Debug, PartialEq)]
pub enum KeyValue {
    /// A text.
    Text(String),
    /// A list of texts.
    Texts(StringTable),
    /// A list of integers.
    Ints(Vec<i32>),
    /// A token.
    Token(u32),
    /// A boolean.
    Flag(bool),
}

impl TokenKind {
    /// GGUF's type code.
    fn code(self) -> i32 {
        match self {
            TokenKind::Normal => 1,
            TokenKind::Unknown => 2,
            TokenKind::Control => 3,
            TokenKind::UserDefined => 4,
            TokenKind::Unused => 5,
            TokenKind::Byte => 6,
        }
    }
}

impl Vocab {
    /// The keys of a GGUF file, for an embedding of so many rows: tokens that the vocabulary lacks are unused.
    ///
    /// # Errors
    /// [`TextError::TokenizerFile`] if GGUF has no name for the tokenizer.
    pub fn gguf_keys(&self, rows: usize) -> Result<Vec<(&'static str, KeyValue)>, TextError> {
        let refused = |what: &str| Err(TextError::tokenizer_file("tokenizer.json", what));
        let mut keys = vec![];
        let model = match self.model {
            VocabModel::Bpe => "gpt2",
            VocabModel::WordPiece => "bert",
            VocabModel::SentencePiece => {
                return refused("has byte fallback, which is not written as GGUF yet");
            }
        };
        if self.tokens.len() > rows {
            return refused("has more tokens than the embedding has rows");
        }
        keys.push(("tokenizer.ggml.model", KeyValue::Text(model.to_owned())));
        if self.model == VocabModel::Bpe {
            let ignores = self.ignore_merges.unwrap_or(false);
            let name = match &self.split_stages[..] {
                [] => Some(&*self.pre_tokenizer),
                stages => pretokenize::name_of(stages, ignores),
            };
            let Some(name) = name else {
                return refused("has a pre-tokenizer that GGUF has no name for");
            };
            keys.push(("tokenizer.ggml.pre", KeyValue::Text(name.to_owned())));
            keys.push((
                "tokenizer.ggml.merges",
                KeyValue::Texts(self.merges.clone()),
            ));
        }
        let padding = (self.tokens.len()..rows).map(|i| format!("[PAD{i}]"));
        let tokens = self.tokens.iter().map(str::to_owned).chain(padding);
        keys.push(("tokenizer.ggml.tokens", KeyValue::Texts(tokens.collect())));
        let kind = |i: usize| match self.kinds.get(i) {
            Some(kind) => kind.code(),
            None if i < self.tokens.len() => TokenKind::Normal.code(),
            None => TokenKind::Unused.code(),
        };
        let kinds = (0..rows).map(kind).collect();
        keys.push(("tokenizer.ggml.token_type", KeyValue::Ints(kinds)));
        let ids = [
            ("tokenizer.ggml.bos_token_id", self.bos),
            ("tokenizer.ggml.eos_token_id", self.eos),
            ("tokenizer.ggml.unknown_token_id", self.unk),
            // The key is misspelled in the format itself.
            ("tokenizer.ggml.seperator_token_id", self.sep),
            ("tokenizer.ggml.cls_token_id", self.cls),
            ("tokenizer.ggml.padding_token_id", self.pad),
            ("tokenizer.ggml.mask_token_id", self.mask),
        ];
        let other = |id: &&u32| Some(**id) != self.eos;
        let further = self.extra_eos.iter().find(other).copied();
        let ids = ids
            .into_iter()
            .chain([("tokenizer.ggml.eot_token_id", further)]);
        keys.extend(ids.filter_map(|(key, id)| Some((key, KeyValue::Token(id?)))));
        let flags = [
            ("tokenizer.ggml.add_bos_token", self.add_bos),
            ("tokenizer.ggml.add_eos_token", self.add_eos),
        ];
        keys.extend(
            flags
                .into_iter()
                .filter_map(|(key, flag)| Some((key, KeyValue::Flag(flag?)))),
        );
        Ok(keys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::JsonMetadata;
    use serde_json::{Map, Value, json};

    #[test]
    fn keys_are_read_back() {
        let vocab = Vocab {
            model: VocabModel::WordPiece,
            tokens: ["[PAD]", "[UNK]", "\u{2581}a"].iter().collect(),
            kinds: vec![TokenKind::Control, TokenKind::Unknown, TokenKind::Normal],
            unk: Some(1),
            pad: Some(0),
            add_bos: Some(true),
            ..Vocab::default()
        };
        let keys = vocab.gguf_keys(4).unwrap();
        let json = keys.into_iter().map(|(key, value)| {
            let value = match value {
                KeyValue::Text(text) => json!(text),
                KeyValue::Texts(list) => list.iter().collect::<Vec<_>>().into(),
                KeyValue::Ints(list) => json!(list),
                KeyValue::Token(id) => json!(id),
                KeyValue::Flag(flag) => json!(flag),
            };
            (key.to_owned(), value)
        });
        let json: Map<String, Value> = json.collect();
        let read = Vocab::from_source(&JsonMetadata::from(Value::Object(json))).unwrap();
        assert_eq!((read.tokens.len(), &read.tokens[3]), (4, "[PAD3]"));
        assert_eq!(read.kinds[3], TokenKind::Unused);
        assert_eq!(
            (read.unk, read.pad, read.add_bos),
            (Some(1), Some(0), Some(true))
        );
        assert!(vocab.gguf_keys(2).is_err());
    }

    #[test]
    fn a_pre_tokenizer_gets_its_name() {
        let stage = |pattern: &str, splits_last_space| crate::vocab::SplitStage {
            pattern: pattern.to_owned(),
            splits_last_space,
        };
        let smollm = [stage(r"\p{N}", false), stage(pretokenize::GPT2, true)];
        assert_eq!(pretokenize::name_of(&smollm, false), Some("smollm"));
        assert_eq!(pretokenize::name_of(&smollm[..1], false), None);
    }
}
