//! Weights, buffers and inputs that a program writes to. What it writes to a weight or buffer is there in the next run.

use graph::{StateInfo, TensorId};

use super::context::{Pt2Lowering, user_inputs};
use crate::error::ImportError;
use crate::pt2::Pt2Tensor;

/// A weight or buffer that the program writes to.
pub(super) struct State<'a> {
    /// The name of its tensor in the program.
    pub(super) tensor: &'a str,
    /// The name in the module.
    pub(super) name: &'a str,
}

impl<'a> Pt2Lowering<'a> {
    /// The weights and buffers that the program writes to, in the file's order.
    pub(super) fn find_states(&self) -> Vec<State<'a>> {
        let signature = &self.program.signature;
        let written = self.aliases.roots_of_writes(self.graph);
        let is_mutated = |name: &str| {
            let mut outputs = signature.output_specs.iter();
            outputs.any(|output| output.written_weight() == Some(name))
        };
        let weights = signature.input_specs.iter().filter_map(|input| {
            let (arg, name) = input.weight()?;
            Some(State {
                tensor: &arg.name,
                name,
            })
        });
        weights
            .filter(|state| written.contains(state.tensor) || is_mutated(state.name))
            .collect()
    }

    /// Adds an input for every state, behind the program's own inputs.
    pub(in crate::pt2) fn declare_states(&mut self) -> Result<(), ImportError> {
        let mut infos = vec![];
        for State { tensor, name } in &self.states {
            let wrong = |reason: String| {
                let what = format!("{name:?} of {}, which it writes to,", self.program.name);
                ImportError::value(what, reason)
            };
            let stored = self.program.tensors.get(*tensor);
            let stored = stored.ok_or_else(|| wrong("is not in the file".into()))?;
            // Another tensor of the same memory would have to change too.
            let mut others = self.program.tensors.iter();
            let shares =
                others.find(|(name, other)| name != tensor && other.shares_storage(stored));
            if let Some((_, other)) = shares {
                return Err(wrong(format!("shares its memory with {:?}", other.name)));
            }
            let (dtype, initial) = stored.computed().map_err(wrong)?;
            let shape: Vec<graph::Dim> = stored.shape.iter().map(|n| (*n).into()).collect();
            let id = self.emitter.builder.input(tensor, dtype, shape);
            self.values.insert((*tensor).to_owned(), id);
            infos.push(StateInfo {
                name: (*name).to_owned(),
                initial,
            });
        }
        self.emitter.builder.keep_states(infos);
        Ok(())
    }

    /// Refuses a program that writes to its weights or buffers.
    pub(in crate::pt2) fn refuse_states(&self) -> Result<(), ImportError> {
        match self.states.first() {
            None => Ok(()),
            Some(State { name, .. }) => {
                let what = format!(
                    "{} as a decoder, because it writes to its buffer {name:?},",
                    self.program.name
                );
                Err(ImportError::unsupported(what))
            }
        }
    }

    /// The new elements of the states, in their order.
    pub(super) fn new_states(&mut self) -> Result<Vec<TensorId>, ImportError> {
        let names: Vec<&str> = self.states.iter().map(|state| state.tensor).collect();
        let value = |name: &str| {
            let value = self.value(name);
            value.map_err(|reason| ImportError::value(format!("the buffer {name:?}"), reason))
        };
        names.into_iter().map(value).collect()
    }

    /// The new elements of the inputs that the program writes to and does not return: each becomes an output `updated_` and the
    /// input's name.
    pub(super) fn updated_inputs(
        &mut self,
        results: &[TensorId],
    ) -> Result<Vec<TensorId>, ImportError> {
        let mut updated = vec![];
        for name in user_inputs(self.program)? {
            let Some(&id) = self.values.get(name) else {
                continue;
            };
            // An input that nothing wrote to still is the graph input of its name.
            if self.builder.name(id) == name || results.contains(&id) {
                continue;
            }
            let name = format!("updated_{name}");
            self.begin_node(&name);
            let shape = self.shape(id);
            let copy = self.emit(graph::ops::Reshape { shape }, &[id]);
            let copy =
                copy.map_err(|reason| ImportError::value(format!("output {name:?}"), reason))?;
            if !self.values.contains_key(&name) {
                self.builder.rename(copy, &name);
            }
            updated.push(copy);
        }
        Ok(updated)
    }

    /// Whether a program writes to the weight or buffer of this tensor.
    pub(super) fn is_state(&self, tensor: &str) -> bool {
        self.states.iter().any(|state| state.tensor == tensor)
    }

    /// The stored tensor of this name, if it is the same in every run.
    pub(super) fn stored(&self, tensor: &str) -> Option<&'a Pt2Tensor> {
        let stored = self.program.tensors.get(tensor);
        stored.filter(|_| !self.is_state(tensor))
    }
}
