//! Gives every intermediate of a step its place in one arena.
//!
//! Aliases and in-place results share their operand's memory by one mechanism: every tensor has a *root*, and only
//! roots get memory. Roots are placed first-fit in the order they are born.

use crate::graph::{Graph, TensorId, TensorKind};
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
    /// In the caller's input of this index.
    Input(usize),
    /// In the model, under this tensor's id.
    Constant(TensorId),
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
        let roots = share(graph, &sizes);
        let mut arena = Arena::default();
        let mut slots = vec![None; graph.tensors().len()];
        let mut work = Vec::with_capacity(graph.nodes().len());
        for (step, node) in graph.nodes().iter().enumerate() {
            arena.release_before(step);
            let output = node.output.0 as usize;
            if roots.root[output] == node.output {
                slots[output] = Some(arena.allocate(sizes[output], roots.last_use[output]));
            }
            let bytes = scratch(step);
            work.push((bytes > 0).then(|| arena.allocate(bytes, step)));
        }
        let place = |id: u32| {
            let root = roots.root[id as usize];
            match graph.tensor(root).kind {
                TensorKind::Input => Place::Input(
                    graph
                        .inputs()
                        .iter()
                        .position(|i| *i == root)
                        .expect("a listed input"),
                ),
                TensorKind::Constant(_) => Place::Constant(root),
                TensorKind::Value(_) => {
                    let slot = slots[root.0 as usize].expect("every computed root was placed");
                    Place::Arena(Slot {
                        len: sizes[id as usize],
                        ..slot
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
    root: Vec<TensorId>,
    /// Per root: the last step that reads any tensor in its memory (`usize::MAX` for outputs).
    last_use: Vec<usize>,
}

fn share(graph: &Graph, sizes: &[usize]) -> Roots {
    let mut last_use = vec![0; graph.tensors().len()];
    for (step, node) in graph.nodes().iter().enumerate() {
        last_use[node.output.0 as usize] = step;
        node.inputs
            .iter()
            .for_each(|id| last_use[id.0 as usize] = step);
    }
    graph
        .outputs()
        .iter()
        .for_each(|id| last_use[id.0 as usize] = usize::MAX);

    let mut root: Vec<TensorId> = (0..graph.tensors().len() as u32).map(TensorId).collect();
    for (step, node) in graph.nodes().iter().enumerate() {
        let output = node.output.0 as usize;
        let root_of = |operand: usize| root[node.inputs[operand].0 as usize];
        let host = match node.op.sharing() {
            Sharing::None => None,
            Sharing::Alias => Some(root_of(0)),
            Sharing::InPlace(n) => (0..n.min(node.inputs.len())).find_map(|operand| {
                let host = root_of(operand);
                let dies = last_use[host.0 as usize] <= step;
                let computed = matches!(graph.tensor(host).kind, TensorKind::Value(_));
                let fits = sizes[node.inputs[operand].0 as usize] == sizes[output];
                let read_elsewhere = (n..node.inputs.len()).any(|other| root_of(other) == host);
                (dies && computed && fits && !read_elsewhere).then_some(host)
            }),
        };
        if let Some(host) = host {
            root[output] = host;
            let last = last_use[host.0 as usize].max(last_use[output]);
            last_use[host.0 as usize] = last;
        }
    }
    Roots { root, last_use }
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
