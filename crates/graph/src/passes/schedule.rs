//! Reorders nodes to reduce the peak of live memory.
//!
//! Kahn's algorithm, taking among the nodes that can run the one that frees most and allocates least. The greedy
//! order can be worse, so it is kept only if the planner needs less memory. Attention keeps its order: layers that share a
//! cache depend on each other through it.

use crate::graph::{Graph, Node, TensorId, TensorKind};
use crate::ops::BufferReuse;
use crate::plan::MemoryPlan;
use crate::tensor_type::TensorType;
use crate::{Bindings, GraphError, MAX_SYMBOLS};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Assumed value of dynamic dimensions, if it is in their range.
const NOMINAL: usize = 64;

pub(super) fn run(graph: &mut Graph) -> Result<bool, GraphError> {
    let bindings = nominal(graph);
    // A graph that has no plan at the nominal size keeps its order.
    let Ok(before) = MemoryPlan::new(graph, bindings, |_| 0) else {
        return Ok(false);
    };
    let Some(order) = Scheduler::new(graph, &bindings).map(Scheduler::order) else {
        return Ok(false);
    };
    let mut reordered = graph.clone();
    reordered.nodes = order.iter().map(|i| graph.nodes[*i].clone()).collect();
    super::renumber::renumber(&mut reordered);
    let after = MemoryPlan::new(&reordered, bindings, |_| 0)?;
    let better = after.lower_bound < before.lower_bound;
    if better {
        *graph = reordered;
    }
    Ok(better)
}

fn nominal(graph: &Graph) -> Bindings {
    let mut values = [0; MAX_SYMBOLS];
    for (value, symbol) in values.iter_mut().zip(graph.symbols()) {
        *value = NOMINAL.clamp(*symbol.range.start(), *symbol.range.end());
    }
    Bindings(values)
}

struct Scheduler<'g> {
    graph: &'g Graph,
    sizes: Vec<usize>,
    sharing: Vec<BufferReuse>,
    /// Per tensor: the owner of its storage, resolved through aliases.
    root: Vec<TensorId>,
    /// Per storage owner: number of remaining reads; outputs never reach zero.
    reads_left: Vec<usize>,
    /// Per node: number of unscheduled operands and earlier attention nodes.
    waits_for: Vec<usize>,
    /// Per node: its readers, once for each operand.
    unlocks: Vec<Vec<usize>>,
}

impl<'g> Scheduler<'g> {
    /// `None` if a tensor has no size under the nominal symbols.
    fn new(graph: &'g Graph, bindings: &Bindings) -> Option<Scheduler<'g>> {
        let tensors = graph.tensors().iter();
        let sizes = tensors
            .map(|t| t.ty.bytes(bindings))
            .collect::<Option<_>>()?;
        let count = graph.nodes().len();
        let mut scheduler = Scheduler {
            graph,
            sizes,
            sharing: Vec::with_capacity(count),
            root: (0..graph.tensors().len() as u32).map(TensorId).collect(),
            reads_left: vec![0; graph.tensors().len()],
            waits_for: vec![0; count],
            unlocks: vec![Vec::new(); count],
        };
        let mut attention = None;
        for (i, node) in graph.nodes().iter().enumerate() {
            let types: Vec<&TensorType> =
                node.inputs.iter().map(|id| &graph.tensor(*id).ty).collect();
            let sharing = node.op.sharing(&types, bindings).ok()?;
            if let BufferReuse::Alias { .. } = sharing {
                scheduler.root[node.output.0 as usize] = scheduler.root_of(node.inputs[0]);
            }
            scheduler.sharing.push(sharing);
            for id in &node.inputs {
                let root = scheduler.root_of(*id).0 as usize;
                scheduler.reads_left[root] += 1;
                if let TensorKind::Value(maker) = graph.tensor(*id).kind {
                    scheduler.waits_for[i] += 1;
                    scheduler.unlocks[maker.0 as usize].push(i);
                }
            }
            if node.op.has_memory()
                && let Some(earlier) = attention.replace(i)
            {
                scheduler.waits_for[i] += 1;
                scheduler.unlocks[earlier].push(i);
            }
        }
        for id in graph.outputs() {
            let root = scheduler.root_of(*id).0 as usize;
            scheduler.reads_left[root] = usize::MAX / 2;
        }
        Some(scheduler)
    }

    fn order(mut self) -> Vec<usize> {
        let count = self.graph.nodes().len();
        let mut done = vec![false; count];
        let mut order = Vec::with_capacity(count);
        // Heap entries go stale when a score changes; the score is checked again when an entry is popped.
        let mut ready: BinaryHeap<(i64, Reverse<usize>)> = BinaryHeap::new();
        for node in (0..count).filter(|i| self.waits_for[*i] == 0) {
            ready.push((self.score(node), Reverse(node)));
        }
        while let Some((score, Reverse(node))) = ready.pop() {
            if done[node] {
                continue;
            }
            let now = self.score(node);
            if now < score {
                ready.push((now, Reverse(node)));
                continue;
            }
            done[node] = true;
            order.push(node);
            for id in &self.graph.nodes()[node].inputs {
                let root = self.root_of(*id).0 as usize;
                self.reads_left[root] -= 1;
            }
            for i in 0..self.unlocks[node].len() {
                let next = self.unlocks[node][i];
                self.waits_for[next] -= 1;
                if self.waits_for[next] == 0 {
                    ready.push((self.score(next), Reverse(next)));
                }
            }
            self.rescore_siblings(node, &done, &mut ready);
        }
        order
    }

    /// Updates nodes that share operands with `node`: one of them may now be the last reader.
    fn rescore_siblings(
        &self,
        node: usize,
        done: &[bool],
        ready: &mut BinaryHeap<(i64, Reverse<usize>)>,
    ) {
        for id in &self.graph.nodes()[node].inputs {
            if let TensorKind::Value(maker) = self.graph.tensor(*id).kind {
                for &sibling in &self.unlocks[maker.0 as usize] {
                    if !done[sibling] && self.waits_for[sibling] == 0 {
                        ready.push((self.score(sibling), Reverse(sibling)));
                    }
                }
            }
        }
    }

    /// Bytes freed less bytes allocated by running a node now; results that can go in place cost nothing.
    fn score(&self, index: usize) -> i64 {
        let node: &Node = &self.graph.nodes()[index];
        let size = |id: TensorId| self.sizes[id.0 as usize] as i64;
        if let BufferReuse::Alias { .. } = self.sharing[index] {
            // Aliases compute nothing; scheduling them early makes their readers available.
            return i64::MAX;
        }
        let mut roots: Vec<TensorId> = node.inputs.iter().map(|id| self.root_of(*id)).collect();
        roots.sort_unstable();
        let dies = |root: &[TensorId]| {
            let computed = matches!(self.graph.tensor(root[0]).kind, TensorKind::Value(_));
            computed && self.reads_left[root[0].0 as usize] == root.len()
        };
        let dying = roots.chunk_by(|a, b| a == b).filter(|group| dies(group));
        let dying: Vec<TensorId> = dying.map(|group| group[0]).collect();
        let freed: i64 = dying.iter().map(|id| size(*id)).sum();
        let made = size(node.output);
        let in_place = matches!(self.sharing[index], BufferReuse::InPlace(_))
            && dying.iter().any(|id| size(*id) == made);
        freed - made + if in_place { made } else { 0 }
    }

    fn root_of(&self, id: TensorId) -> TensorId {
        self.root[id.0 as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::run;
    use crate::ops::{ReduceFunction, Scale};
    use crate::passes::testing::{TestGraphBuilder, after, tokens};

    /// Two wide branches, each reduced to little: one after the other, only one is alive at a time.
    #[test]
    fn finishes_a_branch_before_the_next() {
        let mut s = TestGraphBuilder::new();
        let t = tokens(&mut s);
        let x = s.input("x", [t, 1.into()]);
        let wide: Vec<_> = (0..3).map(|_| s.expand(x, [t, 100.into()])).collect();
        let sums: Vec<_> = wide
            .into_iter()
            .map(|w| s.reduce(ReduceFunction::Sum, w))
            .collect();
        let y = s.add(sums[0], sums[1]);
        let y = s.add(y, sums[2]);
        let y = s.op(Scale { factor: 2.0 }, &[y]);
        let expect = "\
graph g(x: f32[T, 1])
  n1: f32[T, 100] = expand(x)
  n4: f32[T, 1] = reduce(n1) {function: sum, axes: [1], keep}
  n2: f32[T, 100] = expand(x)
  n5: f32[T, 1] = reduce(n2) {function: sum, axes: [1], keep}
  n7: f32[T, 1] = add(n4, n5)
  n3: f32[T, 100] = expand(x)
  n6: f32[T, 1] = reduce(n3) {function: sum, axes: [1], keep}
  n8: f32[T, 1] = add(n7, n6)
  n9: f32[T, 1] = scale(n8) {factor: 2}
  return n9
";
        assert_eq!(after(s.finish(&[y]), run), expect);
    }
}
