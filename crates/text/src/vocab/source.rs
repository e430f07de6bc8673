//! Reads a vocabulary from a model file's key–value metadata.

use crate::{TextError, TokenKind, Vocab, VocabModel};
use base::StringTable;

/// Key–value metadata that a vocabulary is read from.
///
/// Every method returns `None` if the key is absent or its value has another type.
pub trait VocabSource {
    /// A string.
    fn string(&self, key: &str) -> Option<String>;
    /// An array of strings.
    fn strings(&self, key: &str) -> Option<StringTable>;
    /// An array of floats.
    fn floats(&self, key: &str) -> Option<Vec<f32>>;
    /// An array of integers of any width.
    fn ints(&self, key: &str) -> Option<Vec<i64>>;
    /// An integer of any width.
    fn int(&self, key: &str) -> Option<i64>;
    /// A boolean.
    fn flag(&self, key: &str) -> Option<bool>;
}

impl Vocab {
    /// Reads GGUF's `tokenizer.ggml.*` keys.
    ///
    /// # Errors
    /// If the name of the algorithm or the tokens are missing, a type code is unknown, or [`Vocab::check`] fails.
    pub fn from_source(source: &impl VocabSource) -> Result<Self, TextError> {
        const MODEL: &str = "tokenizer.ggml.model";
        const TOKENS: &str = "tokenizer.ggml.tokens";
        let model = source.string(MODEL).ok_or(TextError::MissingKey(MODEL))?;
        let tokens = source
            .strings(TOKENS)
            .ok_or(TextError::MissingKey(TOKENS))?;
        let codes = source.ints("tokenizer.ggml.token_type").unwrap_or_default();
        let kinds = codes.iter().enumerate().map(|(token, &code)| {
            TokenKind::from_code(code).ok_or(TextError::UnknownKind { token, code })
        });
        let kinds = kinds.collect::<Result<Vec<_>, _>>()?;
        let count = tokens.len();
        let id = |what: &'static str, key: &str| match source.int(key) {
            None => Ok(None),
            // Some files write 0xFFFF_FFFF or -1 for "none".
            Some(-1 | 0xFFFF_FFFF) => Ok(None),
            Some(id) => match u32::try_from(id) {
                Ok(small) => Ok(Some(small)),
                Err(_) => Err(TextError::IdOutOfRange {
                    what,
                    id,
                    tokens: count,
                }),
            },
        };
        let extra_eos = [
            id("eot", "tokenizer.ggml.eot_token_id")?,
            id("eom", "tokenizer.ggml.eom_token_id")?,
        ];
        let is_gemma4 = model == "gemma4";
        let model = VocabModel::from_name(&model)?;
        // SentencePiece merges by scores, so listed merges are ignored. Gemma 4's scores are no merge order.
        let merges = match model {
            VocabModel::SentencePiece if !is_gemma4 => StringTable::default(),
            _ => source.strings("tokenizer.ggml.merges").unwrap_or_default(),
        };
        let vocab = Self {
            model,
            pre_tokenizer: source.string("tokenizer.ggml.pre").unwrap_or_default(),
            scores: source.floats("tokenizer.ggml.scores").unwrap_or_default(),
            split_stages: vec![],
            ignore_merges: None,
            space_prefix_once: false,
            space_prefix_if_missing: false,
            newline_runs: is_gemma4,
            cased: false,
            merges,
            bos: id("bos", "tokenizer.ggml.bos_token_id")?,
            eos: id("eos", "tokenizer.ggml.eos_token_id")?,
            unk: id("unk", "tokenizer.ggml.unknown_token_id")?,
            // The key is misspelled in the format itself.
            sep: id("sep", "tokenizer.ggml.seperator_token_id")?,
            cls: id("cls", "tokenizer.ggml.cls_token_id")?,
            pad: id("pad", "tokenizer.ggml.padding_token_id")?,
            mask: id("mask", "tokenizer.ggml.mask_token_id")?,
            extra_eos: extra_eos.into_iter().flatten().collect(),
            add_bos: source.flag("tokenizer.ggml.add_bos_token"),
            add_eos: source.flag("tokenizer.ggml.add_eos_token"),
            add_space_prefix: source
                .flag("tokenizer.ggml.add_space_prefix")
                .or(is_gemma4.then_some(false)),
            remove_extra_whitespaces: source.flag("tokenizer.ggml.remove_extra_whitespaces"),
            tokens,
            kinds,
        };
        vocab.check()?;
        Ok(vocab)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::JsonMetadata;

    fn source(change: impl FnOnce(&mut serde_json::Value)) -> JsonMetadata {
        let mut json = serde_json::json!({
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", "a"],
            "tokenizer.ggml.scores": [0.0, 0.0, 0.0, -1.5],
            "tokenizer.ggml.token_type": [2, 3, 3, 1],
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2,
            "tokenizer.ggml.eot_token_id": 3,
            "tokenizer.ggml.padding_token_id": 0xFFFF_FFFFu32,
            "tokenizer.ggml.add_bos_token": true,
        });
        change(&mut json);
        json.into()
    }

    #[test]
    fn reads_all_that_is_there() {
        let vocab = Vocab::from_source(&source(|_| {})).unwrap();
        assert_eq!(vocab.model, VocabModel::SentencePiece);
        assert_eq!((vocab.bos, vocab.eos, vocab.pad), (Some(1), Some(2), None));
        assert_eq!(vocab.extra_eos, [3]);
        assert_eq!((vocab.add_bos, vocab.add_eos), (Some(true), None));
        assert_eq!(vocab.kind(1), TokenKind::Control);
        assert_eq!(vocab.scores[3], -1.5);
    }

    #[test]
    fn names_what_is_wrong() {
        let error =
            |change: fn(&mut serde_json::Value)| Vocab::from_source(&source(change)).unwrap_err();
        assert_eq!(
            error(|json| json["tokenizer.ggml.tokens"] = 3.into()),
            TextError::MissingKey("tokenizer.ggml.tokens")
        );
        assert_eq!(
            error(|json| json["tokenizer.ggml.model"] = "rwkv".into()),
            TextError::UnknownModel("rwkv".into())
        );
        assert_eq!(
            error(|json| json["tokenizer.ggml.token_type"][2] = 9.into()),
            TextError::UnknownKind { token: 2, code: 9 }
        );
        assert_eq!(
            error(|json| json["tokenizer.ggml.eos_token_id"] = (-2).into()),
            TextError::IdOutOfRange {
                what: "eos",
                id: -2,
                tokens: 4
            }
        );
    }
}
