//! The traits that every backend implements.

use crate::{
    BackendError, BackendErrorKind, BatchDescriptor, CaptureSizes, Compiled, Dispatch,
    GraphSupport, NodeProfile, RunMode, StepOutputs,
};
use graph::plan::MemoryPlan;
use graph::{Bindings, Data, Graph, TensorId, Value};
use kv::{CacheConfig, KvBytes, KvLayout, StepPlan};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// How a graph is executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExecutorKind {
    /// Everything is resolved once per plan and replayed.
    #[default]
    Compiled,
    /// Every node is looked up and run on its own: for debugging and as a check on the other.
    Interpreted,
}

/// Choices made when a graph is compiled.
#[derive(Clone, Debug, Default)]
pub struct CompileOptions {
    /// Threads to compute with; `None` takes the machine's cores.
    pub threads: Option<usize>,
    /// How graphs that run on tensors are executed, and steps where no run mode is chosen.
    pub executor: ExecutorKind,
    /// How steps are run; by the executor when `None`: `Full` or `None`.
    pub run_mode: Option<RunMode>,
    /// A folder where weights may be kept as the kernels read them, so that the next start only maps them.
    pub packed_folder: Option<PathBuf>,
    /// Is told how far the weights are.
    pub progress: Option<ProgressCallback>,
}

/// Is told how many bytes of weights are ready, and of how many; answers whether to go on. Any thread may call it.
#[derive(Clone)]
pub struct ProgressCallback(Arc<dyn Fn(usize, usize) -> bool + Send + Sync>);

impl ProgressCallback {
    /// Tells `told`.
    pub fn new(told: impl Fn(usize, usize) -> bool + Send + Sync + 'static) -> ProgressCallback {
        ProgressCallback(Arc::new(told))
    }

    /// Says that `done` bytes of `total` are ready; false when the work should end.
    pub fn report(&self, done: usize, total: usize) -> bool {
        (self.0)(done, total)
    }
}

impl fmt::Debug for ProgressCallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProgressCallback")
    }
}

impl CompileOptions {
    /// The mode that steps are run in, as far as the executable supports it.
    pub fn step_mode(&self) -> RunMode {
        let by_executor = match self.executor {
            ExecutorKind::Compiled => RunMode::Full,
            ExecutorKind::Interpreted => RunMode::None,
        };
        self.run_mode.unwrap_or(by_executor)
    }
}

/// A device and its kernels. A backend makes bytes for caches, which it registers with
/// [`CacheBuilderRegistry`](kv::CacheBuilderRegistry) under its id, and executables that work on them.
pub trait Backend: Send + Sync {
    /// The name under which its caches are built.
    fn id(&self) -> &'static str;

    /// Prepares a graph to run.
    fn compile(
        &self,
        graph: Arc<Graph>,
        options: &CompileOptions,
    ) -> Result<Compiled, BackendError>;

    /// What a compiled executable of `graph` and its cache will hold for steps of these sizes. Reads no weight.
    fn footprint(
        &self,
        graph: &Graph,
        request: &FootprintRequest<'_>,
    ) -> Result<Footprint, BackendError> {
        Ok(Footprint {
            arena: MemoryPlan::new(graph, request.bindings, |_| 0)?,
            packed: vec![],
            kv: request.kv_layout(),
        })
    }

    /// Bytes that can be allocated on the device now; `None` where it does not tell.
    fn free_memory(&self) -> Option<u64> {
        None
    }
}

/// What a [`Footprint`] is asked for.
pub struct FootprintRequest<'a> {
    /// The sizes of the longest step.
    pub bindings: Bindings,
    /// The compile options of the run.
    pub options: &'a CompileOptions,
    /// Whether a tensor without a producer stays the same from step to step.
    pub is_weight: &'a dyn Fn(TensorId) -> bool,
    /// What the cache is built from, and most sequences that share its cells.
    pub cache: (&'a CacheConfig, u32),
}

impl FootprintRequest<'_> {
    /// The cache's keys and values once it is full, as `kv` lays them out.
    pub fn kv_layout(&self) -> KvLayout {
        let (config, sequences) = self.cache;
        config.layout(config.capacity, sequences)
    }
}

/// What an executable holds, known before a weight is read.
#[derive(Clone, Debug)]
pub struct Footprint {
    /// The place of every intermediate and of all work space.
    pub arena: MemoryPlan,
    /// Weights that are held in another layout besides their own, and the bytes of it.
    pub packed: Vec<(TensorId, usize)>,
    /// Where keys and values lie once the cache is full.
    pub kv: KvLayout,
}

/// The cache's part in one step: the plan to follow and the bytes to work on.
pub struct CacheStep<'a, K: ?Sized = dyn KvBytes> {
    /// The step, where its rows go and what its tokens see.
    pub plan: &'a StepPlan,
    /// The KV storage.
    pub bytes: &'a mut K,
}

/// Is shown every node's name, op and result, in the order they are computed.
pub type TraceCallback<'a> = &'a mut dyn FnMut(&str, &'static str, &Value);

/// A graph that is ready to run, on the backend's own KV storage. Sizes, types and positions were checked by
/// [`Runnable`](crate::Runnable).
pub trait Executable: Send {
    /// How the backend stores keys and values.
    type Kv: KvBytes;

    /// Computes the graph's outputs from tensors.
    fn run(
        &mut self,
        inputs: &[Value],
        cache: Option<CacheStep<'_, Self::Kv>>,
    ) -> Result<Vec<Value>, BackendError>;

    /// Computes the graph's outputs and shows every node's result on the way.
    fn run_traced(
        &mut self,
        inputs: &[Value],
        cache: Option<CacheStep<'_, Self::Kv>>,
        trace: TraceCallback<'_>,
    ) -> Result<Vec<Value>, BackendError> {
        let _ = (inputs, cache, trace);
        Err(BackendErrorKind::TraceUnsupported.into())
    }

    /// Runs the planned step of a decoder, whose graph takes tokens, positions and rows, and gives the wanted outputs of
    /// its rows. `dispatch` says how; the step is padded to its descriptor.
    fn run_step(
        &mut self,
        dispatch: Dispatch,
        cache: CacheStep<'_, Self::Kv>,
        outputs: &mut StepOutputs,
    ) -> Result<(), BackendError> {
        let _ = dispatch;
        let step = cache.plan.step();
        let rows = step.wanted_rows();
        let ints = |numbers: Vec<i32>| Value::i32([numbers.len()], numbers);
        let tokens = step.tokens();
        let inputs = [
            ints(tokens.iter().map(|token| token.id as i32).collect()),
            ints(tokens.iter().map(|token| token.position).collect()),
            ints(step.rows().iter().map(|row| *row as i32).collect()),
        ];
        let plan = cache.plan;
        let computed = self.run(&inputs, Some(cache))?;
        let step = plan.step();
        match &computed[0].data {
            Data::F32(logits) => {
                let width = logits.len() / step.rows().len().max(1);
                outputs.fill(rows, width, logits);
            }
            _ => unreachable!("a decoder's outputs are f32 by its graph's type"),
        }
        Ok(())
    }

    /// Which steps can be recorded whole.
    fn graph_support(&self) -> GraphSupport {
        GraphSupport::Never
    }

    /// Whether the pieces between attention nodes can be recorded.
    fn splits_attention(&self) -> bool {
        false
    }

    /// The sizes to record, for steps of up to so many sequences and tokens, and most padding as the part of a size
    /// that it divides.
    fn capture_sizes(&self, sequences: usize, max_tokens: usize) -> (CaptureSizes, Option<usize>) {
        (CaptureSizes::sparse(sequences, 1, max_tokens), None)
    }

    /// Says which mode steps are dispatched for from now on. Recordings stay.
    fn set_step_mode(&mut self, mode: RunMode) {
        let _ = mode;
    }

    /// Records a descriptor before a step needs it.
    fn capture(&mut self, mode: RunMode, batch: BatchDescriptor) -> Result<(), BackendError> {
        let _ = (mode, batch);
        Ok(())
    }

    /// Recordings made so far.
    fn captures(&self) -> usize {
        0
    }

    /// Makes all memory for steps with inputs of these shapes, where the executor plans it.
    fn reserve(&mut self, shapes: &[Vec<usize>]) -> Result<(), BackendError> {
        let _ = shapes;
        Ok(())
    }

    /// Measures every node from now on, or no longer; what was measured before is forgotten.
    fn set_profiling(&mut self, on: bool) {
        let _ = on;
    }

    /// Where the time went since profiling began, in the order in which nodes ran; empty where nothing is measured.
    fn profile(&self) -> Vec<NodeProfile> {
        vec![]
    }

    /// Bytes of activations and scratch held now.
    fn arena_bytes(&self) -> usize;

    /// Bytes of weights held in another layout, besides the graph's own constants.
    fn packed_bytes(&self) -> usize {
        0
    }
}
