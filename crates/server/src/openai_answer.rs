//! Answers of OpenAI's API: of chats and of continued texts, whole and as a stream of chunks.

use crate::answer::{Usage, cache_object, finish_name, timings};
use crate::app::App;
use crate::chat::PreparedAnswer;
use crate::chat_answer::ChatEvent;
use crate::registry::LoadedModel;
use crate::sse::{AnswerFormat, Frame};
use kvark::engine::{CacheReport, TokenLogprobs};
use kvark::text::tools::ToolCall;
use serde_json::{Map, Value, json};
use std::collections::VecDeque;
use std::sync::Arc;

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

/// What is answered.
pub(crate) enum Shape {
    /// A chat.
    Chat,
    /// A text, of which this is the beginning that the answer repeats.
    Text(String),
}

/// An answer as `/v1/chat/completions` and `/v1/completions` state it.
pub(crate) struct OpenAiAnswer {
    shape: Shape,
    id: String,
    created: i64,
    model: Arc<LoadedModel>,
    /// The object `kvark`, which OpenAI's API does not have.
    extension: Value,
    include_usage: bool,
    choices: Vec<Choice>,
    usage: Usage,
    timings: Value,
    ready: VecDeque<Frame>,
}

struct Choice {
    begun: bool,
    text: String,
    reasoning: String,
    calls: Vec<Value>,
    logprobs: Value,
    finish: Value,
}

impl OpenAiAnswer {
    /// The beginning of an answer. `conversation` is the one that it continues.
    pub(crate) fn new(
        app: &App,
        answer: &PreparedAnswer,
        report: &CacheReport,
        shape: Shape,
        include_usage: bool,
        conversation: Option<String>,
    ) -> OpenAiAnswer {
        let mut extension = json!({ "cache": cache_object(report, &answer.model, &answer.tokens) });
        if !answer.warnings.is_empty() {
            extension["warnings"] = answer.warnings.clone().into();
        }
        if let Some(id) = conversation {
            extension["conversation"] = id.into();
        }
        let (prefix, text, logprobs) = match &shape {
            Shape::Chat if answer.logprobs.is_some() => {
                let empty = json!({ "content": [], "refusal": null });
                ("chatcmpl", "", empty)
            }
            Shape::Chat => ("chatcmpl", "", Value::Null),
            Shape::Text(echo) => ("cmpl", &**echo, Value::Null),
        };
        let choice = |_| Choice {
            begun: false,
            text: text.to_owned(),
            reasoning: String::new(),
            calls: vec![],
            logprobs: logprobs.clone(),
            finish: Value::Null,
        };
        OpenAiAnswer {
            id: app.new_id(prefix),
            created: jiff::Timestamp::now().as_second(),
            model: answer.model.clone(),
            extension,
            include_usage,
            choices: (0..answer.parameters.choices).map(choice).collect(),
            usage: Usage::default(),
            timings: Value::Null,
            ready: VecDeque::new(),
            shape,
        }
    }

    fn object(&self, kind: &str, choices: Value) -> Value {
        json!({
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model.name,
            "system_fingerprint": concat!("kvark-", env!("CARGO_PKG_VERSION")),
            "choices": choices,
        })
    }

    /// A chunk with these choices.
    fn chunk(&self, choices: Value) -> Value {
        let kind = match self.shape {
            Shape::Chat => "chat.completion.chunk",
            Shape::Text(_) => "text_completion",
        };
        let mut chunk = self.object(kind, choices);
        if self.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    /// A chunk with a part of a choice: the delta of a message, or a piece of text.
    fn part(&self, choice: usize, part: Value, logprobs: Value, finish: Value) -> Value {
        let name = match self.shape {
            Shape::Chat => "delta",
            Shape::Text(_) => "text",
        };
        self.chunk(json!([{
            "index": choice,
            (name): part,
            "logprobs": logprobs,
            "finish_reason": finish,
        }]))
    }

    fn push(&mut self, chunk: &Value) {
        self.ready.push_back((None, chunk.to_string()));
    }

    fn logprobs(&self, choice: usize, id: u32, logprobs: &TokenLogprobs) -> Value {
        let tokenizer = self.model.model.tokenizer().ok();
        if let Shape::Chat = self.shape {
            let token = |id: u32, logprob: f32| {
                let bytes = tokenizer.and_then(|t| t.token_bytes(id));
                let bytes = bytes.unwrap_or_default();
                let text = String::from_utf8_lossy(bytes);
                json!({ "token": text, "id": id, "bytes": bytes, "logprob": logprob })
            };
            let top = logprobs.top.iter();
            let top: Vec<Value> = top.map(|(id, p)| token(*id, *p)).collect();
            let mut entry = token(id, logprobs.logprob);
            entry["top_logprobs"] = top.into();
            return json!({ "content": [entry] });
        }
        let text = |id: u32| match tokenizer {
            Some(tokenizer) => tokenizer.decode(&[id], true),
            None => format!("token_{id}"),
        };
        let top = logprobs.top.iter();
        let top: Map<String, Value> = top.map(|(id, p)| (text(*id), json!(p))).collect();
        json!({
            "tokens": [text(id)],
            "token_logprobs": [logprobs.logprob],
            "top_logprobs": [top],
            "text_offset": [self.choices[choice].text.len()],
        })
    }
}

impl AnswerFormat for OpenAiAnswer {
    fn ready(&mut self) -> &mut VecDeque<Frame> {
        &mut self.ready
    }

    fn event(&mut self, event: ChatEvent) {
        let choice = match &event {
            ChatEvent::Started { choice }
            | ChatEvent::Text { choice, .. }
            | ChatEvent::Reasoning { choice, .. }
            | ChatEvent::CallPiece { choice, .. }
            | ChatEvent::Call { choice, .. }
            | ChatEvent::Round { choice, .. }
            | ChatEvent::End { choice, .. } => *choice,
            ChatEvent::Failed(error) => {
                self.push(&error.body());
                self.ready.push_back((None, "[DONE]".to_owned()));
                return;
            }
        };
        if !std::mem::replace(&mut self.choices[choice].begun, true) {
            let begin = match &self.shape {
                Shape::Chat => json!({ "role": "assistant", "content": "" }),
                Shape::Text(echo) => echo.clone().into(),
            };
            let mut first = self.part(choice, begin, Value::Null, Value::Null);
            first["kvark"] = self.extension.clone();
            self.push(&first);
        }
        match event {
            ChatEvent::Started { .. } | ChatEvent::Failed(_) => {}
            ChatEvent::Text { text, logprobs, .. } => {
                let logprobs = logprobs.map(|(id, of_token)| self.logprobs(choice, id, &of_token));
                let logprobs = Value::from(logprobs);
                let part = match self.shape {
                    Shape::Chat => json!({ "content": text }),
                    Shape::Text(_) => text.clone().into(),
                };
                let chunk = self.part(choice, part, logprobs.clone(), Value::Null);
                self.push(&chunk);
                let own = &mut self.choices[choice];
                own.text.push_str(&text);
                append_lists(&mut own.logprobs, logprobs);
            }
            ChatEvent::Reasoning { text, .. } => {
                let delta = json!({ "reasoning_content": text, "reasoning": text });
                let chunk = self.part(choice, delta, Value::Null, Value::Null);
                self.push(&chunk);
                self.choices[choice].reasoning.push_str(&text);
            }
            ChatEvent::CallPiece { id, piece, .. } => {
                let index = self.choices[choice].calls.len();
                let mut object = match piece.name {
                    Some(name) => {
                        let arguments = piece.arguments;
                        call_object(&id, &ToolCall { name, arguments })
                    }
                    None => json!({ "function": { "arguments": piece.arguments } }),
                };
                object["index"] = index.into();
                let delta = json!({ "tool_calls": [object] });
                let chunk = self.part(choice, delta, Value::Null, Value::Null);
                self.push(&chunk);
            }
            ChatEvent::Call {
                id, call, streamed, ..
            } => {
                let mut object = call_object(&id, &call);
                let calls = &mut self.choices[choice].calls;
                calls.push(object.clone());
                if streamed {
                    return;
                }
                object["index"] = (calls.len() - 1).into();
                let delta = json!({ "tool_calls": [object] });
                let chunk = self.part(choice, delta, Value::Null, Value::Null);
                self.push(&chunk);
            }
            ChatEvent::End {
                called,
                reasoning_tokens,
                output,
                ..
            } => {
                self.usage.add(&output);
                self.usage.reasoning += reasoning_tokens;
                self.timings = timings(&output);
                let finish = Value::from(chat_finish(called, output.finish));
                self.choices[choice].finish = finish.clone();
                let nothing = match self.shape {
                    Shape::Chat => json!({}),
                    Shape::Text(_) => "".into(),
                };
                let mut last = self.part(choice, nothing, Value::Null, finish);
                last["timings"] = self.timings.clone();
                self.push(&last);
                if self.choices.iter().any(|choice| choice.finish.is_null()) {
                    return;
                }
                if self.include_usage {
                    let mut chunk = self.chunk(json!([]));
                    chunk["usage"] = self.usage.openai();
                    self.push(&chunk);
                }
                self.ready.push_back((None, "[DONE]".to_owned()));
            }
            ChatEvent::Round { round, .. } => {
                let mut chunk = self.chunk(json!([]));
                chunk["kvark"] = json!({ "round": round, "choice": choice });
                self.push(&chunk);
            }
        }
    }

    fn whole(mut self) -> Value {
        let choices = std::mem::take(&mut self.choices).into_iter().enumerate();
        let choices = choices.map(|(index, own)| {
            let mut choice = json!({ "index": index });
            match &self.shape {
                Shape::Chat => {
                    let content = match own.calls.is_empty() || !own.text.trim().is_empty() {
                        true => own.text.into(),
                        false => Value::Null,
                    };
                    let message =
                        json!({ "role": "assistant", "content": content, "refusal": null });
                    choice["message"] = message;
                    if !own.reasoning.is_empty() {
                        choice["message"]["reasoning_content"] = own.reasoning.clone().into();
                        choice["message"]["reasoning"] = own.reasoning.into();
                    }
                    if !own.calls.is_empty() {
                        choice["message"]["tool_calls"] = own.calls.into();
                    }
                }
                Shape::Text(_) => choice["text"] = own.text.into(),
            }
            choice["logprobs"] = own.logprobs;
            choice["finish_reason"] = own.finish;
            choice
        });
        let kind = match self.shape {
            Shape::Chat => "chat.completion",
            Shape::Text(_) => "text_completion",
        };
        let mut object = self.object(kind, choices.collect());
        object["usage"] = self.usage.openai();
        object["timings"] = self.timings;
        object["kvark"] = self.extension;
        object
    }
}

/// Appends the lists of one object to those of another.
fn append_lists(all: &mut Value, new: Value) {
    let Value::Object(new) = new else { return };
    let Value::Object(all) = all else {
        *all = new.into();
        return;
    };
    for (name, items) in new {
        let list = all.get_mut(&name).and_then(Value::as_array_mut);
        if let (Some(list), Value::Array(items)) = (list, items) {
            list.extend(items);
        }
    }
}
