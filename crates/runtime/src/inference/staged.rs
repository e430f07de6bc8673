//! `PlannedStage`: a compiled stage of a method, and those that followed it.

use super::by_shape::MAX_SHAPES;
use crate::RuntimeError;
use backend::{NodeProfile, OutputCallback, Runnable, TraceCallback};
use graph::{Graph, Value, ValueRef};
use import::{Cut, Stage, StageInputs};

/// A compiled stage, and the stages that followed it in the last runs.
pub(super) struct PlannedStage {
    runnable: Option<Runnable>,
    cut: Option<Cut>,
    /// The last used first.
    later: Vec<LaterStage>,
}

/// A stage that follows another, and the inputs that it was made for.
struct LaterStage {
    /// The sizes of its inputs; `None` if the graph serves all.
    shapes: Vec<Vec<Option<usize>>>,
    /// The inputs that are constants of the graph.
    known: Vec<Value>,
    stage: PlannedStage,
}

/// Compiles graphs; the second graph shares its constants.
pub(super) type Compile<'a> = &'a dyn Fn(Graph, Option<&Graph>) -> Result<Runnable, RuntimeError>;

/// Makes the stages of a run.
pub(super) struct StageMaker<'a> {
    pub(super) compile: Compile<'a>,
    pub(super) next: &'a dyn Fn(&Cut, &StageInputs) -> Result<Stage, RuntimeError>,
}

impl PlannedStage {
    /// A graph that gives all outputs of its method.
    pub(super) fn whole(runnable: Runnable) -> PlannedStage {
        PlannedStage {
            runnable: Some(runnable),
            cut: None,
            later: vec![],
        }
    }

    /// Compiles a stage.
    pub(super) fn new(
        stage: Stage,
        compile: Compile<'_>,
        like: Option<&Graph>,
    ) -> Result<PlannedStage, RuntimeError> {
        let runnable = stage.graph.map(|graph| compile(graph, like));
        Ok(PlannedStage {
            runnable: runnable.transpose()?,
            cut: stage.next,
            later: vec![],
        })
    }

    /// Runs the stage and those that follow, on the inputs of its graph. `given` are all inputs of the stage.
    pub(super) fn run(
        &mut self,
        inputs: &[ValueRef<'_>],
        given: &[ValueRef<'_>],
        maker: &StageMaker<'_>,
        output: OutputCallback<'_>,
        mut trace: Option<TraceCallback<'_>>,
    ) -> Result<(), RuntimeError> {
        let Some(cut) = &self.cut else {
            let runnable = self.runnable.as_mut().expect("the last stage has a graph");
            return run_graph(runnable, inputs, output, trace);
        };
        let mut outputs = vec![];
        if let Some(runnable) = &mut self.runnable {
            let trace = reborrow(&mut trace);
            run_graph(
                runnable,
                inputs,
                &mut |_, view| outputs.push(view.to_value()),
                trace,
            )?;
        }
        let next = cut.resume(given, outputs)?;
        let at = match self.later.iter().position(|later| later.serves(&next)) {
            Some(at) => at,
            None => {
                let stage = (maker.next)(cut, &next)?;
                let like = self.later.first().and_then(|later| later.stage.graph());
                let later = LaterStage::new(stage, &next, maker.compile, like.or(self.graph()))?;
                self.later.truncate(MAX_SHAPES - 1);
                self.later.push(later);
                self.later.len() - 1
            }
        };
        self.later[..=at].rotate_right(1);
        let views: Vec<ValueRef<'_>> = next.values.iter().map(Value::view).collect();
        let numbered = views.iter().enumerate();
        let unknown = numbered.filter(|(at, _)| !next.is_known(*at));
        let unknown: Vec<ValueRef<'_>> = unknown.map(|(_, view)| *view).collect();
        let later = &mut self.later[0].stage;
        later.run(&unknown, &views, maker, output, trace)
    }

    /// The graph, if the stage computes anything.
    pub(super) fn graph(&self) -> Option<&Graph> {
        Some(self.runnable.as_ref()?.graph())
    }

    /// The stages of the last run.
    pub(super) fn chain(&self) -> impl Iterator<Item = &Runnable> {
        let first = self.later.first();
        let later = first.map(|later| -> Box<dyn Iterator<Item = &Runnable> + '_> {
            Box::new(later.stage.chain())
        });
        self.runnable.iter().chain(later.into_iter().flatten())
    }

    /// All graphs that are held.
    pub(super) fn all(&self) -> Vec<&Runnable> {
        let later = self.later.iter().flat_map(|later| later.stage.all());
        self.runnable.iter().chain(later).collect()
    }

    /// Calls `change` with every graph that is held.
    pub(super) fn each_mut(&mut self, change: &mut dyn FnMut(&mut Runnable)) {
        self.runnable.iter_mut().for_each(&mut *change);
        for later in &mut self.later {
            later.stage.each_mut(change);
        }
    }

    /// The measurements of the last run's graphs.
    pub(super) fn profile(&self) -> Vec<NodeProfile> {
        let profiles = self.chain().map(|runnable| runnable.executable().profile());
        profiles.flatten().collect()
    }
}

impl LaterStage {
    fn new(
        stage: Stage,
        inputs: &StageInputs,
        compile: Compile<'_>,
        like: Option<&Graph>,
    ) -> Result<LaterStage, RuntimeError> {
        let sizes = |value: &Value| value.shape.iter().copied().map(Some).collect();
        let mut shapes: Vec<Vec<Option<usize>>> = inputs.values.iter().map(sizes).collect();
        if stage.for_any_count {
            for (input, axis) in &inputs.counted {
                shapes[*input][*axis] = None;
            }
        }
        let known = inputs.known.iter().map(|at| inputs.values[*at].clone());
        Ok(LaterStage {
            shapes,
            known: known.collect(),
            stage: PlannedStage::new(stage, compile, like)?,
        })
    }

    /// Whether the stage's graph is for these inputs.
    fn serves(&self, inputs: &StageInputs) -> bool {
        let fits = |(own, value): (&Vec<Option<usize>>, &Value)| {
            let mut sizes = own.iter().zip(&value.shape);
            own.len() == value.shape.len()
                && sizes.all(|(own, given)| own.is_none_or(|own| own == *given))
        };
        let mut known = self.known.iter().zip(&inputs.known);
        self.shapes.iter().zip(&inputs.values).all(fits)
            && known.all(|(own, at)| same_bits(own, &inputs.values[*at]))
    }
}

/// Whether two tensors are equal; NaN equals itself, and zeros of different signs differ.
fn same_bits(a: &Value, b: &Value) -> bool {
    a.dtype() == b.dtype() && a.view().data.as_bytes() == b.view().data.as_bytes()
}

fn run_graph(
    runnable: &mut Runnable,
    inputs: &[ValueRef<'_>],
    output: OutputCallback<'_>,
    trace: Option<TraceCallback<'_>>,
) -> Result<(), RuntimeError> {
    let Some(trace) = trace else {
        return Ok(runnable.run_borrowed(inputs, output)?);
    };
    let inputs: Vec<Value> = inputs.iter().map(ValueRef::to_value).collect();
    let outputs = runnable.run_traced(&inputs, trace)?;
    for (index, value) in outputs.iter().enumerate() {
        output(index, value.view());
    }
    Ok(())
}

fn reborrow<'b>(trace: &'b mut Option<TraceCallback<'_>>) -> Option<TraceCallback<'b>> {
    match trace {
        Some(trace) => Some(&mut **trace),
        None => None,
    }
}
