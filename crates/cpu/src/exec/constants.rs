//! The model's constants as the kernels read them.

use super::call::Call;
use crate::aligned::Aligned;
use crate::kernels::Context;
use crate::kernels::dense::Layout;
use crate::kernels::pack::Pack;
use crate::kernels::packed::weights::Packed;
use backend::BackendError;
use base::{Bytes, DType};
use graph::ops::Op;
use graph::{Graph, Node, Tensor, TensorId};
use std::collections::HashMap;
use std::sync::Arc;

/// The bytes of every constant, moved where a misaligned file would break element access, and the weights of linear layers
/// once more as the products read them: f32 in panels, quantised ones in strips.
pub(crate) struct Constants {
    bytes: Vec<Option<Bytes>>,
    panels: Vec<Option<Aligned>>,
    strips: HashMap<TensorId, Arc<Packed>>,
}

impl Constants {
    pub(crate) fn new(graph: &Graph, ctx: &Context<'_>) -> Result<Constants, BackendError> {
        let aligned = |tensor: &Tensor| {
            let bytes = tensor.constant()?;
            let plain = !tensor.ty.dtype.is_quantised();
            let aligned = (bytes.as_ptr() as usize).is_multiple_of(tensor.ty.dtype.block_bytes());
            Some(if plain && !aligned {
                Bytes::from(&bytes[..])
            } else {
                bytes.clone()
            })
        };
        let strips = |node: &Node| {
            let (id, tensor, [n, k]) = linear_weight(graph, node)?;
            let packed = Packed::new(tensor.ty.dtype, tensor.constant()?, n, k, ctx.threads)?;
            Some((id, packed))
        };
        let mut constants = Constants {
            bytes: graph.tensors().iter().map(aligned).collect(),
            panels: graph.tensors().iter().map(|_| None).collect(),
            strips: graph.nodes().iter().filter_map(strips).collect(),
        };
        for node in graph.nodes() {
            if let Some((id, pack)) = constants.packable(graph, node) {
                let mut panels = Aligned::new(pack.elements() * size_of::<f32>())?;
                let from = constants.address(id).cast();
                // SAFETY: the constant has the size its type says, and so has the memory for its panels.
                unsafe { pack.all(ctx, from, panels.as_mut_ptr().cast()) };
                constants.panels[id.0 as usize] = Some(panels);
            }
        }
        Ok(constants)
    }

    /// The weight of a linear layer that is worth packing and is not yet.
    fn packable(&self, graph: &Graph, node: &Node) -> Option<(TensorId, Pack)> {
        let (id, tensor, [n, k]) = linear_weight(graph, node)?;
        let fits = tensor.ty.dtype == DType::F32 && self.panels[id.0 as usize].is_none();
        (fits && tensor.constant().is_some()).then_some((
            id,
            Pack {
                n,
                k,
                transposed: true,
            },
        ))
    }

    /// Where a constant is.
    pub(crate) fn address(&self, id: TensorId) -> *const u8 {
        self.bytes[id.0 as usize]
            .as_ref()
            .expect("a constant")
            .as_ptr()
    }

    /// Whether a weight is there in panels.
    pub(crate) fn has_panels(&self, id: TensorId) -> bool {
        self.panels[id.0 as usize].is_some()
    }

    /// Where operand `index` of a call finds its constant.
    pub(crate) fn operand(&self, call: &Call, index: usize, id: TensorId) -> *const u8 {
        match (call, index, &self.panels[id.0 as usize]) {
            (Call::PackedLinear(..), 1, _) => self.strips[&id].address(),
            (Call::MatMul(op), 1, Some(panels)) if op.layout == Layout::Packed => panels.as_ptr(),
            _ => self.address(id),
        }
    }

    /// Bytes of packed weights, besides the graph's own constants.
    pub(crate) fn packed_bytes(&self) -> usize {
        let panels: usize = self.panels.iter().flatten().map(Aligned::len).sum();
        let strips: usize = self.strips.values().map(|packed| packed.len()).sum();
        panels + strips
    }
}

/// The weight of a linear layer, with its rows and its depth.
fn linear_weight<'a>(graph: &'a Graph, node: &Node) -> Option<(TensorId, &'a Tensor, [usize; 2])> {
    let Op::Linear(_) = node.op else { return None };
    let id = node.inputs[1];
    let tensor = graph.tensor(id);
    let shape = tensor.ty.dims(&Default::default())?;
    Some((id, tensor, shape.try_into().ok()?))
}
