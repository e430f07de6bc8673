//! Reads a safetensors file: eight bytes of header length, a JSON header, and the tensors' bytes. Crate `safetensors` (0.8) is
//! not used: it adds the ends of tensors without a check (a panic on hostile sizes), and most of its errors name no tensor.

use std::ops::Range;
use std::path::{Path, PathBuf};

use base::{Bytes, DType};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::index;
use super::modules::Modules;
use crate::error::ImportError;

/// A parsed file or the parsed files of an index, and the configuration beside them.
#[derive(Clone, Debug)]
pub struct Safetensors {
    /// The tensors, in the header's order of names.
    pub tensors: Vec<SafetensorsTensor>,
    /// The header's own metadata, texts by key.
    pub metadata: Vec<(String, String)>,
    /// `config.json` of the same folder.
    pub config: Map<String, Value>,
    /// `modules.json` of the same folder, if it is one of sentence-transformers.
    pub modules: Option<Modules>,
}

/// A tensor of the file. Its bytes are a view into the file.
#[derive(Clone, Debug)]
pub struct SafetensorsTensor {
    /// The name.
    pub name: String,
    /// The element type.
    pub dtype: DType,
    /// Sizes, outermost first.
    pub shape: Vec<usize>,
    /// The stored bytes.
    pub data: Bytes,
}

/// Upper bound of the header's bytes, as the format's own reader has it.
const MAX_HEADER: u64 = 100_000_000;
const LENGTH_BYTES: usize = 8;
const CONFIG: &str = "config.json";

impl Safetensors {
    /// Opens a file and the `config.json` beside it. An index stands for the files that it names.
    pub fn open(path: &Path) -> Result<Safetensors, ImportError> {
        let read = || {
            let config = path.with_file_name(CONFIG);
            if !config.is_file() {
                let reason = format!("has no {CONFIG} beside it, which says what model it is");
                return Err(ImportError::malformed("the file", reason));
            }
            let config = Bytes::read(&config)?;
            let mut file = match index::is_index(path) {
                true => index::open(path, &config)?,
                false => Safetensors::parse(&Bytes::map(path)?, &config)?,
            };
            file.modules = Modules::beside(path)?;
            Ok(file)
        };
        read().map_err(|error: ImportError| error.in_file(path))
    }

    /// The file that stands for the model of a folder with a configuration; `None` if the folder has no `config.json`.
    ///
    /// # Errors
    /// If the folder has no weights.
    pub(crate) fn in_folder(folder: &Path) -> Result<Option<PathBuf>, ImportError> {
        if !folder.join(CONFIG).is_file() {
            return Ok(None);
        }
        index::weights(folder).map(Some)
    }

    /// Reads a file and its configuration.
    pub fn parse(bytes: &Bytes, config: &[u8]) -> Result<Safetensors, ImportError> {
        let header = |reason: String| ImportError::malformed("the header", reason);
        let length = bytes.first_chunk::<LENGTH_BYTES>();
        let length = length.ok_or_else(|| header("is cut off".into()))?;
        let length = u64::from_le_bytes(*length);
        let end = usize::try_from(length)
            .ok()
            .filter(|_| length <= MAX_HEADER);
        let end = end.and_then(|length| length.checked_add(LENGTH_BYTES));
        let Some(json) = end.and_then(|end| bytes.get(LENGTH_BYTES..end)) else {
            return Err(header(format!(
                "states {length} bytes, more than there are"
            )));
        };
        let body = bytes.slice(LENGTH_BYTES + json.len()..bytes.len());
        let body = body.ok_or_else(|| header("is cut off".into()))?;
        let entries = object("the header", json)?;
        let mut tensors = Vec::with_capacity(entries.len());
        let mut spans = Vec::with_capacity(entries.len());
        let mut metadata = vec![];
        for (name, entry) in &entries {
            if name == "__metadata__" {
                let texts = entry.as_object().into_iter().flatten();
                let text = |(key, value): (&String, &Value)| {
                    Some((key.clone(), value.as_str()?.to_owned()))
                };
                metadata.extend(texts.filter_map(text));
                continue;
            }
            let (tensor, span) = tensor(name, entry, &body)?;
            spans.push((span, tensors.len()));
            tensors.push(tensor);
        }
        check_overlap(spans, &tensors)?;
        Ok(Safetensors {
            tensors,
            metadata,
            config: object(CONFIG, config)?,
            modules: None,
        })
    }

    /// The tensor with this name.
    pub fn tensor(&self, name: &str) -> Option<&SafetensorsTensor> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }
}

/// Checks that no two tensors share bytes.
fn check_overlap(
    mut spans: Vec<(Range<usize>, usize)>,
    tensors: &[SafetensorsTensor],
) -> Result<(), ImportError> {
    spans.retain(|(span, _)| !span.is_empty());
    spans.sort_by_key(|(span, _)| span.start);
    for pair in spans.windows(2) {
        let [(first, _), (second, tensor)] = pair else {
            continue;
        };
        if second.start < first.end {
            let (from, end) = (second.start, first.end);
            let reason = format!("begins at byte {from}, before another tensor ends at {end}");
            let what = format!("tensor {:?}", tensors[*tensor].name);
            return Err(ImportError::malformed(what, reason));
        }
    }
    Ok(())
}

pub(super) fn object(what: &str, json: &[u8]) -> Result<Map<String, Value>, ImportError> {
    let parsed: Value = serde_json::from_slice(json)
        .map_err(|e| ImportError::malformed(what, format!("is not valid JSON: {e}")))?;
    match parsed {
        Value::Object(map) => Ok(map),
        _ => Err(ImportError::malformed(what, "is not an object")),
    }
}

/// A tensor's entry in the header.
#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: [usize; 2],
}

/// A tensor and the bytes of the body that it has.
fn tensor(
    name: &str,
    entry: &Value,
    body: &Bytes,
) -> Result<(SafetensorsTensor, Range<usize>), ImportError> {
    let wrong = |reason: String| ImportError::malformed(format!("tensor {name:?}"), reason);
    let entry = Entry::deserialize(entry).map_err(|e| wrong(format!("is not usable: {e}")))?;
    let (kind, shape, [from, to]) = (&*entry.dtype, entry.shape, entry.data_offsets);
    let dtype = match kind {
        "F32" => DType::F32,
        "F16" => DType::F16,
        "BF16" => DType::BF16,
        "I64" => DType::I64,
        "I32" => DType::I32,
        "I8" => DType::I8,
        "U8" => DType::U8,
        "BOOL" => DType::Bool,
        other => {
            let what = format!("the type {other:?} of tensor {name:?}");
            return Err(ImportError::unsupported(what));
        }
    };
    let data = (from <= to).then(|| body.slice(from..to)).flatten();
    let data = data.ok_or_else(|| {
        let len = body.len();
        wrong(format!("lies in bytes {from} to {to} of {len}"))
    })?;
    let elements = shape
        .iter()
        .try_fold(1usize, |n, size| n.checked_mul(*size));
    let bytes = elements.and_then(|n| n.checked_mul(dtype.block_bytes()));
    if bytes != Some(data.len()) {
        let len = data.len();
        return Err(wrong(format!(
            "has shape {shape:?} of {kind} in {len} bytes"
        )));
    }
    let tensor = SafetensorsTensor {
        name: name.to_owned(),
        dtype,
        shape,
        data,
    };
    Ok((tensor, from..to))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, body: &[u8]) -> Bytes {
        let length = (header.len() as u64).to_le_bytes();
        Bytes::from(&[&length[..], header.as_bytes(), body].concat()[..])
    }

    #[test]
    fn tensors_are_views_into_the_file() {
        let header = r#"{"__metadata__": {"format": "pt"},
            "a": {"dtype": "F32", "shape": [1, 2], "data_offsets": [0, 8]},
            "t2d": {"dtype": "BOOL", "shape": [3], "data_offsets": [8, 11]}}"#;
        let found = Safetensors::parse(&file(header, &[0; 11]), b"{}").unwrap();
        assert_eq!(found.metadata, [("format".to_owned(), "pt".to_owned())]);
        let a = found.tensor("a").unwrap();
        assert_eq!(
            (a.dtype, &a.shape[..], a.data.len()),
            (DType::F32, &[1, 2][..], 8)
        );
        assert!(found.tensor("b").is_none());
    }

    #[test]
    fn damaged_files_are_refused() {
        let one = |entry: &str| file(&format!(r#"{{"a": {entry}}}"#), &[0; 8]);
        let table = [
            (Bytes::from(&[1u8, 2][..]), "the header is cut off"),
            (Bytes::from(&[255u8; 8][..]), "more than there are"),
            (file("{", b""), "the header is not valid JSON"),
            (file("[]", b""), "the header is not an object"),
            (
                one("{}"),
                r#"tensor "a" is not usable: missing field `dtype`"#,
            ),
            (
                one(r#"{"dtype": "F8_E4M3", "shape": [8], "data_offsets": [0, 8]}"#),
                r#"type "F8_E4M3" of tensor "a""#,
            ),
            (
                one(r#"{"dtype": "F32", "shape": [-1]}"#),
                "invalid value: integer `-1`",
            ),
            (one(r#"{"dtype": "F32", "shape": [2]}"#), "data_offsets"),
            (
                one(r#"{"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}"#),
                "lies in bytes 4 to 12 of 8",
            ),
            (
                one(r#"{"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}"#),
                "lies in bytes 8 to 0 of 8",
            ),
            (
                file(
                    r#"{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
                        "b": {"dtype": "F32", "shape": [1], "data_offsets": [2, 6]}}"#,
                    &[0; 8],
                ),
                r#"tensor "b" begins at byte 2, before another tensor ends at 4"#,
            ),
            (
                one(r#"{"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}"#),
                "has shape [3] of F32 in 8 bytes",
            ),
            (
                one(
                    r#"{"dtype": "F32", "shape": [4294967296, 4294967296, 4294967296], "data_offsets": [0, 8]}"#,
                ),
                "of F32 in 8 bytes",
            ),
        ];
        for (bytes, expected) in table {
            let error = Safetensors::parse(&bytes, b"{}").unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        let error = Safetensors::parse(&file("{}", b""), b"1").unwrap_err();
        assert!(error.to_string().contains("config.json is not an object"));
    }
}
