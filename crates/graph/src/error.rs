//! Graph errors.

/// A graph that cannot be built, verified or planned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind}")]
pub struct GraphError {
    kind: GraphErrorKind,
}

/// Reason why a graph was rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GraphErrorKind {
    /// A node's operands are invalid for its op.
    #[error("node {node} ({op}): {reason}")]
    Node {
        /// Name of the node's output.
        node: String,
        /// Name of the op.
        op: &'static str,
        /// Reason.
        reason: String,
    },
    /// The graph violates an invariant.
    #[error("graph {graph}: {reason}")]
    Graph {
        /// Name of the graph.
        graph: String,
        /// The violated invariant.
        reason: String,
    },
    /// A dimension or size has no value under the given symbols.
    #[error("tensor {tensor} has no size with these inputs: {reason}")]
    Size {
        /// Name of the tensor.
        tensor: String,
        /// Reason.
        reason: String,
    },
}

impl GraphError {
    /// Reason why the graph was rejected.
    pub fn kind(&self) -> &GraphErrorKind {
        &self.kind
    }
}

impl From<GraphErrorKind> for GraphError {
    fn from(kind: GraphErrorKind) -> GraphError {
        GraphError { kind }
    }
}
