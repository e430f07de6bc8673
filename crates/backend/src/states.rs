//! `States`: the tensors of a graph that keep their elements between runs.

use crate::{BackendError, BackendErrorKind};
use graph::{Data, Graph, StateInfo, TensorId, Value, ValueRef};

/// The elements of a graph's states: those that the next run reads, and those from before the last run.
pub(crate) struct States {
    infos: Vec<StateInfo>,
    current: Vec<Value>,
    /// Written during a run, and then exchanged with `current`.
    other: Vec<Value>,
}

impl States {
    /// The states of a graph, as they are before the first run.
    pub(crate) fn new(graph: &Graph) -> States {
        let inputs = graph.states().iter().zip(graph.state_inputs());
        let value = |(info, id): (&StateInfo, &TensorId)| {
            let ty = &graph.tensor(*id).ty;
            let shape = ty
                .dims(&Default::default())
                .expect("a state has a constant size");
            let data = Data::from_bytes(ty.dtype, &info.initial, shape.iter().product());
            Value {
                shape,
                data: data.expect("a state has a compute type"),
            }
        };
        let current: Vec<Value> = inputs.map(value).collect();
        States {
            infos: graph.states().to_vec(),
            other: current.clone(),
            current,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.infos.is_empty()
    }

    /// The elements that the next run reads, with their names.
    pub(crate) fn named(&self) -> impl Iterator<Item = (&str, &Value)> {
        let names = self.infos.iter().map(|info| &info.name[..]);
        names.zip(&self.current)
    }

    /// Replaces the elements that the next run reads.
    ///
    /// # Errors
    /// `State` if there is no state of this name, or if it has another type or shape.
    pub(crate) fn set(&mut self, name: &str, value: Value) -> Result<(), BackendError> {
        let wrong = |reason: String| BackendErrorKind::State {
            state: name.to_owned(),
            reason,
        };
        let Some(at) = self.infos.iter().position(|info| info.name == name) else {
            let names: Vec<&str> = self.infos.iter().map(|info| &info.name[..]).collect();
            let reason = match &names[..] {
                [] => "does not exist: the model keeps none".to_owned(),
                names => format!("does not exist; the states are {}", names.join(", ")),
            };
            return Err(wrong(reason).into());
        };
        let own = &mut self.current[at];
        if (own.dtype(), &own.shape) != (value.dtype(), &value.shape) || value.len() != own.len() {
            let reason = format!(
                "is {}{:?}, {}{:?} was given",
                own.dtype(),
                own.shape,
                value.dtype(),
                value.shape
            );
            return Err(wrong(reason).into());
        }
        *own = value;
        Ok(())
    }

    /// The elements before the first run.
    pub(crate) fn reset(&mut self, graph: &Graph) {
        *self = States::new(graph);
    }

    /// The elements that a run reads, and the memory for those that it writes.
    pub(crate) fn for_run(&mut self) -> (&[Value], &mut [Value]) {
        (&self.current, &mut self.other)
    }

    /// Makes the elements that a run wrote those that the next run reads. A second call undoes the first.
    pub(crate) fn exchange(&mut self) {
        std::mem::swap(&mut self.current, &mut self.other);
    }
}

/// Copies the new elements of a state.
pub(crate) fn store(to: &mut Value, from: ValueRef<'_>) {
    let copied = to.data.as_mut().copy_from(from.data);
    debug_assert!(copied.is_ok(), "a state keeps its type and size");
}
