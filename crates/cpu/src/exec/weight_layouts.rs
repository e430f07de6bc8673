//! The packed layout that each weight of a linear layer gets, decided before any weight is read.

use super::call::Call;
use crate::aligned::AlignedBuffer;
use crate::isa::Isa;
use crate::kernels::matmul::f32::pack::PanelPacking;
use crate::kernels::matmul::quantised::format::PackedFormat;
use backend::Precision;
use base::DType;
use graph::ops::Op;
use graph::{Graph, Node, TensorId};
use std::collections::BTreeMap;

/// The packed layout of one weight.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WeightLayout {
    /// f32 in panels.
    F32Panels(PanelPacking),
    /// Quantised, `[n, k]`, in panels.
    QuantisedPanels {
        format: PackedFormat,
        n: usize,
        k: usize,
    },
}

impl WeightLayout {
    /// The bytes of the packed weight.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            WeightLayout::F32Panels(pack) => {
                AlignedBuffer::rounded(pack.elements() * size_of::<f32>())
            }
            WeightLayout::QuantisedPanels { format, n, k } => format.packed_bytes(*n, *k),
        }
    }
}

/// Rows of a step from which fast precision differs from high. Single tokens, branches and most trees of candidates have fewer, so they
/// have the same bits.
const MIN_FAST_ROWS: usize = 33;

/// The packed layouts of a graph's weights.
pub(crate) struct WeightLayouts {
    layouts: BTreeMap<TensorId, WeightLayout>,
    tiled: bool,
    precision: Precision,
}

impl WeightLayouts {
    /// The layouts of the tensors that `is_weight` accepts: those that do not change from step to step.
    pub(crate) fn new(
        graph: &Graph,
        isa: Isa,
        precision: Precision,
        is_weight: &dyn Fn(TensorId) -> bool,
    ) -> WeightLayouts {
        let weights = |node: &Node| match node.op {
            Op::Linear(_) => node.inputs[1..2].to_vec(),
            Op::Experts(_) => node.inputs[2..5].to_vec(),
            _ => vec![],
        };
        let format = |id: TensorId, is_linear: bool| {
            let ty = &graph.tensor(id).ty;
            let &[n, k] = &ty.dims(&Default::default())?[..] else {
                return None;
            };
            let format = match PackedFormat::of(ty.dtype) {
                Some(format) => WeightLayout::QuantisedPanels { format, n, k },
                None if ty.dtype == DType::F32 && is_linear => {
                    WeightLayout::F32Panels(PanelPacking::new(n, k, true))
                }
                None => return None,
            };
            is_weight(id).then_some((id, format))
        };
        // Experts' f32 weights are read where they are.
        let panels = |node: &Node| {
            let is_linear = matches!(node.op, Op::Linear(_));
            let ids = weights(node).into_iter();
            ids.filter_map(move |id| format(id, is_linear))
                .collect::<Vec<_>>()
        };
        let cached = |node: &Node| node.op.has_memory();
        WeightLayouts {
            layouts: graph.nodes().iter().flat_map(panels).collect(),
            precision: match (isa.has_tiles(), precision) {
                // Tiles would have to convert the sums of every block, which takes longer than their products.
                (true, Precision::Balanced) => Precision::High,
                (false, Precision::Fast) => Precision::Balanced,
                _ => precision,
            },
            tiled: isa.has_tiles() && !graph.nodes().iter().any(cached),
        }
    }

    /// The precision of a quantised product of this many rows.
    pub(crate) fn precision(&self, rows: usize) -> Precision {
        match self.precision {
            Precision::Fast if rows < MIN_FAST_ROWS => Precision::High,
            precision => precision,
        }
    }

    /// Whether f32 products may run on matrix tiles.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn tiled(&self) -> bool {
        self.tiled
    }

    /// The bytes of the packed weights that these calls read.
    pub(crate) fn bytes(&self, graph: &Graph, calls: &[Call]) -> BTreeMap<TensorId, usize> {
        let nodes = graph.nodes().iter().zip(calls);
        let bytes = |(node, call): (&Node, &Call)| {
            let packed = |id: &TensorId| Some((*id, self.layouts.get(id)?.bytes()));
            match call {
                #[cfg(target_arch = "x86_64")]
                Call::AmxLinear(op, _) => {
                    vec![(node.inputs[1], AlignedBuffer::rounded(op.weight().bytes()))]
                }
                Call::QuantisedLinear(..) | Call::MatMul(_) => {
                    node.inputs.get(1).and_then(packed).into_iter().collect()
                }
                Call::Experts(_) => node.inputs[2..5].iter().filter_map(packed).collect(),
                _ => vec![],
            }
        };
        nodes.flat_map(bytes).collect()
    }

    /// Whether a weight is packed in panels.
    pub(crate) fn has_panels(&self, id: TensorId) -> bool {
        matches!(self.layouts.get(&id), Some(WeightLayout::F32Panels(_)))
    }

    /// Whether a weight is packed as integers.
    pub(crate) fn has_quantised_panels(&self, id: TensorId) -> bool {
        matches!(
            self.layouts.get(&id),
            Some(WeightLayout::QuantisedPanels { .. })
        )
    }

    /// The bytes of a weight that is packed as integers.
    pub(crate) fn packed_bytes(&self, id: TensorId) -> Option<usize> {
        let layout = self.layouts.get(&id)?;
        self.has_quantised_panels(id).then(|| layout.bytes())
    }

    /// All weights with a packed layout.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (TensorId, &WeightLayout)> {
        self.layouts.iter().map(|(id, format)| (*id, format))
    }
}
