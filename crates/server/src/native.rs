//! `POST /completion`: continued texts in the shape of llama.cpp's server.

use crate::answer::{cache_object, timings};
use crate::app::App;
use crate::body::{Body, Int};
use crate::chat::{self, PreparedAnswer, token_limit};
use crate::chat_answer::ChatEvent;
use crate::constraint::{OutputFormat, ToolChoice};
use crate::error::ApiError;
use crate::generation::{GenerationRequest, StreamDetails};
use crate::prompts::{self, Prompts};
use crate::registry::LoadedModel;
use crate::sampling;
use crate::sse::{AnswerFormat, Frame};
use crate::token_clock::TokenClock;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use kvark::engine::{CacheReport, RequestOutput, TokenLogprobs};
use kvark::generate::FinishReason;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::Arc;

/// Parameters that cannot change the output here, besides those of chats.
pub(crate) const IGNORED: &[&str] = &["backend_sampling", "n_cache_reuse", "n_discard", "n_keep"];

/// Parameters that would change it.
const UNSUPPORTED: &[&str] = &["lora", "n_indent", "t_max_predict_ms"];

/// The parameters of a completion, besides those of all generations.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct NativeRequest {
    /// A text or token ids, or a list of prompts, each of which is answered
    #[schemars(with = "Prompts")]
    prompt: Value,
    /// Most tokens of the answer; -1 for no limit
    n_predict: Option<Int<-1>>,
    /// The same
    max_tokens: Option<Int<-1>>,
}

/// The parameters of llama.cpp's shape.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct NativeOptions {
    /// Log-probabilities, with those of this many tokens; 0 for none
    n_probs: Option<Int<0, 20>>,
    /// The same
    logprobs: Option<Int<0, 20>>,
    /// Return the ids of the generated tokens
    #[serde(default)]
    return_tokens: bool,
    /// The fields of the answer that are wanted, such as generation_settings/n_predict
    #[serde(default)]
    response_fields: Vec<String>,
    /// Only false: probabilities are those before the sampler
    #[serde(default)]
    post_sampling_probs: bool,
}

/// The prompts of a request, with their texts.
pub(crate) struct NativePrompts {
    pub(crate) prompts: Vec<(String, Vec<u32>)>,
    /// Whether the answer is a list.
    pub(crate) is_list: bool,
}

/// The handler.
pub(crate) async fn create(State(app): State<Arc<App>>, body: Bytes) -> Result<Response, ApiError> {
    let mut body = Body::parse(&body)?;
    let request: NativeRequest = body.read()?;
    let options: NativeOptions = body.read()?;
    let generation: GenerationRequest = body.read()?;
    let read = move |model: &LoadedModel| {
        let found = prompts::read(model, request.prompt)?;
        let prompts: Vec<_> = found.into_iter().map(|it| (it.text, it.tokens)).collect();
        Ok(NativePrompts {
            is_list: prompts.len() > 1,
            prompts,
        })
    };
    let most = request.n_predict.or(request.max_tokens);
    respond(app, body, (generation, options, most), read).await
}

/// Answers prompts.
pub(crate) async fn respond(
    app: Arc<App>,
    mut body: Body,
    (mut generation, options, most): (GenerationRequest, NativeOptions, Option<Int<-1>>),
    read: impl FnOnce(&LoadedModel) -> Result<NativePrompts, ApiError> + Send + 'static,
) -> Result<Response, ApiError> {
    if options.post_sampling_probs {
        return Err(ApiError::unsupported("post_sampling_probs"));
    }
    let model = app.model(generation.model.take()).await?;
    let format = OutputFormat::read(&mut generation, &ToolChoice::Auto, &[])?;
    let most = match most {
        Some(Int(0)) => Some(0),
        most => token_limit("n_predict", most)?,
    };
    let details = generation.stream_details();
    let parameters = generation.parameters(&mut body, (&model.model, &app.options), most)?;
    let ignored = [IGNORED, chat::IGNORED].concat();
    let warnings = body.finish(&ignored, UNSUPPORTED, app.options.lenient)?;
    let asked = model.clone();
    let NativePrompts { prompts, is_list } = app.blocking(move |_| read(&asked)).await?;
    let (texts, tokens): (Vec<String>, Vec<Vec<u32>>) = prompts.into_iter().unzip();
    let logprobs = options.n_probs.or(options.logprobs).map(Int::size);
    let prepared = PreparedAnswer {
        logprobs: logprobs.filter(|n| *n > 0),
        stream: generation.stream,
        warnings,
        ..PreparedAnswer::of_texts(model, tokens, parameters, format)
    };
    let format = |prepared: &PreparedAnswer, report: &CacheReport| {
        let choices = prepared.parameters.choices;
        let answer = |index: usize| NativeText {
            prompt: texts[index / choices].clone(),
            ..NativeText::default()
        };
        NativeAnswer {
            settings: settings(prepared),
            texts: (0..prepared.answers()).map(answer).collect(),
            extension: json!({ "cache": cache_object(report, &prepared.model, &prepared.tokens) }),
            model: prepared.model.clone(),
            is_list: is_list || choices > 1,
            stream: prepared.stream,
            clock: TokenClock::new(report),
            options,
            details,
            ready: VecDeque::new(),
        }
    };
    prepared.respond(&app, format).await
}

/// The settings that the answer is generated with.
fn settings(prepared: &PreparedAnswer) -> Value {
    let parameters = &prepared.parameters;
    let mut settings = sampling::values(&parameters.sampling);
    let limit = parameters.options.max_tokens.map_or(-1, |n| n as i64);
    for (name, value) in [
        ("n_predict", json!(limit)),
        ("max_tokens", json!(limit)),
        ("stop", json!(parameters.options.stop)),
        ("ignore_eos", json!(parameters.options.ignore_eos)),
        ("stream", json!(prepared.stream)),
        ("n_probs", json!(prepared.logprobs.unwrap_or(0))),
    ] {
        settings.insert(name.to_owned(), value);
    }
    settings.into()
}

/// A continued text.
#[derive(Default)]
struct NativeText {
    prompt: String,
    text: String,
    tokens: Vec<u32>,
    probabilities: Vec<Value>,
    /// The last object of a stream, which tells of the end.
    end: Value,
}

/// Continued texts in llama.cpp's shape.
struct NativeAnswer {
    model: Arc<LoadedModel>,
    settings: Value,
    texts: Vec<NativeText>,
    extension: Value,
    is_list: bool,
    stream: bool,
    options: NativeOptions,
    details: StreamDetails,
    clock: TokenClock,
    ready: VecDeque<Frame>,
}

impl NativeAnswer {
    fn push(&mut self, chunk: &Value) {
        self.ready.push_back((None, chunk.to_string()));
    }

    fn probability(&self, id: u32, logprobs: &TokenLogprobs) -> Value {
        let tokenizer = self.model.model.tokenizer().ok();
        let token = |id: u32, logprob: f32| {
            let bytes = tokenizer
                .and_then(|t| t.token_bytes(id))
                .unwrap_or_default();
            let text = String::from_utf8_lossy(bytes);
            json!({ "id": id, "token": text, "bytes": bytes, "logprob": logprob })
        };
        let top = logprobs.top.iter().map(|(id, p)| token(*id, *p));
        let mut object = token(id, logprobs.logprob);
        object["top_logprobs"] = top.collect();
        object
    }

    /// The last object of an answer.
    fn end(&self, index: usize, output: &RequestOutput) -> Value {
        let own = &self.texts[index];
        let stop = match (output.finish, &output.stop_string) {
            (FinishReason::Stop, None) => "eos",
            (FinishReason::Stop, Some(_)) => "word",
            _ => "limit",
        };
        let prompt = output.cache.prompt_tokens;
        let made = output.tokens.len();
        json!({
            "index": index,
            "content": if self.stream { "" } else { &*own.text },
            "tokens": if self.options.return_tokens && !self.stream { &own.tokens[..] } else { &[] },
            "id_slot": -1,
            "stop": true,
            "model": self.model.name,
            "tokens_predicted": made,
            "tokens_evaluated": prompt,
            "tokens_cached": (prompt + made).saturating_sub(1),
            "generation_settings": self.settings,
            "prompt": own.prompt,
            "has_new_line": own.text.contains('\n'),
            "truncated": prompt + made > self.model.engine().context(),
            "stop_type": stop,
            "stopping_word": output.stop_string.as_deref().unwrap_or_default(),
            "timings": timings(output),
            "kvark": self.extension,
        })
    }

    /// The wanted fields of an object.
    fn selected(&self, object: Value) -> Value {
        if self.options.response_fields.is_empty() {
            return object;
        }
        let fields = self.options.response_fields.iter().filter_map(|field| {
            let found = object.pointer(&format!("/{field}"))?;
            Some((field.clone(), found.clone()))
        });
        Value::Object(fields.collect())
    }
}

impl AnswerFormat for NativeAnswer {
    fn ready(&mut self) -> &mut VecDeque<Frame> {
        &mut self.ready
    }

    fn event(&mut self, event: ChatEvent) {
        match event {
            ChatEvent::Text {
                choice,
                text,
                token,
            } => {
                self.clock.count(usize::from(token.is_some()));
                let (id, logprobs) = token.unzip();
                let logprobs = id.zip(logprobs.flatten());
                let probability = logprobs.map(|(id, of)| self.probability(id, &of));
                let own = &mut self.texts[choice];
                own.text.push_str(&text);
                own.tokens.extend(id);
                own.probabilities.extend(probability.clone());
                let mut chunk = json!({
                    "index": choice,
                    "content": text,
                    "tokens": id.into_iter().collect::<Vec<u32>>(),
                    "stop": false,
                    "id_slot": -1,
                    "tokens_predicted": own.tokens.len(),
                });
                if let Some(probability) = probability {
                    chunk["completion_probabilities"] = json!([probability]);
                }
                if self.details.timings {
                    chunk["timings"] = self.clock.timings();
                }
                // A token that ends the answer has no text, and is told of at the end.
                if id.is_some() || !text.is_empty() {
                    self.push(&chunk);
                }
            }
            ChatEvent::Progress { choice, tokens } => {
                if self.details.progress && choice == 0 {
                    let progress = self.clock.progress(tokens);
                    self.push(&json!({
                        "index": choice,
                        "content": "",
                        "tokens": [],
                        "stop": false,
                        "prompt_progress": progress,
                    }));
                }
            }
            ChatEvent::End { choice, output, .. } => {
                let mut end = self.end(choice, &output);
                if !self.stream && !self.texts[choice].probabilities.is_empty() {
                    let all = std::mem::take(&mut self.texts[choice].probabilities);
                    end["completion_probabilities"] = all.into();
                }
                let end = self.selected(end);
                self.push(&end);
                self.texts[choice].end = end;
            }
            ChatEvent::Failed(error) => self.push(&error.body()),
            ChatEvent::Started { .. }
            | ChatEvent::Reasoning { .. }
            | ChatEvent::Round { .. }
            | ChatEvent::CallPiece { .. }
            | ChatEvent::Call { .. } => {}
        }
    }

    fn whole(self) -> Value {
        let is_list = self.is_list;
        let mut ends = self.texts.into_iter().map(|text| text.end);
        match is_list {
            true => ends.collect(),
            false => ends.next().unwrap_or_default(),
        }
    }
}
