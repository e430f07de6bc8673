//! Tokenizers and chat templates.
//!
//! | to | use |
//! |---|---|
//! | read the vocabulary of a model file | [`Vocab`], from metadata through [`VocabSource`] or with [`HuggingFaceFiles`] |
//! | turn text into ids and ids into text | [`Tokenizer`] |
//! | write a tokenizer in another language | [`TokenizerTables`] |
//! | show text while its tokens arrive | [`Utf8Stream`] |
//! | separate reasoning, content and tool calls of an answer | [`AnswerParser`] |
//! | continue a conversation with exact tokens | [`ChatContinuation`] |
//! | turn a conversation into a prompt | [`ChatTemplate`], [`Message`] and [`Prompt`] |
//!
//! The crate takes plain data and does not depend on a model format. A tokenizer is built from a vocabulary. A chat
//! template renders a conversation to a prompt, which separates the template's text from the text of the messages: the
//! tokenizer recognises control tokens only in the template's text.
//!
//! ```
//! use text::{ChatTemplate, EncodeOptions, Message, TokenKind, Tokenizer, Utf8Stream, Vocab};
//!
//! // A vocabulary of two merges. Real ones come from `Vocab::from_source`.
//! let tokens = ["H", "i", "Hi", "Ġ", "ĠHi", "Ċ", "u", "<|im_start|>", "<|im_end|>"];
//! let mut kinds = vec![TokenKind::Normal; tokens.len()];
//! kinds[7..].fill(TokenKind::Control);
//! let tokenizer = Tokenizer::new(Vocab {
//!     tokens: tokens.iter().collect(),
//!     kinds,
//!     merges: ["H i", "Ġ Hi"].iter().collect(),
//!     pre_tokenizer: "gpt-2".into(),
//!     eos: Some(8),
//!     ..Vocab::default()
//! })?;
//! assert_eq!(tokenizer.encode("Hi Hi", EncodeOptions::default()), [2, 4]);
//!
//! // A conversation as the model was trained to see it.
//! let prompt = ChatTemplate::chatml().prompt(&tokenizer, &[Message::new("u", "Hi")], false)?;
//! assert_eq!(prompt.text(), "<|im_start|>u\nHi<|im_end|>\n");
//! let ids = tokenizer.encode_prompt(&prompt);
//! assert_eq!(ids, [7, 6, 5, 2, 8, 5]);
//! assert!(tokenizer.is_eog(ids[4]));
//!
//! // Streamed text never ends inside a character.
//! let mut stream = Utf8Stream::default();
//! let shown: String = [2, 4].iter().filter_map(|&id| tokenizer.token_bytes(id)).map(|b| stream.push(b)).collect();
//! assert_eq!(shown + &stream.finish(), "Hi Hi");
//! # Ok::<(), text::TextError>(())
//! ```
#![forbid(unsafe_code)]

mod answer;
mod chat;
mod continuation;
mod encode;
mod error;
mod harmony;
mod infill;
mod reasoning;
mod reasoning_budget;
mod system_messages;
mod token_bytes;
mod tokenizer;
pub mod tools;
mod utf8;
mod vocab;

pub use answer::{AnswerFormat, AnswerParser, AnswerPart};
pub use chat::{ChatTemplate, Message, Prompt};
pub use continuation::ChatContinuation;
pub use encode::automaton::{Acceptance, WordAutomata, WordAutomaton};
pub use error::TextError;
pub use infill::{InfillRequest, InfillTokens};
pub use reasoning::{ReasoningFormat, ReasoningTags, keeping_variables};
pub use reasoning_budget::{ReasoningBudget, ReasoningGuard};
pub use tokenizer::{
    AlgorithmTables, EncodeOptions, MergeRow, Tokenizer, TokenizerTables, TrieEdge,
};
pub use utf8::Utf8Stream;
pub use vocab::gguf_keys::KeyValue;
pub use vocab::hugging_face::HuggingFaceFiles;
pub use vocab::json_metadata::JsonMetadata;
pub use vocab::source::VocabSource;
pub use vocab::{SplitStage, TokenKind, Vocab, VocabModel};
