//! The generation loop: sample a token, show its text, feed it, until the generation ends.

use crate::detokenizer::IncrementalDetokenizer;
use crate::generator::Generator;
use crate::{Model, RuntimeError, Sampler};
use backend::{RowOutputs, Wanted};
use kv::SeqId;
use std::time::{Duration, Instant};
use text::Tokenizer;

/// The conditions that end a generation.
#[derive(Clone, Debug, Default)]
pub struct GenerateOptions {
    /// The maximum number of tokens to generate; `None` for no limit.
    pub max_tokens: Option<usize>,
    /// Stop strings. They end the generation and are not part of its text.
    pub stop: Vec<String>,
    /// Continue after the model's end-of-generation tokens.
    pub ignore_eos: bool,
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// An end-of-generation token of the model, or a stop string.
    Stop,
    /// The maximum number of tokens was generated.
    Length,
    /// The context is full.
    Context,
    /// The caller cancelled it.
    Interrupted,
    /// The deadline of the request passed.
    Deadline,
}

impl FinishReason {
    /// The name in machine-readable output.
    pub fn name(self) -> &'static str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::Context => "context",
            FinishReason::Interrupted => "interrupted",
            FinishReason::Deadline => "deadline",
        }
    }
}

/// An event of a running generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GenerateEvent {
    /// This many tokens of the prompt are in the cache.
    PromptProgress(usize),
    /// A token was generated; the text that it completes, which may be empty. Never a part of a character.
    Text(String),
}

/// The durations of a generation's parts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Timings {
    /// Prompt tokens fed.
    pub prompt_tokens: usize,
    /// Time to feed them.
    pub prompt_time: Duration,
    /// Tokens generated.
    pub generated_tokens: usize,
    /// Time to generate them.
    pub decode_time: Duration,
    /// Tokens decoded in that time. The first generated token is sampled from the logits of the prompt and needs no
    /// decode.
    pub decoded_tokens: usize,
    /// Time that a request waited for a sequence.
    pub queue_time: Duration,
}

impl Timings {
    /// Prompt tokens per second.
    pub fn prompt_rate(&self) -> Option<f64> {
        rate(self.prompt_tokens, self.prompt_time)
    }

    /// Decoded tokens per second; `None` if no token was decoded.
    pub fn decode_rate(&self) -> Option<f64> {
        rate(self.decoded_tokens, self.decode_time)
    }
}

fn rate(tokens: usize, time: Duration) -> Option<f64> {
    let known = tokens > 0 && !time.is_zero();
    known.then(|| tokens as f64 / time.as_secs_f64())
}

/// A finished generation.
#[derive(Clone, Debug)]
pub struct GenerateOutput {
    /// The generated tokens, including an end-of-generation token.
    pub tokens: Vec<u32>,
    /// Their text, without stop string and end-of-generation token.
    pub text: String,
    /// Why it ended.
    pub finish: FinishReason,
    /// How long it took.
    pub timings: Timings,
}

impl GenerateOutput {
    /// The number of decoded tokens: all but the last one were fed.
    pub(crate) fn decoded(&self) -> usize {
        self.tokens.len().saturating_sub(1)
    }
}

/// A sequence that [`generate`] can extend: a [`Runner`](crate::Runner), or one sequence of
/// [`BatchRunner`](crate::BatchRunner).
pub trait DecodeContext {
    /// The tokens of the sequence.
    fn tokens(&self) -> &[u32];
    /// The logits after the last token; empty if they were not computed.
    fn logits(&self) -> &[f32];
    /// The outputs after the last token: all logits, or those that [`feed_wanted`](DecodeContext::feed_wanted) computed.
    fn row(&self) -> RowOutputs<'_> {
        RowOutputs::Logits(self.logits())
    }
    /// Whether one more token fits.
    fn has_capacity(&self) -> Result<bool, RuntimeError>;
    /// Shifts a full context if the caller enabled context shifts. Returns whether one more token fits.
    fn ensure_capacity(&mut self) -> Result<bool, RuntimeError> {
        self.has_capacity()
    }
    /// Feeds tokens. `progress` receives the number of tokens done and returns false to cancel. Returns whether all
    /// tokens were fed.
    fn feed(
        &mut self,
        tokens: &[u32],
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<bool, RuntimeError>;
    /// Feeds tokens as [`feed`](DecodeContext::feed) does. Only the wanted outputs are needed after the last one; the
    /// default computes all logits.
    fn feed_wanted(
        &mut self,
        tokens: &[u32],
        wanted: Wanted,
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<bool, RuntimeError> {
        let _ = wanted;
        self.feed(tokens, progress)
    }
}

/// The state of one sequence in a generation.
pub(crate) struct Lane<'a> {
    pub(crate) seq: SeqId,
    pub(crate) sampler: &'a mut Sampler,
    /// `None` for a model without a tokenizer, which generates ids and no text.
    tokenizer: Option<&'a Tokenizer>,
    pub(crate) detokenizer: IncrementalDetokenizer,
    /// Why it ended; `None` while it runs.
    pub(crate) finish: Option<FinishReason>,
}

impl<'a> Lane<'a> {
    pub(crate) fn new(
        seq: SeqId,
        sampler: &'a mut Sampler,
        model: &'a Model,
        detokenizer: IncrementalDetokenizer,
    ) -> Lane<'a> {
        Lane {
            seq,
            sampler,
            tokenizer: model.tokenizer().ok(),
            detokenizer,
            finish: None,
        }
    }

    /// Samples the next token from the outputs of its row and shows its text. Returns the token, and whether `on_event` wants
    /// to go on.
    pub(crate) fn sample(
        &mut self,
        row: RowOutputs<'_>,
        on_event: &mut impl FnMut(SeqId, GenerateEvent) -> bool,
    ) -> (u32, bool) {
        let token = self.sampler.sample_row(row, self.detokenizer.history());
        let (text, finish) = self.detokenizer.push(self.tokenizer, token);
        self.finish = finish;
        (token, on_event(self.seq, GenerateEvent::Text(text)))
    }

    /// The outputs that the samplers of all running lanes need.
    pub(crate) fn wanted<'b>(lanes: impl Iterator<Item = &'b Lane<'a>>) -> Wanted
    where
        'a: 'b,
    {
        let running = lanes.filter(|lane| lane.finish.is_none());
        running.fold(Wanted::Argmax, |all, lane| all.and(lane.sampler.wanted()))
    }

    /// Ends a lane of a batch that started at `start`. `on_event` receives the pending text.
    pub(crate) fn end_of_batch(
        self,
        start: Instant,
        on_event: &mut impl FnMut(SeqId, GenerateEvent) -> bool,
    ) -> GenerateOutput {
        let seq = self.seq;
        let mut generated = self.end(|text| {
            on_event(seq, GenerateEvent::Text(text.to_owned()));
        });
        generated.timings = Timings {
            generated_tokens: generated.tokens.len(),
            decode_time: start.elapsed(),
            decoded_tokens: generated.decoded(),
            ..Timings::default()
        };
        generated
    }

    /// Ends the lane. Calls `show` with the pending text.
    pub(crate) fn end(self, show: impl FnOnce(&str)) -> GenerateOutput {
        let finish = self.finish.unwrap_or(FinishReason::Interrupted);
        self.detokenizer.finish(finish, show)
    }
}

/// Appends `prompt` to a sequence and generates a continuation: a [`Generator`] that runs to its end.
///
/// `on_event` receives progress and text as they arrive and returns false to cancel. The generated tokens stay in the
/// sequence, except the last one, which was not fed.
pub fn generate(
    sequence: &mut impl DecodeContext,
    model: &Model,
    prompt: &[u32],
    sampler: &mut Sampler,
    options: &GenerateOptions,
    on_event: impl FnMut(GenerateEvent) -> bool,
) -> Result<GenerateOutput, RuntimeError> {
    Generator::new(sequence, model, prompt, sampler, options)?.run(on_event)
}
