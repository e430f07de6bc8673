//! Alias analysis: which storage each tensor uses, and its last use. Aliases and in-place results use one mechanism.

use crate::graph::{Graph, Node, TensorId, TensorKind};
use crate::ops::BufferReuse;
use crate::tensor_type::TensorType;
use crate::{Bindings, GraphError, GraphErrorKind};

/// Storage owner of every tensor, and the last use of every owner.
pub(super) struct AliasAnalysis {
    /// Per tensor: the tensor that owns its storage, and the byte offset in it.
    pub(super) host: Vec<(TensorId, usize)>,
    /// Per storage owner: the last step that reads any tensor in its storage (`usize::MAX` for outputs).
    pub(super) last_use: Vec<usize>,
}

impl AliasAnalysis {
    pub(super) fn new(
        graph: &Graph,
        sizes: &[usize],
        bindings: &Bindings,
    ) -> Result<AliasAnalysis, GraphError> {
        let ids = 0..graph.tensors().len() as u32;
        let mut roots = AliasAnalysis {
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

    /// Storage owner and offset of a node's result, if the result needs no storage of its own.
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
            BufferReuse::None => None,
            BufferReuse::Alias { offset } => {
                let (root, start) = host_of(node.inputs[0]);
                Some((root, start + offset))
            }
            BufferReuse::InPlace(n) => node.inputs.iter().take(n).copied().find_map(|operand| {
                let (root, offset) = host_of(operand);
                let size = sizes[operand.0 as usize];
                let dies = self.last_use[root.0 as usize] <= step;
                let computed = matches!(graph.tensor(root).kind, TensorKind::Value(_));
                let fits = size == sizes[node.output.0 as usize];
                // Another operand in the same storage is safe only if the op reads and writes both element by element.
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
