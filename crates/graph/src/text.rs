//! Text form of a graph, one line per node, for tests and `inspect`.

use crate::graph::{Graph, Node};
use crate::tensor_type::TensorType;
use crate::{Dim, TensorId};
use std::fmt;

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "graph {}(", self.name)?;
        for (i, id) in self.inputs.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}{}", self.typed(*id))?;
        }
        writeln!(f, ")")?;
        for node in &self.nodes {
            writeln!(f, "  {}", self.node_text(node))?;
        }
        writeln!(f, "  return {}", self.names(&self.outputs))
    }
}

impl Graph {
    /// A node on one line: result, op, operands and attributes.
    pub(crate) fn node_text(&self, node: &Node) -> String {
        let (result, operands) = (self.typed(node.output), self.names(&node.inputs));
        let text = format!("{result} = {}({operands})", node.op.name());
        let attributes = node.op.attributes(&|dim| self.dim_text(dim));
        match attributes.is_empty() {
            true => text,
            false => format!("{text} {{{}}}", attributes.join(", ")),
        }
    }

    /// `name: dtype[shape]` of a tensor.
    pub fn typed(&self, id: TensorId) -> String {
        let tensor = self.tensor(id);
        format!("{}: {}", tensor.name, self.type_text(&tensor.ty))
    }

    /// `dtype[shape]`, with this graph's symbol names.
    pub fn type_text(&self, ty: &TensorType) -> String {
        let dims: Vec<String> = ty.shape.iter().map(|d| self.dim_text(d)).collect();
        format!("{}[{}]", ty.dtype, dims.join(", "))
    }

    /// A dimension, with this graph's symbol names.
    pub fn dim_text(&self, dim: &Dim) -> String {
        dim.text(&|symbol| match self.symbols.get(symbol.0 as usize) {
            Some(info) => info.name.clone(),
            None => "?".to_owned(),
        })
    }

    fn names(&self, ids: &[TensorId]) -> String {
        let names: Vec<&str> = ids
            .iter()
            .map(|id| self.tensor(*id).name.as_str())
            .collect();
        names.join(", ")
    }
}
