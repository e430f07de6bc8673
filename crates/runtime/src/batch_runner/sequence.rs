//! `SequenceRunner`: one sequence of a `BatchRunner`, borrowed or owned.

use super::{BatchRunner, BatchToken};
use crate::context_shift::ContextShift;
use crate::generation::{GenerateEvent, GenerateOptions, GenerateOutput};
use crate::generator::generate;
use crate::memory::CacheKind;
use crate::options::RunnerOptions;
use crate::snapshot::Snapshot;
use crate::{Model, RuntimeError, RuntimeErrorKind, Sampler};
use backend::{Backend, LogitsMode, RowOutputs};
use kv::SeqId;
use std::borrow::BorrowMut;
use std::ops::{Deref, DerefMut};
use std::path::Path;

/// One sequence of a batch runner. What concerns all sequences of the runner is there by `Deref`.
///
/// The last token of a sequence can be *pending*: it was sampled and is part of the sequence, but it is not fed yet. The next
/// [`feed`](SequenceRunner::feed) feeds it before its own tokens, so that a generation needs no forward after its last token.
pub struct SequenceRunner<R> {
    pub(crate) runner: R,
    pub(crate) seq: SeqId,
}

/// A mutable handle on one sequence of a batch runner.
pub type SequenceHandle<'a> = SequenceRunner<&'a mut BatchRunner>;

/// Decodes one sequence on one model: sequence 0 of a [`BatchRunner`] of its own.
pub type Runner = SequenceRunner<BatchRunner>;

impl Runner {
    /// The maximum number of tokens in a step of [`feed_all_logits`](SequenceRunner::feed_all_logits). Steps are small because
    /// the logits of many rows are large; the results do not depend on the step size.
    pub const MAX_SCORED_STEP: usize = 128;

    /// A runner of `model` on `backend`, on a contiguous cache; on cells if the model has recurrent layers.
    pub fn new(
        model: &Model,
        backend: &dyn Backend,
        options: &RunnerOptions,
    ) -> Result<Runner, RuntimeError> {
        let kind = CacheKind::of_one_sequence(model.facts());
        Ok(BatchRunner::with_cache_kind(model, backend, options, kind, 0)?.into())
    }
}

impl From<BatchRunner> for Runner {
    fn from(runner: BatchRunner) -> Runner {
        SequenceRunner { runner, seq: 0 }
    }
}

impl<'a, R: BorrowMut<BatchRunner>> From<&'a mut SequenceRunner<R>> for SequenceHandle<'a> {
    fn from(SequenceRunner { runner, seq }: &'a mut SequenceRunner<R>) -> SequenceHandle<'a> {
        runner.borrow_mut().sequence(*seq)
    }
}

impl<R: BorrowMut<BatchRunner>> Deref for SequenceRunner<R> {
    type Target = BatchRunner;

    fn deref(&self) -> &BatchRunner {
        self.runner.borrow()
    }
}

impl<R: BorrowMut<BatchRunner>> DerefMut for SequenceRunner<R> {
    fn deref_mut(&mut self) -> &mut BatchRunner {
        self.runner.borrow_mut()
    }
}

impl<R: BorrowMut<BatchRunner>> SequenceRunner<R> {
    /// The batch runner.
    pub fn batch(&mut self) -> &mut BatchRunner {
        self
    }

    /// Appends `prompt` and generates a continuation; see [`generate`]. A generation without a prompt continues the last one.
    pub fn generate(
        &mut self,
        model: &Model,
        prompt: &[u32],
        sampler: &mut Sampler,
        options: &GenerateOptions,
        on_event: impl FnMut(GenerateEvent) -> bool,
    ) -> Result<GenerateOutput, RuntimeError> {
        generate(self, model, prompt, sampler, options, on_event)
    }

    /// The tokens of the sequence, with the pending one.
    pub fn tokens(&self) -> &[u32] {
        self.deref().tokens(self.seq)
    }

    /// Whether the last token is pending.
    pub fn is_pending(&self) -> bool {
        self.deref().is_pending(self.seq)
    }

    /// The logits after the last token; empty before the first token, after a rewind, while the last token is pending, and after
    /// a generation whose sampler needed the most likely tokens only. Feeding nothing computes those after a pending token.
    pub fn logits(&self) -> &[f32] {
        self.deref().logits(self.seq)
    }

    /// The outputs after the last token: all logits, or those that [`feed_wanted`](SequenceRunner::feed_wanted) computed.
    pub fn row(&self) -> RowOutputs<'_> {
        self.deref().row(self.seq)
    }

    /// Removes all tokens after the first `len`; see [`BatchRunner::rewind`].
    pub fn rewind(&mut self, len: usize) -> Result<usize, RuntimeError> {
        let seq = self.seq;
        self.batch().rewind(seq, len)
    }

    /// Shifts the context now; see [`BatchRunner::shift_context`].
    pub fn shift_context(&mut self) -> Result<Option<ContextShift>, RuntimeError> {
        let seq = self.seq;
        self.batch().shift_context(seq)
    }

    /// Writes the sequence and the caller's notes to a snapshot file; see [`BatchRunner::save`].
    pub fn save(&self, model: &Model, path: &Path, notes: &[u8]) -> Result<(), RuntimeError> {
        self.deref().save(model, self.seq, path, notes)
    }

    /// Replaces the sequence by the first `len` tokens of a snapshot; see [`BatchRunner::restore_prefix`].
    pub fn restore(
        &mut self,
        model: &Model,
        snapshot: &Snapshot,
        len: usize,
    ) -> Result<(), RuntimeError> {
        let seq = self.seq;
        self.batch().restore_prefix(model, seq, snapshot, len)
    }

    /// Restores the longest common prefix of a snapshot and `prompt`; see [`BatchRunner::resume`].
    pub fn resume(
        &mut self,
        model: &Model,
        snapshot: &Snapshot,
        prompt: &[u32],
    ) -> Result<usize, RuntimeError> {
        let seq = self.seq;
        self.batch().resume(model, seq, snapshot, prompt)
    }

    /// Shifts a full context if the caller enabled context shifts. Returns whether the pending token fits or, without one, one more
    /// token.
    pub fn ensure_capacity(&mut self) -> Result<bool, RuntimeError> {
        let seq = self.seq;
        self.batch().make_room(&[seq], 1)
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

    /// Feeds tokens as [`feed`](SequenceRunner::feed) does, and computes only the wanted outputs after the last one.
    pub fn feed_wanted(
        &mut self,
        tokens: &[u32],
        wanted: LogitsMode,
        mut progress: impl FnMut(usize) -> bool,
    ) -> Result<bool, RuntimeError> {
        self.check(tokens)?;
        let pending = usize::from(self.is_pending());
        if tokens.is_empty() && pending > 0 {
            self.stream_room()?;
            self.step(&[], wanted, true)?;
            return Ok(true);
        }
        let most = self.max_step_tokens();
        let mut done = 0;
        while done < tokens.len() {
            // The pending token is part of the first step.
            let most = most.min(self.stream_room()?);
            let pending = usize::from(self.is_pending());
            if pending == most {
                self.step(&[], wanted, false)?;
                continue;
            }
            let room = most - pending;
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
        let outputs = match logits {
            true => super::FeedOutputs::Last,
            false => super::FeedOutputs::None,
        };
        let part = super::Feed::Tokens {
            seq,
            tokens,
            outputs,
            kept_states: super::KeptStates::default(),
        };
        self.batch().forward(&[part], wanted)
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
        while done < tokens.len() {
            let most = self.max_step_tokens().min(Runner::MAX_SCORED_STEP);
            let most = most.min(self.stream_room()?);
            let chunk = &tokens[done..tokens.len().min(done + most)];
            let token = |id: &u32| BatchToken {
                seq: self.seq,
                id: *id,
                logits: true,
            };
            let step: Vec<BatchToken> = chunk.iter().map(token).collect();
            self.batch().step_wanted(&step, &[], LogitsMode::Logits)?;
            for i in 0..chunk.len() {
                if !row(done, self.decoder.outputs.logits(i)) {
                    return Ok(());
                }
                done += 1;
            }
        }
        Ok(())
    }

    fn stream_room(&mut self) -> Result<usize, RuntimeError> {
        let seq = self.seq;
        self.batch().stream_room(seq)
    }

    /// Returns an error if the pending token and these tokens do not fit and the sequence is no stream, or for a token id outside the vocabulary.
    pub(crate) fn check(&self, tokens: &[u32]) -> Result<(), RuntimeError> {
        let needed = usize::from(self.is_pending()) + tokens.len();
        if self.stream_window().is_none() && !self.has_cells(needed)? {
            let (capacity, used) = (self.capacity()?, self.cells_used()?);
            return Err(RuntimeErrorKind::PromptTooLong {
                tokens: needed,
                room: capacity - used,
                capacity,
            }
            .into());
        }
        self.decoder.check_ids(tokens.iter().copied())
    }
}
