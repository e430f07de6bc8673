//! Volatile text: what changes in every request, such as a countdown, put where it costs no prefix.

use regex::Regex;
use serde_json::Value;

/// Where volatile text goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VolatilePlace {
    /// To the end of the last message.
    #[default]
    Last,
    /// Nowhere: the model does not see it.
    Drop,
}

/// What is volatile besides messages that say so, and where it goes.
#[derive(Clone, Debug, Default)]
pub struct VolatileText {
    /// The lines of system messages that match are volatile.
    pub lines: Option<Regex>,
    /// Where volatile text goes.
    pub place: VolatilePlace,
}

impl VolatileText {
    /// Takes volatile text out of its place. Messages are volatile that have `"volatile": true`. All other messages stay where they are.
    pub(crate) fn apply(&self, messages: &mut Vec<Value>) {
        let is_volatile = |message: &Value| message["volatile"] == true;
        // Without another message, there is no place to go.
        let alone = messages.iter().all(is_volatile);
        let mut taken: Vec<String> = vec![];
        messages.retain_mut(|message| {
            let declared = message.as_object_mut().and_then(|m| m.remove("volatile"));
            let text = message["content"].as_str().unwrap_or_default();
            if declared == Some(Value::Bool(true)) && !alone {
                taken.push(text.to_owned());
                return false;
            }
            if let Some(lines) = self.lines.as_ref().filter(|_| message["role"] == "system") {
                let (volatile, kept): (Vec<&str>, Vec<&str>) =
                    text.lines().partition(|line| lines.is_match(line));
                if !volatile.is_empty() {
                    taken.extend(volatile.into_iter().map(str::to_owned));
                    message["content"] = kept.join("\n").into();
                }
            }
            true
        });
        if let (VolatilePlace::Last, false, Some(last)) =
            (self.place, taken.is_empty(), messages.last_mut())
        {
            let text = last["content"].as_str().unwrap_or_default();
            last["content"] = format!("{text}\n\n{}", taken.join("\n")).into();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn messages() -> Vec<Value> {
        vec![
            json!({ "role": "system", "content": "You help.\nTime: 12:31\nBe brief." }),
            json!({ "role": "system", "content": "3 calls left", "volatile": true }),
            json!({ "role": "user", "content": "hello", "volatile": false }),
        ]
    }

    #[test]
    fn volatile_text_goes_to_the_end_or_away() {
        let mut rule = VolatileText {
            lines: Some(Regex::new("^Time: ").unwrap()),
            place: VolatilePlace::Last,
        };
        let mut last = messages();
        rule.apply(&mut last);
        assert_eq!(
            last,
            [
                json!({ "role": "system", "content": "You help.\nBe brief." }),
                json!({ "role": "user", "content": "hello\n\nTime: 12:31\n3 calls left" }),
            ]
        );
        rule.place = VolatilePlace::Drop;
        let mut dropped = messages();
        rule.apply(&mut dropped);
        assert_eq!(dropped[1], json!({ "role": "user", "content": "hello" }));
        assert_eq!(dropped.len(), 2);
        let mut alone = vec![json!({ "role": "user", "content": "12:31", "volatile": true })];
        rule.apply(&mut alone);
        assert_eq!(alone, [json!({ "role": "user", "content": "12:31" })]);
        let mut plain = vec![json!({ "role": "user", "content": "Time: now" })];
        rule.apply(&mut plain);
        assert_eq!(plain, [json!({ "role": "user", "content": "Time: now" })]);
    }
}
