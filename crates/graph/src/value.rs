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

/// A borrowed dense row-major tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ValueRef<'a> {
    /// Sizes, outermost first.
    pub shape: &'a [usize],
    /// The elements.
    pub data: DataRef<'a>,
}

/// The elements of a [`ValueRef`].
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs, reason = "each variant is its element type")]
pub enum DataRef<'a> {
    F32(&'a [f32]),
    I32(&'a [i32]),
    I64(&'a [i64]),
    Bool(&'a [bool]),
}

impl DataRef<'_> {
    /// Element type.
    pub fn dtype(&self) -> DType {
        match self {
            DataRef::F32(_) => DType::F32,
            DataRef::I32(_) => DType::I32,
            DataRef::I64(_) => DType::I64,
            DataRef::Bool(_) => DType::Bool,
        }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            DataRef::F32(v) => v.len(),
            DataRef::I32(v) => v.len(),
            DataRef::I64(v) => v.len(),
            DataRef::Bool(v) => v.len(),
        }
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements as bytes.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            DataRef::F32(v) => bytemuck::cast_slice(v),
            DataRef::I32(v) => bytemuck::cast_slice(v),
            DataRef::I64(v) => bytemuck::cast_slice(v),
            DataRef::Bool(v) => bytemuck::cast_slice(v),
        }
    }

    /// The address of the first element.
    pub fn as_ptr(&self) -> *const u8 {
        match self {
            DataRef::F32(v) => v.as_ptr().cast(),
            DataRef::I32(v) => v.as_ptr().cast(),
            DataRef::I64(v) => v.as_ptr().cast(),
            DataRef::Bool(v) => v.as_ptr().cast(),
        }
    }

    /// A copy of the elements.
    pub fn to_data(&self) -> Data {
        match self {
            DataRef::F32(v) => Data::F32(v.to_vec()),
            DataRef::I32(v) => Data::I32(v.to_vec()),
            DataRef::I64(v) => Data::I64(v.to_vec()),
            DataRef::Bool(v) => Data::Bool(v.to_vec()),
        }
    }
}

impl ValueRef<'_> {
    /// A copy of the tensor.
    pub fn to_value(&self) -> Value {
        Value {
            shape: self.shape.to_vec(),
            data: self.data.to_data(),
        }
    }
}

impl Value {
    /// The tensor, borrowed.
    pub fn view(&self) -> ValueRef<'_> {
        ValueRef {
            shape: &self.shape,
            data: match &self.data {
                Data::F32(v) => DataRef::F32(v),
                Data::I32(v) => DataRef::I32(v),
                Data::I64(v) => DataRef::I64(v),
                Data::Bool(v) => DataRef::Bool(v),
            },
        }
    }
}

impl Data {
    /// The elements as memory to write to.
    pub fn as_mut(&mut self) -> DataMut<'_> {
        match self {
            Data::F32(v) => DataMut::F32(v),
            Data::I32(v) => DataMut::I32(v),
            Data::I64(v) => DataMut::I64(v),
            Data::Bool(v) => DataMut::Bool(v),
        }
    }
}

/// Memory of a caller for the elements of a tensor.
#[derive(Debug)]
#[allow(missing_docs, reason = "each variant is its element type")]
pub enum DataMut<'a> {
    F32(&'a mut [f32]),
    I32(&'a mut [i32]),
    I64(&'a mut [i64]),
    Bool(&'a mut [bool]),
}

impl DataMut<'_> {
    /// Copies elements of the same type and number.
    ///
    /// # Errors
    /// Returns the reason if types or numbers differ.
    pub fn copy_from(&mut self, from: DataRef<'_>) -> Result<(), String> {
        fn copy<T: Copy>(to: &mut [T], from: &[T]) -> Result<(), String> {
            if to.len() != from.len() {
                return Err(format!(
                    "has {} elements, must have {}",
                    to.len(),
                    from.len()
                ));
            }
            to.copy_from_slice(from);
            Ok(())
        }
        match (self, from) {
            (DataMut::F32(to), DataRef::F32(from)) => copy(to, from),
            (DataMut::I32(to), DataRef::I32(from)) => copy(to, from),
            (DataMut::I64(to), DataRef::I64(from)) => copy(to, from),
            (DataMut::Bool(to), DataRef::Bool(from)) => copy(to, from),
            (to, from) => Err(format!("is {}, must be {}", to.dtype(), from.dtype())),
        }
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        match self {
            DataMut::F32(_) => DType::F32,
            DataMut::I32(_) => DType::I32,
            DataMut::I64(_) => DType::I64,
            DataMut::Bool(_) => DType::Bool,
        }
    }
}
