//! `Devices`: a graph on several devices, of which each runs the nodes that it has kernels for.

use crate::{
    Backend, BackendError, CacheStep, CompileOptions, Executable, Footprint, FootprintRequest,
    NodeProfile, TraceCallback,
};
use base::{Bytes, MemoryBound};
use graph::ops::Op;
use graph::plan::MemoryPlan;
use graph::{Graph, Node, NodeId, Piece, TensorId, Value, ValueRef};
use kv::{CacheConfig, FrozenKv, KvBytes, KvError, KvStorage};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Devices that are tried in order, node by node.
///
/// A graph whose nodes all have kernels on the first device runs there as it does without the others. Any other graph is divided into
/// the convex pieces of [`Graph::pieces`]; their operands pass through the host's memory. A piece without a product, a convolution or
/// attention is not worth the copies, and joins its neighbours on the next device that has its kernels. Caches belong to the first device,
/// so nodes that use them run there or are refused by it.
pub struct Devices {
    devices: Vec<Arc<dyn Backend>>,
}

/// Where a piece of a graph runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PiecePlacement {
    /// The name of the device's backend.
    pub device: &'static str,
    /// The nodes, in execution order.
    pub nodes: Vec<NodeId>,
    /// Tensors that are copied to the device, and from it: inputs and outputs of the graph, and those of other pieces.
    pub copied: [Vec<TensorId>; 2],
}

impl Devices {
    /// Devices that are tried in this order.
    ///
    /// # Panics
    /// Without a device.
    pub fn new(devices: Vec<Arc<dyn Backend>>) -> Devices {
        assert!(!devices.is_empty(), "a graph needs a device");
        Devices { devices }
    }

    /// The pieces of a graph and their devices, in the order in which they run.
    ///
    /// # Errors
    /// If a piece is no valid graph, which is a defect of the division.
    pub fn placement(&self, graph: &Graph) -> Result<Vec<PiecePlacement>, BackendError> {
        let pieces = graph.pieces(&self.device_of(graph))?;
        let placement = |piece: Piece| PiecePlacement {
            device: self.devices[piece.device].id(),
            nodes: piece.nodes,
            copied: [piece.inputs, piece.outputs],
        };
        Ok(pieces.into_iter().map(placement).collect())
    }

    fn has_kernel(&self, device: usize, graph: &Graph, node: &Node) -> bool {
        match uses_cache(graph, node) {
            true => device == 0,
            false => self.devices[device].has_kernel(graph, node),
        }
    }

    /// The device of each node. A node for which none has a kernel is left to the last one, which refuses it.
    fn device_of(&self, graph: &Graph) -> Vec<usize> {
        let last = self.devices.len() - 1;
        let from = |first: usize, node: &Node| {
            let mut later = first..last;
            later
                .find(|device| self.has_kernel(*device, graph, node))
                .unwrap_or(last)
        };
        let nodes = graph.nodes();
        let mut device_of: Vec<usize> = nodes.iter().map(|node| from(0, node)).collect();
        loop {
            let pieces = graph.piece_nodes(&device_of);
            let is_light = |nodes: &[NodeId]| {
                let is_heavy = |id: &NodeId| {
                    let node = graph.node(*id);
                    is_heavy(&node.op) || uses_cache(graph, node)
                };
                pieces.len() > 1 && !nodes.iter().any(is_heavy)
            };
            let mut moved = false;
            for (device, nodes) in pieces.iter().filter(|(device, _)| *device < last) {
                if !is_light(nodes) {
                    continue;
                }
                let next = |id: &NodeId| from(device + 1, graph.node(*id));
                let next = nodes.iter().map(next).max().unwrap_or(last);
                let fits = |id: &NodeId| self.has_kernel(next, graph, graph.node(*id));
                if nodes.iter().all(fits) {
                    nodes.iter().for_each(|id| device_of[id.0 as usize] = next);
                    moved = true;
                    break;
                }
            }
            if !moved {
                return device_of;
            }
        }
    }
}

fn uses_cache(graph: &Graph, node: &Node) -> bool {
    let types: Vec<_> = node.inputs.iter().map(|id| &graph.tensor(*id).ty).collect();
    node.op.cache(&types).is_some()
}

/// Whether an op computes more than it reads.
fn is_heavy(op: &Op) -> bool {
    matches!(
        op,
        Op::Linear(_) | Op::MatMul(_) | Op::Conv(_) | Op::Attention(_) | Op::Experts(_)
    )
}

impl Backend for Devices {
    fn id(&self) -> &'static str {
        self.devices[0].id()
    }

    fn kernels(&self) -> String {
        let names: Vec<String> = self.devices.iter().map(|d| d.kernels()).collect();
        names.join(" and ")
    }

    fn compile(
        &self,
        graph: Arc<Graph>,
        options: &CompileOptions,
    ) -> Result<Box<dyn Executable>, BackendError> {
        let device_of = self.device_of(&graph);
        if let Some(first) = device_of.first()
            && device_of.iter().all(|device| device == first)
        {
            return self.devices[*first].compile(graph, options);
        }
        let pieces = graph.pieces(&device_of)?;
        let needed = |from: usize| -> HashSet<TensorId> {
            let later = pieces[from..].iter().flat_map(|piece| &piece.inputs);
            later.chain(graph.outputs()).copied().collect()
        };
        let compile = |(index, piece): (usize, &Piece)| {
            let own = Arc::new(piece.graph.clone());
            let mut nodes = own.nodes().iter();
            let attends = nodes.any(|node| uses_cache(&own, node));
            let later = needed(index + 1);
            let executable = self.devices[piece.device].compile(own, options)?;
            let released = piece.inputs.iter().filter(|id| !later.contains(*id));
            Ok(CompiledPiece {
                executable,
                attends,
                inputs: piece.inputs.clone(),
                outputs: piece.outputs.clone(),
                released: released.copied().collect(),
            })
        };
        let compiled: Result<Vec<CompiledPiece>, BackendError> =
            pieces.iter().enumerate().map(compile).collect();
        let pieces = compiled?;
        Ok(Box::new(DividedExecutable { graph, pieces }))
    }

    fn has_kernel(&self, graph: &Graph, node: &Node) -> bool {
        (0..self.devices.len()).any(|device| self.has_kernel(device, graph, node))
    }

    fn new_kv(&self, config: &CacheConfig) -> Result<Box<dyn KvBytes>, KvError> {
        self.devices[0].new_kv(config)
    }

    fn freeze_rows(
        &self,
        config: &CacheConfig,
        cells: &[u32],
        rows: &[[Bytes; 2]],
    ) -> Result<Arc<dyn FrozenKv>, KvError> {
        self.devices[0].freeze_rows(config, cells, rows)
    }

    fn footprint(
        &self,
        graph: &Graph,
        request: &FootprintRequest<'_>,
    ) -> Result<Footprint, BackendError> {
        let device_of = self.device_of(graph);
        if device_of.iter().all(|device| *device == 0) {
            return self.devices[0].footprint(graph, request);
        }
        let mut whole = Footprint {
            // Every piece has an arena of its own, and none needs more than a plan of the whole graph.
            arena: MemoryPlan::new(graph, request.bindings, |_| 0)?,
            packed: vec![],
            host: vec![],
            mapped: vec![],
            experts: None,
            kv: request.kv_layout(),
        };
        for Piece {
            device,
            graph: own,
            tensors,
            ..
        } in graph.pieces(&device_of)?
        {
            let is_weight = |id: TensorId| (request.is_weight)(tensors[id.0 as usize]);
            let part = self.devices[device].footprint(
                &own,
                &FootprintRequest {
                    bindings: request.bindings,
                    options: request.options,
                    is_weight: &is_weight,
                    cache: request.cache,
                },
            )?;
            let in_whole = |(id, bytes): (TensorId, usize)| (tensors[id.0 as usize], bytes);
            whole.packed.extend(part.packed.into_iter().map(in_whole));
            whole.host.extend(part.host.into_iter().map(in_whole));
            whole.mapped.extend(part.mapped.into_iter().map(in_whole));
        }
        Ok(whole)
    }

    fn stores(&self, storage: KvStorage) -> bool {
        self.devices.iter().all(|device| device.stores(storage))
    }

    fn sees_first_positions(&self) -> bool {
        self.devices
            .iter()
            .all(|device| device.sees_first_positions())
    }

    fn free_memory(&self) -> Option<u64> {
        self.devices[0].free_memory()
    }

    fn shared(&self) -> Option<Arc<dyn Backend>> {
        let devices: Option<Vec<_>> = self.devices.iter().map(|d| d.shared()).collect();
        Some(Arc::new(Devices::new(devices?)))
    }

    fn memory_bound(&self) -> MemoryBound {
        self.devices[0].memory_bound()
    }

    fn has_own_memory(&self) -> bool {
        self.devices[0].has_own_memory()
    }
}

struct CompiledPiece {
    executable: Box<dyn Executable>,
    /// Whether it uses caches.
    attends: bool,
    inputs: Vec<TensorId>,
    outputs: Vec<TensorId>,
    /// The inputs that nothing reads after the piece.
    released: Vec<TensorId>,
}

/// The pieces of a graph, each compiled for its device.
struct DividedExecutable {
    graph: Arc<Graph>,
    pieces: Vec<CompiledPiece>,
}

impl Executable for DividedExecutable {
    fn takes(&self, bytes: &dyn KvBytes) -> Result<(), BackendError> {
        let mut attending = self.pieces.iter().filter(|piece| piece.attends);
        attending.try_for_each(|piece| piece.executable.takes(bytes))
    }

    fn run(
        &mut self,
        inputs: &[Value],
        mut cache: Option<CacheStep<'_>>,
        mut trace: Option<TraceCallback<'_>>,
    ) -> Result<Vec<Value>, BackendError> {
        let graph = self.graph.clone();
        let given: HashMap<TensorId, &Value> = graph.inputs().iter().copied().zip(inputs).collect();
        let mut computed: HashMap<TensorId, Value> = HashMap::new();
        for piece in &mut self.pieces {
            let value = |id: &TensorId| match given.get(id) {
                Some(value) => *value,
                None => &computed[id],
            };
            let values: Vec<&Value> = piece.inputs.iter().map(value).collect();
            let cache = match &mut cache {
                Some(step) if piece.attends => Some(CacheStep {
                    plan: step.plan,
                    bytes: &mut *step.bytes,
                }),
                _ => None,
            };
            let mut results = Vec::with_capacity(piece.outputs.len());
            match &mut trace {
                Some(trace) => {
                    let values: Vec<Value> = values.into_iter().cloned().collect();
                    results = piece.executable.run(&values, cache, Some(&mut **trace))?;
                }
                None => {
                    let views: Vec<ValueRef<'_>> = values.into_iter().map(Value::view).collect();
                    let mut output = |_: usize, view: ValueRef<'_>| results.push(view.to_value());
                    piece.executable.run_borrowed(&views, cache, &mut output)?;
                }
            }
            for id in &piece.released {
                computed.remove(id);
            }
            computed.extend(piece.outputs.iter().copied().zip(results));
        }
        let output = |id: &TensorId| match (given.get(id), graph.tensor(*id).constant()) {
            (Some(value), _) => (*value).clone(),
            (None, Some(bytes)) => crate::reference::constant_value(graph.tensor(*id), bytes),
            (None, None) => computed[id].clone(),
        };
        Ok(graph.outputs().iter().map(output).collect())
    }

    fn set_profiling(&mut self, on: bool) {
        let pieces = self.pieces.iter_mut();
        pieces.for_each(|piece| piece.executable.set_profiling(on));
    }

    fn profile(&self) -> Vec<NodeProfile> {
        let pieces = self.pieces.iter();
        pieces
            .flat_map(|piece| piece.executable.profile())
            .collect()
    }

    fn arena_bytes(&self) -> usize {
        let pieces = self.pieces.iter();
        pieces.map(|piece| piece.executable.arena_bytes()).sum()
    }

    fn packed_bytes(&self) -> usize {
        let pieces = self.pieces.iter();
        pieces.map(|piece| piece.executable.packed_bytes()).sum()
    }
}
