//! `Trace`: the requests of agents, written down.
//!
//! A trace is scripted: what the agents answered and what their tools returned stands in it, so every server gets the same
//! requests, whatever it generates. Reading one yields all requests whole.

use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Map, Value};
use std::collections::HashMap;

/// The trace that is replayed unless the user gives another one; `make_trace.py` writes it.
pub(crate) const BUILT_IN: &str = include_str!("coding.json");

/// The version of the format.
const FORMAT: u64 = 1;

/// The requests of a trace.
#[derive(Debug)]
pub(crate) struct Trace {
    /// The description of the trace, which reports repeat.
    pub(crate) about: String,
    /// Tokens that a server must hold for one conversation.
    pub(crate) context: usize,
    /// Tokens that a server generates for one request.
    pub(crate) max_tokens: usize,
    /// The functions that every request offers.
    pub(crate) tools: Vec<Value>,
    /// In order; the requests of one group are sent together.
    pub(crate) groups: Vec<Vec<TracedRequest>>,
}

/// A request.
#[derive(Clone, Debug)]
pub(crate) struct TracedRequest {
    /// The conversation that it belongs to.
    pub(crate) conversation: String,
    /// The kind of request, by which reports sum up.
    pub(crate) kind: String,
    /// The whole conversation up to it.
    pub(crate) messages: Vec<Value>,
    /// The share of its new tokens after which it is given up.
    pub(crate) cancel: Option<f64>,
}

impl Trace {
    /// Reads a trace; errors name the place in it.
    pub(crate) fn read(text: &str) -> Result<Trace> {
        let value: Value = serde_json::from_str(text)?;
        let trace = Fields::of(&value, "the trace")?;
        trace.allow(&[
            "format",
            "about",
            "context",
            "max_tokens",
            "texts",
            "tools",
            "steps",
        ])?;
        let format = trace.number("format")?;
        if format != FORMAT {
            bail!("format: this version reads format {FORMAT}, not {format}");
        }
        let mut script = Script {
            texts: trace.optional_object("texts")?,
            conversations: HashMap::new(),
            groups: vec![],
        };
        for (i, step) in trace.list("steps")?.iter().enumerate() {
            script.step(step).with_context(|| format!("steps[{i}]"))?;
        }
        if script.groups.is_empty() {
            bail!("steps: no request is made");
        }
        Ok(Trace {
            about: trace.optional_text("about")?.unwrap_or_default(),
            context: trace.number("context")? as usize,
            max_tokens: match trace.number("max_tokens")? {
                0 => bail!("max_tokens: must be at least 1"),
                n => n as usize,
            },
            tools: match value.get("tools") {
                None => vec![],
                Some(_) => trace.list("tools")?.to_vec(),
            },
            groups: script.groups,
        })
    }

    /// Only its first requests.
    pub(crate) fn shortened(mut self, requests: usize) -> Trace {
        let mut left = requests;
        for group in &mut self.groups {
            group.truncate(left);
            left -= group.len();
        }
        self.groups.retain(|group| !group.is_empty());
        self
    }

    /// The number of requests.
    pub(crate) fn requests(&self) -> usize {
        self.groups.iter().map(Vec::len).sum()
    }
}

/// Conversations while a trace is read.
struct Script {
    texts: Map<String, Value>,
    conversations: HashMap<String, Vec<Value>>,
    groups: Vec<Vec<TracedRequest>>,
}

impl Script {
    fn step(&mut self, step: &Value) -> Result<()> {
        let fields = Fields::of(step, "a step")?;
        let kinds = ["begin", "ask", "fork", "replace", "together"];
        let named: Vec<&str> = kinds
            .into_iter()
            .filter(|kind| fields.0.contains_key(*kind))
            .collect();
        match named[..] {
            ["begin"] => {
                fields.allow(&["begin", "messages"])?;
                let name = fields.text("begin")?;
                let messages = self.messages(&fields, "messages")?;
                self.add(&name, messages)
            }
            ["ask"] => {
                let request = self.request(&fields)?;
                self.groups.push(vec![request]);
                Ok(())
            }
            ["together"] => {
                fields.allow(&["together"])?;
                let mut group: Vec<TracedRequest> = vec![];
                for (i, ask) in fields.list("together")?.iter().enumerate() {
                    let place = || format!("together[{i}]");
                    let request = Fields::of(ask, "a request").and_then(|it| self.request(&it));
                    let request = request.with_context(place)?;
                    if request.cancel.is_some() {
                        return Err(anyhow!("cancel: only a request alone can be cancelled"))
                            .with_context(place);
                    }
                    group.push(request);
                }
                if group.is_empty() {
                    bail!("together: is empty");
                }
                self.groups.push(group);
                Ok(())
            }
            ["fork"] => {
                fields.allow(&["fork", "as", "keep"])?;
                let (from, name) = (fields.text("fork")?, fields.text("as")?);
                let messages = self.conversation("fork", &from)?;
                let all = messages.len();
                let keep = fields.optional_number("keep")?.unwrap_or(all as u64) as usize;
                if keep > all {
                    bail!("keep: {from:?} has {all} messages, not {keep}");
                }
                let kept = messages[..keep].to_vec();
                self.add(&name, kept)
            }
            ["replace"] => {
                fields.allow(&["replace", "from", "to", "messages"])?;
                let name = fields.text("replace")?;
                let messages = self.messages(&fields, "messages")?;
                let all = self.conversation("replace", &name)?.len();
                let to = fields.optional_number("to")?.unwrap_or(all as u64) as usize;
                let from = fields.number("from")? as usize;
                if from > to || to > all {
                    bail!(
                        "from, to: {from} to {to} is no range of {name:?}, which has {all} messages"
                    );
                }
                let it = self.conversations.get_mut(&name).expect("it is there");
                it.splice(from..to, messages);
                Ok(())
            }
            [first, second, ..] => bail!("has {first} and {second}; a step does one thing"),
            _ => bail!("has none of {}", kinds.join(", ")),
        }
    }

    fn request(&mut self, fields: &Fields<'_>) -> Result<TracedRequest> {
        fields.allow(&["ask", "kind", "add", "cancel"])?;
        let conversation = fields.text("ask")?;
        let added = match fields.0.contains_key("add") {
            true => self.messages(fields, "add")?,
            false => vec![],
        };
        let cancel = match fields.0.get("cancel") {
            None => None,
            Some(share) => {
                let share = share.as_f64().filter(|share| *share > 0.0 && *share < 1.0);
                Some(share.context("cancel: must be a number between 0 and 1")?)
            }
        };
        self.conversation("ask", &conversation)?;
        let messages = self.conversations.get_mut(&conversation);
        let messages = messages.expect("it is there");
        messages.extend(added);
        if messages.is_empty() {
            bail!("ask: {conversation:?} has no messages");
        }
        Ok(TracedRequest {
            kind: fields.optional_text("kind")?.unwrap_or("turn".to_owned()),
            messages: messages.clone(),
            cancel,
            conversation,
        })
    }

    fn conversation(&self, field: &str, name: &str) -> Result<&Vec<Value>> {
        let found = self.conversations.get(name);
        found.with_context(|| format!("{field}: no conversation {name:?} has begun"))
    }

    fn add(&mut self, name: &str, messages: Vec<Value>) -> Result<()> {
        if self
            .conversations
            .insert(name.to_owned(), messages)
            .is_some()
        {
            bail!("{name:?} has begun already");
        }
        Ok(())
    }

    /// The messages of a field, with the texts that they name.
    fn messages(&self, fields: &Fields<'_>, field: &str) -> Result<Vec<Value>> {
        let list = fields.list(field)?.iter().enumerate();
        list.map(|(i, message)| {
            self.message(message)
                .with_context(|| format!("{field}[{i}]"))
        })
        .collect()
    }

    fn message(&self, message: &Value) -> Result<Value> {
        let fields = Fields::of(message, "a message")?;
        fields.allow(&["role", "content", "tool_calls", "tool_call_id", "name"])?;
        let role = fields.text("role")?;
        if !["system", "user", "assistant", "tool"].contains(&&*role) {
            bail!("role: {role:?} is none of system, user, assistant and tool");
        }
        if let Some(calls) = message.get("tool_calls") {
            check_calls(calls)?;
        }
        let mut message = message.clone();
        let content = match message.get("content") {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Object(named)) if named.len() == 1 && named.contains_key("text") => {
                let name = named["text"].as_str().unwrap_or_default();
                let text = self.texts.get(name).and_then(Value::as_str);
                text.with_context(|| format!("content: there is no text {name:?} in texts"))?
                    .to_owned()
            }
            None if message.get("tool_calls").is_some() => String::new(),
            None => bail!("content: is missing"),
            Some(_) => bail!("content: must be a text or {{\"text\": NAME}}"),
        };
        message["content"] = content.into();
        Ok(message)
    }
}

/// Refuses tool calls that are not in OpenAI's shape.
fn check_calls(calls: &Value) -> Result<()> {
    let calls = calls.as_array().context("tool_calls: must be a list")?;
    for (i, call) in calls.iter().enumerate() {
        let function = &call["function"];
        let arguments = function["arguments"].as_str();
        let is_object = arguments.is_some_and(|text| {
            serde_json::from_str(text).is_ok_and(|value: Value| value.is_object())
        });
        if function["name"].as_str().is_none() {
            bail!("tool_calls[{i}]: has no function with a name");
        }
        if !is_object {
            bail!("tool_calls[{i}]: arguments must be a text with a JSON object");
        }
    }
    Ok(())
}

/// The fields of an object of a trace.
struct Fields<'a>(&'a Map<String, Value>);

impl<'a> Fields<'a> {
    fn of(value: &'a Value, what: &str) -> Result<Fields<'a>> {
        let object = value.as_object();
        Ok(Fields(
            object.with_context(|| format!("{what} must be an object"))?,
        ))
    }

    /// Refuses a field that nothing reads.
    fn allow(&self, known: &[&str]) -> Result<()> {
        match self.0.keys().find(|key| !known.contains(&key.as_str())) {
            None => Ok(()),
            Some(key) => bail!("{key}: is no field here; there are {}", known.join(", ")),
        }
    }

    fn optional_text(&self, field: &str) -> Result<Option<String>> {
        let Some(value) = self.0.get(field) else {
            return Ok(None);
        };
        let text = value.as_str().filter(|text| !text.is_empty());
        let text = text.with_context(|| format!("{field}: must be a text"))?;
        Ok(Some(text.to_owned()))
    }

    fn text(&self, field: &str) -> Result<String> {
        self.optional_text(field)?
            .with_context(|| format!("{field}: is missing"))
    }

    fn optional_number(&self, field: &str) -> Result<Option<u64>> {
        let Some(value) = self.0.get(field) else {
            return Ok(None);
        };
        let number = value.as_u64().filter(|number| *number < 1 << 32);
        let number = number.with_context(|| format!("{field}: must be a whole number"))?;
        Ok(Some(number))
    }

    fn number(&self, field: &str) -> Result<u64> {
        self.optional_number(field)?
            .with_context(|| format!("{field}: is missing"))
    }

    fn list(&self, field: &str) -> Result<&'a [Value]> {
        let list = self.0.get(field);
        let list = list.with_context(|| format!("{field}: is missing"))?;
        let list = list.as_array();
        Ok(list.with_context(|| format!("{field}: must be a list"))?)
    }

    fn optional_object(&self, field: &str) -> Result<Map<String, Value>> {
        match self.0.get(field) {
            None => Ok(Map::new()),
            Some(Value::Object(object)) => Ok(object.clone()),
            Some(_) => bail!("{field}: must be an object"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_trace_has_what_agents_do() {
        let trace = Trace::read(BUILT_IN).unwrap();
        let all = || trace.groups.iter().flatten();
        for kind in [
            "cancelled",
            "retry",
            "compaction",
            "return",
            "fork",
            "parallel tools",
        ] {
            assert!(all().any(|request| request.kind == kind), "{kind}");
        }
        assert!(trace.groups.iter().any(|group| group.len() > 2));
        let cancelled = all().position(|request| request.cancel.is_some()).unwrap();
        let [first, second] = [cancelled, cancelled + 1].map(|at| all().nth(at).unwrap());
        assert_eq!(first.messages, second.messages, "it is sent again");
        assert_eq!(trace.shortened(7).requests(), 7);
    }

    #[test]
    fn conversations_grow_fork_and_are_replaced() {
        let trace = Trace::read(
            r#"{"format": 1, "context": 100, "max_tokens": 2, "texts": {"file": "f"}, "steps": [
                {"begin": "a", "messages": [{"role": "system", "content": "s"}]},
                {"ask": "a", "add": [{"role": "user", "content": {"text": "file"}}]},
                {"fork": "a", "as": "b", "keep": 1},
                {"replace": "a", "from": 0, "to": 1, "messages": []},
                {"together": [{"ask": "a"}, {"ask": "b", "kind": "fork"}]}]}"#,
        )
        .unwrap();
        let contents = |request: &TracedRequest| -> Vec<String> {
            let texts = request
                .messages
                .iter()
                .map(|m| m["content"].as_str().unwrap());
            texts.map(str::to_owned).collect()
        };
        let all: Vec<Vec<String>> = trace.groups.iter().flatten().map(contents).collect();
        assert_eq!(all, [vec!["s", "f"], vec!["f"], vec!["s"]]);
        assert_eq!(trace.groups[1][1].kind, "fork");
    }

    #[test]
    fn the_place_of_a_mistake_is_named() {
        let whole = |steps: &str| {
            format!(r#"{{"format": 1, "context": 9, "max_tokens": 1, "steps": [{steps}]}}"#)
        };
        let begin = r#"{"begin": "a", "messages": [{"role": "user", "content": "x"}]}"#;
        let after = |step: &str| whole(&format!("{begin}, {step}"));
        for (text, parts) in [
            ("{".to_owned(), &["line 1 column 1"][..]),
            ("[]".to_owned(), &["must be an object"]),
            (r#"{"format": 2}"#.to_owned(), &["format", "not 2"]),
            (r#"{"format": 1, "stepz": 1}"#.to_owned(), &["stepz"]),
            (whole(""), &["steps"]),
            (whole(begin), &["no request"]),
            (after(r#"{"ask": "b"}"#), &["steps[1]", "ask", "\"b\""]),
            (
                after(r#"{"ask": "a", "fork": "a"}"#),
                &["steps[1]", "ask and fork"],
            ),
            (after(r#"{"asks": "a"}"#), &["steps[1]", "none of"]),
            (
                after(r#"{"ask": "a", "cancel": 2}"#),
                &["steps[1]", "cancel"],
            ),
            (
                after(r#"{"fork": "a", "as": "a"}"#),
                &["steps[1]", "begun already"],
            ),
            (
                after(r#"{"fork": "a", "as": "b", "keep": 3}"#),
                &["keep", "1 messages"],
            ),
            (
                after(r#"{"replace": "a", "from": 2, "messages": []}"#),
                &["from", "2 to 1"],
            ),
            (
                after(r#"{"together": [{"ask": "a"}, {"ask": 3}]}"#),
                &["together[1]", "ask"],
            ),
            (
                after(r#"{"ask": "a", "add": [{"role": "king", "content": ""}]}"#),
                &["add[0]", "king"],
            ),
            (
                after(r#"{"ask": "a", "add": [{"role": "user", "content": {"text": "f"}}]}"#),
                &["add[0]", "no text \"f\""],
            ),
            (
                after(
                    r#"{"ask": "a", "add": [{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}]}"#,
                ),
                &["tool_calls[0]", "arguments"],
            ),
        ] {
            let error = format!("{:#}", Trace::read(&text).unwrap_err());
            for part in parts {
                assert!(error.contains(part), "{text}: {error}");
            }
        }
    }
}
