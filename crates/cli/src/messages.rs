//! `--messages`: a conversation in a JSON file.

use anyhow::{Context, Result, bail};
use kvark::text::Message;
use serde_json::Value;
use std::path::Path;

/// Reads a list of objects with `role` and `content`, or an object that holds it under `messages`, as the OpenAI API has it.
/// A content may be a text or a list of text parts.
pub(crate) fn read(file: &Path) -> Result<Vec<Message>> {
    let name = crate::text_input::input_name(file);
    let text = crate::text_input::read_text(file)?;
    let value: Value =
        serde_json::from_str(&text).with_context(|| format!("{name} is not JSON"))?;
    parse(&value).with_context(|| name)
}

fn parse(value: &Value) -> Result<Vec<Message>> {
    let list = value.get("messages").unwrap_or(value);
    let Some(list) = list.as_array() else {
        bail!(
            "must be a list of messages such as [{{\"role\": \"user\", \"content\": \"Hello\"}}]"
        );
    };
    if list.is_empty() {
        bail!("the list of messages is empty");
    }
    (1..)
        .zip(list)
        .map(|(n, value)| message(value).with_context(|| format!("message {n}")))
        .collect()
}

fn message(value: &Value) -> Result<Message> {
    let Some(role) = value["role"].as_str() else {
        bail!("has no \"role\"");
    };
    let content = match &value["content"] {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let parts: Option<Vec<&str>> = parts.iter().map(|part| part["text"].as_str()).collect();
            let parts = parts.context("has a part that is not text")?;
            parts.concat()
        }
        _ => bail!("has no \"content\" that is text"),
    };
    Ok(Message::new(role, content))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn both_forms_of_a_list_and_of_a_content_are_read() {
        let user = json!({"role": "user", "content": "Hi"});
        let parts = json!({"role": "user", "content": [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]});
        for value in [json!([user]), json!({"messages": [user]}), json!([parts])] {
            assert_eq!(parse(&value).unwrap(), [Message::new("user", "Hi")]);
        }
    }

    #[test]
    fn a_wrong_message_is_named_by_its_number() {
        let user = json!({"role": "user", "content": "Hi"});
        let cases = [
            (json!("Hi"), "must be a list"),
            (json!([]), "is empty"),
            (
                json!([user, {"content": "a"}]),
                "message 2: has no \"role\"",
            ),
            (json!([{"role": "user"}]), "message 1: has no \"content\""),
            (
                json!([{"role": "user", "content": [{"type": "image_url"}]}]),
                "message 1: has a part that is not text",
            ),
        ];
        for (value, says) in cases {
            let error = format!("{:#}", parse(&value).unwrap_err());
            assert!(error.contains(says), "{error}");
        }
    }
}
