//! A compiled graph bound to its cache: checks a step, plans it, runs it, commits it.

use crate::{BackendError, BackendErrorKind, CacheStep, Executable, Trace};
use base::DType;
use graph::ops::Op;
use graph::{Graph, Node, Value};
use kv::{CacheConfig, CacheEntry};
use std::sync::Arc;

/// An executable with the cache its `UpdateAndAttend` nodes work on.
pub struct Runnable {
    graph: Arc<Graph>,
    executable: Box<dyn Executable>,
    cache: Option<BoundCache>,
}

struct BoundCache {
    entry: Arc<CacheEntry>,
    /// Which graph input holds the positions.
    position_input: usize,
}

impl Runnable {
    /// Binds an executable of `graph` to a cache; graphs without attention take none.
    pub fn bind(
        graph: Arc<Graph>,
        executable: Box<dyn Executable>,
        cache: Option<Arc<CacheEntry>>,
    ) -> Result<Runnable, BackendError> {
        let position = position_input(&graph)?;
        let cache = match (position, cache) {
            (None, _) => None,
            (Some(_), None) => {
                return Err(BackendErrorKind::CacheMismatch("none is bound".into()).into());
            }
            (Some(position_input), Some(entry)) => {
                check_layers(&graph, entry.try_lock()?.bytes.config())?;
                Some(BoundCache {
                    entry,
                    position_input,
                })
            }
        };
        Ok(Runnable {
            graph,
            executable,
            cache,
        })
    }

    /// The graph.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Bytes of activations and scratch held now.
    pub fn arena_bytes(&self) -> usize {
        self.executable.arena_bytes()
    }

    /// Runs one step. When it fails, the cache holds what it held before.
    pub fn run(&mut self, inputs: &[Value]) -> Result<Vec<Value>, BackendError> {
        self.step(inputs, |executable, cache| executable.run(inputs, cache))
    }

    /// Runs one step as [`run`](Runnable::run) does and shows every node's result, where the executor can.
    pub fn run_traced(
        &mut self,
        inputs: &[Value],
        trace: Trace<'_>,
    ) -> Result<Vec<Value>, BackendError> {
        self.step(inputs, |executable, cache| {
            executable.run_traced(inputs, cache, trace)
        })
    }

    fn step(
        &mut self,
        inputs: &[Value],
        run: impl FnOnce(&mut dyn Executable, Option<CacheStep<'_>>) -> Result<Vec<Value>, BackendError>,
    ) -> Result<Vec<Value>, BackendError> {
        self.check_inputs(inputs)?;
        let executable = &mut *self.executable;
        let Some(cache) = &self.cache else {
            return run(executable, None);
        };
        let positions = inputs[cache.position_input]
            .as_i32()
            .expect("checked with the inputs");
        cache.entry.try_lock()?.step(positions, |plan, bytes| {
            run(executable, Some(CacheStep { plan, bytes }))
        })
    }

    fn check_inputs(&self, inputs: &[Value]) -> Result<(), BackendError> {
        let shapes: Vec<&[usize]> = inputs.iter().map(|v| &v.shape[..]).collect();
        self.graph.bind(&shapes)?;
        for (id, value) in self.graph.inputs().iter().zip(inputs) {
            let tensor = self.graph.tensor(*id);
            if value.dtype() != tensor.ty.dtype {
                let (input, found, wanted) = (tensor.name.clone(), value.dtype(), tensor.ty.dtype);
                return Err(BackendErrorKind::InputType {
                    input,
                    found,
                    wanted,
                }
                .into());
            }
            if value.len() != value.shape.iter().product::<usize>() {
                let (input, elements, shape) =
                    (tensor.name.clone(), value.len(), value.shape.clone());
                return Err(BackendErrorKind::InputSize {
                    input,
                    elements,
                    shape,
                }
                .into());
            }
        }
        Ok(())
    }
}

fn attention_nodes(graph: &Graph) -> impl Iterator<Item = (&Node, u32)> {
    graph.nodes().iter().filter_map(|node| match &node.op {
        Op::UpdateAndAttend(op) => Some((node, op.cache_id)),
        _ => None,
    })
}

/// The graph input that every attention node takes as its position.
fn position_input(graph: &Graph) -> Result<Option<usize>, BackendError> {
    let mut found = None;
    for (node, _) in attention_nodes(graph) {
        let index = graph.inputs().iter().position(|id| *id == node.inputs[3]);
        let is_i32 = graph.tensor(node.inputs[3]).ty.dtype == DType::I32;
        if index.is_none() || !is_i32 || found.is_some_and(|f| Some(f) != index) {
            return Err(BackendErrorKind::Node {
                node: graph.node_name(node).to_owned(),
                op: node.op.name(),
                reason: "its position must be the graph input that all attention shares".into(),
            }
            .into());
        }
        found = index;
    }
    Ok(found)
}

/// Every cache id a graph names must exist with the heads and dimensions the graph stores.
fn check_layers(graph: &Graph, config: &CacheConfig) -> Result<(), BackendError> {
    for (node, id) in attention_nodes(graph) {
        let name = graph.node_name(node);
        let Some(layer) = config.layers.get(id as usize) else {
            let reason = format!(
                "{name} names cache {id}, the cache has {}",
                config.layers.len()
            );
            return Err(BackendErrorKind::CacheMismatch(reason).into());
        };
        let dims = |operand: usize| {
            let shape = &graph.tensor(node.inputs[operand]).ty.shape;
            (shape[1].as_const(), shape[2].as_const())
        };
        let wanted = [
            (Some(layer.kv_heads), Some(layer.key_dim)),
            (Some(layer.kv_heads), Some(layer.value_dim)),
        ];
        if [dims(1), dims(2)] != wanted {
            let reason = format!(
                "{name} stores keys and values {:?}, cache {id} has {layer:?}",
                [dims(1), dims(2)]
            );
            return Err(BackendErrorKind::CacheMismatch(reason).into());
        }
    }
    Ok(())
}
