//! Lowers ONNX models to graphs: one rule per op, no optimisation.

mod arithmetic;
mod attention;
mod bits;
mod cache;
mod call;
mod context;
mod contrib;
mod contrib_attention;
mod contrib_quantised;
mod control;
mod create;
mod flex_attention;
mod gather_quantised;
mod group_query_attention;
mod images;
mod index;
mod integer_products;
mod linear_attention;
mod loops;
mod losses;
mod matrix;
mod norm;
mod quantised;
mod quantised_experts;
mod recurrent;
mod reduce;
mod regions;
mod resize;
pub(super) mod rotary;
mod sequences;
mod shape;
mod spectral;
pub(super) mod stages;
mod symbols;
mod table;
mod windowed;

use std::collections::{BTreeMap, HashSet};

use graph::ops::Reshape;
use graph::{Dim, Graph, TensorId, Value};

use super::file::{Node, Onnx};
use crate::error::{ImportError, ImportErrorDetail};
use call::Call;
pub(super) use context::OnnxLowering;

/// Whether there is a lowering rule for an op.
pub(super) fn is_supported(op: &str) -> bool {
    control::rule(op).is_some() || sequences::is_sequence_op(op) || table::rule(op).is_some()
}

/// The ops without a lowering rule, each with the first node that uses it.
pub(super) fn unsupported_ops<'a>(
    nodes: impl Iterator<Item = &'a Node>,
) -> BTreeMap<&'a str, &'a str> {
    let mut unsupported = BTreeMap::new();
    for node in nodes.filter(|node| !is_supported(&node.op)) {
        unsupported.entry(&node.op[..]).or_insert(&node.label[..]);
    }
    unsupported
}

/// Lowers a model with its exported inputs and outputs. Inputs in `fixed` become constants.
///
/// Inputs whose elements determine shapes must be fixed: only shapes that follow from the shapes of the inputs are
/// supported.
pub fn lower_with(file: &Onnx, fixed: &BTreeMap<String, Value>) -> Result<Graph, ImportError> {
    lower_for(file, fixed, None)
}

/// Lowers a model, for inputs of these shapes if there are any; then the graph has no symbols.
pub(super) fn lower_for(
    file: &Onnx,
    fixed: &BTreeMap<String, Value>,
    shapes: Option<&[&[usize]]>,
) -> Result<Graph, ImportError> {
    check_supported(file.nodes.iter())?;
    let mut lower = OnnxLowering::new(file);
    lower.inputs(fixed, shapes)?;
    lower.nodes()?;
    let outputs = lower.outputs()?;
    Ok(lower.emitter.builder.finish(&outputs)?)
}

/// Checks that every node has a lowering rule.
pub(super) fn check_supported<'a>(
    nodes: impl Iterator<Item = &'a Node>,
) -> Result<(), ImportError> {
    let unknown = unsupported_ops(nodes).into_iter();
    let unknown: Vec<String> = unknown
        .map(|(op, node)| format!("{op} (node {node})"))
        .collect();
    match unknown.is_empty() {
        true => Ok(()),
        false => {
            let ops = unknown.join(", ");
            Err(ImportErrorDetail::UnknownOps { ops }.into())
        }
    }
}

/// Marks the nodes that the outputs depend on.
fn live(file: &Onnx) -> Vec<bool> {
    let mut wanted: HashSet<&str> = file.outputs.iter().map(|port| &port.name[..]).collect();
    let mut live = vec![false; file.nodes.len()];
    for (node, live) in file.nodes.iter().zip(&mut live).rev() {
        *live = node.outputs.iter().any(|name| wanted.contains(&name[..]));
        if *live {
            wanted.extend(node.inputs.iter().map(|name| &name[..]));
        }
    }
    live
}

impl<'a> OnnxLowering<'a> {
    /// Adds the graph's inputs, and constants for the fixed ones.
    fn inputs(
        &mut self,
        fixed: &BTreeMap<String, Value>,
        shapes: Option<&[&[usize]]>,
    ) -> Result<(), ImportError> {
        let file = self.file;
        for (index, port) in file.inputs.iter().enumerate() {
            let wrong =
                |reason: String| ImportError::value(format!("input {:?}", port.name), reason);
            let kind = port
                .kind
                .ok_or_else(|| wrong("is not a tensor of a supported type".into()))?;
            let id = match fixed.get(&port.name) {
                Some(value) => {
                    let data = value.data.to_bytes();
                    let constant =
                        self.builder
                            .constant(&port.name, value.dtype(), &value.shape, data);
                    constant?
                }
                None => {
                    let shape = match shapes.and_then(|shapes| shapes.get(index)) {
                        Some(shape) => shape.iter().map(|n| Dim::from(*n)).collect(),
                        None => self.input_shape(port).map_err(wrong)?,
                    };
                    self.builder.input(&port.name, kind.dtype(), shape)
                }
            };
            self.kinds.insert(port.name.clone(), kind);
            self.values.insert(port.name.clone(), id);
        }
        Ok(())
    }

    /// Lowers every node that the outputs depend on.
    fn nodes(&mut self) -> Result<(), ImportError> {
        let file = self.file;
        for (node, live) in file.nodes.iter().zip(live(file)) {
            if live {
                self.need.take();
                let lowered = self.node(node);
                let depends_on_data = self.need.take().is_some();
                lowered.map_err(|reason| match depends_on_data {
                    true => stages::node_error(node, reason).on_data(),
                    false => stages::node_error(node, reason),
                })?;
            }
        }
        Ok(())
    }

    pub(in crate::onnx) fn node(&mut self, node: &'a Node) -> Result<(), String> {
        let name = node.outputs.iter().find(|name| !name.is_empty());
        let name = name.map_or(&node.label[..], |name| name);
        // A node of a body is lowered once an iteration.
        match self.loop_depth {
            0 => self.begin_node(name),
            _ => {
                let name = format!("{name}#{}", self.unrolled);
                self.begin_node(&name);
            }
        }
        if let Some(rule) = control::rule(&node.op) {
            return rule(self, node);
        }
        if self.lower_sequence(node)? {
            return Ok(());
        }
        let rule = table::rule(&node.op).ok_or("is not supported")?;
        let call = Call { node };
        let given = rule(self, &call)?;
        if node.outputs.len() > given.len() {
            let wanted = node.outputs.iter().skip(given.len());
            if wanted.into_iter().any(|name| !name.is_empty()) {
                let (given, wanted) = (given.len(), node.outputs.len());
                return Err(format!(
                    "has {given} supported results, but the model uses {wanted}"
                ));
            }
        }
        let first = node.inputs.first().and_then(|name| self.kind_of(name));
        for (name, mut id) in node.outputs.iter().zip(given) {
            if name.is_empty() {
                continue;
            }
            // Most ops preserve their first operand's stored type.
            if let Some(kind) = first.filter(|kind| kind.dtype() == self.dtype(id)) {
                self.kinds.entry(name.clone()).or_insert(kind);
            }
            if let Some(kind) = self.kind_of(name).filter(|_| !table::keeps_range(&node.op)) {
                id = self.wrapped(id, kind)?;
            }
            if self.loop_depth == 0
                && let Some(fixed) = self.fixed.get(name)
            {
                id = *fixed;
            }
            if self.take_emitted(id) && self.loop_depth == 0 {
                self.builder.rename(id, name);
            }
            self.values.insert(name.clone(), id);
        }
        Ok(())
    }

    /// The model's outputs, with their names in the file.
    fn outputs(&mut self) -> Result<Vec<TensorId>, ImportError> {
        let file = self.file;
        let mut ids: Vec<TensorId> = vec![];
        for port in &file.outputs {
            let wrong =
                |reason: String| ImportError::value(format!("output {:?}", port.name), reason);
            let mut id = self.value(&port.name).map_err(wrong)?;
            // The output is an input, a constant or another output under a second name.
            if self.builder.name(id) != port.name {
                let shape = self.shape(id);
                id = self.builder.node(&port.name, Reshape { shape }, &[id])?;
            }
            ids.push(id);
        }
        if ids.is_empty() {
            return Err(ImportError::unsupported("a model without outputs"));
        }
        Ok(ids)
    }
}
