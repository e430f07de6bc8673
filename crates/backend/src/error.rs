//! What can go wrong between a graph and its results.

use crate::ReplayError;
use graph::GraphError;
use kv::KvError;

/// A graph that could not be compiled, bound or run.
#[derive(Clone, Debug, thiserror::Error)]
#[error(transparent)]
pub struct BackendError(BackendErrorKind);

/// Why a compile, bind or run failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackendErrorKind {
    /// The cache refused the step.
    #[error(transparent)]
    Cache(#[from] KvError),
    /// The graph does not fit its inputs.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// A node failed on these inputs.
    #[error("node {node} ({op}): {reason}")]
    Node {
        /// Name of the node's output.
        node: String,
        /// Name of the op.
        op: &'static str,
        /// What went wrong.
        reason: String,
    },
    /// The backend has no kernel for a node.
    #[error("the {backend} backend does not support {op} (node {node}): {reason}")]
    Unsupported {
        /// The backend's id.
        backend: &'static str,
        /// Name of the node's output.
        node: String,
        /// Name of the op.
        op: &'static str,
        /// Which case of the op is missing.
        reason: String,
    },
    /// A step cannot be replayed.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// A step was given to a graph that does not take tokens, positions and rows.
    #[error("the graph {0:?} is no decoder: it does not take tokens, positions and rows")]
    NotADecoder(String),
    /// An input has the wrong type.
    #[error("input {input} is {found}, must be {wanted}")]
    InputType {
        /// Name of the input.
        input: String,
        /// Its type.
        found: base::DType,
        /// The type the graph takes.
        wanted: base::DType,
    },
    /// An input does not hold as many elements as its shape says.
    #[error("input {input} holds {elements} elements, its shape is {shape:?}")]
    InputSize {
        /// Name of the input.
        input: String,
        /// Elements given.
        elements: usize,
        /// Shape given.
        shape: Vec<usize>,
    },
    /// A position is no position.
    #[error("input {input} holds the position {position}, which no cache has")]
    PositionOutOfRange {
        /// Name of the input.
        input: String,
        /// The position.
        position: i64,
    },
    /// The bound cache is not one the graph can use.
    #[error("the cache does not fit the model: {0}")]
    CacheMismatch(String),
    /// The positions of stored keys cannot be changed.
    #[error("the context cannot be shifted: {0}")]
    ShiftUnsupported(String),
    /// The executor keeps no intermediate results.
    #[error("this executor cannot show intermediate results: use the interpreted one")]
    TraceUnsupported,
    /// Loading was cancelled by the progress callback.
    #[error("interrupted")]
    Interrupted,
    /// Memory for the step could not be had.
    #[error("out of memory: {} of activations could not be allocated", base::size_text(*.0 as u64))]
    OutOfMemory(usize),
}

impl BackendError {
    /// Why it failed.
    pub fn kind(&self) -> &BackendErrorKind {
        &self.0
    }
}

impl<T: Into<BackendErrorKind>> From<T> for BackendError {
    fn from(kind: T) -> BackendError {
        BackendError(kind.into())
    }
}
