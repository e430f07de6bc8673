//! Answers of `/api/chat` and `/api/generate`, whole and as lines of JSON.

use super::keep_alive::ModelUse;
use super::now;
use crate::answer::{cache_object, finish_name};
use crate::chat::PreparedAnswer;
use crate::chat_answer::{ChatAnswer, ChatEvent};
use crate::registry::LoadedModel;
use crate::sse::{self, AnswerFormat, Frame};
use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use kvark::engine::{CacheReport, RequestOutput, TokenLogprobs};
use kvark::text::tools::ToolCall;
use serde_json::{Map, Value, json};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The media type of a stream.
const NDJSON: &str = "application/x-ndjson";

/// Which endpoint answers.
pub(super) enum Shape {
    /// `/api/chat`.
    Chat,
    /// `/api/generate`.
    Text {
        /// Whether the answer ends with its tokens, for the next request.
        keeps_context: bool,
    },
}

/// An answer of Ollama's API.
pub(super) struct OllamaAnswer {
    shape: Shape,
    /// The name of the model as the client has written it.
    name: String,
    model: Arc<LoadedModel>,
    prompt: Arc<Vec<u32>>,
    started: Instant,
    load_time: Duration,
    extension: Value,
    text: String,
    thinking: String,
    calls: Vec<Value>,
    logprobs: Vec<Value>,
    /// The fields of the end.
    end: Map<String, Value>,
    ready: VecDeque<Frame>,
    /// The model is in use as long as this answer is there.
    _model_use: ModelUse,
}

impl OllamaAnswer {
    /// The beginning of an answer. `times` are the start of the request and the time that loading the model took.
    pub(super) fn new(
        shape: Shape,
        name: String,
        prepared: &PreparedAnswer,
        report: &CacheReport,
        (started, load_time): (Instant, Duration),
        model_use: ModelUse,
    ) -> OllamaAnswer {
        let cache = cache_object(report, &prepared.model, &prepared.tokens);
        let mut extension = json!({ "cache": cache });
        if !prepared.warnings.is_empty() {
            extension["warnings"] = prepared.warnings.clone().into();
        }
        OllamaAnswer {
            shape,
            name,
            model: prepared.model.clone(),
            prompt: prepared.tokens.clone(),
            started,
            load_time,
            extension,
            text: String::new(),
            thinking: String::new(),
            calls: vec![],
            logprobs: vec![],
            end: Map::new(),
            ready: VecDeque::new(),
            _model_use: model_use,
        }
    }

    /// An object with a part of the answer.
    fn object(&self, text: &str, thinking: &str, calls: &[Value]) -> Value {
        let mut object = json!({ "model": self.name, "created_at": now() });
        match self.shape {
            Shape::Chat => {
                let mut message = json!({ "role": "assistant", "content": text });
                if !thinking.is_empty() {
                    message["thinking"] = thinking.into();
                }
                if !calls.is_empty() {
                    message["tool_calls"] = calls.into();
                }
                object["message"] = message;
            }
            Shape::Text { .. } => {
                object["response"] = text.into();
                if !thinking.is_empty() {
                    object["thinking"] = thinking.into();
                }
            }
        }
        object["done"] = false.into();
        object
    }

    fn push(&mut self, object: &Value) {
        self.ready.push_back((None, object.to_string()));
    }

    fn logprob(&self, id: u32, logprobs: &TokenLogprobs) -> Value {
        let tokenizer = self.model.model.tokenizer().ok();
        let token = |id: u32, logprob: f32| {
            let bytes = tokenizer.and_then(|tokenizer| tokenizer.token_bytes(id));
            let bytes = bytes.unwrap_or_default();
            let text = String::from_utf8_lossy(bytes);
            json!({ "token": text, "logprob": logprob, "bytes": bytes })
        };
        let top = logprobs.top.iter().map(|(id, p)| token(*id, *p));
        let top: Vec<Value> = top.collect();
        let mut entry = token(id, logprobs.logprob);
        if !top.is_empty() {
            entry["top_logprobs"] = top.into();
        }
        entry
    }

    /// States the counts and the times of the end.
    fn finish(&mut self, output: &RequestOutput) {
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let timings = &output.timings;
        let mut end = json!({
            "done": true,
            "done_reason": finish_name(output.finish),
            "total_duration": nanoseconds(self.started.elapsed()),
            "load_duration": nanoseconds(self.load_time),
            "prompt_eval_count": output.cache.prompt_tokens,
            "prompt_eval_cached_count": output.cache.cached_tokens,
            "prompt_eval_duration": nanoseconds(timings.prompt_time),
            "eval_count": output.tokens.len(),
            "eval_duration": nanoseconds(timings.decode_time),
            "kvark": self.extension,
        });
        if let Shape::Text {
            keeps_context: true,
        } = self.shape
        {
            end["context"] = [&self.prompt[..], &output.tokens].concat().into();
        }
        if let Value::Object(end) = end {
            self.end = end;
        }
    }
}

/// A tool call as Ollama has it: its arguments are an object.
fn call_object(id: &str, index: usize, call: &ToolCall) -> Value {
    let arguments = serde_json::from_str(&call.arguments).unwrap_or_else(|_| json!({}));
    let arguments: Value = arguments;
    let function = json!({ "index": index, "name": call.name, "arguments": arguments });
    json!({ "id": id, "function": function })
}

/// An object with these fields too.
fn with(mut object: Value, fields: &Map<String, Value>) -> Value {
    if let Value::Object(object) = &mut object {
        object.extend(fields.clone());
    }
    object
}

impl AnswerFormat for OllamaAnswer {
    fn ready(&mut self) -> &mut VecDeque<Frame> {
        &mut self.ready
    }

    fn event(&mut self, event: ChatEvent) {
        match event {
            ChatEvent::Text { text, token, .. } => {
                let logprobs = token.and_then(|(id, of_token)| Some((id, of_token?)));
                if text.is_empty() && logprobs.is_none() {
                    return;
                }
                let mut object = self.object(&text, "", &[]);
                if let Some((id, of_token)) = logprobs {
                    let logprob = self.logprob(id, &of_token);
                    object["logprobs"] = vec![logprob.clone()].into();
                    self.logprobs.push(logprob);
                }
                self.push(&object);
                self.text.push_str(&text);
            }
            ChatEvent::Reasoning { text, .. } => {
                let object = self.object("", &text, &[]);
                self.push(&object);
                self.thinking.push_str(&text);
            }
            // A call comes whole: its arguments are an object.
            ChatEvent::CallPiece { .. }
            | ChatEvent::Started { .. }
            | ChatEvent::Progress { .. }
            | ChatEvent::Round { .. } => {}
            ChatEvent::Call { id, call, .. } => {
                let call = call_object(&id, self.calls.len(), &call);
                let object = self.object("", "", std::slice::from_ref(&call));
                self.push(&object);
                self.calls.push(call);
            }
            ChatEvent::End { output, .. } => {
                self.finish(&output);
                let object = with(self.object("", "", &[]), &self.end);
                self.push(&object);
            }
            ChatEvent::Failed(error) => self.push(&json!({ "error": error.message })),
        }
    }

    fn whole(self) -> Value {
        let mut object = self.object(&self.text, &self.thinking, &self.calls);
        if !self.logprobs.is_empty() {
            object["logprobs"] = self.logprobs.clone().into();
        }
        with(object, &self.end)
    }

    fn stream(self, answer: ChatAnswer) -> Response {
        lines((answer, self), |state| async {
            let ((_, line), state) = sse::next_frame(state).await?;
            Some((line, state))
        })
    }
}

/// A stream of lines: `next` gives the next one and the state after it.
pub(super) fn lines<S, F>(state: S, next: impl Fn(S) -> F + Send + 'static) -> Response
where
    S: Send + 'static,
    F: Future<Output = Option<(String, S)>> + Send + 'static,
{
    let lines = futures_util::stream::unfold(state, move |state| {
        let item = next(state);
        async move {
            let (line, state) = item.await?;
            Some((Ok::<Bytes, Infallible>(Bytes::from(line + "\n")), state))
        }
    });
    ([(header::CONTENT_TYPE, NDJSON)], Body::from_stream(lines)).into_response()
}
