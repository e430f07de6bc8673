//! Lowers exported programs to graphs: one rule per ATen op, no optimisation.

pub(super) mod aliases;
mod aliasing;
mod arguments;
mod arithmetic;
mod attention;
mod call;
mod complex;
mod context;
mod create;
mod functions;
mod index;
mod matrix;
pub(super) mod op_traits;
mod pads;
mod quantised;
mod quantised_matrix;
mod recurrent;
mod reduce;
mod resize;
mod shape;
mod states;
mod table;
mod windowed;
mod write;
mod write_back;

use base::DType;
use graph::TensorId;

use super::schema::{Argument, Node};
use crate::error::{ImportError, ImportErrorDetail};
use crate::stored_type::StoredType;
use aliases::OutputRole;
use call::Call;
pub(super) use context::{Pt2Lowering, user_inputs};

/// Whether there is a lowering rule for an op.
pub(super) fn is_supported(op: &str) -> bool {
    op_traits::is_silent(op) || find(op).is_some()
}

fn find(op: &str) -> Option<table::Rule> {
    table::rule(op).or_else(|| table::rule(&op_traits::in_place(op)?))
}

impl<'a> Pt2Lowering<'a> {
    /// Lowers every node that the outputs depend on.
    pub(in crate::pt2) fn nodes(&mut self) -> Result<(), ImportError> {
        let graph = self.graph;
        let live = aliases::live(self.program);
        for (index, (node, live)) in graph.nodes.iter().zip(live).enumerate() {
            if live && !op_traits::is_silent(node.op()) {
                self.lower_node(node, index).map_err(|reason| {
                    let (node, op) = (node.name().to_owned(), node.op().to_owned());
                    ImportErrorDetail::Op { node, op, reason }
                })?;
            }
        }
        Ok(())
    }

    fn lower_node(&mut self, node: &'a Node, index: usize) -> Result<(), String> {
        let plain = op_traits::in_place(node.op()).filter(|_| table::rule(node.op()).is_none());
        if let (Some(plain), Some(target)) = (&plain, op_traits::written(node))
            && op_traits::reshapes_operand(plain)
        {
            return Err(format!(
                "changes the shape of {target}, which is not supported: use the op that returns a view"
            ));
        }
        let op = plain.as_deref().unwrap_or(node.op());
        self.begin_node(node.name());
        let call = Call {
            node,
            op: op.to_owned(),
        };
        if self.lower_complex(&call)? {
            return match plain {
                None => Ok(()),
                Some(_) => Err("writes complex numbers, which is not supported".into()),
            };
        }
        let rule = table::rule(op).ok_or("is not supported")?;
        let given = rule(self, &call)?;
        let names = call.results();
        let unused = |name: &&str| !self.is_read(name);
        if !names.iter().skip(given.len()).all(unused) {
            return Err(format!(
                "has {} supported results, but the program uses {}",
                given.len(),
                names.len()
            ));
        }
        for (result, (name, id)) in names.iter().zip(given).enumerate() {
            let id = self.settled(&call, result, id)?;
            self.own_name(id, name);
            self.values.insert((*name).to_owned(), id);
        }
        if plain.is_some()
            && let (Some(target), Some(result)) = (op_traits::written(node), names.first())
        {
            let id = self.values[*result];
            self.write_back(target, id, index)?;
        }
        Ok(())
    }

    /// Whether a node or the program's caller reads a value.
    fn is_read(&self, name: &str) -> bool {
        let nodes = self.graph.nodes.iter().flat_map(|node| &node.inputs);
        let inputs = nodes.flat_map(|input| input.arg.names());
        let outputs = self.graph.outputs.iter().flat_map(Argument::names);
        inputs.chain(outputs).any(|other| other == name)
    }

    /// Casts a result to the type that the file states, and checks its shape.
    fn settled(&mut self, call: &Call<'_>, index: usize, id: TensorId) -> Result<TensorId, String> {
        let dtype = self.result_dtype(call, index)?;
        // Packed weights stay packed.
        let packed = dtype == DType::F32 && self.dtype(id).is_real();
        let id = if packed { id } else { self.cast(id, dtype)? };
        let kind = self.result_kind(call, index)?;
        let id = match self.is_in_range(call, kind) {
            true => id,
            false => self.wrapped(id, kind)?,
        };
        match self.result_shape(call, index) {
            Ok(shape) if shape != self.shape(id) => Err(format!(
                "has shape {:?}, but the file states {shape:?}",
                self.shape(id)
            )),
            Err(reason) => Err(reason),
            Ok(_) => Ok(id),
        }
    }

    /// Whether the integers of a result are in the range of its stored type because they are those of its operands.
    fn is_in_range(&self, call: &Call<'_>, kind: StoredType) -> bool {
        let stored = |name: &str| {
            let meta = self.graph.tensor_values.get(name)?;
            crate::pt2::tensor::kind(meta.dtype).ok()
        };
        let mut operands = call.node.inputs.iter().flat_map(|input| input.arg.names());
        // Indices and masks are not combined with the elements.
        let index = |kind: &StoredType| matches!(kind, StoredType::I64 | StoredType::Bool);
        let alike = operands
            .all(|name| stored(name).is_none_or(|own| own == kind || index(&own) && kind != own));
        alike && op_traits::keeps_range(&call.op)
    }

    /// The program's outputs for its caller.
    pub(in crate::pt2) fn outputs(&mut self) -> Result<Vec<TensorId>, ImportError> {
        let mut ids = vec![];
        let program = self.program;
        let outputs = program.graph.outputs.iter().enumerate();
        let outputs =
            outputs.flat_map(|(i, output)| output.names().into_iter().map(move |n| (i, n)));
        for (index, name) in outputs {
            let wrong = |reason: String| {
                let what = format!("output {name:?} of {}", self.program.name);
                ImportError::value(what, reason)
            };
            if self.graph.sym_int_values.contains_key(name) {
                return Err(wrong("is a size; only tensors can be outputs".into()));
            }
            let id = match self.values.get(name) {
                Some(id) => *id,
                None if self.complexes.contains_key(name) => {
                    return Err(wrong("has complex numbers, which is not supported".into()));
                }
                None => return Err(wrong("is never computed".into())),
            };
            match aliases::output_role(&program.signature, index).map_err(wrong)? {
                OutputRole::Result => ids.push(id),
                OutputRole::Input(input) => {
                    self.values.insert(input.to_owned(), id);
                }
                OutputRole::Weight(weight) => {
                    let state = self.states.iter().find(|state| state.name == weight);
                    let state = state
                        .ok_or_else(|| wrong(format!("is for {weight:?}, which does not exist")))?;
                    self.values.insert(state.tensor.to_owned(), id);
                }
            }
        }
        if ids.is_empty() && self.states.is_empty() {
            let what = format!("{}, which has no output,", self.program.name);
            return Err(ImportError::unsupported(what));
        }
        Ok(ids)
    }
    /// The outputs of a graph with the program's own inputs and outputs: those for its caller, inputs that it writes to, and the new
    /// states.
    pub(in crate::pt2) fn all_outputs(&mut self) -> Result<Vec<TensorId>, ImportError> {
        let mut outputs = self.outputs()?;
        outputs.extend(self.updated_inputs(&outputs)?);
        outputs.extend(self.new_states()?);
        Ok(outputs)
    }
}
