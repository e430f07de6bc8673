//! Weights in the device's layout, and the other constants of a graph.

use crate::arguments::PackArgs;
use crate::compile::Unit;
use crate::device::{Buffer, Device, Pinned};
use crate::error::CudaError;
use crate::experts::MATRICES;
use crate::format::DeviceFormat;
use crate::launch::Launch;
use backend::{BackendError, BackendErrorKind, CompileOptions};
use graph::ops::Op;
use graph::{Bindings, Graph, TensorId};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// The size of a packed weight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PackedShape {
    pub(crate) format: DeviceFormat,
    file: u32,
    pub(crate) n: usize,
    pub(crate) k: usize,
}

impl PackedShape {
    pub(crate) fn of(graph: &Graph, id: TensorId) -> Option<PackedShape> {
        let ty = &graph.tensor(id).ty;
        let &[n, k] = &ty.dims(&Default::default())?[..] else {
            return None;
        };
        let (format, file) = (DeviceFormat::of(ty.dtype)?, ty.dtype.number()?);
        Some(PackedShape { format, file, n, k })
    }

    /// Tiles of 16 rows.
    pub(crate) fn tiles(&self) -> usize {
        self.n.div_ceil(16)
    }

    /// Pairs of blocks, 64 columns each.
    pub(crate) fn pairs(&self) -> usize {
        self.k.div_ceil(64)
    }

    fn code_bytes(&self) -> usize {
        self.tiles() * self.pairs() * self.format.tile_bytes().0
    }

    /// Bytes of codes and scales.
    pub(crate) fn bytes(&self) -> usize {
        self.code_bytes() + self.tiles() * self.pairs() * self.format.tile_bytes().1
    }
}

/// A packed weight, which kernels read at an address of the device.
pub(crate) struct PackedWeight {
    pub(crate) shape: PackedShape,
    memory: WeightMemory,
}

/// Where a packed weight lies.
enum WeightMemory {
    Device(Buffer),
    /// The host's memory, and its address on the device.
    Host(Pinned, u64),
}

impl WeightMemory {
    fn address(&self) -> u64 {
        match self {
            WeightMemory::Device(buffer) => buffer.address(),
            WeightMemory::Host(_, address) => *address,
        }
    }

    /// Bytes in the device's memory and in the host's.
    fn bytes(&self) -> [usize; 2] {
        match self {
            WeightMemory::Device(buffer) => [buffer.len(), 0],
            WeightMemory::Host(pinned, _) => [0, pinned.len()],
        }
    }
}

impl PackedWeight {
    pub(crate) fn codes(&self) -> u64 {
        self.memory.address()
    }

    pub(crate) fn scales(&self) -> u64 {
        self.memory.address() + self.shape.code_bytes() as u64
    }
}

/// The weights of routed experts that stay in the host's memory: those of the first `layers` layers.
pub(crate) fn host_experts(graph: &Graph, layers: usize) -> BTreeSet<TensorId> {
    let mut ids = BTreeSet::new();
    let nodes = graph.nodes().iter();
    let experts = nodes.filter(|node| matches!(node.op, Op::Experts(_)));
    for (ordinal, node) in experts.enumerate() {
        let weights = MATRICES.map(|i| node.inputs[i]);
        let layer = layer_number(&graph.tensor(weights[0]).name).unwrap_or(ordinal);
        if layer < layers {
            ids.extend(weights);
        }
    }
    ids
}

/// The number of the layer in a weight's name: 3 in `blk.3.ffn_gate_exps.weight`.
fn layer_number(name: &str) -> Option<usize> {
    name.split('.').find_map(|part| part.parse().ok())
}

/// The constants of a graph on the device.
pub(crate) struct Constants {
    packed: HashMap<TensorId, PackedWeight>,
    plain: HashMap<TensorId, Buffer>,
}

/// The constants that are packed, with their layouts: weights of products and experts, and tables of rows that are packed exactly.
pub(crate) fn packed_shapes(
    graph: &Graph,
    is_weight: &dyn Fn(TensorId) -> bool,
) -> Vec<(TensorId, PackedShape)> {
    let mut ids = BTreeSet::new();
    for node in graph.nodes() {
        match &node.op {
            Op::Linear(_) => {
                ids.insert(node.inputs[1]);
            }
            Op::Experts(_) => ids.extend(MATRICES.map(|i| node.inputs[i])),
            Op::GatherRows(_) if DeviceFormat::is_exact(graph.tensor(node.inputs[0]).ty.dtype) => {
                ids.insert(node.inputs[0]);
            }
            _ => {}
        }
    }
    ids.into_iter()
        .filter(|id| is_weight(*id))
        .filter_map(|id| Some((id, PackedShape::of(graph, id)?)))
        .collect()
}

/// Bytes of the packed weights and of the other constants on the device, and of the packed weights in the host's memory.
pub(crate) fn placement(
    graph: &Graph,
    is_weight: &dyn Fn(TensorId) -> bool,
    bindings: &Bindings,
    host_expert_layers: usize,
) -> [Vec<(TensorId, usize)>; 2] {
    let in_host_memory = host_experts(graph, host_expert_layers);
    let shapes: BTreeMap<TensorId, PackedShape> =
        packed_shapes(graph, is_weight).into_iter().collect();
    let packed = shapes.iter().map(|(id, shape)| (*id, shape.bytes()));
    let (host, mut device): (BTreeMap<TensorId, usize>, BTreeMap<TensorId, usize>) =
        packed.partition(|(id, _)| in_host_memory.contains(id));
    let plain = plain_uses(graph);
    for (i, tensor) in graph.tensors().iter().enumerate() {
        let id = TensorId(i as u32);
        if is_weight(id) && (plain.contains(&id) || !shapes.contains_key(&id)) {
            *device.entry(id).or_default() += tensor.ty.bytes(bindings).unwrap_or(0);
        }
    }
    [device, host].map(|bytes| bytes.into_iter().collect())
}

impl Constants {
    /// Copies all constants to the device and packs the weights there.
    pub(crate) fn new(
        graph: &Graph,
        device: &Arc<Device>,
        options: &CompileOptions,
    ) -> Result<Constants, BackendError> {
        let is_weight = |id: TensorId| graph.tensor(id).constant().is_some();
        let shapes: HashMap<TensorId, PackedShape> =
            packed_shapes(graph, &is_weight).into_iter().collect();
        let plain_too = plain_uses(graph);
        let in_host_memory = host_experts(graph, options.host_expert_layers);
        let mut constants = Constants {
            packed: HashMap::new(),
            plain: HashMap::new(),
        };
        let total = graph.constant_bytes();
        let mut done = 0;
        for (i, tensor) in graph.tensors().iter().enumerate() {
            let id = TensorId(i as u32);
            let Some(bytes) = tensor.constant() else {
                continue;
            };
            let raw = Buffer::new(device, bytes.len())?;
            // SAFETY: the buffer has the constant's size.
            unsafe { device.upload(raw.address(), bytes)? };
            let shape = shapes.get(&id);
            if let Some(shape) = shape {
                let memory = match in_host_memory.contains(&id) {
                    true => {
                        let (pinned, address) = Pinned::mapped(device, shape.bytes())?;
                        WeightMemory::Host(pinned, address)
                    }
                    false => WeightMemory::Device(Buffer::new(device, shape.bytes())?),
                };
                let weight = pack(device, shape, memory, &raw, bytes.len())?;
                constants.packed.insert(id, weight);
            }
            if shape.is_none() || plain_too.contains(&id) {
                constants.plain.insert(id, raw);
            }
            done += bytes.len();
            if options
                .progress
                .as_ref()
                .is_some_and(|p| !p.report(done, total))
            {
                return Err(BackendErrorKind::Interrupted.into());
            }
        }
        Ok(constants)
    }

    /// A packed weight.
    pub(crate) fn packed(&self, id: TensorId) -> Option<&PackedWeight> {
        self.packed.get(&id)
    }

    /// The address of a constant as the file has it.
    pub(crate) fn plain(&self, id: TensorId) -> Option<u64> {
        self.plain.get(&id).map(Buffer::address)
    }

    /// Bytes on the device.
    pub(crate) fn bytes(&self) -> usize {
        let packed = self.packed.values().map(|weight| weight.memory.bytes()[0]);
        packed.sum::<usize>() + self.plain.values().map(Buffer::len).sum::<usize>()
    }
}

/// The constants that some node reads as the file has them, although they may be packed for another node.
pub(crate) fn plain_uses(graph: &Graph) -> BTreeSet<TensorId> {
    let mut ids = BTreeSet::new();
    for node in graph.nodes() {
        for (operand, id) in node.inputs.iter().enumerate() {
            let packed = match (&node.op, operand) {
                (Op::Linear(_), 1) => true,
                (Op::Experts(_), operand) => MATRICES.contains(&operand),
                (Op::GatherRows(_), 0) => DeviceFormat::is_exact(graph.tensor(*id).ty.dtype),
                _ => false,
            };
            if !packed {
                ids.insert(*id);
            }
        }
    }
    ids.extend(graph.outputs());
    ids
}

fn pack(
    device: &Arc<Device>,
    shape: &PackedShape,
    memory: WeightMemory,
    raw: &Buffer,
    bytes: usize,
) -> Result<PackedWeight, CudaError> {
    let weight = PackedWeight {
        shape: *shape,
        memory,
    };
    let arguments = PackArgs {
        from: raw.address(),
        codes: weight.codes(),
        scales: weight.scales(),
        row_bytes: (bytes / shape.n.max(1)) as u64,
        n: shape.n as u32,
        k: shape.k as u32,
        pairs: shape.pairs() as u32,
        file: shape.file,
        format: shape.format as u32,
        unused: 0,
    };
    let warps = shape.tiles() * shape.pairs();
    let function = device.function(Unit::General, "pack")?;
    let launch = Launch::new(function, [warps.div_ceil(4) as u32, 1], 128, 0, &arguments);
    // SAFETY: the buffers have the sizes that the shape states.
    unsafe { launch.run(device)? };
    Ok(weight)
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{Bytes, DType};
    use graph::GraphBuilder;
    use graph::ops::{Activation, ExpertGate, Experts, Linear};

    #[test]
    fn experts_of_the_first_layers_stay_with_the_host() {
        let mut b = GraphBuilder::new("experts");
        let mut x = b.input("x", DType::F32, [1.into(), 64.into()]);
        let weights = b.input("weights", DType::F32, [1.into(), 4.into()]);
        let weight = |b: &mut GraphBuilder, name: String, n: usize| {
            let data = Bytes::from(&vec![0; n * 64 * 2][..]);
            b.constant(&name, DType::F16, &[n, 64], data).unwrap()
        };
        // The first layer is dense, as in some models.
        let dense = weight(&mut b, "blk.0.ffn_up.weight".into(), 64);
        let linear = Linear { activation: None };
        x = b.node("dense", linear, &[x, dense]).unwrap();
        for layer in 1..4 {
            let name = |what: &str| format!("blk.{layer}.ffn_{what}_exps.weight");
            let matrices = ["gate", "up", "down"].map(|what| weight(&mut b, name(what), 256));
            let op = Experts {
                function: ExpertGate::Gated(Activation::Silu),
                used: 2,
            };
            let inputs = [&[x, weights][..], &matrices].concat();
            x = b.node(&format!("experts.{layer}"), op, &inputs).unwrap();
        }
        let graph = b.finish(&[x]).unwrap();
        let is_weight = |id: TensorId| graph.tensor(id).constant().is_some();
        let names = |layers: usize| {
            let ids = host_experts(&graph, layers).into_iter();
            ids.map(|id| graph.tensor(id).name.clone())
                .collect::<Vec<_>>()
        };
        assert!(names(0).is_empty() && names(1).is_empty());
        assert_eq!(names(2).len(), 3);
        assert!(names(2).iter().all(|name| name.starts_with("blk.1.")));
        assert_eq!(names(usize::MAX).len(), 9);
        let bytes = |layers: usize| {
            let parts = placement(&graph, &is_weight, &Bindings::default(), layers);
            parts.map(|part| part.iter().map(|(_, bytes)| bytes).sum::<usize>())
        };
        let [all, none] = bytes(0);
        assert_eq!(none, 0);
        let layer = bytes(2)[1];
        assert!(layer > 0 && 3 * layer < all);
        for layers in 0..5usize {
            let moved = layers.saturating_sub(1).min(3) * layer;
            assert_eq!(bytes(layers), [all - moved, moved]);
        }
        // One table has each weight.
        let [device, host] = placement(&graph, &is_weight, &Bindings::default(), 3);
        assert!(
            host.iter()
                .all(|(id, _)| device.iter().all(|(own, _)| own != id))
        );
    }

    #[test]
    fn a_layer_is_numbered_as_in_the_model() {
        let table = [
            ("blk.12.ffn_up_exps.weight", Some(12)),
            ("model.layers.3.mlp.experts", Some(3)),
            ("experts", None),
        ];
        for (name, layer) in table {
            assert_eq!(layer_number(name), layer);
        }
    }
}
