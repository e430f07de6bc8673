//! The arena of a step, buffer by buffer.

use base::DType;
use graph::Graph;
use graph::plan::{self, Holds};

/// Activations and work space of one step, in one block of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArenaPlan {
    /// Bytes of the block.
    pub bytes: usize,
    /// The largest set of bytes alive at once: no plan can do with less.
    pub lower_bound: usize,
    /// Nodes that run, one after the other.
    pub steps: usize,
    /// Every buffer, by birth.
    pub buffers: Vec<ArenaBuffer>,
}

/// A part of the arena for a part of the step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArenaBuffer {
    /// The tensor's name, or that of the node whose work space it is.
    pub name: String,
    /// The op of the node that fills it.
    pub op: &'static str,
    /// Element type of the tensor; `None` for work space.
    pub dtype: Option<DType>,
    /// Sizes, outermost first; bytes for work space.
    pub shape: Vec<usize>,
    /// First byte.
    pub offset: usize,
    /// Bytes in use.
    pub bytes: usize,
    /// The first node that needs it.
    pub first: usize,
    /// The last node that needs it.
    pub last: usize,
}

impl ArenaBuffer {
    /// The first byte behind.
    pub fn end(&self) -> usize {
        self.offset + self.bytes
    }

    /// Whether it is a kernel's work space.
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

    /// Bytes of work space that the hungriest kernel has.
    pub fn scratch_bytes(&self) -> usize {
        let scratch = self.buffers.iter().filter(|buffer| buffer.is_scratch());
        scratch.map(|buffer| buffer.bytes).max().unwrap_or(0)
    }
}
