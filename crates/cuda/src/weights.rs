//! Weights in the device's layout, and the other constants of a graph.

use crate::arguments::PackArgs;
use crate::compile::Unit;
use crate::device::{Buffer, Device};
use crate::error::CudaError;
use crate::experts::MATRICES;
use crate::format::DeviceFormat;
use crate::launch::Launch;
use backend::{BackendError, BackendErrorKind, CompileOptions};
use graph::ops::Op;
use graph::{Graph, TensorId};
use std::collections::{BTreeSet, HashMap};
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

/// A weight on the device.
pub(crate) struct PackedWeight {
    pub(crate) shape: PackedShape,
    buffer: Buffer,
}

impl PackedWeight {
    pub(crate) fn codes(&self) -> u64 {
        self.buffer.address()
    }

    pub(crate) fn scales(&self) -> u64 {
        self.buffer.address() + self.shape.code_bytes() as u64
    }
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
                let weight = pack(device, shape, &raw, bytes.len())?;
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
        let packed: usize = self.packed.values().map(|weight| weight.buffer.len()).sum();
        packed + self.plain.values().map(Buffer::len).sum::<usize>()
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
    raw: &Buffer,
    bytes: usize,
) -> Result<PackedWeight, CudaError> {
    let buffer = Buffer::new(device, shape.bytes())?;
    let weight = PackedWeight {
        shape: *shape,
        buffer,
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
