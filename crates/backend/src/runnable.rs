//! `Runnable`: a compiled graph bound to its cache. It checks, plans, runs and commits steps.

use crate::states::{self, States};
use crate::{
    BackendError, BackendErrorKind, BatchDescriptor, CacheStep, Dispatcher, Executable,
    OutputCallback, RunMode, StepOutputs, TraceCallback,
};
use base::DType;
use graph::ops::{CacheUse, Op};
use graph::{DataRef, Graph, Node, TensorId, TensorKind, Value, ValueRef};
use kv::{CacheConfig, CacheEntry, Step};
use std::sync::Arc;

/// An executable and the cache of its `UpdateAndAttend` nodes.
pub struct Runnable {
    graph: Arc<Graph>,
    executable: Box<dyn Executable>,
    cache: Option<BoundCache>,
    /// The tensors that keep their elements between runs.
    states: States,
    /// Whether the graph is a decoder: it takes tokens, positions and rows.
    decodes: bool,
    dispatcher: Dispatcher,
    /// The current step with its padding; kept so that its memory is reused.
    padded: Step,
}

/// The options of a decoder's steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepOptions {
    /// The requested run mode; downgraded if the executable does not support it.
    pub mode: RunMode,
    /// The maximum number of sequences in a step.
    pub max_sequences: usize,
    /// The most tokens of each sequence in a uniform decode: 1 plus the candidates.
    pub max_query_len: usize,
    /// The maximum number of tokens in a step.
    pub max_tokens: usize,
    /// The maximum number of rows in a step.
    pub max_rows: usize,
    /// Whether all sizes are recorded now, and later ones are errors.
    pub record_all: bool,
}

struct BoundCache {
    entry: Arc<CacheEntry>,
    positions: PositionInput,
    /// The positions of the current step; kept so that its memory is reused.
    current: Vec<i32>,
}

/// The graph input that holds the positions of a run on tensors.
#[derive(Clone, Copy, PartialEq)]
struct PositionInput {
    /// Index of the graph input.
    index: usize,
    /// Numbers per token; the first one is its position.
    per_token: usize,
}

impl Runnable {
    /// Binds an executable of `graph` to a cache. A graph without cached attention needs none.
    pub fn bind(
        graph: Arc<Graph>,
        executable: Box<dyn Executable>,
        cache: Option<Arc<CacheEntry>>,
    ) -> Result<Runnable, BackendError> {
        let cache = BoundCache::bind(&graph, &*executable, cache)?;
        Ok(Runnable {
            decodes: takes_steps(&graph),
            states: States::new(&graph),
            graph,
            executable,
            cache,
            dispatcher: Dispatcher::eager(),
            padded: Step::default(),
        })
    }

    /// Binds another cache in the place of the first, with the same layers. [`prepare`](Runnable::prepare) has to be called again:
    /// recorded steps are those of the first cache.
    pub fn rebind(&mut self, cache: Arc<CacheEntry>) -> Result<(), BackendError> {
        self.cache = BoundCache::bind(&self.graph, &*self.executable, Some(cache))?;
        Ok(())
    }

    /// The graph.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The tensors that keep their elements between runs, with their names: the buffers that the program writes to.
    pub fn states(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.states.named()
    }

    /// Replaces the elements of a state.
    ///
    /// # Errors
    /// `State` if there is no state of this name, or if it has another type or shape.
    pub fn set_state(&mut self, name: &str, value: Value) -> Result<(), BackendError> {
        self.states.set(name, value)
    }

    /// Gives all states the elements that they have in the model file.
    pub fn reset_states(&mut self) {
        self.states.reset(&self.graph);
    }

    /// Gives all states the elements that they had before the last run that succeeded, for callers that could not use its outputs.
    /// It can be called once after a run.
    pub fn undo_states(&mut self) {
        self.states.exchange();
    }

    /// The executable, for its measurements and its memory.
    pub fn executable(&self) -> &dyn Executable {
        &*self.executable
    }

    /// The executable, to start and stop its measurements. Runs go through the methods of this type, which check inputs.
    pub fn executable_mut(&mut self) -> &mut dyn Executable {
        &mut *self.executable
    }

    /// The graph input that holds the positions, and the numbers that it has per token. `None` without a cache.
    pub fn position_input(&self) -> Option<(usize, usize)> {
        let positions = self.cache.as_ref()?.positions;
        Some((positions.index, positions.per_token))
    }

    /// Allocates the memory for steps and records the common decode sizes, so that the first token does not wait for
    /// it. Call it again to change the options.
    pub fn prepare(&mut self, options: &StepOptions) -> Result<(), BackendError> {
        self.dispatcher = self.executable.prepare(options)?;
        Ok(())
    }

    /// The run mode of steps, after a possible downgrade.
    pub fn dispatcher(&self) -> &Dispatcher {
        &self.dispatcher
    }

    /// Runs one step of a decoder and returns the wanted outputs of its rows. After an error, the cache holds the
    /// tokens that it held before.
    pub fn run_step(&mut self, step: &Step, outputs: &mut StepOutputs) -> Result<(), BackendError> {
        let Some(cache) = self.cache.as_ref().filter(|_| self.decodes) else {
            return Err(BackendErrorKind::NotADecoder(self.graph.name().to_owned()).into());
        };
        let batch = BatchDescriptor::of(step, self.dispatcher.max_query_len());
        let dispatch = self.dispatcher.dispatch(batch);
        let padded = (dispatch.batch.tokens, dispatch.batch.rows);
        let step = if padded == (batch.tokens, batch.rows) {
            step
        } else {
            self.padded.clone_from(step);
            self.padded.pad_to(padded.0, padded.1);
            &self.padded
        };
        let executable = &mut self.executable;
        let mut state = cache.entry.try_lock()?;
        state.run(step, |plan, bytes| {
            executable.run_step(dispatch, CacheStep { plan, bytes }, outputs)
        })
    }

    /// Runs the graph on tensors. With a cache, the tensors are the step that the session's operations declared. After an
    /// error, the cache holds the tokens that it held before.
    pub fn run(&mut self, inputs: &[Value]) -> Result<Vec<Value>, BackendError> {
        let views: Vec<ValueRef<'_>> = inputs.iter().map(Value::view).collect();
        if self.states.is_empty() {
            return self.with_cache(&views, |executable, _, cache, _| {
                executable.run(inputs, cache, None)
            });
        }
        let mut outputs = vec![];
        self.run_borrowed(&views, &mut |_, view| outputs.push(view.to_value()))?;
        Ok(outputs)
    }

    /// Like [`run`](Runnable::run), and calls `trace` with the result of every node.
    ///
    /// # Errors
    /// `TraceUnsupported` if the executor does not keep intermediate results.
    pub fn run_traced(
        &mut self,
        inputs: &[Value],
        trace: TraceCallback<'_>,
    ) -> Result<Vec<Value>, BackendError> {
        let views: Vec<ValueRef<'_>> = inputs.iter().map(Value::view).collect();
        let own = self.graph.caller_outputs().len();
        self.with_cache(&views, |executable, views, cache, states| {
            let all: Vec<Value> = views.iter().map(ValueRef::to_value).collect();
            let mut outputs = executable.run(&all, cache, Some(trace))?;
            for (to, from) in states.iter_mut().zip(outputs.drain(own..)) {
                *to = from;
            }
            Ok(outputs)
        })
    }

    /// Like [`run`](Runnable::run) on borrowed tensors, which are not copied where the backend computes in the host's
    /// memory; calls `output` with the index and a view of every output.
    pub fn run_borrowed(
        &mut self,
        inputs: &[ValueRef<'_>],
        output: OutputCallback<'_>,
    ) -> Result<(), BackendError> {
        let own = self.graph.caller_outputs().len();
        self.with_cache(inputs, |executable, inputs, cache, states| {
            let mut each = |index: usize, view: ValueRef<'_>| match index.checked_sub(own) {
                Some(state) => states::store(&mut states[state], view),
                None => output(index, view),
            };
            executable.run_borrowed(inputs, cache, &mut each)
        })
    }

    /// Checks inputs and runs them, followed by the states, with the step of the cache that they are. The new states are written to
    /// memory of their own, so that a run that fails changes none.
    fn with_cache<T>(
        &mut self,
        inputs: &[ValueRef<'_>],
        run: impl FnOnce(
            &mut dyn Executable,
            &[ValueRef<'_>],
            Option<CacheStep<'_>>,
            &mut [Value],
        ) -> Result<T, BackendError>,
    ) -> Result<T, BackendError> {
        let (current, next) = self.states.for_run();
        let all: Vec<ValueRef<'_>>;
        let inputs = match current {
            [] => inputs,
            states => {
                let states = states.iter().map(Value::view);
                all = inputs.iter().copied().chain(states).collect();
                &all
            }
        };
        check_inputs(&self.graph, inputs)?;
        let executable = &mut *self.executable;
        let result = match &mut self.cache {
            None => run(executable, inputs, None, next)?,
            Some(cache) => {
                let positions = &mut cache.current;
                cache.positions.read(&self.graph, inputs, positions)?;
                let mut state = cache.entry.try_lock()?;
                state.run_declared(positions, |plan, bytes| {
                    run(executable, inputs, Some(CacheStep { plan, bytes }), next)
                })?
            }
        };
        self.states.exchange();
        Ok(result)
    }
}

impl BoundCache {
    /// Checks that a graph and its executable can use a cache.
    fn bind(
        graph: &Graph,
        executable: &dyn Executable,
        cache: Option<Arc<CacheEntry>>,
    ) -> Result<Option<BoundCache>, BackendError> {
        let Some(positions) = PositionInput::find(graph)? else {
            return Ok(None);
        };
        let Some(entry) = cache else {
            let reason = "its attention nodes need a cache, and none is bound".into();
            return Err(BackendErrorKind::CacheMismatch(reason).into());
        };
        let state = entry.try_lock()?;
        check_layers(graph, state.bytes.config())?;
        executable.takes(&*state.bytes)?;
        drop(state);
        Ok(Some(BoundCache {
            entry,
            positions,
            current: Vec::new(),
        }))
    }
}

/// Checks the number, types and sizes of inputs.
fn check_inputs(graph: &Graph, inputs: &[ValueRef<'_>]) -> Result<(), BackendError> {
    let shapes: Vec<&[usize]> = inputs.iter().map(|v| v.shape).collect();
    graph.bind(&shapes)?;
    for (id, value) in graph.inputs().iter().zip(inputs) {
        let tensor = graph.tensor(*id);
        let found = value.data.dtype();
        if found != tensor.ty.dtype {
            let (input, wanted) = (tensor.name.clone(), tensor.ty.dtype);
            return Err(BackendErrorKind::InputType {
                input,
                found,
                wanted,
            }
            .into());
        }
        if value.data.len() != value.shape.iter().product::<usize>() {
            let (input, elements, shape) =
                (tensor.name.clone(), value.data.len(), value.shape.to_vec());
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

/// Whether a graph is a decoder: it takes tokens, positions and rows, and returns one output row per requested row. Further
/// outputs have a row per token.
fn takes_steps(graph: &Graph) -> bool {
    let is_step_input = |id: &TensorId| {
        let ty = &graph.tensor(*id).ty;
        ty.dtype == DType::I32 && ty.shape.len() == 1
    };
    let is_rows = |id: &TensorId| {
        let ty = &graph.tensor(*id).ty;
        ty.dtype == DType::F32 && ty.shape.len() == 2
    };
    graph.inputs().len() == 3
        && graph.states().is_empty()
        && graph.inputs().iter().all(is_step_input)
        && !graph.outputs().is_empty()
        && graph.outputs().iter().all(is_rows)
}

/// The nodes with cached attention, with their cache ids.
pub fn attention_nodes(graph: &Graph) -> impl Iterator<Item = (&Node, u32)> {
    graph.nodes().iter().filter_map(|node| match &node.op {
        Op::UpdateAndAttend(op) => Some((node, op.cache_id)),
        _ => None,
    })
}

/// The nodes that use the cache, each with what it uses.
pub fn cached_nodes(graph: &Graph) -> impl Iterator<Item = (&Node, CacheUse)> {
    graph.nodes().iter().filter_map(|node| {
        let operands: Vec<_> = node.inputs.iter().map(|id| &graph.tensor(*id).ty).collect();
        Some((node, node.op.cache(&operands)?))
    })
}

impl PositionInput {
    /// Finds the graph input that all nodes with memory use as their position, possibly through reshapes and casts.
    fn find(graph: &Graph) -> Result<Option<PositionInput>, BackendError> {
        let mut found = None;
        for (node, cache) in cached_nodes(graph) {
            let position = node.inputs[cache.position];
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
        inputs: &[ValueRef<'_>],
        positions: &mut Vec<i32>,
    ) -> Result<(), BackendError> {
        positions.clear();
        let step = self.per_token.max(1);
        match &inputs[self.index].data {
            DataRef::I32(all) => positions.extend(all.iter().step_by(step)),
            DataRef::I64(all) => {
                for &position in all.iter().step_by(step) {
                    let fits = i32::try_from(position);
                    positions.push(fits.map_err(|_| BackendErrorKind::PositionOutOfRange {
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

/// Follows integer reshapes and casts back to the tensor that they start from.
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

/// Checks that the cache has every cache id of the graph, with the same heads and dimensions.
fn check_layers(graph: &Graph, config: &CacheConfig) -> Result<(), BackendError> {
    for (node, CacheUse { id, dims, .. }) in cached_nodes(graph) {
        let name = graph.node_name(node);
        let Some(layer) = config.layers.get(id as usize) else {
            let reason = format!(
                "{name} names cache {id}, the cache has {}",
                config.layers.len()
            );
            return Err(BackendErrorKind::CacheMismatch(reason).into());
        };
        if dims != Some([layer.kv_heads, layer.key_dim, layer.value_dim]) {
            let reason = format!(
                "{name} needs heads, elements of keys and of values {dims:?}, cache {id} has {layer:?}"
            );
            return Err(BackendErrorKind::CacheMismatch(reason).into());
        }
    }
    Ok(())
}
