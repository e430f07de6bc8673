//! `SequenceHandle`: one sequence of a `BatchRunner`.

use super::{BatchRunner, BatchToken};
use crate::{Runner, RuntimeError, RuntimeErrorKind};
use backend::{LogitsMode, RowOutputs};
use kv::SeqId;

/// A mutable handle on one sequence.
///
/// The last token of a sequence can be *pending*: it was sampled and is part of the sequence, but it is not fed yet. The next
/// [`feed`](SequenceHandle::feed) feeds it before its own tokens, so that a generation needs no forward after its last token.
pub struct SequenceHandle<'a> {
    pub(crate) runner: &'a mut BatchRunner,
    pub(crate) seq: SeqId,
}

impl<'a> SequenceHandle<'a> {
    pub(crate) fn new(runner: &'a mut BatchRunner, seq: SeqId) -> SequenceHandle<'a> {
        SequenceHandle { runner, seq }
    }

    /// The tokens of the sequence, with the pending one.
    pub fn tokens(&self) -> &[u32] {
        self.runner.tokens(self.seq)
    }

    /// Whether the last token is pending.
    pub fn is_pending(&self) -> bool {
        self.runner.is_pending(self.seq)
    }

    /// The logits after the last token; empty if they were not computed.
    pub fn logits(&self) -> &[f32] {
        self.runner.logits(self.seq)
    }

    /// The outputs after the last token: all logits, or those that [`feed_wanted`](SequenceHandle::feed_wanted) computed.
    pub fn row(&self) -> RowOutputs<'_> {
        self.runner.row(self.seq)
    }

    /// Shifts a full context if the caller enabled context shifts. Returns whether the pending token fits or, without one, one more
    /// token.
    pub fn ensure_capacity(&mut self) -> Result<bool, RuntimeError> {
        self.runner.make_room(&[self.seq], 1)
    }

    /// Feeds the pending token, if there is one, and these tokens, in steps of at most the batch size, and keeps the logits
    /// after the last one. `progress` receives the number of these tokens done and returns false to cancel. Returns whether all
    /// tokens were fed.
    pub fn feed(
        &mut self,
        tokens: &[u32],
        progress: impl FnMut(usize) -> bool,
    ) -> Result<bool, RuntimeError> {
        self.feed_wanted(tokens, LogitsMode::Logits, progress)
    }

    /// Feeds tokens as [`feed`](SequenceHandle::feed) does, and computes only the wanted outputs after the last one.
    pub fn feed_wanted(
        &mut self,
        tokens: &[u32],
        wanted: LogitsMode,
        mut progress: impl FnMut(usize) -> bool,
    ) -> Result<bool, RuntimeError> {
        self.check(tokens)?;
        let pending = usize::from(self.is_pending());
        let seq = self.seq;
        if tokens.is_empty() && pending > 0 {
            self.step(&[], wanted, true)?;
            return Ok(true);
        }
        let most = self.runner.max_step_tokens();
        if pending == most {
            self.step(&[], wanted, false)?;
        }
        let mut done = 0;
        while done < tokens.len() {
            // The pending token is part of the first step.
            let room = most - usize::from(self.runner.is_pending(seq));
            let chunk = &tokens[done..tokens.len().min(done + room)];
            let last = done + chunk.len() == tokens.len();
            self.step(chunk, wanted, last)?;
            done += chunk.len();
            if !progress(done) && !last {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn step(
        &mut self,
        tokens: &[u32],
        wanted: LogitsMode,
        logits: bool,
    ) -> Result<(), RuntimeError> {
        let seq = self.seq;
        let part = super::Feed::Tokens {
            seq,
            tokens,
            logits,
        };
        self.runner.forward(&[part], wanted)
    }

    /// Feeds tokens and calls `row` with the index and the logits of each.
    pub fn feed_all_logits(
        &mut self,
        tokens: &[u32],
        mut row: impl FnMut(usize, &[f32]) -> bool,
    ) -> Result<(), RuntimeError> {
        self.check(tokens)?;
        self.feed_wanted(&[], LogitsMode::Argmax, |_| true)?;
        let mut done = 0;
        for chunk in tokens.chunks(self.runner.max_step_tokens().min(Runner::MAX_SCORED_STEP)) {
            let token = |id: &u32| BatchToken {
                seq: self.seq,
                id: *id,
                logits: true,
            };
            let step: Vec<BatchToken> = chunk.iter().map(token).collect();
            self.runner.step_wanted(&step, &[], LogitsMode::Logits)?;
            for i in 0..chunk.len() {
                if !row(done, self.runner.decoder.outputs.logits(i)) {
                    return Ok(());
                }
                done += 1;
            }
        }
        Ok(())
    }

    /// Returns an error if the pending token and these tokens do not fit, or for a token id outside the vocabulary.
    pub(crate) fn check(&self, tokens: &[u32]) -> Result<(), RuntimeError> {
        let needed = usize::from(self.is_pending()) + tokens.len();
        if !self.runner.has_cells(needed)? {
            let (capacity, used) = (self.runner.capacity()?, self.runner.cells_used()?);
            return Err(RuntimeErrorKind::PromptTooLong {
                tokens: needed,
                room: capacity - used,
                capacity,
            }
            .into());
        }
        self.runner.decoder.check_ids(tokens.iter().copied())
    }
}

impl<'a> From<&'a mut Runner> for SequenceHandle<'a> {
    fn from(runner: &'a mut Runner) -> SequenceHandle<'a> {
        runner.sequence()
    }
}

impl<'a> From<&'a mut SequenceHandle<'_>> for SequenceHandle<'a> {
    fn from(handle: &'a mut SequenceHandle<'_>) -> SequenceHandle<'a> {
        SequenceHandle::new(handle.runner, handle.seq)
    }
}
