//! `Vocab`: the vocabulary of a model file as plain data.

pub(crate) mod gguf_keys;
pub(crate) mod hugging_face;
pub(crate) mod json_metadata;
pub(crate) mod source;

use crate::TextError;
use base::StringTable;

/// The kind of a token. It determines whether text can produce the token and whether the token is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TokenKind {
    /// Ordinary text.
    #[default]
    Normal,
    /// Stands for text that the vocabulary cannot encode.
    Unknown,
    /// A control token without text, such as the beginning of a sequence.
    Control,
    /// Added to the vocabulary by hand; matched in text before the algorithm runs.
    UserDefined,
    /// An unused id.
    Unused,
    /// One byte, written `<0xAB>`.
    Byte,
}

impl TokenKind {
    /// The kind for GGUF's type code (1 to 6).
    pub fn from_code(code: i64) -> Option<Self> {
        Some(match code {
            1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => return None,
        })
    }

    /// Whether such tokens are omitted from displayed text.
    pub fn is_hidden(self) -> bool {
        matches!(self, Self::Control | Self::Unknown)
    }
}

/// The tokenization algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum VocabModel {
    /// Byte-level byte-pair encoding (`gpt2`).
    #[default]
    Bpe,
    /// SentencePiece with scores or merges, and byte fallback (`llama`, `gemma4`).
    SentencePiece,
    /// Greedy longest match over lower-cased words (`bert`).
    WordPiece,
}

impl VocabModel {
    /// The algorithm that `tokenizer.ggml.model` names.
    ///
    /// # Errors
    /// [`TextError::UnknownModel`] for any other name.
    pub fn from_name(name: &str) -> Result<Self, TextError> {
        match name {
            "gpt2" => Ok(Self::Bpe),
            "llama" | "gemma4" => Ok(Self::SentencePiece),
            "bert" => Ok(Self::WordPiece),
            other => Err(TextError::UnknownModel(other.to_owned())),
        }
    }
}

/// One regex stage of a pre-tokenizer. The matches of the pattern and the text between them are words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SplitStage {
    /// A regular expression without look-around.
    pub pattern: String,
    /// Whether the last white-space character before a word is split off. Files write this as `|\s+(?!\S)|\s+` at the
    /// end of the pattern.
    pub splits_last_space: bool,
}

/// The vocabulary and tokenizer settings of a model file (GGUF's `tokenizer.ggml.*` keys).
#[derive(Debug, Clone, Default)]
pub struct Vocab {
    /// The algorithm.
    pub model: VocabModel,
    /// Name of the pre-tokenizer, for byte-level BPE only. Empty means `default`.
    pub pre_tokenizer: String,
    /// Stages of the pre-tokenizer, if the file lists them; `pre_tokenizer` is then ignored.
    pub split_stages: Vec<SplitStage>,
    /// Whether byte-level BPE uses a word that is a token without merging; `None` for the pre-tokenizer's default.
    pub ignore_merges: Option<bool>,
    /// Token texts in id order, in the encoding of the algorithm.
    pub tokens: StringTable,
    /// One score per token (higher merges first); empty if the algorithm has none.
    pub scores: Vec<f32>,
    /// One kind per token; empty means all normal.
    pub kinds: Vec<TokenKind>,
    /// Merges `"left right"` in rank order, for BPE; SentencePiece without them merges by score.
    pub merges: StringTable,
    /// Beginning of sequence.
    pub bos: Option<u32>,
    /// End of sequence.
    pub eos: Option<u32>,
    /// Stands for text that the vocabulary cannot encode.
    pub unk: Option<u32>,
    /// BERT's separator token, at the end of a text.
    pub sep: Option<u32>,
    /// BERT's classification token, at the start of a text.
    pub cls: Option<u32>,
    /// Padding token.
    pub pad: Option<u32>,
    /// Mask token.
    pub mask: Option<u32>,
    /// Further ids that end a generation, such as end of turn and end of message.
    pub extra_eos: Vec<u32>,
    /// Whether prompts begin with `bos`; `None` for the algorithm's default.
    pub add_bos: Option<bool>,
    /// Whether texts end with `eos`; `None` for the algorithm's default.
    pub add_eos: Option<bool>,
    /// Whether SentencePiece puts a space before the text; `None` means yes.
    pub add_space_prefix: Option<bool>,
    /// Whether that space is added only at the start of the text, not also after special tokens.
    pub space_prefix_once: bool,
    /// Whether that space is omitted if the text begins with one.
    pub space_prefix_if_missing: bool,
    /// Whether SentencePiece splits runs of newlines from other text, and takes a run that is a token whole.
    pub newline_runs: bool,
    /// Whether WordPiece keeps capitals and accents.
    pub cased: bool,
    /// Whether SentencePiece trims spaces and collapses runs of them; `None` means no.
    pub remove_extra_whitespaces: Option<bool>,
}

impl Vocab {
    /// The kind of token `id`; normal if the file lists no kinds.
    pub fn kind(&self, id: usize) -> TokenKind {
        self.kinds.get(id).copied().unwrap_or_default()
    }

    /// Checks the lengths of the lists and the ranges of the ids.
    ///
    /// # Errors
    /// The first list or id that is wrong.
    pub fn check(&self) -> Result<(), TextError> {
        let tokens = self.tokens.len();
        if u32::try_from(tokens).is_err() {
            return Err(TextError::TooManyTokens(tokens));
        }
        for (what, found) in [("scores", self.scores.len()), ("kinds", self.kinds.len())] {
            if found != 0 && found != tokens {
                return Err(TextError::LengthMismatch {
                    what,
                    found,
                    tokens,
                });
            }
        }
        let single = [
            ("bos", self.bos),
            ("eos", self.eos),
            ("unk", self.unk),
            ("sep", self.sep),
            ("cls", self.cls),
            ("pad", self.pad),
            ("mask", self.mask),
        ];
        let extra = self.extra_eos.iter().map(|&id| ("extra eos", Some(id)));
        for (what, id) in single.into_iter().chain(extra) {
            match id {
                Some(id) if id as usize >= tokens => {
                    return Err(TextError::IdOutOfRange {
                        what,
                        id: id.into(),
                        tokens,
                    });
                }
                _ => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> Vocab {
        Vocab {
            tokens: ["a", "b"].iter().collect(),
            ..Vocab::default()
        }
    }

    #[test]
    fn checks_lengths_and_ids() {
        assert_eq!(two().check(), Ok(()));
        let short = Vocab {
            scores: vec![0.0],
            ..two()
        };
        assert_eq!(
            short.check(),
            Err(TextError::LengthMismatch {
                what: "scores",
                found: 1,
                tokens: 2
            })
        );
        let outside = Vocab {
            extra_eos: vec![2],
            ..two()
        };
        assert_eq!(
            outside.check(),
            Err(TextError::IdOutOfRange {
                what: "extra eos",
                id: 2,
                tokens: 2
            })
        );
    }

    #[test]
    fn kinds_and_models_have_codes_and_names() {
        assert_eq!(TokenKind::from_code(6), Some(TokenKind::Byte));
        assert_eq!(TokenKind::from_code(7), None);
        assert_eq!(
            VocabModel::from_name("llama"),
            Ok(VocabModel::SentencePiece)
        );
        assert_eq!(
            VocabModel::from_name("t5"),
            Err(TextError::UnknownModel("t5".into()))
        );
    }
}
