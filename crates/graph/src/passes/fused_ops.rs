//! The last pass: which nodes a backend runs as one op.
//!
//! A matrix product takes the norm of its rows as a prologue and a gate and a residual as its epilogue, and products of the
//! same rows are one op. Attention over a cache takes the rotations of its queries and keys. A backend states what its
//! kernels can do ([`FusionSupport`]); what is looked for is the same for all.
//!
//! A fused op computes what its nodes compute one after the other, and nobody else reads what it does not store. It may have
//! several results and a node has one, so the pass yields a list of ops over the nodes instead of a graph.

use crate::Bindings;
use crate::graph::{Graph, Node, TensorId, TensorKind};
use crate::ops::{Binary, BinaryFunction, BufferReuse, Op};
use crate::tensor_type::TensorType;
use std::ops::Range;

/// The most nodes from the first rotation to its attention.
const MAX_ATTENTION_NODES: usize = 8;

/// Consecutive nodes that run as one op.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FusedOp {
    /// The nodes, with the views between them.
    pub nodes: Range<usize>,
    /// The kind of the fused op.
    pub kind: FusedKind,
}

/// The kinds of fused ops.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FusedKind {
    /// One node that is no matrix product.
    Node,
    /// Matrix products of the same rows.
    Product(FusedProduct),
    /// Attention over a cache, the last of the nodes, with rotations of its operands.
    Attention {
        /// The rotations of queries or keys that the attention does itself. The other nodes run before it.
        rotations: Vec<usize>,
    },
}

/// Matrix products of the same rows: `norm? → products → gate? → residual?`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FusedProduct {
    /// The norm of the rows, which only the products read.
    pub norm: Option<usize>,
    /// The `linear` nodes. If there is a gate, the first is the one its activation applies to.
    pub products: Vec<usize>,
    /// The node that gates the first product with the second.
    pub gate: Option<usize>,
    /// The node that adds a residual to the result, and which of its operands is the residual.
    pub residual: Option<(usize, usize)>,
}

impl FusedProduct {
    fn new(product: usize) -> FusedProduct {
        FusedProduct {
            norm: None,
            products: vec![product],
            gate: None,
            residual: None,
        }
    }

    /// The nodes whose results are stored.
    pub fn results(&self) -> &[usize] {
        match (&self.residual, &self.gate) {
            (Some((node, _)), _) | (None, Some(node)) => std::slice::from_ref(node),
            (None, None) => &self.products,
        }
    }
}

/// What the kernels of a backend fuse. Products are given by their nodes' indices.
pub trait FusionSupport {
    /// The most products of the same rows that run as one kernel.
    fn max_products(&self) -> usize {
        1
    }

    /// Whether two products of the same rows run as one kernel.
    fn shares_rows(&self, _first: usize, _other: usize) -> bool {
        false
    }

    /// Whether a product's kernel applies this norm to its rows.
    fn norm(&self, _product: usize, _norm: &Op) -> bool {
        false
    }

    /// Whether a product's kernel gates it with another that shares its rows.
    fn gate(&self, _product: usize) -> bool {
        false
    }

    /// Whether a product's kernel adds a residual to the product, or to the result of its gate.
    fn residual(&self, _product: usize, _gated: bool) -> bool {
        false
    }

    /// Whether attention over a cache rotates an operand: 0 for its queries, 1 for its keys.
    fn rotation(&self, _operand: usize) -> bool {
        false
    }
}

/// The support of a backend that runs every node alone.
pub struct NoFusion;

impl FusionSupport for NoFusion {}

/// The ops of a graph in order, as a backend with this support runs them. Every node is part of one.
pub fn fuse(graph: &Graph, bindings: &Bindings, support: &dyn FusionSupport) -> Vec<FusedOp> {
    let finder = FusionFinder::new(graph, bindings, support);
    let mut ops: Vec<FusedOp> = Vec::new();
    while let at = ops.last().map_or(0, |op| op.nodes.end)
        && at < graph.nodes().len()
    {
        ops.push(finder.op_at(at));
    }
    ops
}

struct FusionFinder<'a> {
    graph: &'a Graph,
    support: &'a dyn FusionSupport,
    /// Per tensor: its bytes.
    bytes: Vec<Option<usize>>,
    /// Per tensor: how often it is an operand or a graph output.
    uses: Vec<usize>,
    /// Per node: whether its result is a view of its first operand.
    views: Vec<bool>,
}

impl<'a> FusionFinder<'a> {
    fn new(graph: &'a Graph, bindings: &Bindings, support: &'a dyn FusionSupport) -> Self {
        let mut uses = vec![0; graph.tensors().len()];
        let operands = graph.nodes().iter().flat_map(|node| &node.inputs);
        for id in operands.chain(graph.outputs()) {
            uses[id.0 as usize] += 1;
        }
        let is_view = |node: &Node| {
            let types: Vec<&TensorType> =
                node.inputs.iter().map(|id| &graph.tensor(*id).ty).collect();
            matches!(
                node.op.sharing(&types, bindings),
                Ok(BufferReuse::Alias { .. })
            )
        };
        let tensors = graph.tensors().iter();
        FusionFinder {
            graph,
            support,
            bytes: tensors.map(|tensor| tensor.ty.bytes(bindings)).collect(),
            uses,
            views: graph.nodes().iter().map(is_view).collect(),
        }
    }

    fn node(&self, index: usize) -> &'a Node {
        &self.graph.nodes()[index]
    }

    fn bytes(&self, id: TensorId) -> Option<usize> {
        self.bytes[id.0 as usize]
    }

    /// How often a node's result is read.
    fn reads(&self, index: usize) -> usize {
        self.uses[self.node(index).output.0 as usize]
    }

    /// The next node that is no view.
    fn after(&self, index: usize) -> Option<usize> {
        (index + 1..self.views.len()).find(|next| !self.views[*next])
    }

    /// The tensor that another one is a view of; with `whole`, only through views of the same size.
    fn viewed(&self, mut id: TensorId, whole: bool) -> TensorId {
        while let TensorKind::Value(maker) = self.graph.tensor(id).kind
            && self.views[maker.0 as usize]
            && let source = self.node(maker.0 as usize).inputs[0]
            && (!whole || self.bytes(source) == self.bytes(id))
        {
            id = source;
        }
        id
    }

    /// The op that begins with a node.
    fn op_at(&self, at: usize) -> FusedOp {
        let found = match self.node(at).op {
            _ if self.views[at] => None,
            Op::Rope(_) => self.rotated_attention(at),
            Op::RmsNorm(_) | Op::LayerNorm(_) => self.normed_products(at),
            Op::Linear(_) => Some(self.products(at)),
            _ => None,
        };
        found.unwrap_or(FusedOp {
            nodes: at..at + 1,
            kind: FusedKind::Node,
        })
    }

    /// The products of rows that a norm computes for them alone.
    fn normed_products(&self, norm: usize) -> Option<FusedOp> {
        let Node { op, inputs, output } = self.node(norm);
        let first = self.after(norm)?;
        let Op::Linear(_) = self.node(first).op else {
            return None;
        };
        let fused = self.products(first);
        let FusedKind::Product(product) = fused.kind else {
            return None;
        };
        let reads = |i: &usize| self.node(*i).inputs[0] == *output && self.support.norm(*i, op);
        let alone = self.reads(norm) == product.products.len();
        let apart = product
            .residual
            .is_none_or(|residual| self.is_apart(residual, inputs[0]));
        (alone && apart && product.products.iter().all(reads)).then_some(FusedOp {
            nodes: norm..fused.nodes.end,
            kind: FusedKind::Product(FusedProduct {
                norm: Some(norm),
                ..product
            }),
        })
    }

    /// The products of the same rows from one on, and their epilogue.
    fn products(&self, first: usize) -> FusedOp {
        let mut fused = FusedProduct::new(first);
        let mut last = first;
        while fused.products.len() < self.support.max_products()
            && let Some(next) = self.after(last)
            && self.share_rows(first, next)
        {
            fused.products.push(next);
            last = next;
        }
        if let (&[a, b], Some(next)) = (&fused.products[..], self.after(last))
            && let Some(products) = self.gated([a, b], next)
        {
            (fused.products, fused.gate) = (products.to_vec(), Some(next));
            last = next;
        }
        if (fused.products.len() == 1 || fused.gate.is_some())
            && let Some(next) = self.after(last)
            && self.support.residual(first, fused.gate.is_some())
            && let Some(residual) = self.residual(last, next)
            && self.is_apart(residual, self.node(first).inputs[0])
        {
            fused.residual = Some(residual);
            last = next;
        }
        FusedOp {
            nodes: first..last + 1,
            kind: FusedKind::Product(fused),
        }
    }

    fn share_rows(&self, first: usize, other: usize) -> bool {
        let (a, b) = (self.node(first), self.node(other));
        let depth = |node: &Node| self.graph.tensor(node.inputs[0]).ty.shape.last();
        let rows = |node: &Node| self.viewed(node.inputs[0], true);
        matches!(b.op, Op::Linear(_))
            && rows(a) == rows(b)
            && depth(a) == depth(b)
            && self.support.shares_rows(first, other)
    }

    /// Two products in the order in which a node gates them; only the gate may read them.
    fn gated(&self, [a, b]: [usize; 2], gate: usize) -> Option<[usize; 2]> {
        let Node { op, inputs, .. } = self.node(gate);
        let alone = self.reads(a) == 1 && self.reads(b) == 1;
        let supported = self.support.gate(a) && self.support.gate(b);
        if !matches!(op, Op::Gated(_)) || !alone || !supported {
            return None;
        }
        let reads = |order: &[usize; 2]| inputs[..] == order.map(|i| self.node(i).output);
        [[a, b], [b, a]].into_iter().find(reads)
    }

    /// The node and the operand that it adds to a result of its own size; only the addition may read the result.
    fn residual(&self, result: usize, sum: usize) -> Option<(usize, usize)> {
        let Node { op, inputs, output } = self.node(sum);
        let add = Binary {
            function: BinaryFunction::Add,
        };
        if *op != Op::Binary(add) || self.reads(result) != 1 {
            return None;
        }
        let size = self.bytes(*output);
        let whole = inputs.iter().all(|id| self.bytes(*id) == size);
        let own = inputs
            .iter()
            .position(|id| *id == self.node(result).output)?;
        whole.then_some((sum, 1 - own))
    }

    /// Whether a residual lies elsewhere than the rows of its product: the sum may overwrite it while they are read.
    fn is_apart(&self, (sum, operand): (usize, usize), rows: TensorId) -> bool {
        let residual = self.node(sum).inputs[operand];
        self.viewed(residual, false) != self.viewed(rows, false)
    }

    /// A rotation and the attention that does it, with views, norms and other rotations between them.
    fn rotated_attention(&self, at: usize) -> Option<FusedOp> {
        let window = at..self.views.len().min(at + MAX_ATTENTION_NODES);
        let attends = |i: &usize| matches!(self.node(*i).op, Op::UpdateAndAttend(_));
        let end = window.clone().find(attends)?;
        let runs_before = |i: usize| {
            let op = &self.node(i).op;
            self.views[i] || matches!(op, Op::Rope(_) | Op::RmsNorm(_) | Op::LayerNorm(_))
        };
        let rotations: Vec<usize> = (at..end).filter(|i| self.rotates(*i, end)).collect();
        let fits = (at..end).all(runs_before) && rotations.first() == Some(&at);
        fits.then_some(FusedOp {
            nodes: at..end + 1,
            kind: FusedKind::Attention { rotations },
        })
    }

    /// Whether attention can do a rotation of its queries or keys: only it reads them, and no node before it overwrites
    /// what is rotated.
    fn rotates(&self, rotation: usize, attention: usize) -> bool {
        let Node {
            op: Op::Rope(_),
            inputs,
            output,
        } = self.node(rotation)
        else {
            return false;
        };
        let operands = &self.node(attention).inputs[..2];
        let operand = operands.iter().position(|id| id == output);
        let source = self.viewed(inputs[0], false);
        let reads = |i: usize| {
            let mut read = self.node(i).inputs.iter();
            !self.views[i] && read.any(|id| self.viewed(*id, false) == source)
        };
        operand.is_some_and(|operand| self.support.rotation(operand))
            && self.reads(rotation) == 1
            && !(rotation + 1..attention).any(reads)
    }
}

impl FusedOp {
    /// The op in text form: its results, the operands of its first node, and what is fused.
    pub fn text(&self, graph: &Graph) -> String {
        let node = |i: usize| &graph.nodes()[i];
        let names = |nodes: &[usize]| {
            let names: Vec<&str> = nodes.iter().map(|i| graph.node_name(node(*i))).collect();
            names.join(", ")
        };
        match &self.kind {
            FusedKind::Node => graph.node_text(node(self.nodes.start)),
            FusedKind::Product(fused) => {
                let rows = node(fused.norm.unwrap_or(fused.products[0])).inputs[0];
                let mut parts: Vec<String> = Vec::new();
                parts.extend(fused.norm.map(|i| node(i).op.name().to_owned()));
                parts.push(format!("linear × {}", fused.products.len()));
                parts.extend(fused.gate.map(|i| node(i).op.name().to_owned()));
                parts.extend(fused.residual.map(|(i, operand)| {
                    let residual = graph.tensor(node(i).inputs[operand]);
                    format!("add {}", residual.name)
                }));
                let (results, rows) = (names(fused.results()), &graph.tensor(rows).name);
                format!("{results} = product({rows}) {{{}}}", parts.join(", "))
            }
            FusedKind::Attention { rotations } => {
                let attention = graph.node_text(node(self.nodes.end - 1));
                format!("{attention} {{rotates: {}}}", names(rotations))
            }
        }
    }
}

#[cfg(test)]
mod tests;
