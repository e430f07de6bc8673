//! Finds nodes of a graph that run as one call: products of the same rows with their norm prologue and their epilogue,
//! and an attention with the rotation of its keys.
//!
//! Groups are found before memory is planned. The plan keeps all buffers of a group apart, so a group never has to be
//! given up because of where its operands lie.

use super::call::Call;
use crate::kernels::elementwise::{Elementwise, Function};
use crate::kernels::matmul::quantised::{MAX_FUSED_PRODUCTS, QuantisedLinear};
use graph::ops::{Activation, BinaryFunction};
use graph::{Bindings, Graph, TensorId, TensorKind};
use std::ops::Range;

/// Consecutive calls that run as one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FusedGroup {
    /// Whether the first call is a prologue: a norm before products, or a key rotation before an attention.
    pub(super) has_prologue: bool,
    /// The number of products of the same rows, or one call of another kind.
    pub(super) products: usize,
    pub(super) epilogue: FusedEpilogue,
}

/// The call after a group's products that is fused into their write-back.
#[derive(Clone, Copy, Debug)]
pub(super) enum FusedEpilogue {
    /// No call is fused.
    None,
    /// An addition; the index says which operand is the addend.
    Add(usize),
    /// A gate: the product of two results; the activation applies to the operand at the index.
    Gate(Activation, usize),
}

impl FusedGroup {
    /// A single call.
    pub(super) const ONE: FusedGroup = FusedGroup {
        has_prologue: false,
        products: 1,
        epilogue: FusedEpilogue::None,
    };

    /// The number of calls in the group.
    pub(super) fn len(&self) -> usize {
        let has_epilogue = !matches!(self.epilogue, FusedEpilogue::None);
        usize::from(self.has_prologue) + self.products + usize::from(has_epilogue)
    }
}

/// The fused groups of a graph's calls, in order. Aliases are part of no group.
pub(crate) struct FusedGroups {
    /// The node of every call that is not an alias.
    nodes: Vec<usize>,
    groups: Vec<FusedGroup>,
}

impl FusedGroups {
    /// Finds the groups of a graph whose nodes were resolved to these calls.
    pub(crate) fn find(graph: &Graph, bindings: &Bindings, calls: &[Call]) -> FusedGroups {
        let is_alias = |node: &usize| matches!(calls[*node], Call::Alias);
        let nodes: Vec<usize> = (0..calls.len()).filter(|node| !is_alias(node)).collect();
        let finder = FusionFinder {
            graph,
            bindings,
            calls,
            uses: uses(graph),
        };
        let mut groups = Vec::new();
        let mut rest = &nodes[..];
        while !rest.is_empty() {
            let group = finder.group(rest);
            rest = &rest[group.len()..];
            groups.push(group);
        }
        FusedGroups { nodes, groups }
    }

    /// The groups, in the order of the calls.
    pub(super) fn iter(&self) -> impl Iterator<Item = FusedGroup> {
        self.groups.iter().copied()
    }

    /// The range of nodes that each of `count` nodes runs with.
    pub(crate) fn node_ranges(&self, count: usize) -> Vec<Range<usize>> {
        let mut ranges: Vec<Range<usize>> = (0..count).map(|node| node..node + 1).collect();
        let mut rest = &self.nodes[..];
        for group in &self.groups {
            let (nodes, later) = rest.split_at(group.len());
            rest = later;
            let range = nodes[0]..nodes[nodes.len() - 1] + 1;
            ranges[range.clone()].fill(range);
        }
        ranges
    }
}

/// How often every tensor is an operand or a graph output.
fn uses(graph: &Graph) -> Vec<usize> {
    let mut uses = vec![0; graph.tensors().len()];
    let operands = graph.nodes().iter().flat_map(|node| &node.inputs);
    for id in operands.chain(graph.outputs()) {
        uses[id.0 as usize] += 1;
    }
    uses
}

struct FusionFinder<'a> {
    graph: &'a Graph,
    bindings: &'a Bindings,
    calls: &'a [Call],
    uses: Vec<usize>,
}

/// The quantised product of a call without an activation.
pub(super) fn product(call: &Call) -> Option<QuantisedLinear> {
    match call {
        Call::QuantisedLinear(op, None) => Some(*op),
        _ => None,
    }
}

impl FusionFinder<'_> {
    /// The group that starts with the first of these nodes.
    fn group(&self, nodes: &[usize]) -> FusedGroup {
        let with_prologue = FusedGroup {
            has_prologue: true,
            ..FusedGroup::ONE
        };
        match (&self.calls[nodes[0]], nodes) {
            (Call::Rope(_), [rotation, attend, ..]) if self.rotates_keys(*rotation, *attend) => {
                with_prologue
            }
            (Call::Norm(_), [norm, products @ ..]) if !products.is_empty() => {
                let group = self.products(products);
                if self.feeds_only(*norm, &products[..group.products]) {
                    FusedGroup {
                        has_prologue: true,
                        ..group
                    }
                } else {
                    FusedGroup::ONE
                }
            }
            _ => self.products(nodes),
        }
    }

    fn inputs(&self, node: usize) -> &[TensorId] {
        &self.graph.nodes()[node].inputs
    }

    fn output(&self, node: usize) -> TensorId {
        self.graph.nodes()[node].output
    }

    /// How often a node's result is read.
    fn output_uses(&self, node: usize) -> usize {
        self.uses[self.output(node).0 as usize]
    }

    /// Whether a rotation computes the keys of this attention and nothing else reads them.
    fn rotates_keys(&self, rotation: usize, attend: usize) -> bool {
        matches!(self.calls[attend], Call::CachedAttention(_))
            && self.inputs(attend)[1] == self.output(rotation)
            && self.output_uses(rotation) == 1
    }

    /// Whether only these products read a norm's rows, so that the norm can be applied as they are quantised.
    fn feeds_only(&self, norm: usize, products: &[usize]) -> bool {
        let rows = self.output(norm);
        let reads =
            |node: &usize| product(&self.calls[*node]).is_some() && self.inputs(*node)[0] == rows;
        self.output_uses(norm) == products.len() && products.iter().all(reads)
    }

    fn products(&self, nodes: &[usize]) -> FusedGroup {
        let rows = |node: usize| self.inputs(node).first().map(|id| self.reshaped(*id));
        let can_fuse_with = |node: &&usize| {
            self.calls[nodes[0]].can_fuse_with(&self.calls[**node])
                && rows(**node) == rows(nodes[0])
        };
        let more = nodes[1..]
            .iter()
            .take(MAX_FUSED_PRODUCTS - 1)
            .take_while(can_fuse_with);
        let count = 1 + more.count();
        let then = nodes
            .get(count)
            .map(|next| self.epilogue(&nodes[..count], *next));
        FusedGroup {
            has_prologue: false,
            products: count,
            epilogue: then.unwrap_or(FusedEpilogue::None),
        }
    }

    /// The tensor that this one is a reshaped view of, or the tensor itself.
    fn reshaped(&self, mut id: TensorId) -> TensorId {
        let bytes = |id: TensorId| self.graph.tensor(id).ty.bytes(self.bindings);
        while let TensorKind::Value(node) = self.graph.tensor(id).kind
            && matches!(self.calls[node.0 as usize], Call::Alias)
            && bytes(self.inputs(node.0 as usize)[0]) == bytes(id)
        {
            id = self.inputs(node.0 as usize)[0];
        }
        id
    }

    /// How the call after the products can be fused into their write-back.
    fn epilogue(&self, products: &[usize], next: usize) -> FusedEpilogue {
        let Call::Elementwise(Elementwise { function, nest }) = &self.calls[next] else {
            return FusedEpilogue::None;
        };
        let as_product = |node: usize| product(&self.calls[node]);
        if as_product(products[products.len() - 1]).is_none()
            || nest.rows() != 1
            || nest.steps != [1; 3]
        {
            return FusedEpilogue::None;
        }
        // Which operand of the next call a product is; no other call may read the product.
        let operand = |node: usize| {
            let (id, alone) = (self.output(node), self.output_uses(node) == 1);
            self.inputs(next)
                .iter()
                .position(|other| *other == id && alone)
        };
        match (function, products) {
            (Function::Binary(BinaryFunction::Add), [only]) => {
                operand(*only).map_or(FusedEpilogue::None, |own| FusedEpilogue::Add(1 - own))
            }
            (Function::Gated(activation), [a, b]) if as_product(*a) == as_product(*b) => {
                match (operand(*a), operand(*b)) {
                    (Some(0), Some(1)) => FusedEpilogue::Gate(*activation, 0),
                    (Some(1), Some(0)) => FusedEpilogue::Gate(*activation, 1),
                    _ => FusedEpilogue::None,
                }
            }
            _ => FusedEpilogue::None,
        }
    }
}
