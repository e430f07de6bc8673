//! The generation loop: sample, show, feed, until something ends it.

use crate::stop::StopFilter;
use crate::{Model, Runner, RuntimeError, RuntimeErrorKind, Sampler};
use std::time::{Duration, Instant};
use text::{TokenKind, Utf8Stream};

/// When a generation ends.
#[derive(Clone, Debug, Default)]
pub struct GenerateOptions {
    /// Most tokens to generate; `None` goes on until something else ends it.
    pub max_tokens: Option<usize>,
    /// Strings that end the text and are not part of it.
    pub stop: Vec<String>,
    /// Go on past the model's end-of-text tokens.
    pub ignore_eos: bool,
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model's end of text, or a stop string.
    Stop,
    /// As many tokens as were asked for.
    Length,
    /// The context is full.
    Context,
    /// The caller ended it.
    Interrupted,
}

impl Finish {
    /// The name in machine-readable output.
    pub fn name(self) -> &'static str {
        match self {
            Finish::Stop => "stop",
            Finish::Length => "length",
            Finish::Context => "context",
            Finish::Interrupted => "interrupted",
        }
    }
}

/// A part of a generation as it arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// This many tokens of the prompt are in the cache.
    Prompt(usize),
    /// More text, always whole characters.
    Text(&'a str),
}

/// How long the parts of a generation took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Timings {
    /// Prompt tokens fed.
    pub prompt_tokens: usize,
    /// Time to feed them.
    pub prompt: Duration,
    /// Tokens generated.
    pub generated_tokens: usize,
    /// Time to generate them.
    pub generated: Duration,
}

/// A finished generation.
#[derive(Clone, Debug)]
pub struct Generated {
    /// The tokens generated, an end-of-text token included.
    pub tokens: Vec<u32>,
    /// Their text, without stop string and end-of-text.
    pub text: String,
    /// Why it ended.
    pub finish: Finish,
    /// How long it took.
    pub timings: Timings,
}

impl Runner {
    /// Feeds `prompt` behind what the context holds and generates from there.
    ///
    /// `show` receives progress and text as they arrive and ends the run by returning false. The tokens generated stay
    /// in the context, except the last one, which has not been fed.
    pub fn generate(
        &mut self,
        model: &Model,
        prompt: &[u32],
        sampler: &mut Sampler,
        options: &GenerateOptions,
        mut show: impl FnMut(Piece<'_>) -> bool,
    ) -> Result<Generated, RuntimeError> {
        if prompt.is_empty() && self.logits().is_empty() {
            return Err(RuntimeErrorKind::EmptyPrompt.into());
        }
        let mut generated = Generated {
            tokens: vec![],
            text: String::new(),
            finish: Finish::Interrupted,
            timings: Timings::default(),
        };
        let start = Instant::now();
        if !prompt.is_empty() && !self.feed(prompt, |done| show(Piece::Prompt(done)))? {
            return Ok(generated);
        }
        generated.timings.prompt_tokens = prompt.len();
        generated.timings.prompt = start.elapsed();

        let start = Instant::now();
        let (mut utf8, mut stop) = (Utf8Stream::default(), StopFilter::new(&options.stop));
        let mut history = self.tokens().to_vec();
        let mut emit = |text: String, generated: &mut Generated| {
            generated.text.push_str(&text);
            text.is_empty() || show(Piece::Text(&text))
        };
        let mut stopped = false;
        // A model without a tokenizer generates ids and no text.
        let tokenizer = model.tokenizer().ok();
        generated.finish = loop {
            let token = sampler.sample(self.logits(), &history);
            generated.tokens.push(token);
            history.push(token);
            if tokenizer.is_some_and(|t| t.is_eog(token)) && !options.ignore_eos {
                break Finish::Stop;
            }
            let bytes = tokenizer
                .filter(|t| !t.kind(token).is_none_or(TokenKind::is_hidden))
                .and_then(|t| t.token_bytes(token))
                .unwrap_or_default();
            let (text, found) = stop.push(&utf8.push(bytes));
            let go_on = emit(text, &mut generated);
            if found {
                stopped = true;
                break Finish::Stop;
            }
            if !go_on {
                break Finish::Interrupted;
            }
            if options
                .max_tokens
                .is_some_and(|n| generated.tokens.len() >= n)
            {
                break Finish::Length;
            }
            if !self.can_extend(1)? {
                break Finish::Context;
            }
            self.feed(&[token], |_| true)?;
        };
        if !stopped {
            let (mut rest, found) = stop.push(&utf8.finish());
            if !found {
                rest.push_str(&stop.finish());
            }
            emit(rest, &mut generated);
        }
        generated.timings.generated_tokens = generated.tokens.len();
        generated.timings.generated = start.elapsed();
        Ok(generated)
    }
}
