//! `SequenceHandle`: one sequence of a `BatchRunner`, for the generation loop.

use super::{BatchRunner, BatchToken};
use crate::lane::DecodeContext;
use crate::{RuntimeError, RuntimeErrorKind};
use backend::{RowOutputs, Wanted};
use kv::SeqId;

/// A mutable handle on one sequence.
pub struct SequenceHandle<'a> {
    pub(super) runner: &'a mut BatchRunner,
    pub(super) seq: SeqId,
}

impl DecodeContext for SequenceHandle<'_> {
    fn tokens(&self) -> &[u32] {
        self.runner.tokens(self.seq)
    }

    fn logits(&self) -> &[f32] {
        self.runner.logits(self.seq)
    }

    fn row(&self) -> RowOutputs<'_> {
        self.runner.row(self.seq)
    }

    fn has_capacity(&self) -> Result<bool, RuntimeError> {
        self.runner.can_extend(1)
    }

    fn ensure_capacity(&mut self) -> Result<bool, RuntimeError> {
        if !self.runner.can_extend(1)? {
            self.runner.shift_context(self.seq)?;
        }
        self.runner.can_extend(1)
    }

    fn feed(
        &mut self,
        tokens: &[u32],
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<bool, RuntimeError> {
        self.feed_wanted(tokens, Wanted::Logits, progress)
    }

    fn feed_wanted(
        &mut self,
        tokens: &[u32],
        wanted: Wanted,
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<bool, RuntimeError> {
        if !self.runner.can_extend(tokens.len())? {
            let (capacity, used) = (self.runner.capacity()?, self.runner.cells_used()?);
            let room = capacity - used;
            return Err(RuntimeErrorKind::PromptTooLong {
                tokens: tokens.len(),
                room,
                capacity,
            }
            .into());
        }
        self.runner.decoder.check_ids(tokens.iter().copied())?;
        let mut done = 0;
        for chunk in tokens.chunks(self.runner.decoder.max_step_tokens()) {
            done += chunk.len();
            let last = done == tokens.len();
            let seq = self.seq;
            let token = move |(i, id): (usize, &u32)| BatchToken {
                seq,
                id: *id,
                logits: last && i + 1 == chunk.len(),
            };
            let tokens = chunk.iter().enumerate().map(token);
            self.runner.run(tokens, &[], wanted)?;
            if !progress(done) && !last {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
