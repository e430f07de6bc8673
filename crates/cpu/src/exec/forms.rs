//! How the weights of linear layers are held besides the file's own bytes, known before any of them is read.

use crate::aligned::Aligned;
use crate::kernels::pack::Pack;
use crate::kernels::packed::weights::Form;
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
#[derive(Default)]
pub(crate) struct WeightForms(BTreeMap<TensorId, WeightForm>);

impl WeightForms {
    /// The forms of the tensors that are weights: those that do not change from step to step.
    pub(crate) fn new(graph: &Graph, is_weight: &dyn Fn(TensorId) -> bool) -> WeightForms {
        let form = |node: &Node| {
            let Op::Linear(_) = node.op else { return None };
            let id = node.inputs[1];
            let ty = &graph.tensor(id).ty;
            let &[n, k] = &ty.dims(&Default::default())?[..] else {
                return None;
            };
            let form = match Form::of(ty.dtype) {
                Some(form) => WeightForm::Strips { form, n, k },
                None if ty.dtype == DType::F32 => WeightForm::Panels(Pack {
                    n,
                    k,
                    transposed: true,
                }),
                None => return None,
            };
            is_weight(id).then_some((id, form))
        };
        WeightForms(graph.nodes().iter().filter_map(form).collect())
    }

    /// Whether a weight is held in panels.
    pub(crate) fn has_panels(&self, id: TensorId) -> bool {
        matches!(self.0.get(&id), Some(WeightForm::Panels(_)))
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (TensorId, &WeightForm)> {
        self.0.iter().map(|(id, form)| (*id, form))
    }
}
