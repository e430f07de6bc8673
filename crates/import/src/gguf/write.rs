//! Writes a GGUF file, version 3: metadata, tensor directory, aligned tensor data.

use std::io::{self, Write};

use base::DType;

use super::array::Array;
use super::metadata::{Metadata, Value};

const VERSION: u32 = 3;
pub(super) const DEFAULT_ALIGNMENT: usize = 32;

/// A tensor of the directory.
pub(super) struct TensorHeader<'a> {
    pub(super) name: &'a str,
    pub(super) dtype: DType,
    /// Sizes, outermost first.
    pub(super) shape: &'a [usize],
    pub(super) bytes: usize,
}

/// Writes everything before the tensor data, with its padding. `leave` says which keys are left out, and `further` are added.
pub(super) fn header(
    out: &mut impl Write,
    metadata: &Metadata,
    leave: impl Fn(&str) -> bool,
    further: &[(String, Value)],
    tensors: &[TensorHeader<'_>],
    alignment: usize,
) -> io::Result<()> {
    let mut head: Vec<u8> = b"GGUF".to_vec();
    head.extend(VERSION.to_le_bytes());
    head.extend((tensors.len() as u64).to_le_bytes());
    let kept: Vec<(&str, &Value)> = metadata.iter().filter(|(key, _)| !leave(key)).collect();
    head.extend(((kept.len() + further.len()) as u64).to_le_bytes());
    for (key, value) in kept {
        // Texts that are not UTF-8 stay as they were.
        match metadata.stored(key) {
            Some(bytes) => head.extend(&bytes[..]),
            None => entry(&mut head, key, value),
        }
    }
    for (key, value) in further {
        entry(&mut head, key, value);
    }
    let mut offset = 0usize;
    for tensor in tensors {
        text(&mut head, tensor.name.as_bytes());
        head.extend((tensor.shape.len() as u32).to_le_bytes());
        for size in tensor.shape.iter().rev() {
            head.extend((*size as u64).to_le_bytes());
        }
        let number = tensor.dtype.number().expect("a type of GGUF files");
        head.extend(number.to_le_bytes());
        head.extend((offset as u64).to_le_bytes());
        offset = (offset + tensor.bytes).next_multiple_of(alignment);
    }
    head.resize(head.len().next_multiple_of(alignment), 0);
    out.write_all(&head)
}

fn text(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend((bytes.len() as u64).to_le_bytes());
    out.extend(bytes);
}

fn entry(out: &mut Vec<u8>, key: &str, value: &Value) {
    text(out, key.as_bytes());
    let mut put = |code: u32, bytes: &[u8]| {
        out.extend(code.to_le_bytes());
        out.extend(bytes);
    };
    match value {
        Value::U8(x) => put(0, &x.to_le_bytes()),
        Value::I8(x) => put(1, &x.to_le_bytes()),
        Value::U16(x) => put(2, &x.to_le_bytes()),
        Value::I16(x) => put(3, &x.to_le_bytes()),
        Value::U32(x) => put(4, &x.to_le_bytes()),
        Value::I32(x) => put(5, &x.to_le_bytes()),
        Value::F32(x) => put(6, &x.to_le_bytes()),
        Value::Bool(x) => put(7, &[u8::from(*x)]),
        Value::U64(x) => put(10, &x.to_le_bytes()),
        Value::I64(x) => put(11, &x.to_le_bytes()),
        Value::F64(x) => put(12, &x.to_le_bytes()),
        Value::String(x) => {
            put(8, &[]);
            text(out, x.as_bytes());
        }
        Value::Array(list) => {
            put(9, &[]);
            array(out, list);
        }
    }
}

/// Element type, length and elements.
fn array(out: &mut Vec<u8>, list: &Array) {
    fn numbers<const N: usize, T: Copy>(
        out: &mut Vec<u8>,
        code: u32,
        list: &[T],
        bytes: impl Fn(T) -> [u8; N],
    ) {
        out.extend(code.to_le_bytes());
        out.extend((list.len() as u64).to_le_bytes());
        list.iter().for_each(|x| out.extend(bytes(*x)));
    }
    match list {
        Array::U8(v) => numbers(out, 0, v, u8::to_le_bytes),
        Array::I8(v) => numbers(out, 1, v, i8::to_le_bytes),
        Array::U16(v) => numbers(out, 2, v, u16::to_le_bytes),
        Array::I16(v) => numbers(out, 3, v, i16::to_le_bytes),
        Array::U32(v) => numbers(out, 4, v, u32::to_le_bytes),
        Array::I32(v) => numbers(out, 5, v, i32::to_le_bytes),
        Array::F32(v) => numbers(out, 6, v, f32::to_le_bytes),
        Array::Bool(v) => numbers(out, 7, v, |x| [u8::from(x)]),
        Array::U64(v) => numbers(out, 10, v, u64::to_le_bytes),
        Array::I64(v) => numbers(out, 11, v, i64::to_le_bytes),
        Array::F64(v) => numbers(out, 12, v, f64::to_le_bytes),
        Array::String(v) => {
            out.extend(8u32.to_le_bytes());
            out.extend((v.len() as u64).to_le_bytes());
            v.iter().for_each(|x| text(out, x.as_bytes()));
        }
    }
}
