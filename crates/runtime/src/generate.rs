//! The generation loop: sample a token, show its text, feed it, until the generation ends.

use crate::detokenizer::IncrementalDetokenizer;
use crate::{Model, RuntimeError, RuntimeErrorKind, Sampler};
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GenerateEvent<'a> {
    /// This many tokens of the prompt are in the cache.
    PromptProgress(usize),
    /// A token was generated; the text that it completes, which may be empty. Never a part of a character.
    Text(&'a str),
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

/// Sequences that are decoded together: a single sequence, or several sequences in one pool of cells.
pub(crate) trait Sequences {
    /// The outputs after the last token of a sequence.
    fn row(&self, seq: SeqId) -> RowOutputs<'_>;
    /// Shifts full contexts if the caller enabled context shifts. Returns whether one more token fits in each sequence.
    fn ensure_capacity(&mut self, next: &[(SeqId, u32)]) -> Result<bool, RuntimeError>;
    /// Feeds one token to each of these sequences in one forward, which computes the wanted outputs of each.
    fn advance(&mut self, next: &[(SeqId, u32)], wanted: Wanted) -> Result<(), RuntimeError>;
}

/// A single sequence as [`Sequences`].
struct SingleSequence<'a, S>(&'a mut S);

impl<S: DecodeContext> Sequences for SingleSequence<'_, S> {
    fn row(&self, _: SeqId) -> RowOutputs<'_> {
        self.0.row()
    }

    fn ensure_capacity(&mut self, _: &[(SeqId, u32)]) -> Result<bool, RuntimeError> {
        self.0.ensure_capacity()
    }

    fn advance(&mut self, next: &[(SeqId, u32)], wanted: Wanted) -> Result<(), RuntimeError> {
        for (_, token) in next {
            self.0.feed_wanted(&[*token], wanted, &mut |_| true)?;
        }
        Ok(())
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
        on_event: &mut impl FnMut(SeqId, GenerateEvent<'_>) -> bool,
    ) -> (u32, bool) {
        let token = self.sampler.sample_row(row, self.detokenizer.history());
        let (text, finish) = self.detokenizer.push(self.tokenizer, token);
        self.finish = finish;
        (token, on_event(self.seq, GenerateEvent::Text(&text)))
    }

    /// The outputs that the samplers of all running lanes need.
    pub(crate) fn wanted<'b>(lanes: impl Iterator<Item = &'b Lane<'a>>) -> Wanted
    where
        'a: 'b,
    {
        let running = lanes.filter(|lane| lane.finish.is_none());
        running.fold(Wanted::Argmax, |all, lane| all.and(lane.sampler.wanted()))
    }

    /// Ends the lane. Calls `show` with the pending text.
    pub(crate) fn end(self, show: impl FnOnce(&str)) -> GenerateOutput {
        let finish = self.finish.unwrap_or(FinishReason::Interrupted);
        self.detokenizer.finish(finish, show)
    }
}

/// The generation loop: samples a token for each lane, shows its text and feeds all tokens in one forward, until every
/// lane has ended. `on_event` returns false to cancel all lanes.
pub(crate) fn generate_lanes(
    sequences: &mut impl Sequences,
    lanes: &mut [Lane<'_>],
    mut on_event: impl FnMut(SeqId, GenerateEvent<'_>) -> bool,
) -> Result<(), RuntimeError> {
    let mut next = Vec::with_capacity(lanes.len());
    loop {
        next.clear();
        let mut go_on = true;
        for lane in lanes.iter_mut().filter(|lane| lane.finish.is_none()) {
            let (token, more) = lane.sample(sequences.row(lane.seq), &mut on_event);
            go_on &= more;
            next.extend(lane.finish.is_none().then_some((lane.seq, token)));
        }
        if next.is_empty() {
            return Ok(());
        }
        let end = match go_on {
            false => Some(FinishReason::Interrupted),
            true if !sequences.ensure_capacity(&next)? => Some(FinishReason::Context),
            true => None,
        };
        if end.is_some() {
            lanes
                .iter_mut()
                .for_each(|lane| lane.finish = lane.finish.or(end));
            return Ok(());
        }
        sequences.advance(&next, Lane::wanted(lanes.iter()))?;
    }
}

/// Appends `prompt` to a sequence and generates a continuation.
///
/// `on_event` receives progress and text as they arrive and returns false to cancel. The generated tokens stay in the
/// sequence, except the last one, which was not fed.
pub fn generate(
    sequence: &mut impl DecodeContext,
    model: &Model,
    prompt: &[u32],
    sampler: &mut Sampler,
    options: &GenerateOptions,
    mut on_event: impl FnMut(GenerateEvent<'_>) -> bool,
) -> Result<GenerateOutput, RuntimeError> {
    let wanted = sampler.wanted();
    if prompt.is_empty() && !sequence.row().holds(wanted, model.facts().vocab_size) {
        return Err(RuntimeErrorKind::EmptyPrompt.into());
    }
    let history = sequence.tokens().iter().chain(prompt);
    let detokenizer = IncrementalDetokenizer::new(options.clone(), history);
    let start = Instant::now();
    if !prompt.is_empty()
        && !sequence.feed_wanted(prompt, wanted, &mut |done| {
            on_event(GenerateEvent::PromptProgress(done))
        })?
    {
        return Ok(detokenizer.finish(FinishReason::Interrupted, |_| {}));
    }
    let prompt_time = start.elapsed();
    let start = Instant::now();
    let mut lane = Lane::new(0, sampler, model, detokenizer);
    let lanes = std::slice::from_mut(&mut lane);
    generate_lanes(&mut SingleSequence(sequence), lanes, |_, event| {
        on_event(event)
    })?;
    let mut generated = lane.end(|text| {
        on_event(GenerateEvent::Text(text));
    });
    generated.timings = Timings {
        prompt_tokens: prompt.len(),
        prompt_time,
        generated_tokens: generated.tokens.len(),
        decode_time: start.elapsed(),
        decoded_tokens: generated.decoded(),
        queue_time: Duration::ZERO,
    };
    Ok(generated)
}
