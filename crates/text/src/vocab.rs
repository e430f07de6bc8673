//! The vocabulary as a model file carries it: plain data, checked once.

use crate::TextError;
use base::StringTable;

/// What a token is for; decides whether text can produce it and whether it is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TokenKind {
    /// Ordinary text.
    #[default]
    Normal,
    /// Stands for what the vocabulary cannot spell.
    Unknown,
    /// Steers the model and has no text of its own, such as the beginning of a sequence.
    Control,
    /// Added by the model's makers; found in text before anything else is.
    UserDefined,
    /// A place that was left empty.
    Unused,
    /// One byte, written `<0xAB>`.
    Byte,
}

impl TokenKind {
    /// The kind with GGUF's type code (1 to 6).
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

    /// Whether text shown to people leaves such tokens out.
    pub fn is_hidden(self) -> bool {
        matches!(self, Self::Control | Self::Unknown)
    }
}

/// The algorithm that cuts text into tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum VocabModel {
    /// Byte-level byte-pair encoding (`gpt2`).
    #[default]
    Bpe,
    /// SentencePiece with scores and byte fallback (`llama`).
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
            "llama" => Ok(Self::SentencePiece),
            "bert" => Ok(Self::WordPiece),
            other => Err(TextError::UnknownModel(other.to_owned())),
        }
    }
}

/// One stage of a pre-tokenizer that a file spells out: what the pattern matches are words, and so is what lies between.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SplitStage {
    /// A regular expression without look-around.
    pub pattern: String,
    /// Whether the last character of white space before a word is a word of its own, which files write as
    /// `|\s+(?!\S)|\s+` at the pattern's end.
    pub splits_last_space: bool,
}

/// Everything a model file says about its tokens (GGUF's `tokenizer.ggml.*` keys).
#[derive(Debug, Clone, Default)]
pub struct Vocab {
    /// The algorithm.
    pub model: VocabModel,
    /// The pre-tokenizer's name; only byte-level BPE looks at it. Empty means `default`.
    pub pre_tokenizer: String,
    /// The pre-tokenizer's stages where the file spells them out; then `pre` is not looked at.
    pub split_stages: Vec<SplitStage>,
    /// Whether byte-level BPE takes a word that is a token without merging; `None` leaves it to `pre`.
    pub ignore_merges: Option<bool>,
    /// Token texts in id order, in the algorithm's own spelling.
    pub tokens: StringTable,
    /// One score per token (higher merges first); empty where the algorithm has none.
    pub scores: Vec<f32>,
    /// One kind per token; empty means all normal.
    pub kinds: Vec<TokenKind>,
    /// Merges `"left right"` in rank order, for BPE; SentencePiece without them merges by score.
    pub merges: StringTable,
    /// Beginning of sequence.
    pub bos: Option<u32>,
    /// End of sequence.
    pub eos: Option<u32>,
    /// Stands for what the vocabulary cannot spell.
    pub unk: Option<u32>,
    /// Ends a sentence in BERT's manner.
    pub sep: Option<u32>,
    /// Begins a text in BERT's manner.
    pub cls: Option<u32>,
    /// Fills a batch.
    pub pad: Option<u32>,
    /// Masks a token out.
    pub mask: Option<u32>,
    /// Further ids that end a generation, such as end of turn and end of message.
    pub extra_eos: Vec<u32>,
    /// Whether prompts begin with `bos`; `None` leaves it to the algorithm's habit.
    pub add_bos: Option<bool>,
    /// Whether texts end with `eos`; `None` leaves it to the algorithm's habit.
    pub add_eos: Option<bool>,
    /// Whether SentencePiece puts a space before the text; `None` means yes.
    pub add_space_prefix: Option<bool>,
    /// Whether that space comes only before the whole text, and not also behind special tokens.
    pub space_prefix_once: bool,
    /// Whether that space is left out before text that begins with one.
    pub space_prefix_if_missing: bool,
    /// Whether WordPiece keeps capitals and accents.
    pub cased: bool,
    /// Whether SentencePiece trims spaces and makes one of several; `None` means no.
    pub remove_extra_whitespaces: Option<bool>,
}

impl Vocab {
    /// The kind of token `id`; normal where the file names no kinds.
    pub fn kind(&self, id: usize) -> TokenKind {
        self.kinds.get(id).copied().unwrap_or_default()
    }

    /// Checks that lists are as long as they must be and that ids lie inside.
    ///
    /// # Errors
    /// Names the first list or id that is wrong.
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
