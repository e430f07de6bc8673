//! The kernel calls of products with packed weights.

use crate::arguments::{LinearArgs, Segment};
use crate::calls::{CallMaker, activation_code};
use crate::compile::Unit;
use crate::device::DeviceFacts;
use crate::experts;
use crate::format::DeviceFormat;
use crate::launch::Launch;
use crate::weights::{PackedShape, PackedWeight};
use backend::{BackendError, ExecutorKind};
use bytemuck::Zeroable;
use graph::ops::Op;
use graph::passes::{FusedKind, FusedOp, FusedProduct, FusionSupport, NoFusion, fuse};
use graph::plan::MemoryPlan;
use graph::{Bindings, Graph, Node, TensorId};

/// The most ranges that the columns of a product are divided into.
const MAX_RANGES: usize = 8;
/// The most rows of the kernel for few rows, and of the one for several.
const MAX_FEW_ROWS: usize = 8;
const MAX_SEVERAL_ROWS: usize = 64;
/// Rows of a block of the kernels for several and for many rows, and tiles of the latter.
const SEVERAL_ROWS: usize = 32;
const MANY_ROWS: usize = 128;
const MANY_TILES: u32 = 8;
/// Warps of products of few rows that a multiprocessor runs at once.
const RESIDENT_WARPS: u32 = 16;
/// The threads of a block of the kernel for many rows, and with Hopper's `wgmma`, when some of them only copy.
const MANY_THREADS: u32 = 256;
const MANY_THREADS_COPYING: u32 = 384;
/// Blocks of a cluster with `wgmma`, and stages of the ring of rows, as in `kernels/linear_many.cu`.
const CLUSTER: u32 = 2;
const X_RING: usize = 5;
/// Sums of squares that a row's norm is made of, as `SUB_SUMS` in the kernels.
const SUB_SUMS: usize = 8;

/// The kernels of products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Variant {
    /// Up to eight rows, with this much shared memory.
    Few(usize),
    Several,
    /// With this much shared memory.
    Many(usize),
}

/// The division of a product's columns, which follows from the weight alone.
pub(crate) fn ranges(shape: &PackedShape) -> (usize, usize) {
    let each = shape.pairs().div_ceil(MAX_RANGES).max(1);
    (shape.pairs().div_ceil(each).max(1), each)
}

/// Whether the kernel for many rows multiplies with Hopper's `wgmma`, which reads rows of x in a layout of its own.
fn reads_swizzled(shape: &PackedShape, facts: &DeviceFacts) -> bool {
    facts.capability == (9, 0) && shape.format != DeviceFormat::F32
}

impl Variant {
    fn new(rows: usize, shape: &PackedShape, gates: usize, facts: &DeviceFacts) -> Variant {
        let shared_memory = facts.shared_memory;
        let (ranges, _) = ranges(shape);
        let row = shape.pairs() * shape.format.x_parts() * 128;
        let (codes, scales) = shape.format.tile_bytes();
        let few = (MAX_FEW_ROWS * SUB_SUMS + 2 * gates * ranges * 16 * rows) * 4 + rows * row;
        if rows <= MAX_FEW_ROWS && few <= shared_memory {
            return Variant::Few(few);
        }
        let parts = shape.format.x_parts();
        let x_pair = MANY_ROWS * 128 * parts;
        let w_pair = MANY_TILES as usize * (codes + scales);
        // Stages, and pairs of blocks of a stage.
        let many = match reads_swizzled(shape, facts) {
            true => {
                let w_ring = match shape.format {
                    DeviceFormat::W4 => 5,
                    DeviceFormat::W8Groups => 2,
                    _ => 3,
                };
                [2, 1][parts - 1] * (X_RING * x_pair + w_ring * w_pair) + 1024
            }
            false => [6, 3, 2][parts - 1] * (x_pair + w_pair),
        };
        match rows > MAX_SEVERAL_ROWS && many <= shared_memory {
            true => Variant::Many(many),
            false => Variant::Several,
        }
    }
}

/// Bytes of the staged rows of a product, which kernels for more than few rows read.
fn staged_bytes(graph: &Graph, node: &Node, bindings: &Bindings, facts: &DeviceFacts) -> usize {
    let Op::Linear(_) = node.op else { return 0 };
    let Some(shape) = PackedShape::of(graph, node.inputs[1]) else {
        return 0;
    };
    let dims = graph.tensor(node.inputs[0]).ty.dims(bindings);
    let elements: usize = dims.map_or(0, |dims| dims.iter().product());
    let rows = elements / shape.k.max(1);
    // The most that any fusion needs.
    match Variant::new(rows, &shape, 2, facts) {
        Variant::Few(_) => 0,
        _ => rows.next_multiple_of(8) * shape.pairs() * shape.format.x_parts() * 128,
    }
}

impl CallMaker<'_> {
    fn weight(&self, node: &Node) -> Result<&PackedWeight, BackendError> {
        let weight = self.constants.packed(node.inputs[1]);
        weight.ok_or_else(|| self.unsupported(node, "its weight is not a constant"))
    }

    /// The arguments of products with what is fused into them, and the shape of their first weight.
    pub(crate) fn product_arguments(
        &self,
        fused: &FusedProduct,
    ) -> Result<(LinearArgs, PackedShape), BackendError> {
        let nodes = self.graph.nodes();
        let first = &nodes[fused.products[0]];
        let shape = self.weight(first)?.shape;
        let mut a = LinearArgs::zeroed();
        let operand = self.product_rows(fused);
        let (rows, k) = self.rows(operand);
        let (ranges, pairs_per_range) = ranges(&shape);
        (a.x, a.rows, a.k) = (self.address(operand), rows as u32, k as u32);
        (a.pairs, a.ranges) = (shape.pairs() as u32, ranges as u32);
        a.pairs_per_range = pairs_per_range as u32;
        if let Some(norm) = fused.norm
            && let Op::RmsNorm(op) = &nodes[norm].op
        {
            (a.norm, a.eps) = (self.address(nodes[norm].inputs[1]), op.eps);
        }
        if let Op::Linear(linear) = &first.op {
            a.activation = activation_code(linear.activation);
        }
        if let Some((sum, operand)) = fused.residual {
            a.residual = self.address(nodes[sum].inputs[operand]);
        }
        if let Some(gate) = fused.gate
            && let Op::Gated(op) = &nodes[gate].op
        {
            (a.gated, a.activation) = (1, activation_code(Some(op.function)));
        }
        a.count = fused.products.len() as u32;
        // Gated products have one result.
        let results = fused.results().iter().cycle();
        let mut tiles = 0;
        for ((segment, product), result) in a.segments.iter_mut().zip(&fused.products).zip(results)
        {
            let node = &nodes[*product];
            let weight = self.weight(node)?;
            *segment = Segment {
                codes: weight.codes(),
                scales: weight.scales(),
                bias: node.inputs.get(2).map_or(0, |bias| self.address(*bias)),
                out: self.address(nodes[*result].output),
                n: weight.shape.n as u32,
                tiles: weight.shape.tiles() as u32,
            };
            tiles += segment.tiles;
        }
        if fused.gate.is_some() {
            tiles = a.segments[0].tiles;
        }
        a.tiles = tiles;
        Ok((a, shape))
    }

    /// The rows of products, before their norm.
    pub(crate) fn product_rows(&self, fused: &FusedProduct) -> TensorId {
        let first = fused.norm.unwrap_or(fused.products[0]);
        self.graph.nodes()[first].inputs[0]
    }

    /// The kernels of products with what is fused into them.
    pub(crate) fn products(&self, fused: &FusedProduct) -> Result<Vec<Launch>, BackendError> {
        let (mut a, shape) = self.product_arguments(fused)?;
        let (rows, tiles, ranges) = (a.rows as usize, a.tiles, a.ranges as usize);
        let gates = if fused.gate.is_some() { 2 } else { 1 };
        let unit = Unit::Linear(shape.format);
        let multiprocessors = self.device.facts.multiprocessors;
        let variant = Variant::new(rows, &shape, gates, &self.device.facts);
        if let Variant::Few(shared) = variant {
            // The grid has as many blocks as the device runs at once, and divides the tiles evenly among them.
            let warps = (gates * ranges) as u32;
            let at_once = multiprocessors * (RESIDENT_WARPS / warps).max(1);
            let each = tiles.div_ceil(at_once).clamp(1, tiles.max(1));
            let function = self.device.function(unit, "linear_few")?;
            let grid = [tiles.div_ceil(each), 1];
            let launch = Launch::new(function, grid, warps * 32, shared as u32, &a);
            return Ok(vec![launch]);
        }
        let slot = self.memory.scratch(fused.products[0]);
        a.staged = self.addresses.arena + slot.expect("the plan has staged rows").offset as u64;
        let many = matches!(variant, Variant::Many(_));
        a.swizzled = (many && reads_swizzled(&shape, &self.device.facts)).into();
        let function = self.device.function(unit, "stage_rows")?;
        let stage = Launch::new(function, [rows.next_multiple_of(8) as u32, 1], 256, 0, &a);
        let launch = match variant {
            Variant::Many(shared) => {
                let function = self.device.function(unit, "linear_many")?;
                let down = tiles.div_ceil(MANY_TILES / gates as u32);
                let (down, threads) = match a.swizzled {
                    1 => (down.next_multiple_of(CLUSTER), MANY_THREADS_COPYING),
                    _ => (down, MANY_THREADS),
                };
                let grid = [rows.div_ceil(MANY_ROWS) as u32, down];
                Launch::new(function, grid, threads, shared as u32, &a)
            }
            _ => {
                let function = self.device.function(unit, "linear_several")?;
                let units = tiles.div_ceil(if gates == 2 { 1 } else { 2 });
                let grid = [units, rows.div_ceil(SEVERAL_ROWS) as u32];
                let shared = ranges * 2 * SEVERAL_ROWS * 16 * 4;
                Launch::new(function, grid, ranges as u32 * 32, shared as u32, &a)
            }
        };
        Ok(vec![stage, launch])
    }
}

/// The fusions that the kernels support, by the formats of the graph's packed weights.
struct ProductSupport<'a> {
    graph: &'a Graph,
    format: &'a dyn Fn(TensorId) -> Option<DeviceFormat>,
}

impl ProductSupport<'_> {
    fn format(&self, product: usize) -> Option<DeviceFormat> {
        (self.format)(self.graph.nodes()[product].inputs[1])
    }
}

impl FusionSupport for ProductSupport<'_> {
    fn max_products(&self) -> usize {
        LinearArgs::zeroed().segments.len()
    }

    fn shares_rows(&self, first: usize, other: usize) -> bool {
        let nodes = self.graph.nodes();
        let format = self.format(first);
        format.is_some() && format == self.format(other) && nodes[first].op == nodes[other].op
    }

    fn norm(&self, product: usize, norm: &Op) -> bool {
        matches!(norm, Op::RmsNorm(_)) && self.format(product).is_some()
    }

    fn gate(&self, product: usize) -> bool {
        let op = &self.graph.nodes()[product].op;
        matches!(op, Op::Linear(linear) if linear.activation.is_none())
    }

    fn residual(&self, product: usize, _: bool) -> bool {
        self.format(product).is_some()
    }

    fn rotation(&self, _: usize) -> bool {
        true
    }
}

/// The ops of a graph and the memory plan of their results. `format` returns the format of a packed weight.
pub(crate) fn plan_ops(
    graph: &Graph,
    bindings: Bindings,
    executor: ExecutorKind,
    format: &dyn Fn(TensorId) -> Option<DeviceFormat>,
    facts: &DeviceFacts,
) -> Result<(Vec<FusedOp>, MemoryPlan), BackendError> {
    let ops = match executor {
        ExecutorKind::Compiled => fuse(graph, &bindings, &ProductSupport { graph, format }),
        ExecutorKind::Interpreted => fuse(graph, &bindings, &NoFusion),
    };
    let mut scratch = vec![0; graph.nodes().len()];
    for op in &ops {
        if let FusedKind::Product(fused) = &op.kind {
            let first = fused.products[0];
            scratch[first] = staged_bytes(graph, &graph.nodes()[first], &bindings, facts);
        }
        let last = op.nodes.end - 1;
        if let node = &graph.nodes()[last]
            && let Op::Experts(_) = node.op
        {
            scratch[last] = experts::scratch_bytes(graph, node, &bindings);
        }
    }
    let plan = MemoryPlan::fused(graph, bindings, |node| scratch[node], &ops)?;
    Ok((ops, plan))
}
