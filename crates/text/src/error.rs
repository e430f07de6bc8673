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
    #[error(
        "tokenizer model `{0}` is not supported (supported: gpt2, llama, bert; BPE, WordPiece)"
    )]
    UnknownModel(String),
    /// `tokenizer.ggml.pre` names an unknown pre-tokenizer.
    #[error("pre-tokenizer `{0}` is not supported")]
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
    /// A token's type code is not in the range 1 to 6.
    #[error("token {token} has the type code {code}, must be 1 to 6")]
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
    /// The number of tokens exceeds 32-bit ids.
    #[error("a vocabulary of {0} tokens exceeds 32-bit ids")]
    TooManyTokens(usize),
    /// A merge is not two tokens separated by a space.
    #[error("merge {index} (`{merge}`) is not two tokens separated by a space")]
    MalformedMerge {
        /// Its index in the list, which is its rank.
        index: usize,
        /// The merge as found.
        merge: String,
    },
    /// A part or the result of a merge is not a token.
    #[error("merge {index} (`{merge}`) needs `{part}`, which is not in the vocabulary")]
    MergeOutsideVocab {
        /// Its index in the list, which is its rank.
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
    /// A pattern of the pre-tokenizer has no automaton that reads characters.
    #[error("the pattern `{pattern}` has no automaton: {reason}")]
    PatternWithoutAutomaton {
        /// The pattern; empty if all patterns together have no automaton.
        pattern: String,
        /// Why.
        reason: String,
    },
    /// Tokens differ only in the order of combining characters that Unicode reorders.
    #[error(
        "tokens have `{0}` and `{1}`, whose order depends on Unicode's canonical order, which tables do not have"
    )]
    OrderOfMarks(char, char),
    /// The model file has no chat template.
    #[error(
        "the model file has no chat template: it may be a base model, which continues texts and does not answer"
    )]
    NoTemplate,
    /// A chat template does not parse or fails while rendering.
    #[error("chat template{}: {message}", at_line(*.line))]
    Template {
        /// Line of the template, counted from 1, if known.
        line: Option<usize>,
        /// The reason.
        message: String,
    },
    /// A chat template rejected the conversation by calling `raise_exception`.
    #[error("chat template{} rejected the conversation: {message}", at_line(*.line))]
    TemplateRaised {
        /// Line of the template, counted from 1, if known.
        line: Option<usize>,
        /// The message of the template.
        message: String,
    },
}

impl TextError {
    /// The error for a damaged or unsupported file of a Hugging Face folder.
    pub(crate) fn tokenizer_file(file: &str, reason: &str) -> TextError {
        TextError::TokenizerFile(format!("{file} {reason}"))
    }
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
            "chat template rejected the conversation: no"
        );
    }
}
