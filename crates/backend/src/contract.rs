//! The traits that every backend implements.

use crate::{BackendError, BackendErrorKind, NodeTime};
use graph::plan::MemoryPlan;
use graph::{Bindings, Graph, TensorId, Value};
use kv::{KvBytes, StepPlan};
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
    /// How to execute.
    pub executor: ExecutorKind,
    /// A folder where weights may be kept as the kernels read them, so that the next start only maps them.
    pub packed_folder: Option<PathBuf>,
    /// Is told how far the weights are.
    pub loading: Option<Loading>,
}

/// Is told how many bytes of weights are ready, and of how many; answers whether to go on. Any thread may call it.
#[derive(Clone)]
pub struct Loading(Arc<dyn Fn(usize, usize) -> bool + Send + Sync>);

impl Loading {
    /// Tells `told`.
    pub fn new(told: impl Fn(usize, usize) -> bool + Send + Sync + 'static) -> Loading {
        Loading(Arc::new(told))
    }

    /// Says that `done` bytes of `total` are ready; false when the work should end.
    pub fn tell(&self, done: usize, total: usize) -> bool {
        (self.0)(done, total)
    }
}

impl fmt::Debug for Loading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Loading")
    }
}

/// A device and its kernels.
pub trait Backend: Send + Sync {
    /// The name under which its caches are built.
    fn id(&self) -> &'static str;

    /// Prepares a graph to run.
    fn compile(
        &self,
        graph: Arc<Graph>,
        options: &CompileOptions,
    ) -> Result<Box<dyn Executable>, BackendError>;

    /// What a compiled executable of `graph` will hold for steps of these sizes. Reads no weight; `is_weight` tells which
    /// tensors without a producer stay the same from step to step.
    fn footprint(
        &self,
        graph: &Graph,
        bindings: Bindings,
        options: &CompileOptions,
        is_weight: &dyn Fn(TensorId) -> bool,
    ) -> Result<Footprint, BackendError> {
        let _ = (options, is_weight);
        Ok(Footprint {
            arena: MemoryPlan::new(graph, bindings, |_| 0)?,
            packed: vec![],
        })
    }
}

/// What an executable holds, known before a weight is read.
#[derive(Clone, Debug)]
pub struct Footprint {
    /// The place of every intermediate and of all work space.
    pub arena: MemoryPlan,
    /// Weights that are held in another layout besides their own, and the bytes of it.
    pub packed: Vec<(TensorId, usize)>,
}

/// The cache's part in one step: the plan to follow and the bytes to work on.
pub struct CacheStep<'a> {
    /// Where rows go and what is seen.
    pub plan: &'a StepPlan,
    /// The backend's own KV storage.
    pub bytes: &'a mut dyn KvBytes,
}

/// Is shown every node's name, op and result, in the order they are computed.
pub type Trace<'a> = &'a mut dyn FnMut(&str, &'static str, &Value);

/// A graph that is ready to run. Sizes, types and positions were checked by [`Runnable`](crate::Runnable).
pub trait Executable: Send {
    /// Computes the graph's outputs.
    fn run(
        &mut self,
        inputs: &[Value],
        cache: Option<CacheStep<'_>>,
    ) -> Result<Vec<Value>, BackendError>;

    /// Computes the graph's outputs and shows every node's result on the way.
    fn run_traced(
        &mut self,
        inputs: &[Value],
        cache: Option<CacheStep<'_>>,
        trace: Trace<'_>,
    ) -> Result<Vec<Value>, BackendError> {
        let _ = (inputs, cache, trace);
        Err(BackendErrorKind::NoTrace.into())
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
    fn profile(&self) -> Vec<NodeTime> {
        vec![]
    }

    /// Bytes of activations and scratch held now.
    fn arena_bytes(&self) -> usize;

    /// Bytes of weights held in another layout, besides the graph's own constants.
    fn packed_bytes(&self) -> usize {
        0
    }
}
