//! Names, types and shapes of a method's inputs and outputs.

use std::fmt;

use base::DType;
use graph::{Graph, TensorId};

/// The name, type and shape of an input or output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Sizes, outermost first.
    pub shape: Vec<TensorDim>,
}

/// A dimension of a [`TensorInfo`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TensorDim {
    /// A constant size.
    Fixed(usize),
    /// A dynamic size: its name, or an expression of such names.
    Dynamic(String),
}

impl TensorInfo {
    /// A tensor of a graph.
    pub fn of(graph: &Graph, id: TensorId) -> TensorInfo {
        let tensor = graph.tensor(id);
        let size = |dim: &graph::Dim| match dim.as_const() {
            Some(n) => TensorDim::Fixed(n),
            None => TensorDim::Dynamic(graph.dim_text(dim)),
        };
        TensorInfo {
            name: tensor.name.clone(),
            dtype: tensor.ty.dtype,
            shape: tensor.ty.shape.iter().map(size).collect(),
        }
    }

    /// Its dynamic sizes.
    pub(crate) fn dynamic_sizes(&self) -> impl Iterator<Item = &str> {
        self.shape.iter().filter_map(|dim| match dim {
            TensorDim::Dynamic(name) => Some(&name[..]),
            TensorDim::Fixed(_) => None,
        })
    }
}

impl fmt::Display for TensorDim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TensorDim::Fixed(n) => write!(f, "{n}"),
            TensorDim::Dynamic(name) => f.write_str(name),
        }
    }
}

impl fmt::Display for TensorInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes: Vec<String> = self.shape.iter().map(TensorDim::to_string).collect();
        write!(f, "{}: {}[{}]", self.name, self.dtype, sizes.join(", "))
    }
}
