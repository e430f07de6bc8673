//! `Runner`: decodes one sequence on one model.

use crate::context_shift::{ContextShift, ContextShifter};
use crate::decoder::Decoder;
use crate::generation::{GenerateEvent, GenerateOptions, GenerateOutput};
use crate::generator::generate;
use crate::lane::DecodeContext;
use crate::memory::{CacheKind, MemoryPlan, MemoryUsage};
use crate::options::{RunnerOptions, StepSize};
use crate::prefix::PromptPrefix;
use crate::snapshot::{self, Contents, Snapshot};
use crate::{Model, RuntimeError, RuntimeErrorKind, Sampler};
use backend::{Backend, NodeProfile, RowOutputs, RunMode, Wanted};
use kv::{BackendOptions, CacheSession, Contiguous, make_decode_session, make_prefixed_session};
use std::path::Path;

/// Decodes one sequence on one model.
pub struct Runner {
    decoder: Decoder,
    session: CacheSession<Contiguous>,
    /// The tokens whose keys and values are cached, and the pending token.
    tokens: Vec<u32>,
    /// Whether the last token is pending: sampled, and not fed yet.
    pending: bool,
    /// Whether the decoder's outputs are those after the last token.
    has_outputs: bool,
    shifter: Option<ContextShifter>,
}

impl Runner {
    /// The maximum number of tokens in a step of [`feed_all_logits`](Runner::feed_all_logits). Steps are small because
    /// the logits of many rows are large; the results do not depend on the step size.
    pub const MAX_SCORED_STEP: usize = 128;

    /// A runner of `model` on `backend`.
    pub fn new(
        model: &Model,
        backend: &dyn Backend,
        options: &RunnerOptions,
    ) -> Result<Runner, RuntimeError> {
        let kind = CacheKind::Contiguous;
        let plan = MemoryPlan::for_decoder(model, backend, options, kind, None)?;
        let made = make_decode_session(backend.id(), &plan.cache)?;
        Runner::load(model, backend, options, plan.step, made, vec![])
    }

    /// A runner that starts after a frozen prefix, which a runner on the same model and backend made.
    ///
    /// # Errors
    /// `InvalidOptions` if the prefix belongs to another model, `Cache` if context or storage types differ, and the errors of
    /// [`new`](Runner::new).
    pub fn with_prefix(
        prefix: &PromptPrefix,
        model: &Model,
        backend: &dyn Backend,
        options: &RunnerOptions,
    ) -> Result<Runner, RuntimeError> {
        prefix.check_model(model)?;
        let kind = CacheKind::Contiguous;
        let plan = MemoryPlan::for_decoder(model, backend, options, kind, Some(prefix))?;
        let made = make_prefixed_session(&prefix.shared)?;
        let tokens = prefix.tokens().to_vec();
        Runner::load(model, backend, options, plan.step, made, tokens)
    }

    fn load(
        model: &Model,
        backend: &dyn Backend,
        options: &RunnerOptions,
        step: StepSize,
        (session, binding): (CacheSession<Contiguous>, BackendOptions),
        tokens: Vec<u32>,
    ) -> Result<Runner, RuntimeError> {
        Ok(Runner {
            decoder: Decoder::load(model, backend, options, step, 1, binding)?,
            session,
            tokens,
            pending: false,
            has_outputs: false,
            shifter: None,
        })
    }

    /// The run mode of steps: the one of the options, or the mode that the backend supports instead.
    pub fn run_mode(&self) -> RunMode {
        self.decoder.run_mode()
    }

    /// Changes the run mode of later steps. Keeps the weights and the cache.
    pub fn set_run_mode(&mut self, mode: RunMode) -> Result<(), RuntimeError> {
        self.decoder.set_run_mode(mode)
    }

    /// Enables context shifts: when the context is full, a generation keeps the first `keep` tokens and drops the older
    /// half of the others.
    ///
    /// # Errors
    /// `Backend` if the keys of the model cannot be moved to other positions.
    pub fn enable_context_shift(&mut self, keep: usize) -> Result<(), RuntimeError> {
        let layers = self.session.config()?.layers.len();
        self.shifter = Some(ContextShifter::new(self.decoder.graph(), layers, keep)?);
        Ok(())
    }

    /// Shifts the context now, if [`enable_context_shift`](Runner::enable_context_shift) was called. Returns `None` if nothing was
    /// dropped.
    pub fn shift_context(&mut self) -> Result<Option<ContextShift>, RuntimeError> {
        let Some(shifter) = &self.shifter else {
            return Ok(None);
        };
        let shift = shifter.shift(&self.session, 0, self.fed())?;
        if let Some(shift) = shift {
            shift.apply(&mut self.tokens);
        }
        Ok(shift)
    }

    /// Freezes the context into a prefix that other runners can share, after the pending token was fed. This runner continues
    /// after it. `model` is the runner's model.
    pub fn freeze(&mut self, model: &Model) -> Result<PromptPrefix, RuntimeError> {
        self.feed(&[], |_| true)?;
        let shared = self.session.freeze()?;
        Ok(PromptPrefix::new(shared, self.tokens.clone(), model))
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
        &self.tokens
    }

    /// Whether the last token is pending: a generation sampled it, and [`feed`](Runner::feed) feeds it before its own tokens.
    pub fn is_pending(&self) -> bool {
        self.pending
    }

    /// The number of tokens whose keys and values are cached.
    fn fed(&self) -> usize {
        self.tokens.len() - usize::from(self.pending)
    }

    /// The size of the context in tokens.
    pub fn capacity(&self) -> Result<usize, RuntimeError> {
        Ok(self.session.capacity()? as usize)
    }

    /// Whether the pending token, if there is one, and `n` more tokens fit.
    pub fn can_extend(&self, n: usize) -> Result<bool, RuntimeError> {
        match u32::try_from(n.saturating_add(usize::from(self.pending))) {
            Ok(n) => Ok(self.session.can_extend(n)?),
            Err(_) => Ok(false),
        }
    }

    /// The logits after the last token; empty before the first token, after a rewind, while the last token is pending, and after
    /// a generation whose sampler needed the most likely tokens only. Feeding nothing computes those after a pending token.
    pub fn logits(&self) -> &[f32] {
        self.row().logits()
    }

    /// The outputs after the last token.
    pub fn row(&self) -> RowOutputs<'_> {
        match self.has_outputs {
            true => self.decoder.outputs.row(0),
            false => RowOutputs::Logits(&[]),
        }
    }

    /// Feeds the pending token, if there is one, and these tokens, in steps of at most the batch size, and keeps the logits
    /// after the last one. `progress` receives the number of these tokens done and returns false to cancel. Returns whether all
    /// tokens were fed.
    pub fn feed(
        &mut self,
        tokens: &[u32],
        mut progress: impl FnMut(usize) -> bool,
    ) -> Result<bool, RuntimeError> {
        self.feed_wanted(tokens, Wanted::Logits, &mut progress)
    }

    fn feed_wanted(
        &mut self,
        tokens: &[u32],
        wanted: Wanted,
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<bool, RuntimeError> {
        self.check(tokens)?;
        let before = usize::from(self.pending);
        let pending = self.tokens[self.fed()..].iter();
        let all: Vec<u32> = pending.chain(tokens).copied().collect();
        let mut done = 0;
        for chunk in all.chunks(self.decoder.max_step_tokens()) {
            let last = done + chunk.len() == all.len();
            self.begin_step(chunk);
            if last {
                self.decoder.step.want_last();
            }
            self.run_step(chunk, wanted)?;
            self.has_outputs = last;
            done += chunk.len();
            if !progress(done - before) && !last {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Feeds tokens and calls `row` with the index and the logits of each.
    pub fn feed_all_logits(
        &mut self,
        tokens: &[u32],
        mut row: impl FnMut(usize, &[f32]) -> bool,
    ) -> Result<(), RuntimeError> {
        self.check(tokens)?;
        self.feed_wanted(&[], Wanted::Argmax, &mut |_| true)?;
        let mut done = 0;
        for chunk in tokens.chunks(self.decoder.max_step_tokens().min(Runner::MAX_SCORED_STEP)) {
            self.begin_step(chunk);
            (0..chunk.len() as u32).for_each(|row| self.decoder.step.want(row));
            self.run_step(chunk, Wanted::Logits)?;
            for i in 0..chunk.len() {
                if !row(done, self.decoder.outputs.logits(i)) {
                    return Ok(());
                }
                done += 1;
            }
        }
        Ok(())
    }

    /// Removes all tokens after the first `len`.
    pub fn rewind(&mut self, len: usize) -> Result<(), RuntimeError> {
        let keeps_pending = self.pending && len == self.tokens.len();
        let fed = len - usize::from(keeps_pending);
        match fed {
            0 if !self.tokens.is_empty() => self.session.clear()?,
            _ => self
                .session
                .rewind(u32::try_from(fed).unwrap_or(u32::MAX))?,
        }
        if (self.session.len()? as usize) != fed {
            // A session with a shared prefix cannot be cleared below the prefix.
            return Err(
                RuntimeErrorKind::InvalidOptions("a shared prefix is read-only".into()).into(),
            );
        }
        self.tokens.truncate(len);
        self.pending = keeps_pending;
        self.has_outputs = false;
        Ok(())
    }

    /// Writes the context and the caller's notes to a snapshot file. An existing file is replaced atomically. A pending token has
    /// no keys and values and is left out: feeding nothing feeds it.
    pub fn save(&self, model: &Model, path: &Path, notes: &[u8]) -> Result<(), RuntimeError> {
        let tokens = &self.tokens[..self.fed()];
        snapshot::save(path, model, &self.session, 0, Contents { tokens, notes })
    }

    /// Replaces the context by the first `len` tokens of a snapshot. There are no logits until a token is fed. An error
    /// leaves the context unchanged, except that a device error leaves it empty.
    pub fn restore(
        &mut self,
        model: &Model,
        snapshot: &Snapshot,
        len: usize,
    ) -> Result<(), RuntimeError> {
        snapshot::restore(snapshot, model, &self.session, 0, len)?;
        self.tokens = snapshot.tokens()[..len].to_vec();
        self.pending = false;
        self.has_outputs = false;
        Ok(())
    }

    /// Restores the longest common prefix of a snapshot and `prompt`, and returns its length. At least the last token
    /// of `prompt` is left to be fed. Returns 0 if the snapshot's ring layers lack the rows of that prefix.
    pub fn resume(
        &mut self,
        model: &Model,
        snapshot: &Snapshot,
        prompt: &[u32],
    ) -> Result<usize, RuntimeError> {
        let most = prompt.len().saturating_sub(1).min(self.capacity()?);
        let known = common_prefix_len(snapshot.tokens(), prompt).min(most);
        if known < snapshot.min_restore_len() {
            snapshot.check(model, &self.session.config()?)?;
            self.rewind(0)?;
            return Ok(0);
        }
        self.restore(model, snapshot, known)?;
        Ok(known)
    }

    /// Starts or stops measuring nodes.
    pub fn set_profiling(&mut self, on: bool) {
        self.decoder.set_profiling(on);
    }

    /// The measurements since profiling was started.
    pub fn profile(&self) -> Vec<NodeProfile> {
        self.decoder.profile()
    }

    /// The memory in use now.
    pub fn memory(&self) -> Result<MemoryUsage, RuntimeError> {
        Ok(self.decoder.memory(self.session.resident_bytes()?))
    }

    fn check(&self, tokens: &[u32]) -> Result<(), RuntimeError> {
        if !self.can_extend(tokens.len())? {
            let capacity = self.capacity()?;
            return Err(RuntimeErrorKind::PromptTooLong {
                tokens: tokens.len() + usize::from(self.pending),
                room: capacity - self.fed(),
                capacity,
            }
            .into());
        }
        self.decoder.check_ids(tokens.iter().copied())
    }

    /// Builds the step that feeds these tokens, without wanted rows.
    fn begin_step(&mut self, tokens: &[u32]) {
        let step = &mut self.decoder.step;
        step.clear();
        step.extend(
            0,
            (self.tokens.len() - usize::from(self.pending)) as u32,
            tokens,
        );
    }

    /// Runs the built step, which feeds these tokens; a pending token is the first of them.
    fn run_step(&mut self, tokens: &[u32], wanted: Wanted) -> Result<(), RuntimeError> {
        self.has_outputs = false;
        self.decoder.run(wanted)?;
        self.tokens.truncate(self.fed());
        self.pending = false;
        self.tokens.extend_from_slice(tokens);
        Ok(())
    }
}

impl DecodeContext for Runner {
    fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    fn append(&mut self, token: u32) {
        assert!(!self.pending, "the last token must be fed first");
        self.tokens.push(token);
        self.pending = true;
        self.has_outputs = false;
    }

    fn is_pending(&self) -> bool {
        self.pending
    }

    fn logits(&self) -> &[f32] {
        Runner::logits(self)
    }

    fn row(&self) -> RowOutputs<'_> {
        Runner::row(self)
    }

    fn has_capacity(&self) -> Result<bool, RuntimeError> {
        self.can_extend(usize::from(!self.pending))
    }

    fn ensure_capacity(&mut self) -> Result<bool, RuntimeError> {
        Ok(self.has_capacity()? || self.shift_context()?.is_some())
    }

    fn feed(
        &mut self,
        tokens: &[u32],
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<bool, RuntimeError> {
        Runner::feed(self, tokens, progress)
    }

    fn feed_wanted(
        &mut self,
        tokens: &[u32],
        wanted: Wanted,
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<bool, RuntimeError> {
        Runner::feed_wanted(self, tokens, wanted, progress)
    }
}

/// The length of the common prefix of two token sequences.
pub fn common_prefix_len(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
