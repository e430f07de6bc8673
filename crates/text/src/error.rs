//! The error type of the crate.

/// Why a vocabulary, a tokenizer or a chat template cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// The metadata lack a key that every vocabulary needs, or its value has the wrong type.
    #[error("metadata key `{0}` is missing or has the wrong type")]
    MissingKey(&'static str),
    /// A file of a Hugging Face folder is damaged or needs a feature that is not supported.
    #[error("{0}")]
    TokenizerFile(String),
    /// `tokenizer.ggml.model` names an unknown algorithm.
    #[error("unknown tokenizer model `{0}` (known: gpt2, llama, bert; BPE, WordPiece)")]
    UnknownModel(String),
    /// `tokenizer.ggml.pre` names an unknown pre-tokenizer.
    #[error("unknown pre-tokenizer `{0}`")]
    UnknownPreTokenizer(String),
    /// A per-token list is not as long as the token list.
    #[error("the vocabulary has {tokens} tokens but {found} {what}")]
    LengthMismatch {
        /// Which list: `scores` or `kinds`.
        what: &'static str,
        /// Its length.
        found: usize,
        /// The length of the token list.
        tokens: usize,
    },
    /// A token's type code is none of 1 to 6.
    #[error("token {token} has the unknown type code {code}")]
    UnknownKind {
        /// The token's id.
        token: usize,
        /// The code found.
        code: i64,
    },
    /// A special id points outside the vocabulary.
    #[error("{what} id {id} is outside the vocabulary of {tokens} tokens")]
    IdOutOfRange {
        /// Which id, for instance `bos`.
        what: &'static str,
        /// The id found.
        id: i64,
        /// The length of the token list.
        tokens: usize,
    },
    /// There are more tokens than ids of 32 bits.
    #[error("a vocabulary of {0} tokens is too large")]
    TooManyTokens(usize),
    /// A merge is not two tokens with a space between.
    #[error("merge {index} (`{merge}`) is not two tokens with a space between")]
    MalformedMerge {
        /// Its place in the list, which is its rank.
        index: usize,
        /// The merge as found.
        merge: String,
    },
    /// A part or the result of a merge is not a token.
    #[error("merge {index} (`{merge}`) needs `{part}`, which is not in the vocabulary")]
    MergeOutsideVocab {
        /// Its place in the list, which is its rank.
        index: usize,
        /// The merge as found.
        merge: String,
        /// The string that is not a token.
        part: String,
    },
    /// A SentencePiece vocabulary came without scores, which are its merge order.
    #[error("a SentencePiece vocabulary needs one score per token")]
    NoScores,
    /// The vocabulary has neither an unknown token nor a token for every byte, so it cannot encode every text.
    #[error("the vocabulary has no unknown token and cannot encode every text")]
    NoUnknownToken,
    /// The model file has no chat template.
    #[error(
        "the model file has no chat template, as base models have none: they continue texts and do not answer"
    )]
    NoTemplate,
    /// A chat template does not parse or fails while rendering.
    #[error("chat template{}: {message}", at_line(*.line))]
    Template {
        /// The template's line, counted from 1, where it is known.
        line: Option<usize>,
        /// What is wrong.
        message: String,
    },
    /// A chat template refused the conversation by calling `raise_exception`.
    #[error("chat template{} refused the conversation: {message}", at_line(*.line))]
    TemplateRaised {
        /// The template's line, counted from 1, where it is known.
        line: Option<usize>,
        /// The message of the template.
        message: String,
    },
}

fn at_line(line: Option<usize>) -> String {
    line.map_or_else(String::new, |line| format!(" line {line}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_the_line_when_known() {
        let known = TextError::Template {
            line: Some(3),
            message: "bad".into(),
        };
        assert_eq!(known.to_string(), "chat template line 3: bad");
        let unknown = TextError::TemplateRaised {
            line: None,
            message: "no".into(),
        };
        assert_eq!(
            unknown.to_string(),
            "chat template refused the conversation: no"
        );
    }
}
