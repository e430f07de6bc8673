//! `InferenceSession`: runs one graph on named tensors, for models that are not decoders and for single decoder steps.

mod by_shape;
mod copies;
mod random;
mod scatter;
mod staged;

pub use by_shape::MAX_SHAPES;
pub use copies::SessionCopies;
pub use import::{TensorDim, TensorInfo};
pub use random::RandomInputs;
pub use scatter::ScatterDecoder;

use self::by_shape::ShapedRuns;
use self::copies::CopySource;
use crate::batch_runner::new_kv;
use crate::options::{RunnerOptions, cache_config};
use crate::{RuntimeError, RuntimeErrorKind};
use backend::{
    Backend, BackendError, BackendErrorKind, CompileOptions, NodeProfile, OutputCallback, Runnable,
    TraceCallback, attention_nodes,
};
use base::Bytes;
use graph::passes::{self, PassSelection};
use graph::{DataMut, Graph, TensorId, Value, ValueRef};
use import::{Artifact, ImportError, ImportOptions, Method, ModelDescription, ShapedMethod};
use kv::{BackendOptions, CacheEntry, CacheRegistry, CacheSession, Contiguous};
use std::path::Path;
use std::sync::Arc;

/// The options of an [`InferenceSession`].
#[derive(Clone, Debug, Default)]
pub struct InferenceOptions {
    /// Threads and executor.
    pub compile: CompileOptions,
    /// The optimisation passes to run on the graph.
    pub passes: PassSelection,
    /// The method to run; `None` for the model's only method or `forward`.
    pub method: Option<String>,
    /// The cache of a graph with `update_and_attend`. [`InferenceSession::load`] creates one if this is empty.
    pub backend: BackendOptions,
}

/// A compiled graph that runs on named tensors.
///
/// A graph plans with sizes that are polynomials in the dynamic sizes of its inputs. For a method that has no such graph (one that divides
/// a dynamic size with a remainder, for instance), the session makes a graph for the shapes of each run's inputs, and holds those of the
/// last [`MAX_SHAPES`] shapes.
///
/// Buffers that the model writes to are [states](InferenceSession::states) of the session.
pub struct InferenceSession {
    runs: Runs,
    inputs: Vec<TensorInfo>,
    outputs: Vec<TensorInfo>,
    states: Vec<TensorInfo>,
    description: ModelDescription,
    /// Makes copies of the session, if it keeps nothing between runs.
    copies: Option<SessionCopies>,
    /// The session's own cache, cleared before every run.
    cache: Option<CacheSession<Contiguous>>,
    /// Free bytes of the backend's device when the session was created, if it reports them.
    free_memory: Option<u64>,
}

/// What a session runs.
enum Runs {
    /// One graph for inputs of all shapes.
    Planned(Box<Runnable>),
    /// A graph for each shape of the inputs.
    ByShape(Box<ShapedRuns>),
}

impl InferenceSession {
    /// Loads a model file with the inputs and outputs that it was exported with. A decoder that cannot run on those
    /// (for instance an ONNX file whose caches are inputs of dynamic size) is loaded like in a runner: its inputs are
    /// tokens, positions and rows.
    ///
    /// A decoder with cached attention gets its own cache, unless the options name one. Every run then starts with an
    /// empty cache.
    pub fn load(
        path: &Path,
        backend: &dyn Backend,
        options: &InferenceOptions,
    ) -> Result<InferenceSession, RuntimeError> {
        let artifact = open(|options| import::open_with(path, options))?;
        InferenceSession::from_artifact(artifact, backend, options)
    }

    /// Like [`load`](InferenceSession::load), for a model held in `bytes`, without files beside it.
    pub fn load_bytes(
        bytes: Bytes,
        backend: &dyn Backend,
        options: &InferenceOptions,
    ) -> Result<InferenceSession, RuntimeError> {
        let artifact = open(|options| import::open_bytes(bytes.clone(), options))?;
        InferenceSession::from_artifact(artifact, backend, options)
    }

    fn from_artifact(
        artifact: Artifact,
        backend: &dyn Backend,
        options: &InferenceOptions,
    ) -> Result<InferenceSession, RuntimeError> {
        let description = artifact.description();
        let mut session = InferenceSession::of_method(artifact, backend, options)?;
        session.description = description;
        Ok(session)
    }

    fn of_method(
        artifact: Artifact,
        backend: &dyn Backend,
        options: &InferenceOptions,
    ) -> Result<InferenceSession, RuntimeError> {
        let method = select_method(&artifact, options.method.as_deref())?;
        let (graph, declared) = match method {
            Selected::Planned(method) => {
                (method.graph.clone(), artifact.declared_types(&method.name))
            }
            Selected::ByShape(method) => {
                let method = method.clone();
                return InferenceSession::by_shape(artifact, method, backend, options);
            }
        };
        let mut session = InferenceSession::of_graph(graph, &artifact, backend, options)?;
        for info in session.inputs.iter_mut().chain(&mut session.outputs) {
            let declared = declared.get(&info.name).copied();
            // A decoder for runners has inputs of its own, which may have names of the file.
            if let Some(declared) = declared.filter(|kind| kind.dtype() == info.dtype) {
                info.declared = declared;
            }
        }
        Ok(session)
    }

    fn of_graph(
        graph: Graph,
        artifact: &Artifact,
        backend: &dyn Backend,
        options: &InferenceOptions,
    ) -> Result<InferenceSession, RuntimeError> {
        let attends = attention_nodes(&graph).next().is_some();
        if !attends || options.backend.cache_key.is_some() {
            return InferenceSession::from_graph(graph, backend, options);
        }
        // A step may be as long as the context, so no layer is a ring.
        let runner_options = RunnerOptions {
            ring_layers: false,
            ..RunnerOptions::default()
        };
        let config = cache_config(&artifact.facts, &runner_options)?;
        let bytes = new_kv(backend, &config)?;
        let cache = CacheSession::new("contiguous", Contiguous::new(&config), bytes);
        let bound = Some(cache.entry().clone());
        let mut session = InferenceSession::bind(graph, backend, options, bound)?;
        session.cache = Some(cache);
        Ok(session)
    }

    /// Optimises and compiles a graph.
    pub fn from_graph(
        graph: Graph,
        backend: &dyn Backend,
        options: &InferenceOptions,
    ) -> Result<InferenceSession, RuntimeError> {
        let key = options.backend.cache_key.as_ref();
        let cache = key.map(|key| CacheRegistry::global().get(key));
        InferenceSession::bind(graph, backend, options, cache.transpose()?)
    }

    fn by_shape(
        artifact: Artifact,
        method: ShapedMethod,
        backend: &dyn Backend,
        options: &InferenceOptions,
    ) -> Result<InferenceSession, RuntimeError> {
        let (inputs, outputs) = (method.inputs.clone(), method.outputs.clone());
        let artifact = Arc::new(artifact);
        let (compile, passes) = (&options.compile, &options.passes);
        let source =
            CopySource::ByShape(artifact.clone(), Box::new(method.clone()), passes.clone());
        let runs = ShapedRuns::new(artifact, method, backend, compile, passes)?;
        Ok(InferenceSession {
            runs: Runs::ByShape(Box::new(runs)),
            inputs,
            outputs,
            states: vec![],
            description: ModelDescription::default(),
            copies: copies(source, backend, compile),
            cache: None,
            free_memory: backend.free_memory(),
        })
    }

    fn bind(
        mut graph: Graph,
        backend: &dyn Backend,
        options: &InferenceOptions,
        cache: Option<Arc<CacheEntry>>,
    ) -> Result<InferenceSession, RuntimeError> {
        // Keep the output names: a pass may replace an output by a tensor of another name.
        let info = |ids: &[TensorId]| ids.iter().map(|id| TensorInfo::of(&graph, *id)).collect();
        let (inputs, outputs) = (info(graph.caller_inputs()), info(graph.caller_outputs()));
        let states = graph.state_inputs().iter().zip(graph.states());
        let states = states.map(|(id, state)| TensorInfo {
            name: state.name.clone(),
            ..TensorInfo::of(&graph, *id)
        });
        let states: Vec<TensorInfo> = states.collect();
        passes::optimise_with(&mut graph, &options.passes).map_err(BackendError::from)?;
        let graph = Arc::new(graph);
        let executable = backend.compile(graph.clone(), &options.compile)?;
        let is_stateless = states.is_empty() && cache.is_none();
        let source = is_stateless.then(|| CopySource::Planned(graph.clone()));
        Ok(InferenceSession {
            runs: Runs::Planned(Box::new(Runnable::bind(graph, executable, cache)?)),
            inputs,
            outputs,
            states,
            description: ModelDescription::default(),
            copies: source.and_then(|source| copies(source, backend, &options.compile)),
            cache: None,
            free_memory: backend.free_memory(),
        })
    }

    /// The inputs of [`run`](InferenceSession::run).
    pub fn inputs(&self) -> &[TensorInfo] {
        &self.inputs
    }

    /// The outputs of [`run`](InferenceSession::run).
    pub fn outputs(&self) -> &[TensorInfo] {
        &self.outputs
    }

    /// Makes further sessions on the same graphs and weights, for threads that run the model at once. `None` if the session keeps states
    /// or a cache between runs, or its backend cannot compile graphs later.
    pub fn copies(&self) -> Option<&SessionCopies> {
        self.copies.as_ref()
    }

    /// The metadata of the model file.
    pub fn description(&self) -> &ModelDescription {
        &self.description
    }

    /// The session's states: the buffers that the model writes to. They keep their elements from run to run; a run that fails changes
    /// none. An `update_and_attend` cache is no state.
    pub fn states(&self) -> &[TensorInfo] {
        &self.states
    }

    /// The elements of a state that the next run reads.
    pub fn state(&self, name: &str) -> Option<&Value> {
        let Runs::Planned(runnable) = &self.runs else {
            return None;
        };
        let mut states = runnable.states();
        states.find_map(|(own, value)| (own == name).then_some(value))
    }

    /// Replaces the elements of a state, for instance by saved ones.
    ///
    /// # Errors
    /// If there is no state of this name, or if it has another type or shape.
    pub fn set_state(&mut self, name: &str, value: Value) -> Result<(), RuntimeError> {
        match &mut self.runs {
            Runs::Planned(runnable) => Ok(runnable.set_state(name, value)?),
            Runs::ByShape(_) => {
                let reason = "does not exist: the model keeps none".to_owned();
                let state = name.to_owned();
                Err(BackendError::from(BackendErrorKind::State { state, reason }).into())
            }
        }
    }

    /// Gives all states the elements that they have in the model file.
    pub fn reset_states(&mut self) {
        if let Runs::Planned(runnable) = &mut self.runs {
            runnable.reset_states();
        }
    }

    /// Gives all states the elements from before the last run, for callers that could not take its outputs. It can be called once
    /// after a run that succeeded.
    pub fn undo_states(&mut self) {
        if let Runs::Planned(runnable) = &mut self.runs {
            runnable.undo_states();
        }
    }

    /// The optimised graph; `None` if it is made for the shapes of each run's inputs, and there was no run. The first of the last run,
    /// if that had several.
    pub fn graph(&self) -> Option<&Graph> {
        match &self.runs {
            Runs::Planned(runnable) => Some(runnable.graph()),
            Runs::ByShape(runs) => runs.last(),
        }
    }

    /// The graphs of the last run, in the order in which they ran: several if the model needs sizes that depend on what it computes.
    pub fn last_graphs(&self) -> Vec<&Graph> {
        match &self.runs {
            Runs::Planned(runnable) => vec![runnable.graph()],
            Runs::ByShape(runs) => runs.last_graphs(),
        }
    }

    /// Why the session makes a graph for the shapes of each run's inputs; `None` if one graph serves all shapes.
    pub fn planned_by_shape(&self) -> Option<&str> {
        match &self.runs {
            Runs::Planned(_) => None,
            Runs::ByShape(runs) => Some(&runs.method().reason),
        }
    }

    /// The number of graphs that are compiled.
    pub fn compiled_graphs(&self) -> usize {
        match &self.runs {
            Runs::Planned(_) => 1,
            Runs::ByShape(runs) => runs.all().count(),
        }
    }

    /// Runs the graph on named inputs, given in any order. Outputs are in the order of
    /// [`outputs`](InferenceSession::outputs).
    pub fn run<N: AsRef<str>>(
        &mut self,
        inputs: impl IntoIterator<Item = (N, Value)>,
    ) -> Result<Vec<(String, Value)>, RuntimeError> {
        let inputs = self.in_order(inputs)?;
        self.empty_cache()?;
        let outputs = match &mut self.runs {
            Runs::Planned(runnable) => runnable.run(&inputs)?,
            Runs::ByShape(runs) => collected(runs, &inputs, None)?,
        };
        Ok(self.named(outputs))
    }

    /// Like [`run`](InferenceSession::run) on borrowed inputs, which the CPU reads where they are. Calls `output` with the
    /// index of every output in [`outputs`](InferenceSession::outputs) and a view of it.
    pub fn run_borrowed<'a, N: AsRef<str>>(
        &mut self,
        inputs: impl IntoIterator<Item = (N, ValueRef<'a>)>,
        output: OutputCallback<'_>,
    ) -> Result<(), RuntimeError> {
        let inputs = self.in_order(inputs)?;
        self.empty_cache()?;
        match &mut self.runs {
            Runs::Planned(runnable) => Ok(runnable.run_borrowed(&inputs, output)?),
            Runs::ByShape(runs) => runs.run(&inputs, output, None),
        }
    }

    /// Like [`run`](InferenceSession::run), for the named outputs only, in this order.
    pub fn run_selected<'a, N: AsRef<str>>(
        &mut self,
        names: &[&str],
        inputs: impl IntoIterator<Item = (N, ValueRef<'a>)>,
    ) -> Result<Vec<Value>, RuntimeError> {
        let mut found: Vec<Option<Value>> = vec![None; names.len()];
        self.run_each(names, inputs, |at, view| found[at] = Some(view.to_value()))?;
        Ok(found.into_iter().flatten().collect())
    }

    /// Like [`run`](InferenceSession::run), with the named outputs written to the caller's memory. Other outputs are not
    /// copied.
    ///
    /// # Errors
    /// Also if there is no such output, or the memory has another type or number of elements than the output.
    pub fn run_into<'a, N: AsRef<str>>(
        &mut self,
        inputs: impl IntoIterator<Item = (N, ValueRef<'a>)>,
        outputs: &mut [(&str, DataMut<'_>)],
    ) -> Result<(), RuntimeError> {
        let names: Vec<&str> = outputs.iter().map(|(name, _)| *name).collect();
        let mut failed = None;
        self.run_each(&names, inputs, |at, view| {
            let (name, memory) = &mut outputs[at];
            if let Err(reason) = memory.copy_from(view.data) {
                let output = name.to_string();
                failed.get_or_insert(RuntimeErrorKind::OutputMemory { output, reason });
            }
        })?;
        match failed {
            Some(error) => {
                self.undo_states();
                Err(error.into())
            }
            None => Ok(()),
        }
    }

    /// Runs the graph and calls `output` with the index in `names` and a view of each of these outputs.
    fn run_each<'a, N: AsRef<str>>(
        &mut self,
        names: &[&str],
        inputs: impl IntoIterator<Item = (N, ValueRef<'a>)>,
        mut output: impl FnMut(usize, ValueRef<'_>),
    ) -> Result<(), RuntimeError> {
        let wanted = names.iter().map(|name| self.output_index(name));
        let wanted = wanted.collect::<Result<Vec<usize>, _>>()?;
        self.run_borrowed(inputs, &mut |index, view| {
            let named = wanted.iter().enumerate().filter(|(_, i)| **i == index);
            named.for_each(|(at, _)| output(at, view));
        })
    }

    fn output_index(&self, name: &str) -> Result<usize, RuntimeError> {
        let found = self.outputs.iter().position(|info| info.name == name);
        let unknown = || RuntimeErrorKind::UnknownOutput {
            name: name.to_owned(),
            outputs: list(&self.outputs),
        };
        Ok(found.ok_or_else(unknown)?)
    }

    /// Like [`run`](InferenceSession::run), and calls `trace` with the name, op and result of every node. Needs the
    /// interpreted executor.
    pub fn run_traced<N: AsRef<str>>(
        &mut self,
        inputs: impl IntoIterator<Item = (N, Value)>,
        trace: TraceCallback<'_>,
    ) -> Result<Vec<(String, Value)>, RuntimeError> {
        let inputs = self.in_order(inputs)?;
        self.empty_cache()?;
        let outputs = match &mut self.runs {
            Runs::Planned(runnable) => runnable.run_traced(&inputs, trace)?,
            Runs::ByShape(runs) => collected(runs, &inputs, Some(trace))?,
        };
        Ok(self.named(outputs))
    }

    /// Starts or stops measuring nodes. Needs the compiled executor.
    pub fn set_profiling(&mut self, on: bool) {
        match &mut self.runs {
            Runs::Planned(runnable) => runnable.executable_mut().set_profiling(on),
            Runs::ByShape(runs) => runs.set_profiling(on),
        }
    }

    /// The measurements since profiling was started, of the graphs that ran last.
    pub fn profile(&self) -> Vec<NodeProfile> {
        match &self.runs {
            Runs::Planned(runnable) => runnable.executable().profile(),
            Runs::ByShape(runs) => runs.profile(),
        }
    }

    /// Bytes of activations and scratch allocated now.
    pub fn arena_bytes(&self) -> usize {
        let arena = |runnable: &Runnable| runnable.executable().arena_bytes();
        match &self.runs {
            Runs::Planned(runnable) => arena(runnable),
            Runs::ByShape(runs) => runs.all().map(arena).sum(),
        }
    }

    fn empty_cache(&self) -> Result<(), RuntimeError> {
        match &self.cache {
            Some(cache) => Ok(cache.clear()?),
            None => Ok(()),
        }
    }

    fn in_order<N: AsRef<str>, V>(
        &self,
        given: impl IntoIterator<Item = (N, V)>,
    ) -> Result<Vec<V>, RuntimeError> {
        let mut found: Vec<Option<V>> = self.inputs.iter().map(|_| None).collect();
        for (name, value) in given {
            let name = name.as_ref();
            let Some(i) = self.inputs.iter().position(|info| info.name == name) else {
                return Err(RuntimeErrorKind::UnknownInput {
                    name: name.to_owned(),
                    inputs: list(&self.inputs),
                }
                .into());
            };
            if found[i].replace(value).is_some() {
                return Err(RuntimeErrorKind::DuplicateInput(name.to_owned()).into());
            }
        }
        let missing = |(value, info): (Option<V>, &TensorInfo)| {
            value.ok_or_else(|| RuntimeErrorKind::MissingInput(info.to_string()).into())
        };
        found.into_iter().zip(&self.inputs).map(missing).collect()
    }

    fn named(&self, outputs: Vec<Value>) -> Vec<(String, Value)> {
        let names = self.outputs.iter().map(|info| info.name.clone());
        names.zip(outputs).collect()
    }
}

/// The outputs of a run.
fn collected(
    runs: &mut ShapedRuns,
    inputs: &[Value],
    trace: Option<TraceCallback<'_>>,
) -> Result<Vec<Value>, RuntimeError> {
    let views: Vec<ValueRef<'_>> = inputs.iter().map(Value::view).collect();
    let mut outputs = vec![];
    runs.run(&views, &mut |_, view| outputs.push(view.to_value()), trace)?;
    Ok(outputs)
}

fn copies(
    source: CopySource,
    backend: &dyn Backend,
    compile: &CompileOptions,
) -> Option<SessionCopies> {
    Some(SessionCopies {
        source,
        backend: backend.shared()?,
        compile: CompileOptions {
            progress: None,
            ..compile.clone()
        },
    })
}

fn list(tensors: &[TensorInfo]) -> String {
    let texts: Vec<String> = tensors.iter().map(TensorInfo::to_string).collect();
    texts.join(", ")
}

/// Imports a model as it was exported with a graph for all shapes, else as a decoder, else with graphs for the shapes of each run.
fn open(
    import: impl Fn(&ImportOptions) -> Result<Artifact, ImportError>,
) -> Result<Artifact, RuntimeError> {
    let exported = ImportOptions {
        as_exported: true,
        by_shape: true,
        ..ImportOptions::default()
    };
    let found = import(&exported);
    if found
        .as_ref()
        .is_ok_and(|artifact| artifact.shaped.is_empty())
    {
        return Ok(found?);
    }
    match import(&ImportOptions::default()) {
        Ok(artifact) if artifact.facts.is_decoder() => Ok(artifact),
        _ => Ok(found?),
    }
}

/// The method that a session runs.
enum Selected<'a> {
    Planned(&'a Method),
    ByShape(&'a ShapedMethod),
}

/// The method to run: the named one, else the only one, else `forward`.
fn select_method<'a>(
    artifact: &'a Artifact,
    name: Option<&str>,
) -> Result<Selected<'a>, RuntimeError> {
    let planned = artifact.methods.iter();
    let planned = planned.map(|method| (&method.name, Selected::Planned(method)));
    let shaped = artifact.shaped.iter();
    let shaped = shaped.map(|method| (&method.name, Selected::ByShape(method)));
    let mut methods: Vec<(&String, Selected<'a>)> = planned.chain(shaped).collect();
    let wanted = match (name, &methods[..]) {
        (Some(name), _) => name,
        (None, [(only, _)]) => &only[..],
        (None, _) => "forward",
    };
    let found = methods.iter().position(|(own, _)| *own == wanted);
    Ok(match (found, name) {
        (Some(at), _) => methods.swap_remove(at).1,
        (None, Some(name)) => return Err(RuntimeErrorKind::UnknownMethod(name.to_owned()).into()),
        (None, None) => {
            let names: Vec<&str> = methods.iter().map(|(name, _)| &name[..]).collect();
            return Err(RuntimeErrorKind::AmbiguousMethod(names.join(", ")).into());
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use backend::reference::Reference;
    use base::DType;
    use graph::GraphBuilder;
    use graph::ops::{Binary, BinaryFunction, Scale};

    fn session() -> InferenceSession {
        let mut b = GraphBuilder::new("forward");
        let t = b.symbol_in("T", 1..=4);
        let x = b.input("x", DType::F32, [t, 2.into()]);
        let y = b.input("y", DType::F32, [2.into()]);
        let scaled = b.node("scaled", Scale { factor: 2.0 }, &[x]).unwrap();
        let add = Binary {
            function: BinaryFunction::Add,
        };
        let sum = b.node("sum", add, &[scaled, y]).unwrap();
        let graph = b.finish(&[sum]).unwrap();
        InferenceSession::from_graph(graph, &Reference::new(), &InferenceOptions::default())
            .unwrap()
    }

    fn x(rows: usize) -> Value {
        Value::f32([rows, 2], vec![1.0; 2 * rows])
    }

    #[test]
    fn runs_on_names_in_any_order() {
        let mut session = session();
        assert_eq!(list(session.inputs()), "x: f32[T, 2], y: f32[2]");
        assert_eq!(list(session.outputs()), "sum: f32[T, 2]");
        let y = Value::f32([2], vec![10.0, 20.0]);
        let found = session.run([("y", y), ("x", x(1))]).unwrap();
        assert_eq!(
            found,
            [("sum".to_owned(), Value::f32([1, 2], vec![12.0, 22.0]))]
        );
    }

    #[test]
    fn copies_run_beside_the_session() {
        let mut session = session();
        let copies = session.copies().cloned().unwrap();
        let mut copy = copies.make(session.inputs(), session.outputs()).unwrap();
        assert_eq!(list(copy.inputs()), list(session.inputs()));
        let feed = || [("x", x(2)), ("y", Value::f32([2], vec![10.0, 20.0]))];
        assert_eq!(copy.run(feed()).unwrap(), session.run(feed()).unwrap());
    }

    #[test]
    fn borrowed_inputs_and_selected_outputs() {
        let mut session = session();
        let (x, y) = (x(2), Value::f32([2], vec![10.0, 20.0]));
        let feed = || [("x", x.view()), ("y", y.view())];
        let expect = Value::f32([2, 2], vec![12.0, 22.0, 12.0, 22.0]);
        let found = session.run_selected(&["sum", "sum"], feed()).unwrap();
        assert_eq!(found, [expect.clone(), expect.clone()]);
        let mut memory = vec![0.0; 4];
        let mut into = [("sum", DataMut::F32(&mut memory))];
        session.run_into(feed(), &mut into).unwrap();
        assert_eq!(memory, expect.as_f32().unwrap());
        let error = session.run_selected(&["z"], feed()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "there is no output \"z\"; the outputs are sum: f32[T, 2]"
        );
        let mut short = vec![0.0; 3];
        let mut into = [("sum", DataMut::F32(&mut short))];
        let error = session.run_into(feed(), &mut into).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the memory for the output sum has 3 elements, must have 4"
        );
    }

    #[test]
    fn wrong_inputs_are_named() {
        let y = || Value::f32([2], vec![0.0; 2]);
        let integers = Value::i32([1, 2], vec![0, 0]);
        let table: Vec<(Vec<(&str, Value)>, &str)> = vec![
            (
                vec![("x", x(1)), ("z", y())],
                "there is no input \"z\"; the inputs are x: f32[T, 2], y: f32[2]",
            ),
            (vec![("x", x(1))], "the input y: f32[2] is missing"),
            (
                vec![("x", x(1)), ("x", x(1)), ("y", y())],
                "the input \"x\" was given twice",
            ),
            (
                vec![("x", integers), ("y", y())],
                "input x is i32, must be f32",
            ),
            (
                vec![("x", x(5)), ("y", y())],
                "tensor x has no size with these inputs: dimension 0 is 5, T must be from 1 to 4",
            ),
        ];
        for (inputs, expect) in table {
            let error = session().run(inputs).unwrap_err();
            assert_eq!(error.to_string(), expect);
        }
    }
}
