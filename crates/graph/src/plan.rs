//! Gives every intermediate of a step its place in one arena.
//!
//! Aliases and in-place results share their operand's memory by one mechanism: every tensor has a *root*, and only
//! roots get memory. Roots are placed first-fit in the order they are born.

use crate::graph::{Graph, Node, TensorId, TensorKind, TensorType};
use crate::ops::Sharing;
use crate::{Bindings, GraphError, GraphErrorKind};

/// Every offset is a multiple of this, so that vector loads never straddle lines.
pub const ALIGNMENT: usize = 64;

/// A range of the arena, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// First byte.
    pub offset: usize,
    /// Bytes in use, before rounding up.
    pub len: usize,
}

/// Where a tensor's contents are during a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the caller's input of this index, from this byte on.
    Input {
        /// Index of the graph input.
        index: usize,
        /// Bytes of it before the tensor.
        offset: usize,
    },
    /// In the constant with this id, from this byte on.
    Constant {
        /// The constant.
        id: TensorId,
        /// Bytes of it before the tensor.
        offset: usize,
    },
    /// In the arena.
    Arena(Slot),
}

/// The memory of one step with concrete symbols.
#[derive(Clone, Debug)]
pub struct MemoryPlan {
    /// The symbols' values.
    pub bindings: Bindings,
    /// Bytes the arena must have.
    pub arena_bytes: usize,
    /// The largest set of bytes alive at once: no plan can do with less.
    pub lower_bound: usize,
    places: Vec<Place>,
    scratch: Vec<Option<Slot>>,
}

impl MemoryPlan {
    /// Plans `graph` for these symbols. `scratch` says how many bytes of work space the
    /// kernel of the node with a given index wants.
    pub fn new(
        graph: &Graph,
        bindings: Bindings,
        scratch: impl Fn(usize) -> usize,
    ) -> Result<MemoryPlan, GraphError> {
        let sizes = sizes(graph, &bindings)?;
        let roots = Roots::new(graph, &sizes, &bindings)?;
        let mut arena = Arena::default();
        let mut slots = vec![None; graph.tensors().len()];
        let mut work = Vec::with_capacity(graph.nodes().len());
        for (step, node) in graph.nodes().iter().enumerate() {
            arena.release_before(step);
            let output = node.output.0 as usize;
            if roots.host[output].0 == node.output {
                slots[output] = Some(arena.allocate(sizes[output], roots.last_use[output]));
            }
            let bytes = scratch(step);
            work.push((bytes > 0).then(|| arena.allocate(bytes, step)));
        }
        let place = |id: u32| {
            let (root, offset) = roots.host[id as usize];
            match graph.tensor(root).kind {
                TensorKind::Input => {
                    let index = graph.inputs().iter().position(|i| *i == root);
                    let index = index.expect("a listed input");
                    Place::Input { index, offset }
                }
                TensorKind::Constant(_) => Place::Constant { id: root, offset },
                TensorKind::Value(_) => {
                    let slot = slots[root.0 as usize].expect("every computed root was placed");
                    Place::Arena(Slot {
                        offset: slot.offset + offset,
                        len: sizes[id as usize],
                    })
                }
            }
        };
        Ok(MemoryPlan {
            bindings,
            arena_bytes: arena.high,
            lower_bound: arena.most_live,
            places: (0..graph.tensors().len() as u32).map(place).collect(),
            scratch: work,
        })
    }

    /// Where a tensor is.
    pub fn place(&self, id: TensorId) -> Place {
        self.places[id.0 as usize]
    }

    /// The work space of the `i`-th node.
    pub fn scratch(&self, node: usize) -> Option<Slot> {
        self.scratch[node]
    }
}

fn sizes(graph: &Graph, bindings: &Bindings) -> Result<Vec<usize>, GraphError> {
    let size = |tensor: &crate::Tensor| match tensor.ty.bytes(bindings) {
        Some(n) if n <= isize::MAX as usize / 2 => Ok(n),
        _ => {
            let reason = "a dimension is negative or the size overflows".to_owned();
            Err(GraphErrorKind::Size {
                tensor: tensor.name.clone(),
                reason,
            }
            .into())
        }
    };
    graph.tensors().iter().map(size).collect()
}

/// Which tensors share memory, and until when it is needed.
struct Roots {
    /// Per tensor: the tensor whose memory it is in, and from which byte on.
    host: Vec<(TensorId, usize)>,
    /// Per root: the last step that reads any tensor in its memory (`usize::MAX` for outputs).
    last_use: Vec<usize>,
}

impl Roots {
    fn new(graph: &Graph, sizes: &[usize], bindings: &Bindings) -> Result<Roots, GraphError> {
        let ids = 0..graph.tensors().len() as u32;
        let mut roots = Roots {
            host: ids.map(|id| (TensorId(id), 0)).collect(),
            last_use: vec![0; graph.tensors().len()],
        };
        for (step, node) in graph.nodes().iter().enumerate() {
            for id in node.inputs.iter().chain([&node.output]) {
                roots.last_use[id.0 as usize] = step;
            }
        }
        for id in graph.outputs() {
            roots.last_use[id.0 as usize] = usize::MAX;
        }
        for (step, node) in graph.nodes().iter().enumerate() {
            if let Some((root, offset)) = roots.shared(graph, node, step, sizes, bindings)? {
                let output = node.output.0 as usize;
                roots.host[output] = (root, offset);
                let last = &mut roots.last_use;
                last[root.0 as usize] = last[root.0 as usize].max(last[output]);
            }
        }
        Ok(roots)
    }

    /// Where a node's result goes when it needs no memory of its own.
    fn shared(
        &self,
        graph: &Graph,
        node: &Node,
        step: usize,
        sizes: &[usize],
        bindings: &Bindings,
    ) -> Result<Option<(TensorId, usize)>, GraphError> {
        let types: Vec<&TensorType> = node.inputs.iter().map(|id| &graph.tensor(*id).ty).collect();
        let sharing = node.op.sharing(&types, bindings);
        let sharing = sharing.map_err(|reason| GraphErrorKind::Node {
            node: graph.node_name(node).to_owned(),
            op: node.op.name(),
            reason,
        })?;
        let host_of = |id: TensorId| self.host[id.0 as usize];
        Ok(match sharing {
            Sharing::None => None,
            Sharing::Alias { offset } => {
                let (root, start) = host_of(node.inputs[0]);
                Some((root, start + offset))
            }
            Sharing::InPlace(n) => node.inputs.iter().take(n).copied().find_map(|operand| {
                let (root, offset) = host_of(operand);
                let size = sizes[operand.0 as usize];
                let dies = self.last_use[root.0 as usize] <= step;
                let computed = matches!(graph.tensor(root).kind, TensorKind::Value(_));
                let fits = size == sizes[node.output.0 as usize];
                // Another operand in the same memory is safe only when the op reads and writes both in step.
                let safe = |(i, other): (usize, &TensorId)| {
                    let same = host_of(*other) == (root, offset) && sizes[other.0 as usize] == size;
                    host_of(*other).0 != root || (i < n && same)
                };
                let alone = node.inputs.iter().enumerate().all(safe);
                (dies && computed && fits && alone).then_some((root, offset))
            }),
        })
    }
}

/// First-fit over what is alive.
#[derive(Default)]
struct Arena {
    /// `(start, end, last step)`, by start; starts and ends are aligned.
    live: Vec<(usize, usize, usize)>,
    high: usize,
    most_live: usize,
}

impl Arena {
    fn release_before(&mut self, step: usize) {
        self.live.retain(|(_, _, last)| *last >= step);
    }

    fn allocate(&mut self, len: usize, last: usize) -> Slot {
        let size = len.next_multiple_of(ALIGNMENT);
        let mut offset = 0;
        let mut index = 0;
        for (start, end, _) in &self.live {
            if start - offset >= size {
                break;
            }
            offset = *end;
            index += 1;
        }
        self.live.insert(index, (offset, offset + size, last));
        self.high = self.high.max(offset + size);
        self.most_live = self
            .most_live
            .max(self.live.iter().map(|(start, end, _)| end - start).sum());
        Slot { offset, len }
    }
}

#[cfg(test)]
mod tests;
