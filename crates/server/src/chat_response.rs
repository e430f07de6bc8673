//! Responses of `/v1/chat/completions`: one object, or a stream of chunks.

use crate::answer::{Stage, Usage, finish_name, timings};
use crate::chat_answer::{ChatAnswer, ChatEvent};
use crate::error::ApiError;
use kvark::text::tools::ToolCall;
use serde_json::{Value, json};

/// What every object of a response begins with.
pub(crate) struct Head {
    pub(crate) id: String,
    pub(crate) created: i64,
    pub(crate) model: String,
    pub(crate) cache: Value,
    pub(crate) warnings: Vec<String>,
    pub(crate) conversation: Option<String>,
}

impl Head {
    fn object(&self, kind: &str, choices: Value) -> Value {
        json!({
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": concat!("kvark-", env!("CARGO_PKG_VERSION")),
            "choices": choices,
        })
    }

    /// What only kvark has.
    fn extension(&self) -> Value {
        let mut kvark = json!({ "cache": self.cache });
        if !self.warnings.is_empty() {
            kvark["warnings"] = self.warnings.clone().into();
        }
        if let Some(id) = &self.conversation {
            kvark["conversation"] = id.clone().into();
        }
        kvark
    }
}

/// A tool call in OpenAI's shape.
pub(crate) fn call_object(id: &str, call: &ToolCall) -> Value {
    json!({
        "id": id,
        "type": "function",
        "function": { "name": call.name, "arguments": call.arguments },
    })
}

/// The name of a chat's finish reason.
pub(crate) fn chat_finish(called: bool, finish: kvark::generate::FinishReason) -> &'static str {
    match finish_name(finish) {
        "stop" if called => "tool_calls",
        name => name,
    }
}

/// The whole answer as one object.
pub(crate) async fn collect(
    mut answer: ChatAnswer,
    head: &Head,
    choices: usize,
    logprobs: bool,
) -> Result<Value, ApiError> {
    let mut parts: Vec<Value> = (0..choices)
        .map(|index| {
            json!({
                "index": index,
                "message": { "role": "assistant", "content": "", "refusal": null },
                "logprobs": if logprobs { json!({ "content": [], "refusal": null }) } else { Value::Null },
                "finish_reason": null,
            })
        })
        .collect();
    let mut texts = vec![String::new(); choices];
    let mut usage = Usage::default();
    let mut times = Value::Null;
    while let Some(event) = answer.next().await {
        match event {
            ChatEvent::Text {
                choice,
                text,
                logprobs,
            } => {
                texts[choice].push_str(&text);
                let list = parts[choice].pointer_mut("/logprobs/content");
                let list = list.and_then(Value::as_array_mut);
                if let Some((entry, list)) = logprobs.zip(list) {
                    list.push(entry);
                }
            }
            ChatEvent::Call {
                choice, id, call, ..
            } => {
                let object = call_object(&id, &call);
                let message = &mut parts[choice]["message"];
                match message.get_mut("tool_calls").and_then(Value::as_array_mut) {
                    Some(calls) => calls.push(object),
                    None => message["tool_calls"] = json!([object]),
                }
            }
            ChatEvent::End {
                choice,
                called,
                output,
            } => {
                parts[choice]["finish_reason"] = chat_finish(called, output.finish).into();
                usage.add(&output);
                times = timings(&output);
            }
            // Only streams have rounds.
            ChatEvent::Round { .. } => {}
            ChatEvent::Failed(error) => return Err(error),
        }
    }
    for (part, text) in parts.iter_mut().zip(texts) {
        let called = part["message"].get("tool_calls").is_some();
        part["message"]["content"] = match called && text.trim().is_empty() {
            true => Value::Null,
            false => text.into(),
        };
    }
    let mut object = head.object("chat.completion", parts.into());
    object["usage"] = usage.openai();
    object["timings"] = times;
    object["kvark"] = head.extension();
    Ok(object)
}

/// The answer as a stream of chunks.
pub(crate) struct ChatStream {
    answer: ChatAnswer,
    head: Head,
    /// For each choice, whether its first chunk was sent.
    begun: Vec<bool>,
    running: usize,
    usage: Usage,
    include_usage: bool,
    stage: Stage,
    pending: Vec<Value>,
}

impl ChatStream {
    pub(crate) fn new(
        answer: ChatAnswer,
        head: Head,
        choices: usize,
        include_usage: bool,
    ) -> ChatStream {
        ChatStream {
            answer,
            head,
            begun: vec![false; choices],
            running: choices,
            usage: Usage::default(),
            include_usage,
            stage: Stage::Chunks,
            pending: vec![],
        }
    }

    fn chunk(&self, choice: usize, delta: Value, logprobs: Value, finish: Value) -> Value {
        let choice = json!([{
            "index": choice,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish,
        }]);
        let mut chunk = self.head.object("chat.completion.chunk", choice);
        if self.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    /// The chunks of an event, in order.
    fn chunks(&mut self, event: ChatEvent) -> Vec<Value> {
        let choice = match &event {
            ChatEvent::Text { choice, .. }
            | ChatEvent::Call { choice, .. }
            | ChatEvent::Round { choice, .. }
            | ChatEvent::End { choice, .. } => *choice,
            ChatEvent::Failed(error) => {
                self.stage = Stage::Done;
                return vec![error.body()];
            }
        };
        let mut chunks = vec![];
        if !std::mem::replace(&mut self.begun[choice], true) {
            let delta = json!({ "role": "assistant", "content": "" });
            let mut first = self.chunk(choice, delta, Value::Null, Value::Null);
            first["kvark"] = self.head.extension();
            chunks.push(first);
        }
        match event {
            ChatEvent::Text { text, logprobs, .. } => {
                let logprobs = logprobs.map_or(Value::Null, |entry| json!({ "content": [entry] }));
                let delta = json!({ "content": text });
                chunks.push(self.chunk(choice, delta, logprobs, Value::Null));
            }
            ChatEvent::Call {
                index, id, call, ..
            } => {
                let mut object = call_object(&id, &call);
                object["index"] = index.into();
                let delta = json!({ "tool_calls": [object] });
                chunks.push(self.chunk(choice, delta, Value::Null, Value::Null));
            }
            ChatEvent::End { called, output, .. } => {
                self.usage.add(&output);
                let finish = chat_finish(called, output.finish).into();
                let mut last = self.chunk(choice, json!({}), Value::Null, finish);
                last["timings"] = timings(&output);
                chunks.push(last);
                self.running -= 1;
                if self.running == 0 {
                    self.stage = Stage::after_chunks(self.include_usage);
                }
            }
            ChatEvent::Round { round, .. } => {
                let mut chunk = self.head.object("chat.completion.chunk", json!([]));
                chunk["kvark"] = json!({ "round": round, "choice": choice });
                if self.include_usage {
                    chunk["usage"] = Value::Null;
                }
                chunks.push(chunk);
            }
            ChatEvent::Failed(_) => {}
        }
        chunks
    }

    /// The next event of the stream.
    pub(crate) async fn next(mut self) -> Option<(String, ChatStream)> {
        loop {
            if !self.pending.is_empty() {
                let chunk = self.pending.remove(0);
                return Some((chunk.to_string(), self));
            }
            match self.stage {
                Stage::Chunks => match self.answer.next().await {
                    Some(event) => self.pending = self.chunks(event),
                    None => self.stage = Stage::Done,
                },
                _ => {
                    let (text, stage) = self.stage.last(|| {
                        let mut chunk = self.head.object("chat.completion.chunk", json!([]));
                        chunk["usage"] = self.usage.openai();
                        chunk
                    })?;
                    self.stage = stage;
                    return Some((text, self));
                }
            }
        }
    }
}
