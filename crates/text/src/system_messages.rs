//! Chats with several system messages, for templates that take one at the beginning.

use serde_json::Value;

/// The messages with one system message, at the beginning: others there are joined to it, and those between turns become part of the
/// user's message beside them. `None` if there is nothing to change.
pub(crate) fn with_one_system_message(messages: &[Value]) -> Option<Vec<Value>> {
    let is_system = |message: &Value| message["role"] == "system";
    messages.iter().skip(1).find(|message| is_system(message))?;
    let mut merged: Vec<Value> = vec![];
    // Whether the last message is, or ends with, a system message of the middle.
    let mut open = false;
    for message in messages {
        let only_system = merged.iter().all(is_system);
        let last = merged.last_mut();
        match (is_system(message), last) {
            (true, Some(last)) if only_system => append(last, message),
            (true, None) => merged.push(message.clone()),
            (true, Some(last)) if last["role"] == "user" => {
                append(last, message);
                open = true;
            }
            (true, Some(_)) => {
                let mut as_user = message.clone();
                as_user["role"] = "user".into();
                merged.push(as_user);
                open = true;
            }
            (false, Some(last)) if open && message["role"] == "user" => append(last, message),
            (false, _) => {
                merged.push(message.clone());
                open = false;
            }
        }
    }
    Some(merged)
}

/// Appends the text of a message to another one.
fn append(to: &mut Value, message: &Value) {
    let text = |message: &Value| message["content"].as_str().unwrap_or_default().to_owned();
    to["content"] = format!("{}\n\n{}", text(to), text(message)).into();
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn system_messages_are_joined_where_they_stand() {
        let chat = |turns: &[(&str, &str)]| -> Vec<Value> {
            let turns = turns.iter();
            turns
                .map(|(role, content)| json!({ "role": role, "content": content }))
                .collect()
        };
        let cases: [(&[_], &[_]); 4] = [
            (
                &[("system", "a"), ("system", "b"), ("user", "c")],
                &[("system", "a\n\nb"), ("user", "c")],
            ),
            (
                &[("user", "a"), ("system", "b"), ("assistant", "c")],
                &[("user", "a\n\nb"), ("assistant", "c")],
            ),
            (
                &[
                    ("system", "s"),
                    ("user", "a"),
                    ("assistant", "b"),
                    ("system", "c"),
                    ("user", "d"),
                ],
                &[
                    ("system", "s"),
                    ("user", "a"),
                    ("assistant", "b"),
                    ("user", "c\n\nd"),
                ],
            ),
            (
                &[("user", "a"), ("system", "b"), ("user", "c"), ("user", "d")],
                &[("user", "a\n\nb\n\nc\n\nd")],
            ),
        ];
        for (given, expected) in cases {
            assert_eq!(
                with_one_system_message(&chat(given)),
                Some(chat(expected)),
                "{given:?}"
            );
        }
        assert_eq!(
            with_one_system_message(&chat(&[("system", "s"), ("user", "a")])),
            None
        );
        assert_eq!(with_one_system_message(&[]), None);
    }
}
