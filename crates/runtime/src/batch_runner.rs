//! `BatchRunner`: decodes several sequences on one model and one cache, with forks, batches and rewinds.

mod candidates;
mod forward;
mod last_logits;
mod migration;
mod sequence;
mod sequences;
mod splice;

pub use forward::BatchToken;
pub(crate) use forward::{CandidateLevel, Feed, FeedOutputs, KeptStates};
pub use migration::{MigrationDistance, MigrationOptions, MigrationReport};
pub use sequence::{Runner, SequenceHandle, SequenceRunner};
pub use splice::{Approximation, Edit, Inexact, SPLICE_SHARE, SpliceReport, recomputed};

use crate::context_shift::{ContextShift, ContextShifter};
use crate::decoder::Decoder;
use crate::memory::{CacheKind, MemoryPlan, MemoryUsage};
use crate::options::{RunnerOptions, StepSize};
use crate::prefix::PromptPrefix;
use crate::speculative::FeatureRows;
use crate::{Model, RuntimeError, RuntimeErrorKind};
use backend::{Backend, NodeProfile, RunMode};
use candidates::Candidates;
use kv::{
    CacheConfig, CacheOperations, CacheSession, CellRun, Cells, Contiguous, KvBytes, KvError,
    MAX_SEQUENCES, Prefixed, SeqId, Tree,
};
use last_logits::LastLogits;

/// Decodes several sequences on one cache, one forward for all.
pub struct BatchRunner {
    decoder: Decoder,
    cache: Box<dyn CacheOperations>,
    /// The tokens of each sequence and the outputs after the last one.
    states: Vec<SequenceState>,
    /// For each sequence, the position of its next token in the step that is being built.
    next: Vec<i32>,
    shifter: Option<ContextShifter>,
    /// The options that the runner was loaded with, and the kind of its cache.
    options: RunnerOptions,
    kind: CacheKind,
    planned_bytes: usize,
    /// Commits compact the pool when a sequence has more runs than this.
    max_runs: usize,
    /// The number of steps so far.
    steps: u64,
    /// The sequences of the last step's outputs after tokens, row by row.
    row_owners: Vec<SeqId>,
}

/// The lowest value of `max_runs`.
const MIN_COMPACTED_RUNS: usize = 64;

#[derive(Clone, Default)]
struct SequenceState {
    tokens: Vec<u32>,
    /// Whether the last token is pending: sampled, and not fed yet.
    pending: bool,
    row: LastLogits,
    shifts: Vec<ContextShift>,
    candidates: Candidates,
    /// The features of the last tokens, if the sequence keeps them.
    features: Option<FeatureRows>,
    /// The rows that are an approximation.
    inexact: Option<Inexact>,
}

impl SequenceState {
    /// The number of tokens whose keys and values are cached.
    fn fed(&self) -> usize {
        self.tokens.len() - usize::from(self.pending)
    }
}

impl BatchRunner {
    /// A runner of `model` on `backend` in a pool of cells, for up to `options.max_logit_rows` sequences in one step.
    pub fn new(
        model: &Model,
        backend: &dyn Backend,
        options: &RunnerOptions,
    ) -> Result<BatchRunner, RuntimeError> {
        BatchRunner::with_trees(model, backend, options, options.max_logit_rows, 0, 0)
    }

    /// A runner in a pool of cells for up to `sequences` sequences in one step, each with up to `candidates` candidates, whose
    /// memory plan also counts `prefixes` retained prefixes.
    pub fn with_trees(
        model: &Model,
        backend: &dyn Backend,
        options: &RunnerOptions,
        sequences: usize,
        prefixes: usize,
        candidates: usize,
    ) -> Result<BatchRunner, RuntimeError> {
        let options = &RunnerOptions {
            max_logit_rows: sequences.saturating_mul(1 + candidates),
            ..options.clone()
        };
        let owners = u32::try_from(sequences.saturating_add(prefixes)).unwrap_or(u32::MAX);
        let kind = CacheKind::Cells { sequences: owners };
        let plan = MemoryPlan::for_decoder(model, backend, options, kind)?;
        let options = &plan.applied_to(options);
        let cache = Box::new(new_cache(backend, options, &plan.cache, Cells::new)?);
        let size = (plan.step, sequences, candidates);
        let mut runner = BatchRunner::load(model, backend, options, size, (kind, cache))?;
        runner.planned_bytes = plan.total_bytes();
        Ok(runner)
    }

    /// A runner on a cache of this kind. A kind other than cells holds one sequence, number 0; a tree holds up to `candidates`
    /// candidates after it.
    pub fn with_cache_kind(
        model: &Model,
        backend: &dyn Backend,
        options: &RunnerOptions,
        kind: CacheKind,
        candidates: usize,
    ) -> Result<BatchRunner, RuntimeError> {
        if let CacheKind::Cells { sequences } = kind {
            let sequences = sequences as usize;
            return BatchRunner::with_trees(model, backend, options, sequences, 0, candidates);
        }
        let options = &RunnerOptions {
            max_logit_rows: options.max_logit_rows.max(1 + candidates),
            ..options.clone()
        };
        let plan = MemoryPlan::for_decoder(model, backend, options, kind)?;
        let options = &plan.applied_to(options);
        let config = &plan.cache;
        let cache: Box<dyn CacheOperations> = match kind {
            CacheKind::Tree => Box::new(new_cache(backend, options, config, Tree::new)?),
            _ => Box::new(new_cache(backend, options, config, Contiguous::new)?),
        };
        let size = (plan.step, 1, candidates);
        let mut runner = BatchRunner::load(model, backend, options, size, (kind, cache))?;
        runner.planned_bytes = plan.total_bytes();
        Ok(runner)
    }

    /// A runner of one sequence that starts after a frozen prefix, which a runner on the same model and backend made.
    ///
    /// # Errors
    /// `InvalidOptions` if the prefix belongs to another model, `Cache` if context or storage types differ, and the errors of
    /// [`new`](BatchRunner::new).
    pub fn with_prefix(
        prefix: &PromptPrefix,
        model: &Model,
        backend: &dyn Backend,
        options: &RunnerOptions,
    ) -> Result<BatchRunner, RuntimeError> {
        let options = RunnerOptions {
            prefix: Some(prefix.clone()),
            ..options.clone()
        };
        let kind = CacheKind::Contiguous;
        BatchRunner::with_cache_kind(model, backend, &options, kind, 0)
    }

    /// A runner on a cache that the caller made, of any kind, for steps of `options.max_step_tokens` tokens.
    pub fn with_cache(
        model: &Model,
        backend: &dyn Backend,
        options: &RunnerOptions,
        cache: Box<dyn CacheOperations>,
    ) -> Result<BatchRunner, RuntimeError> {
        let step = StepSize::new(model.facts(), options, cache.capacity()?);
        let kind = match cache.kind() {
            "cells" => CacheKind::Cells { sequences: 1 },
            "tree" => CacheKind::Tree,
            _ => CacheKind::Contiguous,
        };
        BatchRunner::load(model, backend, options, (step, 1, 0), (kind, cache))
    }

    fn load(
        model: &Model,
        backend: &dyn Backend,
        options: &RunnerOptions,
        (step, sequences, candidates): (StepSize, usize, usize),
        (kind, cache): (CacheKind, Box<dyn CacheOperations>),
    ) -> Result<BatchRunner, RuntimeError> {
        let sequences = sequences.clamp(1, MAX_SEQUENCES as usize);
        let mut states = vec![SequenceState::default(); MAX_SEQUENCES as usize];
        if let Some(prefix) = &options.prefix {
            let seq = cache.prefix()?.unwrap_or(0) as usize;
            states.resize_with(states.len().max(seq + 1), SequenceState::default);
            states[seq].tokens = prefix.tokens().to_vec();
        }
        let decoder = Decoder::load(
            model,
            backend,
            options,
            step,
            (sequences, 1 + candidates),
            cache.entry(),
        )?;
        let mut runner = BatchRunner {
            decoder,
            cache,
            states,
            next: Vec::new(),
            shifter: None,
            options: options.clone(),
            kind,
            planned_bytes: 0,
            max_runs: MIN_COMPACTED_RUNS,
            steps: 0,
            row_owners: vec![],
        };
        if let Some(stream) = options.kv_policy.stream {
            let cells = matches!(kind, CacheKind::Cells { .. });
            if options.prefix.is_some() && !cells {
                let reason = format!(
                    "a stream after a frozen prefix needs a cache of cells, not a {} one",
                    runner.cache_kind()
                );
                return Err(RuntimeErrorKind::InvalidOptions(reason).into());
            }
            runner.enable_stream(stream.sinks as usize)?;
        }
        Ok(runner)
    }

    /// The run mode of steps: the one of the options, or the mode that the backend supports instead.
    pub fn run_mode(&self) -> RunMode {
        self.decoder.forward.dispatcher().mode()
    }

    /// Changes the run mode of later steps. Keeps the weights and the cache.
    pub fn set_run_mode(&mut self, mode: RunMode) -> Result<(), RuntimeError> {
        let Decoder {
            forward, options, ..
        } = &mut self.decoder;
        options.mode = mode;
        Ok(forward.prepare(options)?)
    }

    /// The number of recorded steps, and the maximum number.
    pub fn captures(&self) -> (usize, usize) {
        let forward = &self.decoder.forward;
        let most = forward.dispatcher().descriptors();
        (forward.executable().captures(), most)
    }

    /// The number of steps that no recording from before them served: they were run node by node, or recorded when they came.
    pub fn missed_recordings(&self) -> usize {
        self.decoder.forward.executable().missed_recordings()
    }

    /// Starts or stops measuring nodes.
    pub fn set_profiling(&mut self, on: bool) {
        self.decoder.forward.executable_mut().set_profiling(on);
    }

    /// The measurements since profiling was started.
    pub fn profile(&self) -> Vec<NodeProfile> {
        self.decoder.forward.executable().profile()
    }

    /// The number of tokens in the vocabulary.
    pub(crate) fn vocab_size(&self) -> usize {
        self.decoder.vocab
    }

    /// The name of the cache's kind.
    pub fn cache_kind(&self) -> &'static str {
        self.cache.kind()
    }

    /// Whether steps can have candidates, which speculation needs.
    pub fn holds_candidates(&self) -> bool {
        self.cache.holds_candidates()
    }

    /// A handle on one sequence.
    pub fn sequence(&mut self, seq: SeqId) -> SequenceHandle<'_> {
        SequenceRunner { runner: self, seq }
    }

    /// The maximum number of tokens in a step.
    pub fn max_step_tokens(&self) -> usize {
        self.decoder.options.max_tokens
    }

    /// Whether the pending tokens of all sequences and `n` more tokens fit in the cache.
    pub fn can_extend(&self, n: usize) -> Result<bool, RuntimeError> {
        let pending = self.states.iter().filter(|state| state.pending).count();
        self.has_cells(n.saturating_add(pending))
    }

    /// Whether the cache has `n` free cells.
    pub(crate) fn has_cells(&self, n: usize) -> Result<bool, RuntimeError> {
        match u32::try_from(n) {
            Ok(n) => Ok(self.cache.can_extend(n)?),
            Err(_) => Ok(false),
        }
    }

    /// The number of cells in the cache.
    pub fn capacity(&self) -> Result<usize, RuntimeError> {
        Ok(self.cache.capacity()? as usize)
    }

    /// The number of cells in use. A shared cell counts once.
    pub fn cells_used(&self) -> Result<usize, RuntimeError> {
        Ok(self.cache.len()? as usize)
    }

    /// The cell runs of a sequence.
    pub fn runs(&self, seq: SeqId) -> Result<Vec<CellRun>, RuntimeError> {
        Ok(self.cache.runs(seq)?)
    }

    /// For each cell up to the last one in use, the number of sequences that hold it.
    pub fn ref_counts(&self) -> Result<Vec<u16>, RuntimeError> {
        Ok(self.cache.ref_counts()?)
    }

    /// Moves rows so that the pool has no holes.
    pub fn compact(&mut self) -> Result<(), RuntimeError> {
        Ok(self.cache.compact()?)
    }

    /// The bytes of the memory plan: weights, activations, and keys and values once the cache is full.
    pub fn planned_bytes(&self) -> usize {
        self.planned_bytes
    }

    /// The memory in use now.
    pub fn memory(&self) -> Result<MemoryUsage, RuntimeError> {
        let executable = self.decoder.forward.executable();
        Ok(MemoryUsage {
            weights: self.decoder.weights_bytes,
            kv: self.cache.resident_bytes()?,
            arena: executable.arena_bytes(),
            packed: executable.packed_bytes(),
        })
    }
}

/// A cache on a backend: empty, or on the prefix of the options.
fn new_cache<K: Prefixed>(
    backend: &dyn Backend,
    options: &RunnerOptions,
    config: &CacheConfig,
    empty: fn(&CacheConfig) -> K,
) -> Result<CacheSession<K>, KvError> {
    match &options.prefix {
        Some(prefix) => CacheSession::after_prefix(&prefix.shared, config),
        None => {
            let bytes = new_kv(backend, config)?;
            Ok(CacheSession::new(K::KIND, empty(config), bytes))
        }
    }
}

/// Allocates the storage of a cache on a backend.
pub(crate) fn new_kv(
    backend: &dyn Backend,
    config: &CacheConfig,
) -> Result<Box<dyn KvBytes>, KvError> {
    config.check()?;
    backend.new_kv(config)
}
