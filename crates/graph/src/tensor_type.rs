//! Element type and shape of a tensor.

use base::DType;

use crate::dim::{Bindings, Dim};

/// Element type and shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorType {
    /// Element type.
    pub dtype: DType,
    /// Sizes, outermost first; the last dimension is contiguous.
    pub shape: Vec<Dim>,
}

impl TensorType {
    /// An f32 tensor of this shape.
    pub fn f32(shape: impl Into<Vec<Dim>>) -> TensorType {
        TensorType {
            dtype: DType::F32,
            shape: shape.into(),
        }
    }

    /// The shape under concrete symbols.
    pub fn dims(&self, bindings: &Bindings) -> Option<Vec<usize>> {
        self.shape.iter().map(|d| d.eval(bindings)).collect()
    }

    /// Bytes the tensor takes under concrete symbols.
    pub fn bytes(&self, bindings: &Bindings) -> Option<usize> {
        let dims = self.dims(bindings)?;
        let (rows, row) = match dims.split_last() {
            Some((last, outer)) => (
                outer.iter().try_fold(1usize, |n, d| n.checked_mul(*d))?,
                *last,
            ),
            None => (1, 1),
        };
        rows.checked_mul(self.dtype.row_bytes(row)?)
    }
}
