//! Tokenizers and chat templates.
#![forbid(unsafe_code)]

mod bpe;
mod byte_level;
mod chat;
mod error;
mod merge;
mod pieces;
mod pretokenize;
mod source;
mod special;
mod spm;
mod tokenizer;
mod utf8;
mod vocab;
mod wordpiece;

pub use chat::{ChatTemplate, Message};
pub use error::Error;
pub use source::VocabSource;
pub use tokenizer::{EncodeOptions, Tokenizer};
pub use utf8::Utf8Stream;
pub use vocab::{TokenKind, Vocab, VocabModel};
