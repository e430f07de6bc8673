//! Requests of a model's engine as generations.

use crate::error::Result;
use crate::generation::{Event, Generation, Source};
use crate::interrupt::wait;
use crate::loaded::{Loaded, lock};
use crate::options::GenerationOptions;
use crate::result::GenerationResult;
use kvark::engine::{Request, RequestEvent, RequestHandle};
use kvark::generate::{FinishReason, GenerateOutput, SamplerOptions, Timings, TokenLogprobs};
use kvark::text::{AnswerFormat, AnswerParser, AnswerPart};
use pyo3::prelude::*;
use serde_json::Value as Json;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};

/// Submits a request to the engine, which the first request starts.
pub(crate) fn submit(
    py: Python<'_>,
    loaded: &Loaded,
    prompt: Vec<u32>,
    progress: Option<Py<PyAny>>,
    options: &GenerationOptions,
    seed: u64,
) -> Result<Generation> {
    let mut generate = options.bounded(&loaded.model, &prompt);
    let mut tools = None;
    if let (false, Ok(tokenizer)) = (options.tools.is_empty(), loaded.model.tokenizer()) {
        let template = loaded.model.chat_template();
        let source = template.map_or("", |template| template.source_text());
        let format = AnswerFormat::of_model(source, tokenizer);
        generate.shown = format.control_tokens(tokenizer, true);
        tools = Some((format, options.tools.clone()));
    }
    let source = py.detach(|| {
        let constraint = match &options.grammar {
            Some(source) => Some(loaded.grammars()?.constraint(source)?),
            None => None,
        };
        let request = Request {
            message_ends: loaded.model.message_ends(&prompt),
            sampling: SamplerOptions {
                seed,
                ..options.sampling.clone()
            },
            options: generate,
            logprobs: options.logprobs,
            speculation: options.speculation.clone(),
            constraint,
            ..Request::new(prompt)
        };
        let mut engine = lock(&loaded.engine);
        if engine.is_none() {
            *engine = Some(loaded.start_engine()?);
        }
        let engine = engine.as_ref().expect("it was just started");
        let (sender, events) = channel();
        let sink = Box::new(move |event| sender.send(event).is_ok());
        Ok::<_, crate::error::Error>(RequestSource {
            handle: engine.handle().submit(request, sink)?,
            events: Mutex::new(events),
            output: Mutex::new(Output::default()),
            with_logprobs: options.logprobs.is_some(),
            tools,
        })
    })?;
    Ok(Generation::new(source, progress))
}

/// The events of a request.
struct RequestSource {
    handle: RequestHandle,
    events: Mutex<Receiver<RequestEvent>>,
    output: Mutex<Output>,
    with_logprobs: bool,
    /// The tools of a chat, and how the model writes answers.
    tools: Option<(AnswerFormat, Vec<Json>)>,
}

/// What came so far.
#[derive(Default)]
struct Output {
    text: String,
    tokens: Vec<u32>,
    logprobs: Vec<(u32, TokenLogprobs)>,
    /// The end, after its last text was given.
    end: Option<(FinishReason, Timings)>,
}

impl RequestSource {
    fn end(&self, finish: FinishReason, timings: Timings) -> Event {
        let output = std::mem::take(&mut *lock(&self.output));
        let calls = self.tools.as_ref().map_or(vec![], |(format, tools)| {
            let mut parser = AnswerParser::new(*format, tools);
            let mut parts = parser.push(&output.text);
            parts.extend(parser.finish());
            let call = |part| match part {
                AnswerPart::Call(call) => Some(call),
                AnswerPart::Reasoning(_) | AnswerPart::Content(_) | AnswerPart::CallPiece(_) => {
                    None
                }
            };
            parts.into_iter().filter_map(call).collect()
        });
        let result = GenerationResult::from(GenerateOutput {
            prompt_logprobs: vec![],
            tokens: output.tokens,
            text: output.text,
            logprobs: vec![],
            finish,
            stop_string: None,
            timings,
            speculation: None,
        });
        let logprobs = self.with_logprobs.then_some(output.logprobs);
        Event::Finished(result.with_logprobs(logprobs).with_tool_calls(calls))
    }
}

impl Source for RequestSource {
    fn next(&self, py: Python<'_>) -> Result<Event> {
        let end = lock(&self.output).end.take();
        if let Some((finish, timings)) = end {
            return Ok(self.end(finish, timings));
        }
        loop {
            let Some(event) = wait(py, &self.events, || self.handle.cancel())? else {
                // The engine stopped.
                return Ok(self.end(FinishReason::Interrupted, Timings::default()));
            };
            let output = &mut *lock(&self.output);
            return Ok(match event {
                RequestEvent::Started(_) | RequestEvent::Round(_) => continue,
                RequestEvent::PromptProgress(done) => Event::Progress(done),
                RequestEvent::Token(token) => {
                    output.text.push_str(&token.text);
                    output.tokens.push(token.id);
                    let logprobs = token.logprobs.map(|found| (token.id, found));
                    output.logprobs.extend(logprobs);
                    Event::Text(token.text)
                }
                RequestEvent::Failed(error) => return Err(error.into()),
                RequestEvent::Finished(end) => {
                    output.text.push_str(&end.rest);
                    output.tokens = end.tokens;
                    output.end = Some((end.finish, end.timings));
                    Event::Text(end.rest)
                }
            });
        }
    }

    fn cancel(&self) {
        self.handle.cancel();
    }
}
