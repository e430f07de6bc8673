//! What is wrong with a graph, and at which node.

/// A graph that cannot be built, verified or planned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind}")]
pub struct GraphError {
    kind: GraphErrorKind,
}

/// Why a graph was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GraphErrorKind {
    /// A node's inputs do not fit its op.
    #[error("node {node} ({op}): {reason}")]
    Node {
        /// Name of the node's output.
        node: String,
        /// Name of the op.
        op: &'static str,
        /// What does not fit.
        reason: String,
    },
    /// The graph as a whole breaks a rule.
    #[error("graph {graph}: {reason}")]
    Graph {
        /// Name of the graph.
        graph: String,
        /// The broken rule.
        reason: String,
    },
    /// A dimension or size has no value under the given symbols.
    #[error("tensor {tensor} has no size with these inputs: {reason}")]
    Size {
        /// Name of the tensor.
        tensor: String,
        /// Why not.
        reason: String,
    },
}

impl GraphError {
    /// Why the graph was refused.
    pub fn kind(&self) -> &GraphErrorKind {
        &self.kind
    }
}

impl From<GraphErrorKind> for GraphError {
    fn from(kind: GraphErrorKind) -> GraphError {
        GraphError { kind }
    }
}
