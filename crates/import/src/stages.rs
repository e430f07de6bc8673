//! Methods in stages: graphs between which sizes that depend on data become known.
//!
//! A graph's sizes are known before it runs. Where a size, a branch or a number of iterations depends on what the method computes, a
//! stage ends: its graph gives what the rest needs, the runtime finds the size ([`Cut::resume`]), and the rest is lowered for it.

use base::{Bytes, DType};
use graph::{DataSized, Dim, Graph, GraphBuilder, TensorId, Value, ValueRef};

use crate::error::ImportError;
use crate::onnx::StageStart;

/// A part of a method.
#[derive(Clone, Debug)]
pub struct Stage {
    /// The graph, whose inputs are those of the [`StageInputs`] that are not known, in order; `None` if there is nothing to compute.
    pub graph: Option<Graph>,
    /// The cut before the next stage; `None` in the last stage, whose outputs are the method's.
    pub next: Option<Cut>,
    /// Whether the graph is for all sizes of its inputs' [`counted`](StageInputs::counted) axes.
    pub for_any_count: bool,
}

/// Where a stage ends.
#[derive(Clone, Debug)]
pub struct Cut {
    /// The node that needs something that depends on data, and its op.
    pub node: String,
    pub(crate) op: Option<DataSized>,
    pub(crate) operands: Vec<Source>,
    /// The first inputs of the next stage; the results of `op` follow.
    pub(crate) kept: Vec<Source>,
    /// The inputs of the next stage that are constants of it.
    pub(crate) known: Vec<usize>,
    pub(crate) start: StageStart,
}

/// A tensor at the end of a stage.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// An input of the stage.
    Given(usize),
    /// An output of its graph.
    Output(usize),
    Constant(Value),
}

/// The inputs of a stage.
#[derive(Clone, Debug, Default)]
pub struct StageInputs {
    /// The tensors.
    pub values: Vec<Value>,
    /// The tensors whose elements are constants of the graph, which therefore has no input for them.
    pub known: Vec<usize>,
    /// Tensors with an axis whose size was counted in the data.
    pub counted: Vec<(usize, usize)>,
}

impl Cut {
    /// The inputs of the next stage, from those of the one that ended and what its graph gave.
    ///
    /// # Errors
    /// If the operands of the op between the stages do not fit; the message names its node.
    pub fn resume(
        &self,
        given: &[ValueRef<'_>],
        outputs: Vec<Value>,
    ) -> Result<StageInputs, ImportError> {
        let mut counted = vec![];
        let mut results = vec![];
        if let Some(op) = &self.op {
            let operand = |source: &Source| match source {
                Source::Given(at) => given[*at].to_value(),
                Source::Output(at) => outputs[*at].clone(),
                Source::Constant(value) => value.clone(),
            };
            let operands: Vec<Value> = self.operands.iter().map(operand).collect();
            let operands: Vec<&Value> = operands.iter().collect();
            let found = op.evaluate(&operands);
            results = found
                .map_err(|reason| ImportError::value(format!("node {}", self.node), reason))?;
            let axes = op.counted_axes().into_iter().enumerate();
            let axes = axes.filter_map(|(at, axis)| Some((self.kept.len() + at, axis?)));
            counted.extend(axes);
        }
        let mut outputs: Vec<Option<Value>> = outputs.into_iter().map(Some).collect();
        let kept = self.kept.iter().map(|source| match source {
            Source::Given(at) => given[*at].to_value(),
            Source::Output(at) => outputs[*at].take().expect("an output is kept once"),
            Source::Constant(value) => value.clone(),
        });
        let mut values: Vec<Value> = kept.collect();
        values.append(&mut results);
        Ok(StageInputs {
            values,
            known: self.known.clone(),
            counted,
        })
    }
}

impl StageInputs {
    /// Whether an input is a constant of the stage's graph.
    pub fn is_known(&self, index: usize) -> bool {
        self.known.contains(&index)
    }

    /// The types and shapes of the inputs that the stage's graph is lowered for.
    pub(crate) fn types(&self) -> Vec<InputType> {
        let inputs = self.values.iter().enumerate();
        let types = inputs.map(|(index, value)| InputType {
            dtype: value.dtype(),
            shape: value.shape.clone(),
            known: self.is_known(index).then(|| value.data.to_bytes()),
            counted: self
                .counted
                .iter()
                .find_map(|(at, axis)| (*at == index).then_some(*axis)),
        });
        types.collect()
    }
}

/// The type and shape of an input that a stage's graph is lowered for.
pub(crate) struct InputType {
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
    /// The elements, if they are a constant of the graph.
    pub(crate) known: Option<Bytes>,
    /// The axis whose size was counted in the data.
    pub(crate) counted: Option<usize>,
}

impl InputType {
    /// Adds an input to a graph, or a constant if it is known. `count` is the size of counted axes, if the graph is for any.
    pub(crate) fn add_to(
        &self,
        builder: &mut GraphBuilder,
        name: &str,
        count: Option<Dim>,
    ) -> Result<TensorId, ImportError> {
        if let Some(bytes) = &self.known {
            return Ok(builder.constant(name, self.dtype, &self.shape, bytes.clone())?);
        }
        let mut shape: Vec<Dim> = self.shape.iter().map(|n| Dim::from(*n)).collect();
        if let (Some(axis), Some(count)) = (self.counted, count) {
            shape[axis] = count;
        }
        Ok(builder.input(name, self.dtype, shape))
    }
}
