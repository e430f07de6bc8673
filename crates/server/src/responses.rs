//! `POST /v1/responses`, OpenAI's newer chat interface.

use crate::access::Owner;
use crate::answer::{Usage, cache_object, finish_name};
use crate::app::App;
use crate::body::{Body, Int, TextOrObjects};
use crate::chat::{ChatInput, PreparedAnswer, TurnRequest, set_effort};
use crate::chat_answer::ChatEvent;
use crate::chat_prompt::ChatPrompt;
use crate::error::ApiError;
use crate::generation::GenerationRequest;
use crate::sse::{AnswerFormat, Frame};
use crate::stored_responses::{self, ResponseInput, ResponseTurn};
use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use axum::{Extension, Json};
use kvark::engine::{CacheReport, RequestOutput};
use kvark::generate::FinishReason;
use kvark::text::tools::ToolCall;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

/// Parameters that cannot change the output of a local model.
pub(crate) const IGNORED: &[&str] = &[
    "client_metadata",
    "include",
    "max_tool_calls",
    "metadata",
    "parallel_tool_calls",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "user",
];

/// Parameters that would change the output.
const UNSUPPORTED: &[&str] = &["prompt"];

/// The parameters of a response, besides those of all turns and generations.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct ResponseRequest {
    /// A text or a list of items
    #[schemars(with = "TextOrObjects")]
    input: Value,
    /// The system message
    instructions: Option<String>,
    /// The response that this one goes on from. Its instructions are not taken over
    previous_response_id: Option<String>,
    /// Keep the response, for previous_response_id and to be asked for
    store: Option<bool>,
    /// Only false: answers come while the request is open
    background: Option<bool>,
    /// Only disabled: a prompt that is too long is refused
    truncation: Option<String>,
    /// Most tokens of the answer
    max_output_tokens: Option<Int<1>>,
    /// format: text, json_object or json_schema
    text: Option<TextOptions>,
    /// effort: what the chat template is told as reasoning_effort
    reasoning: Option<ReasoningOptions>,
}

/// `reasoning`.
#[derive(Deserialize, JsonSchema)]
#[schemars(inline)]
struct ReasoningOptions {
    effort: Option<String>,
}

/// `text`: its format is what chat completions call `response_format`.
#[derive(Deserialize, JsonSchema)]
#[schemars(inline)]
struct TextOptions {
    format: Option<Map<String, Value>>,
}

/// The handler.
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    Extension(owner): Extension<Owner>,
    body: Bytes,
) -> Result<Response, ApiError> {
    let mut body = Body::parse(&body)?;
    let request: ResponseRequest = body.read()?;
    let mut generation: GenerationRequest = body.read()?;
    let mut turn: TurnRequest = body.read()?;
    if request.background == Some(true) {
        return Err(ApiError::unsupported("background"));
    }
    if request.truncation.is_some_and(|kind| kind != "disabled") {
        return Err(ApiError::unsupported("truncation"));
    }
    let offered = OfferedTools::read(std::mem::take(&mut turn.tools))?;
    turn.tools = offered.functions;
    let namespaces = offered.namespaces;
    let (items, mut messages) = read_input(request.input)?;
    let instructions = request.instructions;
    let store = request.store.unwrap_or(true) && turn.conversation.is_none();
    let mut stored = None;
    if store || request.previous_response_id.is_some() {
        if turn.conversation.is_some() {
            let wrong = "cannot be stated together with conversation";
            return Err(ApiError::parameter("previous_response_id", wrong));
        }
        let input = ResponseInput {
            model: app.models.name(generation.model.as_deref())?.to_owned(),
            previous: request.previous_response_id.clone(),
            instructions: instructions.clone(),
            items,
            messages,
            store,
        };
        let (of_response, new) = ResponseTurn::begin(&app, &owner, input)?;
        turn.conversation = Some(of_response.conversation.clone());
        (stored, messages) = (Some(of_response), new);
    } else if let Some(text) = &instructions {
        messages.insert(0, json!({ "role": "system", "content": text }));
    }
    let format = request.text.and_then(|text| text.format);
    generation.response_format = format.or(generation.response_format);
    let mut variables = Map::new();
    set_effort(&mut variables, request.reasoning.and_then(|it| it.effort));
    let input = ChatInput {
        messages,
        variables,
        max_tokens: request.max_output_tokens.map(Int::size),
        ignored: IGNORED,
        unsupported: UNSUPPORTED,
        ..ChatInput::default()
    };
    let chat = PreparedAnswer::new(&app, &owner, body, (generation, turn), input).await?;
    let format = |chat: &PreparedAnswer, report: &CacheReport| {
        let mut begun = ResponseAnswer::new(&app, chat, report, stored);
        begun.begin(instructions, request.previous_response_id, store);
        begun.namespaces = namespaces;
        begun
    };
    chat.respond(&app, format).await
}

/// The parameters of a count.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct CountRequest {
    /// The model; the default one if left out
    model: Option<String>,
    /// A text or a list of items
    #[schemars(with = "TextOrObjects")]
    input: Value,
    /// The system message
    instructions: Option<String>,
    /// The response that comes before
    previous_response_id: Option<String>,
    /// Functions that the model may call
    #[serde(default)]
    #[schemars(with = "Vec<Map<String, Value>>")]
    tools: Vec<Value>,
}

/// Parameters of a count that add no tokens.
pub(crate) const COUNT_IGNORED: &[&str] =
    &["parallel_tool_calls", "reasoning", "text", "tool_choice"];

/// `POST /v1/responses/input_tokens`: the tokens of a prompt, without an answer.
pub(crate) async fn input_tokens(
    State(app): State<Arc<App>>,
    Extension(owner): Extension<Owner>,
    body: Bytes,
) -> Result<Json<Value>, ApiError> {
    let mut body = Body::parse(&body)?;
    let request: CountRequest = body.read()?;
    body.finish(COUNT_IGNORED, UNSUPPORTED, app.options.lenient)?;
    let (_, new) = read_input(request.input)?;
    let mut messages = match &request.previous_response_id {
        Some(id) => stored_responses::messages(&app, id, &owner)?,
        None => vec![],
    };
    if let Some(text) = request.instructions {
        messages.insert(0, json!({ "role": "system", "content": text }));
    }
    messages.extend(new);
    let tools = OfferedTools::read(request.tools)?.functions;
    let prompt = ChatPrompt::new(messages, tools, Map::new())?;
    let model = app.model(request.model).await?;
    let tokens = app.blocking(move |_| prompt.tokens(&model)).await?;
    Ok(Json(
        json!({ "object": "response.input_tokens", "input_tokens": tokens.len() }),
    ))
}

/// The functions of a request, and the namespaces of those that are in one.
#[derive(Default)]
struct OfferedTools {
    functions: Vec<Value>,
    namespaces: HashMap<String, String>,
}

impl OfferedTools {
    /// Reads tools: functions, and namespaces of functions. A search of the web, which clients offer without being asked, is left out:
    /// there is none, and the model is not told of it. Other tools that OpenAI runs are refused.
    fn read(tools: Vec<Value>) -> Result<OfferedTools, ApiError> {
        let mut offered = OfferedTools::default();
        for tool in tools {
            match tool["type"].as_str() {
                Some("web_search" | "web_search_preview") => {
                    tracing::warn!(r#"a request offers "web_search", which this server has not"#);
                }
                Some("namespace") => {
                    let namespace = tool["name"].as_str().unwrap_or_default();
                    for inner in tool["tools"].as_array().into_iter().flatten() {
                        let name = inner["name"].as_str().unwrap_or_default().to_owned();
                        offered.namespaces.insert(name, namespace.to_owned());
                        offered.functions.push(inner.clone());
                    }
                }
                _ => offered.functions.push(tool),
            }
        }
        let mut names = HashSet::new();
        let mut all = offered.functions.iter();
        let again = all.find(|tool| {
            tool["name"]
                .as_str()
                .is_some_and(|name| !names.insert(name))
        });
        match again {
            Some(tool) => {
                let wrong = format!("the function {} occurs twice", tool["name"]);
                Err(ApiError::parameter("tools", wrong))
            }
            None => Ok(offered),
        }
    }
}

/// The items of an input, and the messages that they are.
fn read_input(input: Value) -> Result<(Vec<Value>, Vec<Value>), ApiError> {
    let items = match input {
        Value::String(text) => {
            let part = json!({ "type": "input_text", "text": text });
            vec![json!({ "type": "message", "role": "user", "content": [part] })]
        }
        Value::Array(items) => items,
        _ => return Err(ApiError::parameter("input", "must be a string or a list")),
    };
    let mut messages = vec![];
    for item in &items {
        add_message(&mut messages, message(item.clone())?);
    }
    Ok((items, messages))
}

/// Adds a message. The items of one answer (reasoning, text and calls) are one message.
fn add_message(messages: &mut Vec<Value>, message: Value) {
    let is_answer = |message: &Value| message["role"] == "assistant";
    let Some(last) = messages
        .last_mut()
        .filter(|last| is_answer(last) && is_answer(&message))
    else {
        return messages.push(message);
    };
    // A text or reasoning after the same begins another answer.
    let taken = |name: &str| !last[name].is_null() && !message[name].is_null();
    let after_calls = last.get("tool_calls").is_some() && !message["content"].is_null();
    if after_calls || taken("content") || taken("reasoning_content") {
        return messages.push(message);
    }
    if let (Some(calls), Some(new)) = (
        last["tool_calls"].as_array_mut(),
        message["tool_calls"].as_array(),
    ) {
        return calls.extend(new.iter().cloned());
    }
    for name in ["content", "reasoning_content", "tool_calls"] {
        if let Some(value) = message.get(name).filter(|value| !value.is_null()) {
            last[name] = value.clone();
        }
    }
}

/// The text of a reasoning item: its content, or else its summary.
fn reasoning_text(item: &Value) -> String {
    let text = |name: &str| -> String {
        let parts = item[name].as_array().into_iter().flatten();
        parts.filter_map(|part| part["text"].as_str()).collect()
    };
    let content = text("content");
    if content.is_empty() {
        text("summary")
    } else {
        content
    }
}

/// An input item as a chat message.
fn message(item: Value) -> Result<Value, ApiError> {
    Ok(match item["type"].as_str() {
        Some("reasoning") => json!({
            "role": "assistant",
            "content": null,
            "reasoning_content": reasoning_text(&item),
        }),
        Some("function_call") => json!({
            "role": "assistant",
            "content": null,
            "tool_calls": [{
                "id": item["call_id"],
                "type": "function",
                "function": { "name": item["name"], "arguments": item["arguments"] },
            }],
        }),
        Some("function_call_output") => json!({
            "role": "tool",
            "tool_call_id": item["call_id"],
            "content": item["output"],
        }),
        None | Some("message") => item,
        Some(other) => {
            let wrong = format!("items of type {other:?} are not supported");
            return Err(ApiError::parameter("input", wrong));
        }
    })
}

/// The response object as its events build it.
struct ResponseAnswer {
    response: Value,
    ready: VecDeque<Frame>,
    sequence: u64,
    /// Where the response is stored.
    stored: Option<ResponseTurn>,
    /// The namespaces of functions.
    namespaces: HashMap<String, String>,
    /// The text of the open message item.
    open: Option<String>,
    /// The text of the open reasoning item.
    reasoning: Option<String>,
}

impl ResponseAnswer {
    fn new(
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
    fn begin(&mut self, instructions: Option<String>, previous: Option<String>, store: bool) {
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
