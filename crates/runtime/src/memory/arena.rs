//! `ArenaPlan`: the buffers of a step's arena.

use base::DType;
use graph::Graph;
use graph::plan::{self, Holds};

/// Activations and workspaces of one step, in one allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArenaPlan {
    /// Bytes of the arena.
    pub bytes: usize,
    /// The largest number of bytes alive at once: a lower bound for any plan.
    pub lower_bound: usize,
    /// The number of nodes.
    pub steps: usize,
    /// The buffers, in the order in which they are first used.
    pub buffers: Vec<ArenaBuffer>,
}

/// A buffer in the arena and the nodes that use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArenaBuffer {
    /// Name of the tensor, or of the node that the workspace belongs to.
    pub name: String,
    /// Op of the node that writes it.
    pub op: &'static str,
    /// Element type of the tensor; `None` for a workspace.
    pub dtype: Option<DType>,
    /// Shape, outermost dimension first; the number of bytes for a workspace.
    pub shape: Vec<usize>,
    /// Offset of the first byte.
    pub offset: usize,
    /// Size in bytes.
    pub bytes: usize,
    /// The first node that uses it.
    pub first: usize,
    /// The last node that uses it.
    pub last: usize,
}

impl ArenaBuffer {
    /// Offset of the byte after the last one.
    pub fn end(&self) -> usize {
        self.offset + self.bytes
    }

    /// Whether it is the workspace of a kernel.
    pub fn is_scratch(&self) -> bool {
        self.dtype.is_none()
    }
}

impl ArenaPlan {
    pub(super) fn new(graph: &Graph, plan: &plan::MemoryPlan) -> ArenaPlan {
        let steps = graph.nodes().len();
        let buffer = |buffer: &plan::Buffer| {
            let bytes = buffer.slot.len;
            let op = graph.nodes()[buffer.first].op.name();
            let (name, dtype, shape) = match buffer.holds {
                Holds::Tensor(id) => {
                    let tensor = graph.tensor(id);
                    let dims = tensor.ty.dims(&plan.bindings).unwrap_or_default();
                    (tensor.name.clone(), Some(tensor.ty.dtype), dims)
                }
                Holds::Scratch(node) => {
                    let node = &graph.nodes()[node];
                    (graph.node_name(node).to_owned(), None, vec![bytes])
                }
            };
            ArenaBuffer {
                name,
                op,
                dtype,
                shape,
                offset: buffer.slot.offset,
                bytes,
                first: buffer.first,
                last: buffer.last.unwrap_or(steps.saturating_sub(1)),
            }
        };
        ArenaPlan {
            bytes: plan.arena_bytes,
            lower_bound: plan.lower_bound,
            steps,
            buffers: plan.buffers.iter().map(buffer).collect(),
        }
    }

    /// Bytes of the largest workspace.
    pub fn scratch_bytes(&self) -> usize {
        let scratch = self.buffers.iter().filter(|buffer| buffer.is_scratch());
        scratch.map(|buffer| buffer.bytes).max().unwrap_or(0)
    }
}
