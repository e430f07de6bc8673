//! `Lane`: one sequence of a generation: sample a token, show its text, until the generation ends.

use crate::detokenizer::IncrementalDetokenizer;
use crate::generation::{FinishReason, GenerateEvent, GenerateOutput, Timings};
use crate::{Model, RuntimeError, Sampler};
use backend::{RowOutputs, Wanted};
use kv::SeqId;
use std::time::Instant;
use text::Tokenizer;

/// A sequence that [`generate`](crate::generate) can extend: a [`Runner`](crate::Runner), or one sequence of
/// [`BatchRunner`](crate::BatchRunner).
///
/// The last token of a sequence can be *pending*: it was sampled and is part of the sequence, but it is not fed yet. The next
/// [`feed`](DecodeContext::feed) feeds it before its own tokens, so that a generation needs no forward after its last token.
pub trait DecodeContext {
    /// The tokens of the sequence, with the pending one.
    fn tokens(&self) -> &[u32];
    /// Appends a sampled token, which is pending from now on. No token may be pending already.
    fn append(&mut self, token: u32);
    /// Whether the last token is pending.
    fn is_pending(&self) -> bool;
    /// The logits after the last token; empty if they were not computed.
    fn logits(&self) -> &[f32];
    /// The outputs after the last token: all logits, or those that [`feed_wanted`](DecodeContext::feed_wanted) computed.
    fn row(&self) -> RowOutputs<'_> {
        RowOutputs::Logits(self.logits())
    }
    /// Whether the pending token fits or, without one, one more token.
    fn has_capacity(&self) -> Result<bool, RuntimeError>;
    /// Shifts a full context if the caller enabled context shifts. Returns [`has_capacity`](DecodeContext::has_capacity).
    fn ensure_capacity(&mut self) -> Result<bool, RuntimeError> {
        self.has_capacity()
    }
    /// Feeds the pending token, if there is one, and these tokens. `progress` receives the number of these tokens done and
    /// returns false to cancel. Returns whether all tokens were fed.
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
    /// The number of generated tokens that a forward of this generation was computed for: all but the first one, which is
    /// sampled from the outputs of the prompt if those are there.
    pub(crate) decoded: usize,
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
            decoded: 0,
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
        let (seq, decoded_tokens) = (self.seq, self.decoded);
        let mut generated = self.end(|text| {
            on_event(seq, GenerateEvent::Text(text.to_owned()));
        });
        generated.timings = Timings {
            generated_tokens: generated.tokens.len(),
            decode_time: start.elapsed(),
            decoded_tokens,
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
