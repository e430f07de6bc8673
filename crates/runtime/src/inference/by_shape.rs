//! `ShapedRuns`: runs of a method whose graph, or several, is made for the shapes of each run's inputs.

use super::staged::{PlannedStage, StageMaker};
use crate::{RuntimeError, RuntimeErrorKind};
use backend::{
    Backend, BackendError, CompileOptions, NodeProfile, OutputCallback, Runnable, TraceCallback,
};
use base::DType;
use graph::passes::{self, PassSelection};
use graph::{Graph, Value, ValueRef};
use import::{Artifact, Cut, ShapedMethod, StageInputs};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Most shapes whose graphs are held at a time.
pub const MAX_SHAPES: usize = 8;

/// Most bytes of the arenas of graphs for other shapes than those of the last run.
const MAX_IDLE_ARENA_BYTES: usize = 1 << 30;

/// The graphs of a method for the shapes that it ran on last, planned and compiled.
pub(super) struct ShapedRuns {
    artifact: Arc<Artifact>,
    method: ShapedMethod,
    backend: Arc<dyn Backend>,
    compile: CompileOptions,
    passes: PassSelection,
    /// The last used first.
    planned: Vec<PlannedGraph>,
    /// How graphs are made: as the last one was, which could not be made in a simpler way.
    kind: Specialisation,
    /// Whether nodes are measured.
    profiling: bool,
}

/// What graphs are made for, from the simplest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Specialisation {
    /// The shapes of the inputs.
    Shapes,
    /// These, and the values of inputs that are single integers.
    Integers,
    /// The shapes, in stages: what else a stage is made for is found by the one before.
    Stages,
}

/// A compiled graph, or several stages, and what they were made for.
struct PlannedGraph {
    /// The shapes of all inputs.
    shapes: Vec<Vec<usize>>,
    /// The inputs that are constants of the graph.
    fixed: BTreeMap<String, Value>,
    stage: PlannedStage,
}

impl ShapedRuns {
    /// Runs of a method of `artifact`.
    ///
    /// # Errors
    /// `InvalidOptions` if the backend cannot compile graphs later.
    pub(super) fn new(
        artifact: Arc<Artifact>,
        method: ShapedMethod,
        backend: &dyn Backend,
        compile: &CompileOptions,
        passes: &PassSelection,
    ) -> Result<ShapedRuns, RuntimeError> {
        let shared = backend.shared().ok_or_else(|| {
            RuntimeErrorKind::InvalidOptions(format!(
                "the graph of {} is made for the shapes of each run's inputs, and the backend {} cannot compile graphs later ({})",
                method.name,
                backend.id(),
                method.reason
            ))
        })?;
        Ok(ShapedRuns {
            artifact,
            method,
            backend: shared,
            compile: compile.clone(),
            passes: passes.clone(),
            planned: vec![],
            kind: Specialisation::Shapes,
            profiling: false,
        })
    }

    /// The method.
    pub(super) fn method(&self) -> &ShapedMethod {
        &self.method
    }

    /// Makes the graph for inputs of these shapes, of which the single integers have these values by name, unless it is held.
    pub(super) fn plan_for(
        &mut self,
        shapes: &[&[usize]],
        integers: BTreeMap<String, Value>,
    ) -> Result<(), RuntimeError> {
        let serves = |planned: &PlannedGraph| {
            planned.shapes == shapes && (planned.fixed.is_empty() || planned.fixed == integers)
        };
        match self.planned.iter().position(serves) {
            Some(at) => self.planned[..=at].rotate_right(1),
            None => {
                let planned = self.make(shapes, integers)?;
                self.planned.insert(0, planned);
                self.forget_oldest();
            }
        }
        Ok(())
    }

    /// Runs the method on these inputs, with a graph that is made unless there is one for their shapes.
    pub(super) fn run(
        &mut self,
        inputs: &[ValueRef<'_>],
        output: OutputCallback<'_>,
        trace: Option<TraceCallback<'_>>,
    ) -> Result<(), RuntimeError> {
        let types: Vec<DType> = inputs.iter().map(|input| input.data.dtype()).collect();
        self.method.check_types(&types)?;
        let shapes: Vec<&[usize]> = inputs.iter().map(|input| input.shape).collect();
        let integers = self.method.integers().into_iter();
        let integer = |at: usize| (self.method.inputs[at].name.clone(), inputs[at].to_value());
        let integers = integers.map(integer).collect();
        self.plan_for(&shapes, integers)?;
        let PlannedGraph { fixed, stage, .. } = &mut self.planned[0];
        let infos = inputs.iter().zip(&self.method.inputs);
        let taken = infos.filter(|(_, info)| !fixed.contains_key(&info.name));
        let taken: Vec<ValueRef<'_>> = taken.map(|(input, _)| *input).collect();
        let maker = Maker {
            backend: &*self.backend,
            compile: &self.compile,
            passes: &self.passes,
            profiling: self.profiling,
        };
        let artifact = &self.artifact;
        let maker = StageMaker {
            compile: &|graph, like| maker.compile(graph, like),
            next: &|cut: &Cut, inputs: &StageInputs| Ok(artifact.next_stage(cut, inputs)?),
        };
        stage.run(&taken, inputs, &maker, output, trace)?;
        self.forget_oldest();
        Ok(())
    }

    /// Lowers, plans and compiles the graph for these inputs.
    fn make(
        &mut self,
        shapes: &[&[usize]],
        integers: BTreeMap<String, Value>,
    ) -> Result<PlannedGraph, RuntimeError> {
        let none = BTreeMap::new();
        let mut first_error = None;
        let maker = Maker {
            backend: &*self.backend,
            compile: &self.compile,
            passes: &self.passes,
            profiling: self.profiling,
        };
        for kind in [
            Specialisation::Shapes,
            Specialisation::Integers,
            Specialisation::Stages,
        ] {
            let has_any = kind != Specialisation::Integers || !integers.is_empty();
            if kind < self.kind || !has_any {
                continue;
            }
            let fixed = match kind {
                Specialisation::Integers => &integers,
                _ => &none,
            };
            let like = self.last();
            let made = match kind {
                Specialisation::Stages => {
                    let stage = self.artifact.first_stage(&self.method, shapes);
                    stage.map(|stage| {
                        PlannedStage::new(stage, &|graph, like| maker.compile(graph, like), like)
                    })
                }
                _ => {
                    let graph = self.artifact.specialise(&self.method, shapes, fixed);
                    graph.map(|graph| Ok(PlannedStage::whole(maker.compile(graph, like)?)))
                }
            };
            match made {
                Ok(stage) => {
                    let planned = PlannedGraph {
                        shapes: shapes.iter().map(|shape| shape.to_vec()).collect(),
                        fixed: fixed.clone(),
                        stage: stage?,
                    };
                    self.kind = kind;
                    return Ok(planned);
                }
                // A way that other files cannot take does not say what is wrong with this one.
                Err(error) => first_error = Some(first_error.unwrap_or(error)),
            }
        }
        Err(first_error
            .expect("graphs are made in stages at last")
            .into())
    }

    /// Drops the graphs that were used longest ago, if there are too many or their arenas are too large.
    fn forget_oldest(&mut self) {
        self.planned.truncate(MAX_SHAPES);
        let arena = |planned: &PlannedGraph| {
            let graphs = planned.stage.all().into_iter();
            let bytes = graphs.map(|runnable| runnable.executable().arena_bytes());
            bytes.sum::<usize>()
        };
        while self.planned.len() > 1
            && self.planned[1..].iter().map(arena).sum::<usize>() > MAX_IDLE_ARENA_BYTES
        {
            self.planned.pop();
        }
    }

    /// The graph of the last run, or its first one.
    pub(super) fn last(&self) -> Option<&Graph> {
        let mut graphs = self.planned.first()?.stage.chain();
        graphs.next().map(Runnable::graph)
    }

    /// The graphs of the last run, in the order in which they ran.
    pub(super) fn last_graphs(&self) -> Vec<&Graph> {
        let last = self.planned.first();
        let graphs = last.into_iter().flat_map(|last| last.stage.chain());
        graphs.map(Runnable::graph).collect()
    }

    /// The measurements of the last run's graphs.
    pub(super) fn profile(&self) -> Vec<NodeProfile> {
        let last = self.planned.first();
        last.map_or_else(Vec::new, |last| last.stage.profile())
    }

    /// The graphs that are held.
    pub(super) fn all(&self) -> impl Iterator<Item = &Runnable> {
        self.planned.iter().flat_map(|planned| planned.stage.all())
    }

    /// Starts or stops measuring nodes.
    pub(super) fn set_profiling(&mut self, on: bool) {
        self.profiling = on;
        for planned in &mut self.planned {
            let mut set = |runnable: &mut Runnable| runnable.executable_mut().set_profiling(on);
            planned.stage.each_mut(&mut set);
        }
    }
}

/// Compiles graphs for a backend.
struct Maker<'a> {
    backend: &'a dyn Backend,
    compile: &'a CompileOptions,
    passes: &'a PassSelection,
    profiling: bool,
}

impl Maker<'_> {
    /// Optimises and compiles a graph that shares the constants of another.
    fn compile(&self, mut graph: Graph, like: Option<&Graph>) -> Result<Runnable, RuntimeError> {
        passes::optimise_with(&mut graph, self.passes).map_err(BackendError::from)?;
        if let Some(like) = like {
            graph.share_constants(like);
        }
        let graph = Arc::new(graph);
        let executable = self.backend.compile(graph.clone(), self.compile)?;
        let mut runnable = Runnable::bind(graph, executable, None)?;
        if self.profiling {
            runnable.executable_mut().set_profiling(true);
        }
        Ok(runnable)
    }
}
