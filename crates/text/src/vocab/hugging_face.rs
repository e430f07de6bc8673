//! Reads a vocabulary from the files of a Hugging Face folder: `tokenizer.json` and its sidecar files.

mod pipeline;

use std::borrow::Cow;
use std::collections::HashMap;

use base::StringTable;
use serde_json::{Map, Value};

use crate::encode::sentencepiece::byte_of;
use crate::error::TextError;
use crate::vocab::{TokenKind, Vocab, VocabModel};

/// The tokenizer files of a Hugging Face folder, as bytes. Only `tokenizer` is required.
#[derive(Debug, Clone, Copy, Default)]
pub struct HuggingFaceFiles<'a> {
    /// `tokenizer.json`.
    pub tokenizer: &'a [u8],
    /// `tokenizer_config.json`: special tokens and, in most folders, the chat template.
    pub config: Option<&'a [u8]>,
    /// `generation_config.json`: which tokens end a generation.
    pub generation: Option<&'a [u8]>,
    /// `chat_template.jinja`.
    pub template: Option<&'a [u8]>,
}

impl HuggingFaceFiles<'_> {
    /// The vocabulary.
    ///
    /// # Errors
    /// If a file is damaged or needs a feature that is not supported.
    pub fn vocab(&self) -> Result<Vocab, TextError> {
        let file = object("tokenizer.json", self.tokenizer)?;
        let config = match self.config {
            Some(bytes) => object("tokenizer_config.json", bytes)?,
            None => Map::new(),
        };
        let mut vocab = tokens(&file)?;
        let steps = pipeline::Pipeline::read(&file);
        pipeline::apply(&steps, &mut vocab)?;

        let ids: HashMap<&str, u32> = (0u32..)
            .zip(vocab.tokens.iter())
            .map(|(id, token)| (token, id))
            .collect();
        let id = |key: &str| {
            let text = match config.get(key)? {
                Value::String(text) => text,
                Value::Object(token) => token.get("content")?.as_str()?,
                _ => return None,
            };
            ids.get(text).copied()
        };
        let (bos, eos) = (id("bos_token"), id("eos_token"));
        let (cls, sep, pad, mask) = (
            id("cls_token"),
            id("sep_token"),
            id("pad_token"),
            id("mask_token"),
        );
        let affix_tokens = steps.affix_tokens(&file);
        let flag = |key: &str| config.get(key).and_then(Value::as_bool);
        let eos_ids = self.eos_ids(vocab.tokens.len())?;
        vocab.bos = bos.or(affix_tokens.first);
        vocab.eos = eos.or(eos_ids.first().copied()).or(affix_tokens.last);
        vocab.extra_eos = eos_ids;
        (vocab.cls, vocab.sep, vocab.pad, vocab.mask) = (
            cls.or(affix_tokens.first),
            sep.or(affix_tokens.last),
            pad,
            mask,
        );
        // The post-processor decides about BOS and EOS; the flags count only if there is none.
        vocab.add_bos = Some(match affix_tokens.stated {
            true => affix_tokens.first.is_some(),
            false => flag("add_bos_token").unwrap_or(false),
        });
        vocab.add_eos = Some(match affix_tokens.stated {
            true => affix_tokens.last.is_some(),
            false => flag("add_eos_token").unwrap_or(false),
        });
        vocab.check()?;
        Ok(vocab)
    }

    /// The chat template, if there is one.
    ///
    /// # Errors
    /// If a file is not valid JSON or not UTF-8.
    pub fn chat_template(&self) -> Result<Option<String>, TextError> {
        if let Some(bytes) = self.template {
            let text = String::from_utf8(bytes.to_vec());
            return Ok(Some(text.map_err(|_| {
                TextError::tokenizer_file("chat_template.jinja", "is not UTF-8")
            })?));
        }
        let Some(bytes) = self.config else {
            return Ok(None);
        };
        let config = object("tokenizer_config.json", bytes)?;
        Ok(match config.get("chat_template") {
            Some(Value::String(text)) => Some(text.clone()),
            // A list of named templates; the one for conversations is "default".
            Some(Value::Array(list)) => {
                let named = list.iter().find(|t| t["name"] == "default");
                let template = named.or(list.first()).map(|t| &t["template"]);
                template.and_then(Value::as_str).map(str::to_owned)
            }
            _ => None,
        })
    }

    /// The ids that end a generation.
    fn eos_ids(&self, tokens: usize) -> Result<Vec<u32>, TextError> {
        let Some(bytes) = self.generation else {
            return Ok(vec![]);
        };
        let config = object("generation_config.json", bytes)?;
        let list = match config.get("eos_token_id") {
            Some(Value::Array(list)) => list.clone(),
            Some(one) => vec![one.clone()],
            None => vec![],
        };
        let ids = list.iter().filter_map(Value::as_i64);
        ids.map(|id| match u32::try_from(id) {
            Ok(small) => Ok(small),
            Err(_) => Err(TextError::IdOutOfRange {
                what: "eos",
                id,
                tokens,
            }),
        })
        .collect()
    }
}

/// The algorithm with its tokens and merges.
fn tokens(file: &Map<String, Value>) -> Result<Vocab, TextError> {
    let name = "tokenizer.json";
    let model = file.get("model").and_then(Value::as_object);
    let model = model.ok_or_else(|| TextError::tokenizer_file(name, "has no object \"model\""))?;
    let list = model.get("vocab").and_then(Value::as_object);
    let list = list.ok_or_else(|| {
        TextError::tokenizer_file(
            name,
            "has a model without a vocabulary by text (Unigram models are not supported)",
        )
    })?;
    let fallback = model.get("byte_fallback") == Some(&Value::Bool(true));
    let kind = match model.get("type").and_then(Value::as_str) {
        Some("WordPiece") => VocabModel::WordPiece,
        Some("BPE") | None if fallback => VocabModel::SentencePiece,
        Some("BPE") | None => VocabModel::Bpe,
        Some(other) => return Err(TextError::UnknownModel(other.to_owned())),
    };
    let added = file.get("added_tokens").and_then(Value::as_array);
    let added: Vec<&Value> = added.into_iter().flatten().collect();
    let id_of = |id: Option<u64>| {
        // Ids may have a few gaps. The limit prevents a hostile file from requesting billions of tokens.
        let most = 4 * (list.len() + added.len()) as u64 + 1024;
        let id = id.filter(|id| *id < most);
        id.map(|id| id as usize).ok_or_else(|| {
            TextError::tokenizer_file(name, "has a token id far above the number of tokens")
        })
    };
    let mut vocab = Vocab {
        model: kind,
        ..Vocab::default()
    };
    let mut texts: Vec<Cow<'_, str>> = Vec::new();
    let mut put = |id: usize, text, kind: TokenKind| {
        if id >= texts.len() {
            texts.resize(id + 1, Cow::default());
            vocab.kinds.resize(id + 1, TokenKind::Unused);
        }
        texts[id] = text;
        vocab.kinds[id] = kind;
    };
    let unknown = model.get("unk_token").and_then(Value::as_str);
    let mut unknown_id = None;
    for (text, id) in list {
        let id = id_of(id.as_u64())?;
        let is_unknown = unknown == Some(text);
        if is_unknown {
            unknown_id = Some(id as u32);
        }
        let token_kind = match kind {
            _ if is_unknown => TokenKind::Unknown,
            VocabModel::SentencePiece if byte_of(text).is_some() => TokenKind::Byte,
            _ => TokenKind::Normal,
        };
        put(id, spelled(kind, text), token_kind);
    }
    for token in &added {
        let id = id_of(token["id"].as_u64())?;
        let text = token["content"].as_str();
        let text = text
            .ok_or_else(|| TextError::tokenizer_file(name, "has an added token without content"))?;
        let kind = match token["special"].as_bool() {
            _ if unknown_id == Some(id as u32) => TokenKind::Unknown,
            Some(true) => TokenKind::Control,
            _ => TokenKind::UserDefined,
        };
        put(id, text.into(), kind);
    }
    vocab.tokens = texts.into_iter().collect();
    vocab.unk = unknown_id;
    vocab.merges = merges(model)?;
    if kind == VocabModel::SentencePiece {
        // The listed merges determine the order; the scores are not used but must be present.
        vocab.scores = vec![0.0; vocab.tokens.len()];
    }
    vocab.ignore_merges = model.get("ignore_merges").and_then(Value::as_bool);
    Ok(vocab)
}

/// Converts a token to the encoding of this crate's algorithms. WordPiece files mark the continuation of a word with
/// `##`; here its start is marked with `▁` instead.
fn spelled(kind: VocabModel, text: &str) -> Cow<'_, str> {
    match (kind, text.strip_prefix("##")) {
        (VocabModel::WordPiece, Some(rest)) if !rest.is_empty() => rest.into(),
        (VocabModel::WordPiece, _) => {
            format!("{}{text}", crate::encode::sentencepiece::METASPACE).into()
        }
        _ => text.into(),
    }
}

/// Merges, written `"a b"` or `["a", "b"]`.
fn merges(model: &Map<String, Value>) -> Result<StringTable, TextError> {
    let list = model.get("merges").and_then(Value::as_array);
    let merges: Option<StringTable> = list.into_iter().flatten().map(merge).collect();
    merges.ok_or_else(|| {
        TextError::tokenizer_file("tokenizer.json", "has a merge that is not a pair of tokens")
    })
}

fn merge(merge: &Value) -> Option<Cow<'_, str>> {
    match merge {
        Value::String(text) => Some(text.into()),
        Value::Array(pair) => match &pair[..] {
            [Value::String(left), Value::String(right)] => Some(format!("{left} {right}").into()),
            _ => None,
        },
        _ => None,
    }
}

fn object(name: &str, bytes: &[u8]) -> Result<Map<String, Value>, TextError> {
    match serde_json::from_slice(bytes) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(TextError::tokenizer_file(name, "is not a JSON object")),
        Err(error) => Err(TextError::tokenizer_file(
            name,
            &format!("is not valid JSON: {error}"),
        )),
    }
}
