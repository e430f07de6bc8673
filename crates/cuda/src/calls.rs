//! From a group of nodes to its kernel calls.

use crate::arguments::{
    AttendArgs, GatherArgs, LinearArgs, MapArgs, NormArgs, RopeArgs, Segment, TableArgs, WriteArgs,
};
use crate::compile::Unit;
use crate::device::Device;
use crate::error::CudaError;
use crate::fusion::Group;
use crate::launch::Launch;
use crate::tape::{Addresses, Call, StepLayout};
use crate::weights::{Constants, PackedWeight};
use backend::{BackendError, BackendErrorKind};
use base::DType;
use bytemuck::Zeroable;
use graph::ops::{
    Activation, Binary, BinaryFunction, Op, RopeLayout, Unary, UnaryFunction, UpdateAndAttend,
};
use graph::plan::{MemoryPlan, Place};
use graph::{Graph, Node, TensorId};

/// The most ranges that the columns of a product are divided into.
const MAX_RANGES: usize = 8;
/// The rows of a block of the kernel for few rows and of the one for many, and the most rows of the former.
const FEW: usize = 8;
const MANY: usize = 32;
const SEVERAL: usize = 64;
/// Pairs of blocks that the kernel for many rows stages at once.
const CHUNK: usize = 4;
/// Warps of products that a multiprocessor runs at once.
const RESIDENT_WARPS: u32 = 16;
/// Query heads that one block of threads computes, as `HEADS` in the kernels.
const HEADS: usize = 8;
/// Positions of a part and elements of a slice of values, as in the kernels.
const PART: usize = 256;
const SLICE: usize = 64;

/// An activation's number in the kernels.
fn activation_code(activation: Option<Activation>) -> u32 {
    match activation {
        None => 0,
        Some(Activation::Silu) => 1,
        Some(Activation::GeluTanh) => 2,
        Some(Activation::GeluErf) => 3,
        Some(Activation::Relu) => 4,
        Some(Activation::Tanh) => 5,
        Some(Activation::Sigmoid) => 6,
    }
}

/// Makes the calls of a tape.
pub(crate) struct CallMaker<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) device: &'a Device,
    pub(crate) constants: &'a Constants,
    pub(crate) memory: &'a MemoryPlan,
    pub(crate) layout: &'a StepLayout,
    pub(crate) addresses: Addresses,
}

impl CallMaker<'_> {
    fn shape(&self, id: TensorId) -> Vec<usize> {
        let shape = self.graph.tensor(id).ty.dims(&self.memory.bindings);
        shape.expect("sizes were resolved by the plan")
    }

    fn elements(&self, id: TensorId) -> usize {
        self.shape(id).iter().product()
    }

    /// Rows and columns, the last dimension being the columns.
    fn rows(&self, id: TensorId) -> (usize, usize) {
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

    fn is_wide(&self, id: TensorId) -> u32 {
        (self.graph.tensor(id).ty.dtype == DType::I64).into()
    }

    fn unsupported(&self, node: &Node, reason: &str) -> BackendError {
        BackendErrorKind::Unsupported {
            backend: crate::Cuda::ID,
            node: self.graph.node_name(node).to_owned(),
            op: node.op.name(),
            reason: reason.to_owned(),
        }
        .into()
    }

    fn general<A: bytemuck::NoUninit>(
        &self,
        kernel: &'static str,
        blocks: usize,
        threads: u32,
        arguments: &A,
    ) -> Result<Launch, CudaError> {
        let function = self.device.function(Unit::General, kernel)?;
        Ok(Launch::new(
            function,
            [blocks as u32, 1],
            threads,
            0,
            arguments,
        ))
    }

    /// The calls of a group; none if nothing is computed.
    pub(crate) fn call(&self, group: &Group) -> Result<Option<Call>, BackendError> {
        let last = group.nodes.end - 1;
        let node = &self.graph.nodes()[last];
        let launches = match (&node.op, group.products.is_empty()) {
            (Op::UpdateAndAttend(op), _) => self.attention(op, group)?,
            (_, true) => self.node(node)?,
            (_, false) => vec![self.products(group)?],
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
        }))
    }

    fn weight(&self, node: &Node) -> Result<&PackedWeight, BackendError> {
        let weight = self.constants.packed(node.inputs[1]);
        weight.ok_or_else(|| self.unsupported(node, "its weight is not a constant"))
    }

    /// One kernel for the products of a group.
    fn products(&self, group: &Group) -> Result<Launch, BackendError> {
        let nodes = self.graph.nodes();
        let first = &nodes[group.products[0]];
        let shape = self.weight(first)?.shape;
        let mut a = LinearArgs::zeroed();
        let operand = group
            .norm
            .map_or(first.inputs[0], |norm| nodes[norm].inputs[0]);
        let (rows, k) = self.rows(operand);
        let pairs_per_range = shape.pairs().div_ceil(MAX_RANGES).max(1);
        let ranges = shape.pairs().div_ceil(pairs_per_range).max(1);
        (a.x, a.rows, a.k) = (self.address(operand), rows as u32, k as u32);
        (a.pairs, a.ranges) = (shape.pairs() as u32, ranges as u32);
        a.pairs_per_range = pairs_per_range as u32;
        if let Some(norm) = group.norm
            && let Op::RmsNorm(op) = &nodes[norm].op
        {
            (a.norm, a.eps) = (self.address(nodes[norm].inputs[1]), op.eps);
        }
        if let Op::Linear(linear) = &first.op {
            a.activation = activation_code(linear.activation);
        }
        let result = match (&group.sum, group.gate) {
            (Some((sum, other)), _) => {
                a.residual = self.address(*other);
                Some(nodes[*sum].output)
            }
            (None, Some(gate)) => Some(nodes[gate].output),
            (None, None) => None,
        };
        if let Some(gate) = group.gate
            && let Op::Gated(op) = &nodes[gate].op
        {
            (a.gated, a.activation) = (1, activation_code(Some(op.function)));
        }
        a.count = group.products.len() as u32;
        let mut tiles = 0;
        for (segment, product) in a.segments.iter_mut().zip(&group.products) {
            let node = &nodes[*product];
            let weight = self.weight(node)?;
            *segment = Segment {
                codes: weight.codes(),
                scales: weight.scales(),
                bias: node.inputs.get(2).map_or(0, |bias| self.address(*bias)),
                out: self.address(result.unwrap_or(node.output)),
                n: weight.shape.n as u32,
                tiles: weight.shape.tiles() as u32,
            };
            tiles += segment.tiles;
        }
        if group.gate.is_some() {
            tiles = a.segments[0].tiles;
        }
        a.tiles = tiles;
        // Bytes of rows of x in shared memory, as the kernels lay them out.
        let words = if shape.format.is_quantised() { 4 } else { 6 };
        let staged = |rows: usize, columns: usize, pairs: usize| {
            let stride = pairs * 16 * words;
            let stride = stride + 16 - stride % 32;
            (pairs * 4 * columns + rows * stride) * 4
        };
        let gates = if group.gate.is_some() { 2 } else { 1 };
        let few_rows = rows.min(FEW);
        let few = (FEW + 2 * gates * ranges * 16 * FEW) * 4 + staged(few_rows, FEW, shape.pairs());
        let unit = Unit::Linear(shape.format);
        if rows <= SEVERAL && few <= self.device.facts.shared_memory {
            // As many blocks as run at once, each with as many tiles as the others.
            let warps = (gates * ranges) as u32;
            let at_once = self.device.facts.multiprocessors * (RESIDENT_WARPS / warps).max(1);
            let down = rows.div_ceil(FEW) as u32;
            let each = (tiles * down).div_ceil(at_once).clamp(1, tiles);
            let grid = [tiles.div_ceil(each), down];
            let function = self.device.function(unit, "linear_few")?;
            return Ok(Launch::new(function, grid, warps * 32, few as u32, &a));
        }
        let down = rows.div_ceil(MANY) as u32;
        a.chunk = pairs_per_range.min(CHUNK) as u32;
        let shared = MANY * 4 + staged(rows.min(MANY), MANY, a.chunk as usize);
        // Warps have two tiles each; fewer warps a block where there would be fewer blocks than multiprocessors.
        let units = if group.gate.is_some() {
            tiles
        } else {
            tiles.div_ceil(2)
        };
        let warps = (units * down / self.device.facts.multiprocessors).clamp(2, 8);
        let grid = [units.div_ceil(warps), down];
        let function = self.device.function(unit, "linear_many")?;
        Ok(Launch::new(function, grid, warps * 32, shared as u32, &a))
    }

    fn map(
        &self,
        node: &Node,
        [map, activation]: [u32; 2],
        number: f32,
    ) -> Result<Vec<Launch>, BackendError> {
        let n = self.elements(node.output);
        let mut operands = node.inputs.clone();
        if let [a, b] = operands[..] {
            let (shape, suffix) = (self.shape(a), self.shape(b));
            if n != self.elements(a) {
                // Sums and products have the same value either way round.
                operands.swap(0, 1);
            } else if !shape.ends_with(&suffix) {
                return Err(self.unsupported(node, "only trailing dimensions are broadcast"));
            }
            let (shape, suffix) = (self.shape(operands[0]), self.shape(operands[1]));
            if n != self.elements(operands[0]) || !shape.ends_with(&suffix) {
                return Err(self.unsupported(node, "only trailing dimensions are broadcast"));
            }
        }
        if self.graph.tensor(node.output).ty.dtype != DType::F32 {
            return Err(self.unsupported(node, "only f32 is computed"));
        }
        let arguments = MapArgs {
            a: self.address(operands[0]),
            b: operands.get(1).map_or(0, |b| self.address(*b)),
            out: self.address(node.output),
            n: n as u64,
            period: operands.get(1).map_or(1, |b| self.elements(*b).max(1)) as u64,
            map,
            activation,
            number,
            unused: 0,
        };
        Ok(vec![self.general(
            "elementwise",
            n.div_ceil(256),
            256,
            &arguments,
        )?])
    }

    fn node(&self, node: &Node) -> Result<Vec<Launch>, BackendError> {
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
                Ok(vec![self.general(
                    kernel,
                    rows.div_ceil(4),
                    128,
                    &arguments,
                )?])
            }
            Op::GatherRows(_) => {
                let shape = self.shape(inputs[0]);
                let packed = self.constants.packed(inputs[0]);
                let packed = packed.filter(|_| self.graph.tensor(inputs[0]).ty.dtype != DType::F32);
                let rows = self.elements(inputs[1]);
                let arguments = GatherArgs {
                    codes: packed.map_or_else(|| self.address(inputs[0]), PackedWeight::codes),
                    scales: packed.map_or(0, PackedWeight::scales),
                    index: self.address(inputs[1]),
                    out: self.address(node.output),
                    rows: rows as u32,
                    k: shape[1] as u32,
                    pairs: packed.map_or(0, |weight| weight.shape.pairs() as u32),
                    format: packed.map_or(0, |weight| weight.shape.format as u32),
                    wide: self.is_wide(inputs[1]),
                    n: shape[0] as u32,
                };
                let kernel = if packed.is_some() {
                    "gather_packed"
                } else {
                    "gather_plain"
                };
                Ok(vec![self.general(kernel, rows, 128, &arguments)?])
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
                Ok(vec![self.general("rope_table", blocks, 128, &arguments)?])
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
                Ok(vec![self.general(
                    "rope",
                    threads.div_ceil(128),
                    128,
                    &arguments,
                )?])
            }
            _ => Err(self.unsupported(node, "it has no kernel for this op")),
        }
    }

    /// The rotation of an operand of attention: the operand before it, its table and its layout.
    fn rotation(&self, group: &Group, operand: TensorId) -> (TensorId, u64, [u32; 2]) {
        let nodes = self.graph.nodes();
        let rotation = group.rotations.iter().map(|i| &nodes[*i]);
        match rotation
            .into_iter()
            .find(|node| node.output == operand)
            .map(|node| (&node.op, node))
        {
            Some((Op::Rope(op), node)) => {
                let rotated = self.shape(node.inputs[1])[1] as u32;
                let interleaved = (op.layout == RopeLayout::Interleaved).into();
                let table = self.address(node.inputs[1]);
                (node.inputs[0], table, [rotated, interleaved])
            }
            _ => (operand, 0, [0, 0]),
        }
    }

    /// Attention with the rotations of its group, behind the other nodes of the group.
    fn attention(&self, op: &UpdateAndAttend, group: &Group) -> Result<Vec<Launch>, BackendError> {
        let nodes = self.graph.nodes();
        let node = &nodes[group.nodes.end - 1];
        let inputs = &node.inputs;
        let mut launches = Vec::new();
        let before = group.nodes.start..group.nodes.end - 1;
        for i in before.filter(|i| !group.rotations.contains(i)) {
            launches.extend(self.node(&nodes[i])?);
        }
        let (queries, query_table, query_layout) = self.rotation(group, inputs[0]);
        let (keys, key_table, key_layout) = self.rotation(group, inputs[1]);
        let [q, k, v] = [0, 1, 2].map(|i| self.shape(inputs[i]));
        let (tokens, heads, kv_heads) = (q[0], q[1], k[1]);
        let (key_dim, value_dim) = (k[2], v[2]);
        let layers = self.addresses.step + self.layout.layers as u64;
        let write = WriteArgs {
            keys: self.address(keys),
            values: self.address(inputs[2]),
            step: self.addresses.step,
            layers,
            table: key_table,
            layer: op.cache_id,
            tokens: tokens as u32,
            kv_heads: kv_heads as u32,
            key_dim: key_dim as u32,
            value_dim: value_dim as u32,
            rotated: key_layout[0],
            interleaved: key_layout[1],
            unused: 0,
        };
        let rows = 2 * tokens * kv_heads;
        // The row of a single token is stored by the attention itself.
        let alone = tokens == 1 && (key_table == 0 || key_layout == query_layout);
        let function = self.device.function(Unit::General, "write_kv")?;
        let blocks = [rows.div_ceil(4) as u32, 1];
        let stored = Launch::new(function, blocks, 128, 4 * 4 * key_dim as u32, &write);
        let shared_by = heads / kv_heads;
        // A lone token's heads run side by side.
        let lot = if alone { 1 } else { HEADS };
        let lots = shared_by.div_ceil(lot);
        let attend = AttendArgs {
            q: self.address(queries),
            out: self.address(node.output),
            step: self.addresses.step,
            layers,
            partial: self.addresses.partial,
            counters: self.addresses.counters,
            table: query_table,
            keys: if alone { write.keys } else { 0 },
            values: if alone { write.values } else { 0 },
            key_table,
            layer: op.cache_id,
            heads: heads as u32,
            kv_heads: kv_heads as u32,
            key_dim: key_dim as u32,
            value_dim: value_dim as u32,
            rotated: query_layout[0],
            interleaved: query_layout[1],
            group: shared_by as u32,
            lots: lots as u32,
            lot: lot as u32,
            scale: op.scale,
            softcap: op.softcap.unwrap_or(0.0),
        };
        let floats = HEADS * key_dim + HEADS * PART + 8 * HEADS * SLICE + HEADS * value_dim;
        let most = 2 * self.device.facts.multiprocessors as usize;
        let blocks = (tokens * kv_heads * lots * 16).min(most);
        let function = self.device.function(Unit::General, "attend")?;
        let attend = Launch::new(
            function,
            [blocks as u32, 1],
            256,
            (floats * 4) as u32,
            &attend,
        );
        if !alone {
            launches.push(stored);
        }
        launches.push(attend);
        Ok(launches)
    }
}
