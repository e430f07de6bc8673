//! A parsed ONNX file.

use std::collections::BTreeMap;

use super::schema::{Attribute, DimProto};
use super::tensor::OnnxTensor;
use crate::stored_type::StoredType;

/// A `.onnx` file.
#[derive(Clone, Debug)]
pub struct Onnx {
    /// The graph's name.
    pub name: String,
    /// Version of the format.
    pub ir_version: i64,
    /// What wrote the file.
    pub producer: String,
    /// Version of each set of ops, by its domain; ONNX's own is `""`.
    pub opsets: BTreeMap<String, i64>,
    /// What the file says about itself.
    pub metadata: BTreeMap<String, String>,
    /// What the model takes, in its order.
    pub inputs: Vec<Port>,
    /// What the model gives, in its order.
    pub outputs: Vec<Port>,
    /// The initialisers, by name.
    pub tensors: BTreeMap<String, OnnxTensor>,
    pub(super) nodes: Vec<Node>,
}

/// An input or an output.
#[derive(Clone, Debug)]
pub struct Port {
    /// Its name.
    pub name: String,
    /// The element type's name.
    pub dtype: &'static str,
    /// Sizes, outermost first: numbers, names, or `?`.
    pub shape: Vec<String>,
    pub(super) kind: Option<StoredType>,
    pub(super) dims: Option<Vec<DimProto>>,
}

/// A node after functions have been replaced by their bodies.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) label: String,
    /// The op with its domain, but for ONNX's own.
    pub(super) op: String,
    /// The version of the op's set.
    pub(super) version: i64,
    pub(super) inputs: Vec<String>,
    pub(super) outputs: Vec<String>,
    pub(super) attributes: Vec<Attribute>,
    /// Tensors of the attributes.
    pub(super) tensors: Vec<(String, OnnxTensor)>,
}

impl Onnx {
    /// The number of nodes, with functions inlined.
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// The number of nodes of each op.
    pub fn ops(&self) -> BTreeMap<&str, usize> {
        let mut ops = BTreeMap::new();
        for node in &self.nodes {
            *ops.entry(&node.op[..]).or_default() += 1;
        }
        ops
    }
}
