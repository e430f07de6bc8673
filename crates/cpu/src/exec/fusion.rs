//! Finds calls that run as one: products of the same rows, and what is done with them; an attention, and the rotation of its
//! keys.

use super::call::Call;
use super::tape::{Location, TapeCall};
use crate::kernels::elementwise::{Elementwise, Function};
use crate::kernels::matmul::quantised::{MAX_FUSED_PRODUCTS, QuantisedLinear};
use graph::ops::{Activation, BinaryFunction};
use graph::{Graph, TensorId};

/// Calls that run as one, from the first of them on.
#[derive(Clone, Copy)]
pub(super) struct FusedGroup {
    /// Whether the first makes rows for the others: a norm for products, a rotation for an attention.
    pub(super) has_prologue: bool,
    /// Products of the same rows, or one call of another kind.
    pub(super) products: usize,
    pub(super) epilogue: FusedEpilogue,
}

/// What the call behind a group's products does with them.
#[derive(Clone, Copy)]
pub(super) enum FusedEpilogue {
    /// It is none of the group.
    None,
    /// It adds another operand, this one of its two.
    Add(usize),
    /// It multiplies two of them, this one after its activation.
    Gate(Activation, usize),
}

impl FusedGroup {
    /// A call by itself.
    pub(super) const ONE: FusedGroup = FusedGroup {
        has_prologue: false,
        products: 1,
        epilogue: FusedEpilogue::None,
    };

    /// Calls of the group.
    pub(super) fn len(&self) -> usize {
        let then = !matches!(self.epilogue, FusedEpilogue::None);
        usize::from(self.has_prologue) + self.products + usize::from(then)
    }
}

/// Finds the groups of a tape; `rotates_keys` lets an attention rotate its keys as they are stored.
pub(super) fn find_fused_groups(
    graph: &Graph,
    calls: &mut [TapeCall],
    locations: &[Location],
    threads: usize,
    rotates_keys: bool,
) {
    let found = FusionFinder {
        rotates_keys,
        graph,
        locations,
        threads,
        uses: uses(graph),
    };
    let mut i = 0;
    while i < calls.len() {
        calls[i].group = found.group(&calls[i..]);
        i += calls[i].group.len();
    }
}

/// How often every tensor is read, or handed out.
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

/// A product with nothing done to it yet.
pub(super) fn product(entry: &TapeCall) -> Option<QuantisedLinear> {
    match entry.call {
        Call::QuantisedLinear(op, None) => Some(op),
        _ => None,
    }
}

impl FusionFinder<'_> {
    fn group(&self, calls: &[TapeCall]) -> FusedGroup {
        let before = FusedGroup {
            has_prologue: true,
            ..FusedGroup::ONE
        };
        match (&calls[0].call, calls) {
            (Call::Rope(_), [rotation, attend, ..]) if self.rotates_keys(rotation, attend) => {
                before
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

    /// Whether a rotation is of the keys of an attention, and of nothing else.
    fn rotates_keys(&self, rotation: &TapeCall, attend: &TapeCall) -> bool {
        let keys = self.graph.node(rotation.node).output;
        self.rotates_keys
            && matches!(attend.call, Call::CachedAttention(_))
            && self.graph.node(attend.node).inputs[1] == keys
            && self.uses[keys.0 as usize] == 1
    }

    /// Whether a norm's rows are read by these products alone, and may be made as they are quantised.
    fn feeds_only(&self, norm: &TapeCall, products: &[TapeCall]) -> bool {
        let rows = self.graph.node(norm.node).output;
        let reads = |entry: &TapeCall| {
            product(entry).is_some() && self.graph.node(entry.node).inputs[0] == rows
        };
        let last = &products[products.len() - 1];
        self.uses[rows.0 as usize] == products.len()
            && products.iter().all(reads)
            && product(last).is_some_and(|op| {
                // What is still to be normed must not lie where rows are quantised to.
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

    /// What a call does with the products before it, where it may be done as they are made.
    fn epilogue(&self, products: &[TapeCall], next: &TapeCall) -> FusedEpilogue {
        let Call::Elementwise(Elementwise { function, nest }) = &next.call else {
            return FusedEpilogue::None;
        };
        let last = &products[products.len() - 1];
        if product(last).is_none() {
            return FusedEpilogue::None;
        }
        let operands = &self.graph.node(next.node).inputs;
        // Which operand of the next call a product is; nothing else may read it.
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

    /// Whether a tensor lies where a product has its work space, or nobody knows.
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
