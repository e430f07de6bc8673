//! From the parameters of a request to running generations, and their events.

use crate::app::App;
use crate::chat::PreparedAnswer;
use crate::error::ApiError;
use crate::registry::LoadedModel;
use kvark::engine::{CacheReport, Request, RequestEvent, RequestHandle, RequestOutput};
use kvark::generate::{FinishReason, GenerateOptions, SamplerOptions};
use kvark::speculative::{DepthStats, SpecOptions, SpecStats, SpecType};
use kvark::text::EncodeOptions;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// The parameters that all generating endpoints share.
#[derive(Clone, Debug)]
pub(crate) struct GenerationParameters {
    pub(crate) sampling: SamplerOptions,
    pub(crate) options: GenerateOptions,
    pub(crate) choices: usize,
    pub(crate) priority: i32,
    pub(crate) cache_prompt: bool,
    /// Speculative decoding; off unless the request asks for it.
    pub(crate) speculation: Option<SpecOptions>,
    pub(crate) timeout: Option<Duration>,
}

impl GenerationParameters {
    /// Speculates with a text that the answer is expected to repeat, behind the end of its prompt.
    pub(crate) fn predict(
        &mut self,
        model: &LoadedModel,
        prompt: &[u32],
        text: &str,
    ) -> Result<(), ApiError> {
        let end = prompt.len().saturating_sub(PREDICTION_CONTEXT);
        let tokens = model
            .model
            .tokenizer()?
            .encode(text, EncodeOptions::default());
        let speculation = self.speculation.get_or_insert_with(|| SpecOptions {
            kind: SpecType::Ngram,
            ..SpecOptions::default()
        });
        speculation.prediction = [&prompt[end..], &tokens].concat();
        Ok(())
    }
}

/// Tokens of a prompt's end that stand before a prediction, so that its beginning follows from them.
const PREDICTION_CONTEXT: usize = 4;

/// The counts of speculation as a JSON object, for an answer and for `--json`.
pub fn spec_object(stats: &SpecStats) -> Value {
    let depth = |d: &DepthStats| json!({ "drafted": d.drafted, "accepted": d.accepted });
    json!({
        "drafted": stats.drafted,
        "accepted": stats.accepted,
        "rounds": stats.rounds,
        "mean_accepted_length": stats.mean_accepted_length(),
        "by_depth": stats.by_depth.iter().map(depth).collect::<Vec<_>>(),
        "propose_ms": stats.propose_time.as_secs_f64() * 1e3,
        "verify_ms": stats.verify_time.as_secs_f64() * 1e3,
    })
}

/// The generations of a request, one for each choice. Dropping it cancels them.
pub(crate) struct Answer {
    events: UnboundedReceiver<(usize, RequestEvent)>,
    handles: Vec<RequestHandle>,
    /// Events that were read ahead.
    ahead: VecDeque<(usize, RequestEvent)>,
    /// The name of the model, for the log.
    model: String,
    /// The generations that have not ended.
    running: usize,
}

impl Answer {
    /// Submits one request for each choice, with its constraint, and waits until the first one has a sequence.
    pub(crate) async fn start(
        app: &Arc<App>,
        prepared: &PreparedAnswer,
    ) -> Result<(Answer, CacheReport), ApiError> {
        let (model, parameters) = (&prepared.model, &prepared.parameters);
        let most = model.engine().max_requests();
        let choices = parameters.choices;
        if prepared.answers() > most {
            let wrong = format!("the server runs and queues at most {most} answers");
            return Err(ApiError::parameter("n", wrong));
        }
        let constraints = prepared.format.constraints(app, model, prepared.answers());
        let constraints = constraints.await?;
        let (sender, events) = unbounded_channel();
        let timeout = app.options.timeout;
        let timeout = parameters.timeout.map_or(timeout, |own| own.min(timeout));
        let mut answer = Answer {
            events,
            handles: vec![],
            ahead: VecDeque::new(),
            model: model.name.clone(),
            running: constraints.len(),
        };
        let prompts = prepared
            .prompts()
            .flat_map(|prompt| std::iter::repeat_n(prompt, choices));
        for ((choice, constraint), prompt) in constraints.into_iter().enumerate().zip(prompts) {
            let moved = prepared.moved.as_deref().cloned();
            let request = Request {
                prompt: prompt.to_vec(),
                message_ends: model.model.message_ends(prompt),
                sampling: SamplerOptions {
                    seed: parameters
                        .sampling
                        .seed
                        .wrapping_add((choice % choices) as u64),
                    ..parameters.sampling.clone()
                },
                options: parameters.options.clone(),
                logprobs: prepared.logprobs,
                prompt_logprobs: prepared.prompt_logprobs,
                priority: parameters.priority,
                deadline: Some(Instant::now() + timeout),
                constraint,
                cache_prompt: parameters.cache_prompt,
                approximate: prepared.approximate,
                moved: moved.filter(|moved| moved.are_in(prompt)),
                branch: prepared.cells.clone().filter(|_| choice == 0),
                speculation: parameters.speculation.clone(),
            };
            let sender = sender.clone();
            let sink = Box::new(move |event| sender.send((choice, event)).is_ok());
            // An early return drops `answer`, which cancels the choices that were submitted.
            answer.handles.push(model.engine().submit(request, sink)?);
        }
        drop(sender);
        let report = answer.cache_report().await?;
        Ok((answer, report))
    }

    /// The handles of the generations.
    pub(crate) fn handles(&self) -> &[RequestHandle] {
        &self.handles
    }

    /// The next event of any choice; `None` after the last one.
    pub(crate) async fn next(&mut self) -> Option<(usize, RequestEvent)> {
        let event = match self.ahead.pop_front() {
            Some(event) => Some(event),
            None => self.events.recv().await,
        };
        match &event {
            Some((choice, RequestEvent::Finished(output))) => self.log_end(*choice, output),
            Some((choice, RequestEvent::Failed(error))) => {
                self.running -= 1;
                tracing::warn!(model = self.model, choice, %error, "failed");
            }
            _ => {}
        }
        event
    }

    fn log_end(&mut self, choice: usize, output: &RequestOutput) {
        self.running -= 1;
        let timings = &output.timings;
        tracing::info!(
            model = self.model,
            choice,
            finish = output.finish.name(),
            prompt = output.cache.prompt_tokens,
            cached = output.cache.cached_tokens,
            generated = output.tokens.len(),
            queue_ms = timings.queue_time.as_millis() as u64,
            prompt_ms = timings.prompt_time.as_millis() as u64,
            decode_ms = timings.decode_time.as_millis() as u64,
            "finished"
        );
    }

    /// Waits until the first choice has a sequence, and returns what it reused.
    async fn cache_report(&mut self) -> Result<CacheReport, ApiError> {
        loop {
            match self.events.recv().await {
                Some((0, RequestEvent::Started(report))) => {
                    tracing::info!(
                        model = self.model,
                        prompt = report.prompt_tokens,
                        cached = report.cached_tokens,
                        source = report.source.name(),
                        miss = report.miss.as_ref().map(|miss| miss.reason.name()),
                        at = report.miss.as_ref().map(|miss| miss.position),
                        "started"
                    );
                    let event = RequestEvent::Started(report.clone());
                    self.ahead.push_back((0, event));
                    return Ok(report);
                }
                Some((_, RequestEvent::Failed(error))) => return Err(error.into()),
                Some((0, RequestEvent::Finished(output))) => {
                    let report = output.cache.clone();
                    let event = RequestEvent::Finished(output);
                    self.ahead.push_back((0, event));
                    return Ok(report);
                }
                Some(other) => self.ahead.push_back(other),
                None => {
                    return Err(ApiError::status(
                        axum::http::StatusCode::INTERNAL_SERVER_ERROR,
                        "the engine ended",
                    ));
                }
            }
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.handles.iter().for_each(RequestHandle::cancel);
        if self.running > 0 && !self.handles.is_empty() {
            tracing::info!(model = self.model, choices = self.running, "cancelled");
        }
    }
}

/// The name of a finish reason: OpenAI's where it has one. Answers that the server's time limit or its end cut have names of
/// their own, so that nobody takes them for answers of the wanted length.
pub(crate) fn finish_name(finish: FinishReason) -> &'static str {
    match finish {
        FinishReason::Stop => "stop",
        FinishReason::Length | FinishReason::Context => "length",
        FinishReason::Deadline => "timeout",
        FinishReason::Interrupted => "abort",
    }
}

/// The sums over the choices of an answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Usage {
    /// The tokens of every prompt and how many of them were cached.
    prompts: Vec<(usize, usize)>,
    pub(crate) completion: usize,
    /// The completion's tokens that are reasoning.
    pub(crate) reasoning: usize,
}

impl Usage {
    /// Adds a finished answer to the prompt of this index. A prompt counts once.
    pub(crate) fn add(&mut self, prompt: usize, output: &RequestOutput) {
        if self.prompts.len() <= prompt {
            self.prompts.resize(prompt + 1, (0, 0));
        }
        let (tokens, cached) = &mut self.prompts[prompt];
        *tokens = output.cache.prompt_tokens;
        *cached = output.cache.cached_tokens.max(*cached);
        self.completion += output.tokens.len();
    }

    /// The tokens of all prompts.
    pub(crate) fn prompt(&self) -> usize {
        self.prompts.iter().map(|(tokens, _)| tokens).sum()
    }

    /// Those of them that were cached.
    pub(crate) fn cached(&self) -> usize {
        self.prompts.iter().map(|(_, cached)| cached).sum()
    }

    pub(crate) fn openai(&self) -> Value {
        json!({
            "prompt_tokens": self.prompt(),
            "completion_tokens": self.completion,
            "total_tokens": self.prompt() + self.completion,
            "prompt_tokens_details": { "cached_tokens": self.cached() },
            "completion_tokens_details": { "reasoning_tokens": self.reasoning },
        })
    }
}

/// Timings with llama.cpp's names.
pub(crate) fn timings(output: &RequestOutput) -> Value {
    let t = &output.timings;
    let milliseconds = |d: Duration| d.as_secs_f64() * 1e3;
    let per = |total: f64, n: usize| if n > 0 { total / n as f64 } else { 0.0 };
    let (prompt, predicted) = (milliseconds(t.prompt_time), milliseconds(t.decode_time));
    let mut object = json!({
        "cache_n": output.cache.cached_tokens,
        "queue_ms": milliseconds(t.queue_time),
        "prompt_n": t.prompt_tokens,
        "prompt_ms": prompt,
        "prompt_per_token_ms": per(prompt, t.prompt_tokens),
        "prompt_per_second": t.prompt_rate().unwrap_or(0.0),
        "predicted_n": t.generated_tokens,
        "predicted_ms": predicted,
        "predicted_per_token_ms": per(predicted, t.decoded_tokens),
        "predicted_per_second": t.decode_rate().unwrap_or(0.0),
    });
    if let Some(stats) = &output.speculation {
        object["draft_n"] = stats.drafted.into();
        object["draft_n_accepted"] = stats.accepted.into();
        object["spec"] = spec_object(stats);
    }
    object
}

/// What was reused, with the text around the first token that differed.
pub(crate) fn cache_object(report: &CacheReport, model: &LoadedModel, prompt: &[u32]) -> Value {
    let text = |ids: &[u32]| match model.model.tokenizer() {
        Ok(tokenizer) => Value::from(tokenizer.decode(ids, true)),
        Err(_) => Value::Null,
    };
    let miss = report.miss.as_ref().map(|miss| {
        let before = &prompt[miss.position.saturating_sub(8)..miss.position.min(prompt.len())];
        json!({
            "reason": miss.reason.name(),
            "position": miss.position,
            "after": text(before),
            "stored": miss.stored.map(|id| text(&[id])),
            "requested": miss.requested.map(|id| text(&[id])),
        })
    });
    json!({
        "prompt_tokens": report.prompt_tokens,
        "cached_tokens": report.cached_tokens,
        "approximate_tokens": report.approximate_tokens,
        "source": report.source.name(),
        "miss": miss,
    })
}

/// The value of the `x-kvark-cache` header.
pub(crate) fn cache_header(report: &CacheReport) -> String {
    let mut value = format!(
        "{}/{}; source={}",
        report.cached_tokens,
        report.prompt_tokens,
        report.source.name()
    );
    if let Some(miss) = &report.miss {
        value.push_str(&format!("; miss={}@{}", miss.reason.name(), miss.position));
    }
    value
}
