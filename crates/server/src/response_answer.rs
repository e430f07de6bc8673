//! The answer of `/v1/responses`: a response object and its events.

use crate::answer::{Usage, cache_object, finish_name};
use crate::app::App;
use crate::chat::PreparedAnswer;
use crate::chat_answer::ChatEvent;
use crate::sse::{AnswerFormat, Frame};
use crate::stored_responses::ResponseTurn;
use kvark::engine::{CacheReport, RequestOutput};
use kvark::generate::FinishReason;
use kvark::text::tools::ToolCall;
use serde_json::{Value, json};
use std::collections::{HashMap, VecDeque};

/// The response object as its events build it.
pub(crate) struct ResponseAnswer {
    response: Value,
    ready: VecDeque<Frame>,
    sequence: u64,
    /// Where the response is stored.
    stored: Option<ResponseTurn>,
    /// The namespaces of functions.
    pub(crate) namespaces: HashMap<String, String>,
    /// The text of the open message item.
    open: Option<String>,
    /// The text of the open reasoning item.
    reasoning: Option<String>,
}

impl ResponseAnswer {
    pub(crate) fn new(
        app: &App,
        chat: &PreparedAnswer,
        report: &CacheReport,
        stored: Option<ResponseTurn>,
    ) -> ResponseAnswer {
        let sampling = &chat.parameters.sampling;
        let response = json!({
            "id": stored.as_ref().map_or_else(|| app.new_id("resp").replacen('-', "_", 1), ResponseTurn::id),
            "object": "response",
            "created_at": jiff::Timestamp::now().as_second(),
            "status": "in_progress",
            "error": null,
            "incomplete_details": null,
            "model": chat.model.name,
            "output": [],
            "parallel_tool_calls": true,
            "tool_choice": "auto",
            "truncation": "disabled",
            "background": false,
            "max_output_tokens": chat.parameters.options.max_tokens,
            "metadata": {},
            "tools": chat.prompt.tools,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "usage": null,
            "kvark": { "cache": cache_object(report, &chat.model, &chat.tokens) },
        });
        ResponseAnswer {
            response,
            ready: VecDeque::new(),
            sequence: 0,
            stored,
            namespaces: HashMap::new(),
            open: None,
            reasoning: None,
        }
    }

    /// Adds what the response was asked for with, and begins the stream.
    pub(crate) fn begin(
        &mut self,
        instructions: Option<String>,
        previous: Option<String>,
        store: bool,
    ) {
        self.response["instructions"] = instructions.into();
        self.response["previous_response_id"] = previous.into();
        self.response["store"] = store.into();
        let response = self.response.clone();
        self.push("response.created", json!({ "response": response }));
        self.push("response.in_progress", json!({ "response": response }));
    }

    fn push(&mut self, name: &'static str, mut data: Value) {
        data["type"] = name.into();
        data["sequence_number"] = self.sequence.into();
        self.sequence += 1;
        self.ready.push_back((Some(name), data.to_string()));
    }

    /// The index of the next output item, and its id.
    fn next_item(&self, prefix: &str) -> (usize, String) {
        let index = self.response["output"].as_array().map_or(0, Vec::len);
        let id = self.response["id"].as_str().unwrap_or_default();
        (
            index,
            format!("{prefix}_{}_{index}", id.trim_start_matches("resp_")),
        )
    }

    fn add_item(&mut self, item: Value) {
        if let Some(output) = self.response["output"].as_array_mut() {
            output.push(item);
        }
    }

    fn add_reasoning(&mut self, text: &str) {
        let (index, id) = self.next_item("rs");
        if self.reasoning.is_none() {
            self.close_message();
            let item = reasoning_item(&id, "in_progress", vec![]);
            self.push(
                "response.output_item.added",
                json!({ "output_index": index, "item": item }),
            );
        }
        self.reasoning.get_or_insert_default().push_str(text);
        self.push(
            "response.reasoning_text.delta",
            json!({ "item_id": id, "output_index": index, "content_index": 0, "delta": text }),
        );
    }

    fn close_reasoning(&mut self) {
        let Some(text) = self.reasoning.take() else {
            return;
        };
        let (index, id) = self.next_item("rs");
        self.push(
            "response.reasoning_text.done",
            json!({ "item_id": id, "output_index": index, "content_index": 0, "text": text }),
        );
        let part = json!({ "type": "reasoning_text", "text": text });
        let item = reasoning_item(&id, "completed", vec![part]);
        self.push(
            "response.output_item.done",
            json!({ "output_index": index, "item": item }),
        );
        self.add_item(item);
    }

    fn open_message(&mut self) {
        let (index, id) = self.next_item("msg");
        let item = json!({
            "id": id, "type": "message", "status": "in_progress", "role": "assistant", "content": [],
        });
        self.push(
            "response.output_item.added",
            json!({ "output_index": index, "item": item }),
        );
        let part = json!({ "type": "output_text", "text": "", "annotations": [] });
        self.push(
            "response.content_part.added",
            json!({ "item_id": id, "output_index": index, "content_index": 0, "part": part }),
        );
        self.open = Some(String::new());
    }

    fn close_message(&mut self) {
        let Some(text) = self.open.take() else {
            return;
        };
        let (index, id) = self.next_item("msg");
        let place = json!({ "item_id": id, "output_index": index, "content_index": 0 });
        let part = json!({ "type": "output_text", "text": text, "annotations": [] });
        let mut done = place.clone();
        done["text"] = text.into();
        self.push("response.output_text.done", done);
        let mut done = place;
        done["part"] = part.clone();
        self.push("response.content_part.done", done);
        let item = json!({
            "id": id, "type": "message", "status": "completed", "role": "assistant", "content": [part],
        });
        self.push(
            "response.output_item.done",
            json!({ "output_index": index, "item": item }),
        );
        self.add_item(item);
    }

    fn begin_call(&mut self, call_id: &str, name: &str) {
        self.close_reasoning();
        self.close_message();
        let (index, id) = self.next_item("fc");
        let item = self.call_item(&id, "in_progress", call_id, name, "");
        self.push(
            "response.output_item.added",
            json!({ "output_index": index, "item": item }),
        );
    }

    fn add_arguments(&mut self, text: &str) {
        let (index, id) = self.next_item("fc");
        if !text.is_empty() {
            self.push(
                "response.function_call_arguments.delta",
                json!({ "item_id": id, "output_index": index, "delta": text }),
            );
        }
    }

    fn end_call(&mut self, call_id: &str, call: &ToolCall) {
        let (index, id) = self.next_item("fc");
        let arguments = &call.arguments;
        self.push(
            "response.function_call_arguments.done",
            json!({ "item_id": id, "output_index": index, "name": call.name, "arguments": arguments }),
        );
        let item = self.call_item(&id, "completed", call_id, &call.name, arguments);
        self.push(
            "response.output_item.done",
            json!({ "output_index": index, "item": item }),
        );
        self.add_item(item);
    }

    /// An output item with a call.
    fn call_item(
        &self,
        id: &str,
        status: &str,
        call_id: &str,
        name: &str,
        arguments: &str,
    ) -> Value {
        let mut item = json!({
            "id": id, "type": "function_call", "status": status, "call_id": call_id, "name": name, "arguments": arguments,
        });
        if let Some(namespace) = self.namespaces.get(name) {
            item["namespace"] = namespace.clone().into();
        }
        item
    }

    fn end(&mut self, output: &RequestOutput, reasoning_tokens: usize) {
        self.close_reasoning();
        if self.open.is_none() && self.response["output"].as_array().is_none_or(Vec::is_empty) {
            self.open_message();
        }
        self.close_message();
        let mut usage = Usage::default();
        usage.add(0, output);
        self.response["usage"] = json!({
            "input_tokens": usage.prompt(),
            "input_tokens_details": { "cached_tokens": usage.cached() },
            "output_tokens": usage.completion,
            "output_tokens_details": { "reasoning_tokens": reasoning_tokens },
            "total_tokens": usage.prompt() + usage.completion,
        });
        let whole = output.finish == FinishReason::Stop;
        self.response["status"] = if whole { "completed" } else { "incomplete" }.into();
        if !whole {
            let reason = match finish_name(output.finish) {
                "length" => "max_output_tokens",
                other => other,
            };
            self.response["incomplete_details"] = json!({ "reason": reason });
        }
        if let Some(stored) = &mut self.stored {
            stored.end(&self.response);
        }
        let response = self.response.clone();
        let name = match whole {
            true => "response.completed",
            false => "response.incomplete",
        };
        self.push(name, json!({ "response": response }));
    }
}

/// An output item with reasoning.
fn reasoning_item(id: &str, status: &str, content: Vec<Value>) -> Value {
    json!({ "id": id, "type": "reasoning", "status": status, "summary": [], "content": content })
}

impl AnswerFormat for ResponseAnswer {
    fn ready(&mut self) -> &mut VecDeque<Frame> {
        &mut self.ready
    }

    fn event(&mut self, event: ChatEvent) {
        match event {
            ChatEvent::Text { text, .. } => {
                self.close_reasoning();
                if self.open.is_none() {
                    self.open_message();
                }
                let (index, id) = self.next_item("msg");
                self.open.get_or_insert_default().push_str(&text);
                self.push(
                    "response.output_text.delta",
                    json!({ "item_id": id, "output_index": index, "content_index": 0, "delta": text }),
                );
            }
            ChatEvent::Reasoning { text, .. } => self.add_reasoning(&text),
            ChatEvent::CallPiece {
                id: call_id, piece, ..
            } => {
                if let Some(name) = piece.name {
                    self.begin_call(&call_id, &name);
                }
                self.add_arguments(&piece.arguments);
            }
            ChatEvent::Call {
                id: call_id,
                call,
                streamed,
                ..
            } => {
                if !streamed {
                    self.begin_call(&call_id, &call.name);
                    self.add_arguments(&call.arguments);
                }
                self.end_call(&call_id, &call);
            }
            ChatEvent::End {
                reasoning_tokens,
                output,
                ..
            } => self.end(&output, reasoning_tokens),
            ChatEvent::Started { .. } | ChatEvent::Progress { .. } | ChatEvent::Round { .. } => {}
            ChatEvent::Failed(error) => {
                self.response["status"] = "failed".into();
                self.response["error"] =
                    json!({ "code": "server_error", "message": error.message });
                let response = self.response.clone();
                self.push("response.failed", json!({ "response": response }));
            }
        }
    }

    fn whole(self) -> Value {
        self.response
    }
}
