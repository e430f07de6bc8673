//! The model's constants as the kernels read them.

use super::call::Call;
use super::forms::{WeightForm, WeightForms};
use crate::aligned::Aligned;
use crate::kernels::Context;
use crate::kernels::dense::Layout;
use crate::kernels::packed::weights::Packed;
use backend::BackendError;
use base::Bytes;
use graph::{Graph, Tensor, TensorId};
use std::collections::HashMap;
use std::sync::Arc;

/// The bytes of every constant, moved where a misaligned file would break element access, and the weights of linear layers
/// once more as the products read them: f32 in panels, quantised ones in strips.
pub(crate) struct Constants {
    bytes: Vec<Option<Bytes>>,
    forms: WeightForms,
    panels: HashMap<TensorId, Aligned>,
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
        let is_weight = |id: TensorId| graph.tensor(id).constant().is_some();
        let mut constants = Constants {
            bytes: graph.tensors().iter().map(aligned).collect(),
            forms: WeightForms::new(graph, &is_weight),
            panels: HashMap::new(),
            strips: HashMap::new(),
        };
        for (id, form) in constants.forms.iter() {
            match *form {
                WeightForm::Panels(pack) => {
                    let mut panels = Aligned::new(form.bytes())?;
                    let from = constants.address(id).cast();
                    // SAFETY: the constant has the size its type says, and so has the memory for its panels.
                    unsafe { pack.all(ctx, from, panels.as_mut_ptr().cast()) };
                    constants.panels.insert(id, panels);
                }
                WeightForm::Strips { n, k, .. } => {
                    let tensor = graph.tensor(id);
                    let source = tensor.constant().expect("weights are constants here");
                    let packed = Packed::new(tensor.ty.dtype, source, n, k, ctx.threads);
                    constants
                        .strips
                        .insert(id, packed.expect("the type has a packed form"));
                }
            }
        }
        Ok(constants)
    }

    /// How the weights are held.
    pub(crate) fn forms(&self) -> &WeightForms {
        &self.forms
    }

    /// Where a constant is.
    pub(crate) fn address(&self, id: TensorId) -> *const u8 {
        self.bytes[id.0 as usize]
            .as_ref()
            .expect("a constant")
            .as_ptr()
    }

    /// Where operand `index` of a call finds its constant.
    pub(crate) fn operand(&self, call: &Call, index: usize, id: TensorId) -> *const u8 {
        match (call, index, self.panels.get(&id)) {
            (Call::PackedLinear(..), 1, _) => self.strips[&id].address(),
            (Call::MatMul(op), 1, Some(panels)) if op.layout == Layout::Packed => panels.as_ptr(),
            _ => self.address(id),
        }
    }

    /// Bytes of packed weights, besides the graph's own constants.
    pub(crate) fn packed_bytes(&self) -> usize {
        let panels: usize = self.panels.values().map(Aligned::len).sum();
        let strips: usize = self.strips.values().map(|packed| packed.len()).sum();
        panels + strips
    }
}
