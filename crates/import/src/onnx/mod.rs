//! `.onnx`: models of the Open Neural Network Exchange, with their weights inside or in files beside them.
//!
//! Reading checks every number before it is used; weights stay where the file has them.
//!
//! ```no_run
//! use import::onnx::Onnx;
//! let file = Onnx::open("model.onnx".as_ref())?;
//! for input in &file.inputs {
//!     println!("{}: {}[{}]", input.name, input.dtype, input.shape.join(", "));
//! }
//! println!("not known to kvark: {:?}", file.unknown_ops());
//! # Ok::<(), import::ImportError>(())
//! ```

mod decoder;
mod inline;
mod lower;
mod mat_mul_nbits;
mod proto;
mod read;
mod schema;
mod tensor;
mod topological_sort;

use std::collections::BTreeMap;
use std::path::Path;

use base::Bytes;

use crate::ImportError;
pub use decoder::{CacheInputs, CacheLayout, cache_layers, discover_kv_layers};
pub use lower::{lower, lower_with};
use schema::{Attribute, DimProto};
pub use tensor::{OnnxTensor, read_tensor};

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
    nodes: Vec<Node>,
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
    kind: Option<crate::stored_type::StoredType>,
    dims: Option<Vec<DimProto>>,
}

/// A node after functions have been replaced by their bodies.
#[derive(Clone, Debug)]
struct Node {
    label: String,
    /// The op with its domain, but for ONNX's own.
    op: String,
    /// The version of the op's set.
    version: i64,
    inputs: Vec<String>,
    outputs: Vec<String>,
    attributes: Vec<Attribute>,
    /// Tensors of the attributes.
    tensors: Vec<(String, OnnxTensor)>,
}

impl Onnx {
    /// Maps the file at `path` and reads it. Weights are not touched.
    pub fn open(path: &Path) -> Result<Onnx, ImportError> {
        let read = || Onnx::parse(Bytes::map(path)?, path.parent());
        read().map_err(|error: ImportError| error.in_file(path))
    }

    /// Reads a whole file held in `bytes`; weights are views into it, or into files of `folder`.
    pub fn parse(bytes: Bytes, folder: Option<&Path>) -> Result<Onnx, ImportError> {
        read::read(bytes, folder)
    }

    /// How many nodes the model has, functions inlined.
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// The ops of the model and how often each occurs.
    pub fn ops(&self) -> BTreeMap<&str, usize> {
        let mut ops = BTreeMap::new();
        for node in &self.nodes {
            *ops.entry(&node.op[..]).or_default() += 1;
        }
        ops
    }

    /// The ops that kvark does not know, each with the first node that has it.
    pub fn unknown_ops(&self) -> BTreeMap<&str, &str> {
        unknown_ops(self.nodes.iter())
    }
}

/// The ops of some nodes that kvark does not know, each with the first node that has it.
fn unknown_ops<'a>(nodes: impl Iterator<Item = &'a Node>) -> BTreeMap<&'a str, &'a str> {
    let mut unknown = BTreeMap::new();
    for node in nodes.filter(|node| !lower::is_known(&node.op)) {
        unknown.entry(&node.op[..]).or_insert(&node.label[..]);
    }
    unknown
}
