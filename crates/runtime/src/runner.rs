//! `Runner`: decodes one sequence on one model.

use crate::context_shift::{ContextShift, ContextShifter};
use crate::decoder::Decoder;
use crate::generate::{GenerateOptions, Generated, Piece, Sequence, generate};
use crate::memory::{CacheKind, MemoryLimit, MemoryPlan, PlannedModel, StepSize};
use crate::snapshot::{self, Contents, Snapshot};
use crate::{Model, RuntimeError, RuntimeErrorKind, Sampler};
use backend::{Backend, CompileOptions, NodeProfile, RunMode};
use import::ModelFacts;
use kv::{
    BackendOptions, CacheConfig, CacheFacts, CachePolicy, CacheSession, Contiguous, RingPolicy,
    SharedPrefix, Storage, make_decode_session, make_prefixed_session,
};
use std::path::Path;

/// The caller's choices for a run.
#[derive(Clone, Debug)]
pub struct Policy {
    /// The maximum number of tokens in the context; `None` for the model's own.
    pub context: Option<usize>,
    /// The maximum number of tokens in one step of a prefill.
    pub batch: usize,
    /// The storage type of keys.
    pub key_storage: Storage,
    /// The storage type of values.
    pub value_storage: Storage,
    /// Use rings in sliding-window layers: they keep only the rows of their window, plus those that one step or a
    /// rewind of the same length needs.
    pub rings: bool,
    /// The number of logit rows per step that memory is reserved for. A step that wants more rows allocates more.
    pub logit_rows: usize,
    /// The memory limit. A plan that exceeds it is refused before weights are loaded.
    pub memory: MemoryLimit,
    /// Threads and executor.
    pub compile: CompileOptions,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy {
            context: None,
            batch: 512,
            key_storage: Storage::default(),
            value_storage: Storage::default(),
            rings: true,
            logit_rows: 1,
            memory: MemoryLimit::default(),
            compile: CompileOptions::default(),
        }
    }
}

/// The memory that a runner uses, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryUsage {
    /// The model's constants, mapped from its file.
    pub weights: usize,
    /// Keys and values.
    pub kv: usize,
    /// Activations and scratch.
    pub arena: usize,
    /// Packed weights. Runners on the same model share most of them.
    pub packed: usize,
}

/// Decodes one sequence on one model.
pub struct Runner {
    decoder: Decoder,
    session: CacheSession<Contiguous>,
    /// The tokens whose keys and values are cached.
    tokens: Vec<u32>,
    /// Whether the decoder's outputs are the logits after the last token.
    has_logits: bool,
    shifter: Option<ContextShifter>,
}

/// A frozen prompt prefix that several runners share.
#[derive(Clone)]
pub struct Prefix {
    shared: SharedPrefix,
    tokens: Vec<u32>,
    /// Fingerprint of the model that computed the rows.
    fingerprint: u64,
}

impl Prefix {
    /// The tokens of the prefix.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The number of tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether the prefix has no tokens.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Bytes of its keys and values, allocated once for all runners.
    pub fn resident_bytes(&self) -> usize {
        self.shared.resident_bytes()
    }
}

/// The size of the longest step: the caller's choice, limited by the model's graph and the context.
pub(crate) fn step_size(facts: &ModelFacts, policy: &Policy, capacity: u32) -> StepSize {
    let most = facts.max_step.unwrap_or(usize::MAX).min(capacity as usize);
    // An embedding model has no cache, so a whole text is one step whatever the batch size.
    let batch = match facts.pooling {
        Some(_) => usize::MAX,
        None => policy.batch,
    };
    let tokens = batch.min(most).max(1);
    StepSize {
        tokens,
        rows: policy.logit_rows.clamp(1, tokens),
    }
}

/// Plans a decoder's run.
///
/// # Errors
/// `Encoder` or `NotADecoder` for other models, and the errors of [`MemoryPlan::new`].
pub(crate) fn plan_run(
    model: &Model,
    backend: &dyn Backend,
    policy: &Policy,
    kind: CacheKind,
    prefix: Option<&Prefix>,
) -> Result<MemoryPlan, RuntimeError> {
    if model.facts().pooling.is_some() {
        let architecture = model.artifact().architecture.clone();
        return Err(RuntimeErrorKind::Encoder(architecture).into());
    }
    if !model.facts().is_decoder() {
        return Err(RuntimeErrorKind::NotADecoder.into());
    }
    let planned = PlannedModel::try_from(model.artifact())?;
    let mut plan = MemoryPlan::new(&planned, backend, policy, kind, None)?;
    if let Some(prefix) = prefix {
        prefix.shared.check(&plan.cache)?;
        plan = plan.with_prefix(prefix);
    }
    plan.check(policy.memory, backend)?;
    if policy.memory != MemoryLimit::None {
        plan.check(MemoryLimit::Machine, backend)?;
    }
    Ok(plan)
}

/// The cache configuration from the model's facts and the caller's policy.
pub(crate) fn make_config(
    facts: &ModelFacts,
    policy: &Policy,
) -> Result<CacheConfig, RuntimeError> {
    let context = policy.context.unwrap_or(facts.context_length);
    let capacity = u32::try_from(context)
        .ok()
        .filter(|c| *c > 0 && *c <= i32::MAX as u32);
    let capacity = capacity.ok_or_else(|| {
        RuntimeErrorKind::Policy(format!("a context of {context} tokens is not possible"))
    })?;
    if let Some(rows) = facts.context_limit.filter(|rows| context > *rows) {
        let reason = format!(
            "a context of {context} tokens is not possible: the model's buffers and tables have {rows} rows"
        );
        return Err(RuntimeErrorKind::Policy(reason).into());
    }
    let step = step_size(facts, policy, capacity).tokens as u32;
    let cache_policy = CachePolicy {
        key_storage: policy.key_storage,
        value_storage: policy.value_storage,
        ring: policy.rings.then_some(RingPolicy {
            max_step: step,
            max_rewind: step,
        }),
        ..CachePolicy::new(capacity)
    };
    let facts = CacheFacts {
        layers: facts.caches.clone(),
        prefill_chunk: None,
        max_context: None,
    };
    Ok(kv::make_config(&facts, &cache_policy))
}

impl Runner {
    /// The maximum number of tokens in a step of [`feed_all_logits`](Runner::feed_all_logits). Steps are small because
    /// the logits of many rows are large; the results do not depend on the step size.
    pub const MAX_SCORED_STEP: usize = 128;

    /// A runner of `model` on `backend`.
    pub fn new(
        model: &Model,
        backend: &dyn Backend,
        policy: &Policy,
    ) -> Result<Runner, RuntimeError> {
        let plan = plan_run(model, backend, policy, CacheKind::Sequence, None)?;
        let made = make_decode_session(backend.id(), &plan.cache)?;
        Runner::load(model, backend, policy, plan.step, made, vec![])
    }

    /// A runner that starts after a frozen prefix, which a runner on the same model and backend made.
    ///
    /// # Errors
    /// `Policy` if the prefix belongs to another model, `Cache` if context or storage types differ, and the errors of
    /// [`new`](Runner::new).
    pub fn with_prefix(
        prefix: &Prefix,
        model: &Model,
        backend: &dyn Backend,
        policy: &Policy,
    ) -> Result<Runner, RuntimeError> {
        if prefix.fingerprint != model.fingerprint() {
            let reason = "the shared prefix belongs to another model".to_owned();
            return Err(RuntimeErrorKind::Policy(reason).into());
        }
        let kind = CacheKind::Sequence;
        let plan = plan_run(model, backend, policy, kind, Some(prefix))?;
        let made = make_prefixed_session(&prefix.shared)?;
        let tokens = prefix.tokens.clone();
        Runner::load(model, backend, policy, plan.step, made, tokens)
    }

    fn load(
        model: &Model,
        backend: &dyn Backend,
        policy: &Policy,
        step: StepSize,
        (session, options): (CacheSession<Contiguous>, BackendOptions),
        tokens: Vec<u32>,
    ) -> Result<Runner, RuntimeError> {
        Ok(Runner {
            decoder: Decoder::load(model, backend, policy, step, 1, options)?,
            session,
            tokens,
            has_logits: false,
            shifter: None,
        })
    }

    /// The run mode of steps: the policy's, after a possible downgrade by the backend.
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
    pub fn allow_shifts(&mut self, keep: usize) -> Result<(), RuntimeError> {
        let layers = self.session.config()?.layers.len();
        self.shifter = Some(ContextShifter::new(self.decoder.graph(), layers, keep)?);
        Ok(())
    }

    /// Shifts the context now, if [`allow_shifts`](Runner::allow_shifts) was called. Returns `None` if nothing was
    /// dropped.
    pub fn shift(&mut self) -> Result<Option<ContextShift>, RuntimeError> {
        let Some(shifter) = &self.shifter else {
            return Ok(None);
        };
        let shift = shifter.shift(&self.session, 0, self.tokens.len())?;
        if let Some(shift) = shift {
            shift.apply(&mut self.tokens);
        }
        Ok(shift)
    }

    /// Freezes the context into a prefix that other runners can share. This runner continues after it. `model` is the
    /// runner's model.
    pub fn freeze(&mut self, model: &Model) -> Result<Prefix, RuntimeError> {
        Ok(Prefix {
            shared: self.session.freeze()?,
            tokens: self.tokens.clone(),
            fingerprint: model.fingerprint(),
        })
    }

    /// Appends `prompt` to the context and generates a continuation; see [`generate`].
    pub fn generate(
        &mut self,
        model: &Model,
        prompt: &[u32],
        sampler: &mut Sampler,
        options: &GenerateOptions,
        show: impl FnMut(Piece<'_>) -> bool,
    ) -> Result<Generated, RuntimeError> {
        generate(self, model, prompt, sampler, options, show)
    }

    /// The tokens in the context.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The size of the context in tokens.
    pub fn capacity(&self) -> Result<usize, RuntimeError> {
        Ok(self.session.capacity()? as usize)
    }

    /// Whether `n` more tokens fit.
    pub fn can_extend(&self, n: usize) -> Result<bool, RuntimeError> {
        match u32::try_from(n) {
            Ok(n) => Ok(self.session.can_extend(n)?),
            Err(_) => Ok(false),
        }
    }

    /// The logits after the last fed token; empty before the first token and after a rewind.
    pub fn logits(&self) -> &[f32] {
        match self.has_logits {
            true => self.decoder.outputs.logits(0),
            false => &[],
        }
    }

    /// Feeds tokens in steps of at most the batch size and keeps the logits after the last one. `progress` receives the
    /// number of tokens done and returns false to cancel. Returns whether all tokens were fed.
    pub fn feed(
        &mut self,
        tokens: &[u32],
        mut progress: impl FnMut(usize) -> bool,
    ) -> Result<bool, RuntimeError> {
        self.check(tokens)?;
        let mut done = 0;
        for chunk in tokens.chunks(self.decoder.batch()) {
            let last = done + chunk.len() == tokens.len();
            self.begin_step(chunk);
            if last {
                self.decoder.step.want_last();
            }
            self.run_step(chunk)?;
            self.has_logits = last;
            done += chunk.len();
            if !progress(done) && !last {
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
        let mut done = 0;
        for chunk in tokens.chunks(self.decoder.batch().min(Runner::MAX_SCORED_STEP)) {
            self.begin_step(chunk);
            (0..chunk.len() as u32).for_each(|row| self.decoder.step.want(row));
            self.run_step(chunk)?;
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
        match len {
            0 if !self.tokens.is_empty() => self.session.clear()?,
            _ => self
                .session
                .rewind(u32::try_from(len).unwrap_or(u32::MAX))?,
        }
        if (self.session.len()? as usize) != len {
            // A session with a shared prefix cannot be cleared below the prefix.
            return Err(RuntimeErrorKind::Policy("a shared prefix is read-only".into()).into());
        }
        self.tokens.truncate(len);
        self.has_logits = false;
        Ok(())
    }

    /// Writes the context and the caller's notes to a snapshot file. An existing file is replaced atomically.
    pub fn save(&self, model: &Model, path: &Path, notes: &[u8]) -> Result<(), RuntimeError> {
        let tokens = &self.tokens;
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
        self.has_logits = false;
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
        if known < snapshot.floor() {
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
            let room = capacity - self.tokens.len();
            return Err(RuntimeErrorKind::PromptTooLong {
                tokens: tokens.len(),
                room,
                capacity,
            }
            .into());
        }
        self.decoder.check(tokens.iter().copied())
    }

    /// Builds the step that feeds these tokens, without wanted rows.
    fn begin_step(&mut self, tokens: &[u32]) {
        let step = &mut self.decoder.step;
        step.clear();
        step.extend(0, self.tokens.len() as u32, tokens);
    }

    /// Runs the built step, which feeds these tokens.
    fn run_step(&mut self, tokens: &[u32]) -> Result<(), RuntimeError> {
        self.has_logits = false;
        self.decoder.run()?;
        self.tokens.extend_from_slice(tokens);
        Ok(())
    }
}

impl Sequence for Runner {
    fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    fn logits(&self) -> &[f32] {
        Runner::logits(self)
    }

    fn has_room(&self) -> Result<bool, RuntimeError> {
        self.can_extend(1)
    }

    fn make_room(&mut self) -> Result<bool, RuntimeError> {
        Ok(self.can_extend(1)? || self.shift()?.is_some())
    }

    fn feed(
        &mut self,
        tokens: &[u32],
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<bool, RuntimeError> {
        Runner::feed(self, tokens, progress)
    }
}

/// Length of the common prefix.
fn common_prefix_len(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
