//! `Generator`: a generation whose events the caller pulls.

use crate::detokenizer::IncrementalDetokenizer;
use crate::generation::{FinishReason, GenerateEvent, GenerateOptions, GenerateOutput, Timings};
use crate::lane::{DecodeContext, Lane};
use crate::{Model, RuntimeError, RuntimeErrorKind, Sampler};
use backend::Wanted;
use std::collections::VecDeque;
use std::time::Instant;

/// A generation whose events the caller pulls: an iterator over prompt progress and text.
///
/// A call of `next` computes at most one chunk of the prompt, or one decode. The generated tokens stay in the sequence. The last
/// one is pending ([`DecodeContext`]): it is fed by whoever continues the sequence. [`finish`](Generator::finish) returns the
/// whole output, [`pause`](Generator::pause) leaves the sequence to the caller for a while.
pub struct Generator<'a> {
    state: State<'a>,
    /// Events that are computed but not yet pulled.
    events: VecDeque<GenerateEvent>,
}

struct State<'a> {
    decode: Box<dyn Decode + 'a>,
    /// `None` after the end.
    lane: Option<Lane<'a>>,
    /// Set at the end.
    output: Option<GenerateOutput>,
    prompt: Vec<u32>,
    /// Tokens of the prompt in the cache.
    fed: usize,
    timings: Timings,
}

/// Receives events as they are computed. Returns false to end the generation.
pub(crate) type Sink<'a> = dyn FnMut(GenerateEvent) -> bool + 'a;

/// The forwards of a generation: plain decoding, or rounds of speculation.
pub(crate) trait Decode {
    /// The number of tokens of the prompt to feed before the first round.
    fn prompt_len(&self, prompt: &[u32]) -> usize;
    /// Feeds the first chunk of these tokens. Returns its length.
    fn feed_chunk(&mut self, tokens: &[u32]) -> Result<usize, RuntimeError>;
    /// Feeds the last token and samples the next one, or several. Sets the lane's `finish` at the end, also if `on_event`
    /// returns false.
    fn round(&mut self, lane: &mut Lane<'_>, on_event: &mut Sink<'_>) -> Result<(), RuntimeError>;
}

/// Feeds the first chunk of these tokens to a sequence. Returns its length.
pub(crate) fn feed_chunk(
    sequence: &mut impl DecodeContext,
    tokens: &[u32],
    wanted: Wanted,
) -> Result<usize, RuntimeError> {
    let mut fed = 0;
    sequence.feed_wanted(tokens, wanted, &mut |done| {
        fed = done;
        false
    })?;
    Ok(fed)
}

impl<'a> Generator<'a> {
    /// Appends `prompt` to a sequence and generates a continuation. Nothing is computed before the first `next`.
    ///
    /// # Errors
    /// `EmptyPrompt` if there is no prompt and the sequence has neither a pending token nor outputs to sample from.
    pub fn new(
        sequence: &'a mut impl DecodeContext,
        model: &'a Model,
        prompt: &[u32],
        sampler: &'a mut Sampler,
        options: &GenerateOptions,
    ) -> Result<Generator<'a>, RuntimeError> {
        let wanted = sampler.wanted();
        let holds = |sequence: &_| can_sample(sequence, wanted, model);
        if prompt.is_empty() && !holds(sequence) {
            return Err(RuntimeErrorKind::EmptyPrompt.into());
        }
        let history = sequence.tokens().iter().chain(prompt);
        let detokenizer = IncrementalDetokenizer::new(options.clone(), history);
        let lane = Lane::new(0, sampler, model, detokenizer);
        let decode = Box::new(PlainDecode { sequence, wanted });
        Ok(Generator::with(decode, lane, prompt))
    }

    /// Ends the borrow of the sequence without ending the generation.
    pub fn pause(self) -> PausedGeneration {
        let State {
            lane,
            output,
            prompt,
            fed,
            timings,
            ..
        } = self.state;
        PausedGeneration {
            lane: lane.map(|lane| (lane.detokenizer, lane.decoded)),
            output,
            prompt,
            fed,
            timings,
            events: self.events,
        }
    }

    pub(crate) fn with(
        decode: Box<dyn Decode + 'a>,
        lane: Lane<'a>,
        prompt: &[u32],
    ) -> Generator<'a> {
        Generator {
            state: State {
                decode,
                lane: Some(lane),
                output: None,
                prompt: prompt.to_vec(),
                fed: 0,
                timings: Timings::default(),
            },
            events: VecDeque::new(),
        }
    }

    /// Ends the generation. Events that are computed already still follow.
    pub fn interrupt(&mut self) {
        let events = &mut self.events;
        let mut buffer = |event| {
            events.push_back(event);
            true
        };
        self.state.end(FinishReason::Interrupted, &mut buffer);
    }

    /// Interrupts the generation if it still runs, and returns its output.
    pub fn finish(mut self) -> GenerateOutput {
        self.interrupt();
        let output = self.state.output.take();
        output.expect("a generation that has ended has an output")
    }

    /// Runs the generation to its end. `on_event` receives the events as they are computed and returns false to cancel.
    pub(crate) fn run(
        mut self,
        mut on_event: impl FnMut(GenerateEvent) -> bool,
    ) -> Result<GenerateOutput, RuntimeError> {
        while self.state.lane.is_some() {
            self.state.compute(&mut on_event)?;
        }
        Ok(self.finish())
    }
}

/// A generation between two steps, without its sequence: [`Generator::pause`] makes it.
///
/// The caller may read the sequence before it resumes the generation, and must not change it.
pub struct PausedGeneration {
    /// The text so far and the number of decoded tokens; `None` after the end.
    lane: Option<(IncrementalDetokenizer, usize)>,
    /// Set at the end.
    output: Option<GenerateOutput>,
    prompt: Vec<u32>,
    fed: usize,
    timings: Timings,
    events: VecDeque<GenerateEvent>,
}

impl PausedGeneration {
    /// Continues the generation on its sequence, with its model and its sampler.
    pub fn resume<'a>(
        self,
        sequence: &'a mut impl DecodeContext,
        model: &'a Model,
        sampler: &'a mut Sampler,
    ) -> Generator<'a> {
        let wanted = sampler.wanted();
        let lane = self.lane.map(|(detokenizer, decoded)| {
            let mut lane = Lane::new(0, sampler, model, detokenizer);
            lane.decoded = decoded;
            lane
        });
        Generator {
            state: State {
                decode: Box::new(PlainDecode { sequence, wanted }),
                lane,
                output: self.output,
                prompt: self.prompt,
                fed: self.fed,
                timings: self.timings,
            },
            events: self.events,
        }
    }

    /// Interrupts the generation if it still runs, and returns its output.
    pub fn finish(self) -> GenerateOutput {
        match (self.lane, self.output) {
            (Some((detokenizer, decoded_tokens)), _) => {
                let mut output = detokenizer.finish(FinishReason::Interrupted, |_| {});
                output.timings = Timings {
                    prompt_tokens: self.fed,
                    generated_tokens: output.tokens.len(),
                    decoded_tokens,
                    ..self.timings
                };
                output
            }
            (None, output) => output.expect("a generation that has ended has an output"),
        }
    }
}

impl Iterator for Generator<'_> {
    type Item = Result<GenerateEvent, RuntimeError>;

    fn next(&mut self) -> Option<Self::Item> {
        let events = &mut self.events;
        while events.is_empty() && self.state.lane.is_some() {
            let mut buffer = |event| {
                events.push_back(event);
                true
            };
            if let Err(error) = self.state.compute(&mut buffer) {
                self.interrupt();
                return Some(Err(error));
            }
        }
        events.pop_front().map(Ok)
    }
}

impl State<'_> {
    /// Ends the generation for its lane's reason, or for `otherwise`.
    fn end(&mut self, otherwise: FinishReason, on_event: &mut Sink<'_>) {
        let Some(mut lane) = self.lane.take() else {
            return;
        };
        lane.finish = lane.finish.or(Some(otherwise));
        let decoded_tokens = lane.decoded;
        let mut output = lane.end(|text| {
            on_event(GenerateEvent::Text(text.to_owned()));
        });
        output.timings = Timings {
            prompt_tokens: match self.fed == self.decode.prompt_len(&self.prompt) {
                true => self.prompt.len(),
                false => self.fed,
            },
            generated_tokens: output.tokens.len(),
            decoded_tokens,
            ..self.timings
        };
        self.output = Some(output);
    }

    /// Feeds a chunk of the prompt or decodes once.
    fn compute(&mut self, on_event: &mut Sink<'_>) -> Result<(), RuntimeError> {
        let Some(lane) = &mut self.lane else {
            return Ok(());
        };
        let begun = Instant::now();
        let rest = &self.prompt[self.fed..self.decode.prompt_len(&self.prompt)];
        if !rest.is_empty() {
            self.fed += self.decode.feed_chunk(rest)?;
            self.timings.prompt_time += begun.elapsed();
            if !on_event(GenerateEvent::PromptProgress(self.fed)) {
                lane.finish = Some(FinishReason::Interrupted);
            }
        } else {
            self.decode.round(lane, on_event)?;
            self.timings.decode_time += begun.elapsed();
        }
        if let Some(reason) = lane.finish {
            self.end(reason, on_event);
        }
        Ok(())
    }
}

/// Appends `prompt` to a sequence and generates a continuation: a [`Generator`] that runs to its end.
///
/// `on_event` receives progress and text as they arrive and returns false to cancel. The generated tokens stay in the
/// sequence; the last one is pending ([`DecodeContext`]).
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

/// Decodes one token a round.
struct PlainDecode<'a, S> {
    sequence: &'a mut S,
    /// The outputs that the sampler needs.
    wanted: Wanted,
}

/// Whether a token can be sampled without a prompt: from the outputs that are there, or after the pending token.
pub(crate) fn can_sample(sequence: &impl DecodeContext, wanted: Wanted, model: &Model) -> bool {
    sequence.is_pending() || sequence.row().holds(wanted, model.facts().vocab_size)
}

impl<S: DecodeContext> Decode for PlainDecode<'_, S> {
    fn prompt_len(&self, prompt: &[u32]) -> usize {
        prompt.len()
    }

    fn feed_chunk(&mut self, tokens: &[u32]) -> Result<usize, RuntimeError> {
        feed_chunk(self.sequence, tokens, self.wanted)
    }

    fn round(&mut self, lane: &mut Lane<'_>, on_event: &mut Sink<'_>) -> Result<(), RuntimeError> {
        if self.sequence.is_pending() {
            if !self.sequence.ensure_capacity()? {
                lane.finish = Some(FinishReason::Context);
                return Ok(());
            }
            self.sequence.feed_wanted(&[], self.wanted, &mut |_| true)?;
            lane.decoded += 1;
        }
        let (token, go_on) = lane.sample(self.sequence.row(), &mut |_, event| on_event(event));
        self.sequence.append(token);
        if !go_on {
            lane.finish = lane.finish.or(Some(FinishReason::Interrupted));
        }
        Ok(())
    }
}
