//! Names, types and shapes of a method's inputs and outputs.

use std::fmt;

use base::DType;
use graph::{Graph, TensorId};

use crate::stored_type::StoredType;

/// The name, type and shape of an input or output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// Element type of a run's tensors.
    pub dtype: DType,
    /// Element type that the file declares; one that no graph computes in is converted to `dtype`.
    pub declared: StoredType,
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
            declared: StoredType::of(tensor.ty.dtype).unwrap_or(StoredType::F32),
            shape: tensor.ty.shape.iter().map(size).collect(),
        }
    }

    /// Whether the size of this axis is called `name` only because the file gives it no name.
    pub fn is_unnamed(&self, axis: usize, name: &str) -> bool {
        name.rsplit_once('.')
            .is_some_and(|(own, number)| own == self.name && number == axis.to_string())
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
