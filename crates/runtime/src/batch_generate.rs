//! Generation on several sequences at once, with one forward for all.

use crate::batch_runner::{BatchRunner, BatchToken};
use crate::detokenizer::IncrementalDetokenizer;
use crate::generation::{FinishReason, GenerateEvent, GenerateOptions, GenerateOutput};
use crate::lane::Lane;
use crate::{Model, RuntimeError, RuntimeErrorKind, Sampler};
use kv::SeqId;
use std::time::Instant;

impl BatchRunner {
    /// Generates on several sequences, with one forward for all and one sampler for each. Every sequence must have
    /// logits. `on_event` receives each event with its sequence and returns false to cancel. If
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
            let vocab = model.facts().vocab_size;
            if !self.row(*seq).holds(sampler.wanted(), vocab) {
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

    /// Samples a token for each running lane, shows its text and feeds all tokens in one forward.
    fn advance(
        &mut self,
        lanes: &mut [Lane<'_>],
        on_event: &mut impl FnMut(SeqId, GenerateEvent) -> bool,
    ) -> Result<(), RuntimeError> {
        let mut next = Vec::with_capacity(lanes.len());
        let mut go_on = true;
        for lane in lanes.iter_mut().filter(|lane| lane.finish.is_none()) {
            let (id, more) = lane.sample(self.row(lane.seq), on_event);
            go_on &= more;
            next.extend(lane.finish.is_none().then_some(BatchToken {
                seq: lane.seq,
                id,
                logits: true,
            }));
        }
        if next.is_empty() {
            return Ok(());
        }
        let end = match go_on {
            false => Some(FinishReason::Interrupted),
            true if !self.make_room(&next)? => Some(FinishReason::Context),
            true => None,
        };
        if end.is_some() {
            lanes
                .iter_mut()
                .for_each(|lane| lane.finish = lane.finish.or(end));
            return Ok(());
        }
        self.step_wanted(&next, &[], Lane::wanted(lanes.iter()))
    }

    /// Shifts full contexts if the caller enabled context shifts. Returns whether these tokens fit.
    fn make_room(&mut self, next: &[BatchToken]) -> Result<bool, RuntimeError> {
        for token in next {
            if self.can_extend(next.len())? {
                break;
            }
            self.shift_context(token.seq)?;
        }
        self.can_extend(next.len())
    }
}
