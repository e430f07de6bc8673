//! Rewrites as values: a rule looks at the graph and proposes a [`Patch`]; only [`rewrite`] changes the graph.

use super::dead_code;
use crate::graph::{Graph, Node, NodeId, Tensor, TensorId, TensorKind};
use crate::ops::{Binary, BinaryFunction, Op, Unary, UnaryFunction};
use crate::tensor_type::TensorType;
use crate::{Data, Dim, GraphError, Value};
use base::{Bytes, DType};
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// Limit on the sweeps of one pass. It is reached only if two rules undo each other's patches.
const MAX_SWEEPS: usize = 64;

/// Read-only graph with reader lists and pattern-matching helpers, as rules see it.
pub(super) struct GraphView<'g> {
    pub(super) graph: &'g Graph,
    /// Per tensor, the nodes that read it, once for each operand.
    readers: Vec<Vec<NodeId>>,
}

impl<'g> GraphView<'g> {
    pub(super) fn new(graph: &'g Graph) -> GraphView<'g> {
        let mut readers = vec![Vec::new(); graph.tensors.len()];
        for (i, node) in graph.nodes.iter().enumerate() {
            for id in &node.inputs {
                readers[id.0 as usize].push(NodeId(i as u32));
            }
        }
        GraphView { graph, readers }
    }

    pub(super) fn ty(&self, id: TensorId) -> &'g TensorType {
        &self.graph.tensor(id).ty
    }

    pub(super) fn shape(&self, id: TensorId) -> &'g [Dim] {
        &self.ty(id).shape
    }

    pub(super) fn rank(&self, id: TensorId) -> usize {
        self.shape(id).len()
    }

    /// The node that computes a tensor.
    pub(super) fn producer(&self, id: TensorId) -> Option<&'g Node> {
        match self.graph.tensor(id).kind {
            TensorKind::Value(node) => Some(self.graph.node(node)),
            _ => None,
        }
    }

    /// The op and the operands that compute a tensor.
    pub(super) fn defining_op(&self, id: TensorId) -> Option<(&'g Op, &'g [TensorId])> {
        self.producer(id).map(|node| (&node.op, &node.inputs[..]))
    }

    /// Number of operands and graph outputs that read this tensor.
    pub(super) fn uses(&self, id: TensorId) -> usize {
        let outputs = self.graph.outputs.iter().filter(|o| **o == id).count();
        self.readers[id.0 as usize].len() + outputs
    }

    /// The nodes that read a tensor.
    pub(super) fn readers(&self, id: TensorId) -> impl Iterator<Item = &'g Node> {
        let graph = self.graph;
        self.readers[id.0 as usize]
            .iter()
            .map(|node| graph.node(*node))
    }

    pub(super) fn is_constant(&self, id: TensorId) -> bool {
        self.graph.tensor(id).constant().is_some()
    }

    /// Value of a constant. `None` for quantised and half-precision weights: converting them would cost memory.
    pub(super) fn constant(&self, id: TensorId) -> Option<Value> {
        let tensor = self.graph.tensor(id);
        let bytes = tensor.constant()?;
        let shape = tensor.ty.fixed_dims()?;
        if tensor.ty.dtype.is_real() && tensor.ty.dtype != DType::F32 {
            return None;
        }
        let elements = shape.iter().product();
        let data = Data::from_bytes(tensor.ty.dtype, bytes, elements)?;
        Some(Value { shape, data })
    }

    /// The value of an f32 constant with one element.
    pub(super) fn scalar(&self, id: TensorId) -> Option<f32> {
        if self.graph.tensor(id).constant()?.len() != 4 {
            return None;
        }
        self.constant(id)?.as_f32().map(|x| x[0])
    }

    /// Whether a tensor is a one-element constant equal to a number.
    pub(super) fn is_number(&self, id: TensorId, number: i64) -> bool {
        let small = |bytes: &Bytes| bytes.len() <= size_of::<i64>();
        let value = match self.graph.tensor(id).constant() {
            Some(bytes) if small(bytes) => self.constant(id),
            _ => None,
        };
        value.is_some_and(|value| match &value.data {
            Data::F32(x) => x[..] == [number as f32],
            Data::I32(x) => x[..] == [number as i32],
            Data::I64(x) => x[..] == [number],
            Data::Bool(_) => false,
        })
    }

    /// Operands of a binary op with this function.
    pub(super) fn binary(
        &self,
        id: TensorId,
        wanted: BinaryFunction,
    ) -> Option<(TensorId, TensorId)> {
        match self.defining_op(id)? {
            (Op::Binary(Binary { function }), &[a, b]) if *function == wanted => Some((a, b)),
            _ => None,
        }
    }

    /// Operands of a commutative binary op, in both orders.
    pub(super) fn either(
        &self,
        id: TensorId,
        wanted: BinaryFunction,
    ) -> impl Iterator<Item = (TensorId, TensorId)> {
        let operands = self.binary(id, wanted);
        operands.into_iter().flat_map(|(a, b)| [(a, b), (b, a)])
    }

    /// Operand of a unary op with this function.
    pub(super) fn unary(&self, id: TensorId, wanted: impl Into<UnaryFunction>) -> Option<TensorId> {
        match self.defining_op(id)? {
            (Op::Unary(Unary { function }), &[x]) if *function == wanted.into() => Some(x),
            _ => None,
        }
    }

    /// Matches a tensor as `factor · x`: a `scale`, or arithmetic with a constant scalar.
    pub(super) fn scaled(&self, id: TensorId) -> Option<(f32, TensorId)> {
        if let (Op::Scale(op), &[x]) = self.defining_op(id)? {
            return Some((op.factor, x));
        }
        let same = |x: TensorId| self.ty(x) == self.ty(id);
        let product = self
            .either(id, BinaryFunction::Mul)
            .find_map(|(x, c)| Some((self.scalar(c)?, x)));
        let quotient = self
            .binary(id, BinaryFunction::Div)
            .and_then(|(x, c)| Some((1.0 / self.scalar(c)?, x)));
        product.or(quotient).filter(|(_, x)| same(*x))
    }

    /// Matches a tensor as `x + constant` with a constant scalar.
    pub(super) fn shifted(&self, id: TensorId) -> Option<(f32, TensorId)> {
        let sum = self
            .either(id, BinaryFunction::Add)
            .find_map(|(x, c)| Some((self.scalar(c)?, x)));
        sum.filter(|(_, x)| self.ty(*x) == self.ty(id))
    }

    /// Whether two tensors are computed by equal ops from equal operands.
    pub(super) fn same(&self, a: TensorId, b: TensorId) -> bool {
        let alike = || {
            let ((op_a, in_a), (op_b, in_b)) = (self.defining_op(a)?, self.defining_op(b)?);
            let operands = in_a.len() == in_b.len();
            let equal = op_a == op_b && !op_a.has_memory();
            let mut pairs = in_a.iter().zip(in_b);
            Some(operands && equal && pairs.all(|(a, b)| self.same(*a, *b)))
        };
        a == b || alike() == Some(true)
    }
}

impl TensorType {
    /// The shape, if it does not depend on a symbol.
    pub(super) fn fixed_dims(&self) -> Option<Vec<usize>> {
        self.shape.iter().map(Dim::as_const).collect()
    }
}

/// New nodes whose last result replaces one tensor of the graph.
pub(super) struct Patch {
    replaced: TensorId,
    /// New tensors; their ids follow those of the viewed graph.
    tensors: Vec<Tensor>,
    nodes: Vec<Node>,
    first: u32,
    result: TensorId,
}

/// A patch under construction.
pub(super) struct PatchBuilder<'v, 'g> {
    view: &'v GraphView<'g>,
    patch: Patch,
}

impl<'v, 'g> PatchBuilder<'v, 'g> {
    /// A patch for the result of `node`.
    pub(super) fn new(view: &'v GraphView<'g>, node: &Node) -> PatchBuilder<'v, 'g> {
        let patch = Patch {
            replaced: node.output,
            tensors: Vec::new(),
            nodes: Vec::new(),
            first: view.graph.tensors.len() as u32,
            result: node.output,
        };
        PatchBuilder { view, patch }
    }

    pub(super) fn ty(&self, id: TensorId) -> &TensorType {
        match id.0.checked_sub(self.patch.first) {
            Some(i) => &self.patch.tensors[i as usize].ty,
            None => self.view.ty(id),
        }
    }

    /// Adds a node; `None` if its op rejects the operands.
    pub(super) fn node(&mut self, op: impl Into<Op>, inputs: &[TensorId]) -> Option<TensorId> {
        let op = op.into();
        let types: Vec<&TensorType> = inputs.iter().map(|id| self.ty(*id)).collect();
        let ty = op.infer(&types).ok()?;
        let name = op.name();
        let output = self.tensor(name, ty, TensorKind::Value(NodeId(0)));
        self.patch.nodes.push(Node {
            op,
            inputs: inputs.to_vec(),
            output,
        });
        Some(output)
    }

    /// Adds a constant.
    pub(super) fn constant(&mut self, what: &str, value: &Value) -> TensorId {
        let ty = TensorType {
            dtype: value.dtype(),
            shape: value.shape.iter().map(|d| Dim::from(*d)).collect(),
        };
        self.tensor(what, ty, TensorKind::Constant(value.data.to_bytes()))
    }

    /// Adds a constant that is some rows of another: the bytes are shared.
    pub(super) fn rows(&mut self, id: TensorId, rows: Range<usize>) -> Option<TensorId> {
        let whole = self.view.graph.tensor(id);
        let count = whole.ty.shape.first()?.as_const().filter(|n| *n > 0)?;
        let bytes = whole.constant()?;
        let row = bytes.len() / count;
        // A quantised vector has blocks, not rows.
        if row * count != bytes.len()
            || (whole.ty.shape.len() == 1 && whole.ty.dtype.is_quantised())
        {
            return None;
        }
        let mut ty = whole.ty.clone();
        ty.shape[0] = rows.len().into();
        let what = whole.name.rsplit(['.', '_']).next().unwrap_or("rows");
        let part = bytes.slice(rows.start * row..rows.end * row)?;
        Some(self.tensor(what, ty, TensorKind::Constant(part)))
    }

    fn tensor(&mut self, what: &str, ty: TensorType, kind: TensorKind) -> TensorId {
        let name = format!(
            "{}.{what}",
            self.view.graph.tensor(self.patch.replaced).name
        );
        self.patch.tensors.push(Tensor { name, ty, kind });
        TensorId(self.patch.first + self.patch.tensors.len() as u32 - 1)
    }

    /// Finishes the patch with this op as the replacement.
    pub(super) fn replace(mut self, op: impl Into<Op>, inputs: &[TensorId]) -> Option<Patch> {
        let result = self.node(op, inputs)?;
        self.redirect(result)
    }

    /// Finishes the patch with an existing or added tensor as the replacement.
    pub(super) fn redirect(mut self, result: TensorId) -> Option<Patch> {
        let replaced = self.patch.replaced;
        let old = result.0 < self.patch.first;
        // A graph output keeps its name, so it must stay a separate tensor.
        let keeps_name = !old || !self.view.graph.outputs.contains(&replaced);
        self.patch.result = result;
        (self.ty(result) == self.view.ty(replaced) && keeps_name).then_some(self.patch)
    }

    /// As [`PatchBuilder::replace`], but `None` if a tensor between the patch's operands and the replaced tensor has other
    /// readers: fusing must not compute anything twice.
    pub(super) fn fuse(self, op: impl Into<Op>, inputs: &[TensorId]) -> Option<Patch> {
        let view = self.view;
        let patch = self.replace(op, inputs)?;
        patch.has_no_outside_readers(view).then_some(patch)
    }
}

impl Patch {
    /// Whether every tensor that the patch makes redundant is read only inside the replaced subgraph.
    fn has_no_outside_readers(&self, view: &GraphView<'_>) -> bool {
        let leaves: HashSet<TensorId> =
            self.nodes.iter().flat_map(|n| &n.inputs).copied().collect();
        let mut reads: HashMap<TensorId, usize> = HashMap::new();
        let mut open = vec![self.replaced];
        while let Some(id) = open.pop() {
            for operand in view.producer(id).iter().flat_map(|node| &node.inputs) {
                let inner = view.producer(*operand).is_some() && !leaves.contains(operand);
                if inner {
                    let count = reads.entry(*operand).or_default();
                    *count += 1;
                    if *count == 1 {
                        open.push(*operand);
                    }
                }
            }
        }
        let mut inner = reads.iter();
        inner.all(|(id, count)| view.uses(*id) == *count)
    }
}

/// Applies a rule to every node until it proposes no patch; returns whether anything changed.
pub(super) fn rewrite(
    graph: &mut Graph,
    rule: impl Fn(&GraphView<'_>, &Node) -> Option<Patch>,
) -> Result<bool, GraphError> {
    let mut changed = false;
    for _ in 0..MAX_SWEEPS {
        let view = GraphView::new(graph);
        let patches: Vec<Option<Patch>> = graph.nodes.iter().map(|n| rule(&view, n)).collect();
        if patches.iter().all(Option::is_none) {
            break;
        }
        apply(graph, patches);
        dead_code::run(graph)?;
        changed = true;
    }
    Ok(changed)
}

/// Applies patches at the nodes whose results they replace.
///
/// Each patch states that a tensor equals an expression of earlier tensors, so any set of patches can be applied together.
fn apply(graph: &mut Graph, patches: Vec<Option<Patch>>) {
    let mut names: HashSet<String> = graph.tensors.iter().map(|t| t.name.clone()).collect();
    let mut renamed: HashMap<TensorId, TensorId> = HashMap::new();
    let current =
        |renamed: &HashMap<TensorId, TensorId>, id: TensorId| *renamed.get(&id).unwrap_or(&id);
    let old = std::mem::take(&mut graph.nodes);
    for (mut node, patch) in old.into_iter().zip(patches) {
        let Some(patch) = patch else {
            for id in &mut node.inputs {
                *id = current(&renamed, *id);
            }
            graph.nodes.push(node);
            continue;
        };
        let base = graph.tensors.len() as u32;
        // The last result of a patch takes the id of the replaced tensor; other new tensors are appended to the graph's.
        let place = |id: TensorId| match id.0.checked_sub(patch.first) {
            Some(_) if id == patch.result => patch.replaced,
            Some(i) => TensorId(base + i),
            None => current(&renamed, id),
        };
        for mut new in patch.nodes {
            new.inputs.iter_mut().for_each(|id| *id = place(*id));
            new.output = place(new.output);
            graph.nodes.push(new);
        }
        let result = place(patch.result);
        let constant = patch.result.0.checked_sub(patch.first);
        let constant = constant.and_then(|i| patch.tensors[i as usize].constant().cloned());
        if let Some(bytes) = constant {
            graph.tensors[patch.replaced.0 as usize].kind = TensorKind::Constant(bytes);
        }
        for mut tensor in patch.tensors {
            let wanted = tensor.name.clone();
            let mut n = 1;
            while !names.insert(tensor.name.clone()) {
                n += 1;
                tensor.name = format!("{wanted}.{n}");
            }
            graph.tensors.push(tensor);
        }
        if result != patch.replaced {
            renamed.insert(patch.replaced, result);
            // The old node stays as the producer of the replaced tensor until `dead_code` removes both.
            for id in &mut node.inputs {
                *id = current(&renamed, *id);
            }
            graph.nodes.push(node);
        }
    }
    for id in &mut graph.outputs {
        *id = current(&renamed, *id);
    }
    super::renumber::renumber(graph);
}
