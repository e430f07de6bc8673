//! `POST /v1/completions`

use crate::answer::{Answer, Stage, Usage, cache_header, cache_object, finish_name, timings};
use crate::app::App;
use crate::body::{Body, Int};
use crate::chat::IGNORED;
use crate::chat_prompt::plain_tokens;
use crate::constraint::{OutputFormat, ToolChoice};
use crate::error::ApiError;
use crate::generation::{GenerationRequest, StreamOptions};
use crate::registry::LoadedModel;
use crate::sse;
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use kvark::engine::{RequestEvent, RequestOutput, TokenLogprobs};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// OpenAI's default length of a completion.
const DEFAULT_TOKENS: usize = 16;

/// The parameters of a completion, besides those of all generations.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct CompletionRequest {
    /// A text or token ids
    prompt: Prompt,
    /// Most tokens of the answer [16]
    max_tokens: Option<Int<0>>,
    /// The same
    n_predict: Option<Int<0>>,
    /// Return the prompt before the text
    #[serde(default)]
    echo: bool,
    /// Log-probabilities of this many tokens
    logprobs: Option<Int<0, 20>>,
    /// llama.cpp's name of `logprobs`; 0 for none
    n_probs: Option<Int<0, 20>>,
    /// include_usage
    stream_options: Option<StreamOptions>,
}

/// One prompt, alone or in a list.
#[derive(Deserialize, JsonSchema)]
#[serde(untagged, expecting = "must be a string or a list of token ids")]
#[schemars(inline)]
enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
    Texts(Vec<String>),
    Lists(Vec<Vec<u32>>),
}

/// The handler.
pub(crate) async fn create(State(app): State<Arc<App>>, body: Bytes) -> Result<Response, ApiError> {
    let mut body = Body::parse(&body)?;
    let request: CompletionRequest = body.read()?;
    let mut generation: GenerationRequest = body.read()?;
    let model = app.model(generation.model.take()).await?;
    let logprobs = request.logprobs.or(request.n_probs.filter(|n| n.0 > 0));
    let logprobs = logprobs.map(Int::size);
    let format = OutputFormat::read(&mut generation, &ToolChoice::Auto, &[])?;
    let most = request.n_predict.or(request.max_tokens);
    let most = Some(most.map_or(DEFAULT_TOKENS, Int::size));
    let parameters = generation.parameters(&mut body, &model.model, most)?;
    let warnings = body.finish(IGNORED, &["best_of", "suffix"], app.options.lenient)?;
    let (prompt, tokens) = {
        let model = model.clone();
        app.blocking(move |_| read_prompt(&model, request.prompt))
            .await?
    };
    Answer::check_choices(&model, parameters.choices)?;
    let constraints = format.constraints(&app, &model, parameters.choices);
    let constraints = constraints.await?;
    let timeout = app.options.timeout;
    let mut answer = Answer::start(
        &model,
        &tokens,
        &parameters,
        logprobs,
        timeout,
        constraints,
        None,
    )?;
    let report = answer.cache_report().await?;
    let mut kvark = json!({ "cache": cache_object(&report, &model, &tokens) });
    if !warnings.is_empty() {
        kvark["warnings"] = warnings.into();
    }
    let state = Stream {
        answer,
        id: app.new_id("cmpl"),
        created: jiff::Timestamp::now().as_second(),
        model,
        kvark,
        echo: request.echo.then_some(prompt),
        choices: parameters.choices,
        running: parameters.choices,
        offsets: vec![0; parameters.choices],
        usage: Usage::default(),
        include_usage: StreamOptions::include_usage(request.stream_options),
        stage: Stage::Chunks,
    };
    let header = [("x-kvark-cache", cache_header(&report))];
    Ok(match generation.stream {
        true => (header, sse::response(state, Stream::next)).into_response(),
        false => (header, Json(state.collect().await?)).into_response(),
    })
}

/// The text and the tokens of a prompt.
fn read_prompt(model: &LoadedModel, prompt: Prompt) -> Result<(String, Vec<u32>), ApiError> {
    let one = "must be one prompt";
    match prompt {
        Prompt::Text(text) => {
            model.check_length(text.len())?;
            let tokens = plain_tokens(model, &text)?;
            Ok((text, tokens))
        }
        Prompt::Tokens(ids) => {
            let text = model.model.tokenizer().map(|t| t.decode(&ids, true));
            Ok((text.unwrap_or_default(), ids))
        }
        Prompt::Texts(texts) => match <[String; 1]>::try_from(texts) {
            Ok([text]) => read_prompt(model, Prompt::Text(text)),
            Err(_) => Err(ApiError::parameter("prompt", one)),
        },
        Prompt::Lists(lists) => match <[Vec<u32>; 1]>::try_from(lists) {
            Ok([ids]) => read_prompt(model, Prompt::Tokens(ids)),
            Err(_) => Err(ApiError::parameter("prompt", one)),
        },
    }
}

/// The state of an answer.
struct Stream {
    answer: Answer,
    id: String,
    created: i64,
    model: Arc<LoadedModel>,
    kvark: Value,
    /// The prompt, if it comes back before the text.
    echo: Option<String>,
    choices: usize,
    running: usize,
    /// For each choice, the bytes of text so far.
    offsets: Vec<usize>,
    usage: Usage,
    include_usage: bool,
    stage: Stage,
}

impl Stream {
    fn object(&self, choices: Value) -> Value {
        json!({
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model.name,
            "choices": choices,
        })
    }

    fn chunk(&self, choice: usize, text: &str, logprobs: Value, finish: Value) -> Value {
        self.object(json!([{
            "index": choice,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": finish,
        }]))
    }

    /// Log-probabilities in the shape of this endpoint.
    fn logprobs(&self, id: u32, offset: usize, logprobs: &TokenLogprobs) -> Value {
        let text = |id: u32| match self.model.model.tokenizer() {
            Ok(tokenizer) => tokenizer.decode(&[id], true),
            Err(_) => format!("token_{id}"),
        };
        let top = logprobs.top.iter();
        let top: Map<String, Value> = top.map(|(id, p)| (text(*id), json!(p))).collect();
        json!({
            "tokens": [text(id)],
            "token_logprobs": [logprobs.logprob],
            "top_logprobs": [top],
            "text_offset": [offset],
        })
    }

    async fn next(mut self) -> Option<(String, Stream)> {
        loop {
            if !matches!(self.stage, Stage::Chunks) {
                let (text, stage) = self.stage.last(|| {
                    let mut chunk = self.object(json!([]));
                    chunk["usage"] = self.usage.openai();
                    chunk
                })?;
                self.stage = stage;
                return Some((text, self));
            }
            let Some((choice, event)) = self.answer.next().await else {
                self.stage = Stage::Done;
                continue;
            };
            let chunk = match event {
                RequestEvent::Started(_) => {
                    let prompt = self.echo.clone().unwrap_or_default();
                    let mut chunk = self.chunk(choice, &prompt, Value::Null, Value::Null);
                    chunk["kvark"] = self.kvark.clone();
                    chunk
                }
                RequestEvent::PromptProgress(_) | RequestEvent::Round(_) => continue,
                RequestEvent::Token(token) => {
                    let offset = self.offsets[choice];
                    self.offsets[choice] += token.text.len();
                    let logprobs = token.logprobs.as_ref();
                    let logprobs = logprobs.map(|l| self.logprobs(token.id, offset, l));
                    if token.text.is_empty() && logprobs.is_none() {
                        continue;
                    }
                    self.chunk(choice, &token.text, logprobs.into(), Value::Null)
                }
                RequestEvent::Finished(output) => {
                    self.usage.add(&output);
                    self.running -= 1;
                    if self.running == 0 {
                        self.stage = Stage::after_chunks(self.include_usage);
                    }
                    let finish = finish_name(output.finish).into();
                    let mut chunk = self.chunk(choice, &output.rest, Value::Null, finish);
                    chunk["timings"] = timings(&output);
                    chunk
                }
                RequestEvent::Failed(error) => {
                    self.stage = Stage::Done;
                    ApiError::from(error).body()
                }
            };
            return Some((chunk.to_string(), self));
        }
    }

    /// The whole answer as one object.
    async fn collect(mut self) -> Result<Value, ApiError> {
        let mut texts = vec![self.echo.clone().unwrap_or_default(); self.choices];
        let mut lists: Vec<Value> = vec![Value::Null; self.choices];
        let mut ends: Vec<Option<Box<RequestOutput>>> = (0..self.choices).map(|_| None).collect();
        while let Some((choice, event)) = self.answer.next().await {
            match event {
                RequestEvent::Started(_)
                | RequestEvent::PromptProgress(_)
                | RequestEvent::Round(_) => {}
                RequestEvent::Token(token) => {
                    if let Some(logprobs) = &token.logprobs {
                        let new = self.logprobs(token.id, texts[choice].len(), logprobs);
                        append_lists(&mut lists[choice], new);
                    }
                    texts[choice].push_str(&token.text);
                }
                RequestEvent::Finished(output) => {
                    texts[choice].push_str(&output.rest);
                    ends[choice] = Some(output);
                }
                RequestEvent::Failed(error) => return Err(error.into()),
            }
        }
        let mut times = Value::Null;
        let mut choices = vec![];
        for (index, end) in ends.iter().enumerate() {
            if let Some(output) = end {
                self.usage.add(output);
                times = timings(output);
            }
            choices.push(json!({
                "index": index,
                "text": texts[index],
                "logprobs": lists[index],
                "finish_reason": end.as_ref().map(|output| finish_name(output.finish)),
            }));
        }
        let mut object = self.object(choices.into());
        object["usage"] = self.usage.openai();
        object["timings"] = times;
        object["kvark"] = self.kvark.clone();
        Ok(object)
    }
}

/// Appends the lists of one object to those of another.
fn append_lists(all: &mut Value, new: Value) {
    let (Value::Object(all), Value::Object(new)) = (&mut *all, &new) else {
        *all = new;
        return;
    };
    for (name, items) in new {
        if let (Some(list), Some(items)) = (
            all.get_mut(name).and_then(Value::as_array_mut),
            items.as_array(),
        ) {
            list.extend(items.iter().cloned());
        }
    }
}
