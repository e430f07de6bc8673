//! The kernel calls of routed experts.
//!
//! The choice of a row is on the device only: the lists of each expert's rows are made there, and a grid has a block for every chunk of
//! rows that there may be. So a captured graph replays with any choice.

use crate::arguments::{
    CombineArgs, ExpertArgs, ExpertChunk, ExpertLists, GatedRowsArgs, LinearArgs, ListArgs,
    RouteArgs, Segment,
};
use crate::calls::{CallMaker, activation_code};
use crate::compile::Unit;
use crate::launch::Launch;
use crate::products::ranges;
use crate::weights::PackedShape;
use backend::BackendError;
use bytemuck::Zeroable;
use graph::ops::{ExpertGate, ExpertScores, Experts, Op, RouteExperts};
use graph::{Bindings, Graph, Node, TensorId, TensorKind};

/// Pairs of a chunk in steps whose rows fit into one, and in others.
const FEW_PAIRS: usize = 8;
const SEVERAL_PAIRS: usize = 32;
/// The number of the clamped swish in the kernels; other gates have the numbers of activations.
const GATE_CLAMPED_SWISH: u32 = 255;
/// Threads of the block that lists the rows of experts.
const LIST_THREADS: u32 = 1024;
/// The operands of `Op::Experts` that are matrices: gate, up and down.
pub(crate) const MATRICES: [usize; 3] = [2, 3, 4];
/// The operand that is the first of their biases.
const FIRST_BIAS: usize = 5;

/// The sizes of a node of experts.
#[derive(Clone, Copy)]
struct ExpertSizes {
    rows: usize,
    /// Number of experts.
    count: usize,
    /// Experts that a row may have: those that its routing chooses, or all if the weights come from elsewhere.
    slots: usize,
    /// Elements of a row between the products, and of a result.
    inner: usize,
    width: usize,
    /// The packed gate, up and down matrices.
    shapes: [PackedShape; 3],
}

/// Where the parts of a node's scratch begin, in bytes.
struct ExpertScratch {
    chunks: usize,
    pairs: usize,
    experts: usize,
    /// Rows of x as the products with gate and up read them.
    staged: [usize; 2],
    /// Results of gate and up, the rows made of them as the product with down reads them, and its results.
    hidden: [usize; 2],
    staged_hidden: usize,
    products: usize,
    bytes: usize,
}

impl ExpertSizes {
    fn new(graph: &Graph, node: &Node, bindings: &Bindings) -> Option<ExpertSizes> {
        let dims = |operand: usize| graph.tensor(node.inputs[operand]).ty.dims(bindings);
        let [gate, up, down] = MATRICES.map(|i| PackedShape::of(graph, node.inputs[i]));
        let shapes = [gate?, up?, down?];
        let weights = dims(1)?;
        let (count, outer) = weights.split_last()?;
        Some(ExpertSizes {
            rows: outer.iter().product(),
            count: *count,
            slots: chosen(graph, node.inputs[1]).unwrap_or(*count).min(*count),
            inner: shapes[0].n / (*count).max(1),
            width: shapes[2].n / (*count).max(1),
            shapes,
        })
    }

    fn pairs(&self) -> usize {
        self.rows * self.slots
    }

    /// Pairs of a chunk. All rows of an expert are in one chunk if they are few.
    fn chunk(&self) -> usize {
        match self.rows <= FEW_PAIRS {
            true => FEW_PAIRS,
            false => SEVERAL_PAIRS,
        }
    }

    fn most_chunks(&self) -> usize {
        most_chunks(self.pairs(), self.count, self.chunk())
    }

    fn scratch(&self) -> ExpertScratch {
        let mut at = 0;
        let mut part = |bytes: usize| {
            let start = at;
            at += bytes.next_multiple_of(256);
            start
        };
        // The number of chunks lies before them.
        part(size_of::<u32>());
        let words = self.pairs() * size_of::<u32>();
        let [_, _, down] = &self.shapes;
        ExpertScratch {
            chunks: part(self.most_chunks() * size_of::<ExpertChunk>()),
            pairs: part(words),
            experts: part(words),
            staged: [0, 1].map(|i| match self.one_staging() && i == 1 {
                true => 0,
                false => part(staged_bytes(self.rows, &self.shapes[i])),
            }),
            hidden: [0, 1].map(|_| part(words * self.inner)),
            staged_hidden: part(staged_bytes(self.pairs(), down)),
            products: part(words * self.width),
            bytes: at,
        }
    }

    /// Whether gate and up have one format, so that they read the same staged rows in one kernel.
    fn one_staging(&self) -> bool {
        self.shapes[0].format == self.shapes[1].format
    }
}

/// Experts that the routing chooses for a row; `None` if the weights are another op's.
fn chosen(graph: &Graph, mut id: TensorId) -> Option<usize> {
    while let TensorKind::Value(maker) = graph.tensor(id).kind {
        let node = &graph.nodes()[maker.0 as usize];
        match &node.op {
            Op::RouteExperts(route) => return Some(route.used),
            Op::Reshape(_) => id = node.inputs[0],
            _ => return None,
        }
    }
    None
}

/// Bytes of staged rows: eight rows of a part of a pair of blocks are 1,024 bytes.
fn staged_bytes(rows: usize, shape: &PackedShape) -> usize {
    rows.next_multiple_of(8) * shape.pairs() * shape.format.x_parts() * 128
}

/// Bytes of scratch of a node; 0 if it has no experts.
pub(crate) fn scratch_bytes(graph: &Graph, node: &Node, bindings: &Bindings) -> usize {
    let Op::Experts(_) = node.op else { return 0 };
    let sizes = ExpertSizes::new(graph, node, bindings);
    sizes.map_or(0, |sizes| sizes.scratch().bytes)
}

/// Bytes of weights that a node of experts reads, if rows choose different ones, and its multiply-accumulates.
pub(crate) fn work(graph: &Graph, node: &Node, used: usize, bindings: &Bindings) -> (u64, u64) {
    let Some(sizes) = ExpertSizes::new(graph, node, bindings) else {
        return (0, 0);
    };
    let pairs = sizes.rows * used.min(sizes.count);
    let read = pairs.min(sizes.count);
    let per_expert = |total: usize| (total / sizes.count.max(1)) as u64;
    let shapes = sizes.shapes.iter();
    shapes.fold((0, 0), |(bytes, macs), shape| {
        (
            bytes + read as u64 * per_expert(shape.bytes()),
            macs + pairs as u64 * per_expert(shape.n * shape.k),
        )
    })
}

/// The most chunks that pairs are listed in: an expert has at most one that is not full.
fn most_chunks(pairs: usize, experts: usize, chunk: usize) -> usize {
    pairs.min(experts) + pairs / chunk
}

/// Tiles that the `n` rows of one expert lie in, at most: they begin at a multiple of the largest power of two in `n`.
fn most_tiles(n: usize) -> usize {
    let first = 16 - (1 << n.trailing_zeros().min(4));
    (first + n).div_ceil(16)
}

fn gate_code(gate: ExpertGate) -> (u32, [f32; 2]) {
    match gate {
        ExpertGate::Gated(activation) => (activation_code(Some(activation)), [0.0; 2]),
        ExpertGate::ClampedSwish { alpha, limit } => (GATE_CLAMPED_SWISH, [alpha, limit]),
    }
}

impl CallMaker<'_> {
    pub(crate) fn route_experts(
        &self,
        node: &Node,
        op: &RouteExperts,
    ) -> Result<Vec<Launch>, BackendError> {
        let (rows, experts) = self.rows(node.inputs[0]);
        let shared = 4 * experts * size_of::<f32>();
        if shared > self.device.facts.shared_memory {
            return Err(self.unsupported(node, &format!("it chooses among {experts} experts")));
        }
        let arguments = RouteArgs {
            logits: self.address(node.inputs[0]),
            bias: node.inputs.get(1).map_or(0, |bias| self.address(*bias)),
            out: self.address(node.output),
            rows: rows as u32,
            experts: experts as u32,
            used: op.used as u32,
            sigmoid: (op.scores == ExpertScores::Sigmoid).into(),
            normalise: op.normalise.into(),
            groups: op.groups.map_or(0, |groups| groups.count) as u32,
            used_groups: op.groups.map_or(0, |groups| groups.used) as u32,
            scale: op.scale,
        };
        let function = self.device.function(Unit::General, "route_experts")?;
        let grid = [rows as u32, 1];
        Ok(vec![Launch::new(
            function,
            grid,
            32,
            shared as u32,
            &arguments,
        )])
    }

    pub(crate) fn experts(
        &self,
        index: usize,
        node: &Node,
        op: &Experts,
    ) -> Result<Vec<Launch>, BackendError> {
        let weights = MATRICES.map(|i| self.constants.packed(node.inputs[i]));
        let sizes = ExpertSizes::new(self.graph, node, &self.memory.bindings);
        let (Some(sizes), [Some(gate), Some(up), Some(down)]) = (sizes, weights) else {
            return Err(self.unsupported(node, "its weights are not constants"));
        };
        let listed = 2 * sizes.count * size_of::<u32>();
        if listed > self.device.facts.shared_memory {
            let reason = format!("it has {} experts", sizes.count);
            return Err(self.unsupported(node, &reason));
        }
        if sizes.rows == 0 {
            return Ok(vec![]);
        }
        let slot = self.memory.scratch(index);
        let scratch = slot.expect("the plan has the lists of experts");
        let base = self.addresses.arena + scratch.offset as u64;
        let parts = sizes.scratch();
        let at = |part: usize| base + part as u64;
        let lists = ExpertLists {
            chunk_count: base,
            chunks: at(parts.chunks),
            pairs: at(parts.pairs),
            experts: at(parts.experts),
        };
        let bias = |i: usize| {
            let bias = node.inputs.get(FIRST_BIAS + i);
            bias.map_or(0, |bias| self.address(*bias))
        };
        let segment = |i: usize, out: u64| {
            let weight = [gate, up, down][i];
            let n = weight.shape.n / sizes.count;
            Segment {
                codes: weight.codes(),
                scales: weight.scales(),
                bias: bias(i),
                out,
                n: n as u32,
                tiles: most_tiles(n) as u32,
            }
        };
        let mut launches = vec![];
        let list = ListArgs {
            weights: self.address(node.inputs[1]),
            lists,
            rows: sizes.rows as u32,
            experts: sizes.count as u32,
            slots: sizes.slots as u32,
            chunk: sizes.chunk() as u32,
        };
        let function = self.device.function(Unit::General, "list_experts")?;
        let launch = Launch::new(function, [1, 1], LIST_THREADS, listed as u32, &list);
        launches.push(launch);
        // Gate and up.
        let hidden = parts.hidden.map(at);
        let segments = [0, 1].map(|i| segment(i, hidden[i]));
        let groups: &[&[Segment]] = match sizes.one_staging() {
            true => &[&segments],
            false => &[&segments[..1], &segments[1..]],
        };
        for (i, segments) in groups.iter().enumerate() {
            let mut linear = expert_linear(&sizes.shapes[i], segments);
            linear.x = self.address(node.inputs[0]);
            linear.rows = sizes.rows as u32;
            linear.staged = at(parts.staged[i]);
            let function = self
                .device
                .function(Unit::Linear(sizes.shapes[i].format), "stage_rows")?;
            let grid = [sizes.rows.next_multiple_of(8) as u32, 1];
            launches.push(Launch::new(function, grid, 256, 0, &linear));
            launches.push(self.expert_products(&sizes, i, linear, (lists, sizes.slots))?);
        }
        // Down.
        let (function, [alpha, limit]) = gate_code(op.function);
        let shape = &sizes.shapes[2];
        let gated = GatedRowsArgs {
            gate: hidden[0],
            up: hidden[1],
            staged: at(parts.staged_hidden),
            rows: sizes.pairs() as u32,
            k: sizes.inner as u32,
            pairs: shape.pairs() as u32,
            function,
            alpha,
            limit,
        };
        let function = self
            .device
            .function(Unit::Linear(shape.format), "stage_gated_rows")?;
        let grid = [sizes.pairs().next_multiple_of(8) as u32, 1];
        launches.push(Launch::new(function, grid, 256, 0, &gated));
        let mut linear = expert_linear(shape, &[segment(2, at(parts.products))]);
        linear.rows = sizes.pairs() as u32;
        linear.staged = at(parts.staged_hidden);
        launches.push(self.expert_products(&sizes, 2, linear, (lists, 1))?);
        let combine = CombineArgs {
            weights: self.address(node.inputs[1]),
            products: at(parts.products),
            pair_experts: lists.experts,
            out: self.address(node.output),
            rows: sizes.rows as u32,
            experts: sizes.count as u32,
            slots: sizes.slots as u32,
            n: sizes.width as u32,
        };
        let function = self.device.function(Unit::General, "combine_experts")?;
        let grid = [sizes.rows as u32, sizes.width.div_ceil(256) as u32];
        launches.push(Launch::new(function, grid, 256, 0, &combine));
        Ok(launches)
    }

    /// The products of the pairs with the matrices of their experts. The staged row of a pair is its number divided by `slots`.
    fn expert_products(
        &self,
        sizes: &ExpertSizes,
        matrix: usize,
        linear: LinearArgs,
        (lists, slots): (ExpertLists, usize),
    ) -> Result<Launch, BackendError> {
        let arguments = ExpertArgs {
            linear,
            lists,
            slots: slots as u32,
            unused: 0,
        };
        let chunk = sizes.chunk();
        let kernel = match chunk {
            FEW_PAIRS => "experts_few",
            _ => "experts_several",
        };
        let unit = Unit::Linear(sizes.shapes[matrix].format);
        let function = self.device.function(unit, kernel)?;
        let units = linear.count * linear.tiles;
        let grid = [units.div_ceil(2), sizes.most_chunks() as u32];
        let ranges = linear.ranges;
        let shared = ranges as usize * 2 * chunk * 16 * size_of::<f32>();
        let threads = ranges * 32;
        Ok(Launch::new(
            function,
            grid,
            threads,
            shared as u32,
            &arguments,
        ))
    }
}

/// The arguments of a product with matrices of experts, without its rows.
fn expert_linear(shape: &PackedShape, segments: &[Segment]) -> LinearArgs {
    let mut a = LinearArgs::zeroed();
    let (ranges, pairs_per_range) = ranges(shape);
    (a.k, a.pairs) = (shape.k as u32, shape.pairs() as u32);
    (a.ranges, a.pairs_per_range) = (ranges as u32, pairs_per_range as u32);
    a.segments[..segments.len()].copy_from_slice(segments);
    a.count = segments.len() as u32;
    a.tiles = segments[0].tiles;
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_choice_has_more_chunks_than_the_grid() {
        for (experts, chunk) in [(1usize, 8usize), (3, 8), (5, 32), (128, 32)] {
            for pairs in [1usize, 7, 8, 9, 40, 500] {
                // All pairs of one expert, spread evenly, and one for each expert but the first.
                let one = pairs.div_ceil(chunk);
                let even = (0..experts).map(|i| ((pairs + i) / experts).div_ceil(chunk));
                let others = pairs.min(experts) - 1;
                let uneven = others + (pairs - others).div_ceil(chunk);
                let most = one.max(even.sum()).max(uneven);
                assert!(most <= most_chunks(pairs, experts, chunk));
            }
        }
    }

    /// The tiles of the experts' rows, counted.
    #[test]
    fn most_tiles_are_those_of_the_worst_placed_expert() {
        for n in 1..70 {
            let tiles = |expert: usize| ((expert + 1) * n).div_ceil(16) - expert * n / 16;
            assert_eq!(most_tiles(n), (0..64).map(tiles).max().unwrap(), "{n}");
        }
    }
}
