//! Generation on several sequences at once, with one forward for all.

use crate::batch_runner::BatchRunner;
use crate::detokenizer::IncrementalDetokenizer;
use crate::generation::{FinishReason, GenerateEvent, GenerateOptions, GenerateOutput};
use crate::generator::can_sample;
use crate::lane::Lane;
use crate::{Model, RuntimeError, RuntimeErrorKind, Sampler};
use kv::SeqId;
use std::time::Instant;

impl BatchRunner {
    /// Generates on several sequences, with one forward for all and one sampler for each. Every sequence must have
    /// logits or a pending token; its last generated token is pending at the end. `on_event` receives each event with its sequence and returns false to cancel. If
    /// [`enable_context_shift`](BatchRunner::enable_context_shift) was called, the sequences are shifted when the pool is
    /// full.
    pub fn generate(
        &mut self,
        model: &Model,
        sequences: &mut [(SeqId, Sampler)],
        options: &GenerateOptions,
        mut on_event: impl FnMut(SeqId, GenerateEvent) -> bool,
    ) -> Result<Vec<GenerateOutput>, RuntimeError> {
        let start = Instant::now();
        let mut lanes = Vec::new();
        for (seq, sampler) in sequences {
            if !can_sample(&self.sequence(*seq), sampler.wanted(), model) {
                return Err(RuntimeErrorKind::EmptyPrompt.into());
            }
            let history = self.tokens(*seq).iter();
            let detokenizer = IncrementalDetokenizer::new(options.clone(), history);
            lanes.push(Lane::new(*seq, sampler, model, detokenizer));
        }
        while lanes.iter().any(|lane| lane.finish.is_none()) {
            self.advance(&mut lanes, &mut on_event)?;
        }
        let lanes = lanes.into_iter();
        let ended = lanes.map(|lane| lane.end_of_batch(start, &mut on_event));
        Ok(ended.collect())
    }

    /// Feeds the last tokens of the running lanes in one forward, samples a token for each and shows its text.
    fn advance(
        &mut self,
        lanes: &mut [Lane<'_>],
        on_event: &mut impl FnMut(SeqId, GenerateEvent) -> bool,
    ) -> Result<(), RuntimeError> {
        let end = |lanes: &mut [Lane<'_>], reason| {
            for lane in lanes {
                lane.finish = lane.finish.or(Some(reason));
            }
        };
        let running = lanes.iter().filter(|lane| lane.finish.is_none());
        let pending = running.map(|lane| lane.seq);
        let pending: Vec<SeqId> = pending.filter(|seq| self.is_pending(*seq)).collect();
        if !pending.is_empty() {
            if !self.make_room(&pending)? {
                end(lanes, FinishReason::Context);
                return Ok(());
            }
            self.feed_pending(&pending, Lane::wanted(lanes.iter()))?;
        }
        let mut go_on = true;
        for lane in lanes.iter_mut().filter(|lane| lane.finish.is_none()) {
            let (token, more) = lane.sample(self.row(lane.seq), on_event);
            lane.decoded += usize::from(pending.contains(&lane.seq));
            self.append(lane.seq, token);
            go_on &= more;
        }
        if !go_on {
            end(lanes, FinishReason::Interrupted);
        }
        Ok(())
    }

    /// Shifts full contexts if the caller enabled context shifts. Returns whether the pending tokens of these sequences fit.
    pub(crate) fn make_room(&mut self, pending: &[SeqId]) -> Result<bool, RuntimeError> {
        for seq in pending {
            if self.has_cells(pending.len())? {
                break;
            }
            self.shift_context(*seq)?;
        }
        self.has_cells(pending.len())
    }
}
