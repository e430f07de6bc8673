//! `POST /v1/chat/completions`

use crate::access::Owner;
use crate::answer::{Answer, GenerationParameters, cache_header};
use crate::answer_store::History;
use crate::app::App;
use crate::body::{Body, Int, StringOrObject};
use crate::chat_answer::{ChatAnswer, ChatEvent};
use crate::chat_prompt::ChatPrompt;
use crate::constraint::{OutputFormat, ToolChoice};
use crate::conversation::Conversation;
use crate::conversations::ConversationTurn;
use crate::error::ApiError;
use crate::generation::{GenerationRequest, StreamOptions};
use crate::openai_answer::{OpenAiAnswer, Shape};
use crate::registry::LoadedModel;
use crate::sse::AnswerFormat;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use kvark::engine::{BranchCells, CacheReport, MovedTokens};
use kvark::text::{AnswerFormat as TextFormat, ReasoningBudget};
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::Error;
use serde_json::{Map, Value};
use std::sync::Arc;

/// OpenAI's parameters that cannot change the output of a local model.
pub(crate) const IGNORED: &[&str] = &[
    "id_slot",
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
    /// Most tokens of the answer; -1 for no limit
    max_tokens: Option<Int<-1>>,
    /// The same
    max_completion_tokens: Option<Int<-1>>,
    /// {"type": "content", "content": TEXT}: what the answer is expected to repeat, which makes it come sooner
    #[schemars(with = "Option<Map<String, Value>>")]
    prediction: Option<Value>,
    /// Told to the chat template as verbosity
    verbosity: Option<String>,
    /// Further variables of the chat template
    #[serde(default)]
    chat_template_kwargs: Map<String, Value>,
    /// Whether an assistant's message at the end begins the answer; true if left out
    continue_final_message: Option<bool>,
    /// vLLM's name of the opposite: true with continue_final_message is refused
    add_generation_prompt: Option<bool>,
    /// How much the model reasons, as its chat template has it; none for no reasoning. With a template that knows no efforts, low,
    /// medium and high are at most 1024, 8192 and 24576 tokens
    reasoning_effort: Option<String>,
}

/// Adds the variables of a template that a wanted effort sets.
pub(crate) fn set_effort(variables: &mut Map<String, Value>, effort: Option<String>) {
    let Some(effort) = effort else { return };
    if effort == "none" {
        variables
            .entry("enable_thinking")
            .or_insert(Value::Bool(false));
    }
    variables.entry("reasoning_effort").or_insert(effort.into());
}

/// The limit on reasoning that an effort stands for with a template that does not know efforts.
fn effort_budget(variables: &Map<String, Value>, source: &str) -> Option<usize> {
    match variables.get("reasoning_effort")?.as_str()? {
        "none" => Some(0),
        _ if source.contains("reasoning_effort") => None,
        "minimal" | "low" => Some(1024),
        "medium" => Some(8192),
        "high" => Some(24576),
        _ => None,
    }
}

/// A limit on tokens of an answer, for which -1 is none.
pub(crate) fn token_limit(name: &str, limit: Option<Int<-1>>) -> Result<Option<usize>, ApiError> {
    match limit {
        None | Some(Int(-1)) => Ok(None),
        Some(Int(0)) => Err(ApiError::parameter(
            name,
            "0 must be at least 1, or -1 for no limit",
        )),
        Some(limit) => Ok(Some(limit.size())),
    }
}

/// The text of a `prediction`.
fn prediction_text(prediction: Value) -> Result<String, ApiError> {
    let content = match prediction["type"].as_str() {
        Some("content") => &prediction["content"],
        _ => {
            return Err(ApiError::parameter(
                "prediction",
                "type must be \"content\"",
            ));
        }
    };
    let parts = content.as_array().into_iter().flatten();
    let joined: String = parts.filter_map(|part| part["text"].as_str()).collect();
    Ok(content.as_str().map_or(joined, str::to_owned))
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
    /// Most tokens of reasoning, after which it is closed; -1 for no limit
    reasoning_budget: Option<Int<-1>>,
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
    /// Whether an answer at the end of the messages is complete, so that another one follows.
    pub(crate) ends_answers: bool,
    /// Text that the answer is expected to repeat.
    pub(crate) prediction: Option<String>,
    /// A limit on reasoning of the endpoint's own.
    pub(crate) reasoning_budget: Option<usize>,
    /// Stop strings besides `stop`.
    pub(crate) stop: Vec<String>,
    /// Parameters that cannot change the output.
    pub(crate) ignored: &'static [&'static str],
    /// Parameters that would change the output.
    pub(crate) unsupported: &'static [&'static str],
}

/// An answer that is ready to be generated.
pub(crate) struct PreparedAnswer {
    pub(crate) model: Arc<LoadedModel>,
    pub(crate) prompt: ChatPrompt,
    pub(crate) tokens: Arc<Vec<u32>>,
    /// Further prompts, whose answers come after those of the first.
    pub(crate) more_prompts: Vec<Arc<Vec<u32>>>,
    /// How the model writes answers; `None` if the answer is no chat.
    pub(crate) answer_format: Option<TextFormat>,
    /// The beginning of the answer that the prompt ends with.
    pub(crate) opened: String,
    /// The messages of a plain chat, whose answers are stored.
    pub(crate) history: Option<History>,
    pub(crate) parameters: GenerationParameters,
    pub(crate) logprobs: Option<usize>,
    /// Log-probabilities of the prompt's tokens too, with so many of the most likely ones.
    pub(crate) prompt_logprobs: Option<usize>,
    pub(crate) format: OutputFormat,
    /// Whether the answer comes as server-sent events.
    pub(crate) stream: bool,
    pub(crate) warnings: Vec<String>,
    /// The conversation that the first choice continues, until the answer has it.
    pub(crate) turn: Option<ConversationTurn>,
    /// The cells of that conversation.
    pub(crate) cells: Option<BranchCells>,
    /// Whether rows may be reused that an approximate edit of the conversation has moved.
    pub(crate) approximate: bool,
    /// The tokens whose rows that edit moves, if no request has done it yet.
    pub(crate) moved: Option<Arc<MovedTokens>>,
}

impl PreparedAnswer {
    /// An answer that continues texts: no chat.
    pub(crate) fn of_texts(
        model: Arc<LoadedModel>,
        prompts: Vec<Vec<u32>>,
        parameters: GenerationParameters,
        format: OutputFormat,
    ) -> PreparedAnswer {
        let mut prompts = prompts.into_iter().map(Arc::new);
        PreparedAnswer {
            model,
            prompt: ChatPrompt::default(),
            tokens: prompts.next().unwrap_or_default(),
            more_prompts: prompts.collect(),
            answer_format: None,
            opened: String::new(),
            history: None,
            parameters,
            logprobs: None,
            prompt_logprobs: None,
            format,
            stream: false,
            warnings: vec![],
            turn: None,
            cells: None,
            approximate: false,
            moved: None,
        }
    }

    /// All prompts.
    pub(crate) fn prompts(&self) -> impl ExactSizeIterator<Item = &Arc<Vec<u32>>> {
        let count = 1 + self.more_prompts.len();
        (0..count).map(|index| match index.checked_sub(1) {
            None => &self.tokens,
            Some(index) => &self.more_prompts[index],
        })
    }

    /// The number of answers: each prompt has as many as were asked for.
    pub(crate) fn answers(&self) -> usize {
        self.prompts().len() * self.parameters.choices
    }

    /// Reads what all chat endpoints take, and renders and tokenises the chat. A conversation's messages and exact tokens
    /// come before those of the input.
    pub(crate) async fn new(
        app: &Arc<App>,
        owner: &Owner,
        mut body: Body,
        (mut generation, turn): (GenerationRequest, TurnRequest),
        input: ChatInput,
    ) -> Result<PreparedAnswer, ApiError> {
        let choice = ToolChoice::read(turn.tool_choice, &turn.tools)?;
        let tools = match choice {
            ToolChoice::None => vec![],
            _ => turn.tools,
        };
        let mut variables = app.options.template_variables.clone();
        variables.extend(input.variables);
        let mut prompt = ChatPrompt::new(input.messages, tools, variables)?;
        prompt.reasoning = app.options.reasoning;
        if turn.conversation.is_none() && !input.ends_answers {
            prompt.take_begun_answer()?;
        }
        app.options.volatile.apply(&mut prompt.messages);
        let format = OutputFormat::read(&mut generation, &choice, &prompt.tools)?;
        let conversation = turn.conversation.as_deref();
        let stated_budget = turn.reasoning_budget;
        let model = app.chat_model(generation.model.take(), conversation, owner);
        let model = model.await?;
        let mut parameters =
            generation.parameters(&mut body, (&model.model, &app.options), input.max_tokens)?;
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
        let moved = continued.as_ref().and_then(|it| it.moved.clone());
        let approximate = continued.as_ref().is_some_and(|it| it.approximate);
        let (prompt, tokens, begun, history) = {
            let (model, owner) = (model.clone(), owner.clone());
            let render = move |app: &App| {
                let mut history = None;
                let mut begun = None;
                // An empty conversation has no tokens to go on from: its messages are read as those of a plain chat.
                let begins = |it: &Conversation| !it.tokens.is_empty() || !it.messages.is_empty();
                let mut tokens = match continued.filter(begins) {
                    Some(it) => {
                        begun = Some(it.answer_start()).filter(|_| prompt.messages.is_empty());
                        let known = it.messages.iter().map(|turn| turn.message.clone());
                        let known: Vec<Value> = known.collect();
                        prompt.messages = [known, prompt.messages].concat();
                        prompt.continued_tokens(&model, &it)?
                    }
                    None => {
                        prompt.check_length(&model)?;
                        let found = app.answers.find(&owner, &model.name, &prompt);
                        history = Some(found.0);
                        let known = found.1.filter(|_| prompt.keeps_answers(&model));
                        let exact = known
                            .and_then(|(held, answer)| prompt.tokens_after(&model, &held, answer));
                        exact.map_or_else(|| prompt.tokens(&model), Ok)?
                    }
                };
                let before = prompt.append_begun(&model, &mut tokens)?;
                if before < tokens.len() {
                    // The answer's message is not the whole of it.
                    (begun, history) = (Some(before), None);
                }
                Ok((prompt, tokens, begun, history))
            };
            app.blocking(render).await?
        };
        let budget = match stated_budget {
            Some(Int(tokens)) => usize::try_from(tokens).ok(),
            None => input.reasoning_budget.or_else(|| {
                let template = model.model.chat_template().ok();
                let source = template.map_or("", |template| template.source_text());
                effort_budget(&prompt.variables, source).or(app.options.reasoning_budget)
            }),
        };
        if let Some(text) = input.prediction {
            parameters.predict(&model, &tokens, &text)?;
        }
        let answer_format = prompt.answer_format(&model);
        let mut opened = String::new();
        if let (Some(answer), Ok(tokenizer)) = (answer_format, model.model.tokenizer()) {
            parameters.options.shown = answer.control_tokens(tokenizer, !prompt.tools.is_empty());
            // A constrained answer begins with its content.
            if !format.is_constrained() {
                let start = begun.unwrap_or(tokens.len()).min(tokens.len());
                let (before, answered) = tokens.split_at(start);
                opened.push_str(&answer.reasoning.begun_by(tokenizer, before));
                opened.push_str(&tokenizer.decode(answered, true));
            }
            parameters.options.reasoning = budget.map(|tokens| ReasoningBudget {
                tokens,
                format: answer.reasoning,
                begun: opened.clone(),
            });
        }
        Ok(PreparedAnswer {
            answer_format,
            opened,
            history,
            model,
            prompt,
            tokens: Arc::new(tokens),
            more_prompts: vec![],
            parameters,
            logprobs: input.logprobs,
            prompt_logprobs: None,
            format,
            stream: generation.stream,
            warnings,
            turn,
            cells,
            approximate,
            moved,
        })
    }

    /// Generates the answer and states it in a format, whole or as a stream.
    pub(crate) async fn respond<F: AnswerFormat>(
        mut self,
        app: &Arc<App>,
        format: impl FnOnce(&PreparedAnswer, &CacheReport) -> F,
    ) -> Result<Response, ApiError> {
        let (answer, report) = Answer::start(app, &self).await?;
        // A request that was refused leaves its conversation as it was.
        let turn = self.turn.take();
        if let Some(turn) = &turn {
            turn.start(&self.tokens, &self.prompt.messages, answer.handles());
        }
        let mut answer = ChatAnswer::new(app, answer, &self, turn);
        let mut format = format(&self, &report);
        let header = [("x-kvark-cache", cache_header(&report))];
        if self.stream {
            return Ok((header, format.stream(answer)).into_response());
        }
        while let Some(event) = answer.next().await {
            if let ChatEvent::Failed(error) = event {
                return Err(error);
            }
            format.event(event);
            format.ready().clear();
        }
        Ok((header, Json(format.whole())).into_response())
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
    let most = match request.max_tokens {
        Some(_) => token_limit("max_tokens", request.max_tokens)?,
        None => token_limit("max_completion_tokens", request.max_completion_tokens)?,
    };
    let mut variables = request.chat_template_kwargs;
    set_effort(&mut variables, request.reasoning_effort);
    if let Some(verbosity) = request.verbosity {
        variables.entry("verbosity").or_insert(verbosity.into());
    }
    let prediction = request.prediction.map(prediction_text).transpose()?;
    let (goes_on, new) = (
        request.continue_final_message,
        request.add_generation_prompt,
    );
    if goes_on == Some(true) && new == Some(true) {
        let wrong = "cannot be true together with add_generation_prompt";
        return Err(ApiError::parameter("continue_final_message", wrong));
    }
    let input = ChatInput {
        messages,
        variables,
        max_tokens: most,
        logprobs,
        ends_answers: goes_on == Some(false) || new == Some(true),
        prediction,
        ignored: IGNORED,
        unsupported: UNSUPPORTED,
        ..ChatInput::default()
    };
    let details = generation.stream_details();
    let chat = PreparedAnswer::new(&app, &owner, body, (generation, turn), input).await?;
    let include_usage = StreamOptions::include_usage(request.stream_options);
    let format = |chat: &PreparedAnswer, report: &CacheReport| {
        OpenAiAnswer::new(
            &app,
            chat,
            report,
            Shape::Chat,
            details.shown(include_usage, conversation),
        )
    };
    chat.respond(&app, format).await
}
