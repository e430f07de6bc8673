//! The tokenization algorithms, and what they share.

pub(crate) mod automaton;
pub(crate) mod bpe;
pub(crate) mod byte_level;
mod merge;
pub(crate) mod pretokenize;
pub(crate) mod sentencepiece;
pub(crate) mod special_tokens;
pub(crate) mod wordpiece;
