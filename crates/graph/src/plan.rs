//! Assigns every intermediate tensor of a step an offset in one arena.
//!
//! Each tensor has a storage owner; aliases and in-place results use their operand's owner, and only owners get a slot.
//! Slots are assigned first-fit in several orders, and the smallest arena is kept.

mod alias;
mod placement;

pub use placement::{ALIGNMENT, PlacementOrder, Slot};

use crate::graph::{Graph, TensorId, TensorKind};
use crate::passes::FusedOp;
use crate::{Bindings, GraphError, GraphErrorKind};
use alias::AliasAnalysis;
use placement::{Lifetime, best_placement, lower_bound};
use std::ops::Range;

/// Where a tensor's contents are during a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a graph input, at a byte offset.
    Input {
        /// Index of the graph input.
        index: usize,
        /// Bytes of it before the tensor.
        offset: usize,
    },
    /// In a constant, at a byte offset.
    Constant {
        /// The constant.
        id: TensorId,
        /// Bytes of it before the tensor.
        offset: usize,
    },
    /// In the arena.
    Arena(Slot),
}

/// An arena buffer with its lifetime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Its range in the arena.
    pub slot: Slot,
    /// The first node that uses it.
    pub first: usize,
    /// The last node that uses it; `None` if it is used after the run.
    pub last: Option<usize>,
    /// Its contents.
    pub holds: Holds,
}

/// Contents of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// This tensor, and the tensors that alias it.
    Tensor(TensorId),
    /// Scratch of the node with this index.
    Scratch(usize),
}

/// The memory of one step with concrete symbols.
#[derive(Clone, Debug)]
pub struct MemoryPlan {
    /// The symbols' values.
    pub bindings: Bindings,
    /// Size of the arena in bytes.
    pub arena_bytes: usize,
    /// Largest number of bytes alive at once, a lower bound of the arena.
    pub lower_bound: usize,
    /// Arena size of every placement order that was tried; the smallest is used.
    pub attempts: Vec<(PlacementOrder, usize)>,
    /// All buffers of the arena, ordered by first use.
    pub buffers: Vec<Buffer>,
    places: Vec<Place>,
    scratch: Vec<Option<Slot>>,
}

impl MemoryPlan {
    /// Plans `graph` for these symbols. `scratch` returns the scratch bytes of the kernel of the node with a given index.
    pub fn new(
        graph: &Graph,
        bindings: Bindings,
        scratch: impl Fn(usize) -> usize,
    ) -> Result<MemoryPlan, GraphError> {
        MemoryPlan::with_groups(graph, bindings, scratch, |node| node..node + 1)
    }

    /// As [`new`](MemoryPlan::new), for nodes that run as these ops: what any node of an op reads, writes or uses as scratch
    /// is kept through the whole op. A result may still overwrite an operand where its node's op allows that.
    pub fn fused(
        graph: &Graph,
        bindings: Bindings,
        scratch: impl Fn(usize) -> usize,
        ops: &[FusedOp],
    ) -> Result<MemoryPlan, GraphError> {
        let nodes = ops
            .iter()
            .flat_map(|op| op.nodes.clone().map(|_| &op.nodes));
        let ranges: Vec<&Range<usize>> = nodes.collect();
        MemoryPlan::with_groups(graph, bindings, scratch, |node| ranges[node].clone())
    }

    /// `group` returns the range of nodes that the node with a given index runs with.
    fn with_groups(
        graph: &Graph,
        bindings: Bindings,
        scratch: impl Fn(usize) -> usize,
        group: impl Fn(usize) -> Range<usize>,
    ) -> Result<MemoryPlan, GraphError> {
        let group_end = |step: usize| match step {
            usize::MAX => step,
            _ => group(step).end - 1,
        };
        let sizes = sizes(graph, &bindings)?;
        let roots = AliasAnalysis::new(graph, &sizes, &bindings)?;
        let mut lifetimes = Vec::new();
        let mut holds = Vec::new();
        for (step, node) in graph.nodes().iter().enumerate() {
            let output = node.output.0 as usize;
            if roots.host[output].0 == node.output {
                holds.push(Holds::Tensor(node.output));
                lifetimes.push(Lifetime {
                    len: sizes[output],
                    first: group(step).start,
                    last: group_end(roots.last_use[output]),
                });
            }
            let len = scratch(step);
            if len > 0 {
                holds.push(Holds::Scratch(step));
                lifetimes.push(Lifetime {
                    len,
                    first: group(step).start,
                    last: group_end(step),
                });
            }
        }
        let lower_bound = lower_bound(&lifetimes);
        let (placement, attempts) = best_placement(&lifetimes, lower_bound);

        let mut slots = vec![None; graph.tensors().len()];
        let mut work = vec![None; graph.nodes().len()];
        let mut buffers = Vec::with_capacity(holds.len());
        for ((holds, life), slot) in holds.into_iter().zip(&lifetimes).zip(placement.slots) {
            match holds {
                Holds::Tensor(id) => slots[id.0 as usize] = Some(slot),
                Holds::Scratch(step) => work[step] = Some(slot),
            }
            let last = (life.last != usize::MAX).then_some(life.last);
            let first = life.first;
            buffers.push(Buffer {
                slot,
                first,
                last,
                holds,
            });
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
            arena_bytes: placement.bytes,
            lower_bound,
            attempts,
            buffers,
            places: (0..graph.tensors().len() as u32).map(place).collect(),
            scratch: work,
        })
    }

    /// The arena as a table: one line per buffer with offset, size, first and last node, and name.
    pub fn report(&self, graph: &Graph) -> String {
        let mut text = format!(
            "{:>12} {:>12} {:>6} {:>6}  name\n",
            "offset", "bytes", "first", "last"
        );
        for buffer in &self.buffers {
            let last = buffer
                .last
                .map_or("end".to_owned(), |step| step.to_string());
            let name = match buffer.holds {
                Holds::Tensor(id) => graph.tensor(id).name.clone(),
                Holds::Scratch(step) => {
                    format!("scratch of {}", graph.node_name(&graph.nodes()[step]))
                }
            };
            let Slot { offset, len } = buffer.slot;
            text += &format!(
                "{offset:>12} {len:>12} {:>6} {last:>6}  {name}\n",
                buffer.first
            );
        }
        let (arena, bound) = (self.arena_bytes, self.lower_bound);
        text + &format!("{arena} bytes of arena, at least {bound}\n")
    }

    /// Where a tensor is.
    pub fn place(&self, id: TensorId) -> Place {
        self.places[id.0 as usize]
    }

    /// Scratch of the `i`-th node.
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

#[cfg(test)]
mod tests;
