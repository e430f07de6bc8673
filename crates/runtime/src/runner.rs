//! `Runner`: a batch runner of one sequence.

use crate::batch_runner::{BatchRunner, SequenceHandle};
use crate::context_shift::ContextShift;
use crate::generation::{GenerateEvent, GenerateOptions, GenerateOutput};
use crate::generator::generate;
use crate::memory::{CacheKind, MemoryUsage};
use crate::options::RunnerOptions;
use crate::prefix::PromptPrefix;
use crate::snapshot::Snapshot;
use crate::{Model, RuntimeError, Sampler};
use backend::{Backend, NodeProfile, RowOutputs, RunMode};
use kv::CacheOperations;
use std::path::Path;

/// Decodes one sequence on one model: sequence 0 of a [`BatchRunner`].
pub struct Runner {
    batch: BatchRunner,
}

impl From<BatchRunner> for Runner {
    fn from(batch: BatchRunner) -> Runner {
        Runner { batch }
    }
}

impl Runner {
    /// The maximum number of tokens in a step of [`feed_all_logits`](Runner::feed_all_logits). Steps are small because
    /// the logits of many rows are large; the results do not depend on the step size.
    pub const MAX_SCORED_STEP: usize = 128;

    /// A runner of `model` on `backend`, on a contiguous cache.
    pub fn new(
        model: &Model,
        backend: &dyn Backend,
        options: &RunnerOptions,
    ) -> Result<Runner, RuntimeError> {
        let kind = CacheKind::Contiguous;
        Ok(BatchRunner::with_cache_kind(model, backend, options, kind, 0)?.into())
    }

    /// A runner that starts after a frozen prefix; see [`BatchRunner::with_prefix`].
    pub fn with_prefix(
        prefix: &PromptPrefix,
        model: &Model,
        backend: &dyn Backend,
        options: &RunnerOptions,
    ) -> Result<Runner, RuntimeError> {
        Ok(BatchRunner::with_prefix(prefix, model, backend, options)?.into())
    }

    /// A runner on a cache of the caller's; see [`BatchRunner::with_cache`].
    pub fn with_cache(
        model: &Model,
        backend: &dyn Backend,
        options: &RunnerOptions,
        cache: Box<dyn CacheOperations>,
    ) -> Result<Runner, RuntimeError> {
        Ok(BatchRunner::with_cache(model, backend, options, cache)?.into())
    }

    /// The batch runner, whose sequence 0 this is.
    pub fn batch(&mut self) -> &mut BatchRunner {
        &mut self.batch
    }

    /// A handle on the sequence.
    pub fn sequence(&mut self) -> SequenceHandle<'_> {
        self.batch.sequence(0)
    }

    /// The run mode of steps: the one of the options, or the mode that the backend supports instead.
    pub fn run_mode(&self) -> RunMode {
        self.batch.run_mode()
    }

    /// Changes the run mode of later steps. Keeps the weights and the cache.
    pub fn set_run_mode(&mut self, mode: RunMode) -> Result<(), RuntimeError> {
        self.batch.set_run_mode(mode)
    }

    /// Enables context shifts; see [`BatchRunner::enable_context_shift`].
    pub fn enable_context_shift(&mut self, keep: usize) -> Result<(), RuntimeError> {
        self.batch.enable_context_shift(keep)
    }

    /// Shifts the context now; see [`BatchRunner::shift_context`].
    pub fn shift_context(&mut self) -> Result<Option<ContextShift>, RuntimeError> {
        self.batch.shift_context(0)
    }

    /// Freezes the context into a prefix that other runners can share; see [`BatchRunner::freeze`].
    pub fn freeze(&mut self, model: &Model) -> Result<PromptPrefix, RuntimeError> {
        self.batch.freeze(model)
    }

    /// Appends `prompt` to the context and generates a continuation; see [`generate`]. A generation without a prompt continues
    /// the last one.
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

    /// The tokens in the context, with the pending one.
    pub fn tokens(&self) -> &[u32] {
        self.batch.tokens(0)
    }

    /// Whether the last token is pending: a generation sampled it, and [`feed`](Runner::feed) feeds it before its own tokens.
    pub fn is_pending(&self) -> bool {
        self.batch.is_pending(0)
    }

    /// The size of the context in tokens.
    pub fn capacity(&self) -> Result<usize, RuntimeError> {
        self.batch.capacity()
    }

    /// Whether the pending token, if there is one, and `n` more tokens fit.
    pub fn can_extend(&self, n: usize) -> Result<bool, RuntimeError> {
        self.batch.can_extend(n)
    }

    /// The logits after the last token; empty before the first token, after a rewind, while the last token is pending, and after
    /// a generation whose sampler needed the most likely tokens only. Feeding nothing computes those after a pending token.
    pub fn logits(&self) -> &[f32] {
        self.batch.logits(0)
    }

    /// The outputs after the last token.
    pub fn row(&self) -> RowOutputs<'_> {
        self.batch.row(0)
    }

    /// Feeds tokens; see [`SequenceHandle::feed`].
    pub fn feed(
        &mut self,
        tokens: &[u32],
        progress: impl FnMut(usize) -> bool,
    ) -> Result<bool, RuntimeError> {
        self.sequence().feed(tokens, progress)
    }

    /// Feeds tokens and calls `row` with the index and the logits of each.
    pub fn feed_all_logits(
        &mut self,
        tokens: &[u32],
        row: impl FnMut(usize, &[f32]) -> bool,
    ) -> Result<(), RuntimeError> {
        self.sequence().feed_all_logits(tokens, row)
    }

    /// Removes all tokens after the first `len`.
    pub fn rewind(&mut self, len: usize) -> Result<(), RuntimeError> {
        self.batch.rewind(0, len)
    }

    /// Writes the context and the caller's notes to a snapshot file; see [`BatchRunner::save`].
    pub fn save(&self, model: &Model, path: &Path, notes: &[u8]) -> Result<(), RuntimeError> {
        self.batch.save(model, 0, path, notes)
    }

    /// Replaces the context by the first `len` tokens of a snapshot; see [`BatchRunner::restore_prefix`].
    pub fn restore(
        &mut self,
        model: &Model,
        snapshot: &Snapshot,
        len: usize,
    ) -> Result<(), RuntimeError> {
        self.batch.restore_prefix(model, 0, snapshot, len)
    }

    /// Restores the longest common prefix of a snapshot and `prompt`; see [`BatchRunner::resume`].
    pub fn resume(
        &mut self,
        model: &Model,
        snapshot: &Snapshot,
        prompt: &[u32],
    ) -> Result<usize, RuntimeError> {
        self.batch.resume(model, 0, snapshot, prompt)
    }

    /// Starts or stops measuring nodes.
    pub fn set_profiling(&mut self, on: bool) {
        self.batch.set_profiling(on);
    }

    /// The measurements since profiling was started.
    pub fn profile(&self) -> Vec<NodeProfile> {
        self.batch.profile()
    }

    /// The memory in use now.
    pub fn memory(&self) -> Result<MemoryUsage, RuntimeError> {
        self.batch.memory()
    }
}

/// The length of the common prefix of two token sequences.
pub fn common_prefix_len(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
