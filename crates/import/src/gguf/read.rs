//! The layout of the file: header, metadata, tensor directory, aligned tensor data.

use std::collections::HashMap;
use std::path::Path;

use base::{Bytes, DType, StringTable};

use super::array::Array;
use super::cursor::{Cursor, FieldLabel};
use super::error::{GgufError, GgufErrorDetail};
use super::file::{Gguf, GgufTensor};
use super::ggml_type;
use super::metadata::{Metadata, Value};

const MAGIC: &[u8; 4] = b"GGUF";
const LFS_POINTER: &[u8] = b"version https://git-lfs.github.com/spec/";
const DEFAULT_ALIGNMENT: u64 = 32;
/// Far above any page size; prevents a hostile file from requesting huge padding.
const MAX_ALIGNMENT: u64 = 1 << 24;
/// The most dimensions a tensor can have.
const MAX_DIMS: u32 = 4;
/// Bytes of the shortest metadata entry: empty key, type, one-byte value.
const MIN_ENTRY: usize = 8 + 4 + 1;
/// Bytes of the shortest directory entry: empty name, no dimensions, type, offset.
const MIN_TENSOR: usize = 8 + 4 + 4 + 8;

/// A tensor's directory entry.
struct TensorEntry {
    name: String,
    dtype: DType,
    shape: Vec<usize>,
    bytes: usize,
    /// From the start of the tensor data.
    offset: u64,
}

impl Gguf {
    /// Maps the file at `path` and reads it. Tensor data is not touched. If the file is a part of a split model, the
    /// other parts are read from the same folder.
    pub fn open(path: &Path) -> Result<Gguf, GgufError> {
        Gguf::parse_with_parts(Bytes::map(path)?, path)
    }

    /// Reads a whole file held in `bytes`; the tensors are views into it.
    pub fn parse(bytes: Bytes) -> Result<Gguf, GgufError> {
        Ok(read(&bytes)?)
    }
}

fn read(bytes: &Bytes) -> Result<Gguf, GgufErrorDetail> {
    let mut cursor = Cursor::new(bytes);
    let version = header(&mut cursor, bytes)?;

    // Both counts precede the metadata, so the tensor count is first checked against all that follows.
    const TENSORS: FieldLabel<'static> = FieldLabel::Header("tensor count");
    let tensor_count = cursor.count(MIN_TENSOR, TENSORS)? as u64;
    let key_count = cursor.count(MIN_ENTRY, FieldLabel::Header("metadata key count"))?;
    let metadata = metadata(&mut cursor, key_count, bytes)?;
    let alignment = alignment(&metadata)?;

    let tensor_count = cursor.check_count(tensor_count, MIN_TENSOR, TENSORS)?;
    let mut entries = Vec::new();
    let mut index = HashMap::new();
    for n in 0..tensor_count {
        let entry = entry(&mut cursor, n as u64, alignment)?;
        if index.insert(entry.name.clone(), n).is_some() {
            return Err(GgufErrorDetail::DuplicateTensor { name: entry.name });
        }
        entries.push(entry);
    }

    // A file without tensors may end before the padding.
    let start = (cursor.position() as u64).next_multiple_of(alignment);
    let tensors = attach_data(entries, bytes, start)?;
    Ok(Gguf {
        version,
        metadata,
        tensors,
        index,
        parts: 1,
        rope: None,
        made: false,
    })
}

fn header(cursor: &mut Cursor<'_>, bytes: &[u8]) -> Result<u32, GgufErrorDetail> {
    if bytes.is_empty() {
        return Err(GgufErrorDetail::Empty);
    }
    if bytes.starts_with(LFS_POINTER) {
        return Err(GgufErrorDetail::LfsPointer);
    }
    // A prefix of the magic is a truncated file, anything else another kind of file.
    let seen = bytes.len().min(MAGIC.len());
    if bytes[..seen] != MAGIC[..seen] {
        return Err(GgufErrorDetail::Magic {
            start: bytes[..bytes.len().min(16)].to_vec(),
        });
    }
    cursor.take(MAGIC.len() as u64, FieldLabel::Header("magic"))?;
    let version = cursor.u32(FieldLabel::Header("version"))?;
    match version {
        2 | 3 => Ok(version),
        swapped if (1..=0xffff).contains(&swapped.swap_bytes()) => {
            Err(GgufErrorDetail::BigEndian {
                version: swapped.swap_bytes(),
            })
        }
        version => Err(GgufErrorDetail::Version { version }),
    }
}

fn metadata(
    cursor: &mut Cursor<'_>,
    count: usize,
    bytes: &Bytes,
) -> Result<Metadata, GgufErrorDetail> {
    let mut metadata = Metadata::default();
    for n in 0..count {
        let start = cursor.position();
        let key = cursor.string(FieldLabel::Key(n as u64))?.to_owned();
        let value = value(cursor, &key)?;
        metadata.push(key, value)?;
        metadata.keep_stored(bytes.slice(start..cursor.position()));
    }
    Ok(metadata)
}

fn value(cursor: &mut Cursor<'_>, key: &str) -> Result<Value, GgufErrorDetail> {
    let field = FieldLabel::Value(key, "value");
    let code = cursor.u32(FieldLabel::Value(key, "value type"))?;
    Ok(match code {
        0 => Value::U8(u8::from_le_bytes(cursor.array(field)?)),
        1 => Value::I8(i8::from_le_bytes(cursor.array(field)?)),
        2 => Value::U16(u16::from_le_bytes(cursor.array(field)?)),
        3 => Value::I16(i16::from_le_bytes(cursor.array(field)?)),
        4 => Value::U32(u32::from_le_bytes(cursor.array(field)?)),
        5 => Value::I32(i32::from_le_bytes(cursor.array(field)?)),
        6 => Value::F32(f32::from_le_bytes(cursor.array(field)?)),
        7 => Value::Bool(bool_of(cursor.array(field)?, key)?),
        8 => Value::String(cursor.string(field)?.to_owned()),
        9 => Value::Array(array(cursor, key)?),
        10 => Value::U64(u64::from_le_bytes(cursor.array(field)?)),
        11 => Value::I64(i64::from_le_bytes(cursor.array(field)?)),
        12 => Value::F64(f64::from_le_bytes(cursor.array(field)?)),
        code => {
            let key = key.to_owned();
            return Err(GgufErrorDetail::ValueType { key, code });
        }
    })
}

fn array(cursor: &mut Cursor<'_>, key: &str) -> Result<Array, GgufErrorDetail> {
    let code = cursor.u32(FieldLabel::Value(key, "array element type"))?;
    Ok(match code {
        0 => Array::U8(numbers(cursor, key, u8::from_le_bytes)?),
        1 => Array::I8(numbers(cursor, key, i8::from_le_bytes)?),
        2 => Array::U16(numbers(cursor, key, u16::from_le_bytes)?),
        3 => Array::I16(numbers(cursor, key, i16::from_le_bytes)?),
        4 => Array::U32(numbers(cursor, key, u32::from_le_bytes)?),
        5 => Array::I32(numbers(cursor, key, i32::from_le_bytes)?),
        6 => Array::F32(numbers(cursor, key, f32::from_le_bytes)?),
        7 => {
            let bytes = numbers(cursor, key, |byte: [u8; 1]| byte)?;
            let bools = bytes.into_iter().map(|byte| bool_of(byte, key));
            Array::Bool(bools.collect::<Result<_, _>>()?)
        }
        8 => {
            let len = cursor.count(8, FieldLabel::Value(key, "array length"))?;
            let field = FieldLabel::Value(key, "array");
            let mut strings = StringTable::default();
            for _ in 0..len {
                // Vocabularies contain tokens that are parts of characters, which must not prevent loading.
                strings.push_lossy(cursor.string_bytes(field)?);
            }
            Array::String(strings)
        }
        9 => {
            let key = key.to_owned();
            return Err(GgufErrorDetail::NestedArray { key });
        }
        10 => Array::U64(numbers(cursor, key, u64::from_le_bytes)?),
        11 => Array::I64(numbers(cursor, key, i64::from_le_bytes)?),
        12 => Array::F64(numbers(cursor, key, f64::from_le_bytes)?),
        code => {
            let key = key.to_owned();
            return Err(GgufErrorDetail::ValueType { key, code });
        }
    })
}

/// A length and that many `N`-byte elements.
fn numbers<T, const N: usize>(
    cursor: &mut Cursor<'_>,
    key: &str,
    decode: impl Fn([u8; N]) -> T,
) -> Result<Vec<T>, GgufErrorDetail> {
    let len = cursor.count(N, FieldLabel::Value(key, "array length"))?;
    // In range: the count has been checked against the bytes left.
    let bytes = cursor.take((len * N) as u64, FieldLabel::Value(key, "array"))?;
    let (chunks, _) = bytes.as_chunks::<N>();
    Ok(chunks.iter().map(|&chunk| decode(chunk)).collect())
}

fn bool_of([byte]: [u8; 1], key: &str) -> Result<bool, GgufErrorDetail> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        byte => Err(GgufErrorDetail::Bool {
            key: key.to_owned(),
            byte,
        }),
    }
}

fn alignment(metadata: &Metadata) -> Result<u64, GgufErrorDetail> {
    let key = "general.alignment";
    let Some(value) = metadata.integer::<u64>(key, "an alignment")? else {
        return Ok(DEFAULT_ALIGNMENT);
    };
    if !value.is_power_of_two() || value > MAX_ALIGNMENT {
        let max = MAX_ALIGNMENT;
        return Err(GgufErrorDetail::Alignment { value, max });
    }
    Ok(value)
}

fn entry(cursor: &mut Cursor<'_>, n: u64, alignment: u64) -> Result<TensorEntry, GgufErrorDetail> {
    let name = cursor.string(FieldLabel::TensorName(n))?.to_owned();
    let dims = cursor.u32(FieldLabel::Tensor(&name, "dimension count"))?;
    if dims > MAX_DIMS {
        let max = MAX_DIMS;
        return Err(GgufErrorDetail::DimCount { name, dims, max });
    }
    let dims = (0..dims)
        .map(|_| cursor.u64(FieldLabel::Tensor(&name, "dimensions")))
        .collect::<Result<Vec<u64>, _>>()?;
    let code = cursor.u32(FieldLabel::Tensor(&name, "type"))?;
    let offset = cursor.u64(FieldLabel::Tensor(&name, "offset"))?;

    let dtype = match ggml_type::dtype(code) {
        Ok(dtype) => dtype,
        Err(label) => return Err(GgufErrorDetail::TensorType { name, label }),
    };
    if let Some(index) = dims.iter().position(|&d| d == 0) {
        return Err(GgufErrorDetail::ZeroDim { name, index });
    }
    let Some((mut shape, elements)) = sizes(&dims) else {
        return Err(GgufErrorDetail::Overflow { name, dims });
    };
    let row = shape.first().copied().unwrap_or(1);
    let block = dtype.block_len();
    if !row.is_multiple_of(block) {
        return Err(GgufErrorDetail::PartialBlock {
            name,
            row,
            dtype,
            block,
        });
    }
    let Some(bytes) = dtype.row_bytes(elements) else {
        return Err(GgufErrorDetail::Overflow { name, dims });
    };
    if !offset.is_multiple_of(alignment) {
        return Err(GgufErrorDetail::Misaligned {
            name,
            offset,
            alignment,
        });
    }
    shape.reverse();
    Ok(TensorEntry {
        name,
        dtype,
        shape,
        bytes,
        offset,
    })
}

/// The dimensions and their product, when both can be counted in memory.
fn sizes(dims: &[u64]) -> Option<(Vec<usize>, usize)> {
    let shape = dims.iter().map(|&d| usize::try_from(d).ok());
    let shape: Vec<usize> = shape.collect::<Option<_>>()?;
    let elements = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d))?;
    Some((shape, elements))
}

/// The bytes of the whole file, if its tensors lie one after the other: a shorter file was cut. Offsets that overlap, or skip
/// more than an alignment does, are wrong instead.
fn file_bytes(entries: &[TensorEntry], start: u64) -> Option<u64> {
    let mut spans: Vec<(u64, u64)> = entries
        .iter()
        .map(|entry| Some((entry.offset, entry.offset.checked_add(entry.bytes as u64)?)))
        .collect::<Option<_>>()?;
    spans.sort_unstable();
    let mut before = 0;
    for (from, end) in spans {
        if from < before || from - before >= MAX_ALIGNMENT {
            return None;
        }
        before = end;
    }
    before.checked_add(start)
}

/// Attaches the bytes of each entry; the tensor data begins at byte `start` of the file.
fn attach_data(
    entries: Vec<TensorEntry>,
    file: &Bytes,
    start: u64,
) -> Result<Vec<GgufTensor>, GgufErrorDetail> {
    let needed = || file_bytes(&entries, start).filter(|needed| *needed > file.len() as u64);
    let start = usize::try_from(start).map_or(file.len(), |start| start.min(file.len()));
    let have = file.len() - start;
    let mut spans = Vec::with_capacity(entries.len());
    for entry in &entries {
        let end = usize::try_from(entry.offset)
            .ok()
            .and_then(|offset| offset.checked_add(entry.bytes))
            .filter(|&end| end <= have);
        let Some(end) = end else {
            if let Some(needed) = needed() {
                return Err(GgufErrorDetail::TruncatedData {
                    name: entry.name.clone(),
                    found: file.len(),
                    needed,
                });
            }
            return Err(GgufErrorDetail::Outside {
                name: entry.name.clone(),
                offset: entry.offset,
                bytes: entry.bytes,
                have,
            });
        };
        spans.push(end - entry.bytes..end);
    }

    // No span is empty, so if any two overlap then two neighbours in order of offset do.
    let mut order: Vec<usize> = (0..spans.len()).collect();
    order.sort_by_key(|&i| spans[i].start);
    for pair in order.windows(2) {
        let (first, second) = (pair[0], pair[1]);
        if spans[second].start < spans[first].end {
            return Err(GgufErrorDetail::Overlap {
                name: entries[second].name.clone(),
                offset: spans[second].start,
                other: entries[first].name.clone(),
                end: spans[first].end,
            });
        }
    }

    let tensors = entries.into_iter().zip(spans).map(|(entry, span)| {
        let data = file.slice(start + span.start..start + span.end);
        GgufTensor {
            name: entry.name,
            dtype: entry.dtype,
            shape: entry.shape,
            data: data.expect("span was checked against the file"),
        }
    });
    Ok(tensors.collect())
}
