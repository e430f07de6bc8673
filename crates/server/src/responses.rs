//! `POST /v1/responses`, OpenAI's newer chat interface.

use crate::access::Owner;
use crate::app::App;
use crate::body::{Body, Int, TextOrObjects};
use crate::chat::{ChatInput, PreparedAnswer, TurnRequest, set_effort};
use crate::chat_prompt::ChatPrompt;
use crate::error::ApiError;
use crate::generation::GenerationRequest;
use crate::response_answer::ResponseAnswer;
use crate::stored_responses::{self, ResponseInput, ResponseTurn};
use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use axum::{Extension, Json};
use kvark::engine::CacheReport;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::{HashMap, HashSet};
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
