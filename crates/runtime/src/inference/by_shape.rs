//! `ShapedRuns`: runs of a method whose graph is made for the shapes of each run's inputs.

use crate::{RuntimeError, RuntimeErrorKind};
use backend::{Backend, BackendError, CompileOptions, Runnable};
use graph::Value;
use graph::passes::{self, PassSelection};
use import::{Artifact, ShapedMethod};
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
    /// Whether graphs are made for the values of single integers too, because one could not be made without them.
    by_value: bool,
    /// Whether nodes are measured.
    profiling: bool,
}

/// A compiled graph and what it was made for.
struct PlannedGraph {
    /// The shapes of all inputs.
    shapes: Vec<Vec<usize>>,
    /// The inputs that are constants of the graph.
    fixed: BTreeMap<String, Value>,
    runnable: Runnable,
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
            by_value: false,
            profiling: false,
        })
    }

    /// The method.
    pub(super) fn method(&self) -> &ShapedMethod {
        &self.method
    }

    /// Makes the graph for inputs of these shapes, of which the single integers have these values by name, unless it is held. Integers
    /// that are its constants are no inputs of it: see [`takes`](ShapedRuns::takes).
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

    /// The graph that was planned for last.
    ///
    /// # Panics
    /// If there is none.
    pub(super) fn last_mut(&mut self) -> &mut Runnable {
        &mut self.planned[0].runnable
    }

    /// Whether the graph that was planned for last has this input of the method.
    pub(super) fn takes(&self, input: &str) -> bool {
        let last = self.planned.first();
        last.is_none_or(|planned| !planned.fixed.contains_key(input))
    }

    /// Lowers, plans and compiles the graph for these inputs.
    fn make(
        &mut self,
        shapes: &[&[usize]],
        integers: BTreeMap<String, Value>,
    ) -> Result<PlannedGraph, RuntimeError> {
        let none = BTreeMap::new();
        let lowered = match self.by_value {
            true => self.artifact.specialise(&self.method, shapes, &integers),
            false => self.artifact.specialise(&self.method, shapes, &none),
        };
        let (mut graph, fixed) = match lowered {
            Ok(graph) if self.by_value => (graph, integers),
            Ok(graph) => (graph, none),
            Err(error) if self.by_value || integers.is_empty() => return Err(error.into()),
            Err(_) => {
                let graph = self.artifact.specialise(&self.method, shapes, &integers)?;
                self.by_value = true;
                (graph, integers)
            }
        };
        passes::optimise_with(&mut graph, &self.passes).map_err(BackendError::from)?;
        if let Some(last) = self.last() {
            graph.share_constants(last.graph());
        }
        let graph = Arc::new(graph);
        let executable = self.backend.compile(graph.clone(), &self.compile)?;
        let mut runnable = Runnable::bind(graph, executable, None)?;
        if self.profiling {
            runnable.executable_mut().set_profiling(true);
        }
        Ok(PlannedGraph {
            shapes: shapes.iter().map(|shape| shape.to_vec()).collect(),
            fixed,
            runnable,
        })
    }

    /// Drops the graphs that were used longest ago, if there are too many or their arenas are too large.
    fn forget_oldest(&mut self) {
        self.planned.truncate(MAX_SHAPES);
        let arena = |planned: &PlannedGraph| planned.runnable.executable().arena_bytes();
        while self.planned.len() > 1
            && self.planned[1..].iter().map(arena).sum::<usize>() > MAX_IDLE_ARENA_BYTES
        {
            self.planned.pop();
        }
    }

    /// The graph of the last run.
    pub(super) fn last(&self) -> Option<&Runnable> {
        self.planned.first().map(|planned| &planned.runnable)
    }

    /// The graphs that are held.
    pub(super) fn all(&self) -> impl Iterator<Item = &Runnable> {
        self.planned.iter().map(|planned| &planned.runnable)
    }

    /// Starts or stops measuring nodes.
    pub(super) fn set_profiling(&mut self, on: bool) {
        self.profiling = on;
        for planned in &mut self.planned {
            planned.runnable.executable_mut().set_profiling(on);
        }
    }
}
