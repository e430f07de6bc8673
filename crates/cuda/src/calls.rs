//! From a fused op to its kernel calls.

use crate::arguments::{GatherArgs, MapArgs, NormArgs, RopeArgs, TableArgs};
use crate::compile::Unit;
use crate::device::Device;
use crate::experts;
use crate::format::DeviceFormat;
use crate::launch::Launch;
use crate::step_layout::StepLayout;
use crate::weights::{Constants, PackedWeight};
use backend::{BackendError, BackendErrorKind};
use base::DType;
use graph::ops::{Activation, Binary, BinaryFunction, Op, RopeLayout, Unary, UnaryFunction};
use graph::passes::{FusedKind, FusedOp};
use graph::plan::{MemoryPlan, Place};
use graph::{Graph, Node, TensorId};

/// Addresses that the calls of a tape use.
#[derive(Clone, Copy)]
pub(crate) struct Addresses {
    pub(crate) arena: u64,
    pub(crate) step: u64,
    pub(crate) partial: u64,
    pub(crate) counters: u64,
    /// The flagged words of the persistent kernel; 0 if it is not used.
    pub(crate) flagged: u64,
}

/// The kernel calls of a fused op.
pub(crate) struct Call {
    pub(crate) launches: Vec<Launch>,
    /// Whether it is cached attention: `PIECEWISE` graphs are cut before and after it.
    pub(crate) attends: bool,
    /// The op's last node and the address of its result.
    pub(crate) node: usize,
    pub(crate) result: u64,
    /// Bytes of weights read, and multiply-accumulates.
    pub(crate) work: (u64, u64),
}

/// An activation's number in the kernels.
pub(crate) fn activation_code(activation: Option<Activation>) -> u32 {
    match activation {
        None => 0,
        Some(Activation::Silu) => 1,
        Some(Activation::GeluTanh) => 2,
        Some(Activation::GeluErf) => 3,
        Some(Activation::Relu) => 4,
        Some(Activation::Tanh) => 5,
        Some(Activation::Sigmoid) => 6,
        Some(Activation::HardSwish) => 7,
    }
}

/// The number in the kernels of a function of two f32 that `CallMaker::node` does not number itself.
pub(crate) fn binary_code(function: BinaryFunction) -> Option<u32> {
    Some(match function {
        BinaryFunction::Sub => 9,
        BinaryFunction::Div => 10,
        BinaryFunction::Pow => 11,
        BinaryFunction::Min => 12,
        BinaryFunction::Max => 13,
        _ => return None,
    })
}

/// The number in the kernels of a function of one f32 that `CallMaker::node` does not number itself.
pub(crate) fn unary_code(function: UnaryFunction) -> Option<u32> {
    use UnaryFunction as Function;
    const ORDER: [UnaryFunction; 25] = [
        Function::Neg,
        Function::Abs,
        Function::Exp,
        Function::Log,
        Function::Sqrt,
        Function::Rsqrt,
        Function::Reciprocal,
        Function::Sin,
        Function::Cos,
        Function::Tan,
        Function::Asin,
        Function::Acos,
        Function::Atan,
        Function::Sinh,
        Function::Cosh,
        Function::Asinh,
        Function::Acosh,
        Function::Atanh,
        Function::Erf,
        Function::Log1p,
        Function::Expm1,
        Function::Floor,
        Function::Ceil,
        Function::Round,
        Function::Sign,
    ];
    let at = ORDER.iter().position(|known| *known == function)?;
    Some(32 + at as u32)
}

/// How the elements of a broadcast operand repeat in a result: how often each in a row, and after how many all come again. `None` if
/// axes between those of the operand are repeated.
fn repeated(result: &[usize], operand: &[usize]) -> Option<(usize, usize)> {
    let missing = result.len().checked_sub(operand.len())?;
    let (_, result) = result.split_at(missing);
    let Some(first) = operand.iter().position(|size| *size != 1) else {
        return Some((1, 1));
    };
    let end = operand.iter().rposition(|size| *size != 1)? + 1;
    let own = &operand[first..end];
    (result[first..end] == *own).then(|| (result[end..].iter().product(), own.iter().product()))
}

/// Makes the calls of a tape.
pub(crate) struct CallMaker<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) device: &'a Device,
    pub(crate) constants: &'a Constants,
    pub(crate) memory: &'a MemoryPlan,
    pub(crate) layout: &'a StepLayout,
    pub(crate) addresses: Addresses,
    /// Whether items of attention may have several queries.
    pub(crate) tiled: bool,
}

impl CallMaker<'_> {
    pub(crate) fn shape(&self, id: TensorId) -> Vec<usize> {
        let shape = self.graph.tensor(id).ty.dims(&self.memory.bindings);
        shape.expect("sizes were resolved by the plan")
    }

    fn elements(&self, id: TensorId) -> usize {
        self.shape(id).iter().product()
    }

    /// Rows and columns, the last dimension being the columns.
    pub(crate) fn rows(&self, id: TensorId) -> (usize, usize) {
        let shape = self.shape(id);
        let (columns, outer) = shape
            .split_last()
            .map_or((1, &[][..]), |(last, outer)| (*last, outer));
        (outer.iter().product(), columns)
    }

    pub(crate) fn address(&self, id: TensorId) -> u64 {
        match self.memory.place(id) {
            Place::Input { index, offset } => {
                self.addresses.step + (self.layout.inputs[index].start + offset) as u64
            }
            Place::Constant { id, offset } => {
                let plain = self.constants.plain(id);
                plain.expect("constants with plain uses are kept as they are") + offset as u64
            }
            Place::Arena(slot) => self.addresses.arena + slot.offset as u64,
        }
    }

    fn is_f32(&self, id: TensorId) -> bool {
        self.graph.tensor(id).ty.dtype == DType::F32
    }

    fn is_wide(&self, id: TensorId) -> u32 {
        (self.graph.tensor(id).ty.dtype == DType::I64).into()
    }

    pub(crate) fn unsupported(&self, node: &Node, reason: &str) -> BackendError {
        BackendErrorKind::Unsupported {
            backend: crate::Cuda::ID,
            node: self.graph.node_name(node).to_owned(),
            op: node.op.name(),
            reason: reason.to_owned(),
        }
        .into()
    }

    pub(crate) fn general<A: bytemuck::NoUninit>(
        &self,
        kernel: &'static str,
        blocks: usize,
        threads: u32,
        arguments: &A,
    ) -> Result<Vec<Launch>, BackendError> {
        let function = self.device.function(Unit::General, kernel)?;
        let grid = [blocks as u32, 1];
        Ok(vec![Launch::new(function, grid, threads, 0, arguments)])
    }

    /// Bytes of weights that an op reads, and its multiply-accumulates with them.
    fn work(&self, op: &FusedOp) -> (u64, u64) {
        let last = &self.graph.nodes()[op.nodes.end - 1];
        if let Op::Experts(of) = &last.op {
            return experts::work(self.graph, last, of.used, &self.memory.bindings);
        }
        let FusedKind::Product(fused) = &op.kind else {
            return (0, 0);
        };
        let nodes = fused.products.iter().map(|i| &self.graph.nodes()[*i]);
        nodes.fold((0, 0), |(bytes, macs), node| {
            let Some(weight) = self.constants.packed(node.inputs[1]) else {
                return (bytes, macs);
            };
            let outputs = self.elements(node.output) * weight.shape.k;
            (bytes + weight.shape.bytes() as u64, macs + outputs as u64)
        })
    }

    /// The calls of an op; none if nothing is computed.
    pub(crate) fn call(&self, op: &FusedOp) -> Result<Option<Call>, BackendError> {
        let last = op.nodes.end - 1;
        let node = &self.graph.nodes()[last];
        let launches = match (&node.op, &op.kind) {
            (Op::UpdateAndAttend(attention), _) => self.attention(attention, op)?,
            (_, FusedKind::Product(fused)) => self.products(fused)?,
            (Op::Experts(op), _) => self.experts(last, node, op)?,
            _ => self.node(node)?,
        };
        let launches: Vec<Launch> = launches
            .into_iter()
            .filter(|l| !l.grid.contains(&0))
            .collect();
        let traced = match self.memory.place(node.output) {
            Place::Constant { .. } => return Ok(None),
            _ => self.address(node.output),
        };
        Ok(Some(Call {
            launches,
            attends: matches!(node.op, Op::UpdateAndAttend(_)),
            node: last,
            result: traced,
            work: self.work(op),
        }))
    }

    fn map(
        &self,
        node: &Node,
        [map, activation]: [u32; 2],
        number: f32,
    ) -> Result<Vec<Launch>, BackendError> {
        let n = self.elements(node.output);
        let mut operands = node.inputs.clone();
        let mut repetition = Some((1, 1));
        let mut swapped = false;
        if let [a, b] = operands[..] {
            let shape = self.shape(node.output);
            if n != self.elements(a) {
                (operands, swapped) = (vec![b, a], true);
            }
            let whole = n == self.elements(operands[0]);
            repetition = repeated(&shape, &self.shape(operands[1])).filter(|_| whole);
        }
        let Some((repeat, period)) = repetition else {
            return Err(self.unsupported(
                node,
                "only one operand is broadcast, along outer or inner axes",
            ));
        };
        if self.graph.tensor(node.output).ty.dtype != DType::F32 {
            return Err(self.unsupported(node, "only f32 is computed"));
        }
        let arguments = MapArgs {
            a: self.address(operands[0]),
            b: operands.get(1).map_or(0, |b| self.address(*b)),
            out: self.address(node.output),
            n: n as u64,
            repeat: repeat as u64,
            period: period as u64,
            map,
            activation,
            number,
            swapped: swapped.into(),
        };
        self.general("elementwise", n.div_ceil(256), 256, &arguments)
    }

    pub(crate) fn node(&self, node: &Node) -> Result<Vec<Launch>, BackendError> {
        let inputs = &node.inputs;
        match &node.op {
            Op::Reshape(_) => Ok(vec![]),
            Op::Binary(Binary {
                function: BinaryFunction::Add,
            }) => self.map(node, [0, 0], 0.0),
            Op::Binary(Binary {
                function: BinaryFunction::Mul,
            }) => self.map(node, [1, 0], 0.0),
            Op::Unary(Unary {
                function: UnaryFunction::Activation(activation),
            }) => self.map(node, [2, activation_code(Some(*activation))], 0.0),
            Op::Unary(Unary {
                function: UnaryFunction::RoundF16,
            }) => self.map(node, [6, 0], 0.0),
            Op::Unary(Unary {
                function: UnaryFunction::RoundBF16,
            }) => self.map(node, [7, 0], 0.0),
            Op::Unary(Unary {
                function: UnaryFunction::Softplus,
            }) => self.map(node, [8, 0], 0.0),
            Op::Unary(Unary { function }) if unary_code(*function).is_some() => {
                let code = unary_code(*function).unwrap_or_default();
                self.map(node, [code, 0], 0.0)
            }
            Op::Binary(Binary { function })
                if binary_code(*function).is_some() && self.is_f32(inputs[0]) =>
            {
                let code = binary_code(*function).unwrap_or_default();
                self.map(node, [code, 0], 0.0)
            }
            Op::Conv(op) => self.convolution(node, op),
            Op::Pool(op) => self.pool(node, op),
            Op::Softmax(op) => self.softmax(node, op),
            Op::Reduce(op) if self.is_f32(inputs[0]) => self.sum(node, op),
            Op::Gated(op) => self.map(node, [3, activation_code(Some(op.function))], 0.0),
            Op::Scale(op) => self.map(node, [4, 0], op.factor),
            Op::SoftCap(op) => self.map(node, [5, 0], op.cap),
            Op::RmsNorm(_) | Op::LayerNorm(_) => {
                let (kernel, eps) = match &node.op {
                    Op::RmsNorm(op) => ("rms_norm", op.eps),
                    Op::LayerNorm(op) => ("layer_norm", op.eps),
                    _ => unreachable!("matched above"),
                };
                let (rows, n) = self.rows(inputs[0]);
                let arguments = NormArgs {
                    x: self.address(inputs[0]),
                    weight: self.address(inputs[1]),
                    bias: inputs.get(2).map_or(0, |bias| self.address(*bias)),
                    out: self.address(node.output),
                    rows: rows as u32,
                    n: n as u32,
                    eps,
                    unused: 0,
                };
                self.general(kernel, rows.div_ceil(4), 128, &arguments)
            }
            Op::GatherRows(_) => {
                let shape = self.shape(inputs[0]);
                let packed = self.constants.packed(inputs[0]);
                let dtype = self.graph.tensor(inputs[0]).ty.dtype;
                let packed = packed.filter(|_| DeviceFormat::is_exact(dtype));
                let Some(file) = DeviceFormat::file_code(dtype) else {
                    return Err(self.unsupported(node, "only rows of numbers are gathered"));
                };
                let row_bytes = shape[1] / dtype.block_len() * dtype.block_bytes();
                let rows = self.elements(inputs[1]);
                let arguments = GatherArgs {
                    codes: packed.map_or_else(|| self.address(inputs[0]), PackedWeight::codes),
                    scales: packed.map_or(0, PackedWeight::scales),
                    index: self.address(inputs[1]),
                    out: self.address(node.output),
                    rows: rows as u32,
                    k: shape[1] as u32,
                    pairs: packed.map_or(row_bytes, |weight| weight.shape.pairs()) as u32,
                    format: packed.map_or(file, |weight| weight.shape.format as u32),
                    wide: self.is_wide(inputs[1]),
                    n: shape[0] as u32,
                };
                let kernel = if packed.is_some() {
                    "gather_packed"
                } else {
                    "gather_plain"
                };
                self.general(kernel, rows, 128, &arguments)
            }
            Op::RopeTable(op) => {
                let (rows, columns) = self.rows(node.output);
                let arguments = TableArgs {
                    position: self.address(inputs[0]),
                    frequency: self.address(inputs[1]),
                    out: self.address(node.output),
                    rows: rows as u32,
                    half: columns as u32 / 2,
                    wide: self.is_wide(inputs[0]),
                    magnitude: op.magnitude,
                };
                let blocks = (rows * columns / 2).div_ceil(128);
                self.general("rope_table", blocks, 128, &arguments)
            }
            Op::Rope(op) => {
                let &[rows, heads, dim] = &self.shape(inputs[0])[..] else {
                    unreachable!("inferred with three dimensions")
                };
                let rotated = self.shape(inputs[1])[1];
                let arguments = RopeArgs {
                    x: self.address(inputs[0]),
                    table: self.address(inputs[1]),
                    out: self.address(node.output),
                    rows: rows as u32,
                    heads: heads as u32,
                    dim: dim as u32,
                    rotated: rotated as u32,
                    interleaved: (op.layout == RopeLayout::Interleaved).into(),
                    unused: 0,
                };
                let threads = rows * heads * (dim - rotated / 2);
                self.general("rope", threads.div_ceil(128), 128, &arguments)
            }
            Op::RouteExperts(op) => self.route_experts(node, op),
            Op::CausalConv(op) => self.causal_conv(node, op),
            Op::LinearAttention(op) => self.linear_attention(node, op),
            _ => self.uncached(node),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operands_repeat_along_outer_and_inner_axes() {
        let result = [5, 6, 8];
        assert_eq!(repeated(&result, &[5, 6, 8]), Some((1, 240)));
        assert_eq!(repeated(&result, &[8]), Some((1, 8)));
        assert_eq!(repeated(&result, &[6, 8]), Some((1, 48)));
        assert_eq!(repeated(&result, &[6, 1]), Some((8, 6)));
        assert_eq!(repeated(&result, &[5, 6, 1]), Some((8, 30)));
        assert_eq!(repeated(&result, &[5, 1, 1]), Some((48, 5)));
        assert_eq!(repeated(&result, &[1]), Some((1, 1)));
        assert_eq!(repeated(&result, &[]), Some((1, 1)));
        assert_eq!(repeated(&result, &[5, 1, 8]), None);
        assert_eq!(repeated(&[1, 1, 8], &[1, 1, 8]), Some((1, 8)));
        assert_eq!(repeated(&[8], &[5, 8]), None);
    }
}
