//! The key-value section of a file.

use std::borrow::Cow;
use std::collections::HashMap;

use super::array::Array;
use super::error::{GgufError, GgufErrorDetail};
use base::{Bytes, StringTable};

/// A file's metadata: unique keys with typed values, in file order.
///
/// The typed getters give `Ok(None)` for an absent key and an error for a value of another type. Integers of any
/// width are read as the width asked for when the value fits.
#[derive(Clone, Debug, Default)]
pub struct Metadata {
    entries: Vec<(String, Value)>,
    index: HashMap<String, usize>,
    /// The bytes of each entry in the file, key included; none of those that were made in memory.
    stored: Vec<Option<Bytes>>,
}

/// One metadata value, as stored.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "each variant is its type")]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    String(String),
    Array(Array),
}

impl Value {
    /// The name of the type, such as `u32` or `array of string`.
    pub fn type_name(&self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            Value::U8(_) => "u8",
            Value::I8(_) => "i8",
            Value::U16(_) => "u16",
            Value::I16(_) => "i16",
            Value::U32(_) => "u32",
            Value::I32(_) => "i32",
            Value::U64(_) => "u64",
            Value::I64(_) => "i64",
            Value::F32(_) => "f32",
            Value::F64(_) => "f64",
            Value::Bool(_) => "bool",
            Value::String(_) => "string",
            Value::Array(array) => return Cow::Owned(format!("array of {}", array.type_name())),
        })
    }

    /// The value when it is an integer.
    pub fn as_integer(&self) -> Option<i128> {
        Some(match *self {
            Value::U8(x) => x.into(),
            Value::I8(x) => x.into(),
            Value::U16(x) => x.into(),
            Value::I16(x) => x.into(),
            Value::U32(x) => x.into(),
            Value::I32(x) => x.into(),
            Value::U64(x) => x.into(),
            Value::I64(x) => x.into(),
            _ => return None,
        })
    }
}

impl Metadata {
    /// Adds an entry whose key must be new.
    pub(super) fn push(&mut self, key: String, value: Value) -> Result<(), GgufErrorDetail> {
        if self.index.contains_key(&key) {
            return Err(GgufErrorDetail::DuplicateKey { key });
        }
        self.index.insert(key.clone(), self.entries.len());
        self.entries.push((key, value));
        self.stored.push(None);
        Ok(())
    }

    /// Keeps the bytes of the last entry.
    pub(super) fn keep_stored(&mut self, bytes: Option<Bytes>) {
        if let Some(last) = self.stored.last_mut() {
            *last = bytes;
        }
    }

    /// The bytes of an entry in the file it was read from.
    pub(super) fn stored(&self, key: &str) -> Option<&Bytes> {
        self.stored[*self.index.get(key)?].as_ref()
    }

    /// Adds an entry whose key must be new.
    pub(crate) fn insert(&mut self, key: String, value: Value) -> Result<(), GgufError> {
        Ok(self.push(key, value)?)
    }

    /// The value of `key`, whatever its type.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.index.get(key).map(|&i| &self.entries[i].1)
    }

    /// Keys and values in file order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (&**key, value))
    }

    /// The number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// A string.
    pub fn str(&self, key: &str) -> Result<Option<&str>, GgufError> {
        self.typed(key, "a string", |value| match value {
            Value::String(text) => Some(text.as_str()),
            _ => None,
        })
    }

    /// A bool.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, GgufError> {
        self.typed(key, "a bool", |value| match value {
            Value::Bool(x) => Some(*x),
            _ => None,
        })
    }

    /// A floating-point number; an `f64` is rounded.
    pub fn f32(&self, key: &str) -> Result<Option<f32>, GgufError> {
        self.typed(key, "an f32", |value| match value {
            Value::F32(x) => Some(*x),
            Value::F64(x) => Some(*x as f32),
            _ => None,
        })
    }

    /// An integer from 0 to `u32::MAX`.
    pub fn u32(&self, key: &str) -> Result<Option<u32>, GgufError> {
        Ok(self.integer(key, "a u32")?)
    }

    /// An integer from 0 to `u64::MAX`.
    pub fn u64(&self, key: &str) -> Result<Option<u64>, GgufError> {
        Ok(self.integer(key, "a u64")?)
    }

    /// A count or size.
    pub fn usize(&self, key: &str) -> Result<Option<usize>, GgufError> {
        Ok(self.integer(key, "a usize")?)
    }

    /// An array of strings. Elements that are not UTF-8 in the file have U+FFFD in place of the bad bytes.
    pub fn strings(&self, key: &str) -> Result<Option<&StringTable>, GgufError> {
        self.typed(key, "an array of string", |value| match value {
            Value::Array(Array::String(v)) => Some(v),
            _ => None,
        })
    }

    /// An array of bools.
    pub fn bools(&self, key: &str) -> Result<Option<&[bool]>, GgufError> {
        self.typed(key, "an array of bool", |value| match value {
            Value::Array(Array::Bool(v)) => Some(v.as_slice()),
            _ => None,
        })
    }

    /// An array of `f32`; `f64` elements are rounded.
    pub fn f32s(&self, key: &str) -> Result<Option<Cow<'_, [f32]>>, GgufError> {
        self.typed(key, "an array of f32", |value| match value {
            Value::Array(Array::F32(v)) => Some(Cow::Borrowed(v.as_slice())),
            Value::Array(Array::F64(v)) => Some(v.iter().map(|&x| x as f32).collect()),
            _ => None,
        })
    }

    /// An array of `i32`.
    pub fn i32s(&self, key: &str) -> Result<Option<Cow<'_, [i32]>>, GgufError> {
        match self.get(key) {
            Some(Value::Array(Array::I32(v))) => Ok(Some(Cow::Borrowed(v))),
            _ => Ok(self.integers(key, "an array of i32")?.map(Cow::Owned)),
        }
    }

    /// An array of `u32`.
    pub fn u32s(&self, key: &str) -> Result<Option<Cow<'_, [u32]>>, GgufError> {
        match self.get(key) {
            Some(Value::Array(Array::U32(v))) => Ok(Some(Cow::Borrowed(v))),
            _ => Ok(self.integers(key, "an array of u32")?.map(Cow::Owned)),
        }
    }

    /// An array of counts or sizes.
    pub fn usizes(&self, key: &str) -> Result<Option<Vec<usize>>, GgufError> {
        Ok(self.integers(key, "an array of usize")?)
    }

    /// The integer at `key` as a `T`, which messages call `wanted`.
    pub(super) fn integer<T: TryFrom<i128>>(
        &self,
        key: &str,
        wanted: &'static str,
    ) -> Result<Option<T>, GgufErrorDetail> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let Some(integer) = value.as_integer() else {
            return Err(wrong_type(key, value, wanted));
        };
        match T::try_from(integer) {
            Ok(fits) => Ok(Some(fits)),
            Err(_) => Err(out_of_range(key, integer, wanted)),
        }
    }

    fn integers<T: TryFrom<i128>>(
        &self,
        key: &str,
        wanted: &'static str,
    ) -> Result<Option<Vec<T>>, GgufErrorDetail> {
        match self.get(key) {
            None => Ok(None),
            Some(value @ Value::Array(array)) => match array.integers() {
                None => Err(wrong_type(key, value, wanted)),
                Some(Ok(all)) => Ok(Some(all)),
                Some(Err(bad)) => Err(out_of_range(key, bad, wanted)),
            },
            Some(value) => Err(wrong_type(key, value, wanted)),
        }
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        wanted: &'static str,
        pick: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, GgufError> {
        match self.get(key) {
            None => Ok(None),
            Some(value) => match pick(value) {
                Some(picked) => Ok(Some(picked)),
                None => Err(wrong_type(key, value, wanted).into()),
            },
        }
    }
}

fn wrong_type(key: &str, value: &Value, wanted: &'static str) -> GgufErrorDetail {
    GgufErrorDetail::WrongType {
        key: key.to_owned(),
        found: value.type_name().into_owned(),
        wanted,
    }
}

fn out_of_range(key: &str, value: i128, wanted: &'static str) -> GgufErrorDetail {
    GgufErrorDetail::Range {
        key: key.to_owned(),
        value,
        wanted,
    }
}
