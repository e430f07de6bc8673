//! `RunnerOptions`: the caller's choices for a run, and the cache configuration and step size that follow from them.

use crate::{PromptPrefix, RuntimeError, RuntimeErrorKind};
use backend::CompileOptions;
use import::ModelFacts;
use kv::{CacheConfig, CacheFacts, CachePolicy, KvPolicy, KvStorage, RingPolicy, StatePolicy};

/// The caller's choices for a run.
#[derive(Clone, Debug)]
pub struct RunnerOptions {
    /// The maximum number of tokens in the context; `None` for the model's own.
    pub context: Option<usize>,
    /// The number of cells that the sequences of a batch runner share; `None` for as many as the context has tokens.
    pub pool_cells: Option<usize>,
    /// The maximum number of tokens in one step of a prefill.
    pub max_step_tokens: usize,
    /// The storage type of keys.
    pub key_storage: KvStorage,
    /// The storage type of values.
    pub value_storage: KvStorage,
    /// How single layers store their keys and values, how far they look back, and whether sequences are streams.
    pub kv_policy: KvPolicy,
    /// Use rings in sliding-window layers: they keep only the rows of their window, plus the rows that one step or a
    /// rewind of the same length needs.
    pub ring_layers: bool,
    /// Unless the policy says otherwise, allocate all keys and values before the first token, as one region, instead of growing with the context. Growth
    /// copies the rows that are there, which delays a step.
    pub preallocate: bool,
    /// The number of logit rows per step that memory is reserved for. A step that wants more rows allocates more.
    pub max_logit_rows: usize,
    /// The most bytes that snapshots of recurrent layers' states take, beside the states that sequences need to go on.
    pub state_bytes: usize,
    /// A snapshot of recurrent layers' states is kept after every position of a prompt that is a multiple of this; 0 keeps none there.
    pub state_interval: u32,
    /// How recurrent layers' states are stored: f32, or f16 in half the memory.
    pub state_storage: KvStorage,
    /// A frozen prefix that the cache stands on. A cache of one sequence begins with it; in a pool of cells, sequences are forked from it
    /// ([`BatchRunner::begin_with_prefix`](crate::BatchRunner::begin_with_prefix)).
    pub prefix: Option<PromptPrefix>,
    /// The memory limit. A plan that exceeds it is refused before weights are loaded.
    pub memory: MemoryLimit,
    /// Threads and executor.
    pub compile: CompileOptions,
}

impl RunnerOptions {
    /// The maximum number of tokens in the context: the caller's choice, the window of a stream, or the model's own.
    pub fn context_of(&self, facts: &ModelFacts) -> usize {
        let window = self.kv_policy.stream.map(|stream| stream.window as usize);
        self.context.or(window).unwrap_or(facts.context_length)
    }
}

impl Default for RunnerOptions {
    fn default() -> RunnerOptions {
        RunnerOptions {
            context: None,
            pool_cells: None,
            max_step_tokens: 512,
            key_storage: KvStorage::default(),
            value_storage: KvStorage::default(),
            kv_policy: KvPolicy::default(),
            ring_layers: true,
            preallocate: false,
            max_logit_rows: 1,
            state_bytes: 256 << 20,
            state_interval: StatePolicy::default().interval,
            state_storage: StatePolicy::default().storage,
            prefix: None,
            memory: MemoryLimit::default(),
            compile: CompileOptions::default(),
        }
    }
}

/// The memory limit of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemoryLimit {
    /// The free memory of the backend's device, if the backend reports it.
    #[default]
    Machine,
    /// This many bytes, and no more than the free memory of the device.
    Bytes(u64),
    /// No limit.
    None,
}

/// The size of a decoder's longest step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepSize {
    /// The number of tokens.
    pub tokens: usize,
    /// The number of rows whose logits are wanted.
    pub rows: usize,
}

impl StepSize {
    /// The size of the longest step: the caller's choice, limited by the model's graph and the context.
    pub(crate) fn new(facts: &ModelFacts, options: &RunnerOptions, capacity: u32) -> StepSize {
        let most = facts.max_step.unwrap_or(usize::MAX).min(capacity as usize);
        // An embedding model has no cache, so a whole text is one step whatever the options state.
        let wanted = match facts.pooling {
            Some(_) => usize::MAX,
            None => options.max_step_tokens,
        };
        let tokens = wanted.min(most).max(1);
        StepSize {
            tokens,
            rows: options.max_logit_rows.clamp(1, tokens),
        }
    }

    /// The shapes of tokens, positions and rows.
    pub(crate) fn shapes(&self) -> Vec<Vec<usize>> {
        vec![vec![self.tokens], vec![self.tokens], vec![self.rows]]
    }
}

/// The cache configuration from the model's facts and the caller's options.
pub(crate) fn cache_config(
    facts: &ModelFacts,
    options: &RunnerOptions,
) -> Result<CacheConfig, RuntimeError> {
    let context = options.context_of(facts);
    let capacity = u32::try_from(context)
        .ok()
        .filter(|c| *c > 0 && *c <= i32::MAX as u32);
    let capacity = capacity.ok_or_else(|| {
        RuntimeErrorKind::InvalidOptions(format!("a context of {context} tokens is not possible"))
    })?;
    if let Some(stream) = options.kv_policy.stream
        && stream.window > capacity
    {
        let reason = format!(
            "a stream's window of {} tokens does not fit a context of {context}",
            stream.window
        );
        return Err(RuntimeErrorKind::InvalidOptions(reason).into());
    }
    if let Some(rows) = facts.context_limit.filter(|rows| context > *rows) {
        let reason = format!(
            "a context of {context} tokens is not possible: the model's buffers and tables have {rows} rows"
        );
        return Err(RuntimeErrorKind::InvalidOptions(reason).into());
    }
    let capacity = match options.pool_cells {
        None => capacity,
        Some(cells) => u32::try_from(cells)
            .ok()
            .filter(|cells| (1..=i32::MAX as u32).contains(cells))
            .ok_or_else(|| {
                let reason = format!("a pool of {cells} cells is not possible");
                RuntimeErrorKind::InvalidOptions(reason)
            })?,
    };
    let step = StepSize::new(facts, options, capacity).tokens as u32;
    let grown = CachePolicy::new(capacity);
    let policy = CachePolicy {
        initial_cells: match options.preallocate {
            true => CacheConfig::ALL_CELLS,
            false => grown.initial_cells,
        },
        key_storage: options.key_storage,
        value_storage: options.value_storage,
        ring: options.ring_layers.then_some(RingPolicy {
            max_step: step,
            max_rewind: step,
        }),
        ..grown
    };
    let facts = CacheFacts {
        layers: facts.caches.clone(),
        prefill_chunk: None,
        max_context: None,
    };
    let mut config = kv::make_config(&facts, &policy);
    options.kv_policy.apply(&mut config)?;
    config.states.storage = options.state_storage;
    config.states = states(&config, options);
    Ok(config)
}

/// Slots of states: two for each row of a step, of which a sequence reads one and writes another and a candidate writes one, and as
/// many snapshots as fit the caller's bytes.
fn states(config: &CacheConfig, options: &RunnerOptions) -> StatePolicy {
    let live = options.max_logit_rows.max(1).saturating_mul(2);
    let snapshots = options.state_bytes / config.state_bytes().max(1);
    let slots = live.saturating_add(snapshots.min(MAX_SNAPSHOTS));
    StatePolicy {
        slots: u32::try_from(slots)
            .unwrap_or(u32::MAX)
            .min(i32::MAX as u32),
        interval: options.state_interval,
        storage: options.state_storage,
    }
}

/// More snapshots than this help nobody.
const MAX_SNAPSHOTS: usize = 512;
