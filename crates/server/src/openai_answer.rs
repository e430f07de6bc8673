//! Answers of OpenAI's API: of chats and of continued texts, whole and as a stream of chunks.

use crate::answer::{Usage, cache_object, finish_name, timings};
use crate::app::App;
use crate::chat::PreparedAnswer;
use crate::chat_answer::ChatEvent;
use crate::generation::StreamDetails;
use crate::registry::LoadedModel;
use crate::sse::{AnswerFormat, Frame};
use crate::token_clock::TokenClock;
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
    /// Texts: the beginning that the answers to each prompt repeat.
    Text(Vec<String>),
}

/// An answer as `/v1/chat/completions` and `/v1/completions` state it.
pub(crate) struct OpenAiAnswer {
    shape: Shape,
    id: String,
    created: i64,
    model: Arc<LoadedModel>,
    /// The object `kvark`, which OpenAI's API does not have.
    extension: Value,
    details: StreamDetails,
    choices: Vec<Choice>,
    /// The answers to each prompt, and how many of them are wanted: the most likely ones.
    per_prompt: (usize, usize),
    prompts: Vec<Arc<Vec<u32>>>,
    usage: Usage,
    timings: Value,
    clock: TokenClock,
    ready: VecDeque<Frame>,
}

struct Choice {
    begun: bool,
    text: String,
    reasoning: String,
    calls: Vec<Value>,
    logprobs: Value,
    finish: Value,
    /// The sum of the log-probabilities of its tokens, and their number.
    score: (f32, usize),
}

impl OpenAiAnswer {
    /// The beginning of an answer. `conversation` is the one that it continues.
    pub(crate) fn new(
        app: &App,
        answer: &PreparedAnswer,
        report: &CacheReport,
        shape: Shape,
        details: StreamDetails,
    ) -> OpenAiAnswer {
        let mut extension = json!({ "cache": cache_object(report, &answer.model, &answer.tokens) });
        if !answer.warnings.is_empty() {
            extension["warnings"] = answer.warnings.clone().into();
        }
        if let Some(id) = &details.conversation {
            extension["conversation"] = id.clone().into();
        }
        let (prefix, logprobs) = match &shape {
            Shape::Chat if answer.logprobs.is_some() => {
                ("chatcmpl", json!({ "content": [], "refusal": null }))
            }
            Shape::Chat => ("chatcmpl", Value::Null),
            Shape::Text(_) => ("cmpl", Value::Null),
        };
        let per_prompt = answer.parameters.choices;
        let choice = |index| Choice {
            begun: false,
            score: (0.0, 0),
            text: echo(&shape, index / per_prompt).to_owned(),
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
            details,
            choices: (0..answer.answers()).map(choice).collect(),
            per_prompt: (per_prompt, per_prompt),
            prompts: answer.prompts().cloned().collect(),
            clock: TokenClock::new(report),
            usage: Usage::default(),
            timings: Value::Null,
            ready: VecDeque::new(),
            shape,
        }
    }

    /// The answer with the `best` most likely answers to each prompt only.
    pub(crate) fn with_best(mut self, best: usize) -> OpenAiAnswer {
        self.per_prompt.1 = best;
        self
    }

    fn object(&self, kind: &str, choices: Value) -> Value {
        json!({
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model.name,
            "system_fingerprint": concat!("build-kvark-", env!("CARGO_PKG_VERSION")),
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
        if self.details.usage {
            chunk["usage"] = Value::Null;
        }
        if self.details.timings {
            chunk["timings"] = self.clock.timings();
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
        json!({
            "tokens": [self.token_text(id)],
            "token_logprobs": [logprobs.logprob],
            "top_logprobs": [self.top(logprobs)],
            "text_offset": [self.choices[choice].text.len()],
        })
    }

    fn token_text(&self, id: u32) -> String {
        match self.model.model.tokenizer() {
            Ok(tokenizer) => tokenizer.decode(&[id], true),
            Err(_) => format!("token_{id}"),
        }
    }

    /// The most likely tokens as texts.
    fn top(&self, logprobs: &TokenLogprobs) -> Map<String, Value> {
        let top = logprobs.top.iter();
        top.map(|(id, p)| (self.token_text(*id), json!(p)))
            .collect()
    }

    /// The log-probabilities of a prompt's tokens, of which the first has none, in the shape of a text's.
    fn prompt_logprobs(&self, prompt: usize, logprobs: &[TokenLogprobs]) -> Value {
        let mut lists = [vec![], vec![], vec![], vec![]];
        let mut offset = 0;
        for (index, id) in self.prompts[prompt].iter().enumerate() {
            let own = index.checked_sub(1).and_then(|index| logprobs.get(index));
            let text = self.token_text(*id);
            lists[3].push(json!(offset));
            offset += text.len();
            lists[0].push(text.into());
            lists[1].push(own.map(|own| own.logprob).into());
            lists[2].push(own.map(|own| self.top(own)).into());
        }
        let [tokens, values, top, offsets] = lists;
        json!({ "tokens": tokens, "token_logprobs": values, "top_logprobs": top, "text_offset": offsets })
    }
}

/// The beginning that the answers to a prompt repeat.
fn echo(shape: &Shape, prompt: usize) -> &str {
    match shape {
        Shape::Chat => "",
        Shape::Text(echo) => echo.get(prompt).map_or("", |text| text),
    }
}

impl AnswerFormat for OpenAiAnswer {
    fn ready(&mut self) -> &mut VecDeque<Frame> {
        &mut self.ready
    }

    fn event(&mut self, event: ChatEvent) {
        let choice = match &event {
            ChatEvent::Started { choice }
            | ChatEvent::Progress { choice, .. }
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
                Shape::Text(_) => echo(&self.shape, choice / self.per_prompt.0).into(),
            };
            let mut first = self.part(choice, begin, Value::Null, Value::Null);
            first["kvark"] = self.extension.clone();
            self.push(&first);
        }
        match event {
            ChatEvent::Started { .. } | ChatEvent::Failed(_) => {}
            ChatEvent::Progress { tokens, .. } => {
                if self.details.progress && choice == 0 {
                    let mut chunk = self.chunk(json!([]));
                    chunk["prompt_progress"] = self.clock.progress(tokens);
                    self.push(&chunk);
                }
            }
            ChatEvent::Text { text, token, .. } => {
                self.clock.count(usize::from(token.is_some()));
                let of_token = token.and_then(|(id, logprobs)| Some((id, logprobs?)));
                if let Some((_, logprobs)) = &of_token {
                    let (sum, count) = &mut self.choices[choice].score;
                    (*sum, *count) = (*sum + logprobs.logprob, *count + 1);
                }
                if text.is_empty() && of_token.is_none() {
                    return;
                }
                let logprobs = of_token.filter(|_| self.per_prompt.0 == self.per_prompt.1);
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
                let prompt = choice / self.per_prompt.0;
                self.usage.add(prompt, &output);
                if !output.prompt_logprobs.is_empty() {
                    let mut all = self.prompt_logprobs(prompt, &output.prompt_logprobs);
                    append_lists(&mut all, self.choices[choice].logprobs.take());
                    self.choices[choice].logprobs = all;
                }
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
                if self.details.usage {
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
        let mut choices = std::mem::take(&mut self.choices);
        let (made, wanted) = self.per_prompt;
        if wanted < made {
            let mean = |it: &Choice| it.score.0 / it.score.1.max(1) as f32;
            let of_prompts = choices.chunks_mut(made);
            of_prompts.for_each(|own| own.sort_by(|a, b| mean(b).total_cmp(&mean(a))));
            let mut index = 0..;
            choices.retain(|_| index.next().is_some_and(|index| index % made < wanted));
        }
        let choices = choices.into_iter().enumerate();
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
