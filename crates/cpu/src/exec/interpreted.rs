//! Runs a graph node by node, each result in memory of its own.

use super::{Addresses, Call, Constants, input_address, named, output_value};
use crate::isa::Isa;
use crate::kernels::Context;
use crate::threads::Threads;
use backend::{BackendError, CacheStep, Executable};
use graph::{Graph, TensorKind, Value};
use std::sync::Arc;

/// The executor for debugging: nothing is resolved before a node runs, nothing is shared between results.
pub(crate) struct Interpreted {
    graph: Arc<Graph>,
    constants: Constants,
    threads: Threads,
    isa: Isa,
    held: usize,
}

impl Interpreted {
    pub(crate) fn new(graph: Arc<Graph>, threads: Threads, isa: Isa) -> Interpreted {
        let constants = Constants::new(&graph);
        Interpreted {
            graph,
            constants,
            threads,
            isa,
            held: 0,
        }
    }
}

impl Executable for Interpreted {
    fn run(
        &mut self,
        inputs: &[Value],
        mut cache: Option<CacheStep<'_>>,
    ) -> Result<Vec<Value>, BackendError> {
        let graph = &*self.graph;
        let shapes: Vec<&[usize]> = inputs.iter().map(|v| &v.shape[..]).collect();
        let bindings = graph.bind(&shapes)?;
        let ctx = Context {
            isa: self.isa,
            threads: &self.threads,
        };
        let mut addresses = vec![std::ptr::null::<u8>(); graph.tensors().len()];
        for (i, tensor) in graph.tensors().iter().enumerate() {
            if let TensorKind::Constant(_) = tensor.kind {
                addresses[i] = self.constants.address(graph::TensorId(i as u32));
            }
        }
        for (id, value) in graph.inputs().iter().zip(inputs) {
            addresses[id.0 as usize] = input_address(value);
        }
        let mut results: Vec<Vec<f32>> = Vec::with_capacity(graph.nodes().len());
        for node in graph.nodes() {
            let call = Call::new(graph, node, &bindings)?;
            let output = node.output.0 as usize;
            if let Call::Alias { offset } = call {
                // Inside the operand, by the check that resolved the call.
                addresses[output] = addresses[node.inputs[0].0 as usize].wrapping_add(offset);
                continue;
            }
            let bytes = graph
                .tensor(node.output)
                .ty
                .bytes(&bindings)
                .expect("resolved with the call");
            let mut result = vec![0.0f32; bytes.div_ceil(4)];
            let mut scratch = vec![0.0f32; call.scratch(self.threads.count()).div_ceil(4)];
            let mut operands = [std::ptr::null(); 4];
            for (to, id) in operands.iter_mut().zip(&node.inputs) {
                *to = addresses[id.0 as usize];
            }
            let at = Addresses {
                inputs: operands,
                output: result.as_mut_ptr().cast(),
                scratch: scratch.as_mut_ptr().cast(),
            };
            // SAFETY: operands were computed before, by the verified order; the output is fresh memory of its size.
            unsafe { call.run(&ctx, at, &mut cache) }.map_err(|e| named(graph, node, e))?;
            addresses[output] = result.as_ptr().cast();
            results.push(result);
        }
        self.held = results.iter().map(|r| r.len() * 4).sum();
        // SAFETY: outputs were computed above, or are inputs or constants, with the sizes that were bound.
        let output = |id: &graph::TensorId| unsafe {
            output_value(graph, *id, &bindings, addresses[id.0 as usize])
        };
        Ok(graph.outputs().iter().map(output).collect())
    }

    fn arena_bytes(&self) -> usize {
        self.held
    }
}
