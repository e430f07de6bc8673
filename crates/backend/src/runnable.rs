//! A compiled graph bound to its cache: checks a step, plans it, runs it, commits it.

use crate::{BackendError, BackendErrorKind, CacheStep, Executable, NodeTime, Trace};
use base::DType;
use graph::ops::Op;
use graph::{Data, Graph, Node, TensorId, TensorKind, Value};
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
    positions: PositionInput,
    /// The positions of the step in progress, kept for its memory.
    current: Vec<i32>,
}

/// The graph input that holds the positions of a step.
#[derive(Clone, Copy, PartialEq)]
struct PositionInput {
    /// Which graph input.
    index: usize,
    /// Numbers for each token; the first is its position.
    per_token: usize,
}

impl Runnable {
    /// Binds an executable of `graph` to a cache; graphs without attention take none.
    pub fn bind(
        graph: Arc<Graph>,
        executable: Box<dyn Executable>,
        cache: Option<Arc<CacheEntry>>,
    ) -> Result<Runnable, BackendError> {
        let cache = match (PositionInput::find(&graph)?, cache) {
            (None, _) => None,
            (Some(_), None) => {
                return Err(BackendErrorKind::CacheMismatch(
                    "it keeps its history in one, and none is bound".into(),
                )
                .into());
            }
            (Some(positions), Some(entry)) => {
                check_layers(&graph, entry.try_lock()?.bytes.config())?;
                let current = Vec::new();
                Some(BoundCache {
                    entry,
                    positions,
                    current,
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

    /// Which graph input holds the positions of a step, and how many numbers it has for each token. `None` without a cache.
    pub fn position_input(&self) -> Option<(usize, usize)> {
        let positions = self.cache.as_ref()?.positions;
        Some((positions.index, positions.per_token))
    }

    /// Bytes of activations and scratch held now.
    pub fn arena_bytes(&self) -> usize {
        self.executable.arena_bytes()
    }

    /// Bytes of weights held in another layout.
    pub fn packed_bytes(&self) -> usize {
        self.executable.packed_bytes()
    }

    /// Makes all memory for steps with inputs of these shapes, where the executor plans it.
    pub fn reserve(&mut self, shapes: &[Vec<usize>]) -> Result<(), BackendError> {
        self.executable.reserve(shapes)
    }

    /// Measures every node from now on, or no longer.
    pub fn set_profiling(&mut self, on: bool) {
        self.executable.set_profiling(on);
    }

    /// Where the time went since profiling began.
    pub fn profile(&self) -> Vec<NodeTime> {
        self.executable.profile()
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
        let Some(cache) = &mut self.cache else {
            return run(executable, None);
        };
        cache
            .positions
            .read(&self.graph, inputs, &mut cache.current)?;
        cache.entry.try_lock()?.step(&cache.current, |plan, bytes| {
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

/// The nodes that attend over a cache, with their cache ids.
pub fn attention_nodes(graph: &Graph) -> impl Iterator<Item = (&Node, u32)> {
    graph.nodes().iter().filter_map(|node| match &node.op {
        Op::UpdateAndAttend(op) => Some((node, op.cache_id)),
        _ => None,
    })
}

impl PositionInput {
    /// The graph input that every attention node takes as its position, perhaps reshaped or converted.
    fn find(graph: &Graph) -> Result<Option<PositionInput>, BackendError> {
        let mut found = None;
        for (node, _) in attention_nodes(graph) {
            let position = node.inputs[3];
            let source = integer_source(graph, position);
            let index = graph.inputs().iter().position(|id| *id == source);
            let per_token = match graph.tensor(position).ty.shape.get(1) {
                Some(columns) => columns.as_const(),
                None => Some(1),
            };
            let this = index
                .zip(per_token)
                .map(|(index, per_token)| PositionInput { index, per_token });
            if this.is_none() || found.is_some_and(|found| Some(found) != this) {
                return Err(BackendErrorKind::Node {
                    node: graph.node_name(node).to_owned(),
                    op: node.op.name(),
                    reason: "its position must be the graph input that all attention shares".into(),
                }
                .into());
            }
            found = this;
        }
        Ok(found)
    }

    /// The positions of a step's tokens.
    fn read(
        &self,
        graph: &Graph,
        inputs: &[Value],
        positions: &mut Vec<i32>,
    ) -> Result<(), BackendError> {
        positions.clear();
        let step = self.per_token.max(1);
        match &inputs[self.index].data {
            Data::I32(all) => positions.extend(all.iter().step_by(step)),
            Data::I64(all) => {
                for &position in all.iter().step_by(step) {
                    let fits = i32::try_from(position);
                    positions.push(fits.map_err(|_| BackendErrorKind::Position {
                        input: graph.tensor(graph.inputs()[self.index]).name.clone(),
                        position,
                    })?);
                }
            }
            data => unreachable!("attention takes no positions of {}", data.dtype()),
        }
        Ok(())
    }
}

/// The integer tensor that this one only reshapes or converts.
pub fn integer_source(graph: &Graph, id: TensorId) -> TensorId {
    let integer = |id: TensorId| matches!(graph.tensor(id).ty.dtype, DType::I32 | DType::I64);
    match graph.tensor(id).kind {
        TensorKind::Value(node) => match (&graph.node(node).op, &graph.node(node).inputs[..]) {
            (Op::Reshape(_) | Op::Cast(_), &[x]) if integer(x) => integer_source(graph, x),
            _ => id,
        },
        _ => id,
    }
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
