//! `Tokenizer`: one interface to the three algorithms.

mod tables;

use crate::chat::Prompt;
use crate::encode::bpe::Bpe;
use crate::encode::sentencepiece::SentencePiece;
use crate::encode::special_tokens::{Segment, SpecialTokens};
use crate::encode::wordpiece::WordPiece;
use crate::error::TextError;
use crate::token_bytes::{TokenBytes, unescape_metaspace};
use crate::utf8::Utf8Stream;
use crate::vocab::{TokenKind, Vocab, VocabModel};
use std::ops::Range;

/// Texts of the end-of-generation tokens of known model families, in addition to the file's EOS.
const EOG_TOKEN_TEXTS: [&str; 14] = [
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|end_of_turn|>",
    "<end_of_turn>",
    "<turn|>",
    "<|tool_response>",
    "<|return|>",
    "<|call|>",
    "<EOT>",
    "<｜end▁of▁sentence｜>",
];

/// The options of [`Tokenizer::encode`]. All are off by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EncodeOptions {
    /// Add the model's BOS at the start, if it has one. [`Tokenizer::adds_bos`] is the model's default.
    pub bos: bool,
    /// Convert the text of control tokens (such as `<|im_end|>`) to these tokens. Leave it off for untrusted text.
    pub special: bool,
    /// Add the model's EOS at the end, if it has one. [`Tokenizer::adds_eos`] is the model's default.
    pub eos: bool,
}

/// Turns text into token ids and back.
///
/// Ids are those of the models' own tokenizers, with two exceptions. Text is not normalised to NFC, so that byte-level
/// BPE decodes to the original text. Special tokens do not absorb adjacent white space, because GGUF does not record
/// which of them should.
#[derive(Debug)]
pub struct Tokenizer {
    algorithm: Algorithm,
    token_bytes: TokenBytes,
    kinds: Vec<TokenKind>,
    special: SpecialTokens,
    bos: Option<u32>,
    eos: Option<u32>,
    eog_ids: Vec<u32>,
    adds_bos: bool,
    adds_eos: bool,
}

#[derive(Debug)]
enum Algorithm {
    Bpe(Bpe),
    SentencePiece(SentencePiece),
    WordPiece(WordPiece),
}

impl Tokenizer {
    /// Builds the tables for a vocabulary.
    ///
    /// # Errors
    /// If the vocabulary is inconsistent or its pre-tokenizer is unknown.
    pub fn new(vocab: Vocab) -> Result<Self, TextError> {
        vocab.check()?;
        let algorithm = match vocab.model {
            VocabModel::Bpe => Algorithm::Bpe(Bpe::new(&vocab)?),
            VocabModel::SentencePiece => Algorithm::SentencePiece(SentencePiece::new(&vocab)?),
            VocabModel::WordPiece => Algorithm::WordPiece(WordPiece::new(&vocab)?),
        };
        let (adds_bos, adds_eos) = match &algorithm {
            Algorithm::Bpe(bpe) => (bpe.adds_bos(), false),
            Algorithm::SentencePiece(_) => (true, false),
            Algorithm::WordPiece(_) => (true, true),
        };
        let is_bert = vocab.model == VocabModel::WordPiece;
        let bos = if is_bert {
            vocab.cls.or(vocab.bos)
        } else {
            vocab.bos
        };
        let eos = if is_bert {
            vocab.sep.or(vocab.eos)
        } else {
            vocab.eos
        };
        let special = match vocab.model {
            VocabModel::SentencePiece => SpecialTokens::new(&vocab, unescape_metaspace),
            VocabModel::Bpe | VocabModel::WordPiece => SpecialTokens::new(&vocab, str::to_owned),
        };
        let mut eog_ids: Vec<u32> = eos
            .into_iter()
            .chain(vocab.extra_eos.iter().copied())
            .collect();
        eog_ids.extend(EOG_TOKEN_TEXTS.iter().filter_map(|text| special.get(text)));
        // In the harmony format, an answer goes on with another message after this token.
        if let (Some(end), Some(_)) = (special.get("<|end|>"), special.get("<|channel|>"))
            && eos != Some(end)
        {
            eog_ids.retain(|id| *id != end);
        }
        eog_ids.sort_unstable();
        eog_ids.dedup();
        Ok(Self {
            token_bytes: TokenBytes::new(&vocab),
            kinds: (0..vocab.tokens.len()).map(|id| vocab.kind(id)).collect(),
            special,
            bos,
            eos,
            eog_ids,
            adds_bos: vocab.add_bos.unwrap_or(adds_bos),
            adds_eos: vocab.add_eos.unwrap_or(adds_eos),
            algorithm,
        })
    }

    /// The tokens of `text`.
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Vec<u32> {
        let mut ids = Vec::with_capacity(text.len() / 4 + 2);
        ids.extend(self.bos.filter(|_| options.bos));
        let parts = self.special.split(text, |_| options.special);
        self.encode_parts(&parts, true, &mut ids);
        ids.extend(self.eos.filter(|_| options.eos));
        ids
    }

    /// The tokens of a conversation. Control tokens are recognised only in the template's text. BOS is added at the
    /// start if the model uses it and the template did not write it.
    pub fn encode_prompt(&self, prompt: &Prompt) -> Vec<u32> {
        let mut ids = Vec::with_capacity(prompt.text().len() / 4 + 2);
        self.encode_parts(&self.prompt_parts(prompt), true, &mut ids);
        if let Some(bos) = self
            .bos
            .filter(|bos| self.adds_bos() && ids.first() != Some(bos))
        {
            ids.insert(0, bos);
        }
        ids
    }

    /// The tokens of a conversation that begin with `held`, if the text of these is the beginning of the prompt's text.
    /// Only the rest is encoded, so that a sampled answer keeps the tokens that it was sampled as.
    pub fn encode_prompt_after(&self, held: &[u32], prompt: &Prompt) -> Option<Vec<u32>> {
        let starts = |ids: &[u32]| prompt.text().starts_with(&self.decode(ids, true));
        // BOS was added unless the template wrote it.
        let visible = match held.first() {
            Some(first) if Some(*first) == self.bos && !starts(held) => &held[1..],
            _ => held,
        };
        let text = self.decode(visible, true);
        if !prompt.text().starts_with(&text) {
            return None;
        }
        Some(self.encode_rest(held, prompt, text.len()))
    }

    /// `held` and the tokens of the prompt's text after its first `at` bytes, which must end a character.
    pub fn encode_rest(&self, held: &[u32], prompt: &Prompt, at: usize) -> Vec<u32> {
        let mut ids = held.to_vec();
        let rest = prompt.after(at);
        self.encode_parts(&self.prompt_parts(&rest), at == 0, &mut ids);
        ids
    }

    /// The lengths of a rendered conversation at which messages end: behind the tokens that end a turn, and the white space behind them.
    pub fn message_ends(&self, ids: &[u32]) -> Vec<usize> {
        let is_space = |id: &&u32| {
            let bytes = self.token_bytes(**id).unwrap_or_default();
            !bytes.is_empty() && bytes.iter().all(u8::is_ascii_whitespace)
        };
        let ends = (1..).zip(ids).filter(|(_, id)| self.is_eog(**id));
        let ends = ends.map(|(length, _)| length);
        ends.map(|length| length + ids[length..].iter().take_while(is_space).count())
            .collect()
    }

    /// The control tokens of a conversation.
    pub(crate) fn control_tokens(&self, prompt: &Prompt) -> Vec<u32> {
        let tokens = self.prompt_parts(prompt).into_iter();
        let tokens = tokens.filter_map(|part| match part {
            Segment::Token(id) => Some(id),
            Segment::Text(_) => None,
        });
        let hidden = |id: &u32| self.kind(*id).is_some_and(TokenKind::is_hidden);
        tokens.filter(hidden).collect()
    }

    /// The ranges of control tokens in `text`.
    pub(crate) fn control_spans(&self, text: &str) -> Vec<Range<usize>> {
        self.special.hidden_spans(text)
    }

    /// The start of the first token after byte `from` of a prompt that ends a generation.
    pub(crate) fn first_eog(&self, prompt: &Prompt, from: usize) -> Option<usize> {
        let mut at = 0;
        for part in self.prompt_parts(prompt) {
            let len = match part {
                Segment::Token(id) if at >= from && self.is_eog(id) => return Some(at),
                Segment::Token(id) => self.token_bytes(id).map_or(0, <[u8]>::len),
                Segment::Text(text) => text.len(),
            };
            at += len;
        }
        None
    }

    fn prompt_parts<'t>(&self, prompt: &'t Prompt) -> Vec<Segment<'t>> {
        let untrusted = prompt.untrusted();
        let trusted = |range: Range<usize>| {
            let next = untrusted.partition_point(|known| known.end <= range.start);
            untrusted
                .get(next)
                .is_none_or(|known| known.start >= range.end)
        };
        self.special.split(prompt.text(), trusted)
    }

    /// Appends the tokens of parts. `begins`: the first part begins the text.
    fn encode_parts(&self, parts: &[Segment<'_>], begins: bool, ids: &mut Vec<u32>) {
        for (at, part) in parts.iter().enumerate() {
            match *part {
                Segment::Token(id) => ids.push(id),
                Segment::Text(text) => match &self.algorithm {
                    Algorithm::Bpe(bpe) => bpe.encode(text, ids),
                    Algorithm::SentencePiece(spm) => spm.encode(text, begins && at == 0, ids),
                    Algorithm::WordPiece(words) => words.encode(text, ids),
                },
            }
        }
    }

    /// Decodes `ids` as a whole text; invalid UTF-8 becomes U+FFFD.
    ///
    /// See [`decode_bytes`](Self::decode_bytes).
    pub fn decode(&self, ids: &[u32], special: bool) -> String {
        let mut stream = Utf8Stream::default();
        let mut text = stream.push(&self.decode_bytes(ids, special));
        text.push_str(&stream.finish());
        text
    }

    /// Decodes `ids` as a whole text to bytes, with or without the text of control tokens.
    ///
    /// A space that encoding adds (at the start and after special tokens) is removed. To decode a continuation, use
    /// [`token_bytes`](Self::token_bytes) instead. Ids outside the vocabulary are skipped.
    pub fn decode_bytes(&self, ids: &[u32], special: bool) -> Vec<u8> {
        let (prefixed, everywhere) = match &self.algorithm {
            Algorithm::Bpe(_) => (false, false),
            Algorithm::SentencePiece(spm) => (spm.space_prefix(), spm.space_prefix_everywhere()),
            Algorithm::WordPiece(_) => (true, true),
        };
        let mut bytes = Vec::new();
        let mut begins = true;
        for &id in ids {
            let (Some(piece), Some(&kind)) =
                (self.token_bytes.get(id), self.kinds.get(id as usize))
            else {
                continue;
            };
            let is_special = self.is_special(id);
            if !kind.is_hidden() || special {
                let piece = match piece.strip_prefix(b" ") {
                    Some(bare) if prefixed && begins && !is_special => bare,
                    _ => piece,
                };
                bytes.extend_from_slice(piece);
            }
            begins = is_special && everywhere;
        }
        bytes
    }

    /// The bytes of token `id`, including control tokens; `None` outside the vocabulary.
    ///
    /// The bytes need not be whole characters: feed them to a [`Utf8Stream`].
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.token_bytes.get(id)
    }

    /// The kind of token `id`; `None` outside the vocabulary.
    pub fn kind(&self, id: u32) -> Option<TokenKind> {
        self.kinds.get(id as usize).copied()
    }

    /// The special token written as `text`.
    pub fn special_token(&self, text: &str) -> Option<u32> {
        self.special.get(text)
    }

    /// Whether `id` ends a generation: EOS, end of turn or end of message.
    pub fn is_eog(&self, id: u32) -> bool {
        self.eog_ids.binary_search(&id).is_ok()
    }

    /// The token a sequence begins with (BERT's `[CLS]`).
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The token a sequence ends with (BERT's `[SEP]`).
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// Whether prompts of the model begin with [`bos`](Self::bos).
    pub fn adds_bos(&self) -> bool {
        self.adds_bos && self.bos.is_some()
    }

    /// Whether texts of the model end with [`eos`](Self::eos).
    pub fn adds_eos(&self) -> bool {
        self.adds_eos && self.eos.is_some()
    }

    /// The number of tokens. Ids are below it.
    pub fn vocab_size(&self) -> usize {
        self.token_bytes.len()
    }
}

pub use tables::{AlgorithmTables, MergeRow, TokenizerTables, TrieEdge};

#[cfg(test)]
mod tests;
