//! One sequence on one model: feeds tokens, keeps the last logits, goes back.

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

/// The caller's choices, as opposed to the model's facts.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Most tokens in the context; `None` takes what the model was made for.
    pub context: Option<usize>,
    /// Most tokens in one step of a prefill.
    pub batch: usize,
    /// How keys are stored.
    pub key_storage: Storage,
    /// How values are stored.
    pub value_storage: Storage,
    /// Let sliding-window layers keep only what their window, a step and a rewind as long as one need.
    pub rings: bool,
    /// Most rows of a step whose logits are wanted; memory is made for so many, and a step that wants more takes more.
    pub logit_rows: usize,
    /// How much memory the run may take; what does not fit is refused before weights are loaded.
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

/// What a runner holds in memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryUsage {
    /// The model's constants; mapped from its file.
    pub weights: usize,
    /// Keys and values.
    pub kv: usize,
    /// Activations and scratch.
    pub arena: usize,
    /// Weights in another layout, besides the model's own; all runners on a model share most of them.
    pub packed: usize,
}

/// A decode session on a module.
pub struct Runner {
    decoder: Decoder,
    session: CacheSession<Contiguous>,
    /// The tokens whose keys and values are cached.
    tokens: Vec<u32>,
    /// Whether the decoder's outputs are the logits behind the last token.
    has_logits: bool,
    shifter: Option<ContextShifter>,
}

/// A frozen beginning that several runners share.
#[derive(Clone)]
pub struct Prefix {
    shared: SharedPrefix,
    tokens: Vec<u32>,
    /// Which model the rows belong to.
    fingerprint: u64,
}

impl Prefix {
    /// The tokens of the prefix.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Tokens of the prefix.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Bytes of its keys and values, held once for all.
    pub fn resident_bytes(&self) -> usize {
        self.shared.resident_bytes()
    }
}

/// The longest step: the caller's choice, and no more than the model's graph and the context take.
pub(crate) fn step_size(facts: &ModelFacts, policy: &Policy, capacity: u32) -> StepSize {
    let most = facts.max_step.unwrap_or(usize::MAX).min(capacity as usize);
    // Where nothing is kept, a text is a step.
    let batch = match facts.embedding {
        Some(_) => usize::MAX,
        None => policy.batch,
    };
    let tokens = batch.min(most).max(1);
    StepSize {
        tokens,
        rows: policy.logit_rows.clamp(1, tokens),
    }
}

/// Plans a decoder's run and refuses what does not fit.
pub(crate) fn plan_run(
    model: &Model,
    backend: &dyn Backend,
    policy: &Policy,
    kind: CacheKind,
    prefix: Option<&Prefix>,
) -> Result<MemoryPlan, RuntimeError> {
    if model.facts().embedding.is_some() {
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
        plan = plan.behind(prefix);
    }
    plan.check(policy.memory, backend)?;
    if policy.memory != MemoryLimit::None {
        plan.check(MemoryLimit::Machine, backend)?;
    }
    Ok(plan)
}

/// Joins the model's facts with the caller's policy.
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
    /// Most tokens in a step of [`feed_all_logits`](Runner::feed_all_logits). Logits of many rows are large, so steps are
    /// small; results do not depend on their size.
    pub const MAX_SCORED_STEP: usize = 128;

    /// Opens a session for `model` on `backend`.
    pub fn new(
        model: &Model,
        backend: &dyn Backend,
        policy: &Policy,
    ) -> Result<Runner, RuntimeError> {
        let plan = plan_run(model, backend, policy, CacheKind::Sequence, None)?;
        let made = make_decode_session(backend.id(), &plan.cache)?;
        Runner::load(model, backend, policy, plan.step, made, vec![])
    }

    /// Opens a session whose first tokens are a frozen prefix of another runner's on the same model and backend.
    ///
    /// # Errors
    /// `Policy` for a prefix of another model, a refused prefix where context or storage differ, and what
    /// [`new`](Runner::new) refuses.
    pub fn behind(
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

    /// The mode that steps are run in: the policy's, or what the backend supports of it.
    pub fn run_mode(&self) -> RunMode {
        self.decoder.run_mode()
    }

    /// Runs steps in another mode from now on, on the same weights and the same cache.
    pub fn set_run_mode(&mut self, mode: RunMode) -> Result<(), RuntimeError> {
        self.decoder.set_run_mode(mode)
    }

    /// Lets generations go on past the end of the context: the first `keep` tokens stay, and the older half of the others
    /// makes room. Refused where the model's keys cannot be moved.
    pub fn allow_shifts(&mut self, keep: usize) -> Result<(), RuntimeError> {
        let layers = self.session.config()?.layers.len();
        self.shifter = Some(ContextShifter::new(self.decoder.graph(), layers, keep)?);
        Ok(())
    }

    /// Makes room now, where [`allow_shifts`](Runner::allow_shifts) lets it; `None` where nothing can go.
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

    /// Freezes what the context holds of `model`, for other runners to share; this one goes on behind it.
    pub fn freeze(&mut self, model: &Model) -> Result<Prefix, RuntimeError> {
        Ok(Prefix {
            shared: self.session.freeze()?,
            tokens: self.tokens.clone(),
            fingerprint: model.fingerprint(),
        })
    }

    /// Feeds `prompt` behind what the context holds and generates from there; see [`generate`].
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

    /// Most tokens the context holds.
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

    /// The logits behind the last token that was fed; empty before the first and after a rewind.
    pub fn logits(&self) -> &[f32] {
        match self.has_logits {
            true => self.decoder.outputs.logits(0),
            false => &[],
        }
    }

    /// Feeds tokens in steps of at most the batch size; `progress` is told how many are done and may stop the run by
    /// returning false. The logits behind the last token are kept.
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

    /// Feeds tokens and calls `row` with the index and logits of every one of them.
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

    /// Forgets all but the first `len` tokens.
    pub fn rewind(&mut self, len: usize) -> Result<(), RuntimeError> {
        match len {
            0 if !self.tokens.is_empty() => self.session.clear()?,
            _ => self
                .session
                .rewind(u32::try_from(len).unwrap_or(u32::MAX))?,
        }
        if (self.session.len()? as usize) != len {
            // Clearing a session behind a prefix leaves the prefix.
            return Err(
                RuntimeErrorKind::Policy("a shared prefix cannot be given up".into()).into(),
            );
        }
        self.tokens.truncate(len);
        self.has_logits = false;
        Ok(())
    }

    /// Writes the context to a file, in the place of what is there, with notes for whoever restores it. The old file stays
    /// whole until the new one is.
    pub fn save(&self, model: &Model, path: &Path, notes: &[u8]) -> Result<(), RuntimeError> {
        let tokens = &self.tokens;
        snapshot::save(path, model, &self.session, 0, Contents { tokens, notes })
    }

    /// Puts the first `len` tokens of a snapshot in the place of the context. There are no logits until a token is fed.
    /// What is refused changes nothing.
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

    /// Puts what a snapshot has of the beginning of `prompt` in the place of the context, and tells how many tokens that
    /// is: at least the last one is left to be fed. Windows may have kept too little; then it is none.
    pub fn resume(
        &mut self,
        model: &Model,
        snapshot: &Snapshot,
        prompt: &[u32],
    ) -> Result<usize, RuntimeError> {
        let most = prompt.len().saturating_sub(1).min(self.capacity()?);
        let known = common(snapshot.tokens(), prompt).min(most);
        if known < snapshot.floor() {
            snapshot.check(model, &self.session.config()?)?;
            self.rewind(0)?;
            return Ok(0);
        }
        self.restore(model, snapshot, known)?;
        Ok(known)
    }

    /// Measures every node from now on, or no longer.
    pub fn set_profiling(&mut self, on: bool) {
        self.decoder.set_profiling(on);
    }

    /// Where the time went since profiling began.
    pub fn profile(&self) -> Vec<NodeProfile> {
        self.decoder.profile()
    }

    /// Bytes held now.
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

    /// Makes the step that feeds these tokens, which wants no rows yet.
    fn begin_step(&mut self, tokens: &[u32]) {
        let step = &mut self.decoder.step;
        step.clear();
        step.extend(0, self.tokens.len() as u32, tokens);
    }

    /// Runs the step of these tokens.
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

/// Length of the common beginning.
fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
