//! The prompts of completions: texts, token ids, both mixed, and lists of them.

use crate::chat_prompt::plain_tokens;
use crate::error::ApiError;
use crate::registry::LoadedModel;
use schemars::JsonSchema;
use serde_json::{Map, Value};

/// A prompt or several, for the schema.
#[derive(JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
#[allow(dead_code, reason = "only its schema is used")]
pub(crate) enum Prompts {
    Text(String),
    /// Token ids, or token ids and texts; or several prompts
    List(Vec<Value>),
    /// {"prompt_string": TEXT}
    Object(Map<String, Value>),
}

/// A prompt as text and tokens.
pub(crate) struct TextPrompt {
    pub(crate) text: String,
    pub(crate) tokens: Vec<u32>,
}

/// Reads a prompt or several. A list with token ids among its items is one prompt.
///
/// # Errors
/// 400 if a prompt has another form, or is certainly longer than the context.
pub(crate) fn read(model: &LoadedModel, prompt: Value) -> Result<Vec<TextPrompt>, ApiError> {
    match prompt {
        Value::Array(items) if !items.iter().any(Value::is_number) => {
            let several = items.into_iter().map(|item| one(model, item));
            let several: Vec<TextPrompt> = several.collect::<Result<_, _>>()?;
            match several.is_empty() {
                true => Err(ApiError::parameter("prompt", "must not be empty")),
                false => Ok(several),
            }
        }
        prompt => Ok(vec![one(model, prompt)?]),
    }
}

/// Reads one prompt.
pub(crate) fn one(model: &LoadedModel, prompt: Value) -> Result<TextPrompt, ApiError> {
    let wrong = || {
        let forms = "must be a string, a list of token ids, or a list of prompts";
        ApiError::parameter("prompt", forms)
    };
    match prompt {
        Value::String(text) => {
            model.check_length(text.len())?;
            let tokens = plain_tokens(model, &text)?;
            Ok(TextPrompt { text, tokens })
        }
        Value::Array(items) => mixed(model, items).ok_or_else(wrong),
        Value::Object(mut object) => {
            let media = object.get("multimodal_data");
            let is_empty = |it: &Value| it.is_null() || it.as_array().is_some_and(Vec::is_empty);
            if !media.is_none_or(is_empty) {
                return Err(ApiError::unsupported("multimodal_data"));
            }
            match object.remove("prompt_string") {
                Some(text @ Value::String(_)) => one(model, text),
                _ => Err(wrong()),
            }
        }
        _ => Err(wrong()),
    }
}

/// A prompt of token ids and texts.
fn mixed(model: &LoadedModel, items: Vec<Value>) -> Option<TextPrompt> {
    let mut tokens: Vec<u32> = vec![];
    for (index, item) in items.iter().enumerate() {
        match item {
            Value::Number(id) => tokens.push(id.as_u64()?.try_into().ok()?),
            Value::String(text) => {
                let mut own = plain_tokens(model, text).ok()?;
                let tokenizer = model.model.tokenizer().ok()?;
                // Only the beginning of the prompt is the beginning of a text.
                if index > 0 && tokenizer.adds_bos() && own.first().copied() == tokenizer.bos() {
                    own.remove(0);
                }
                tokens.extend(own);
            }
            _ => return None,
        }
    }
    let tokenizer = model.model.tokenizer();
    let text = tokenizer.map(|tokenizer| tokenizer.decode(&tokens, true));
    Some(TextPrompt {
        text: text.unwrap_or_default(),
        tokens,
    })
}
