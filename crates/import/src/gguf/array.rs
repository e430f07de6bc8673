//! Typed arrays of metadata.

use base::StringTable;

/// An array of one element type, as stored.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "each variant is its element type")]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F32(Vec<f32>),
    F64(Vec<f64>),
    Bool(Vec<bool>),
    /// Elements that were not UTF-8 have U+FFFD in place of the bad bytes.
    String(StringTable),
}

/// `$body` for whichever vector `$array` holds.
macro_rules! each {
    ($array:expr, $v:ident => $body:expr) => {
        match $array {
            Array::U8($v) => $body,
            Array::I8($v) => $body,
            Array::U16($v) => $body,
            Array::I16($v) => $body,
            Array::U32($v) => $body,
            Array::I32($v) => $body,
            Array::U64($v) => $body,
            Array::I64($v) => $body,
            Array::F32($v) => $body,
            Array::F64($v) => $body,
            Array::Bool($v) => $body,
            Array::String($v) => $body,
        }
    };
}

impl Array {
    /// The number of elements.
    pub fn len(&self) -> usize {
        each!(self, v => v.len())
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The name of the element type.
    pub fn type_name(&self) -> &'static str {
        match self {
            Array::U8(_) => "u8",
            Array::I8(_) => "i8",
            Array::U16(_) => "u16",
            Array::I16(_) => "i16",
            Array::U32(_) => "u32",
            Array::I32(_) => "i32",
            Array::U64(_) => "u64",
            Array::I64(_) => "i64",
            Array::F32(_) => "f32",
            Array::F64(_) => "f64",
            Array::Bool(_) => "bool",
            Array::String(_) => "string",
        }
    }

    /// The elements as `T`s when they are integers: `Err` carries the first that does not fit.
    pub(super) fn integers<T: TryFrom<i128>>(&self) -> Option<Result<Vec<T>, i128>> {
        fn all<S: Copy + Into<i128>, T: TryFrom<i128>>(from: &[S]) -> Result<Vec<T>, i128> {
            let convert = |&x: &S| T::try_from(x.into()).map_err(|_| x.into());
            from.iter().map(convert).collect()
        }
        Some(match self {
            Array::U8(v) => all(v),
            Array::I8(v) => all(v),
            Array::U16(v) => all(v),
            Array::I16(v) => all(v),
            Array::U32(v) => all(v),
            Array::I32(v) => all(v),
            Array::U64(v) => all(v),
            Array::I64(v) => all(v),
            Array::F32(_) | Array::F64(_) | Array::Bool(_) | Array::String(_) => return None,
        })
    }
}
