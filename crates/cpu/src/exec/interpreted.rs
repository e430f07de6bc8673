//! Runs a graph node by node, each result in memory of its own.

use super::call::{Addresses, Call};
use super::constants::Constants;
use super::{input_address, named, value_at};
use crate::aligned::Aligned;
use crate::isa::Isa;
use crate::kernels::Context;
use crate::threads::Threads;
use backend::{BackendError, CacheStep, CompileOptions, Executable, Trace};
use graph::{Graph, Node, TensorId, TensorKind, Value};
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
    pub(crate) fn new(
        graph: Arc<Graph>,
        threads: Threads,
        isa: Isa,
        options: &CompileOptions,
    ) -> Result<Interpreted, BackendError> {
        let context = Context {
            isa,
            threads: &threads,
        };
        let constants = Constants::new(&graph, &context, options)?;
        Ok(Interpreted {
            graph,
            constants,
            threads,
            isa,
            held: 0,
        })
    }

    /// Runs all nodes; `done` is told of every result.
    fn run_nodes(
        &mut self,
        inputs: &[Value],
        mut cache: Option<CacheStep<'_>>,
        done: &mut dyn FnMut(&Node, &dyn Fn() -> Value),
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
                addresses[i] = self.constants.address(TensorId(i as u32));
            }
        }
        for (id, value) in graph.inputs().iter().zip(inputs) {
            addresses[id.0 as usize] = input_address(value);
        }
        // SAFETY: only computed tensors, inputs and constants are asked for, with the sizes that were bound.
        let value = |id: TensorId, at: *const u8| unsafe { value_at(graph, id, &bindings, at) };
        let mut results: Vec<Aligned> = Vec::with_capacity(graph.nodes().len());
        for node in graph.nodes() {
            let call = Call::new(graph, node, &bindings, self.constants.forms())?;
            self.constants.provide(node, &call, &ctx)?;
            let at = if let Call::Alias { offset } = call {
                // Inside the operand, by the check that resolved the call.
                addresses[node.inputs[0].0 as usize].wrapping_add(offset)
            } else {
                let ty = &graph.tensor(node.output).ty;
                let bytes = ty.bytes(&bindings).expect("resolved with the call");
                let mut result = Aligned::new(bytes)?;
                let mut scratch = Aligned::new(call.scratch(self.threads.count()))?;
                let operand = |(i, id): (usize, &TensorId)| match graph.tensor(*id).kind {
                    TensorKind::Constant(_) => self.constants.operand(&call, i, *id),
                    _ => addresses[id.0 as usize],
                };
                let operands: Vec<*const u8> =
                    node.inputs.iter().enumerate().map(operand).collect();
                let at = Addresses {
                    inputs: &operands,
                    output: result.as_mut_ptr(),
                    scratch: scratch.as_mut_ptr(),
                };
                // SAFETY: operands were computed before, by the verified order; the output is fresh memory of its size.
                unsafe { call.run(&ctx, at, &mut cache) }.map_err(|e| named(graph, node, e))?;
                results.push(result);
                results[results.len() - 1].as_ptr()
            };
            addresses[node.output.0 as usize] = at;
            done(node, &|| value(node.output, at));
        }
        self.held = results.iter().map(Aligned::len).sum();
        let output = |id: &TensorId| value(*id, addresses[id.0 as usize]);
        Ok(graph.outputs().iter().map(output).collect())
    }
}

impl Executable for Interpreted {
    fn run(
        &mut self,
        inputs: &[Value],
        cache: Option<CacheStep<'_>>,
    ) -> Result<Vec<Value>, BackendError> {
        self.run_nodes(inputs, cache, &mut |_, _| {})
    }

    fn run_traced(
        &mut self,
        inputs: &[Value],
        cache: Option<CacheStep<'_>>,
        trace: Trace<'_>,
    ) -> Result<Vec<Value>, BackendError> {
        let graph = self.graph.clone();
        self.run_nodes(inputs, cache, &mut |node, value| {
            trace(graph.node_name(node), node.op.name(), &value());
        })
    }

    fn arena_bytes(&self) -> usize {
        self.held
    }

    fn packed_bytes(&self) -> usize {
        self.constants.packed_bytes()
    }
}
