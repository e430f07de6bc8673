//! Test-only writer of small GGUF files, valid or malformed.

use super::{Array, Value};

/// A file under construction. Tensor offsets are given by the caller, so that they can be wrong.
pub(crate) struct Writer {
    pub(crate) version: u32,
    pub(crate) alignment: usize,
    entries: Vec<Vec<u8>>,
    tensors: Vec<Vec<u8>>,
    data: Vec<u8>,
}

impl Writer {
    pub(crate) fn new() -> Writer {
        Writer {
            version: 3,
            alignment: 32,
            entries: Vec::new(),
            tensors: Vec::new(),
            data: Vec::new(),
        }
    }

    /// A metadata entry.
    pub(crate) fn entry(self, key: &str, value: Value) -> Writer {
        let (code, body) = encode(&value);
        self.raw_entry(key.as_bytes(), code, &body)
    }

    /// A metadata entry with any key, type number and bytes.
    pub(crate) fn raw_entry(mut self, key: &[u8], code: u32, body: &[u8]) -> Writer {
        let mut entry = string(key);
        entry.extend(code.to_le_bytes());
        entry.extend(body);
        self.entries.push(entry);
        self
    }

    /// A directory entry; `dims` are innermost first, as in the file.
    pub(crate) fn tensor(self, name: &str, dims: &[u64], code: u32, offset: u64) -> Writer {
        self.raw_tensor(name.as_bytes(), dims.len() as u32, dims, code, offset)
    }

    /// A directory entry with any name bytes and dimension count.
    pub(crate) fn raw_tensor(
        mut self,
        name: &[u8],
        dim_count: u32,
        dims: &[u64],
        code: u32,
        offset: u64,
    ) -> Writer {
        let mut tensor = string(name);
        tensor.extend(dim_count.to_le_bytes());
        tensor.extend(dims.iter().flat_map(|d| d.to_le_bytes()));
        tensor.extend(code.to_le_bytes());
        tensor.extend(offset.to_le_bytes());
        self.tensors.push(tensor);
        self
    }

    /// Appends to the tensor data.
    pub(crate) fn data(mut self, bytes: &[u8]) -> Writer {
        self.data.extend(bytes);
        self
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        let counts = (self.tensors.len() as u64, self.entries.len() as u64);
        self.finish_with_counts(counts)
    }

    /// Finishes with other counts of tensors and metadata keys than the true ones.
    pub(crate) fn finish_with_counts(self, (tensors, keys): (u64, u64)) -> Vec<u8> {
        let mut file = b"GGUF".to_vec();
        file.extend(self.version.to_le_bytes());
        file.extend(tensors.to_le_bytes());
        file.extend(keys.to_le_bytes());
        file.extend(self.entries.concat());
        file.extend(self.tensors.concat());
        if !self.data.is_empty() {
            file.resize(file.len().next_multiple_of(self.alignment), 0);
            file.extend(self.data);
        }
        file
    }
}

/// A length and the bytes.
pub(crate) fn string(bytes: &[u8]) -> Vec<u8> {
    let mut out = (bytes.len() as u64).to_le_bytes().to_vec();
    out.extend(bytes);
    out
}

fn encode(value: &Value) -> (u32, Vec<u8>) {
    match value {
        Value::U8(x) => (0, x.to_le_bytes().to_vec()),
        Value::I8(x) => (1, x.to_le_bytes().to_vec()),
        Value::U16(x) => (2, x.to_le_bytes().to_vec()),
        Value::I16(x) => (3, x.to_le_bytes().to_vec()),
        Value::U32(x) => (4, x.to_le_bytes().to_vec()),
        Value::I32(x) => (5, x.to_le_bytes().to_vec()),
        Value::F32(x) => (6, x.to_le_bytes().to_vec()),
        Value::Bool(x) => (7, vec![u8::from(*x)]),
        Value::String(x) => (8, string(x.as_bytes())),
        Value::Array(x) => (9, encode_array(x)),
        Value::U64(x) => (10, x.to_le_bytes().to_vec()),
        Value::I64(x) => (11, x.to_le_bytes().to_vec()),
        Value::F64(x) => (12, x.to_le_bytes().to_vec()),
    }
}

fn encode_array(array: &Array) -> Vec<u8> {
    let (code, body): (u32, Vec<u8>) = match array {
        Array::U8(v) => (0, v.clone()),
        Array::I8(v) => (1, v.iter().flat_map(|x| x.to_le_bytes()).collect()),
        Array::U16(v) => (2, v.iter().flat_map(|x| x.to_le_bytes()).collect()),
        Array::I16(v) => (3, v.iter().flat_map(|x| x.to_le_bytes()).collect()),
        Array::U32(v) => (4, v.iter().flat_map(|x| x.to_le_bytes()).collect()),
        Array::I32(v) => (5, v.iter().flat_map(|x| x.to_le_bytes()).collect()),
        Array::F32(v) => (6, v.iter().flat_map(|x| x.to_le_bytes()).collect()),
        Array::Bool(v) => (7, v.iter().map(|&x| u8::from(x)).collect()),
        Array::String(v) => (8, v.iter().flat_map(|x| string(x.as_bytes())).collect()),
        Array::U64(v) => (10, v.iter().flat_map(|x| x.to_le_bytes()).collect()),
        Array::I64(v) => (11, v.iter().flat_map(|x| x.to_le_bytes()).collect()),
        Array::F64(v) => (12, v.iter().flat_map(|x| x.to_le_bytes()).collect()),
    };
    let mut out = code.to_le_bytes().to_vec();
    out.extend((array.len() as u64).to_le_bytes());
    out.extend(body);
    out
}
