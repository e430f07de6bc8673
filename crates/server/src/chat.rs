//! `POST /v1/chat/completions`

use crate::access::Owner;
use crate::answer::{
    Answer, GenerationParameters, Stage, Usage, cache_header, cache_object, finish_name, timings,
};
use crate::app::App;
use crate::body::{Body, Int, StringOrObject};
use crate::chat_answer::{ChatAnswer, ChatEvent};
use crate::chat_prompt::ChatPrompt;
use crate::constraint::{OutputFormat, ToolChoice};
use crate::conversations::ConversationTurn;
use crate::error::ApiError;
use crate::generation::{GenerationRequest, StreamOptions};
use crate::registry::LoadedModel;
use crate::sse;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use kvark::engine::{BranchCells, CacheReport};
use kvark::text::tools::ToolCall;
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::Error;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// OpenAI's parameters that cannot change the output of a local model.
pub(crate) const IGNORED: &[&str] = &[
    "metadata",
    "parallel_tool_calls",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
];

/// Parameters of OpenAI that would change the output.
const UNSUPPORTED: &[&str] = &[
    "audio",
    "function_call",
    "functions",
    "modalities",
    "prediction",
    "reasoning_effort",
    "verbosity",
    "web_search_options",
];

/// The parameters of a chat completion, besides those of all turns and generations.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct ChatRequest {
    /// The conversation, or what comes new to `conversation`
    #[schemars(with = "Vec<Map<String, Value>>", required)]
    messages: Option<Vec<Value>>,
    /// include_usage
    stream_options: Option<StreamOptions>,
    /// Return log-probabilities
    #[serde(default)]
    logprobs: bool,
    /// How many of the most likely tokens have log-probabilities
    top_logprobs: Option<Int<0, 20>>,
    /// llama.cpp's name: log-probabilities, with this many of the most likely tokens
    n_probs: Option<Int<0, 20>>,
    /// Most tokens of the answer
    max_tokens: Option<Int<1>>,
    /// The same
    max_completion_tokens: Option<Int<1>>,
    /// Further variables of the chat template
    #[serde(default)]
    chat_template_kwargs: Map<String, Value>,
}

/// The parameters of a turn, which all chat endpoints take.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct TurnRequest {
    /// Functions that the model may call
    #[serde(default)]
    #[schemars(with = "Vec<Map<String, Value>>")]
    pub(crate) tools: Vec<Value>,
    /// auto, none, required, or one function
    #[schemars(with = "Option<StringOrObject>")]
    tool_choice: Option<Value>,
    /// The conversation that goes on, with its exact tokens
    pub(crate) conversation: Option<String>,
}

/// What an endpoint has read of a chat, in the shape of chat completions.
#[derive(Default)]
pub(crate) struct ChatInput {
    pub(crate) messages: Vec<Value>,
    /// Further variables of the template.
    pub(crate) variables: Map<String, Value>,
    pub(crate) max_tokens: Option<usize>,
    pub(crate) logprobs: Option<usize>,
    /// Stop strings besides `stop`.
    pub(crate) stop: Vec<String>,
    /// Parameters that cannot change the output.
    pub(crate) ignored: &'static [&'static str],
    /// Parameters that would change the output.
    pub(crate) unsupported: &'static [&'static str],
}

/// A chat that is ready to be generated.
pub(crate) struct PreparedChat {
    pub(crate) model: Arc<LoadedModel>,
    pub(crate) prompt: ChatPrompt,
    pub(crate) tokens: Arc<Vec<u32>>,
    pub(crate) parameters: GenerationParameters,
    logprobs: Option<usize>,
    format: OutputFormat,
    /// Whether the answer comes as server-sent events.
    pub(crate) stream: bool,
    pub(crate) warnings: Vec<String>,
    /// The conversation that the first choice continues, until the answer has it.
    turn: Option<ConversationTurn>,
    /// The cells of that conversation.
    cells: Option<BranchCells>,
}

impl PreparedChat {
    /// Reads what all chat endpoints take, and renders and tokenises the chat. A conversation's messages and exact tokens
    /// come before those of the input.
    pub(crate) async fn new(
        app: &Arc<App>,
        owner: &Owner,
        mut body: Body,
        (mut generation, turn): (GenerationRequest, TurnRequest),
        input: ChatInput,
    ) -> Result<PreparedChat, ApiError> {
        let choice = ToolChoice::read(turn.tool_choice, &turn.tools)?;
        let tools = match choice {
            ToolChoice::None => vec![],
            _ => turn.tools,
        };
        let mut prompt = ChatPrompt::new(input.messages, tools, input.variables)?;
        let format = OutputFormat::read(&mut generation, &choice, &prompt.tools)?;
        let conversation = turn.conversation.as_deref();
        let model = app.chat_model(generation.model.take(), conversation, owner);
        let model = model.await?;
        let mut parameters = generation.parameters(&mut body, &model.model, input.max_tokens)?;
        parameters.options.stop.extend(input.stop);
        let warnings = body.finish(input.ignored, input.unsupported, app.options.lenient)?;
        let continued = match conversation {
            Some(id) => Some(ConversationTurn::begin(app, id, owner).await?),
            None if prompt.messages.is_empty() => {
                return Err(ApiError::parameter("messages", "must not be empty"));
            }
            None => None,
        };
        let (turn, continued) = continued.unzip();
        let cells = continued.as_ref().map(|it| it.cells.clone());
        let (prompt, tokens) = {
            let model = model.clone();
            let render = move |_: &App| {
                let tokens = match continued {
                    Some(it) => {
                        let known = it.messages.iter().map(|turn| turn.message.clone());
                        let known: Vec<Value> = known.collect();
                        prompt.messages = [known, prompt.messages].concat();
                        prompt.continued_tokens(&model, &it)?
                    }
                    None => prompt.tokens(&model)?,
                };
                Ok((prompt, tokens))
            };
            app.blocking(render).await?
        };
        Ok(PreparedChat {
            model,
            prompt,
            tokens: Arc::new(tokens),
            parameters,
            logprobs: input.logprobs,
            format,
            stream: generation.stream,
            warnings,
            turn,
            cells,
        })
    }

    /// Starts the generations, and waits until the first one has a sequence.
    pub(crate) async fn start(
        &mut self,
        app: &Arc<App>,
    ) -> Result<(ChatAnswer, CacheReport), ApiError> {
        let choices = self.parameters.choices;
        Answer::check_choices(&self.model, choices)?;
        let constraints = self.format.constraints(app, &self.model, choices).await?;
        let mut answer = Answer::start(
            &self.model,
            &self.tokens,
            &self.parameters,
            self.logprobs,
            app.options.timeout,
            constraints,
            self.cells.clone(),
        )?;
        let report = answer.cache_report().await?;
        // A request that was refused leaves its conversation as it was.
        let turn = self.turn.take();
        if let Some(turn) = &turn {
            turn.start(&self.tokens, &self.prompt.messages, answer.handles());
        }
        let tools = (self.prompt.tool_format(&self.model), &self.prompt.tools[..]);
        let calls = app.new_id("call");
        let answer = ChatAnswer::new(answer, choices, self.model.clone(), tools, turn, calls);
        Ok((answer, report))
    }
}

/// The handler.
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    Extension(owner): Extension<Owner>,
    body: Bytes,
) -> Result<Response, ApiError> {
    let mut body = Body::parse(&body)?;
    let request: ChatRequest = body.read()?;
    let generation: GenerationRequest = body.read()?;
    let turn: TurnRequest = body.read()?;
    let conversation = turn.conversation.clone();
    let messages = match request.messages {
        None if conversation.is_none() => return Err(ApiError::missing_field("messages")),
        messages => messages.unwrap_or_default(),
    };
    let top = request.top_logprobs.map_or(0, Int::size);
    let logprobs = match (request.n_probs, request.logprobs) {
        (_, true) => Some(top),
        (Some(n), false) => Some(n.size().max(top)).filter(|n| *n > 0),
        (None, false) if top > 0 => {
            return Err(ApiError::parameter("top_logprobs", "needs logprobs: true"));
        }
        (None, false) => None,
    };
    let most = request.max_tokens.or(request.max_completion_tokens);
    let input = ChatInput {
        messages,
        variables: request.chat_template_kwargs,
        max_tokens: most.map(Int::size),
        logprobs,
        ignored: IGNORED,
        unsupported: UNSUPPORTED,
        ..ChatInput::default()
    };
    let mut chat = PreparedChat::new(&app, &owner, body, (generation, turn), input).await?;
    let (answer, report) = chat.start(&app).await?;
    let head = Head {
        id: app.new_id("chatcmpl"),
        created: jiff::Timestamp::now().as_second(),
        model: chat.model.name.clone(),
        cache: cache_object(&report, &chat.model, &chat.tokens),
        warnings: std::mem::take(&mut chat.warnings),
        conversation,
    };
    let include_usage = StreamOptions::include_usage(request.stream_options);
    let header = [("x-kvark-cache", cache_header(&report))];
    let choices = chat.parameters.choices;
    let wants_logprobs = chat.logprobs.is_some();
    Ok(match chat.stream {
        true => {
            let stream = Stream::new(answer, head, choices, include_usage);
            (header, sse::response(stream, Stream::next)).into_response()
        }
        false => {
            let body = collect(answer, &head, choices, wants_logprobs).await?;
            (header, Json(body)).into_response()
        }
    })
}

/// What every object of a response begins with.
struct Head {
    id: String,
    created: i64,
    model: String,
    cache: Value,
    warnings: Vec<String>,
    conversation: Option<String>,
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
async fn collect(
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
struct Stream {
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

impl Stream {
    fn new(answer: ChatAnswer, head: Head, choices: usize, include_usage: bool) -> Stream {
        Stream {
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
    async fn next(mut self) -> Option<(String, Stream)> {
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
                Stage::Usage => {
                    let mut chunk = self.head.object("chat.completion.chunk", json!([]));
                    chunk["usage"] = self.usage.openai();
                    self.stage = Stage::Done;
                    return Some((chunk.to_string(), self));
                }
                Stage::Done => {
                    self.stage = Stage::Ended;
                    return Some(("[DONE]".to_owned(), self));
                }
                Stage::Ended => return None,
            }
        }
    }
}
