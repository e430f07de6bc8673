//! The error type of the crate.

use crate::ReplayError;
use graph::GraphError;
use kv::KvError;

/// A compile, bind or run that failed.
#[derive(Clone, Debug, thiserror::Error)]
#[error(transparent)]
pub struct BackendError(BackendErrorKind);

/// Why a compile, bind or run failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackendErrorKind {
    /// The cache rejected the step.
    #[error(transparent)]
    Cache(#[from] KvError),
    /// The graph is invalid or does not match its inputs.
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
    /// The step cannot be replayed.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// The compile options cannot be followed.
    #[error("{0}")]
    Options(String),
    /// The weights of experts could not be read.
    #[error("cannot read the weights of experts: {0}")]
    ReadWeights(String),
    /// The graph does not take tokens, positions and rows, so it cannot run a step.
    #[error("the graph {0:?} is not a decoder: it does not take tokens, positions and rows")]
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
    /// The number of elements of an input does not match its shape.
    #[error("input {input} has {elements} elements, but its shape is {shape:?}")]
    InputSize {
        /// Name of the input.
        input: String,
        /// Elements given.
        elements: usize,
        /// Shape given.
        shape: Vec<usize>,
    },
    /// A state cannot be read or replaced.
    #[error("the state {state:?} {reason}")]
    State {
        /// Name of the state.
        state: String,
        /// The reason, as the end of a sentence about the state.
        reason: String,
    },
    /// A position does not fit in an `i32`.
    #[error("input {input} holds position {position}, which does not fit in 32 bits")]
    PositionOutOfRange {
        /// Name of the input.
        input: String,
        /// The position.
        position: i64,
    },
    /// The graph cannot use the bound cache.
    #[error("the cache does not fit the model: {0}")]
    CacheMismatch(String),
    /// Stored keys of this model cannot be moved to other positions.
    #[error("the context cannot be shifted: {0}")]
    ShiftUnsupported(String),
    /// The executor does not keep intermediate results.
    #[error("this executor cannot show intermediate results: use the interpreted executor")]
    TraceUnsupported,
    /// Loading was cancelled by the progress callback.
    #[error("interrupted")]
    Interrupted,
    /// This many bytes of activations could not be allocated.
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
