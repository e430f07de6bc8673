//! How the weights of linear layers are held besides the file's own bytes, known before any of them is read.

use super::call::Call;
use crate::aligned::Aligned;
use crate::isa::Isa;
use crate::kernels::matmul::f32::pack::Pack;
use crate::kernels::matmul::quantised::format::Form;
use base::DType;
use graph::ops::Op;
use graph::{Graph, Node, TensorId};
use std::collections::BTreeMap;

/// How one weight is held for its products.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WeightForm {
    /// f32 in panels.
    Panels(Pack),
    /// Quantised, `[n, k]`, in strips.
    Strips { form: Form, n: usize, k: usize },
}

impl WeightForm {
    /// Bytes it takes.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            WeightForm::Panels(pack) => Aligned::rounded(pack.elements() * size_of::<f32>()),
            WeightForm::Strips { form, n, k } => form.packed_bytes(*n, *k),
        }
    }
}

/// The forms of a graph's weights.
pub(crate) struct WeightForms {
    forms: BTreeMap<TensorId, WeightForm>,
    tiled: bool,
}

impl WeightForms {
    /// The forms of the tensors that are weights: those that do not change from step to step.
    pub(crate) fn new(
        graph: &Graph,
        isa: Isa,
        is_weight: &dyn Fn(TensorId) -> bool,
    ) -> WeightForms {
        let form = |node: &Node| {
            let Op::Linear(_) = node.op else { return None };
            let id = node.inputs[1];
            let ty = &graph.tensor(id).ty;
            let &[n, k] = &ty.dims(&Default::default())?[..] else {
                return None;
            };
            let form = match Form::of(ty.dtype) {
                Some(form) => WeightForm::Strips { form, n, k },
                None if ty.dtype == DType::F32 => WeightForm::Panels(Pack::new(n, k, true)),
                None => return None,
            };
            is_weight(id).then_some((id, form))
        };
        let cached = |node: &Node| matches!(node.op, Op::UpdateAndAttend(_));
        WeightForms {
            forms: graph.nodes().iter().filter_map(form).collect(),
            tiled: isa.has_tiles() && !graph.nodes().iter().any(cached),
        }
    }

    /// Whether f32 products may run on matrix tiles.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn tiled(&self) -> bool {
        self.tiled
    }

    /// Bytes of the weights that these calls read.
    pub(crate) fn bytes(&self, graph: &Graph, calls: &[Call]) -> BTreeMap<TensorId, usize> {
        let nodes = graph.nodes().iter().zip(calls);
        let bytes = |(node, call): (&Node, &Call)| {
            let id = *node.inputs.get(1)?;
            let bytes = match call {
                #[cfg(target_arch = "x86_64")]
                Call::TiledLinear(op) => Aligned::rounded(op.weight().bytes()),
                Call::PackedLinear(..) | Call::MatMul(_) => self.forms.get(&id)?.bytes(),
                _ => return None,
            };
            Some((id, bytes))
        };
        nodes.filter_map(bytes).collect()
    }

    /// Whether a weight is held in panels.
    pub(crate) fn has_panels(&self, id: TensorId) -> bool {
        matches!(self.forms.get(&id), Some(WeightForm::Panels(_)))
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (TensorId, &WeightForm)> {
        self.forms.iter().map(|(id, form)| (*id, form))
    }
}
