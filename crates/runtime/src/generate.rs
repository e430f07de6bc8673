//! The generation loop: sample, show, feed, until something ends it.

use crate::stop::StopFilter;
use crate::{Model, RuntimeError, RuntimeErrorKind, Sampler};
use kv::SeqId;
use std::time::{Duration, Instant};
use text::{TokenKind, Tokenizer, Utf8Stream};

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
    /// One more token, and the text that it completes: whole characters, or none.
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
    /// Tokens that were computed in that time: the first one generated is chosen from the prompt's logits.
    pub decoded_tokens: usize,
}

impl Timings {
    /// Prompt tokens a second.
    pub fn prompt_rate(&self) -> Option<f64> {
        rate(self.prompt_tokens, self.prompt)
    }

    /// Tokens computed a second while generating; `None` where none was.
    pub fn decode_rate(&self) -> Option<f64> {
        rate(self.decoded_tokens, self.generated)
    }
}

fn rate(tokens: usize, time: Duration) -> Option<f64> {
    let known = tokens > 0 && !time.is_zero();
    known.then(|| tokens as f64 / time.as_secs_f64())
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

impl Generated {
    /// Tokens that were computed: every one but the last was fed.
    pub(crate) fn decoded(&self) -> usize {
        self.tokens.len().saturating_sub(1)
    }
}

/// Something that tokens can be fed to one after another: a runner, or a branch of several.
pub trait Sequence {
    /// The tokens held.
    fn tokens(&self) -> &[u32];
    /// The logits behind the last token; empty when there are none to continue from.
    fn logits(&self) -> &[f32];
    /// Whether one more token fits.
    fn has_room(&self) -> Result<bool, RuntimeError>;
    /// Makes room for one more token where the caller has allowed it and there is none; tells whether there is some.
    fn make_room(&mut self) -> Result<bool, RuntimeError> {
        self.has_room()
    }
    /// Feeds tokens; `progress` is told how many are done and may stop the run by returning false.
    fn feed(
        &mut self,
        tokens: &[u32],
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<bool, RuntimeError>;
}

/// Sequences that advance together: a sequence alone, or branches of one pool.
pub(crate) trait Sequences {
    /// The logits behind the last token of a sequence.
    fn logits(&self, seq: SeqId) -> &[f32];
    /// Makes room for one more token of each of these, where the caller has allowed it; tells whether there is some.
    fn make_room(&mut self, next: &[(SeqId, u32)]) -> Result<bool, RuntimeError>;
    /// Feeds a token to each of these in one forward.
    fn advance(&mut self, next: &[(SeqId, u32)]) -> Result<(), RuntimeError>;
}

/// A sequence alone.
struct Alone<'a, S>(&'a mut S);

impl<S: Sequence> Sequences for Alone<'_, S> {
    fn logits(&self, _: SeqId) -> &[f32] {
        self.0.logits()
    }

    fn make_room(&mut self, _: &[(SeqId, u32)]) -> Result<bool, RuntimeError> {
        self.0.make_room()
    }

    fn advance(&mut self, next: &[(SeqId, u32)]) -> Result<(), RuntimeError> {
        for (_, token) in next {
            self.0.feed(&[*token], &mut |_| true)?;
        }
        Ok(())
    }
}

/// One sequence in a generation.
pub(crate) struct Lane<'a> {
    pub(crate) seq: SeqId,
    pub(crate) sampler: &'a mut Sampler,
    pub(crate) detokenizer: IncrementalDetokenizer<'a>,
    /// Why it has ended, once it has.
    pub(crate) finish: Option<Finish>,
}

impl<'a> Lane<'a> {
    pub(crate) fn new(
        seq: SeqId,
        sampler: &'a mut Sampler,
        detokenizer: IncrementalDetokenizer<'a>,
    ) -> Lane<'a> {
        Lane {
            seq,
            sampler,
            detokenizer,
            finish: None,
        }
    }

    /// Ends the lane; `show` gets the text that was still held back.
    pub(crate) fn end(self, show: impl FnOnce(&str)) -> Generated {
        let finish = self.finish.unwrap_or(Finish::Interrupted);
        self.detokenizer.finish(finish, show)
    }
}

/// The generation loop: samples a token for each lane, shows its text, feeds them all in one forward, until every lane has
/// ended. `show` ends all of them by returning false.
pub(crate) fn generate_lanes(
    sequences: &mut impl Sequences,
    lanes: &mut [Lane<'_>],
    mut show: impl FnMut(SeqId, Piece<'_>) -> bool,
) -> Result<(), RuntimeError> {
    let mut next = Vec::with_capacity(lanes.len());
    loop {
        next.clear();
        let mut go_on = true;
        for lane in lanes.iter_mut().filter(|lane| lane.finish.is_none()) {
            let logits = sequences.logits(lane.seq);
            let token = lane.sampler.sample(logits, lane.detokenizer.history());
            let (text, finish) = lane.detokenizer.push(token);
            go_on &= show(lane.seq, Piece::Text(&text));
            lane.finish = finish;
            next.extend(finish.is_none().then_some((lane.seq, token)));
        }
        if next.is_empty() {
            return Ok(());
        }
        let end = match go_on {
            false => Some(Finish::Interrupted),
            true if !sequences.make_room(&next)? => Some(Finish::Context),
            true => None,
        };
        if end.is_some() {
            lanes
                .iter_mut()
                .for_each(|lane| lane.finish = lane.finish.or(end));
            return Ok(());
        }
        sequences.advance(&next)?;
    }
}

/// Feeds `prompt` behind what a sequence holds and generates from there.
///
/// `show` receives progress and text as they arrive and ends the run by returning false. The tokens generated stay in the
/// sequence, except the last one, which has not been fed.
pub fn generate(
    sequence: &mut impl Sequence,
    model: &Model,
    prompt: &[u32],
    sampler: &mut Sampler,
    options: &GenerateOptions,
    mut show: impl FnMut(Piece<'_>) -> bool,
) -> Result<Generated, RuntimeError> {
    if prompt.is_empty() && sequence.logits().is_empty() {
        return Err(RuntimeErrorKind::EmptyPrompt.into());
    }
    let detokenizer =
        IncrementalDetokenizer::new(model, options, sequence.tokens().iter().chain(prompt));
    let start = Instant::now();
    if !prompt.is_empty() && !sequence.feed(prompt, &mut |done| show(Piece::Prompt(done)))? {
        return Ok(detokenizer.finish(Finish::Interrupted, |_| {}));
    }
    let prompt_time = start.elapsed();
    let start = Instant::now();
    let mut lane = Lane::new(0, sampler, detokenizer);
    let lanes = std::slice::from_mut(&mut lane);
    generate_lanes(&mut Alone(sequence), lanes, |_, piece| show(piece))?;
    let mut generated = lane.end(|text| {
        show(Piece::Text(text));
    });
    generated.timings = Timings {
        prompt_tokens: prompt.len(),
        prompt: prompt_time,
        generated_tokens: generated.tokens.len(),
        generated: start.elapsed(),
        decoded_tokens: generated.decoded(),
    };
    Ok(generated)
}

/// Turns tokens into text as they are chosen and knows when to end.
pub(crate) struct IncrementalDetokenizer<'a> {
    tokenizer: Option<&'a Tokenizer>,
    options: &'a GenerateOptions,
    utf8: Utf8Stream,
    stop: StopFilter,
    /// What the sampler looks back on: the sequence and what was generated.
    history: Vec<u32>,
    generated: Generated,
}

impl<'a> IncrementalDetokenizer<'a> {
    pub(crate) fn new<'t>(
        model: &'a Model,
        options: &'a GenerateOptions,
        history: impl Iterator<Item = &'t u32>,
    ) -> IncrementalDetokenizer<'a> {
        IncrementalDetokenizer {
            // A model without a tokenizer generates ids and no text.
            tokenizer: model.tokenizer().ok(),
            options,
            utf8: Utf8Stream::default(),
            stop: StopFilter::new(&options.stop),
            history: history.copied().collect(),
            generated: Generated {
                tokens: vec![],
                text: String::new(),
                finish: Finish::Interrupted,
                timings: Timings::default(),
            },
        }
    }

    pub(crate) fn history(&self) -> &[u32] {
        &self.history
    }

    /// Takes a chosen token; returns the text that may be shown now, and whether the token ends the generation.
    pub(crate) fn push(&mut self, token: u32) -> (String, Option<Finish>) {
        self.generated.tokens.push(token);
        self.history.push(token);
        if self.tokenizer.is_some_and(|t| t.is_eog(token)) && !self.options.ignore_eos {
            return (String::new(), Some(Finish::Stop));
        }
        let bytes = self
            .tokenizer
            .filter(|t| !t.kind(token).is_none_or(TokenKind::is_hidden))
            .and_then(|t| t.token_bytes(token))
            .unwrap_or_default();
        let (text, found) = self.stop.push(&self.utf8.push(bytes));
        self.generated.text.push_str(&text);
        let enough = self
            .options
            .max_tokens
            .is_some_and(|n| self.generated.tokens.len() >= n);
        let end = if found {
            Some(Finish::Stop)
        } else {
            enough.then_some(Finish::Length)
        };
        (text, end)
    }

    /// Ends the generation; `show` gets the text that was still held back.
    pub(crate) fn finish(mut self, finish: Finish, show: impl FnOnce(&str)) -> Generated {
        let (mut rest, found) = self.stop.push(&self.utf8.finish());
        if !found {
            rest.push_str(&self.stop.finish());
        }
        if !rest.is_empty() {
            self.generated.text.push_str(&rest);
            show(&rest);
        }
        self.generated.finish = finish;
        self.generated
    }
}
