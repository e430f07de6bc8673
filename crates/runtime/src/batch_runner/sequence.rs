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

    fn append(&mut self, token: u32) {
        self.runner.append(self.seq, token);
    }

    fn is_pending(&self) -> bool {
        self.runner.is_pending(self.seq)
    }

    fn logits(&self) -> &[f32] {
        self.runner.logits(self.seq)
    }

    fn row(&self) -> RowOutputs<'_> {
        self.runner.row(self.seq)
    }

    fn has_capacity(&self) -> Result<bool, RuntimeError> {
        self.runner.has_cells(1)
    }

    fn ensure_capacity(&mut self) -> Result<bool, RuntimeError> {
        self.runner.make_room(&[self.seq])
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
        let before = usize::from(self.is_pending());
        let needed = before + tokens.len();
        if !self.runner.has_cells(needed)? {
            let (capacity, used) = (self.runner.capacity()?, self.runner.cells_used()?);
            return Err(RuntimeErrorKind::PromptTooLong {
                tokens: needed,
                room: capacity - used,
                capacity,
            }
            .into());
        }
        self.runner.decoder.check_ids(tokens.iter().copied())?;
        let seq = self.seq;
        let pending = self.runner.take_pending(seq);
        let all: Vec<u32> = pending.into_iter().chain(tokens.iter().copied()).collect();
        let mut done = 0;
        for chunk in all.chunks(self.runner.decoder.max_step_tokens()) {
            let last = done + chunk.len() == all.len();
            let token = |(i, id): (usize, &u32)| BatchToken {
                seq,
                id: *id,
                logits: last && i + 1 == chunk.len(),
            };
            let step: Vec<BatchToken> = chunk.iter().enumerate().map(token).collect();
            let ran = self.runner.run(&step, &[], wanted);
            if let (Err(_), 0, Some(token)) = (&ran, done, pending) {
                self.append(token);
            }
            ran?;
            done += chunk.len();
            if !progress(done - before) && !last {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
