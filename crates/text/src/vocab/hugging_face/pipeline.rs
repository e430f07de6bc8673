//! The normalizer, pre-tokenizer and post-processor of `tokenizer.json`.

use serde_json::{Map, Value};

use crate::encode::pretokenize::GPT2;
use crate::error::TextError;
use crate::vocab::{SplitStage, Vocab, VocabModel};

/// The steps of a file, with nested sequences flattened.
pub(super) struct Pipeline<'a> {
    normalizers: Vec<&'a Value>,
    pre_tokenizers: Vec<&'a Value>,
    post_processors: Vec<&'a Value>,
}

/// The tokens that a post-processor adds around a text.
#[derive(Default)]
pub(super) struct AffixTokens {
    /// Whether the file has a post-processor that determines them.
    pub(super) stated: bool,
    /// Before the text.
    pub(super) first: Option<u32>,
    /// After the text.
    pub(super) last: Option<u32>,
}

impl<'a> Pipeline<'a> {
    pub(super) fn read(file: &'a Map<String, Value>) -> Self {
        let steps = |key: &str, inner: &str| -> Vec<&'a Value> {
            match file.get(key) {
                None | Some(Value::Null) => vec![],
                Some(step) if step["type"] == "Sequence" => {
                    step[inner].as_array().into_iter().flatten().collect()
                }
                Some(step) => vec![step],
            }
        };
        Pipeline {
            normalizers: steps("normalizer", "normalizers"),
            pre_tokenizers: steps("pre_tokenizer", "pretokenizers"),
            post_processors: steps("post_processor", "processors"),
        }
    }

    /// The tokens around a text.
    pub(super) fn affix_tokens(&self, file: &Map<String, Value>) -> AffixTokens {
        let mut affix_tokens = AffixTokens::default();
        let added = file.get("added_tokens").and_then(Value::as_array);
        let id_of = |text: &str| {
            let found = added.into_iter().flatten().find(|t| t["content"] == text)?;
            u32::try_from(found["id"].as_u64()?).ok()
        };
        for step in &self.post_processors {
            match step["type"].as_str() {
                Some("TemplateProcessing") => {
                    let single = step["single"].as_array();
                    let items: Vec<&Value> = single.into_iter().flatten().collect();
                    let token =
                        |item: Option<&&Value>| id_of(item?["SpecialToken"]["id"].as_str()?);
                    affix_tokens.stated = true;
                    affix_tokens.first = token(items.first());
                    affix_tokens.last = token(items.last());
                }
                Some("BertProcessing" | "RobertaProcessing") => {
                    let token = |key: &str| u32::try_from(step[key][1].as_u64()?).ok();
                    affix_tokens = AffixTokens {
                        stated: true,
                        first: token("cls"),
                        last: token("sep"),
                    };
                }
                _ => {}
            }
        }
        affix_tokens
    }
}

/// Sets the fields of the vocabulary that correspond to the steps.
pub(super) fn apply(steps: &Pipeline<'_>, vocab: &mut Vocab) -> Result<(), TextError> {
    match vocab.model {
        VocabModel::Bpe => byte_level(steps, vocab),
        VocabModel::SentencePiece => sentence_piece(steps, vocab),
        VocabModel::WordPiece => bert(steps, vocab),
    }
}

fn refuse(kind: &str, step: &Value) -> TextError {
    let name = step["type"].as_str().unwrap_or("without a type");
    TextError::tokenizer_file(
        "tokenizer.json",
        &format!("has a {kind} {name:?} that is not supported"),
    )
}

/// Byte-level BPE: a list of patterns that split text into words.
fn byte_level(steps: &Pipeline<'_>, vocab: &mut Vocab) -> Result<(), TextError> {
    for step in &steps.normalizers {
        // NFC is not applied, so that decoding returns the original text.
        if step["type"] != "NFC" {
            return Err(refuse("normalizer", step));
        }
    }
    let mut bytes = false;
    for step in &steps.pre_tokenizers {
        let all = |pattern: &str| SplitStage {
            pattern: pattern.to_owned(),
            splits_last_space: false,
        };
        match step["type"].as_str() {
            Some("Digits") if step["individual_digits"] == true => {
                vocab.split_stages.push(all(r"\p{N}"))
            }
            Some("Digits") => vocab.split_stages.push(all(r"\p{N}+")),
            Some("Split") => vocab.split_stages.push(split(step)?),
            Some("ByteLevel") => {
                if step["add_prefix_space"] == true {
                    return Err(TextError::tokenizer_file(
                        "tokenizer.json",
                        "adds a space before text (add_prefix_space), which is not supported for byte-level BPE",
                    ));
                }
                bytes = true;
                if step["use_regex"] != false {
                    vocab.split_stages.push(SplitStage {
                        pattern: GPT2.to_owned(),
                        splits_last_space: true,
                    });
                }
            }
            _ => return Err(refuse("pre-tokenizer", step)),
        }
    }
    if !bytes {
        return Err(TextError::tokenizer_file(
            "tokenizer.json",
            "has a BPE that is neither byte-level nor has byte fallback, which is not supported",
        ));
    }
    Ok(())
}

/// A pattern whose matches are words.
fn split(step: &Value) -> Result<SplitStage, TextError> {
    let isolates = step["behavior"] == "Isolated" && step["invert"] != true;
    let keeps = step["behavior"] == "Removed" && step["invert"] == true;
    let pattern = step["pattern"]["Regex"].as_str();
    let (Some(pattern), true) = (pattern, isolates || keeps) else {
        return Err(refuse("pre-tokenizer", step));
    };
    // The published patterns end in a look-ahead, which becomes the rule `splits_last_space`.
    let tail = r"|\s+(?!\S)|\s+";
    let bare = pattern.strip_suffix(tail);
    Ok(SplitStage {
        pattern: bare.unwrap_or(pattern).to_owned(),
        splits_last_space: bare.is_some(),
    })
}

/// SentencePiece's BPE: the steps only determine where spaces are added.
fn sentence_piece(steps: &Pipeline<'_>, vocab: &mut Vocab) -> Result<(), TextError> {
    let mut prefix = false;
    for step in &steps.normalizers {
        match step["type"].as_str() {
            Some("Prepend") if step["prepend"] == "▁" => prefix = true,
            Some("Replace") if step["pattern"]["String"] == " " && step["content"] == "▁" => {}
            _ => return Err(refuse("normalizer", step)),
        }
    }
    for step in &steps.pre_tokenizers {
        match step["type"].as_str() {
            // Spaces were already replaced, so this split does nothing.
            Some("Split") if step["pattern"]["String"] == " " => {}
            Some("Metaspace") if step["split"] == false => {
                vocab.space_prefix_if_missing = true;
                match step["prepend_scheme"].as_str() {
                    Some("never") => {}
                    Some("first") => (prefix, vocab.space_prefix_once) = (true, true),
                    _ => prefix = true,
                }
            }
            _ => return Err(refuse("pre-tokenizer", step)),
        }
    }
    vocab.add_space_prefix = Some(prefix);
    Ok(())
}

/// BERT's words.
fn bert(steps: &Pipeline<'_>, vocab: &mut Vocab) -> Result<(), TextError> {
    for step in &steps.normalizers {
        if step["type"] != "BertNormalizer" {
            return Err(refuse("normalizer", step));
        }
        let lower = step["lowercase"] != false;
        let strips = step["strip_accents"].as_bool().unwrap_or(lower);
        if strips != lower {
            return Err(TextError::tokenizer_file(
                "tokenizer.json",
                "strips accents but keeps capitals, or keeps accents but lower-cases, which is not supported",
            ));
        }
        vocab.cased = !lower;
    }
    for step in &steps.pre_tokenizers {
        if step["type"] != "BertPreTokenizer" {
            return Err(refuse("pre-tokenizer", step));
        }
    }
    Ok(())
}
