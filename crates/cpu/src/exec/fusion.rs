//! Finds calls of a tape that run as one: products of the same rows with their norm prologue and their epilogue, and an
//! attention with the rotation of its keys.

use super::call::Call;
use super::tape::{Location, TapeCall};
use crate::kernels::elementwise::{Elementwise, Function};
use crate::kernels::matmul::quantised::{MAX_FUSED_PRODUCTS, QuantisedLinear};
use graph::ops::{Activation, BinaryFunction};
use graph::{Graph, TensorId};

/// Consecutive calls of a tape that run as one, starting at the call that holds the group.
#[derive(Clone, Copy)]
pub(super) struct FusedGroup {
    /// Whether the first call is a prologue: a norm before products, or a key rotation before an attention.
    pub(super) has_prologue: bool,
    /// The number of products of the same rows, or one call of another kind.
    pub(super) products: usize,
    pub(super) epilogue: FusedEpilogue,
}

/// The call after a group's products that is fused into their write-back.
#[derive(Clone, Copy)]
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

/// Finds the fused groups of a tape. `rotates_keys` allows an attention to rotate its keys as it stores them.
pub(super) fn find_fused_groups(
    graph: &Graph,
    calls: &mut [TapeCall],
    locations: &[Location],
    threads: usize,
    rotates_keys: bool,
) {
    let finder = FusionFinder {
        rotates_keys,
        graph,
        locations,
        threads,
        uses: uses(graph),
    };
    let mut i = 0;
    while i < calls.len() {
        calls[i].group = finder.group(&calls[i..]);
        i += calls[i].group.len();
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
    rotates_keys: bool,
    graph: &'a Graph,
    locations: &'a [Location],
    threads: usize,
    uses: Vec<usize>,
}

/// The quantised product of a call without an activation.
pub(super) fn product(entry: &TapeCall) -> Option<QuantisedLinear> {
    match entry.call {
        Call::QuantisedLinear(op, None) => Some(op),
        _ => None,
    }
}

impl FusionFinder<'_> {
    fn group(&self, calls: &[TapeCall]) -> FusedGroup {
        let with_prologue = FusedGroup {
            has_prologue: true,
            ..FusedGroup::ONE
        };
        match (&calls[0].call, calls) {
            (Call::Rope(_), [rotation, attend, ..]) if self.rotates_keys(rotation, attend) => {
                with_prologue
            }
            (Call::Norm(_), [norm, products @ ..]) if !products.is_empty() => {
                let group = self.products(products);
                if self.feeds_only(norm, &products[..group.products]) {
                    FusedGroup {
                        has_prologue: true,
                        ..group
                    }
                } else {
                    FusedGroup::ONE
                }
            }
            _ => self.products(calls),
        }
    }

    /// Whether a rotation computes the keys of this attention and nothing else reads them.
    fn rotates_keys(&self, rotation: &TapeCall, attend: &TapeCall) -> bool {
        let keys = self.graph.node(rotation.node).output;
        self.rotates_keys
            && matches!(attend.call, Call::CachedAttention(_))
            && self.graph.node(attend.node).inputs[1] == keys
            && self.uses[keys.0 as usize] == 1
    }

    /// Whether only these products read a norm's rows, so that the norm can be applied as they are quantised.
    fn feeds_only(&self, norm: &TapeCall, products: &[TapeCall]) -> bool {
        let rows = self.graph.node(norm.node).output;
        let reads = |entry: &TapeCall| {
            product(entry).is_some() && self.graph.node(entry.node).inputs[0] == rows
        };
        let last = &products[products.len() - 1];
        self.uses[rows.0 as usize] == products.len()
            && products.iter().all(reads)
            && product(last).is_some_and(|op| {
                // The norm's operand must not overlap the scratch that rows are quantised into.
                let bytes = op.m * op.k * size_of::<f32>();
                !self.overlaps_work_space(last, self.locations[norm.operands.start], bytes)
            })
    }

    fn products(&self, calls: &[TapeCall]) -> FusedGroup {
        let rows = |entry: &TapeCall| self.locations[entry.operands.start];
        let can_fuse_with = |entry: &&TapeCall| {
            calls[0].call.can_fuse_with(&entry.call) && rows(entry) == rows(&calls[0])
        };
        let more = calls[1..]
            .iter()
            .take(MAX_FUSED_PRODUCTS - 1)
            .take_while(can_fuse_with);
        let count = 1 + more.count();
        let then = calls
            .get(count)
            .map(|next| self.epilogue(&calls[..count], next));
        FusedGroup {
            has_prologue: false,
            products: count,
            epilogue: then.unwrap_or(FusedEpilogue::None),
        }
    }

    /// How the call after the products can be fused into their write-back.
    fn epilogue(&self, products: &[TapeCall], next: &TapeCall) -> FusedEpilogue {
        let Call::Elementwise(Elementwise { function, nest }) = &next.call else {
            return FusedEpilogue::None;
        };
        let last = &products[products.len() - 1];
        if product(last).is_none() {
            return FusedEpilogue::None;
        }
        let operands = &self.graph.node(next.node).inputs;
        // Which operand of the next call a product is; no other call may read the product.
        let operand = |entry: &TapeCall| {
            let id: TensorId = self.graph.node(entry.node).output;
            let alone = self.uses[id.0 as usize] == 1;
            operands.iter().position(|other| *other == id && alone)
        };
        let (result, bytes) = (
            self.locations[next.operands.end],
            nest.width * size_of::<f32>(),
        );
        if nest.rows() != 1 || nest.steps != [1; 3] || self.overlaps_work_space(last, result, bytes)
        {
            return FusedEpilogue::None;
        }
        match (function, products) {
            (Function::Binary(BinaryFunction::Add), [only]) => {
                operand(only).map_or(FusedEpilogue::None, |own| FusedEpilogue::Add(1 - own))
            }
            (Function::Gated(activation), [a, b]) if product(a) == product(b) => {
                match (operand(a), operand(b)) {
                    (Some(0), Some(1)) => FusedEpilogue::Gate(*activation, 0),
                    (Some(1), Some(0)) => FusedEpilogue::Gate(*activation, 1),
                    _ => FusedEpilogue::None,
                }
            }
            _ => FusedEpilogue::None,
        }
    }

    /// Whether a tensor overlaps a product's scratch; also true when their addresses are unknown.
    fn overlaps_work_space(&self, product: &TapeCall, at: Location, bytes: usize) -> bool {
        match (at, self.locations[product.operands.end + 1]) {
            (Location::Arena(at), Location::Arena(scratch)) => {
                let end = scratch + product.call.scratch(self.threads);
                at < end && scratch < at + bytes
            }
            _ => true,
        }
    }
}
