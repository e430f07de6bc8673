//! `StepLayout`: the buffer in which a step's inputs and plan are sent to the device.

use graph::{Bindings, Graph};
use std::ops::Range;

/// Where a step's inputs and plan lie in its buffer, in bytes.
#[derive(Clone, Debug)]
pub(crate) struct StepLayout {
    /// The graph's inputs.
    pub(crate) inputs: Vec<Range<usize>>,
    /// The table of the cache's layers.
    pub(crate) layers: usize,
    /// The plans of layer classes.
    pub(crate) plans: usize,
}

impl StepLayout {
    pub(crate) fn new(graph: &Graph, bindings: &Bindings) -> StepLayout {
        let mut at = 0;
        let inputs = graph.inputs().iter().map(|id| {
            let bytes = graph.tensor(*id).ty.bytes(bindings).unwrap_or(0);
            let range = at..at + bytes;
            at = range.end.next_multiple_of(16);
            range
        });
        let inputs = inputs.collect();
        let layers = backend::cached_nodes(graph)
            .map(|(_, cache)| cache.id as usize + 1)
            .max();
        let plans = at + layers.unwrap_or(0) * size_of::<crate::arguments::KvLayer>();
        StepLayout {
            inputs,
            layers: at,
            plans,
        }
    }

    /// The numbers of tokens, positions and rows of a decoder's step.
    pub(crate) fn step_sizes(&self) -> [usize; 3] {
        std::array::from_fn(|i| self.inputs[i].len() / size_of::<i32>())
    }

    /// The number of layers in the table.
    pub(crate) fn layer_count(&self) -> usize {
        (self.plans - self.layers) / size_of::<crate::arguments::KvLayer>()
    }
}
