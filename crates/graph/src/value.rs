//! A concrete tensor: what goes into and comes out of a run.

use base::DType;

/// A dense row-major tensor with its contents.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// Sizes, outermost first.
    pub shape: Vec<usize>,
    /// The elements.
    pub data: Data,
}

/// The elements of a [`Value`].
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "each variant is its element type")]
pub enum Data {
    F32(Vec<f32>),
    I32(Vec<i32>),
    I64(Vec<i64>),
}

impl Value {
    /// A vector of f32.
    pub fn f32(shape: impl Into<Vec<usize>>, data: Vec<f32>) -> Value {
        Value {
            shape: shape.into(),
            data: Data::F32(data),
        }
    }

    /// A vector of i32.
    pub fn i32(shape: impl Into<Vec<usize>>, data: Vec<i32>) -> Value {
        Value {
            shape: shape.into(),
            data: Data::I32(data),
        }
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        match self.data {
            Data::F32(_) => DType::F32,
            Data::I32(_) => DType::I32,
            Data::I64(_) => DType::I64,
        }
    }

    /// Number of elements held.
    pub fn len(&self) -> usize {
        match &self.data {
            Data::F32(v) => v.len(),
            Data::I32(v) => v.len(),
            Data::I64(v) => v.len(),
        }
    }

    /// Whether no element is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements when they are f32.
    pub fn as_f32(&self) -> Option<&[f32]> {
        match &self.data {
            Data::F32(v) => Some(v),
            _ => None,
        }
    }

    /// The elements when they are i32.
    pub fn as_i32(&self) -> Option<&[i32]> {
        match &self.data {
            Data::I32(v) => Some(v),
            _ => None,
        }
    }

    /// Size of the last dimension and the number of such rows.
    pub fn rows(&self) -> (usize, usize) {
        let (last, outer) = self
            .shape
            .split_last()
            .map_or((1, &[][..]), |(l, o)| (*l, o));
        (outer.iter().product(), last)
    }
}
