//! Concrete tensors: inputs and outputs of a run.

use base::{Bytes, DType};

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
    Bool(Vec<bool>),
}

/// Applies an expression to the elements of any type; the result is [`Data`] of that type.
macro_rules! map_data {
    ($data:expr, $elements:ident => $body:expr) => {
        match $data {
            $crate::Data::F32($elements) => $crate::Data::F32($body),
            $crate::Data::I32($elements) => $crate::Data::I32($body),
            $crate::Data::I64($elements) => $crate::Data::I64($body),
            $crate::Data::Bool($elements) => $crate::Data::Bool($body),
        }
    };
}
pub(crate) use map_data;

impl Data {
    /// Element type.
    pub fn dtype(&self) -> DType {
        match self {
            Data::F32(_) => DType::F32,
            Data::I32(_) => DType::I32,
            Data::I64(_) => DType::I64,
            Data::Bool(_) => DType::Bool,
        }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Data::F32(v) => v.len(),
            Data::I32(v) => v.len(),
            Data::I64(v) => v.len(),
            Data::Bool(v) => v.len(),
        }
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements as bytes.
    pub fn to_bytes(&self) -> Bytes {
        match self {
            Data::F32(v) => Bytes::from_slice(v),
            Data::I32(v) => Bytes::from_slice(v),
            Data::I64(v) => Bytes::from_slice(v),
            Data::Bool(v) => Bytes::from_slice(v),
        }
    }

    /// Reads elements from `bytes`. Real types are converted to f32; `None` for types that are not compute types.
    pub fn from_bytes(dtype: DType, bytes: &[u8], elements: usize) -> Option<Data> {
        fn read<T, const N: usize>(bytes: &[u8], from: impl Fn([u8; N]) -> T) -> Vec<T> {
            bytes.as_chunks().0.iter().map(|b| from(*b)).collect()
        }
        Some(match dtype {
            DType::I32 => Data::I32(read(bytes, i32::from_le_bytes)),
            DType::I64 => Data::I64(read(bytes, i64::from_le_bytes)),
            DType::Bool => Data::Bool(bytes.iter().map(|b| *b != 0).collect()),
            DType::F32 => Data::F32(read(bytes, f32::from_le_bytes)),
            dtype if dtype.is_real() => {
                let mut out = vec![0.0; elements];
                base::quant::dequantise(dtype, bytes, &mut out).ok()?;
                Data::F32(out)
            }
            _ => return None,
        })
    }

    /// Appends elements of the same type.
    pub(crate) fn append(&mut self, other: &Data) -> Result<(), String> {
        match (self, other) {
            (Data::F32(a), Data::F32(b)) => a.extend_from_slice(b),
            (Data::I32(a), Data::I32(b)) => a.extend_from_slice(b),
            (Data::I64(a), Data::I64(b)) => a.extend_from_slice(b),
            (Data::Bool(a), Data::Bool(b)) => a.extend_from_slice(b),
            (a, b) => return Err(format!("cannot append {} to {}", b.dtype(), a.dtype())),
        }
        Ok(())
    }

    /// The elements at these indices.
    pub(crate) fn pick(&self, indices: impl Iterator<Item = usize>) -> Data {
        map_data!(self, from => indices.map(|i| from[i]).collect())
    }
}

impl Value {
    /// An f32 tensor.
    pub fn f32(shape: impl Into<Vec<usize>>, data: Vec<f32>) -> Value {
        Value {
            shape: shape.into(),
            data: Data::F32(data),
        }
    }

    /// An i32 tensor.
    pub fn i32(shape: impl Into<Vec<usize>>, data: Vec<i32>) -> Value {
        Value {
            shape: shape.into(),
            data: Data::I32(data),
        }
    }

    /// An i64 tensor.
    pub fn i64(shape: impl Into<Vec<usize>>, data: Vec<i64>) -> Value {
        Value {
            shape: shape.into(),
            data: Data::I64(data),
        }
    }

    /// A bool tensor.
    pub fn bool(shape: impl Into<Vec<usize>>, data: Vec<bool>) -> Value {
        Value {
            shape: shape.into(),
            data: Data::Bool(data),
        }
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.data.dtype()
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.data.len()
    }

    /// Whether there are no elements.
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

    /// The elements when they are i64.
    pub fn as_i64(&self) -> Option<&[i64]> {
        match &self.data {
            Data::I64(v) => Some(v),
            _ => None,
        }
    }

    /// The elements when they are bool.
    pub fn as_bool(&self) -> Option<&[bool]> {
        match &self.data {
            Data::Bool(v) => Some(v),
            _ => None,
        }
    }

    /// Returns the number of rows and the row width, which is the size of the last dimension (1 for a scalar).
    pub fn rows(&self) -> (usize, usize) {
        let (last, outer) = self
            .shape
            .split_last()
            .map_or((1, &[][..]), |(l, o)| (*l, o));
        (outer.iter().product(), last)
    }
}
