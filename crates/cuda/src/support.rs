//! Which nodes the kernels can run, before sizes are known.

use crate::calls::{binary_code, unary_code};
use crate::format::DeviceFormat;
use crate::recurrent::{MAX_SCAN_DEPTH, MAX_TAPS};
use crate::weights::PackedShape;
use crate::windows::sums_neighbours;
use base::DType;
use graph::ops::{Binary, BinaryFunction, Compare, CompareFunction, Op, Unary, UnaryFunction};
use graph::{Dim, Graph, Node, TensorId};

/// Whether there is a kernel for a node. What depends on the sizes of a run (the shared memory that attention to a long text needs) is
/// refused when the run begins.
pub(crate) fn has_kernel(graph: &Graph, node: &Node) -> bool {
    let of = Operands { graph, node };
    match &node.op {
        Op::UpdateAndAttend(_) | Op::RopeTable(_) | Op::Rope(_) | Op::RouteExperts(_) => true,
        Op::RmsNorm(_) | Op::LayerNorm(_) | Op::Reshape(_) => true,
        Op::Linear(_) => of.is_packed(1),
        Op::Experts(_) => (2..5).all(|operand| of.is_packed(operand)),
        Op::GatherRows(_) => {
            let table = &graph.tensor(node.inputs[0]).ty;
            DeviceFormat::file_code(table.dtype).is_some() && table.shape.len() == 2
        }
        Op::CausalConv(_) => of.size(1, 1).is_some_and(|taps| taps <= MAX_TAPS),
        Op::LinearAttention(_) => of.size(0, 2).is_some_and(|depth| depth <= MAX_SCAN_DEPTH),
        Op::Binary(Binary { function }) => match function {
            BinaryFunction::Add | BinaryFunction::Mul => of.are(DType::F32) && of.one_repeats(),
            BinaryFunction::Sub if of.are(DType::I32) => of.has_two_axes(),
            function if binary_code(*function).is_some() => of.are(DType::F32) && of.one_repeats(),
            BinaryFunction::And => of.are(DType::Bool) && of.has_two_axes(),
            _ => false,
        },
        Op::Unary(Unary { function }) => {
            let is_known = matches!(
                function,
                UnaryFunction::Activation(_)
                    | UnaryFunction::RoundF16
                    | UnaryFunction::RoundBF16
                    | UnaryFunction::Softplus
            );
            (is_known || unary_code(*function).is_some()) && of.are(DType::F32)
        }
        Op::Conv(_) | Op::Pool(_) | Op::Softmax(_) => true,
        Op::Reduce(op) => of.are(DType::F32) && sums_neighbours(op),
        Op::Gated(_) | Op::Scale(_) | Op::SoftCap(_) => of.are(DType::F32),
        Op::Compare(Compare { function }) => {
            let is_known = matches!(function, CompareFunction::Eq | CompareFunction::Lt);
            is_known && of.are(DType::I32) && of.has_two_axes()
        }
        Op::Attention(_) => {
            let three = (0..3).all(|operand| of.shape(operand).len() == 3);
            let masked = node.inputs.get(3).is_none_or(|mask| {
                let mask = &graph.tensor(*mask).ty;
                mask.dtype == DType::Bool && two_axes(&mask.shape)
            });
            three && masked
        }
        Op::Permute(_) => of.is_moved() && of.shape(0).len() <= 3,
        Op::Concat(_) | Op::Slice(_) => of.is_moved(),
        _ => false,
    }
}

struct Operands<'a> {
    graph: &'a Graph,
    node: &'a Node,
}

impl Operands<'_> {
    fn shape(&self, operand: usize) -> &[Dim] {
        &self.graph.tensor(self.node.inputs[operand]).ty.shape
    }

    fn size(&self, operand: usize, axis: usize) -> Option<usize> {
        self.shape(operand).get(axis)?.as_const()
    }

    fn result(&self) -> &[Dim] {
        &self.graph.tensor(self.node.output).ty.shape
    }

    /// Whether all operands have this type.
    fn are(&self, dtype: DType) -> bool {
        let mut inputs = self.node.inputs.iter();
        inputs.all(|id: &TensorId| self.graph.tensor(*id).ty.dtype == dtype)
    }

    /// Whether an operand is a constant that is packed.
    fn is_packed(&self, operand: usize) -> bool {
        let id = self.node.inputs[operand];
        self.graph.tensor(id).constant().is_some() && PackedShape::of(self.graph, id).is_some()
    }

    /// Whether elements of the result are moved as they are.
    fn is_moved(&self) -> bool {
        let dtype = self.graph.tensor(self.node.output).ty.dtype;
        matches!(dtype, DType::F32 | DType::I32)
    }

    /// Whether an operand has the shape of the result, and the other repeats along outer or inner axes.
    fn one_repeats(&self) -> bool {
        let result = self.result();
        let whole = |operand: usize| self.shape(operand) == result;
        (whole(0) && repeats(result, self.shape(1))) || (whole(1) && repeats(result, self.shape(0)))
    }

    /// Whether the operands and the result have two axes besides those of size 1.
    fn has_two_axes(&self) -> bool {
        two_axes(self.shape(0)) && two_axes(self.shape(1)) && two_axes(self.result())
    }
}

fn is_one(dim: &Dim) -> bool {
    dim.as_const() == Some(1)
}

fn two_axes(shape: &[Dim]) -> bool {
    shape[..shape.len().saturating_sub(2)].iter().all(is_one)
}

/// As [`crate::calls::repeated`], for sizes that may be unknown.
fn repeats(result: &[Dim], operand: &[Dim]) -> bool {
    let Some(missing) = result.len().checked_sub(operand.len()) else {
        return false;
    };
    let result = &result[missing..];
    let Some(first) = operand.iter().position(|dim| !is_one(dim)) else {
        return true;
    };
    let last = operand
        .iter()
        .rposition(|dim| !is_one(dim))
        .unwrap_or(first);
    result[first..=last] == operand[first..=last]
}
