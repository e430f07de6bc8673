//! A parsed ONNX file.

use std::collections::BTreeMap;

use super::schema::{Attribute, DimProto};
use super::tensor::OnnxTensor;
use crate::model_description::ModelDescription;
use crate::stored_type::StoredType;
use crate::tensor_info::{TensorDim, TensorInfo};

/// A `.onnx` file.
#[derive(Clone, Debug)]
pub struct Onnx {
    /// Name, producer and other metadata.
    pub description: ModelDescription,
    /// IR version.
    pub ir_version: i64,
    /// Name and version of the tool that wrote the file.
    pub producer: String,
    /// Version of each op set by domain; the default domain is `""`.
    pub opsets: BTreeMap<String, i64>,
    /// The model's inputs, in file order.
    pub inputs: Vec<Port>,
    /// The model's outputs, in file order.
    pub outputs: Vec<Port>,
    /// The initialisers, by name.
    pub tensors: BTreeMap<String, OnnxTensor>,
    pub(super) nodes: Vec<Node>,
}

/// An input or output of the model.
#[derive(Clone, Debug)]
pub struct Port {
    /// The name.
    pub name: String,
    /// The element type's name.
    pub dtype: &'static str,
    /// Sizes, outermost first: numbers, names, or `?`.
    pub shape: Vec<String>,
    pub(super) kind: Option<StoredType>,
    pub(super) dims: Option<Vec<DimProto>>,
}

impl Port {
    /// The name of a dynamic size that has none in the file. It equals no other size.
    pub(super) fn unnamed_size(&self, axis: usize) -> String {
        format!("{}.{axis}", self.name)
    }

    /// The element type; `None` if the file states none that kvark reads.
    pub fn declared(&self) -> Option<StoredType> {
        self.kind
    }

    /// Name, type and shape; `None` if the file does not state them.
    pub(super) fn info(&self) -> Option<TensorInfo> {
        let dim = |(axis, dim): (usize, &DimProto)| {
            Some(match dim {
                DimProto::Number(n) => TensorDim::Fixed(usize::try_from(*n).ok()?),
                DimProto::Symbol(name) => TensorDim::Dynamic(name.clone()),
                DimProto::Unknown => TensorDim::Dynamic(self.unnamed_size(axis)),
            })
        };
        let shape = self.dims.as_ref()?.iter().enumerate().map(dim);
        Some(TensorInfo {
            name: self.name.clone(),
            dtype: self.kind?.dtype(),
            declared: self.kind?,
            shape: shape.collect::<Option<_>>()?,
        })
    }

    /// The same for an output: a shape that the file does not state is a single dynamic size, since only a run finds its rank.
    pub(super) fn output_info(&self) -> Option<TensorInfo> {
        let unstated = Port {
            dims: Some(self.dims.clone().unwrap_or(vec![DimProto::Unknown])),
            ..self.clone()
        };
        unstated.info()
    }
}

/// A node of the model, with functions inlined.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) label: String,
    /// The op, prefixed by its domain unless that is the default domain.
    pub(super) op: String,
    /// Version of the op set that defines the op.
    pub(super) version: i64,
    pub(super) inputs: Vec<String>,
    pub(super) outputs: Vec<String>,
    pub(super) attributes: Vec<Attribute>,
    /// Tensor-valued attributes by name.
    pub(super) tensors: Vec<(String, OnnxTensor)>,
    /// The bodies of a condition or loop, such as `then_branch`. Tensors of the model that they read are the node's last operands.
    pub(super) branches: Vec<Branch>,
}

/// A branch of an `If`, or the body of a loop.
#[derive(Clone, Debug)]
pub(super) struct Branch {
    pub(super) name: String,
    /// Names of the operands that each run of the body gets.
    pub(super) inputs: Vec<String>,
    pub(super) nodes: Vec<Node>,
    /// Names of the results.
    pub(super) outputs: Vec<String>,
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
