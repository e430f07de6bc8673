//! Invariants of a graph, verified after it is built and after every pass.

use crate::graph::{Graph, TensorKind};
use crate::tensor_type::TensorType;
use crate::{Dim, GraphError, GraphErrorKind, Symbol};
use std::collections::HashSet;

impl Graph {
    /// Checks that ids are in range, names unique, nodes in executable order, input dimensions bindable, and that every
    /// result has the type its op infers.
    pub fn verify(&self) -> Result<(), GraphError> {
        let fail = |reason: String| GraphErrorKind::Graph {
            graph: self.name.clone(),
            reason,
        };
        let mut names = HashSet::new();
        for tensor in &self.tensors {
            if !names.insert(tensor.name.as_str()) {
                return Err(fail(format!("two tensors are named {}", tensor.name)).into());
            }
        }
        for id in &self.inputs {
            let tensor = self
                .tensors
                .get(id.0 as usize)
                .ok_or_else(|| fail("an input id is out of range".into()))?;
            if !matches!(tensor.kind, TensorKind::Input) {
                return Err(fail(format!(
                    "{} is listed as an input but is not an input tensor",
                    tensor.name
                ))
                .into());
            }
        }
        self.verify_states().map_err(fail)?;
        let dims = || self.inputs.iter().flat_map(|id| &self.tensor(*id).ty.shape);
        let alone: HashSet<Symbol> = dims().filter_map(Dim::as_symbol).collect();
        for id in &self.inputs {
            let tensor = self.tensor(*id);
            for dim in &tensor.ty.shape {
                if let Some(symbol) = dim.symbols().find(|s| !alone.contains(s)) {
                    let name = &self.symbols[symbol.0 as usize].name;
                    return Err(fail(format!(
                        "the symbol {name} of input {} cannot be bound: no input has {name} as a whole dimension",
                        tensor.name
                    ))
                    .into());
                }
            }
        }
        let mut ready: Vec<bool> = self
            .tensors
            .iter()
            .map(|t| !matches!(t.kind, TensorKind::Value(_)))
            .collect();
        for (i, node) in self.nodes.iter().enumerate() {
            let Some(output) = self.tensors.get(node.output.0 as usize) else {
                return Err(fail(format!("node {i} has no output tensor")).into());
            };
            let node_error = |reason: String| GraphErrorKind::Node {
                node: output.name.clone(),
                op: node.op.name(),
                reason,
            };
            if !matches!(output.kind, TensorKind::Value(n) if n.0 as usize == i) {
                return Err(node_error("its output belongs to another node".into()).into());
            }
            if let Some(late) = node
                .inputs
                .iter()
                .find(|id| ready.get(id.0 as usize) != Some(&true))
            {
                return Err(
                    node_error(format!("reads tensor {} before it is computed", late.0)).into(),
                );
            }
            let types: Vec<&TensorType> =
                node.inputs.iter().map(|id| &self.tensor(*id).ty).collect();
            let inferred = node.op.infer(&types).map_err(node_error)?;
            if inferred != output.ty {
                return Err(node_error(format!(
                    "its result must have the inferred type {inferred:?}"
                ))
                .into());
            }
            ready[node.output.0 as usize] = true;
        }
        match self
            .outputs
            .iter()
            .find(|id| ready.get(id.0 as usize) != Some(&true))
        {
            Some(id) => Err(fail(format!("output tensor {} is never computed", id.0)).into()),
            None => Ok(()),
        }
    }

    /// Checks that every state has an input and an output of one constant size, and initial elements that fill it.
    fn verify_states(&self) -> Result<(), String> {
        if self.states.len() > self.inputs.len().min(self.outputs.len()) {
            return Err("it has more states than inputs or outputs".into());
        }
        let outputs = &self.outputs[self.outputs.len() - self.states.len()..];
        let places = self.state_inputs().iter().zip(outputs);
        for (state, (input, output)) in self.states.iter().zip(places) {
            let [before, after] = [input, output].map(|id| self.tensors.get(id.0 as usize));
            let ty = before.map(|tensor| &tensor.ty);
            if ty.is_none() || ty != after.map(|tensor| &tensor.ty) {
                return Err(format!("the state {} changes its type", state.name));
            }
            let constant = |ty: &TensorType| ty.shape.iter().all(|dim| dim.as_const().is_some());
            let bytes = ty
                .filter(|ty| constant(ty))
                .and_then(|ty| ty.bytes(&Default::default()));
            if bytes != Some(state.initial.len()) {
                let name = &state.name;
                return Err(format!(
                    "the state {name} has no constant size, or its initial elements have another"
                ));
            }
        }
        Ok(())
    }
}
