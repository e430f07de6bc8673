//! The persistent kernel for decode steps, `kernels/persistent.cu`: a run of consecutive ops becomes one launch,
//! whose blocks stay resident.

use crate::arguments::{AttendArgs, LinearArgs, PersistentArgs, PersistentOp};
use crate::attention::{attention_shared, rotations};
use crate::calls::CallMaker;
use crate::compile::Unit;
use crate::device::{Buffer, Device, DeviceFacts};
use crate::format::DeviceFormat;
use crate::launch::Launch;
use crate::weights::PackedShape;
use backend::BackendError;
use graph::ops::Op;
use graph::passes::{FusedKind, FusedOp, FusedProduct};
use graph::{Graph, Node, TensorId};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Threads and warps of a block.
const THREADS: u32 = 512;
const WARPS: usize = 16;
/// The longest row that a norm takes: its quads are in the registers of a block's threads.
const MAX_NORMED: usize = 4096;
/// The longest rope table that the kernel copies to shared memory.
const MAX_ROTATED: u32 = 256;
/// The most bytes of weights per op of a run, on average: separate launches read the weights of large products faster.
const MAX_OP_BYTES: usize = 3 << 20;
/// The fewest ops that are worth a persistent kernel.
const MIN_OPS: usize = 2;
/// Bytes before the flagged words: the number of the last launch and the counter of finished blocks.
const STATE_BYTES: usize = 128;

/// Whether a device has what the kernel needs.
fn is_supported(facts: &DeviceFacts) -> bool {
    facts.capability >= (9, 0)
}

/// Bytes of the kernel's state and of a step's flagged words: one word for each element that an op may compute.
pub(crate) fn flagged_bytes(graph: &Graph, facts: &DeviceFacts) -> usize {
    if !is_supported(facts) {
        return 0;
    }
    let words = graph.nodes().iter().map(|node| {
        let row_dims = match node.op {
            Op::Linear(_) => 1,
            Op::UpdateAndAttend(_) => 2,
            _ => return 0,
        };
        let dims = graph
            .tensor(node.output)
            .ty
            .shape
            .iter()
            .rev()
            .take(row_dims);
        let elements: usize = dims.map(|dim| dim.as_const().unwrap_or(0)).product();
        elements.next_multiple_of(4)
    });
    STATE_BYTES + 8 * words.sum::<usize>()
}

/// The calls of a step in which runs of ops are single kernels, and the lists of ops that these read.
pub(crate) struct PersistentStep {
    pub(crate) launches: Vec<Launch>,
    pub(crate) lists: Vec<Buffer>,
}

/// An op of a run.
struct RunOp {
    arguments: OpArguments,
    /// The flagged words of its operands; 0 for memory that an earlier kernel wrote.
    inputs: [u64; 3],
    /// Its results and their flagged words.
    outputs: Vec<(TensorId, u64)>,
}

enum OpArguments {
    Products(LinearArgs),
    Attention(AttendArgs),
}

/// The ops of a run while it is collected.
struct Run {
    ops: Vec<RunOp>,
    format: Option<DeviceFormat>,
    /// The flagged words of the tensors that the run's ops compute.
    words: HashMap<TensorId, u64>,
    next_word: u64,
    weight_bytes: usize,
    /// Bytes of shared memory of the largest product and of the largest attention.
    shared: [usize; 2],
    /// The index of the first node after the run.
    end: usize,
    /// A result of one row and the tensor that gathers it: the kernel stores the result there.
    gathered: Option<(TensorId, TensorId)>,
}

impl CallMaker<'_> {
    /// The calls of a step; `None` if no run of ops can be a single kernel.
    pub(crate) fn persistent(
        &self,
        ops: &[FusedOp],
        device: &Arc<Device>,
    ) -> Result<Option<PersistentStep>, BackendError> {
        if !is_supported(&device.facts) || self.addresses.flagged == 0 {
            return Ok(None);
        }
        let (mut launches, mut lists) = (Vec::new(), Vec::new());
        let mut rest = ops;
        while !rest.is_empty() {
            let (run, len) = self.run_at(rest)?;
            if run.ops.len() < MIN_OPS || run.weight_bytes > run.ops.len() * MAX_OP_BYTES {
                let (alone, behind) = rest.split_at(len.max(1));
                for op in alone {
                    let call = self.call(op)?;
                    launches.extend(call.into_iter().flat_map(|call| call.launches));
                }
                rest = behind;
                continue;
            }
            let (launch, list) = self.run_launch(&run, device)?;
            launches.push(launch);
            lists.push(list);
            rest = &rest[len..];
        }
        Ok((!lists.is_empty()).then_some(PersistentStep { launches, lists }))
    }

    /// The longest run from the first of these ops on, and its number of ops.
    fn run_at(&self, ops: &[FusedOp]) -> Result<(Run, usize), BackendError> {
        let mut run = Run {
            ops: vec![],
            format: None,
            words: HashMap::new(),
            next_word: self.addresses.flagged + STATE_BYTES as u64,
            weight_bytes: 0,
            shared: [0, 0],
            end: ops[0].nodes.start,
            gathered: None,
        };
        let mut len = 0;
        for op in ops {
            let node = &self.graph.nodes()[op.nodes.end - 1];
            let taken = match (&node.op, &op.kind) {
                (Op::Reshape(_), _) => true,
                (Op::UpdateAndAttend(_), _) => self.take_attention(&mut run, op),
                (_, FusedKind::Product(fused)) => self.take_products(&mut run, fused)?,
                (Op::GatherRows(_), _) => self.take_gather(&mut run, node),
                _ => false,
            };
            if !taken {
                break;
            }
            run.end = op.nodes.end;
            len += 1;
            if run.gathered.is_some() {
                break;
            }
        }
        Ok((run, len))
    }

    /// Adds products to a run, if the kernel can take them.
    fn take_products(&self, run: &mut Run, fused: &FusedProduct) -> Result<bool, BackendError> {
        let (linear, shape) = self.product_arguments(fused)?;
        let shared = [linear_shared(&shape), 0];
        let fits = linear.rows == 1
            && shape.k.is_multiple_of(4)
            && (fused.norm.is_none() || shape.k <= MAX_NORMED)
            && (linear.ranges * (1 + linear.gated)) as usize <= WARPS
            && run.format.is_none_or(|format| format == shape.format);
        if !fits || !run.has_room(shared, self.device.facts.shared_memory) {
            return Ok(false);
        }
        let nodes = self.graph.nodes();
        let x = self.product_rows(fused);
        let residual = fused
            .residual
            .map(|(sum, operand)| nodes[sum].inputs[operand]);
        let inputs = [Some(x), residual, None].map(|id| id.map_or(0, |id| self.words_of(run, id)));
        let results = fused.results().iter().zip(&linear.segments);
        let outputs = results.map(|(i, segment)| (nodes[*i].output, segment.n));
        run.format = Some(shape.format);
        let tiles = linear.segments.iter().map(|segment| segment.tiles as usize);
        let (codes, scales) = shape.format.tile_bytes();
        run.weight_bytes += tiles.sum::<usize>() * shape.pairs() * (codes + scales);
        run.push(
            OpArguments::Products(linear),
            inputs,
            outputs.collect(),
            shared,
        );
        Ok(true)
    }

    /// Adds attention to a run if the kernel supports it: it has one token, and the run computes its operands.
    fn take_attention(&self, run: &mut Run, fused: &FusedOp) -> bool {
        let nodes = self.graph.nodes();
        let node = &nodes[fused.nodes.end - 1];
        let Op::UpdateAndAttend(op) = &node.op else {
            return false;
        };
        let inner = fused.nodes.start..fused.nodes.end - 1;
        let attention = self.attention_arguments(op, fused);
        let a = attention.attend;
        let inputs = attention.operands.map(|id| self.words_of(run, id));
        let rows = (a.lot as usize + 1) * (a.key_dim + a.value_dim) as usize * 4;
        let shared = [0, attention_shared(a.key_dim as usize, false) + rows];
        // The kernel replaces a null rope table by an empty one (`rotated` is 0): both operands are rotated, or
        // neither.
        let fits = attention.alone
            && node.inputs.len() == 4
            && (a.table == 0) == (a.key_table == 0)
            && a.key_dim.is_multiple_of(4)
            && a.value_dim.is_multiple_of(4)
            && !inputs.contains(&0)
            && inner
                .into_iter()
                .all(|i| rotations(fused).contains(&i) || matches!(nodes[i].op, Op::Reshape(_)));
        if !fits || !run.has_room(shared, self.device.facts.shared_memory) {
            return false;
        }
        let outputs = vec![(node.output, a.heads * a.value_dim)];
        run.push(OpArguments::Attention(a), inputs, outputs, shared);
        true
    }

    /// Ends a run with the gathering of its result's only row.
    fn take_gather(&self, run: &mut Run, node: &Node) -> bool {
        let (from, to) = (node.inputs[0], node.output);
        let nodes = self.graph.nodes();
        let reads = nodes.iter().flat_map(|node| &node.inputs);
        let uses = reads.chain(self.graph.outputs()).filter(|id| **id == from);
        let last = run.ops.last().filter(|op| match op.arguments {
            OpArguments::Products(_) => op.outputs.iter().any(|(id, _)| *id == from),
            OpArguments::Attention(_) => false,
        });
        let fits =
            last.is_some() && uses.count() == 1 && self.rows(from).0 == 1 && self.rows(to).0 == 1;
        run.gathered = fits.then_some((from, to));
        fits
    }

    /// The tensor that another one is a reshape of.
    fn reshaped(&self, mut id: TensorId) -> TensorId {
        let nodes = self.graph.nodes();
        while let Some(node) = nodes.iter().find(|node| node.output == id)
            && let Op::Reshape(_) = node.op
        {
            id = node.inputs[0];
        }
        id
    }

    /// The flagged words of a tensor; 0 if an earlier kernel computes it.
    fn words_of(&self, run: &Run, id: TensorId) -> u64 {
        let words = run.words.get(&self.reshaped(id));
        words.copied().unwrap_or(0)
    }

    /// The kernel of a run and the list of its ops.
    fn run_launch(
        &self,
        run: &Run,
        device: &Arc<Device>,
    ) -> Result<(Launch, Buffer), BackendError> {
        let words = run.next_word - self.addresses.flagged;
        assert!(words as usize <= flagged_bytes(self.graph, &device.facts));
        // Results that are read after the run are also stored in plain memory.
        let behind = self.graph.nodes()[run.end..].iter();
        let read = behind
            .flat_map(|node| &node.inputs)
            .chain(self.graph.outputs());
        let mut read: HashSet<TensorId> = read.map(|id| self.reshaped(*id)).collect();
        let gathered = run.gathered.map(|(from, to)| (from, self.address(to)));
        read.extend(gathered.map(|(from, _)| from));
        let blocks = device.facts.multiprocessors;
        let ops: Vec<PersistentOp> = run
            .ops
            .iter()
            .map(|op| encoded(op, &read, gathered, blocks))
            .collect();
        let list = Buffer::new(device, size_of_val(&ops[..]))?;
        // SAFETY: the buffer has the list's size.
        unsafe { device.upload(list.address(), bytemuck::cast_slice(&ops))? };
        let format = run.format.expect("a run begins with products");
        let most_tiles = run.ops.iter().map(|op| match &op.arguments {
            OpArguments::Products(a) => a.tiles,
            OpArguments::Attention(_) => 0,
        });
        let attention = run.ops.iter().find_map(|op| match &op.arguments {
            OpArguments::Attention(a) => Some(a),
            OpArguments::Products(_) => None,
        });
        let tables = attention.filter(|a| a.rotated <= MAX_ROTATED);
        let arguments = PersistentArgs {
            ops: list.address(),
            state: self.addresses.flagged,
            count: ops.len() as u32,
            attend_offset: run.shared[0] as u32,
            tables: tables.map_or([0, 0], |a| [a.table, a.key_table]),
            rotated: tables.map_or(0, |a| a.rotated),
            most_tiles: most_tiles.max().unwrap_or(0),
        };
        let function = device.function(Unit::Persistent(format), "persistent_decode")?;
        let grid = [blocks, 1];
        let shared = shared_bytes(ops.len(), run.shared) as u32;
        let launch = Launch::new(function, grid, THREADS, shared, &arguments);
        Ok((launch.cooperative(), list))
    }
}

impl Run {
    /// Whether a further op with this much shared memory fits into that of a block.
    fn has_room(&self, shared: [usize; 2], most: usize) -> bool {
        let largest = [0, 1].map(|i| self.shared[i].max(shared[i]));
        shared_bytes(self.ops.len() + 1, largest) <= most
    }

    fn push(
        &mut self,
        arguments: OpArguments,
        inputs: [u64; 3],
        outputs: Vec<(TensorId, u32)>,
        shared: [usize; 2],
    ) {
        let outputs = outputs.into_iter().map(|(id, elements)| {
            let words = self.next_word;
            self.next_word += u64::from(elements.next_multiple_of(4)) * 8;
            self.words.insert(id, words);
            (id, words)
        });
        let op = RunOp {
            arguments,
            inputs,
            outputs: outputs.collect(),
        };
        self.ops.push(op);
        self.shared = [0, 1].map(|i| self.shared[i].max(shared[i]));
    }
}

/// Bytes of shared memory of a kernel: its ops, then that of its largest product and that of its largest attention.
fn shared_bytes(ops: usize, [linear, attention]: [usize; 2]) -> usize {
    (ops * size_of::<PersistentOp>()).next_multiple_of(128) + linear + attention
}

/// Bytes of shared memory of a product: sums of squares, two buffers of sums, the staged row.
fn linear_shared(shape: &PackedShape) -> usize {
    let row = shape.pairs() * shape.format.x_parts() * 128;
    ((2 * 8 + 2 * WARPS * 16) * 4 + row).next_multiple_of(128)
}

/// An op as a kernel of this many blocks reads it. Tensors in `read` are also stored in plain memory, the gathered one at its address.
fn encoded(
    op: &RunOp,
    read: &HashSet<TensorId>,
    gathered: Option<(TensorId, u64)>,
    blocks: u32,
) -> PersistentOp {
    let mut encoded = match &op.arguments {
        OpArguments::Products(a) => {
            let mut a = *a;
            for (segment, (id, _)) in a.segments.iter_mut().zip(&op.outputs) {
                if !read.contains(id) {
                    segment.out = 0;
                }
                if let Some((_, address)) = gathered.filter(|(from, _)| from == id) {
                    segment.out = address;
                }
            }
            let each = (a.ranges * (1 + a.gated)) as usize;
            let mut encoded = PersistentOp::new(&a);
            encoded.groups = (WARPS / each) as u32;
            encoded.parts = std::array::from_fn(|warp| warp_part(&a, warp, each, blocks));
            encoded
        }
        OpArguments::Attention(a) => {
            let mut a = *a;
            if !read.contains(&op.outputs[0].0) {
                a.out = 0;
            }
            let mut encoded = PersistentOp::new(&a);
            encoded.attends = 1;
            encoded
        }
    };
    encoded.inputs = op.inputs;
    for (words, (_, of_tensor)) in encoded.outputs.iter_mut().zip(&op.outputs) {
        *words = *of_tensor;
    }
    encoded
}

/// The bits of the kernel's `WarpPart` for a warp of a product with `each` warps per tile.
fn warp_part(a: &LinearArgs, warp: usize, each: usize, blocks: u32) -> u32 {
    let (group, within) = ((warp / each) as u32, (warp % each) as u32);
    // The warp has no work if no block has that many tiles.
    if group as usize >= WARPS / each || group * blocks >= a.tiles {
        return 0;
    }
    let (range, side) = (within % a.ranges, within / a.ranges);
    let first = range * a.pairs_per_range;
    let count = a.pairs_per_range.min(a.pairs - first);
    first | count << 12 | group << 24 | side << 28 | 1 << 29
}
