//! Builds a graph node by node, and infers the type of every result.

use crate::graph::{Graph, Node, NodeId, StateInfo, SymbolInfo, Tensor, TensorId, TensorKind};
use crate::ops::Op;
use crate::tensor_type::TensorType;
use crate::{Dim, GraphError, GraphErrorKind, MAX_SYMBOLS, Symbol};
use base::{Bytes, DType};
use std::ops::RangeInclusive;

/// A graph under construction.
pub struct GraphBuilder {
    graph: Graph,
}

impl GraphBuilder {
    /// An empty graph.
    pub fn new(name: impl Into<String>) -> GraphBuilder {
        let name = name.into();
        let graph = Graph {
            name,
            symbols: vec![],
            tensors: vec![],
            nodes: vec![],
            inputs: vec![],
            outputs: vec![],
            states: vec![],
        };
        GraphBuilder { graph }
    }

    /// Adds a dynamic dimension without bounds.
    ///
    /// # Panics
    /// If the graph already has [`MAX_SYMBOLS`] symbols: importers count their symbols first.
    pub fn symbol(&mut self, name: &str) -> Dim {
        self.symbol_in(name, 0..=usize::MAX)
    }

    /// Adds a dynamic dimension with values in `range`.
    ///
    /// # Panics
    /// As [`GraphBuilder::symbol`].
    pub fn symbol_in(&mut self, name: &str, range: RangeInclusive<usize>) -> Dim {
        assert!(
            self.graph.symbols.len() < MAX_SYMBOLS,
            "a graph has at most {MAX_SYMBOLS} symbols"
        );
        let name = name.to_owned();
        self.graph.symbols.push(SymbolInfo { name, range });
        Symbol(self.graph.symbols.len() as u8 - 1).into()
    }

    /// Adds a graph input.
    pub fn input(&mut self, name: &str, dtype: DType, shape: impl Into<Vec<Dim>>) -> TensorId {
        let id = self.push(
            name,
            TensorType {
                dtype,
                shape: shape.into(),
            },
            TensorKind::Input,
        );
        self.graph.inputs.push(id);
        id
    }

    /// Makes the last inputs states, in this order.
    ///
    /// [`finish`](GraphBuilder::finish) then takes their new elements behind the other outputs, in the same order.
    pub fn keep_states(&mut self, states: Vec<StateInfo>) {
        self.graph.states = states;
    }

    /// Adds a constant; `shape` is outermost first.
    pub fn constant(
        &mut self,
        name: &str,
        dtype: DType,
        shape: &[usize],
        data: Bytes,
    ) -> Result<TensorId, GraphError> {
        let ty = TensorType {
            dtype,
            shape: shape.iter().map(|&d| d.into()).collect(),
        };
        let wanted = ty.bytes(&Default::default());
        if wanted != Some(data.len()) {
            let wanted = wanted.map_or("no whole number of".to_owned(), |n| n.to_string());
            let reason = format!("{dtype}{shape:?} takes {wanted} bytes, got {}", data.len());
            return Err(GraphErrorKind::Size {
                tensor: name.to_owned(),
                reason,
            }
            .into());
        }
        Ok(self.push(name, ty, TensorKind::Constant(data)))
    }

    /// Adds a node and returns its result.
    pub fn node(
        &mut self,
        name: &str,
        op: impl Into<Op>,
        inputs: &[TensorId],
    ) -> Result<TensorId, GraphError> {
        let op = op.into();
        let types: Vec<&TensorType> = inputs.iter().map(|i| &self.graph.tensor(*i).ty).collect();
        let ty = op.infer(&types).map_err(|reason| GraphErrorKind::Node {
            node: name.to_owned(),
            op: op.name(),
            reason,
        })?;
        let id = NodeId(self.graph.nodes.len() as u32);
        let output = self.push(name, ty, TensorKind::Value(id));
        self.graph.nodes.push(Node {
            op,
            inputs: inputs.to_vec(),
            output,
        });
        Ok(output)
    }

    /// Renames a tensor.
    pub fn rename(&mut self, id: TensorId, name: &str) {
        self.graph.tensors[id.0 as usize].name = name.to_owned();
    }

    /// The name of a tensor.
    pub fn name(&self, id: TensorId) -> &str {
        &self.graph.tensor(id).name
    }

    /// The bytes of a constant.
    pub fn constant_bytes(&self, id: TensorId) -> Option<&Bytes> {
        self.graph.tensor(id).constant()
    }

    /// The number of tensors; those that are added later have greater ids.
    pub fn tensors(&self) -> usize {
        self.graph.tensors.len()
    }

    /// The type of a tensor.
    pub fn ty(&self, id: TensorId) -> &TensorType {
        &self.graph.tensor(id).ty
    }

    /// Finishes and verifies the graph.
    pub fn finish(mut self, outputs: &[TensorId]) -> Result<Graph, GraphError> {
        self.graph.outputs = outputs.to_vec();
        self.graph.verify()?;
        Ok(self.graph)
    }

    fn push(&mut self, name: &str, ty: TensorType, kind: TensorKind) -> TensorId {
        self.graph.tensors.push(Tensor {
            name: name.to_owned(),
            ty,
            kind,
        });
        TensorId(self.graph.tensors.len() as u32 - 1)
    }
}
