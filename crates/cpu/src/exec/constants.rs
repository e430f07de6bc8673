//! The model's constants in the layouts that the kernels read.

use super::call::Call;
use super::hot_experts::{ExpertPlan, HotExperts};
use super::shared_panels::SharedPanels;
use super::weight_layouts::{WeightLayout, WeightLayouts};
use crate::aligned::AlignedBuffer;
use crate::kernels::Context;
use crate::kernels::matmul::f32::RhsLayout;
use crate::kernels::matmul::f32::pack::PanelPacking;
use crate::kernels::matmul::quantised::packed_weight::PackedWeight;
use crate::kernels::matmul::quantised::weight_source::WeightSource;
use backend::{BackendError, CompileOptions};
use base::Bytes;
use graph::{Graph, Node, Tensor, TensorId};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The bytes of every constant, copied where the file misaligns them, and the packed weights of linear layers and experts:
/// quantised ones in panels, f32 ones in panels or tiles as soon as a call needs them.
pub(crate) struct Constants {
    bytes: Vec<Option<Bytes>>,
    /// Bytes of the constants that were copied because the file misaligns them.
    realigned: usize,
    layouts: WeightLayouts,
    quantised: HashMap<TensorId, Arc<PackedWeight>>,
    panels: HashMap<TensorId, Arc<SharedPanels>>,
    #[cfg(target_arch = "x86_64")]
    tiles: HashMap<TensorId, AlignedBuffer>,
    /// The experts that are in memory, if only some are.
    hot_experts: Option<Mutex<HotExperts>>,
}

impl Constants {
    pub(crate) fn new(
        graph: &Graph,
        ctx: &Context<'_>,
        options: &CompileOptions,
    ) -> Result<Constants, BackendError> {
        let aligned = |tensor: &Tensor| {
            let bytes = tensor.constant()?;
            Some(match realigned_bytes(tensor) {
                0 => bytes.clone(),
                _ => Bytes::from(&bytes[..]),
            })
        };
        let is_weight = |id: TensorId| graph.tensor(id).constant().is_some();
        let layouts = WeightLayouts::new(graph, ctx.isa, options.precision, &is_weight);
        let experts = ExpertPlan::new(graph, &layouts, &is_weight, options)?;
        let source = |(id, format): (TensorId, &WeightLayout)| {
            let WeightLayout::QuantisedPanels { format, n, k } = *format else {
                return None;
            };
            let tensor = graph.tensor(id);
            let source = WeightSource {
                dtype: tensor.ty.dtype,
                format,
                rows: tensor.constant()?,
                n,
                k,
                on_demand: experts.is_on_demand(id),
            };
            Some((id, source))
        };
        let (ids, sources): (Vec<TensorId>, Vec<WeightSource<'_>>) =
            layouts.iter().filter_map(source).unzip();
        let quantised = PackedWeight::load_all(&sources, ctx, options)?;
        let quantised: HashMap<TensorId, Arc<PackedWeight>> =
            ids.into_iter().zip(quantised).collect();
        let weight = |id: TensorId| match quantised.get(&id) {
            Some(packed) => packed.bytes().clone(),
            None => graph.tensor(id).constant().expect("a weight").clone(),
        };
        Ok(Constants {
            hot_experts: HotExperts::new(&experts, &weight)?,
            bytes: graph.tensors().iter().map(aligned).collect(),
            realigned: graph.tensors().iter().map(realigned_bytes).sum(),
            quantised,
            layouts,
            panels: HashMap::new(),
            #[cfg(target_arch = "x86_64")]
            tiles: HashMap::new(),
        })
    }

    /// The packed layouts of the weights.
    pub(crate) fn layouts(&self) -> &WeightLayouts {
        &self.layouts
    }

    /// Packs the weight of a call in the layout that the call reads, if it is not packed yet.
    pub(crate) fn pack_for(
        &mut self,
        node: &Node,
        call: &Call,
        ctx: &Context<'_>,
    ) -> Result<(), BackendError> {
        match call {
            Call::MatMul(op) if op.layout == RhsLayout::Packed => {
                let id = node.inputs[1];
                if !self.panels.contains_key(&id) {
                    let pack = PanelPacking::new(op.n, op.k, true);
                    let weight = self.bytes[id.0 as usize].as_ref().expect("a constant");
                    let panels = SharedPanels::of(weight, [op.n, op.k], || {
                        let mut panels = AlignedBuffer::new(pack.elements() * size_of::<f32>())?;
                        let from = weight.as_ptr().cast();
                        // SAFETY: the constant has the size its type says, and so has the memory for its panels.
                        unsafe { pack.pack_all(ctx, from, panels.as_mut_ptr().cast()) };
                        Ok(panels)
                    })?;
                    self.panels.insert(id, panels);
                }
            }
            #[cfg(target_arch = "x86_64")]
            Call::AmxLinear(op, _) => {
                let id = node.inputs[1];
                if !self.tiles.contains_key(&id) {
                    let weight = op.weight();
                    let mut tiles = AlignedBuffer::new(weight.bytes())?;
                    let from = self.address(id).cast();
                    // SAFETY: the constant has the size its type says, and so has the memory for its tiles.
                    unsafe { weight.pack(ctx, from, tiles.as_mut_ptr()) };
                    self.tiles.insert(id, tiles);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The address of a constant.
    pub(crate) fn address(&self, id: TensorId) -> *const u8 {
        self.bytes[id.0 as usize]
            .as_ref()
            .expect("a constant")
            .as_ptr()
    }

    /// The address of the constant that operand `index` of a call reads; the call's weight must have been packed.
    pub(crate) fn operand(&self, call: &Call, index: usize, id: TensorId) -> *const u8 {
        match (call, index) {
            (Call::QuantisedLinear(..), 1) => self.quantised[&id].address(),
            (Call::MatMul(op), 1) if op.layout == RhsLayout::Packed => self.panels[&id].as_ptr(),
            #[cfg(target_arch = "x86_64")]
            (Call::AmxLinear(..), 1) => self.tiles[&id].as_ptr(),
            (Call::Experts(_), 2..=4) => match self.quantised.get(&id) {
                Some(packed) => packed.address(),
                None => self.address(id),
            },
            _ => self.address(id),
        }
    }

    /// The experts that are in memory; `None` if all are.
    pub(crate) fn hot_experts(&self) -> Option<MutexGuard<'_, HotExperts>> {
        let experts = self.hot_experts.as_ref()?;
        Some(experts.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Bytes of packed weights, of slots of experts and of realigned constants, in addition to the graph's own.
    pub(crate) fn packed_bytes(&self) -> usize {
        let panels = self.panels.values().map(|panels| panels.len());
        #[cfg(target_arch = "x86_64")]
        let panels = panels.chain(self.tiles.values().map(AlignedBuffer::len));
        let quantised = self
            .quantised
            .values()
            .filter(|packed| !packed.is_on_demand());
        let quantised: usize = quantised.map(|packed| packed.len()).sum();
        let slots = self.hot_experts().map_or(0, |experts| experts.bytes());
        panels.sum::<usize>() + quantised + slots + self.realigned
    }
}

/// Bytes of a constant's copy, if the file misaligns its elements; else zero.
pub(crate) fn realigned_bytes(tensor: &Tensor) -> usize {
    let element = tensor.ty.dtype.block_bytes();
    match tensor.constant() {
        Some(bytes)
            if !tensor.ty.dtype.is_quantised()
                && !(bytes.as_ptr() as usize).is_multiple_of(element) =>
        {
            bytes.len()
        }
        _ => 0,
    }
}
