//! The model's constants as the kernels read them.

use super::call::Call;
use crate::aligned::Aligned;
use crate::kernels::Context;
use crate::kernels::dense::Layout;
use crate::kernels::pack::Pack;
use crate::kernels::packed::weights::Packed;
use backend::BackendError;
use base::Bytes;
use graph::ops::Op;
use graph::{Graph, Node, Tensor, TensorId};
use std::collections::HashMap;
use std::sync::Arc;

/// The bytes of every constant, moved where a misaligned file would break element access, and the weights of linear layers
/// once more as the products read them: quantised ones in strips, f32 ones in panels or in tiles once a call needs them.
pub(crate) struct Constants {
    bytes: Vec<Option<Bytes>>,
    strips: HashMap<TensorId, Arc<Packed>>,
    panels: HashMap<TensorId, Aligned>,
    #[cfg(target_arch = "x86_64")]
    tiles: HashMap<TensorId, Aligned>,
    tiled: bool,
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
        let cached = |node: &Node| matches!(node.op, Op::UpdateAndAttend(_));
        Ok(Constants {
            bytes: graph.tensors().iter().map(aligned).collect(),
            strips: graph.nodes().iter().filter_map(strips).collect(),
            panels: HashMap::new(),
            #[cfg(target_arch = "x86_64")]
            tiles: HashMap::new(),
            tiled: ctx.isa.has_tiles() && !graph.nodes().iter().any(cached),
        })
    }

    /// Whether f32 products may run on matrix tiles.
    pub(crate) fn tiled(&self) -> bool {
        self.tiled
    }

    /// Lays the weight of a call out as the call reads it, if it is not yet.
    pub(crate) fn provide(
        &mut self,
        node: &Node,
        call: &Call,
        ctx: &Context<'_>,
    ) -> Result<(), BackendError> {
        match call {
            Call::MatMul(op) if op.layout == Layout::Packed => {
                let id = node.inputs[1];
                if !self.panels.contains_key(&id) {
                    let pack = Pack {
                        n: op.n,
                        k: op.k,
                        transposed: true,
                    };
                    let mut panels = Aligned::new(pack.elements() * size_of::<f32>())?;
                    let from = self.address(id).cast();
                    // SAFETY: the constant has the size its type says, and so has the memory for its panels.
                    unsafe { pack.all(ctx, from, panels.as_mut_ptr().cast()) };
                    self.panels.insert(id, panels);
                }
            }
            #[cfg(target_arch = "x86_64")]
            Call::TiledLinear(op) => {
                let id = node.inputs[1];
                if !self.tiles.contains_key(&id) {
                    let weight = op.weight();
                    let mut tiles = Aligned::new(weight.bytes())?;
                    let from = self.address(id).cast();
                    // SAFETY: the constant has the size its type says, and so has the memory for its tiles.
                    unsafe { weight.lay_out(ctx, from, tiles.as_mut_ptr()) };
                    self.tiles.insert(id, tiles);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Where a constant is.
    pub(crate) fn address(&self, id: TensorId) -> *const u8 {
        self.bytes[id.0 as usize]
            .as_ref()
            .expect("a constant")
            .as_ptr()
    }

    /// Whether a tensor is a constant.
    pub(crate) fn is_constant(&self, id: TensorId) -> bool {
        self.bytes[id.0 as usize].is_some()
    }

    /// Where operand `index` of a call finds its constant; the call must have been provided for.
    pub(crate) fn operand(&self, call: &Call, index: usize, id: TensorId) -> *const u8 {
        match (call, index) {
            (Call::PackedLinear(..), 1) => self.strips[&id].address(),
            (Call::MatMul(op), 1) if op.layout == Layout::Packed => self.panels[&id].as_ptr(),
            #[cfg(target_arch = "x86_64")]
            (Call::TiledLinear(_), 1) => self.tiles[&id].as_ptr(),
            _ => self.address(id),
        }
    }

    /// Bytes of packed weights, besides the graph's own constants.
    pub(crate) fn packed_bytes(&self) -> usize {
        let panels = self.panels.values();
        #[cfg(target_arch = "x86_64")]
        let panels = panels.chain(self.tiles.values());
        let strips: usize = self.strips.values().map(|packed| packed.len()).sum();
        panels.map(Aligned::len).sum::<usize>() + strips
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
