//! `POST /v1/messages`, as Anthropic has it.

use crate::access::Owner;
use crate::answer::cache_object;
use crate::app::App;
use crate::body::{Body, Int, Strings, TextOrObjects};
use crate::chat::{ChatInput, PreparedAnswer, TurnRequest, set_effort};
use crate::chat_answer::ChatEvent;
use crate::chat_prompt::ChatPrompt;
use crate::error::ApiError;
use crate::generation::GenerationRequest;
use crate::openai_answer::chat_finish;
use crate::sse::{AnswerFormat, Frame};
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use kvark::engine::{CacheReport, RequestOutput};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::VecDeque;
use std::sync::Arc;

/// Parameters that cannot change the output of a local model.
pub(crate) const IGNORED: &[&str] = &[
    "cache_control",
    "diagnostics",
    "inference_geo",
    "metadata",
    "service_tier",
    "speed",
    "user_profile_id",
    "workspace_id",
];

/// Parameters of Anthropic that would change the output.
const UNSUPPORTED: &[&str] = &["container", "mcp_servers"];

/// The path of this API, whose errors have a shape of their own.
pub(crate) const PATH: &str = "/v1/messages";

/// The handler. Errors have Anthropic's shape.
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    Extension(owner): Extension<Owner>,
    body: Bytes,
) -> Response {
    let response = respond(app, owner, body).await;
    response.unwrap_or_else(|error| error_response(&error))
}

/// `POST /v1/messages/count_tokens`: the tokens of a prompt, without an answer.
pub(crate) async fn count_tokens(State(app): State<Arc<App>>, body: Bytes) -> Response {
    let counted = count(app, body).await;
    counted.map_or_else(|error| error_response(&error), IntoResponse::into_response)
}

/// The parameters of a count.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct CountRequest {
    /// The model; the default one if left out
    model: Option<String>,
    /// The conversation
    #[schemars(with = "Vec<Map<String, Value>>")]
    messages: Vec<Value>,
    /// The system message
    #[schemars(with = "Option<TextOrObjects>")]
    system: Option<Value>,
    /// Functions that the model may call
    #[serde(default)]
    #[schemars(with = "Vec<Map<String, Value>>")]
    tools: Vec<Value>,
}

/// Parameters of a count that add no tokens.
pub(crate) const COUNT_IGNORED: &[&str] = &[
    "cache_control",
    "context_management",
    "output_config",
    "thinking",
    "tool_choice",
];

async fn count(app: Arc<App>, body: Bytes) -> Result<Json<Value>, ApiError> {
    let mut body = Body::parse(&body)?;
    let request: CountRequest = body.read()?;
    body.finish(COUNT_IGNORED, UNSUPPORTED, app.options.lenient)?;
    let messages = openai_messages(request.system, request.messages)?;
    let tools = request.tools.iter().map(openai_tool);
    let mut prompt = ChatPrompt::new(messages, tools.collect::<Result<_, _>>()?, Map::new())?;
    prompt.take_begun_answer()?;
    let model = app.model(request.model).await?;
    let count = move |_: &App| {
        let mut tokens = prompt.tokens(&model)?;
        prompt.append_begun(&model, &mut tokens)?;
        Ok(tokens)
    };
    let tokens = app.blocking(count).await?;
    Ok(Json(json!({ "input_tokens": tokens.len() })))
}

/// An error in Anthropic's shape.
pub(crate) fn error_response(error: &ApiError) -> Response {
    error.response(json!({
        "type": "error",
        "error": { "type": error_kind(error.status), "message": error.message },
    }))
}

/// Anthropic's type of an error.
fn error_kind(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
        status if status.is_server_error() => "api_error",
        _ => "invalid_request_error",
    }
}

/// The parameters of a message, besides those of all turns and generations.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct MessageRequest {
    /// The conversation
    #[schemars(with = "Vec<Map<String, Value>>")]
    messages: Vec<Value>,
    /// Most tokens of the answer
    max_tokens: Int<1>,
    /// The system message
    #[schemars(with = "Option<TextOrObjects>")]
    system: Option<Value>,
    /// Strings that end the answer
    stop_sequences: Option<Strings>,
    /// format: {"type": "json_schema", "schema": ...}; effort: what the chat template is told as reasoning_effort
    #[serde(default)]
    output_config: Map<String, Value>,
    /// {"type": "enabled"} or {"type": "disabled"}: what the chat template is told as enable_thinking; budget_tokens are the most
    /// tokens of reasoning, after which it is closed
    #[serde(default)]
    thinking: Map<String, Value>,
    /// edits: only clear_thinking that keeps all
    #[serde(default)]
    context_management: Map<String, Value>,
}

/// The contents of `output_config`.
#[derive(Default)]
struct OutputConfig {
    /// The format, which is OpenAI's `json_schema` without a name.
    format: Option<Map<String, Value>>,
    effort: Option<String>,
}

fn output_config(config: Map<String, Value>) -> Result<OutputConfig, ApiError> {
    let mut found = OutputConfig::default();
    for (name, value) in config {
        match &*name {
            _ if value.is_null() => {}
            "format" if value["type"] == "json_schema" => {
                let schema = json!({ "name": "output", "schema": value["schema"] });
                let format = json!({ "type": "json_schema", "json_schema": schema });
                found.format = format.as_object().cloned();
            }
            "format" => {
                let wrong = "format.type must be \"json_schema\"";
                return Err(ApiError::parameter("output_config", wrong));
            }
            "effort" => match value {
                Value::String(effort) => found.effort = Some(effort),
                _ => {
                    return Err(ApiError::parameter(
                        "output_config",
                        "effort must be a string",
                    ));
                }
            },
            _ => return Err(ApiError::unsupported(&format!("output_config.{name}"))),
        }
    }
    Ok(found)
}

/// Refuses edits of the context that the server does not make. Answers keep their reasoning anyway.
fn check_context_management(management: &Map<String, Value>) -> Result<(), ApiError> {
    let edits = management.get("edits").and_then(Value::as_array);
    for edit in edits.into_iter().flatten() {
        let kind = edit["type"].as_str().unwrap_or_default();
        if !(kind.starts_with("clear_thinking") && edit["keep"] == "all") {
            let wrong = format!("the edit {kind:?} is not supported");
            return Err(ApiError::parameter("context_management", wrong));
        }
    }
    Ok(())
}

async fn respond(app: Arc<App>, owner: Owner, body: Bytes) -> Result<Response, ApiError> {
    let mut body = Body::parse(&body)?;
    let request: MessageRequest = body.read()?;
    let mut generation: GenerationRequest = body.read()?;
    let mut turn: TurnRequest = body.read()?;
    let messages = openai_messages(request.system, request.messages)?;
    let tools = turn.tools.iter().map(openai_tool);
    turn.tools = tools.collect::<Result<_, _>>()?;
    check_context_management(&request.context_management)?;
    let config = output_config(request.output_config)?;
    generation.response_format = config.format.or(generation.response_format);
    let mut variables = Map::new();
    match request.thinking.get("type").and_then(Value::as_str) {
        Some("enabled") => _ = variables.insert("enable_thinking".to_owned(), true.into()),
        Some("disabled") => _ = variables.insert("enable_thinking".to_owned(), false.into()),
        // With "adaptive" the model decides.
        _ => {}
    }
    set_effort(&mut variables, config.effort);
    let input = ChatInput {
        messages,
        variables,
        reasoning_budget: thinking_budget(&request.thinking)?,
        max_tokens: Some(request.max_tokens.size()),
        stop: request.stop_sequences.map_or(vec![], Strings::into),
        ignored: IGNORED,
        unsupported: UNSUPPORTED,
        ..ChatInput::default()
    };
    let chat = PreparedAnswer::new(&app, &owner, body, (generation, turn), input).await?;
    chat.respond(&app, |chat, report| MessageAnswer::new(&app, chat, report))
        .await
}

/// The limit on reasoning that `thinking` states.
fn thinking_budget(thinking: &Map<String, Value>) -> Result<Option<usize>, ApiError> {
    match (
        thinking.get("type").and_then(Value::as_str),
        thinking.get("budget_tokens"),
    ) {
        (Some("disabled"), _) => Ok(Some(0)),
        (_, None | Some(Value::Null)) => Ok(None),
        (_, Some(tokens)) => match tokens.as_u64() {
            Some(tokens) => Ok(Some(usize::try_from(tokens).unwrap_or(usize::MAX))),
            None => {
                let wrong = "must be a number of tokens";
                Err(ApiError::parameter("thinking.budget_tokens", wrong))
            }
        },
    }
}

/// The system message and all others as OpenAI's messages.
fn openai_messages(system: Option<Value>, messages: Vec<Value>) -> Result<Vec<Value>, ApiError> {
    let system = system.map(|content| json!({ "role": "system", "content": content }));
    let mut all = Vec::from_iter(system);
    for message in messages {
        all.extend(openai_message(message)?);
    }
    Ok(all)
}

/// A message as OpenAI's messages: tool results become messages of their own.
fn openai_message(message: Value) -> Result<Vec<Value>, ApiError> {
    let role = message["role"].clone();
    let Some(blocks) = message["content"].as_array() else {
        return Ok(vec![message]);
    };
    let mut text = String::new();
    let mut thinking = String::new();
    let mut calls = vec![];
    let mut results = vec![];
    for block in blocks {
        match block["type"].as_str().unwrap_or("text") {
            "text" => text.push_str(block["text"].as_str().unwrap_or_default()),
            "thinking" => thinking.push_str(block["thinking"].as_str().unwrap_or_default()),
            // The server writes none, so nothing is known of their content.
            "redacted_thinking" => {}
            "tool_use" => calls.push(json!({
                "id": block["id"],
                "type": "function",
                "function": { "name": block["name"], "arguments": block["input"] },
            })),
            "tool_result" => results.push(json!({
                "role": "tool",
                "tool_call_id": block["tool_use_id"],
                "content": block["content"],
            })),
            other => {
                let wrong = format!("content blocks of type {other:?} are not supported");
                return Err(ApiError::parameter("messages", wrong));
            }
        }
    }
    let mut own = json!({ "role": role, "content": text });
    if !thinking.is_empty() {
        own["reasoning_content"] = thinking.into();
    }
    if !calls.is_empty() {
        own["tool_calls"] = calls.into();
    }
    if results.is_empty() || own["content"] != "" || own.get("tool_calls").is_some() {
        results.push(own);
    }
    Ok(results)
}

/// A tool in OpenAI's shape.
fn openai_tool(tool: &Value) -> Result<Value, ApiError> {
    if let Some(kind) = tool["type"].as_str().filter(|kind| *kind != "custom") {
        let name = tool["name"].as_str().unwrap_or_default();
        let wrong = format!(
            "the tool {name:?} of type {kind:?} is Anthropic's own: only tools with an input_schema are supported"
        );
        return Err(ApiError::parameter("tools", wrong));
    }
    Ok(json!({ "type": "function", "function": {
        "name": tool["name"],
        "description": tool["description"],
        "parameters": tool["input_schema"],
    }}))
}

fn stop_reason(called: bool, output: &RequestOutput) -> &'static str {
    match chat_finish(called, output.finish) {
        "tool_calls" => "tool_use",
        "length" => "max_tokens",
        cut @ ("timeout" | "abort") => cut,
        _ if output.stop_string.is_some() => "stop_sequence",
        _ => "end_turn",
    }
}

fn call_block(id: &str, call: &kvark::text::tools::ToolCall) -> Value {
    let input: Value = serde_json::from_str(&call.arguments).unwrap_or_else(|_| json!({}));
    json!({ "type": "tool_use", "id": id, "name": call.name, "input": input })
}

/// A message of Anthropic's API, as it comes.
struct MessageAnswer {
    message: Value,
    /// The content blocks so far.
    content: Vec<Value>,
    ready: VecDeque<Frame>,
    /// Whether the last block goes on.
    open: bool,
}

impl MessageAnswer {
    fn new(app: &App, chat: &PreparedAnswer, report: &CacheReport) -> MessageAnswer {
        let message = json!({
            "id": app.new_id("msg"),
            "type": "message",
            "role": "assistant",
            "model": chat.model.name,
            "content": [],
            "stop_reason": null,
            "stop_sequence": null,
            "usage": {
                "input_tokens": report.prompt_tokens - report.cached_tokens,
                "cache_read_input_tokens": report.cached_tokens,
                "cache_creation_input_tokens": 0,
                "output_tokens": 0,
            },
            "kvark": { "cache": cache_object(report, &chat.model, &chat.tokens) },
        });
        let mut answer = MessageAnswer {
            message: message.clone(),
            content: vec![],
            ready: VecDeque::new(),
            open: false,
        };
        answer.push("message_start", json!({ "message": message }));
        answer
    }

    fn push(&mut self, name: &'static str, mut data: Value) {
        data["type"] = name.into();
        self.ready.push_back((Some(name), data.to_string()));
    }

    fn open_block(&mut self, block: Value) {
        let index = self.content.len();
        self.push(
            "content_block_start",
            json!({ "index": index, "content_block": block }),
        );
        self.content.push(block);
        self.open = true;
    }

    /// Adds text to the open block of this type, or to a new one.
    fn add_text(&mut self, kind: &str, empty: Value, text: &str) {
        let name = match kind {
            "thinking" => "thinking",
            _ => "text",
        };
        let last = self.content.last().filter(|_| self.open);
        if last.is_none_or(|block| block["type"] != kind) {
            self.close_block();
            self.open_block(empty);
        }
        if let Some(block) = self.content.last_mut() {
            let whole = block[name].as_str().unwrap_or_default().to_owned() + text;
            block[name] = whole.into();
        }
        let mut delta = json!({ "type": format!("{kind}_delta") });
        delta[name] = text.into();
        self.delta(delta);
    }

    fn begin_call(&mut self, id: &str, name: &str) {
        self.close_block();
        self.open_block(json!({ "type": "tool_use", "id": id, "name": name, "input": {} }));
    }

    /// Adds a part of a call's arguments, as JSON text.
    fn add_input(&mut self, text: &str) {
        self.delta(json!({ "type": "input_json_delta", "partial_json": text }));
    }

    fn delta(&mut self, delta: Value) {
        let index = self.content.len() - 1;
        self.push(
            "content_block_delta",
            json!({ "index": index, "delta": delta }),
        );
    }

    fn close_block(&mut self) {
        if std::mem::replace(&mut self.open, false) {
            let index = self.content.len() - 1;
            if self.content[index]["type"] == "thinking" {
                self.delta(json!({ "type": "signature_delta", "signature": "" }));
            }
            self.push("content_block_stop", json!({ "index": index }));
        }
    }
}

impl AnswerFormat for MessageAnswer {
    fn ready(&mut self) -> &mut VecDeque<Frame> {
        &mut self.ready
    }

    fn event(&mut self, event: ChatEvent) {
        match event {
            ChatEvent::Text { text, .. } => {
                self.add_text("text", json!({ "type": "text", "text": "" }), &text);
            }
            ChatEvent::Reasoning { text, .. } => {
                let empty = json!({ "type": "thinking", "thinking": "", "signature": "" });
                self.add_text("thinking", empty, &text);
            }
            ChatEvent::CallPiece { id, piece, .. } => {
                if let Some(name) = piece.name {
                    self.begin_call(&id, &name);
                }
                if !piece.arguments.is_empty() {
                    self.add_input(&piece.arguments);
                }
            }
            ChatEvent::Call {
                id, call, streamed, ..
            } => {
                if !streamed {
                    self.begin_call(&id, &call.name);
                    self.add_input(&call.arguments);
                }
                if let Some(last) = self.content.last_mut() {
                    *last = call_block(&id, &call);
                }
                self.close_block();
            }
            ChatEvent::End { called, output, .. } => {
                if self.content.is_empty() {
                    self.open_block(json!({ "type": "text", "text": "" }));
                }
                self.close_block();
                self.message["stop_reason"] = stop_reason(called, &output).into();
                self.message["stop_sequence"] = output.stop_string.into();
                self.message["usage"]["output_tokens"] = output.tokens.len().into();
                let delta = json!({
                    "delta": {
                        "stop_reason": self.message["stop_reason"],
                        "stop_sequence": self.message["stop_sequence"],
                    },
                    "usage": { "output_tokens": output.tokens.len() },
                });
                self.push("message_delta", delta);
                self.push("message_stop", json!({}));
            }
            ChatEvent::Started { .. } | ChatEvent::Progress { .. } | ChatEvent::Round { .. } => {}
            ChatEvent::Failed(error) => {
                let kind = error_kind(error.status);
                let error = json!({ "type": kind, "message": error.message });
                self.push("error", json!({ "error": error }));
            }
        }
    }

    fn whole(mut self) -> Value {
        self.message["content"] = self.content.into();
        self.message
    }
}
