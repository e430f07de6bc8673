//! A tape: the kernel calls of a graph for one size of step, every result at its planned place in one arena.

use crate::calls::{Addresses, Call, CallMaker};
use crate::device::{Buffer, Device, DeviceFacts};
use crate::launch::Launch;
use crate::plan::SLOTS;
use crate::products::plan_ops;
use crate::step_layout::StepLayout;
use crate::weights::Constants;
use backend::{BackendError, ExecutorKind};
use graph::passes::FusedOp;
use graph::plan::MemoryPlan;
use graph::{Bindings, Graph, TensorId};
use std::sync::Arc;

/// A graph resolved for inputs of certain shapes, before its calls are made.
pub(crate) struct Planned {
    pub(crate) layout: StepLayout,
    pub(crate) memory: MemoryPlan,
    ops: Vec<FusedOp>,
}

/// The calls of a graph for inputs of certain shapes.
pub(crate) struct Tape {
    pub(crate) layout: StepLayout,
    pub(crate) bindings: Bindings,
    pub(crate) calls: Vec<Call>,
    /// The calls of steps that are not cut at attention.
    pub(crate) whole: Vec<Launch>,
    /// The lists of ops that persistent kernels among them read.
    _lists: Vec<Buffer>,
    /// Address and bytes of every output.
    pub(crate) outputs: Vec<(u64, usize)>,
    /// The executable's memory that the addresses were made for.
    pub(crate) generation: u64,
}

/// The bytes of partial attention results, and the number of counters, that the graph's attention needs.
pub(crate) fn attention_memory(graph: &Graph) -> (usize, usize) {
    let mut most = (0, 0);
    for (node, _) in backend::attention_nodes(graph) {
        let dims = |operand: usize| graph.tensor(node.inputs[operand]).ty.shape.clone();
        let size = |operand: usize, axis: usize| dims(operand)[axis].as_const().unwrap_or(0);
        let (heads, value_dim) = (size(0, 1), size(2, 2));
        most.0 = most.0.max(SLOTS * heads * (value_dim + 2) * 4);
        most.1 = most.1.max(SLOTS * heads);
    }
    most
}

impl Planned {
    pub(crate) fn new(
        graph: &Graph,
        constants: &Constants,
        bindings: Bindings,
        executor: ExecutorKind,
        facts: &DeviceFacts,
    ) -> Result<Planned, BackendError> {
        let format = |id: TensorId| constants.packed(id).map(|weight| weight.shape.format);
        let (ops, memory) = plan_ops(graph, bindings, executor, &format, facts)?;
        Ok(Planned {
            layout: StepLayout::new(graph, &bindings),
            memory,
            ops,
        })
    }

    /// Makes the calls.
    pub(crate) fn tape(
        self,
        graph: &Graph,
        device: &Arc<Device>,
        constants: &Constants,
        addresses: Addresses,
        tiled: bool,
        generation: u64,
    ) -> Result<Tape, BackendError> {
        let maker = CallMaker {
            graph,
            device,
            constants,
            memory: &self.memory,
            layout: &self.layout,
            addresses,
            tiled,
        };
        let mut calls = Vec::new();
        for op in &self.ops {
            calls.extend(maker.call(op)?);
        }
        let (whole, lists) = match maker.persistent(&self.ops, device)? {
            Some(step) => (step.launches, step.lists),
            None => {
                let launches = calls.iter().flat_map(|call: &Call| &call.launches);
                (launches.cloned().collect(), vec![])
            }
        };
        let outputs = graph.outputs().iter().map(|id| {
            let bytes = graph
                .tensor(*id)
                .ty
                .bytes(&self.memory.bindings)
                .unwrap_or(0);
            (maker.address(*id), bytes)
        });
        let outputs = outputs.collect();
        Ok(Tape {
            bindings: self.memory.bindings,
            outputs,
            layout: self.layout,
            calls,
            whole,
            _lists: lists,
            generation,
        })
    }
}
