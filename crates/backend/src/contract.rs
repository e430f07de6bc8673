//! The traits that every backend implements.

use crate::{
    BackendError, BackendErrorKind, Dispatch, Dispatcher, NodeProfile, RunMode, StepOptions,
    StepOutputs, frozen_rows,
};
use base::{Bytes, MemoryBound, named_enum};
use graph::plan::MemoryPlan;
use graph::{Bindings, Graph, Node, TensorId, Value, ValueRef};
use kv::{CacheConfig, FrozenKv, KvBytes, KvError, KvLayout, KvStorage, Step, StepPlan};
use std::any::{Any, type_name};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

/// The executor of a graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExecutorKind {
    /// Records the kernel calls of a graph once for each set of input sizes and replays them.
    #[default]
    Compiled,
    /// Resolves and runs every node in every run: for debugging, and as a check of the compiled executor.
    Interpreted,
}

named_enum! {
    /// How exactly quantised weights are multiplied with activations.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum Precision {
        /// Activations have fourteen bits.
        #[default]
        High = "high",
        /// Activations have eight bits with a scale for every 32 of them, and fifteen where they stand out of their row. Backends whose
        /// other arithmetic is as fast use that.
        Balanced = "balanced",
        /// As balanced; on matrix tiles as high, except that steps of more than 32 rows are multiplied in bf16. There a row's bits
        /// depend on whether its step is that large.
        Fast = "fast",
    }
}

/// No precision has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown precision {0:?}: must be high, balanced or fast")]
pub struct UnknownPrecision(String);

impl FromStr for Precision {
    type Err = UnknownPrecision;

    fn from_str(text: &str) -> Result<Precision, UnknownPrecision> {
        Precision::from_name(text).ok_or_else(|| UnknownPrecision(text.to_owned()))
    }
}

/// The inputs of a step: the ids of its tokens, their positions, and the rows whose outputs are wanted.
#[derive(Clone, Debug, Default)]
pub struct StepInputs(pub [Vec<i32>; 3]);

impl StepInputs {
    /// Takes those of a step; their memory is reused.
    pub fn set(&mut self, step: &Step) {
        let StepInputs([tokens, positions, rows]) = self;
        tokens.clear();
        tokens.extend(step.tokens().iter().map(|token| token.id as i32));
        positions.clear();
        positions.extend(step.tokens().iter().map(|token| token.position));
        rows.clear();
        rows.extend(step.rows().iter().map(|row| *row as i32));
    }
}

/// Options for compiling a graph.
#[derive(Clone, Debug, Default)]
pub struct CompileOptions {
    /// Number of compute threads; `None` uses one per core.
    pub threads: Option<usize>,
    /// The executor of runs on tensors, and of steps if `run_mode` is `None`.
    pub executor: ExecutorKind,
    /// The run mode of steps; `None` derives it from `executor`: [`RunMode::Full`] or [`RunMode::None`].
    pub run_mode: Option<RunMode>,
    /// Records all sizes of steps before the first one; a step whose size has no recording is then an error. For tests: other sizes
    /// are recorded when they come.
    pub record_all: bool,
    /// How exactly quantised weights are multiplied.
    pub precision: Precision,
    /// The most bytes of routed experts' weights that are in memory at a time; `None` for all of them. Experts that a step uses and
    /// that are not in memory are read from the model's file or from the file of packed weights.
    pub expert_budget: Option<usize>,
    /// The number of layers, from the first on, whose routed experts stay in the host's memory on a device with memory of its own, which
    /// reads them from there. Layers are counted as the model numbers them. Without effect on other devices.
    pub host_expert_layers: usize,
    /// A folder for files of packed weights. The next process maps them instead of packing the weights again.
    pub packed_folder: Option<PathBuf>,
    /// Reports loading progress and can cancel it.
    pub progress: Option<ProgressCallback>,
}

/// A callback that receives the weight bytes that are ready and the total. It returns `false` to cancel loading. It may
/// be called from any thread.
#[derive(Clone)]
pub struct ProgressCallback(Arc<dyn Fn(usize, usize) -> bool + Send + Sync>);

impl ProgressCallback {
    /// Wraps a progress callback.
    pub fn new(
        callback: impl Fn(usize, usize) -> bool + Send + Sync + 'static,
    ) -> ProgressCallback {
        ProgressCallback(Arc::new(callback))
    }

    /// Reports that `done` of `total` bytes are ready. Returns false if loading should be cancelled.
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
    /// The requested run mode of steps; an executable may downgrade it.
    pub fn step_mode(&self) -> RunMode {
        let by_executor = match self.executor {
            ExecutorKind::Compiled => RunMode::Full,
            ExecutorKind::Interpreted => RunMode::None,
        };
        self.run_mode.unwrap_or(by_executor)
    }
}

/// A device and its kernels. A backend compiles graphs to executables and stores the bytes of caches. For module loads that find
/// their cache by a key, it registers a builder of these with [`CacheBuilderRegistry`](kv::CacheBuilderRegistry) under its id.
pub trait Backend: Send + Sync {
    /// The name of the backend, and its key in the cache builder registry.
    fn id(&self) -> &'static str;

    /// The name of the kernels in use: measurements with others do not hold.
    fn kernels(&self) -> String {
        self.id().to_owned()
    }

    /// Compiles a graph.
    fn compile(
        &self,
        graph: Arc<Graph>,
        options: &CompileOptions,
    ) -> Result<Box<dyn Executable>, BackendError>;

    /// Whether the backend has a kernel for a node of `graph`. A graph of which it lacks some can be divided among devices; see
    /// [`Devices`](crate::Devices).
    fn has_kernel(&self, graph: &Graph, node: &Node) -> bool {
        let _ = (graph, node);
        true
    }

    /// Allocates the storage of a cache with this configuration.
    fn new_kv(&self, config: &CacheConfig) -> Result<Box<dyn KvBytes>, KvError>;

    /// Freezes rows that lie in memory or in a mapped file: `cells[i]` rows of every head of layer `i`, keys and values, in
    /// [`RowLayout`](crate::RowLayout), head after head. Recurrent layers have states instead. A backend that cannot read rows
    /// where they lie copies them.
    fn freeze_rows(
        &self,
        config: &CacheConfig,
        cells: &[u32],
        rows: &[[Bytes; 2]],
    ) -> Result<Arc<dyn FrozenKv>, KvError> {
        let mut kv = self.new_kv(&frozen_rows::storage_config(config, cells))?;
        frozen_rows::write(&mut *kv, cells, rows)?;
        kv.freeze(cells)
    }

    /// The memory that an executable of `graph` and its cache will need for steps of these sizes. Reads no weights.
    fn footprint(
        &self,
        graph: &Graph,
        request: &FootprintRequest<'_>,
    ) -> Result<Footprint, BackendError> {
        Ok(Footprint {
            arena: MemoryPlan::new(graph, request.bindings, |_| 0)?,
            packed: vec![],
            host: vec![],
            mapped: vec![],
            experts: None,
            kv: request.kv_layout(),
        })
    }

    /// Whether keys and values can be stored as this type.
    fn stores(&self, storage: KvStorage) -> bool {
        let _ = storage;
        true
    }

    /// Whether attention sees the first positions of a sequence besides a window, see [`LayerConfig::sinks`](kv::LayerConfig::sinks).
    fn sees_first_positions(&self) -> bool {
        false
    }

    /// Bytes that can be allocated on the device now; `None` if the device does not report them.
    fn free_memory(&self) -> Option<u64> {
        None
    }

    /// A handle to the same device, for graphs that are compiled later; `None` if the backend has none. Sessions whose graphs are made
    /// for the shapes of each run's inputs need one.
    fn shared(&self) -> Option<Arc<dyn Backend>> {
        None
    }

    /// The limit that [`free_memory`](Backend::free_memory) comes from, for messages.
    fn memory_bound(&self) -> MemoryBound {
        MemoryBound::Free
    }

    /// Whether [`free_memory`](Backend::free_memory) is that of a device with memory of its own, in which mapped files take
    /// no part.
    fn has_own_memory(&self) -> bool {
        false
    }
}

/// The arguments of [`Backend::footprint`].
pub struct FootprintRequest<'a> {
    /// The sizes of the longest step.
    pub bindings: Bindings,
    /// The compile options of the run.
    pub options: &'a CompileOptions,
    /// Whether a tensor without a producer is a weight, which is the same in every step.
    pub is_weight: &'a dyn Fn(TensorId) -> bool,
    /// The configuration of the cache, and the maximum number of sequences in it.
    pub cache: (&'a CacheConfig, u32),
}

impl FootprintRequest<'_> {
    /// The layout of the full cache.
    pub fn kv_layout(&self) -> KvLayout {
        let (config, sequences) = self.cache;
        config.layout(config.capacity, sequences)
    }
}

/// The memory of an executable and its cache, computed before a weight is read.
#[derive(Clone, Debug)]
pub struct Footprint {
    /// The offsets of all intermediates and workspaces in the arena.
    pub arena: MemoryPlan,
    /// The packed weights, with their bytes.
    pub packed: Vec<(TensorId, usize)>,
    /// Packed weights that lie in the host's memory although the device has memory of its own, with their bytes.
    pub host: Vec<(TensorId, usize)>,
    /// Bytes of weights that stay resident where their file is mapped. All of a weight's bytes, if it is not listed.
    pub mapped: Vec<(TensorId, usize)>,
    /// Routed experts that can be held in part; `None` if the graph has none, or the backend holds all of them.
    pub experts: Option<ExpertFootprint>,
    /// The layout of the full cache.
    pub kv: KvLayout,
}

/// The memory of a graph's routed experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertFootprint {
    /// Bytes of all of them.
    pub all: usize,
    /// The smallest budget: the experts of one token in one layer of each size.
    pub minimum: usize,
    /// Bytes that are held under the options' budget, which are not in [`Footprint::packed`] and [`Footprint::mapped`]; `None` if all
    /// experts are held, which are in them.
    pub held: Option<usize>,
}

/// The plan of a step and the cache bytes that it works on.
pub struct CacheStep<'a, K: ?Sized = dyn KvBytes> {
    /// The step, the cells that its rows are written to and the rows that its tokens attend to.
    pub plan: &'a StepPlan,
    /// The KV storage.
    pub bytes: &'a mut K,
}

impl<'a> CacheStep<'a> {
    /// The step on a backend's own storage.
    ///
    /// # Errors
    /// `CacheMismatch` if the storage is another backend's.
    pub fn downcast<K: KvBytes>(self) -> Result<CacheStep<'a, K>, BackendError> {
        let CacheStep { plan, bytes } = self;
        let bytes: &mut dyn Any = bytes;
        match bytes.downcast_mut() {
            Some(bytes) => Ok(CacheStep { plan, bytes }),
            None => Err(other_storage::<K>()),
        }
    }
}

/// Checks that a cache's storage is of type `K`.
///
/// # Errors
/// `CacheMismatch` if it is another backend's.
pub fn check_storage<K: KvBytes>(bytes: &dyn KvBytes) -> Result<(), BackendError> {
    let any: &dyn Any = bytes;
    any.is::<K>().then_some(()).ok_or_else(other_storage::<K>)
}

fn other_storage<K>() -> BackendError {
    let storage = type_name::<K>().rsplit("::").next().unwrap_or_default();
    let reason = format!("it belongs to another backend: {storage} is needed");
    BackendErrorKind::CacheMismatch(reason).into()
}

/// A callback that receives the name, op and result of every node in execution order.
pub type TraceCallback<'a> = &'a mut dyn FnMut(&str, &'static str, &Value);

/// A callback that receives the index and a view of every output of a graph.
pub type OutputCallback<'a> = &'a mut dyn FnMut(usize, ValueRef<'_>);

/// A compiled graph. The caller, [`Runnable`](crate::Runnable), has checked sizes, types and positions. An executable downcasts
/// the cache bytes of a step to its backend's own storage ([`CacheStep::downcast`]).
pub trait Executable: Send {
    /// Checks that the executable can work on this KV storage; see [`check_storage`].
    fn takes(&self, bytes: &dyn KvBytes) -> Result<(), BackendError>;

    /// Computes the graph's outputs from tensors. Calls `trace`, if there is one, with the result of every node.
    ///
    /// # Errors
    /// `TraceUnsupported` if the executor does not keep intermediate results.
    fn run(
        &mut self,
        inputs: &[Value],
        cache: Option<CacheStep<'_>>,
        trace: Option<TraceCallback<'_>>,
    ) -> Result<Vec<Value>, BackendError>;

    /// Computes the graph's outputs from borrowed tensors and calls `output` with each. Backends that compute in the host's
    /// memory read the inputs where they are.
    fn run_borrowed(
        &mut self,
        inputs: &[ValueRef<'_>],
        cache: Option<CacheStep<'_>>,
        output: OutputCallback<'_>,
    ) -> Result<(), BackendError> {
        let inputs: Vec<Value> = inputs.iter().map(ValueRef::to_value).collect();
        for (index, value) in self.run(&inputs, cache, None)?.iter().enumerate() {
            output(index, value.view());
        }
        Ok(())
    }

    /// Runs the planned step of a decoder, whose graph takes tokens, positions and rows, and writes the wanted outputs
    /// of its rows to `outputs`. The step is padded to the descriptor of `dispatch`.
    fn run_step(
        &mut self,
        dispatch: Dispatch,
        cache: CacheStep<'_>,
        outputs: &mut StepOutputs,
    ) -> Result<(), BackendError> {
        let _ = dispatch;
        let step = cache.plan.step();
        let mut inputs = StepInputs::default();
        inputs.set(step);
        let inputs = inputs.0.map(|input| Value::i32([input.len()], input));
        let computed = self.run(&inputs, Some(cache), None)?;
        let rows = computed.iter().map(|value| {
            let numbers = value.as_f32().expect("a decoder's outputs are f32");
            (numbers, value.shape.last().copied().unwrap_or(1))
        });
        let rows: Vec<(&[f32], usize)> = rows.collect();
        let (logits, width) = rows[0];
        outputs.fill(step.wanted_rows(), width, logits);
        outputs.fill_features(step.real_len(), &rows[1..]);
        Ok(())
    }

    /// Allocates the memory for steps, records common ones so that the first token does not wait for it, and returns how steps are
    /// dispatched. Called again to change the options.
    fn prepare(&mut self, options: &StepOptions) -> Result<Dispatcher, BackendError> {
        let _ = options;
        Ok(Dispatcher::eager())
    }

    /// The number of recordings.
    fn captures(&self) -> usize {
        0
    }

    /// The number of steps that no recording from before them served: they were run as they are, or recorded when they came.
    fn missed_recordings(&self) -> usize {
        0
    }

    /// Starts or stops measuring nodes, and discards earlier measurements.
    fn set_profiling(&mut self, on: bool) {
        let _ = on;
    }

    /// The measurements since profiling was started, in execution order; empty if nothing was measured.
    fn profile(&self) -> Vec<NodeProfile> {
        vec![]
    }

    /// Bytes of activations and scratch allocated now.
    fn arena_bytes(&self) -> usize;

    /// Bytes of packed weights, not counting the graph's constants.
    fn packed_bytes(&self) -> usize {
        0
    }
}
