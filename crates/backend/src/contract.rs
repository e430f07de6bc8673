//! The traits that every backend implements.

use crate::{BackendError, BackendErrorKind};
use graph::{Graph, Value};
use kv::{KvBytes, StepPlan};
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

    /// Bytes of activations and scratch held now.
    fn arena_bytes(&self) -> usize;

    /// Bytes of weights held in another layout, besides the graph's own constants.
    fn packed_bytes(&self) -> usize {
        0
    }
}
